package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
	"dledger/internal/vfs"
)

const (
	ms           = raft.Instant(time.Millisecond)
	never        = raft.Instant(1<<63 - 1)
	dir          = "/n" // of every member, on its own disk
	flushEvery   = 100 * ms
	keepEvery    = 500 * ms
	mostReaction = 200 * time.Microsecond // from an input to the turn that takes it in
	patience     = 20 * ms                // an input that waits longer was not announced
)

// node is one member: its disk, its clock, and while it runs its store and loop.
type node struct {
	w      *world
	no     int
	id     raft.ID
	chance *rand.Rand
	disk   *disk
	life   int // counts starts

	up     bool
	store  *logstore.Store // of the present life, or of the last one
	loop   *replica.Replica
	paused int // how many pauses are not over
	rate   float64
	base   float64 // local time at since
	since  raft.Instant
	wall   time.Duration // how far the calendar was set ahead

	turnAt    raft.Instant // next turn; never = none is due
	busy      raft.Instant // the last turn keeps the loop until then
	inputAt   raft.Instant // oldest input that no turn has taken in; never = none
	slowTill  raft.Instant // syncs are slow until then
	hangTill  raft.Instant // no sync ends before
	troubled  raft.Instant // last instant at which it was paused, slow or hanging: nothing can be asked of it then
	idle      int          // turns in a row that nothing called for but the deadline
	idleFrom  raft.Instant
	failing   bool       // it was seen to have stopped taking part
	behind    bool       // it has to catch up before it votes
	rotten    bool       // bits have flipped on its disk, and may not be found yet
	rotTo     raft.Index // what was its last entry when they did: only what is committed is searched
	unpowered bool       // its last life ended with its power
	passes    int        // searches for damage that found none, since bits last flipped

	slowBy, hangBy, stopBy *blow // what is to be counted when a sync is slow or hangs, and when it has stopped

	// What is known to be on its disk, whoever forgot it since.
	flushed   mark       // last entry handed to the operating system
	began     mark       // the same when the present turn began
	durable   mark       // last entry that a sync has covered
	taken     mark       // what flushed was when its power went last
	begins    raft.Index // first entry of the log that this power cut has left, until the next start; 0 = nothing is gone before it
	savedTerm raft.Term
	savedVote raft.ID
	commit    raft.Index // checked up to here in this life

	open []*call // requests delivered to it in this life that it may not have answered
	ops  []*op   // proposals it may not have answered

	reads []*question // reads it may not have confirmed or refused
}

type mark struct {
	index raft.Index
	term  raft.Term
}

var none = mark{index: -1, term: -1}

func newNode(w *world, no int) *node {
	n := &node{w: w, no: no, id: w.setup.ids[no], chance: stream(w.c.Seed, forNode, uint64(no)), rate: w.setup.rates[no],
		turnAt: never, inputAt: never, flushed: none, durable: none, taken: none, savedTerm: -1, commit: -1}
	n.disk = newDisk(n.chance)
	n.disk.mem.SetClock(n.calendar)
	return n
}

// local is the present on the member's clock, which starts anew with each life.
func (n *node) local() raft.Instant {
	return raft.Instant(n.base + n.rate*float64(n.w.now-n.since))
}

// when is the instant at which the member's clock shows t, and at least the next one.
func (n *node) when(t raft.Instant) raft.Instant {
	if t == never {
		return never
	}
	return n.w.now + max(raft.Instant(float64(t-n.local())/n.rate)+1, raft.Instant(time.Microsecond))
}

