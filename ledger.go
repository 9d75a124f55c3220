// Package dledger is a commit log that a group of members replicates by Raft, in the file format and wire protocol of the Java
// original of that name. A program embeds one member with Open; members that run elsewhere, also Java ones, are its peers.
//
// The leader's Append (or Propose, for batches) returns once a majority has the entry on disk. Every member serves committed
// entries: Get, ReadAt, and Entries, an iterator that waits at the end. Start at Ledger.
package dledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/entry"
	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
)

// Index counts entries of the log from 0; Term is the election term in which an entry was written.
type (
	Index = raft.Index
	Term  = raft.Term
)

// MaxBody is the largest body of an entry in bytes.
const MaxBody = entry.MaxBody

// Stamp is called for each entry of a batch in log order, once its index and its byte position in the data files are known and
// before it is written or checksummed. It may change body, which is the log's own copy, and must not keep it. It runs on
// the log's own goroutine, so it must be quick and must not call the Ledger.
type Stamp func(i int, index Index, pos int64, body []byte)

// Entry is one committed entry.
type Entry struct {
	Index Index
	Term  Term
	Pos   int64  // byte position in the data files
	Body  []byte // belongs to the log: it must not be written to
}

// Ledger is one member of a group (DLedgerServer in the Java original). Its methods may be called from any goroutine.
type Ledger struct {
	cfg     Config
	peers   []Peer
	store   *logstore.Store
	loop    *replica.Replica
	net     *transport
	server  *Server
	started time.Time

	stop    chan struct{}
	tasks   sync.WaitGroup
	waits   waits        // reads at the end of the log
	reading atomic.Int64 // confirmed reads at work
	mender  mender

	dialectTold atomic.Int64 // when a push of another dialect was last told of, in s

	closing atomic.Bool
	closed  chan struct{} // closed once Close is done; a second Close waits for it
	err     error         // of Close
}

// Open recovers the log in cfg.Dir and takes part in the group. It returns as soon as the log is readable; the group may not have
// a leader yet. A directory that is in use, damaged, or of another file size is an error that names it.
func Open(cfg Config) (*Ledger, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	peers, err := ParsePeers(cfg.Peers)
	if err != nil {
		return nil, err
	}
	own := cfg.Server == nil
	if own {
		cfg.Server, err = Listen(ServerConfig{Address: peers[slices.IndexFunc(peers, func(p Peer) bool { return p.ID == cfg.ID })].Address,
			Bind: cfg.Bind, Logger: cfg.Logger, Dial: cfg.Dial, Listen: cfg.Listen})
		if err != nil {
			return nil, err
		}
	}
	l, err := open(cfg, peers)
	if err != nil {
		if own {
			err = errors.Join(err, cfg.Server.Close())
		}
		return nil, err
	}
	if !own {
		l.server = nil
	}
	return l, nil
}

func open(cfg Config, peers []Peer) (*Ledger, error) {
	cfg.Logger = cfg.Logger.With("group", cfg.Group, "id", cfg.ID)
	store, err := openStore(&cfg, len(peers))
	if err != nil {
		return nil, err
	}
	l := &Ledger{cfg: cfg, peers: peers, store: store, server: cfg.Server, started: time.Now(), stop: make(chan struct{}), closed: make(chan struct{})}
	l.net = newTransport(&cfg, peers, cfg.Server.client, cfg.Server.control, store)
	l.waits.l = l
	now := l.clock()
	in := initial(store.State())
	if in.New && (cfg.Compat != CompatGo || len(peers) < 3) {
		// Java members do not tell of a past, and of two members each has all that was ever committed.
		in.New = false
		if in.Abstain < 0 && !in.Behind {
			if err := store.Joined(); err != nil {
				return nil, errors.Join(err, store.Close())
			}
		}
	}
	l.loop = replica.New(replica.Config{Core: cfg.core(peers), Initial: in, Log: storeLog{store}, Net: l.net,
		Async: cfg.Durability == Async, AckWait: cfg.AckTimeout, PendingBytes: cfg.PendingBytes, UncommittedBytes: cfg.UncommittedBytes, Logger: cfg.Logger}, now())
	l.net.start(l.loop)
	if err := cfg.Server.add(l); err != nil {
		l.net.close()
		return nil, errors.Join(err, store.Close())
	}
	s := store.State()
	cfg.Logger.Info("log opened", "first", s.First, "last", s.Last, "commit", s.Commit, "term", s.Term, "compat", cfg.Compat.String(), "durability", cfg.Durability.String())
	l.tasks.Go(func() { l.loop.Run(now) })
	l.tasks.Go(l.keep)
	if cfg.repairs(len(peers)) {
		l.tasks.Go(l.mend)
	}
	if cfg.ScrubRate > 0 {
		l.tasks.Go(l.scrub)
	}
	if cfg.Durability == Async {
		l.tasks.Go(l.flush)
	}
	return l, nil
}

