package replica

import (
	"context"
	"errors"
	"math"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Proposal is a batch of entries on its way into the log.
type Proposal struct {
	bodies [][]byte
	stamp  Stamp
	done   func(*Proposal)
	pos    []int64
	size   int64
	due    raft.Instant
	in     raft.Term // the only term in which it may be taken; -1: any

	// Valid once the proposal is finished.
	Status raft.Status
	First  raft.Index // -1 if it never got into the log
	Term   raft.Term
	Leader raft.ID // the known leader, when this node is not it
	n      int
}

// Last is the index of its last entry.
func (p *Proposal) Last() raft.Index { return p.First + raft.Index(p.n) - 1 }

// Len is the number of entries.
func (p *Proposal) Len() int { return p.n }

// Pos gives the byte position of each entry, in order; nil if it never got into the log.
func (p *Proposal) Pos() []int64 { return p.pos }

func (p *Proposal) finish(s raft.Status) {
	p.Status, p.bodies = s, nil
	p.done(p)
}

// NewProposal makes a proposal of bodies, which must not be written to until done is called. done is called once, on the loop: it
// must not block. stamp may be nil.
func NewProposal(bodies [][]byte, stamp Stamp, done func(*Proposal)) *Proposal {
	p := &Proposal{bodies: bodies, stamp: stamp, done: done, in: -1, First: -1, Term: -1, n: len(bodies)}
	for _, b := range bodies {
		p.size += entry.HeaderSize + int64(len(b)) // empty ones take memory too
	}
	return p
}

// In binds the proposal to a term: in any other it is refused as if this node did not lead. It gives p.
func (p *Proposal) In(term raft.Term) *Proposal {
	p.in = term
	return p
}

// Propose hands proposals to the loop, in this order. Every one of them is finished, at once if the replica is closed or too much is waiting.
func (r *Replica) Propose(ps ...*Proposal) {
	r.mu.Lock()
	k := 0
	for ; k < len(ps) && !r.leaving && r.bytes < r.cfg.PendingBytes; k++ {
		r.bytes += ps[k].size
		r.in.proposals = append(r.in.proposals, ps[k])
	}
	leaving := r.leaving
	r.mu.Unlock()
	if k > 0 {
		r.signal()
	}
	for _, p := range ps[k:] {
		if leaving {
			p.Leader = r.View().Leader
			p.finish(raft.StatusNotLeader)
		} else {
			p.finish(raft.StatusPendingFull)
		}
	}
}

// inboxMax bounds the requests of other members that wait for a turn. A leader has at most a thousand pushes on the way.
const inboxMax = 1 << 14

// Deliver hands a message to the loop. reply is called once with the answer, on the loop; it is nil exactly when m is an answer itself.
func (r *Replica) Deliver(m raft.Message, reply func(*raft.Message)) {
	r.mu.Lock()
	closed := r.closed
	ok := !closed && len(r.in.msgs) < inboxMax
	if ok {
		r.in.msgs = append(r.in.msgs, incoming{m, reply})
	}
	r.mu.Unlock()
	if ok && !(plantedLostWakeUp && reply == nil) {
		r.signal()
	} else if !ok && reply != nil {
		s := raft.StatusInternal
		if m.Type == raft.MsgTransfer && !closed {
			s = raft.StatusPendingFull // who asks for it can tell the two apart
		}
		reply(&raft.Message{Type: m.Type.Answer(), Status: s, Term: -1, Begin: -1, End: -1, XTerm: -1, XIndex: -1, Asked: m.Asked, Index: m.Index, First: m.First, Last: m.Last})
	}
}

// Call runs f on the loop, before the messages of the same turn; false if the replica is closed and f will not run. It is not for what a
// peer or a client can cause: that is bounded, see ask.
func (r *Replica) Call(f func()) bool { return r.call(f, math.MaxInt) == nil }

// Fail tells that the disk has failed, in case nothing else makes the loop notice: a sync that ends well in the same turn does not undo it.
func (r *Replica) Fail(err error) { r.Call(func() { r.SyncDone(err) }) }

// asksMax bounds the questions that wait for a turn: confirmations, and requests of the loop's state.
const asksMax = 1 << 14

// ask is Call for questions from outside; an error says that f will not run.
func (r *Replica) ask(f func()) error { return r.call(f, asksMax) }

func (r *Replica) call(f func(), most int) error {
	r.mu.Lock()
	var err error
	switch {
	case r.closed:
		err = errClosed
	case len(r.in.calls) >= most:
		err = errBusy
	default:
		r.in.calls = append(r.in.calls, f)
	}
	r.mu.Unlock()
	if err == nil {
		r.signal()
	}
	return err
}

// Connected tells the core that the connection to a peer is new; see raft.Core.Connected.
func (r *Replica) Connected(id raft.ID, ours bool) {
	r.Call(func() { r.core.Connected(id, ours) })
}

// Met tells the core what a peer says of itself; see raft.Core.Met.
func (r *Replica) Met(id raft.ID, past bool) {
	r.Call(func() { r.core.Met(id, past) })
}

// Expired tells the core that retention deleted the entries before first.
func (r *Replica) Expired(first raft.Index) {
	r.Call(func() { r.core.Expired(first) })
}

// Confirm calls done, on the loop, with an index up to which a read sees every append acknowledged before Confirm was called. The status is
// NotLeader when this node does not lead or loses leadership before a majority has confirmed it, PendingFull when it is asked too
// much, DiskError when its disk has failed, Internal when it is closed.
func (r *Replica) Confirm(done func(i raft.Index, s raft.Status)) {
	err := r.ask(func() {
		if r.dead != nil {
			done(-1, r.gone())
			return
		}
		r.ref++
		r.confirms[r.ref] = done
		r.core.ReadIndex(r.ref)
	})
	switch {
	case errors.Is(err, errBusy):
		done(-1, raft.StatusPendingFull)
	case err != nil:
		done(-1, raft.StatusInternal)
	}
}

// Transfer hands leadership to another member; done is called with the outcome, on the loop. Term -1 means the present one.
func (r *Replica) Transfer(to raft.ID, term raft.Term, done func(raft.Status)) {
	m := raft.Message{Type: raft.MsgTransfer, Transferer: r.cfg.Core.ID, Transferee: to, Term: term}
	r.Deliver(m, func(a *raft.Message) { done(a.Status) })
}

// Retire keeps this member from leading again; see raft.Core.Retire.
func (r *Replica) Retire() {
	r.Call(func() { r.core.Retire() })
}

// View gives role, term and leader as of the last turn.
func (r *Replica) View() *View { return r.view.Load() }

// Commit is the commit index as of the last turn.
func (r *Replica) Commit() raft.Index { return raft.Index(r.commit.Load()) }

// Counters gives the running counts.
func (r *Replica) Counters() *Counters { return &r.counters }

// Snapshot is the loop's state at one moment.
type Snapshot struct {
	View
	First, Last, Commit, Durable raft.Index
	LastTerm                     raft.Term
	Abstaining                   bool
	Transferring                 bool
	Waiting                      int
	Peers                        []raft.PeerStatus // on the leader only
	Now                          raft.Instant      // on the clock of PeerStatus.Heard
}

// Ask calls f with the loop's state, on the loop. An error says that f will not run: the replica is closed, or asked too much.
func (r *Replica) Ask(f func(Snapshot)) error {
	return r.ask(func() { f(r.snapshot()) })
}

// Snapshot asks the loop for its state. The error is ctx's, or that of Ask.
func (r *Replica) Snapshot(ctx context.Context) (Snapshot, error) {
	got := make(chan Snapshot, 1)
	if err := r.Ask(func(s Snapshot) { got <- s }); err != nil {
		return Snapshot{View: *r.View()}, err
	}
	select {
	case s := <-got:
		return s, nil
	case <-ctx.Done():
		return Snapshot{View: *r.View()}, ctx.Err()
	case <-r.stopped:
		return Snapshot{View: *r.View()}, errClosed
	}
}

func (r *Replica) snapshot() Snapshot {
	c := r.core
	v := View{Role: c.Role(), Term: c.Term(), Leader: c.Leader(), Err: r.View().Err}
	return Snapshot{View: v, First: c.First(), Last: c.Last(), Commit: c.Commit(), Durable: c.DurableTo(), LastTerm: c.LastTerm(),
		Abstaining: c.Abstaining(), Transferring: c.Transferring(), Waiting: len(r.waiting) + len(r.orphans), Peers: c.Peers(), Now: c.Now()}
}

// Changed gives a channel that is closed at the next change of commit index, role, term or leader.
func (r *Replica) Changed() <-chan struct{} {
	r.watchMu.Lock()
	defer r.watchMu.Unlock()
	if r.ended {
		return over
	}
	if r.watch == nil {
		r.watch = make(chan struct{})
	}
	return r.watch
}

// over is what Changed gives once nothing changes any more.
var over = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (r *Replica) notify() {
	r.watchMu.Lock()
	defer r.watchMu.Unlock()
	if r.watch != nil {
		close(r.watch)
		r.watch = nil
	}
}

// Drain takes no further proposal and waits, at most until ctx ends, for the outcome of those that were accepted.
func (r *Replica) Drain(ctx context.Context) {
	r.mu.Lock()
	r.leaving = true
	r.mu.Unlock()
	if !r.Call(func() {}) { // the snapshots below are of later turns than the last proposals, which a turn takes in behind its calls
		return
	}
	for {
		changed := r.Changed()
		if s, err := r.Snapshot(ctx); err != nil || s.Waiting == 0 || s.Err != nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Close stops the loop once it has answered everything, and waits for it: what is undecided then stays so. It does not hand leadership over; see
// Transfer and Drain.
func (r *Replica) Close() {
	r.Stop()
	<-r.stopped
}
