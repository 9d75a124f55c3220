package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// Result tells where an entry lies.
type Result struct {
	Index int64 // in the log, from 0; -1 = the entry is not known to be in the log
	Term  int64 // of the leader that took it
	Pos   int64 // byte position in the data files
}

var none = Result{Index: -1, Term: -1, Pos: -1}

// MaxBody is the largest body in bytes that fits an entry (4 MiB less its header).
const MaxBody = entry.MaxBody

const (
	// framesMax requests may be on the way to one of our nodes. While they are, what comes gathers for the next one: the more appends,
	// the larger the requests, without anybody waiting for company.
	framesMax = 4
	// originalMax requests of one append each may be on the way to a Java node. It would hold 10000, but fails each after 2 s, and one that
	// has just started commits a few hundred a second: more than this many would make the last of them undecided for no gain.
	originalMax = 128

	batchBytes   = 1 << 20 // of bodies in one request; a single larger body goes alone
	batchEntries = 4096

	patienceMin = 5 * time.Millisecond // after a refusal; doubles with each one until an append is taken
	patienceMax = 200 * time.Millisecond
)

// call is one append on its way. mu of the client guards the fields from sent on; when the call is over they are its owner's.
type call struct {
	ctx    context.Context
	body   []byte
	seq    uint64              // order in line
	joined bool                // goes into the same request as the call before it
	ready  chan struct{}       // gets a value when the call is over; nil for calls with done
	done   func(Result, error) // as Go was given it

	sent   bool // in a request that has no answer yet
	over   bool // result and err are final
	result Result
	err    error // the outcome, or the last refusal
}

// finish tells the owner of a call that is over. It must not be called with mu held: done is the owner's.
func (k *call) finish() {
	if k.done != nil {
		k.done(k.result, k.err)
		return
	}
	k.ready <- struct{}{}
}

// Append adds one entry to the log and waits until it is acknowledged. It tries for as long as ctx lasts while nothing was taken.
//
//  1. nil: the entry is committed at Result.Index;
//  2. an error that wraps ErrUndecided: it may be in the log or may yet get there, and body may still be read;
//  3. any other error: it is not in the log and never will be.
func (c *Client) Append(ctx context.Context, body []byte) (Result, error) {
	if len(body) > MaxBody {
		return none, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(body), MaxBody)
	}
	k := c.calls.Get().(*call)
	*k = call{ctx: ctx, body: body, ready: k.ready, result: none}
	err := c.submit(ctx, k)
	if err == nil {
		select {
		case <-k.ready:
			err = k.err
		case <-ctx.Done():
			if err := c.abandon(ctx, k); err != nil {
				return none, err // k is still in a request or in line
			}
			<-k.ready // it was decided in the same moment
			err = k.err
		}
	}
	r := k.result
	*k = call{ready: k.ready}
	c.calls.Put(k)
	return r, err
}

// Go is Append for a caller that does not wait, in order to have many appends on the way: it returns once there is room for body
// (Config.PendingBytes), and done is called later, at the latest Config.RequestTimeout after ctx ended, on a goroutine that must not
// be held up. body must not be written to until then. An error of Go itself means that nothing is sent and done is not called.
//
// Appends of one goroutine are sent in order, also to the next leader, and get into the log in that order unless a leader that is full
// refuses some of those on the way and takes others.
func (c *Client) Go(ctx context.Context, body []byte, done func(Result, error)) error {
	if len(body) > MaxBody {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(body), MaxBody)
	}
	return c.submit(ctx, &call{ctx: ctx, body: body, done: done, result: none})
}

// AppendBatch adds entries in this order. On one of our leaders those of one request are adjacent in the log and taken all or none; a
// batch of more than 1 MiB or 4096 bodies takes several requests. A Java leader takes each entry by itself. There is a result for each
// body, with Index -1 where the entry is not known to be in the log. The error is the first, but ErrUndecided before others; see Append.
func (c *Client) AppendBatch(ctx context.Context, bodies [][]byte) ([]Result, error) {
	results := make([]Result, len(bodies))
	for i, b := range bodies {
		if len(b) > MaxBody {
			return nil, fmt.Errorf("%w: body %d has %d bytes, at most %d", ErrTooLarge, i, len(b), MaxBody)
		}
		results[i] = none
	}
	calls := make([]call, len(bodies))
	refs := make([]*call, len(bodies))
	ready := make(chan struct{}, len(bodies))
	for i, b := range bodies {
		calls[i] = call{ctx: ctx, body: b, ready: ready, result: none}
		refs[i] = &calls[i]
	}
	var failure error
	submitted := 0
	for submitted < len(refs) {
		n := together(refs[submitted:])
		for _, k := range refs[submitted+1 : submitted+n] {
			k.joined = true
		}
		if failure = c.submit(ctx, refs[submitted:submitted+n]...); failure != nil {
			break
		}
		submitted += n
	}
	for n := 0; n < submitted; n++ {
		select {
		case <-ready:
			continue
		case <-ctx.Done():
		}
		break
	}
	for i, k := range refs[:submitted] {
		err := c.abandon(ctx, k)
		if err == nil {
			results[i], err = k.result, k.err
		}
		if failure == nil || errors.Is(err, ErrUndecided) && !errors.Is(failure, ErrUndecided) {
			failure = err
		}
	}
	return results, failure
}