// clock gives instants since the start, from Go's monotonic clock.
func (l *Ledger) clock() func() raft.Instant {
	start := l.started
	return func() raft.Instant { return raft.Instant(time.Since(start)) + 1 }
}

// Intervals of what is done in the background.
const (
	checkpointEvery = 3 * time.Second // checkPointInterval of the original
	expireEvery     = time.Second
	flushEvery      = 100 * time.Millisecond // in mode Async: what a power failure may take is at most this old, plus one sync
)

// keep makes checkpoints, deletes old files, and asks peers that are still unknown who they are.
func (l *Ledger) keep() {
	checkpoint, expire := time.NewTicker(checkpointEvery), time.NewTicker(expireEvery)
	defer checkpoint.Stop()
	defer expire.Stop()
	var last raft.Index = -2
	checkpointing, deleting := trouble{l: l, text: "checkpoint failed"}, trouble{l: l, text: "deleting old files failed"}
	for {
		select {
		case <-l.stop:
			return
		case <-checkpoint.C:
			if c := l.loop.Commit(); c != last {
				checkpointing.report(l.store.Checkpoint())
				last = c
			}
		case <-expire.C:
			l.net.greet()
			n, err := l.store.Expire()
			deleting.report(err)
			if n > 0 {
				first := l.store.State().First
				l.cfg.Logger.Info("old files are no longer part of the log", "files", n, "first", first)
				l.loop.Expired(first)
			}
		}
	}
}

// trouble is what goes wrong with something that is tried again and again.
type trouble struct {
	l    *Ledger
	text string
	last string // the error that was logged; "" = it went well since
}

// report logs an error unless it was the last time's, or tells that the store has failed, which the store has logged.
func (t *trouble) report(err error) {
	switch {
	case err == nil:
		t.last = ""
	case !errors.Is(err, logstore.ErrFailed) && err.Error() != t.last:
		t.last = err.Error()
		t.l.cfg.Logger.Warn(t.text, "error", err)
	}
}

// flush syncs in the background, for mode Async.
func (l *Ledger) flush() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	var last raft.Index = -2
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		if s := l.store.State().Last; s != last {
			i, err := l.store.Sync()
			if err != nil {
				l.loop.Fail(err)
				return
			}
			last = i
		}
	}
}

// Pending is a batch on its way.
type Pending struct {
	p    *replica.Proposal
	err  error
	done chan struct{}
}

// Appended tells where a batch lies.
type Appended struct {
	First Index // of its first entry; the others follow without gap
	Term  Term
	Pos   []int64 // byte position of each entry
}

// Propose gives the log entries with these bodies, all or none, next to each other. The bodies must not be written to until the
// outcome is known. stamp may be nil.
func (l *Ledger) Propose(batch [][]byte, stamp Stamp) *Pending {
	p := &Pending{done: make(chan struct{})}
	if err := l.admit(batch); err != nil {
		p.err = err
		close(p.done)
		return p
	}
	p.p = replica.NewProposal(batch, replica.Stamp(stamp), func(*replica.Proposal) { close(p.done) })
	l.loop.Propose(p.p)
	return p
}