// jump sets the member's clock ahead.
func (n *node) jump(d raft.Instant) {
	n.base, n.since = float64(n.local()+d), n.w.now
	if n.up {
		n.turnAt = min(n.turnAt, n.w.now+1) // whoever waits for a time finds that it has come
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (n *node) calendar() time.Time { return epoch.Add(time.Duration(n.w.now) + n.wall) }

// after runs do later, if the member is still in the same life then.
func (n *node) after(d raft.Instant, do func()) {
	life := n.life
	n.w.after(d, func() {
		if n.up && n.life == life {
			do()
		}
	})
}

// start recovers the member's log and lets it take part.
func (n *node) start() {
	w := n.w
	if n.up {
		return
	}
	n.life++
	cfg := w.setup.store()
	cfg.FS, cfg.Dir, cfg.Now = n.disk.mem, dir, n.calendar
	store, err := logstore.Open(cfg)
	if n.disk.off {
		n.afterCut()
		return
	}
	if err != nil {
		var damage *logstore.DamageError
		if errors.As(err, &damage) || !n.disk.excused() {
			w.violate("%s cannot open its log: %v", n.id, err)
			return
		}
		w.say(n, "cannot open: %v", err)
		n.disk.mem.Crash(nil)
		n.disk.failed = false
		n.startIn(200 * ms)
		return
	}
	n.store = store
	st := store.State()
	// Who does not know that the others are of this implementation does not learn that they wait, too, and would wait for ever.
	st.Behind = st.Behind && !w.setup.strangers
	st.New = st.New && w.setup.compat == raft.CompatGo && len(w.setup.ids) > 2
	n.behind = st.Behind || st.New
	w.say(n, "starts: entries %d to %d, commit %d, term %d, vote %q, lost %d", st.First, st.Last, st.Commit, st.Term, st.Vote, st.TailLost)
	w.check.recovered(n, &st)
	core := w.setup.core
	core.ID = n.id
	core.Rand = n.chance.Int64N
	n.base, n.since = 1, w.now
	n.loop = replica.New(replica.Config{
		Core: core,
		Initial: raft.Initial{Term: st.Term, Vote: st.Vote, First: st.First, Last: st.Last, PrevTerm: st.PrevTerm, Runs: st.Runs, Commit: st.Commit, Abstain: st.TailLost,
			Behind: st.Behind, New: st.New},
		Log: &nodeLog{Store: store, n: n}, Net: (*nodeNet)(n), Async: w.setup.async, AckWait: w.setup.ackWait, PendingBytes: 64 << 10, UncommittedBytes: 64 << 10,
		Logger: quiet,
	}, n.local())
	n.up, n.failing = true, false
	n.busy, n.inputAt, n.idle = 0, never, 0
	n.turnAt = w.now + 1
	n.open, n.ops, n.reads = nil, nil, nil
	for _, m := range w.nodes {
		if m != n {
			w.reconnect(n, m)
		}
	}
	n.after(raft.Instant(n.chance.Int64N(int64(keepEvery))), n.keep)
	if w.setup.async {
		n.after(flushEvery, n.flush)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// startIn starts the member after d, unless something else has started it by then.
func (n *node) startIn(d raft.Instant) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life && !n.up && (!n.w.calm || n.w.trusted[n.no]) {
			n.start()
		}
	})
}

// down ends the present life; keep is nil when only the process ends.
func (n *node) down(keep vfs.Keep) {
	n.trouble(min(n.hangTill, n.w.now)) // what it wrote meanwhile has waited for a sync
	if !n.up || n.paused > 0 {
		n.trouble(n.w.now)
	}
	n.unpowered = keep != nil
	n.up, n.turnAt, n.inputAt, n.paused, n.stopBy = false, never, never, 0, nil
	n.disk.mem.Crash(keep)
	n.disk.off, n.disk.cutIn, n.disk.fail, n.disk.failed = false, 0, "", false
	n.hangTill, n.slowTill = 0, 0
	n.w.check.ended(n, keep == nil)
	n.w.lost(n)
}

// afterCut ends a life whose power went away in the middle of a call.
func (n *node) afterCut() {
	if n.up {
		n.w.check.turned(n) // what it said before stays said
	}
	k, what := keep(n.chance)
	n.w.say(n, "power cut in the middle of a call; of what was not synced stays: %s", what)
	n.down(k)
	n.startIn(ms + raft.Instant(n.chance.Int64N(int64(500*ms))))
}

// poke is called after everything that may have given the loop an input.
func (n *node) poke() {
	if !n.up {
		return
	}
	if n.inputAt == never {
		n.inputAt = n.w.now
	}
	if n.loop.Woken() {
		n.idle = 0
		n.turnAt = min(n.turnAt, max(n.w.now+raft.Instant(n.chance.Int64N(int64(mostReaction))), n.busy))
	}
}

// runnable is the instant of the next turn.
func (n *node) runnable() raft.Instant {
	if n.paused > 0 {
		return never
	}
	return max(n.turnAt, n.busy)
}

// trouble notes that nothing can be asked of the member until t.
func (n *node) trouble(t raft.Instant) { n.troubled = max(n.troubled, t) }

func (n *node) turn() {
	w := n.w
	if n.inputAt < w.now-patience && n.troubled < n.inputAt {
		w.violate("%s: an input of %v ago has not woken the loop", n.id, time.Duration(w.now-n.inputAt))
		return
	}
	if n.idle++; n.idle == 1 {
		n.idleFrom = w.now
	} else if n.idle == 1000 && w.now-n.idleFrom < 1000*ms {
		w.violate("%s: busy loop: %d turns within %v without an input", n.id, n.idle, time.Duration(w.now-n.idleFrom))
		return
	}
	n.turnAt, n.inputAt, n.disk.syncs, n.began = never, never, 0, n.flushed
	deadline, more := n.loop.Turn(n.local())
	if n.disk.off {
		n.afterCut()
		return
	}
	if w.failed() {
		return
	}
	n.busy = w.now + 5_000 + raft.Instant(n.disk.syncs)*n.syncTakes()/4
	if n.busy > w.now+patience/2 {
		n.trouble(n.busy)
	}
	n.turnAt = max(min(n.turnAt, n.when(deadline)), n.busy) // something may have arrived during the turn
	w.check.turned(n)
	if !more {
		n.stopped()
		return
	}
	if n.loop.NeedSync() {
		n.beginSync()
	}
	if v := n.loop.View(); v.Err != nil && !n.failing {
		n.failing = true
		w.say(n, "takes no part any more: %v", v.Err)
		if !n.disk.excused() && !n.damaged(v.Err) { // so damaged that it cannot tell where to cut, it is; a start finds out how far the log is whole
			w.violate("%s stopped taking part without a fault of its disk: %v", n.id, v.Err)
			return
		}
		n.after(raft.Instant(between(n.chance, 100*time.Millisecond, 2*time.Second)), func() {
			if !w.calm || w.trusted[n.no] {
				n.w.say(n, "is killed and started again")
				n.down(nil)
				n.start()
			}
		})
	}
}

// stopped ends a life that was asked to end.
func (n *node) stopped() {
	w := n.w
	n.stopBy.falls()
	w.check.drained(n)
	if err := n.store.Close(); err != nil && !n.disk.excused() {
		w.violate("%s: close: %v", n.id, err)
		return
	}
	if n.disk.off {
		n.afterCut()
		return
	}
	if !n.disk.failed {
		n.durable = n.flushed
	}
	n.down(nil)
	if w.calm && !w.closing {
		n.startIn(ms)
	}
}

// syncTakes draws how long a sync takes.
func (n *node) syncTakes() raft.Instant {
	d := n.w.setup.syncTime/2 + time.Duration(n.chance.Int64N(int64(n.w.setup.syncTime)))
	if n.w.now < n.slowTill {
		d *= 50
		n.slowBy.falls()
	}
	return raft.Instant(d)
}

// beginSync starts the one sync that the loop asks for. When it takes effect in that time nobody knows: some syncs are done at once
// and reported late, so that nothing written meanwhile is covered; others at the end, so that a crash in between loses all.
func (n *node) beginSync() {
	early := n.chance.IntN(2) == 0
	var err error
	if early {
		if err = n.sync(); n.disk.off {
			n.afterCut()
			return
		}
	}
	n.after(n.syncTakes(), func() { n.endSync(early, err) })
}

func (n *node) endSync(early bool, err error) {
	if left := n.hangTill - n.w.now; left > 0 {
		n.hangBy.falls()
		n.trouble(n.hangTill)
		n.after(left, func() { n.endSync(early, err) })
		return
	}
	if !early {
		if err = n.sync(); n.disk.off {
			n.afterCut()
			return
		}
	}
	n.loop.SyncDone(err)
	n.poke()
}

// sync makes durable what was flushed.
func (n *node) sync() error {
	at := n.flushed
	i, err := n.store.Sync()
	if err == nil {
		if i != at.index {
			n.w.violate("%s: a sync covers entries up to %d where %d are written", n.id, i, at.index)
		}
		n.durable = at
	}
	return err
}

// flush is the background sync of mode async.
func (n *node) flush() {
	if n.paused == 0 && n.w.now >= n.hangTill {
		if n.flushed != n.durable {
			err := n.sync()
			if n.disk.off {
				n.afterCut()
				return
			}
			if err != nil {
				n.loop.Fail(err)
				n.poke()
				return
			}
		}
	}
	n.after(flushEvery, n.flush)
}

// keep makes checkpoints and deletes old files.
func (n *node) keep() {
	if n.paused == 0 && n.w.now >= n.hangTill && !n.failing {
		err := n.store.Checkpoint()
		var deleted int
		if err == nil && n.mayExpire() {
			deleted, err = n.store.Expire()
		}
		if err != nil && n.damaged(err) {
			err = nil
		}
		switch {
		case n.disk.off:
			n.afterCut()
			return
		case err != nil && !n.disk.excused():
			n.w.violate("%s: checkpoint or retention: %v", n.id, err)
			return
		case deleted > 0:
			first := n.store.State().First
			n.w.say(n, "keeps entries from %d", first)
			n.w.expired++
			if n.disk.looks {
				n.disk.fullBy.falls()
			}
			n.loop.Expired(first)
			n.poke()
		}
		if n.rotten || n.w.closing {
			life := n.life
			if n.scrub(); n.life != life || !n.up || n.w.failed() {
				return
			}
		}
	}
	n.after(keepEvery, n.keep)
}

// mayExpire tells whether no other member may need a copy of an entry that retention would delete.
func (n *node) mayExpire() bool {
	return !slices.ContainsFunc(n.w.nodes, func(m *node) bool { return m != n && m.rotten })
}

// nodeLog is the store as the loop sees it. It translates errors as package dledger does, and notes what is on the disk.
type nodeLog struct {
	*logstore.Store
	n *node
}

func (l *nodeLog) Append(first raft.Index, term raft.Term, magic int32, bodies [][]byte, stamp replica.Stamp) error {
	return l.n.forLoop(l.Store.Append(first, term, magic, bodies, stamp))
}

func (l *nodeLog) AppendEncoded(from raft.Index, p raft.Payload) error {
	return l.n.forLoop(l.Store.AppendEncoded(from, p))
}

func (l *nodeLog) Flush() error {
	err := l.Store.Flush()
	if err == nil {
		l.n.w.check.stored(l.n)
	}
	return l.n.forLoop(err)
}

func (l *nodeLog) Sync() error { panic("sim: the loop does not sync by itself") }

func (l *nodeLog) Truncate(last raft.Index) error {
	n := l.n
	n.w.say(n, "cuts behind %d", last)
	flushed, durable := n.flushed, n.durable
	n.w.check.cut(n, last)
	err := l.Store.Truncate(last)
	switch {
	case err == nil:
		n.w.check.stored(n)
	case n.damaged(err): // where to cut cannot be told; nothing was cut
		n.flushed, n.durable = flushed, durable
	}
	return err
}

func (l *nodeLog) Reset(next raft.Index, pos int64, prev raft.Term) error {
	n := l.n
	n.w.say(n, "starts its log anew at %d, behind term %d, position %d", next, prev, pos)
	n.w.check.reset(n, next, prev)
	n.flushed, n.durable = none, none
	err := l.Store.Reset(next, pos, prev)
	if err == nil {
		n.flushed = mark{next - 1, prev}
		n.durable = n.flushed
		if next > 0 {
			n.w.resets++
		}
	}
	return err
}

func (l *nodeLog) SaveTerm(t raft.Term, vote raft.ID) error {
	err := l.Store.SaveTerm(t, vote)
	if err == nil {
		l.n.savedTerm, l.n.savedVote = t, vote
	}
	return err
}

func (l *nodeLog) Joined() error {
	err := l.Store.Joined()
	if err == nil {
		l.n.w.say(l.n, "has caught up")
		l.n.behind = false
	}
	return err
}

func (n *node) forLoop(err error) error {
	var pos *logstore.PositionError
	switch {
	case err == nil || errors.Is(err, logstore.ErrFailed):
		return err
	case errors.Is(err, logstore.ErrDiskFull):
		n.disk.fullBy.falls()
		return fmt.Errorf("%w: %w", replica.ErrDiskFull, err)
	case errors.As(err, &pos), errors.Is(err, logstore.ErrOrder), errors.Is(err, logstore.ErrTooLarge):
		return fmt.Errorf("%w: %w", replica.ErrRefused, err)
	}
	return err
}