// together gives how many of the calls fit one request, at least 1.
func together(calls []*call) int {
	n, size := 1, len(calls[0].body)
	for n < len(calls) && n < batchEntries && size+len(calls[n].body) <= batchBytes {
		size += len(calls[n].body)
		n++
	}
	return n
}

// abandon gives up a call: nil if it is over already, ErrUndecided if it is in a request, else it is taken out of the line.
func (c *Client) abandon(ctx context.Context, k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case k.over:
		return nil
	case k.sent:
		return undecided(ended(ctx))
	}
	err := c.notSent(k)
	c.settle(k, err) // what is over leaves the line when its turn comes
	return err
}

// notSent says why a call whose context ended is not in the log; mu is held.
func (c *Client) notSent(k *call) error {
	if k.err != nil {
		return fmt.Errorf("%w: last refused: %w", ended(k.ctx), k.err)
	}
	if c.leader.id == "" {
		return c.noLeader(ended(k.ctx))
	}
	return fmt.Errorf("still in line: %w", ended(k.ctx))
}

// settle makes an outcome final; mu is held.
func (c *Client) settle(k *call, err error) {
	k.over, k.err = true, err
	c.pending -= callSize(k)
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// callSize is what a call counts as pending: an empty body takes memory, too.
func callSize(k *call) int { return len(k.body) + 64 }

// submit puts calls in line once there is room for them.
func (c *Client) submit(ctx context.Context, calls ...*call) error {
	size := 0
	for _, k := range calls {
		size += callSize(k)
	}
	c.mu.Lock()
	for {
		if c.closed {
			c.mu.Unlock()
			return ErrClosed
		}
		if c.pending == 0 || c.pending+size <= c.cfg.PendingBytes {
			break
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("too many appends on the way: %w", ended(ctx))
		}
		c.mu.Lock()
	}
	c.pending += size
	for _, k := range calls {
		c.seq++
		k.seq = c.seq
	}
	c.queue = append(c.queue, calls...)
	c.mu.Unlock()
	c.pump()
	return nil
}

// pump sends what is in line, as far as it may be sent. Only one goroutine does so at a time, which keeps the order; what others
// put in line meanwhile it sees before it leaves.
func (c *Client) pump() {
	c.mu.Lock()
	if c.pumping {
		c.mu.Unlock()
		return
	}
	c.pumping = true
	c.mu.Unlock()
	// Whoever was woken by the same answer as the caller gets a chance to put its next append in line: one full request costs all
	// nodes less than two small ones.
	runtime.Gosched()
	c.mu.Lock()
	for {
		f, ended := c.next()
		if f == nil && ended == nil {
			break
		}
		c.mu.Unlock()
		for _, k := range ended {
			k.finish()
		}
		if f != nil {
			f.send()
		}
		c.mu.Lock()
	}
	c.pumping = false
	c.mu.Unlock()
}

// next takes the calls of the next request out of the line, and those whose context ended; mu is held.
func (c *Client) next() (f *flight, ended []*call) {
	if len(c.queue) == 0 || c.pausing != nil || c.older > 0 || c.closed {
		return nil, nil
	}
	to := c.leader
	if to.id == "" {
		c.startFind()
		return nil, nil
	}
	framesMax, entriesMax := framesMax, batchEntries
	if to.kind == kindOriginal {
		framesMax, entriesMax = originalMax, 1
	}
	if c.frames >= framesMax {
		return nil, nil
	}
	f = c.flights.Get().(*flight)
	taken, size := 0, 0
	for taken < len(c.queue) {
		run, bytes := c.run(taken, entriesMax)
		if len(f.calls) > 0 && (len(f.calls)+run > entriesMax || size+bytes > batchBytes) {
			break
		}
		for _, k := range c.queue[taken : taken+run] {
			switch {
			case k.over:
			case k.ctx.Err() != nil:
				c.settle(k, c.notSent(k))
				ended = append(ended, k)
			default:
				k.sent = true
				f.calls = append(f.calls, k)
				size += len(k.body)
			}
		}
		taken += run
	}
	clear(c.queue[:taken])
	c.queue = c.queue[taken:]
	if len(f.calls) == 0 {
		c.flights.Put(f)
		return nil, ended
	}
	f.to, f.epoch = to, c.epoch
	c.frames++
	return f, ended
}

// run gives how many calls from i on must go together, and their bytes; mu is held.
func (c *Client) run(i, entriesMax int) (n, bytes int) {
	n, bytes = 1, len(c.queue[i].body)
	for entriesMax > 1 && i+n < len(c.queue) && c.queue[i+n].joined {
		bytes += len(c.queue[i+n].body)
		n++
	}
	return n, bytes
}

// sweep takes calls out of the line whose context ended, while nothing can be sent.
func (c *Client) sweep() {
	var ended []*call
	c.mu.Lock()
	kept := c.queue[:0]
	for _, k := range c.queue {
		switch {
		case k.over:
		case k.ctx.Err() != nil:
			c.settle(k, c.notSent(k))
			ended = append(ended, k)
		default:
			kept = append(kept, k)
		}
	}
	clear(c.queue[len(kept):])
	c.queue = kept
	c.mu.Unlock()
	for _, k := range ended {
		k.finish()
	}
}

// flight is one request with appends, from when they leave the line until its answer is worked on.
type flight struct {
	client *Client
	to     node
	epoch  uint64
	calls  []*call
	bodies [][]byte                     // while sending
	done   func(*remoting.Frame, error) // answered
}

func (c *Client) newFlight() any {
	f := &flight{client: c}
	f.done = f.answered
	return f
}

// send hands the request to the connection.
func (f *flight) send() {
	c := f.client
	var req remoting.Request
	var body [][]byte
	if f.to.kind == kindOriginal {
		req.Code = wire.CodeAppend
		a := wire.AppendRequest{Base: wire.ClientBase(c.cfg.Group, f.to.id), Body: f.calls[0].body}
		if a.Body == nil {
			a.Body = []byte{} // nil would be a request without a body
		}
		body = [][]byte{a.AppendTo(nil)}
	} else {
		req.Code = wire.CodeAppendBatch
		for _, k := range f.calls {
			f.bodies = append(f.bodies, k.body)
		}
		a := wire.AppendBatchRequest{Group: c.cfg.Group, RemoteID: f.to.id, Bodies: f.bodies}
		body = a.Pieces()
		clear(f.bodies)
		f.bodies = f.bodies[:0]
	}
	if err := c.rc.Go(f.to.address, req, c.cfg.RequestTimeout, f.done, body...); err != nil {
		f.refused(err)
	}
}

// verdict is what an answer means for the appends of its request.
type verdict uint8

const (
	taken     verdict = iota
	unsure            // ErrUndecided
	never             // refused for good
	later             // not taken, the leader asks for patience
	elsewhere         // not taken, there is another leader
)

// answered is the done function of the request.
func (f *flight) answered(frame *remoting.Frame, err error) {
	switch {
	case errors.Is(err, remoting.ErrUnreachable), errors.Is(err, remoting.ErrBusy), errors.Is(err, remoting.ErrTooLarge):
		f.refused(err) // while connecting
	case err != nil:
		f.conclude(unsure, "", fmt.Errorf("%s (%s): %w", f.to.id, f.to.address, err))
	case frame.Code == remoting.CodeBusy:
		f.conclude(later, "", fmt.Errorf("%s (%s) is busy: %s", f.to.id, f.to.address, frame.Remark))
	case frame.Code == remoting.CodeUnsupported && f.to.kind == kindOurs:
		f.client.connection(f.to.address, false) // another kind of node took this address
		f.conclude(elsewhere, "", fmt.Errorf("%s (%s): %w", f.to.id, f.to.address, wire.ErrUnsupported))
	case frame.Code != wire.HeaderOK:
		f.conclude(unsure, "", fmt.Errorf("%s (%s): header code %d: %s", f.to.id, f.to.address, frame.Code, frame.Remark))
	case f.to.kind == kindOriginal:
		f.single(frame)
	default:
		f.batch(frame)
	}
}

// refused is for requests that never left this process.
func (f *flight) refused(err error) {
	v := elsewhere
	switch {
	case errors.Is(err, remoting.ErrBusy):
		v = later
	case errors.Is(err, remoting.ErrTooLarge):
		v, err = never, fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, remoting.ErrClosed) && f.client.ctx.Err() != nil:
		v, err = never, ErrClosed
	}
	f.conclude(v, "", err)
}