// ProposeIn is Propose for one term only, -1 being whichever it is: unless this member leads in term at the moment the log takes the batch, it is refused with NotLeaderError. What
// stamp counts can so be made to hold for one leadership, however long a batch waits. done gets the outcome, once and not before
// ProposeIn has the batch; it may run on the log's own goroutine, so it must be quick.
func (l *Ledger) ProposeIn(term Term, batch [][]byte, stamp Stamp, done func(Appended, error)) {
	if err := l.admit(batch); err != nil {
		done(nowhere, err)
		return
	}
	l.loop.Propose(replica.NewProposal(batch, replica.Stamp(stamp), func(p *replica.Proposal) {
		done(Appended{First: p.First, Term: p.Term, Pos: p.Pos()}, outcome(p.Status, p.Leader))
	}).In(term))
}

// admit refuses what needs no loop to be refused.
func (l *Ledger) admit(batch [][]byte) error {
	if l.stopped() {
		return ErrClosed
	}
	return l.checkBatch(batch)
}

// stopped tells whether Close has come so far that nothing is served any more.
func (l *Ledger) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// readError is err as readers shall see it: of a log that is closed meanwhile, only that.
func (l *Ledger) readError(err error) error {
	if l.stopped() {
		return ErrClosed
	}
	return err
}

func (l *Ledger) checkBatch(batch [][]byte) error {
	if len(batch) == 0 {
		return ErrEmpty
	}
	for _, b := range batch {
		if len(b) > l.bodyMax() {
			return fmt.Errorf("%w: body of %d bytes, at most %d", ErrTooLarge, len(b), l.bodyMax())
		}
	}
	return nil
}

// bodyMax is the largest body that the entry format and this member's data files have room for.
func (l *Ledger) bodyMax() int {
	return int(min(MaxBody, l.cfg.DataFileSize-entry.HeaderSize-entry.BlankSize))
}

// Done is closed when the outcome is known.
func (p *Pending) Done() <-chan struct{} { return p.done }

// nowhere is where a batch lies that the log did not take.
var nowhere = Appended{First: -1, Term: -1}

// Wait waits for the outcome. With a nil error a majority holds the entries, synced to disk in mode Group. With an error that wraps
// ErrUndecided, as it is also when ctx ends first, they may yet be committed; after any other they never will be.
func (p *Pending) Wait(ctx context.Context) (Appended, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return nowhere, fmt.Errorf("%w; %w", ctx.Err(), ErrUndecided)
	}
	if p.err != nil {
		return nowhere, p.err
	}
	a := Appended{First: p.p.First, Term: p.p.Term, Pos: p.p.Pos()}
	return a, outcome(p.p.Status, p.p.Leader)
}

// Append is Propose and Wait for one entry.
func (l *Ledger) Append(ctx context.Context, body []byte) (Entry, error) {
	a, err := l.Propose([][]byte{body}, nil).Wait(ctx)
	if err != nil {
		return Entry{Index: a.First, Term: a.Term, Pos: -1, Body: body}, err
	}
	return Entry{Index: a.First, Term: a.Term, Pos: a.Pos[0], Body: body}, nil
}

// Commit is the last committed index that this member knows of; -1 if there is none.
func (l *Ledger) Commit() Index { return l.loop.Commit() }

// Get gives a committed entry as this member has it: the same on every member, but a member may not have heard yet that it is
// committed. ErrOutOfRange and ErrCompacted tell that the index lies behind or before what is there, ErrDamaged that another member has to be asked. No-op entries that the group writes for
// itself have an empty body.
func (l *Ledger) Get(i Index) (Entry, error) {
	if c := l.Commit(); i > c {
		return Entry{}, l.readError(fmt.Errorf("%w: entry %d, committed is %d", ErrOutOfRange, i, c))
	}
	h, body, err := l.store.Entry(i)
	if err != nil || l.stopped() {
		return Entry{}, l.readError(err)
	}
	return Entry{Index: h.Index, Term: h.Term, Pos: h.Pos, Body: body}, nil
}

