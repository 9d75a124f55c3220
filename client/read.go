package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// Entry is one record of the log.
type Entry struct {
	Index int64
	Term  int64
	Pos   int64 // byte position in the data files
	Noop  bool  // a leader wrote it at its election; Body is empty
	Body  []byte
}

const (
	readBytes    = 1 << 20         // of entries asked for in one request
	readWait     = 2 * time.Second // how long one of our nodes holds a request at the end of the log
	readAhead    = 16              // single reads on the way to a Java node
	pollMin      = 10 * time.Millisecond
	pollMax      = 200 * time.Millisecond
	readPauseMin = 5 * time.Millisecond // before a read is tried again
	readPauseMax = 200 * time.Millisecond
)

// Reads. Our nodes give only what is committed, and that never changes: what they give is right whoever leads. Only "there is no
// such entry" can be out of date; it counts once a majority has confirmed the leader that says so. So every read sees all appends that
// were acknowledged before it began. A Java leader does not ask: one that was cut off gives entries that may yet vanish.

// Get reads one entry. It tries for as long as ctx lasts. ErrOutOfRange and ErrCompacted say that there is none.
func (c *Client) Get(ctx context.Context, index int64) (Entry, error) {
	entries, err := c.read(ctx, index, 1, 0)
	if err != nil {
		return Entry{Index: -1}, err
	}
	if len(entries) == 0 {
		return Entry{Index: -1}, fmt.Errorf("%w: index %d", ErrOutOfRange, index)
	}
	return entries[0], nil
}

// Entries gives the entries from index from on, up to the end of the log as it is when the iterator gets there. An error ends it.
func (c *Client) Entries(ctx context.Context, from int64) iter.Seq2[Entry, error] {
	return c.entries(ctx, from, false)
}

// Tail is Entries that waits at the end of the log for more, until ctx ends; that is no error.
func (c *Client) Tail(ctx context.Context, from int64) iter.Seq2[Entry, error] {
	return c.entries(ctx, from, true)
}

// fetched is the outcome of one read ahead.
type fetched struct {
	entries []Entry
	err     error
}

func (c *Client) entries(ctx context.Context, from int64, tail bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		// "read ahead" is the goroutine that fetches the next entries while yield works on those before.
		ahead, stopped := make(chan fetched, 1), make(chan struct{})
		go func() {
			defer close(stopped)
			c.readAhead(ctx, from, tail, ahead)
		}()
		defer func() { <-stopped }()
		defer cancel()
		for f := range ahead {
			for _, e := range f.entries {
				if !yield(e, nil) {
					return
				}
			}
			if f.err != nil {
				if !tail || ctx.Err() == nil {
					yield(Entry{Index: -1}, f.err)
				}
				return
			}
		}
	}
}

// readAhead reads on and on, and closes ahead behind the last outcome.
func (c *Client) readAhead(ctx context.Context, next int64, tail bool, ahead chan<- fetched) {
	defer close(ahead)
	poll := pollMin
	for {
		var f fetched
		wait := time.Duration(0)
		if tail {
			wait = min(readWait, c.cfg.RequestTimeout/2)
		}
		f.entries, f.err = c.read(ctx, next, 0, wait)
		end := len(f.entries) == 0 && f.err == nil || errors.Is(f.err, ErrOutOfRange)
		if end && tail { // one of our nodes has held the request for readWait already
			select {
			case <-time.After(poll):
				poll = min(2*poll, pollMax)
				continue
			case <-ctx.Done():
				return
			}
		}
		if end {
			return
		}
		poll = pollMin
		select {
		case ahead <- f:
		case <-ctx.Done():
			return
		}
		if f.err != nil {
			return
		}
		next = f.entries[len(f.entries)-1].Index + 1
	}
}

// read gives some entries from index from on, at most limit of them (0 = as many as come), waiting at the end of the log where the
// leader can; it tries again until ctx ends. Reading twice does no harm, so that every doubtful outcome is tried again.
func (c *Client) read(ctx context.Context, from int64, limit int, wait time.Duration) ([]Entry, error) {
	var last error
	for pause := readPauseMin; ; pause = min(2*pause, readPauseMax) {
		l, err := c.lookup(ctx)
		if err != nil {
			if last != nil {
				err = fmt.Errorf("%w; before that: %w", err, last)
			}
			return nil, err
		}
		var entries []Entry
		var v verdict
		if l.kind == kindOriginal {
			entries, v, err = c.readSingles(ctx, l, from, limit)
		} else {
			if entries, v, err = c.readBatch(ctx, l, from, limit, wait, false); errors.Is(err, ErrOutOfRange) {
				entries, v, err = c.readBatch(ctx, l, from, limit, 0, true)
			}
		}
		if v == taken {
			c.mu.Lock()
			c.redirects = 0
			c.mu.Unlock()
			return entries, nil
		}
		if v == never {
			return nil, err
		}
		if last = err; ctx.Err() == nil {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: last tried: %w", ended(ctx), last)
		}
	}
}