func (f *flight) single(frame *remoting.Frame) {
	var a wire.AppendResponse
	if err := a.Decode(frame.Code, frame.Body); err != nil {
		f.conclude(unsure, "", fmt.Errorf("%s (%s): %w", f.to.id, f.to.address, err))
		return
	}
	v := judge(a.Code)
	if v != taken {
		f.conclude(v, a.LeaderID, refused(a.Code, f.to))
		return
	}
	f.calls[0].result = Result{Index: int64(a.Index), Term: int64(a.Term), Pos: a.Pos}
	f.conclude(taken, "", nil)
}

func (f *flight) batch(frame *remoting.Frame) {
	var a wire.AppendBatchResponse
	err := a.Decode(frame.Code, frame.Body)
	if err == nil && a.Code == wire.ResultOK && len(a.Positions) != len(f.calls) {
		err = fmt.Errorf("%w: %d positions for %d entries", wire.ErrMalformed, len(a.Positions), len(f.calls))
	}
	if err != nil {
		f.conclude(unsure, "", fmt.Errorf("%s (%s): %w", f.to.id, f.to.address, err))
		return
	}
	v := judge(a.Code)
	if v != taken {
		f.conclude(v, a.LeaderID, refused(a.Code, f.to))
		return
	}
	for i, k := range f.calls {
		k.result = Result{Index: int64(a.First) + int64(i), Term: int64(a.Term), Pos: a.Positions[i]}
	}
	f.conclude(taken, "", nil)
}