// ReadAt gives n bytes of the data files at a byte position, for those who keep positions instead of indexes. They may lie anywhere in
// committed entries; they do not cross the end of a file. The bytes must not be written to.
func (l *Ledger) ReadAt(pos int64, n int) ([]byte, error) {
	end, size, err := l.store.Pos(l.Commit()) // before the bytes: what lies there now may not be what is committed there a moment later
	if err != nil || l.stopped() {
		return nil, l.readError(err)
	}
	if pos+int64(n) > end+int64(size) {
		return nil, fmt.Errorf("%w: byte %d, committed are %d", ErrOutOfRange, pos+int64(n), end+int64(size))
	}
	b, err := l.store.ReadAt(pos, n)
	if err != nil || l.stopped() {
		return nil, l.readError(err)
	}
	return b, nil
}

// Fresh is ReadAt for bytes of one entry that is still in memory, without asking whether it is committed: for those who know. ok is false
// for all others.
func (l *Ledger) Fresh(pos int64, n int) (b []byte, ok bool) { return l.store.CachedAt(pos, n) }

// Entries iterates over committed entries from index from on, and waits at the end for more until ctx ends. No-op entries are left out. It
// yields an error once, as its last pair: ctx's, ErrClosed, ErrFailed when this member's disk failed and nothing more will come, ErrCompacted when
// retention has deleted the next entry (First tells which one is kept), or what else reading found.
func (l *Ledger) Entries(ctx context.Context, from Index) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		stopped := false
		err := l.scan(ctx, max(from, 0), func(h entry.Header, body []byte) bool {
			stopped = h.Magic == entry.MagicNormal && !yield(Entry{Index: h.Index, Term: h.Term, Pos: h.Pos, Body: body}, nil)
			return !stopped
		})
		if !stopped {
			yield(Entry{}, err)
		}
	}
}

