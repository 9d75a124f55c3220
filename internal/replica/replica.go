// Package replica runs one member of one group: a loop that owns the consensus core, feeds it with what arrives, and performs
// what the core asks for in the order it asks. It decides nothing about elections or entries (package raft does) and knows
// neither file nor socket: Log and Net are given to it. Start at Replica; its heart is Turn.
package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Log stores entries, term and vote. The loop calls all methods but Sync, which runs beside it, never twice at once.
type Log interface {
	// Append encodes bodies as entries first… of term and stages them; stamp runs for each in order, before its checksum. When it
	// fails with ErrDiskFull nothing is staged; any other error is final.
	Append(first raft.Index, term raft.Term, magic int32, bodies [][]byte, stamp Stamp) error
	// AppendEncoded stages the entries of p from index from on. Errors as Append.
	AppendEncoded(from raft.Index, p raft.Payload) error
	// Flush hands what is staged to the operating system. From then on readers see it and other members may be sent it.
	Flush() error
	// Truncate makes last the last entry, Reset drops all and continues with entry next at byte position pos. Both are ordered before
	// later appends on disk. CanBegin tells whether a log may begin at pos.
	Truncate(last raft.Index) error
	Reset(next raft.Index, pos int64, prevTerm raft.Term) error
	CanBegin(pos int64) bool
	// Sync makes durable what was flushed before the call.
	Sync() error
	// SaveTerm makes term and vote durable before it returns.
	SaveTerm(term raft.Term, vote raft.ID) error
	// SetCommit notes the commit index; it is kept over a restart of the process.
	SetCommit(i raft.Index) error
	// Full tells that the disk has no room for more entries.
	Full() bool
	// Hurt tells that committed entries are damaged.
	Hurt() bool
	// Joined notes that this member has caught up; until then a restart finds Initial.Abstain, Initial.Behind, or Initial.New, again.
	Joined() error
}

// Stamp runs in log order, on the loop, for each entry of a proposal once its index and byte position are known. body is the
// log's own copy and may be written to, not kept.
type Stamp = func(i int, index raft.Index, pos int64, body []byte)

// Errors of Log that the loop tells apart. After either of them nothing is staged, and the log goes on.
var (
	ErrDiskFull = errors.New("disk full")
	ErrRefused  = errors.New("entries refused") // they do not fit this log: damaged on the way, or placed elsewhere by their leader
)

// unstored tells whether err leaves the log as it was.
func unstored(err error) bool { return errors.Is(err, ErrDiskFull) || errors.Is(err, ErrRefused) }

// Net sends messages to other members. Send must not block and may drop; messages of type MsgAppend, and the entry of a MsgCompare
// or MsgTruncate in dialect 0.3, come without Payload: Net reads it from the log.
type Net interface {
	Send(m *raft.Message)
}

// Config of a Replica.
type Config struct {
	Core    raft.Config
	Initial raft.Initial
	Log     Log
	Net     Net
	Async   bool          // durability `async`: an entry counts as soon as it is written (docs/adr/0003-acknowledged-means-synced.md)
	AckWait time.Duration // how long a proposal waits for its acknowledgement (maxWaitAckTimeMs)
	// PendingBytes bounds the bodies of proposals that wait for the next turn. The entries of those that wait for a majority are the
	// log's, and bounded by Core.MaxPending in number, by UncommittedBytes in size.
	PendingBytes     int64
	UncommittedBytes int64
	Logger           *slog.Logger
}