// judge tells which refusals of an append leave nothing in the log: those that are given before it is reached.
func judge(r wire.Result) verdict {
	switch r {
	case wire.ResultOK:
		return taken
	case wire.ResultNotLeader, wire.ResultUnknownGroup, wire.ResultUnknownMember: // the latter two while the leader closes
		return elsewhere
	case wire.ResultLeaderPendingFull, wire.ResultLeaderNotReady, wire.ResultLeaderTransferring:
		return later
	case wire.ResultUnexpectedArgument, wire.ResultDiskFull, wire.ResultEmptyBodies,
		wire.ResultUnsupported:
		return never
	}
	return unsure
}

// conclude ends the flight: its calls are over, or back in line where they were. named is the leader that a refusal named.
func (f *flight) conclude(v verdict, named raft.ID, cause error) {
	c := f.client
	c.mu.Lock()
	c.frames--
	if f.epoch != c.epoch {
		c.older--
	} else if v == later || v == elsewhere {
		c.epoch++
		c.older = c.frames
	}
	switch v {
	case taken:
		c.redirects, c.pause = 0, 0
	case unsure:
		c.forget(f.to)
		cause = undecided(cause)
	case later:
		c.bePatient()
	case elsewhere:
		if c.follow(f.to, named); c.leader.id == "" {
			c.bePatient() // nobody knows the next leader yet
		}
	}
	if v == later || v == elsewhere {
		if c.closed {
			v, cause = never, ErrClosed
		} else {
			c.again(f.calls, cause)
		}
	}
	if v == taken || v == unsure || v == never {
		for _, k := range f.calls {
			k.sent = false
			c.settle(k, cause)
		}
	}
	c.mu.Unlock()
	if v == taken || v == unsure || v == never {
		for _, k := range f.calls {
			k.finish()
		}
	}
	clear(f.calls)
	f.calls = f.calls[:0]
	c.flights.Put(f)
	c.pump()
}

// again puts calls back in line; mu is held.
func (c *Client) again(calls []*call, cause error) {
	for _, k := range calls {
		k.sent, k.err = false, cause
	}
	c.queue = append(c.queue, calls...)
	slices.SortFunc(c.queue, func(a, b *call) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
}

// bePatient sends nothing for a while; mu is held.
func (c *Client) bePatient() {
	if c.pausing != nil || c.closed {
		return
	}
	c.pause = min(max(2*c.pause, patienceMin), patienceMax)
	c.pausing = time.AfterFunc(c.pause, func() {
		c.mu.Lock()
		c.pausing = nil
		c.mu.Unlock()
		c.sweep()
		c.pump()
	})
}