// scan calls f for each committed entry from next on, of any kind, and waits at the end for more; it returns when f says false, with nil, or with
// what Entries yields as its last error.
func (l *Ledger) scan(ctx context.Context, next Index, f func(entry.Header, []byte) bool) error {
	for {
		changed := l.loop.Changed()
		commit := l.Commit()
		if l.stopped() {
			return ErrClosed
		}
		for next <= commit {
			repaired := l.mender.repaired()
			p, last, err := l.store.Read(next, commit+1, 1<<20)
			if errors.Is(err, ErrDamaged) && l.cfg.repairs(len(l.peers)) {
				select {
				case <-repaired:
					continue
				case <-l.stop:
					return ErrClosed
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err != nil {
				return l.readError(err)
			}
			for b := range entries(p) {
				h, err := entry.Parse(b)
				if err != nil {
					return err
				}
				if !f(h, b[entry.HeaderSize:h.Size:h.Size]) {
					return nil
				}
			}
			next = last + 1
		}
		if err := l.loop.View().Err; err != nil && next > l.Commit() {
			return l.readError(fmt.Errorf("%w: %w", ErrFailed, err))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// entries iterates over the entries of a payload, whose pieces may end anywhere.
func entries(p raft.Payload) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var rest []byte // begins an entry that the next pieces complete
		for _, piece := range p {
			if len(rest) > 0 {
				piece = append(rest, piece...)
				rest = nil
			}
			for len(piece) > 0 {
				h, err := entry.Parse(piece)
				if errors.Is(err, entry.ErrShort) || err == nil && int(h.Size) > len(piece) {
					rest = slices.Clip(piece)
					break
				}
				n := int(h.Size)
				if err != nil {
					n = len(piece) // the consumer finds out
				}
				if !yield(piece[:n]) {
					return
				}
				piece = piece[n:]
			}
		}
	}
}

// Committed calls f for committed entries from index from on, some hundred at a time, until f says false, and gives the index behind the last that f
// was given; it does not wait. No-op entries are passed over. ErrCompacted: retention has deleted entry from; First tells where the log begins.
func (l *Ledger) Committed(from Index, f func(Entry) bool) (next Index, err error) {
	commit := l.Commit()
	if l.stopped() {
		return from, ErrClosed
	}
	if from > commit {
		return from, nil
	}
	p, _, err := l.store.Read(from, commit+1, 1<<20)
	if err != nil {
		return from, l.readError(err)
	}
	for b := range entries(p) {
		h, err := entry.Parse(b)
		if err != nil {
			return from, err
		}
		from = h.Index + 1
		if h.Magic == entry.MagicNormal && !f(Entry{Index: h.Index, Term: h.Term, Pos: h.Pos, Body: b[entry.HeaderSize:h.Size:h.Size]}) {
			break
		}
	}
	return from, nil
}

// First gives the index of the first entry that is kept, and the byte position where it begins.
func (l *Ledger) First() (Index, int64) {
	s := l.store.Bounds()
	return s.First, s.FirstPos
}

// Whole tells whether b, which ReadAt gave from pos on, is one whole entry, as far as its checksums tell: readers of many entries at once check so what they use of
// them. Where it is not, EntryAt tells why.
func (l *Ledger) Whole(pos int64, b []byte) bool { return l.store.Whole(pos, b) }

// EntryAt is Get for the committed entry that begins at a byte position. ErrOutOfRange says that none does, or that it is not known to be committed yet.
func (l *Ledger) EntryAt(pos int64) (Entry, error) {
	b, err := l.store.EntryAt(pos, l.Commit())
	if err != nil || l.stopped() {
		return Entry{}, l.readError(err)
	}
	h, err := entry.Parse(b)
	return Entry{Index: h.Index, Term: h.Term, Pos: h.Pos, Body: b[entry.HeaderSize:]}, err
}

// Mends tells whether what is damaged on this member's disk is fetched from another one.
func (l *Ledger) Mends() bool { return l.cfg.repairs(len(l.peers)) }

// CommittedEnd is the byte position behind the last committed entry that this member knows of.
func (l *Ledger) CommittedEnd() (int64, error) {
	pos, size, err := l.store.Pos(l.Commit())
	return pos + int64(size), l.readError(err)
}

// Confirm waits until a majority has confirmed that this member leads, and gives an index up to which Get then sees every entry
// that was acknowledged anywhere before Confirm was called: the read of a linearizable register. ErrNotLeader elsewhere, ErrPendingFull where too
// many wait for one.
func (l *Ledger) Confirm(ctx context.Context) (Index, error) {
	type result struct {
		i Index
		s raft.Status
	}
	got := make(chan result, 1)
	l.loop.Confirm(func(i raft.Index, s raft.Status) { got <- result{i, s} })
	select {
	case r := <-got:
		switch r.s {
		case raft.StatusOK:
			return r.i, nil
		case raft.StatusDiskError:
			return -1, l.readError(ErrFailed)
		}
		return -1, l.readError(outcome(r.s, raft.ID(l.Leader())))
	case <-ctx.Done():
		return -1, ctx.Err()
	}
}

// Leader is the id of the leader this member knows; "" if it knows none.
func (l *Ledger) Leader() string { return string(l.loop.View().Leader) }

// IsLeader tells whether this member leads, as far as it knows.
func (l *Ledger) IsLeader() bool {
	_, leads := l.Leading()
	return leads
}

// WaitLeader waits until this member knows a leader, which may be itself, and gives its id: after Open, until the first election is over. Errors: ctx's,
// ErrClosed, and ErrFailed where this member's disk failed.
func (l *Ledger) WaitLeader(ctx context.Context) (string, error) {
	for {
		changed := l.Changed()
		v := l.loop.View()
		switch {
		case l.stopped():
			return "", ErrClosed
		case v.Err != nil:
			return "", fmt.Errorf("%w: %w", ErrFailed, v.Err)
		case v.Leader != "":
			return string(v.Leader), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for a leader: %w", ctx.Err())
		}
	}
}

// Leading gives the term in which this member leads, as far as it knows.
func (l *Ledger) Leading() (Term, bool) {
	v := l.loop.View()
	return v.Term, v.Role == raft.Leader && v.Err == nil
}

// Derived tells up to which entry files that are built from the log, such as queues of messages, hold it durably. The file in which a Java member that takes the
// directory over looks for the commit index names no later one from then on: it takes what is committed for entered.
func (l *Ledger) Derived(i Index) { l.store.SetDerived(raft.Index(i)) }

// Changed gives a channel that is closed at the next change of commit index, term, role or leader. Ask for it before looking at what may change. After
// Close it is closed from the start.
func (l *Ledger) Changed() <-chan struct{} { return l.loop.Changed() }

// Retire tells the group that this member will be closed soon: it goes on as it is, but takes no leadership again, though it be preferred. HandOver
// gives leadership away. If no other member can lead, none does until this one has been closed and opened again.
func (l *Ledger) Retire() { l.loop.Retire() }

// TransferLeadership hands leadership to another member and returns when it has settled. It works on the leader only. Errors: ErrUnknownMember, ErrBehind,
// ErrTransferFailed, ErrNotLeader, ErrTransferring, ErrPendingFull, ErrClosed; and ctx's, after which leadership may yet go over.
func (l *Ledger) TransferLeadership(ctx context.Context, to string) error {
	got := make(chan raft.Status, 1)
	l.loop.Transfer(raft.ID(to), -1, func(s raft.Status) { got <- s })
	select {
	case s := <-got:
		switch s {
		case raft.StatusUnknownMember:
			return fmt.Errorf("transfer to %q: %w", to, ErrUnknownMember)
		case raft.StatusFallBehind:
			return fmt.Errorf("transfer to %s: %w", to, ErrBehind)
		case raft.StatusTakeLeadershipFailed:
			return fmt.Errorf("transfer to %s: %w", to, ErrTransferFailed)
		}
		return outcome(s, l.loop.View().Leader)
	case <-ctx.Done():
		return fmt.Errorf("transfer to %s: %w", to, ctx.Err())
	}
}

// HandOver is for a leader that will be closed soon: it retires, and gives leadership to the member that holds most of the log, of those that follow and have
// answered lately, so that nobody has to miss it first. It returns when another member leads, when none is fit for it, or when ctx ends. On a member
// that does not lead it is Retire. Close does it too; who does it before can go on for a while as one that does not lead.
func (l *Ledger) HandOver(ctx context.Context) {
	l.Retire()
	for l.IsLeader() && ctx.Err() == nil {
		s, err := l.Status(ctx)
		if err != nil {
			return
		}
		fit := slices.DeleteFunc(s.Peers, func(p PeerStatus) bool {
			return p.State != PeerAppend || p.Kind == PeerRefused || p.Kind == PeerSilent || p.Idle > 2*l.cfg.Heartbeat
		})
		if len(fit) == 0 {
			return
		}
		best := slices.MaxFunc(fit, func(a, b PeerStatus) int { return cmp.Compare(a.Match, b.Match) })
		if err := l.TransferLeadership(ctx, best.ID); err != nil {
			l.cfg.Logger.Warn("leadership not handed over", "to", best.ID, "error", err)
			return
		}
	}
}

// handOverMax bounds how long Close waits for a successor, and for the outcome of what was accepted.
const handOverMax = 2 * time.Second

// Close leaves the group: a leader hands leadership over first; everything that waits is answered; the log is synced and closed. The first two take two
// seconds at most, the sync what the disk takes. Calls after the first wait for it and give its error.
func (l *Ledger) Close() error {
	if l.closing.CompareAndSwap(false, true) {
		ctx, cancel := context.WithTimeout(context.Background(), handOverMax)
		l.HandOver(ctx)
		l.loop.Drain(ctx)
		cancel()
		l.err = l.shut()
		if l.server != nil {
			l.err = errors.Join(l.err, l.server.Close())
		}
		close(l.closed)
	}
	<-l.closed
	return l.err
}

func (l *Ledger) shut() error {
	l.waits.close()
	close(l.stop)
	l.cfg.Server.remove(l)
	l.loop.Close()
	l.net.close()
	l.tasks.Wait()
	if err := l.store.Close(); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	return nil
}