// Replica is the loop and what surrounds it (DLedgerServer's threads in the Java original).
//
//  1. only the loop touches core and waiting;
//  2. each proposal is finished exactly once, each request answered exactly once (R9), also at Close;
//  3. no message leaves before the writes it speaks of: term and vote are durable, entries are with the operating system, and
//     the core holds back what promises durable entries.
type Replica struct {
	cfg  Config
	core *raft.Core
	log  *slog.Logger

	mu      sync.Mutex
	in      inbox
	spare   inbox
	leaving bool  // no further proposal is taken
	closed  bool  // no further input is taken
	bytes   int64 // of proposals in the inbox
	wake    chan struct{}
	stopped chan struct{}

	waiting  []*Proposal // accepted in this leadership, in log order
	orphans  []*Proposal // of leaderships that ended, oldest first: their entries may yet be committed
	accepted []*Proposal // given an index, not yet stored; parallel to EffectPropose
	current  *Proposal   // the one being stored
	stampFn  Stamp
	backlog  backlog
	refs     map[uint64]func(*raft.Message)
	ref      uint64
	confirms map[uint64]func(raft.Index, raft.Status)
	flushed  mark // last entry handed to the operating system
	synced   mark // last entry for which a sync was started; unsynced after a cut
	syncing  bool
	dead     error // set when nothing may be done any more; the loop then only refuses
	joined   bool  // the log knows that this member has caught up
	role     raft.Role
	term     raft.Term

	kick chan struct{} // to the syncer

	view     atomic.Pointer[View]
	commit   atomic.Int64
	counters Counters

	watchMu sync.Mutex
	watch   chan struct{} // closed at the next change of commit or role; nil while nobody waits
	ended   bool          // nothing changes any more
}

type mark struct {
	index raft.Index
	term  raft.Term
}

// unsynced fits no entry. A sync that began before a cut says nothing of what is stored behind it afterwards, be it under the same index
// and term as before.
var unsynced = mark{index: -2, term: -2}

// View is what others may know of the loop without asking it. It is replaced whenever role, term or leader changes.
type View struct {
	Role   raft.Role
	Term   raft.Term
	Leader raft.ID
	Err    error // why this replica stopped taking part; nil while it does
}

// Counters since the start; all may be read at any time.
type Counters struct {
	Turns, Syncs, Proposed, Committed, Elections, Cuts atomic.Int64
	SyncNanos, SyncMaxNanos                            atomic.Int64
}

// inbox gathers inputs between two turns.
type inbox struct {
	msgs      []incoming
	proposals []*Proposal
	calls     []func()
	synced    bool
	syncErr   error
}

type incoming struct {
	msg   raft.Message
	reply func(*raft.Message)
}

// New makes a replica. The caller runs it with Run, or in a test drives it turn by turn.
func New(cfg Config, now raft.Instant) *Replica {
	r := &Replica{cfg: cfg, core: raft.New(cfg.Core, cfg.Initial, now), log: cfg.Logger,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), kick: make(chan struct{}, 1),
		refs: map[uint64]func(*raft.Message){}, confirms: map[uint64]func(raft.Index, raft.Status){}}
	r.stampFn = func(i int, index raft.Index, pos int64, body []byte) {
		p := r.current
		p.pos[i] = pos
		if p.stamp != nil {
			p.stamp(i, index, pos, body)
		}
	}
	r.joined = !cfg.Initial.Behind && !cfg.Initial.New && cfg.Initial.Abstain <= cfg.Initial.Last
	last := mark{cfg.Initial.Last, r.core.LastTerm()}
	r.flushed, r.synced = last, last
	r.commit.Store(int64(cfg.Initial.Commit))
	r.publish()
	return r
}