// readBatch asks one of our nodes.
func (c *Client) readBatch(ctx context.Context, l node, from int64, limit int, wait time.Duration, confirmed bool) ([]Entry, verdict, error) {
	req := wire.GetBatchRequest{Group: c.cfg.Group, RemoteID: l.id, From: raft.Index(from), BytesMax: readBytes, EntriesMax: limit,
		Confirmed: confirmed, Wait: wait}
	if from < 0 {
		return nil, never, fmt.Errorf("%w: index %d", ErrOutOfRange, from)
	}
	frame, err := c.rc.Call(ctx, l.address, remoting.Request{Code: wire.CodeGetBatch}, c.cfg.RequestTimeout, req.AppendTo(nil))
	if err != nil {
		return nil, c.readFailed(l, err), fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	var a wire.GetBatchResponse
	if err := a.Decode(frame.Code, frame.Body); err != nil {
		return nil, c.readUnclear(l, frame.Code, err), fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	if a.Code != wire.ResultOK {
		v, err := c.readRefused(l, a.Code, a.LeaderID, from)
		return nil, v, err
	}
	entries, err := decodeEntries(a.Entries)
	if err != nil {
		return nil, never, fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	return entries, taken, nil
}

// readSingles asks a Java node, or any node in the original's way: each entry by itself, several on the way.
func (c *Client) readSingles(ctx context.Context, l node, from int64, limit int) ([]Entry, verdict, error) {
	if limit == 0 {
		limit = readAhead
	}
	type answer struct {
		frame remoting.Frame
		err   error
	}
	answers := make([]chan answer, limit)
	for i := range answers {
		got := make(chan answer, 1)
		answers[i] = got
		req := wire.GetRequest{Base: wire.ClientBase(c.cfg.Group, l.id), BeginIndex: raft.Index(from + int64(i))}
		done := func(f *remoting.Frame, err error) {
			a := answer{err: err}
			if f != nil {
				a.frame = *f
			}
			got <- a
		}
		if err := c.rc.Go(l.address, remoting.Request{Code: wire.CodeGet}, c.cfg.RequestTimeout, done, req.AppendTo(nil)); err != nil {
			done(nil, err)
		}
	}
	entries := make([]Entry, 0, limit)
	for i, got := range answers {
		var a answer
		select {
		case a = <-got:
		case <-ctx.Done():
			return nil, unsure, ended(ctx)
		}
		e, v, err := c.readSingle(l, from+int64(i), &a.frame, a.err)
		if v != taken {
			if len(entries) > 0 {
				break // what is there counts; the next read finds the same again
			}
			return nil, v, err
		}
		entries = append(entries, e...)
	}
	return entries, taken, nil
}

func (c *Client) readSingle(l node, index int64, frame *remoting.Frame, err error) ([]Entry, verdict, error) {
	if err != nil {
		return nil, c.readFailed(l, err), fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	var a wire.GetResponse
	if err := a.Decode(frame.Code, frame.Body); err != nil {
		return nil, c.readUnclear(l, frame.Code, err), fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	if a.Code != wire.ResultOK {
		v, err := c.readRefused(l, a.Code, a.LeaderID, index)
		return nil, v, err
	}
	entries, err := decodeEntries(a.Entries)
	if err == nil && (len(entries) != 1 || entries[0].Index != index) {
		err = fmt.Errorf("%w: asked for entry %d, got %d entries", wire.ErrMalformed, index, len(entries))
	}
	if err != nil {
		return nil, never, fmt.Errorf("%s (%s): %w", l.id, l.address, err)
	}
	return entries, taken, nil
}

// readFailed follows a read that got no answer.
func (c *Client) readFailed(l node, err error) verdict {
	if errors.Is(err, remoting.ErrClosed) && c.ctx.Err() != nil {
		return never
	}
	if errors.Is(err, remoting.ErrBusy) {
		return later
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(l)
	return elsewhere
}

// readUnclear follows an answer that cannot be read.
func (c *Client) readUnclear(l node, headerCode int32, err error) verdict {
	switch {
	case headerCode == remoting.CodeBusy:
		return later
	case errors.Is(err, wire.ErrUnsupported) && l.kind == kindOurs:
		c.connection(l.address, false) // another kind of node took this address
		return elsewhere
	}
	return never
}

// readRefused follows a read's refusal.
func (c *Client) readRefused(l node, r wire.Result, named raft.ID, index int64) (verdict, error) {
	switch r {
	case wire.ResultIndexOutOfRange:
		return never, fmt.Errorf("%w: index %d", ErrOutOfRange, index)
	case wire.ResultIndexBelowBegin:
		return never, fmt.Errorf("%w: index %d", ErrCompacted, index)
	case wire.ResultNotLeader, wire.ResultUnknownGroup, wire.ResultUnknownMember: // the latter two while the leader closes
		c.mu.Lock()
		defer c.mu.Unlock()
		c.follow(l, named)
		return elsewhere, refused(r, l)
	case wire.ResultLeaderNotReady, wire.ResultLeaderTransferring, wire.ResultLeaderPendingFull, wire.ResultTimeout,
		wire.ResultTermChanged, wire.ResultWaitQuorumAckTimeout:
		return later, refused(r, l)
	}
	return never, refused(r, l)
}

// decodeEntries reads entries in the file encoding and checks the checksums they carry. Bodies alias p.
func decodeEntries(p raft.Payload) ([]Entry, error) {
	var entries []Entry
	for _, b := range p {
		for len(b) > 0 {
			h, err := entry.Parse(b)
			if err == nil && int(h.Size) > len(b) {
				err = entry.ErrShort
			}
			if err == nil {
				err = entry.Check(b[:h.Size])
			}
			if err != nil {
				return nil, fmt.Errorf("entry received: %w", err)
			}
			entries = append(entries, Entry{Index: int64(h.Index), Term: int64(h.Term), Pos: h.Pos, Noop: h.Magic == entry.MagicNoop,
				Body: b[entry.HeaderSize:h.Size:h.Size]})
			b = b[h.Size:]
		}
	}
	return entries, nil
}

// Bounds gives the indexes of the first and the last entry that can be read; an empty log has last = first-1.
func (c *Client) Bounds(ctx context.Context) (first, last int64, err error) {
	for {
		l, err := c.lookup(ctx)
		if err != nil {
			return 0, -1, err
		}
		if l.kind == kindOriginal {
			return c.searchBounds(ctx)
		}
		s := c.nodeStatus(ctx, l)
		if s.Err == nil {
			return s.Begin, s.Commit, nil
		}
		c.mu.Lock()
		c.forget(l)
		c.mu.Unlock()
		if ctx.Err() != nil {
			return 0, -1, fmt.Errorf("%s (%s): %w", l.id, l.address, s.Err)
		}
	}
}

// searchBounds finds the bounds of a Java leader's log, which it tells nobody, by reading entries at doubling distances.
func (c *Client) searchBounds(ctx context.Context) (first, last int64, err error) {
	lo, hi := int64(-1), int64(0) // lo lies before the end or is -1, hi behind it once the first loop is over
	for {
		there, err := c.reached(ctx, hi)
		if err != nil {
			return 0, -1, err
		}
		if !there {
			break
		}
		lo, hi = hi, 2*hi+1
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		there, err := c.reached(ctx, mid)
		if err != nil {
			return 0, -1, err
		}
		if there {
			lo = mid
		} else {
			hi = mid
		}
	}
	last = lo
	for lo = 0; lo < hi; { // the first entry that is still kept
		mid := lo + (hi-lo)/2
		switch _, err := c.Get(ctx, mid); {
		case errors.Is(err, ErrCompacted):
			lo = mid + 1
		case err == nil, errors.Is(err, ErrOutOfRange):
			hi = mid
		default:
			return 0, -1, err
		}
	}
	return lo, last, nil
}

// reached tells whether the log's end lies at or behind index.
func (c *Client) reached(ctx context.Context, index int64) (bool, error) {
	switch _, err := c.Get(ctx, index); {
	case err == nil, errors.Is(err, ErrCompacted):
		return true, nil
	case errors.Is(err, ErrOutOfRange):
		return false, nil
	default:
		return false, err
	}
}