// Run is the loop; it returns when Close was called. now gives the present on the clock of the core's configuration.
func (r *Replica) Run(now func() raft.Instant) {
	done := make(chan struct{})
	go func() { // syncer: the one goroutine that waits for the disk
		defer close(done)
		for range r.kick {
			t0 := now()
			err := r.cfg.Log.Sync()
			d := int64(now() - t0)
			r.counters.Syncs.Add(1)
			r.counters.SyncNanos.Add(d)
			if d > r.counters.SyncMaxNanos.Load() {
				r.counters.SyncMaxNanos.Store(d)
			}
			r.SyncDone(err)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		runtime.Gosched() // connections that have something to read deliver it first: one turn for all costs less than two
		deadline, more := r.Turn(now())
		if !more {
			break
		}
		if r.NeedSync() {
			r.kick <- struct{}{}
		}
		timer.Reset(time.Duration(max(0, deadline-now())))
		select {
		case <-r.wake:
		case <-timer.C:
		}
	}
	close(r.kick)
	<-done
	close(r.stopped)
}

// NeedSync tells, once, that a sync should be started; SyncDone must follow. There is at most one at a time: whatever is flushed
// meanwhile shares the next.
func (r *Replica) NeedSync() bool {
	if r.cfg.Async || r.syncing || r.dead != nil || r.synced == r.flushed {
		return false
	}
	r.syncing, r.synced = true, r.flushed
	return true
}

// SyncDone reports the end of a sync. One that ends well in the same turn as a failure (see Fail) does not undo that.
func (r *Replica) SyncDone(err error) {
	r.mu.Lock()
	r.in.synced = true
	if r.in.syncErr == nil {
		r.in.syncErr = err
	}
	r.mu.Unlock()
	r.signal()
}

func (r *Replica) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Turn takes in all that has arrived, lets the core work on it as one batch, and performs the outcome. It returns the instant at
// which the next turn is due even if nothing arrives, and false once the replica is closed.
func (r *Replica) Turn(now raft.Instant) (raft.Instant, bool) {
	r.mu.Lock()
	in := r.in
	r.in, r.spare = r.spare, inbox{}
	r.bytes = 0
	closed := r.closed
	r.mu.Unlock()
	r.counters.Turns.Add(1)

	if in.synced {
		r.syncing = false
		if in.syncErr != nil {
			r.diskFailed(now, fmt.Errorf("sync: %w", in.syncErr))
		} else {
			covered := r.synced
			if plantedSyncCoversLater {
				covered = r.flushed
			}
			r.core.Durable(covered.index, covered.term)
		}
	}
	for _, f := range in.calls {
		f()
	}
	if r.dead == nil {
		r.core.Full(r.cfg.Log.Full())
		r.core.Damaged(r.cfg.Log.Hurt())
	}
	for i := range in.msgs {
		r.step(now, &in.msgs[i])
	}
	if r.dead == nil && now >= r.core.Deadline() {
		r.core.Tick(now)
	}
	r.demote()
	for _, p := range in.proposals {
		r.propose(now, p)
	}
	if r.dead == nil {
		r.perform(now)
	}
	r.expireWaiting(now)
	if closed {
		r.drain()
	}

	clear(in.msgs)
	clear(in.proposals)
	clear(in.calls)
	r.spare = inbox{msgs: in.msgs[:0], proposals: in.proposals[:0], calls: in.calls[:0]}
	return r.deadline(), !closed
}

// deadline is the instant of the next turn if nothing arrives. The core of a dead replica does nothing by itself any more.
func (r *Replica) deadline() raft.Instant {
	if r.dead != nil {
		return never
	}
	d := r.core.Deadline()
	if len(r.waiting) > 0 {
		d = min(d, r.waiting[0].due)
	}
	for _, p := range r.orphans {
		d = min(d, p.due)
	}
	return d
}

const never raft.Instant = 1<<63 - 1

func (r *Replica) step(now raft.Instant, in *incoming) {
	if in.reply != nil {
		if r.dead != nil {
			in.reply(&raft.Message{Type: in.msg.Type.Answer(), Status: raft.StatusDiskError, Term: r.core.Term(), Begin: -1, End: -1, XTerm: -1, XIndex: -1,
				Asked: in.msg.Asked, Index: in.msg.Index, First: in.msg.First, Last: in.msg.Last})
			return
		}
		r.ref++
		in.msg.Ref = r.ref
		r.refs[r.ref] = in.reply
	}
	if r.dead != nil {
		return
	}
	if !r.placed(&in.msg) {
		m := &in.msg
		delete(r.refs, m.Ref)
		r.log.Warn("log cannot begin where a leader says", "leader", m.Leader, "entry", m.Index, "position", m.Pos)
		in.reply(&raft.Message{Type: m.Type.Answer(), Status: raft.StatusUnexpectedArgument, Term: r.core.Term(), Begin: r.core.First(), End: r.core.Last(),
			XTerm: -1, XIndex: -1, Asked: m.Asked, Index: m.Index, First: m.First, Last: m.Last})
		return
	}
	r.core.Step(now, &in.msg)
}

// placed completes a request that may start this log anew with the position at which it does, and tells whether that can be.
func (r *Replica) placed(m *raft.Message) bool {
	switch {
	case m.Type == raft.MsgTruncate && len(m.Payload) > 0: // dialect 0.3: the entry it carries says where
		h, err := entry.Parse(m.Payload[0])
		if err != nil {
			return false
		}
		m.Pos = h.Pos
	case m.Type != raft.MsgReset:
		return true
	}
	return r.cfg.Log.CanBegin(m.Pos)
}

func (r *Replica) propose(now raft.Instant, p *Proposal) {
	if r.dead != nil {
		p.finish(raft.StatusDiskError)
		return
	}
	if r.core.Role() == raft.Leader && r.cfg.Log.Full() { // elsewhere the client is sent to the leader, which may have room
		p.finish(raft.StatusDiskFull)
		return
	}
	if p.in >= 0 && p.in != r.core.Term() {
		p.Leader = r.core.Leader()
		p.finish(raft.StatusNotLeader)
		return
	}
	if r.core.Role() == raft.Leader && r.backlog.of(r.core.Term()) >= r.cfg.UncommittedBytes {
		p.finish(raft.StatusPendingFull)
		return
	}
	first, s := r.core.Propose(len(p.bodies))
	if s != raft.StatusOK {
		p.Leader = r.core.Leader()
		p.finish(s)
		return
	}
	p.First, p.Term = first, r.core.Term()
	r.backlog.add(p)
	p.due = now + raft.Instant(r.cfg.AckWait)
	r.accepted = append(r.accepted, p)
	r.counters.Proposed.Add(int64(len(p.bodies)))
}

// perform carries out a Ready: writes first, then messages, then what others may learn.
func (r *Replica) perform(now raft.Instant) {
	w := r.core.Writes()
	if w.SaveTerm {
		if err := r.cfg.Log.SaveTerm(w.Term, w.Vote); err != nil {
			r.die(fmt.Errorf("store term %d and vote %q: %w", w.Term, w.Vote, err))
			return
		}
	}
	if len(w.Effects) > 0 && !r.write(now, w.Effects) {
		return
	}
	ready := r.core.TakeReady(now)
	if ready.Commit > raft.Index(r.commit.Load()) && r.view.Load().Err == nil { // what a failed disk holds nobody knows (R7)
		if err := r.cfg.Log.SetCommit(ready.Commit); err != nil {
			r.diskFailed(now, fmt.Errorf("note commit index %d: %w", ready.Commit, err))
			return
		}
		r.counters.Committed.Add(int64(ready.Commit) - r.commit.Load())
		r.commit.Store(int64(ready.Commit))
		r.notify()
	}
	if !r.joined && r.core.Joined() && r.view.Load().Err == nil {
		if err := r.cfg.Log.Joined(); err != nil {
			r.diskFailed(now, fmt.Errorf("note that this member has caught up: %w", err))
			return
		}
		r.joined = true
		r.log.Info("caught up; this member votes", "last", r.core.Last(), "commit", r.core.Commit(), "term", r.core.Term())
	}
	for i := range ready.Messages {
		m := &ready.Messages[i]
		if m.Type.IsAnswer() {
			if reply := r.refs[m.Ref]; reply != nil {
				delete(r.refs, m.Ref)
				reply(m)
			}
			continue
		}
		r.cfg.Net.Send(m)
	}
	for _, k := range ready.Confirms {
		if f := r.confirms[k.Ref]; f != nil {
			delete(r.confirms, k.Ref)
			f(k.Index, k.Status)
		}
	}
	for _, e := range ready.Events {
		r.report(e)
	}
	r.finishCommitted(now, raft.Index(r.commit.Load()))
	if v := r.view.Load(); v.Role != ready.Role || v.Term != ready.Term || v.Leader != ready.Leader {
		r.publish()
		r.notify()
	}
	r.core.Done()
}

// write carries out the effects and hands them to the operating system. What the disk has no room for is taken back out of the
// core as if it had never come. It returns false when the disk failed for good.
func (r *Replica) write(now raft.Instant, effects []raft.Effect) bool {
	lost := raft.Index(-1) // first entry of the log that could not be stored; everything behind it is skipped
	for i := range effects {
		e := &effects[i]
		var err error
		switch e.Kind {
		case raft.EffectCut:
			if lost > e.Last {
				lost = -1
			}
			if lost < 0 { // else the cut falls on what was not stored anyway
				err = r.cfg.Log.Truncate(e.Last)
				r.synced = unsynced
				r.counters.Cuts.Add(1)
			}
		case raft.EffectReset:
			lost = -1
			err = r.cfg.Log.Reset(e.First, e.Pos, e.Term)
			r.synced = unsynced
		default:
			err = r.store(e, lost >= 0)
			if unstored(err) {
				if lost < 0 {
					lost = e.First
					r.log.Warn("entries not stored", "first", e.First, "reason", err)
				}
				err = nil
			}
		}
		if err != nil {
			r.diskFailed(now, err)
			return false
		}
	}
	if err := r.cfg.Log.Flush(); err != nil {
		r.diskFailed(now, fmt.Errorf("write entries: %w", err))
		return false
	}
	if lost >= 0 {
		r.core.Unwritten(lost)
		r.backlog.cut(lost)
	}
	r.flushed = mark{r.core.Last(), r.core.LastTerm()}
	if r.cfg.Async {
		r.synced = r.flushed
		r.core.Durable(r.flushed.index, r.flushed.term)
	}
	return true
}

// store stages the entries of one effect, or fails with ErrDiskFull.
func (r *Replica) store(e *raft.Effect, full bool) error {
	switch e.Kind {
	case raft.EffectAppend:
		if full {
			return ErrDiskFull
		}
		if err := r.cfg.Log.AppendEncoded(e.First, e.Payload); err != nil {
			return fmt.Errorf("store entries %d to %d: %w", e.First, e.Last, err)
		}
	case raft.EffectNoop:
		if full {
			return ErrDiskFull
		}
		if err := r.cfg.Log.Append(e.First, e.Term, entry.MagicNoop, [][]byte{nil}, nil); err != nil {
			return fmt.Errorf("store no-op %d: %w", e.First, err)
		}
	case raft.EffectPropose:
		p := r.accepted[0]
		r.accepted = r.accepted[1:]
		if len(r.accepted) == 0 {
			r.accepted = nil
		}
		if full {
			p.finish(raft.StatusDiskFull)
			return ErrDiskFull
		}
		p.pos = make([]int64, len(p.bodies))
		r.current = p
		err := r.cfg.Log.Append(e.First, e.Term, entry.MagicNormal, p.bodies, r.stampFn)
		r.current = nil
		if err != nil {
			p.finish(statusOf(err))
			return fmt.Errorf("store entries %d to %d: %w", e.First, e.Last, err)
		}
		p.bodies = nil // the log has its own copy
		r.waiting = append(r.waiting, p)
	}
	return nil
}

func statusOf(err error) raft.Status {
	switch {
	case errors.Is(err, ErrDiskFull):
		return raft.StatusDiskFull
	case errors.Is(err, ErrRefused):
		return raft.StatusUnexpectedArgument
	}
	return raft.StatusDiskError
}

// finishCommitted answers the proposals that commit covers. Those of a leadership that is over become orphans: the new leader, most
// often in a moment, commits their entries or others in their place.
func (r *Replica) finishCommitted(now raft.Instant, commit raft.Index) {
	r.backlog.commit(commit)
	k := 0
	for k < len(r.waiting) && r.waiting[k].Last() <= commit && r.core.Matches(r.waiting[k].Last(), r.waiting[k].Term) {
		r.waiting[k].finish(raft.StatusOK)
		k++
	}
	r.waiting = dropFront(r.waiting, k)
	r.orphan(now)
	if len(r.orphans) > 0 {
		r.orphans = slices.DeleteFunc(r.orphans, func(p *Proposal) bool { return r.finishOrphan(p, commit) })
	}
}

// backlog is what this leader has put into the log and a majority does not have yet, proposal by proposal, whether or not anybody still waits for it. What it inherited from
// earlier terms is not counted, as it is not in raft.Config.MaxPending, which bounds the length of the list.
type backlog struct {
	term  raft.Term
	bytes int64
	list  []lot // in log order
}

type lot struct {
	last raft.Index
	size int64
}

// of gives the bytes of a term, which is that of the present leadership.
func (b *backlog) of(term raft.Term) int64 {
	if b.term != term {
		*b = backlog{term: term, list: b.list[:0]}
	}
	return b.bytes
}

// add takes in a proposal of the term last asked for.
func (b *backlog) add(p *Proposal) {
	b.list = append(b.list, lot{p.Last(), p.size})
	b.bytes += p.size
}

// commit drops what a majority has.
func (b *backlog) commit(i raft.Index) {
	k := 0
	for ; k < len(b.list) && b.list[k].last <= i; k++ {
		b.bytes -= b.list[k].size
	}
	if k == len(b.list) {
		k, b.list = 0, b.list[:0]
	}
	b.list = b.list[k:]
}

// cut drops what was not stored, from entry i on.
func (b *backlog) cut(i raft.Index) {
	k := len(b.list)
	for ; k > 0 && b.list[k-1].last >= i; k-- {
		b.bytes -= b.list[k-1].size
	}
	b.list = b.list[:k]
}

// orphan sets the proposals apart whose leadership is over. A deposed leader hears of its successor, and of what that has committed, within
// an election's time, or will not soon.
func (r *Replica) orphan(now raft.Instant) {
	leads := r.core.Role() == raft.Leader
	grace := now + raft.Instant(time.Duration(r.cfg.Core.HeartbeatLeak)*r.cfg.Core.Heartbeat)
	k := 0
	for k < len(r.waiting) && (!leads || r.waiting[k].Term != r.core.Term()) {
		r.waiting[k].due = min(r.waiting[k].due, grace)
		k++
	}
	if k > 0 {
		r.orphans = append(r.orphans, r.waiting[:k]...)
		r.waiting = dropFront(r.waiting, k)
	}
}

// finishOrphan answers a proposal of an earlier leadership if commit has reached its entries, or others in their place.
func (r *Replica) finishOrphan(p *Proposal, commit raft.Index) bool {
	switch {
	case p.Last() > commit:
		return false
	case r.core.Matches(p.Last(), p.Term):
		p.finish(raft.StatusOK)
	default:
		r.abandon(p)
	}
	return true
}

// abandon ends the wait for a proposal of a leadership that is over.
func (r *Replica) abandon(p *Proposal) {
	p.Leader = r.core.Leader()
	p.finish(raft.StatusTermChanged)
}

func (r *Replica) expireWaiting(now raft.Instant) {
	k := 0
	for k < len(r.waiting) && now >= r.waiting[k].due {
		r.waiting[k].finish(raft.StatusWaitAckTimeout)
		k++
	}
	r.waiting = dropFront(r.waiting, k)
	if len(r.orphans) > 0 {
		r.orphans = slices.DeleteFunc(r.orphans, func(p *Proposal) bool {
			late := now >= p.due
			if late {
				r.abandon(p)
			}
			return late
		})
	}
}

// dropFront removes k proposals and reuses the memory once all are gone.
func dropFront(s []*Proposal, k int) []*Proposal {
	clear(s[:k])
	if k == len(s) {
		return s[:0]
	}
	return s[k:]
}

// diskFailed makes the core give leadership away; this node stays reachable but stores nothing until it is started again.
func (r *Replica) diskFailed(now raft.Instant, err error) {
	r.log.Error("disk failed; this replica stores nothing until it is restarted", "error", err)
	for _, p := range r.accepted {
		p.finish(raft.StatusDiskError)
	}
	r.accepted = nil
	r.core.DiskFailed(now)
	r.setErr(err)
	ready := r.core.TakeReady(now)
	for i := range ready.Messages {
		m := &ready.Messages[i]
		switch {
		case !m.Type.IsAnswer():
			if m.Type == raft.MsgTransfer || m.Type == raft.MsgHeartbeat {
				r.cfg.Net.Send(m)
			}
		case r.refs[m.Ref] != nil:
			if m.Type != raft.MsgHeartbeatAnswer && (m.Status == raft.StatusOK || m.Vote == raft.VoteAccept) {
				m.Status, m.Vote = raft.StatusDiskError, raft.VoteUnknown // it may speak of what was not written
			}
			r.refs[m.Ref](m)
			delete(r.refs, m.Ref)
		}
	}
	for _, k := range ready.Confirms {
		if f := r.confirms[k.Ref]; f != nil {
			delete(r.confirms, k.Ref)
			f(-1, raft.StatusDiskError) // also where the core did not know of the disk yet
		}
	}
	for _, e := range ready.Events {
		r.report(e)
	}
	r.finishCommitted(now, raft.Index(r.commit.Load()))
	for _, p := range r.orphans { // this node will not hear what becomes of them
		r.abandon(p)
	}
	r.orphans = nil
	r.core.Done()
	r.publish()
	r.notify()
}

// die ends all participation: a term or vote could not be stored, so no message of this node may be believed any more.
func (r *Replica) die(err error) {
	r.log.Error("replica stopped", "error", err)
	r.dead = err
	r.setErr(err)
	r.refuseAll()
	r.notify()
}

// refuseAll finishes everything that waits, in the order in which it came.
func (r *Replica) refuseAll() {
	for _, p := range r.accepted {
		p.finish(raft.StatusNotLeader)
	}
	for _, p := range slices.Concat(r.orphans, r.waiting) {
		r.abandon(p)
	}
	r.accepted, r.waiting, r.orphans = nil, nil, nil
	for _, ref := range slices.Sorted(maps.Keys(r.refs)) {
		reply := r.refs[ref]
		delete(r.refs, ref)
		reply(&raft.Message{Status: raft.StatusInternal, Term: r.core.Term(), Begin: -1, End: -1, XTerm: -1, XIndex: -1})
	}
	for _, ref := range slices.Sorted(maps.Keys(r.confirms)) {
		f := r.confirms[ref]
		delete(r.confirms, ref)
		f(-1, r.gone())
	}
}

// gone tells why this member answers nothing more.
func (r *Replica) gone() raft.Status {
	if errors.Is(r.dead, errClosed) {
		return raft.StatusInternal
	}
	return raft.StatusDiskError
}

func (r *Replica) drain() {
	if r.dead == nil {
		r.dead = errClosed
	}
	r.refuseAll()
	r.setErr(r.dead)
	r.watchMu.Lock()
	r.ended = true
	r.watchMu.Unlock()
	r.notify()
}

var (
	errClosed = errors.New("closed")
	errBusy   = errors.New("too many questions wait for this member")
)

func (r *Replica) setErr(err error) {
	v := *r.view.Load()
	if v.Err == nil {
		v.Err = err
		r.view.Store(&v)
	}
}

// demote tells at once that this member leads no more: before anybody is refused for it, and before the new term is on disk, which may take a while. Who
// was refused would otherwise ask who leads, and be sent here again.
func (r *Replica) demote() {
	if v := r.view.Load(); v.Role == raft.Leader && r.core.Role() != raft.Leader {
		r.view.Store(&View{Role: r.core.Role(), Term: v.Term, Err: v.Err})
		r.notify()
	}
}

func (r *Replica) publish() {
	v := &View{Role: r.core.Role(), Term: r.core.Term(), Leader: r.core.Leader()}
	if old := r.view.Load(); old != nil {
		v.Err = old.Err
	}
	r.view.Store(v)
}

func (r *Replica) report(e raft.Event) {
	switch e.Kind {
	case raft.EventRole:
		if e.Role == r.role && e.Term == r.term {
			return
		}
		r.role, r.term = e.Role, e.Term
		if e.Role == raft.Leader {
			r.counters.Elections.Add(1)
		}
		r.log.Info("role changed", "role", e.Role.String(), "term", e.Term, "leader", r.core.Leader(), "last", r.core.Last(), "commit", r.core.Commit())
	case raft.EventCut:
		r.log.Info("entries cut that the leader does not have", "last", e.Index, "term", e.Term)
	case raft.EventReset:
		r.log.Info("log starts anew where the leader's begins", "first", e.Index+1, "term", e.Term)
	case raft.EventStuck:
		r.log.Error("follower needs entries that retention deleted, and a Java 0.4 node cannot start its log in the middle: give it a copy of another node's directory",
			"follower", e.Peer, "first kept", e.Index)
	case raft.EventConflict:
		r.log.Error("leader wants to replace a committed entry; refused", "leader", e.Peer, "index", e.Index, "term", e.Term)
	case raft.EventTransfer:
		r.log.Info("handing leadership over", "to", e.Peer, "term", e.Term)
	case raft.EventTermLearned:
		r.log.Info("higher term learnt", "term", e.Term, "from", e.Peer)
	case raft.EventStalled:
		r.log.Error("disk does not finish its sync; giving leadership up", "term", e.Term)
	}
}
