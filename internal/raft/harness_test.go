package raft

import (
	"container/heap"
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

// group runs all members of one group in one goroutine: virtual time, messages in flight, toy disks. It does what package
// replica does with a Core, turn by turn, and after each turn it checks the invariants R1 to R9 on everything that has happened.
type group struct {
	t         testing.TB
	config    Config // ID and Rand are set for each member
	async     bool   // durability `async`: an entry counts as soon as it is written, and a crash loses nothing written
	strangers bool   // no member knows that the others are of this implementation
	ids       []ID
	nodes     map[ID]*node

	now    Instant
	seq    int
	events eventQueue
	links  map[[2]ID]*link

	// fate of a message, asked when it is sent; nil = it arrives after a millisecond.
	fate func(m *Message) fate
	// syncTime is how long a sync takes; nil = it is done at once. A negative time leaves it to the test (finishSync).
	syncTime func(n *node) Instant
	// outside takes messages for members that this group does not run.
	outside map[ID]func(m *Message)
	sent    func(m *Message)                 // sees every message that is sent
	seen    func(n *node, e Event)           // sees every event
	sends   map[MsgType]int                  // messages sent, by type
	failed  bool                             // an invariant was violated
	why     func(format string, args ...any) // reports a violation; nil = t.Fatalf

	facts facts
	wiped int // members that lost everything, votes and all
}

// facts is what has happened in the group as a whole, whoever forgot it since.
type facts struct {
	leaders   map[Term]ID
	votes     map[ballot]ID
	entries   map[place]origin
	committed []entry
	proposed  uint64
}

type ballot struct {
	node ID
	term Term
}

type place struct {
	index Index
	term  Term
}

type origin struct {
	id   uint64
	prev Term // of the entry before
}

// entry stands for an entry and its content: id is different for each that was ever proposed.
type entry struct {
	term Term
	id   uint64
}

// fate says what the network does with a message.
type fate struct {
	lost  bool
	delay Instant
	copy  Instant // a second copy arrives after this time; 0 = none
	early bool    // may overtake earlier ones of its link
}

type link struct {
	cut    bool
	hold   bool
	held   []Message
	lastAt Instant
}

// disk is what a member finds again after a crash.
type disk struct {
	term    Term
	vote    ID
	first   Index
	prev    Term // term of entry first-1
	entries []entry
	synced  Index // entries up to here survive a crash
	commit  Index
	abstain Index
	behind  bool // see Initial
	new     bool
	full    bool
	gen     int // counts cuts and resets: a sync that began before one says nothing about what was written since
}

func (d *disk) last() Index { return d.first + Index(len(d.entries)) - 1 }

func (d *disk) at(i Index) entry { return d.entries[i-d.first] }

func (d *disk) has(i Index) bool { return i >= d.first && i <= d.last() }

func (d *disk) termOf(i Index) Term {
	if d.has(i) {
		return d.at(i).term
	}
	return d.prev
}

// payload encodes lo..hi as the core's opaque bytes.
func (d *disk) payload(lo, hi Index) Payload {
	b := make([]byte, 0, 16*(hi-lo+1))
	for i := lo; i <= hi; i++ {
		b = binary.BigEndian.AppendUint64(b, uint64(d.at(i).term))
		b = binary.BigEndian.AppendUint64(b, d.at(i).id)
	}
	return Payload{b}
}

func unpack(p Payload) (out []entry) {
	for _, b := range p {
		for ; len(b) > 0; b = b[16:] {
			out = append(out, entry{Term(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])})
		}
	}
	return out
}

// node is one member: its disk, and, while it runs, its core and what package replica keeps beside it.
type node struct {
	g    *group
	id   ID
	disk disk
	core *Core       // nil while it is down
	java *javaMember // in place of core: a member of the original
	life int         // counts starts

	rate    float64 // its clock runs this fast
	paused  bool    // takes nothing in until resumed
	waiting []func()
	timer   int // generation: only the latest timer counts

	startTerm Term
	ref       uint64
	open      map[uint64]question
	accepted  [][]entry // proposals that have no place on the disk yet
	syncing   bool
	written   Index // last entry a sync was started for
	wasTerm   Term
	led       Term   // the last term it led
	broken    bool   // DiskFailed was reported
	granted   ballot // the last term in which it acknowledged entries, and to whom
	grantedTo Index  // up to where, in that term
	reads     map[uint64]Index
	transfers map[uint64]func(Status)
	confirmed []Confirm
}

// question is a request that a member has not answered yet.
type question struct {
	msg  Message
	life int // of the member that asked
	at   Instant
}

type occurrence struct {
	at  Instant
	seq int
	do  func()
}

type eventQueue []occurrence

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(occurrence)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = occurrence{}
	*q = old[:len(old)-1]
	return e
}

const ms = Instant(time.Millisecond)

// defaults are the values of a group that is configured as the original is.
func defaults() Config {
	return Config{
		Heartbeat: 2 * time.Second, HeartbeatLeak: 3, MinVoteInterval: 300 * time.Millisecond, MaxVoteInterval: time.Second,
		MinTakeInterval: 30 * time.Millisecond, MaxTakeInterval: 100 * time.Millisecond, VoteWait: 2 * time.Second,
		PushTimeout: time.Second, CommitIdle: 20 * time.Millisecond, TransferWait: time.Second, TransferLag: 1000,
		MaxInflight: 1000, MaxEntries: 2048, MaxPending: 10_000,
	}
}

func newGroup(t testing.TB, config Config, ids ...ID) *group {
	config.Members = ids
	g := &group{t: t, config: config, ids: ids, nodes: map[ID]*node{}, links: map[[2]ID]*link{}, outside: map[ID]func(*Message){}, sends: map[MsgType]int{}}
	g.facts = facts{leaders: map[Term]ID{}, votes: map[ballot]ID{}, entries: map[place]origin{}}
	for _, a := range ids {
		g.nodes[a] = &node{g: g, id: a, rate: 1, disk: disk{prev: -1, synced: -1, commit: -1, abstain: -1}}
		for _, b := range ids {
			g.links[[2]ID{a, b}] = &link{}
		}
	}
	return g
}

// violate reports a broken invariant.
func (g *group) violate(format string, args ...any) {
	g.failed = true
	if g.why != nil {
		g.why(format, args...)
		return
	}
	g.t.Helper()
	g.t.Fatalf(format, args...)
}

func (g *group) after(d Instant, do func()) {
	g.seq++
	heap.Push(&g.events, occurrence{g.now + d, g.seq, do})
}

// run does what is due up to the instant until.
func (g *group) run(until Instant) {
	for len(g.events) > 0 && g.events[0].at <= until && !g.failed {
		e := heap.Pop(&g.events).(occurrence)
		g.now = max(g.now, e.at)
		e.do()
	}
	g.now = max(g.now, until)
}

// clock is the member's own time.
func (n *node) clock() Instant { return Instant(float64(n.g.now) * n.rate) }

// start starts a member with what its disk holds.
func (n *node) start() {
	d := &n.disk
	if n.java != nil {
		return
	}
	config := n.g.config
	config.ID = n.id
	if config.Rand == nil { // members differ, runs do not
		k := int64(slices.Index(n.g.ids, n.id))
		config.Rand = func(max int64) int64 { return max * k / int64(len(n.g.ids)) }
	}
	d.commit = min(d.commit, d.last()) // R7
	in := Initial{Term: d.term, Vote: d.vote, First: d.first, Last: d.last(), PrevTerm: d.prev, Commit: d.commit, Abstain: d.abstain, Behind: d.behind, New: d.new}
	for i, e := range d.entries {
		if i == 0 || d.entries[i-1].term != e.term {
			in.Runs = append(in.Runs, Run{Term: e.term, First: d.first + Index(i)})
		}
	}
	n.life++
	n.core, n.startTerm, n.wasTerm = New(config, in, n.clock()), d.term, d.term
	n.led = -1
	n.open, n.reads, n.transfers = map[uint64]question{}, map[uint64]Index{}, map[uint64]func(Status){}
	n.accepted, n.syncing, n.paused, n.waiting, n.broken, n.written = nil, false, false, nil, false, d.last()
	for _, id := range n.g.ids {
		if m := n.g.nodes[id]; id != n.id && m != nil {
			n.core.Connected(id, m.ours())
		}
	}
	n.turn(func() {})
}

// ours is what the others are told of a member.
func (n *node) ours() bool { return n.java == nil && !n.g.strangers }

// crash stops a member. Of what was not synced, entries up to keep survive.
func (n *node) crash(keep Index) {
	d := &n.disk
	if n.core == nil {
		return
	}
	if n.g.async {
		keep = d.last()
	}
	keep = min(max(keep, d.synced, d.first-1), d.last())
	n.grantedTo = min(n.grantedTo, keep)
	d.entries = d.entries[:keep-d.first+1]
	d.synced = keep
	d.gen++
	n.core = nil
	n.life++
	n.timer++
}

// act runs do as an input of this member, or later if it is paused.
func (n *node) act(do func()) {
	switch {
	case n.core == nil:
	case n.paused:
		n.waiting = append(n.waiting, do)
	default:
		n.turn(do)
	}
}

func (n *node) pause() { n.paused = true }

func (n *node) resume() {
	n.paused = false
	work := n.waiting
	n.waiting = nil
	if n.core != nil {
		n.turn(func() {
			for _, do := range work {
				do()
			}
		})
	}
}

// turn is replica.Turn: inputs, then what the core asks for, in its order.
func (n *node) turn(input func()) {
	c := n.core
	c.Full(n.disk.full)
	input()
	if n.clock() >= c.Deadline() {
		c.Tick(n.clock())
	}
	n.perform()
	if n.g.failed {
		return
	}
	n.check()
	d := c.Deadline()
	if d <= n.clock() {
		n.g.violate("%s: deadline %d is not after now, %d: a busy loop", n.id, d, n.clock())
	}
	n.timer++
	timer, wake := n.timer, Instant(float64(d)/n.rate)+1
	if d >= 1<<62 {
		return
	}
	n.g.after(max(1, wake-n.g.now), func() {
		if n.timer == timer {
			n.act(func() {})
		}
	})
}

func (n *node) perform() {
	c, d := n.core, &n.disk
	w := c.Writes()
	if w.SaveTerm {
		if w.Term < d.term {
			n.g.violate("%s: R6: stored term falls from %d to %d", n.id, d.term, w.Term)
		}
		d.term, d.vote = w.Term, w.Vote
	}
	lost := Index(-1)
	for i := range w.Effects {
		e := &w.Effects[i]
		switch e.Kind {
		case EffectCut:
			n.checkCut(e.Last)
			if lost < 0 || lost > e.Last {
				lost = -1
				d.entries = d.entries[:e.Last-d.first+1]
				d.synced = min(d.synced, e.Last)
				d.gen++
			}
		case EffectReset:
			n.checkCut(e.First - 1)
			*d = disk{term: d.term, vote: d.vote, first: e.First, prev: e.Term, synced: e.First - 1, commit: d.commit, abstain: d.abstain, behind: d.behind, new: d.new, full: d.full, gen: d.gen + 1}
			lost = -1
		default:
			var add []entry
			switch e.Kind {
			case EffectAppend:
				add = unpack(e.Payload)
				add = add[len(add)-int(e.Last-e.First+1):]
			case EffectPropose:
				add, n.accepted = n.accepted[0], n.accepted[1:]
				for k := range add {
					add[k].term = e.Term
				}
			case EffectNoop:
				add = []entry{{e.Term, n.g.newID()}}
			}
			if len(add) != int(e.Last-e.First+1) {
				n.g.violate("%s: %d entries for an effect of %d..%d", n.id, len(add), e.First, e.Last)
				return
			}
			if lost < 0 && d.full {
				lost = e.First
			}
			if lost < 0 {
				n.append(e.First, add)
			}
		}
	}
	if lost >= 0 {
		c.Unwritten(lost)
	}
	if n.g.async {
		d.synced = d.last()
		c.Durable(d.synced, d.termOf(d.synced))
	}
	r := c.TakeReady(n.clock())
	if r.Commit < d.commit {
		n.g.violate("%s: R7: commit index falls from %d to %d", n.id, d.commit, r.Commit)
	}
	n.checkCommit(d.commit, r.Commit)
	d.commit = max(d.commit, r.Commit)
	if c.Joined() {
		d.abstain, d.behind, d.new = -1, false, false
	}
	for i := range r.Messages {
		m := r.Messages[i]
		n.checkMessage(&m)
		n.dispatch(m)
	}
	for _, k := range r.Confirms {
		if floor, ok := n.reads[k.Ref]; !ok {
			n.g.violate("%s: R9: read %d confirmed twice", n.id, k.Ref)
		} else if k.Status == StatusOK && k.Index < floor {
			n.g.violate("%s: R4: a read is confirmed at %d, though %d had been acknowledged", n.id, k.Index, floor)
		}
		delete(n.reads, k.Ref)
		n.confirmed = append(n.confirmed, k)
	}
	if n.g.seen != nil {
		for _, e := range r.Events {
			n.g.seen(n, e)
		}
	}
	c.Done()
	n.startSync()
}

func (g *group) newID() uint64 {
	g.facts.proposed++
	return g.facts.proposed
}

// append stores entries behind the last and notes what they are: the same index and term must always be the same entry with
// the same one before it (R3).
func (n *node) append(first Index, add []entry) {
	d := &n.disk
	if first != d.last()+1 {
		n.g.violate("%s: entry %d is stored behind entry %d", n.id, first, d.last())
		return
	}
	for _, e := range add {
		i := d.last() + 1
		o := origin{e.id, max(d.termOf(i-1), UnknownTerm)}
		was, ok := n.g.facts.entries[place{i, e.term}]
		if !ok {
			n.g.facts.entries[place{i, e.term}] = o
		} else if was.id != o.id || was.prev != o.prev && o.prev != UnknownTerm && was.prev != UnknownTerm {
			n.g.violate("%s: R3: entry %d of term %d is %v, was %v", n.id, i, e.term, o, was)
		}
		d.entries = append(d.entries, e)
	}
}

func (n *node) startSync() {
	d := &n.disk
	if n.g.async || n.syncing || n.broken || d.synced == d.last() {
		return
	}
	if n.g.syncTime == nil {
		n.finishSync(d.last(), d.termOf(d.last()), d.gen)
		return
	}
	wait := n.g.syncTime(n)
	if wait < 0 {
		return
	}
	n.syncing = true
	life, last, term, gen := n.life, d.last(), d.termOf(d.last()), d.gen
	n.g.after(wait, func() {
		if n.life == life {
			n.syncing = false
			n.finishSync(last, term, gen)
		}
	})
}

// finishSync ends a sync that began when last, of term, was the last entry.
func (n *node) finishSync(last Index, term Term, gen int) {
	if n.broken {
		return
	}
	if gen == n.disk.gen {
		n.disk.synced = max(n.disk.synced, last)
	}
	n.act(func() {
		if gen == n.disk.gen || !n.core.Matches(last, term) { // the latter must change nothing
			n.core.Durable(last, term)
		}
	})
}

// dispatch sends what the core wants sent, changed as the dialect of the wire changes it.
func (n *node) dispatch(m Message) {
	g := n.g
	if m.Type.IsAnswer() {
		q, ok := n.open[m.Ref]
		if !ok {
			g.violate("%s: R9: %s with ref %d answers no open request", n.id, m.Type, m.Ref)
			return
		}
		delete(n.open, m.Ref)
		n.noteGrant(&q.msg, &m)
		if done := n.transfers[m.Ref]; done != nil {
			done(m.Status)
			return
		}
		a := overWire(g.config.Compat, &q.msg, &m)
		g.send(a, q.life)
		return
	}
	if m.Type == MsgAppend || g.config.Compat == Compat03 && (m.Type == MsgCompare || m.Type == MsgTruncate) {
		lo, hi := m.First, m.Last
		if m.Type != MsgAppend {
			lo, hi = m.Index, m.Index
		}
		if !n.disk.has(lo) || !n.disk.has(hi) {
			g.violate("%s: %s of %d..%d, which is not written", n.id, m.Type, lo, hi)
			return
		}
		m.Payload = n.disk.payload(lo, hi)
	}
	if g.config.Compat != CompatGo && (m.Type == MsgAppend || g.config.Compat == Compat04 && m.Type == MsgTruncate) {
		m.LogTerm = UnknownTerm // what the original's messages do not carry
	}
	g.send(m, 0)
}

// overWire gives the answer as the member that asked reads it: its request's own fields, and no more than the dialect carries.
func overWire(compat Compat, q, a *Message) Message {
	m := *a
	m.Ref = 0
	m.From, m.To, m.Asked, m.Index, m.First, m.Last = q.To, q.From, q.Asked, q.Index, q.First, q.Last
	if q.Type.IsPush() && compat != CompatGo && a.Status != StatusExpiredTerm || q.Type == MsgHeartbeat && a.Status == StatusOK {
		m.Term = q.Term
	}
	if compat == Compat03 {
		m.XTerm, m.XIndex = -1, -1
	}
	return m
}

// send gives a message to the network. life is that of the member an answer is for; 0 for a request.
func (g *group) send(m Message, life int) {
	g.sends[m.Type]++
	if g.sent != nil {
		g.sent(&m)
	}
	if take := g.outside[m.To]; take != nil {
		take(&m)
		return
	}
	l := g.links[[2]ID{m.From, m.To}]
	f := fate{delay: ms}
	if g.fate != nil {
		f = g.fate(&m)
	}
	switch {
	case l.hold:
		l.held = append(l.held, m)
		return
	case l.cut, f.lost:
		return
	}
	g.carry(l, m, f.delay, f.early, life)
	if f.copy > 0 {
		g.carry(l, m, f.copy, true, life)
	}
}

func (g *group) carry(l *link, m Message, delay Instant, early bool, life int) {
	at := g.now + delay
	if !early {
		at = max(at, l.lastAt)
		l.lastAt = at
	}
	to, asker := g.nodes[m.To], 0
	if from := g.nodes[m.From]; from != nil {
		asker = from.life
	}
	if life == 0 {
		life = to.life
	}
	g.after(at-g.now, func() {
		if to.life == life { // else the connection broke
			to.deliver(m, asker)
		}
	})
}

// deliver gives the core one message; asker is the life in which a request was sent.
func (n *node) deliver(m Message, asker int) {
	if n.java != nil && !m.Type.IsAnswer() {
		n.java.step(&m)
	} else if n.java != nil {
		n.java.told(&m)
	}
	n.act(func() {
		if !m.Type.IsAnswer() {
			n.ref++
			m.Ref = n.ref
			n.open[n.ref] = question{m, asker, n.g.now}
		}
		n.core.Step(n.clock(), &m)
	})
}

// propose hands k entries to this member's core.
func (n *node) propose(k int) (Index, Status) {
	first, s := Index(-1), StatusNotReady
	if n.java != nil {
		return n.java.propose(k)
	}
	n.act(func() {
		if first, s = n.core.Propose(k); s == StatusOK {
			batch := make([]entry, k)
			for i := range batch {
				batch[i].id = n.g.newID()
			}
			n.accepted = append(n.accepted, batch)
		}
	})
	return first, s
}

// read asks for a confirmed index.
func (n *node) read() {
	n.act(func() {
		n.ref++
		n.reads[n.ref] = Index(len(n.g.facts.committed)) - 1
		n.core.ReadIndex(n.ref)
	})
}

// transfer is a client's LEADERSHIP_TRANSFER to this member.
func (n *node) transfer(to ID, done func(Status)) {
	n.act(func() {
		n.ref++
		m := Message{Type: MsgTransfer, Transferer: n.id, Transferee: to, Term: -1, Ref: n.ref}
		n.open[n.ref], n.transfers[n.ref] = question{msg: m, at: n.g.now}, done
		n.core.Step(n.clock(), &m)
	})
}

// expire deletes entries before first, as retention does: only what is committed, never the last.
func (n *node) expire(first Index) {
	n.act(func() {
		d := &n.disk
		if first = min(first, d.commit+1, d.last(), d.synced+1); first <= d.first {
			return
		}
		d.prev = d.at(first - 1).term
		d.entries = d.entries[first-d.first:]
		d.first = first
		n.core.Expired(first)
	})
}

// breakDisk is a failed sync: nothing is stored from now on, and what was not synced may or may not be there.
func (n *node) breakDisk() {
	n.act(func() {
		n.broken = true
		n.core.DiskFailed(n.clock())
	})
}

// The checks. Each names the invariant it is about.

// noteGrant remembers how far this member's log is acknowledged to the leader of a term.
func (n *node) noteGrant(q, a *Message) {
	if a.Status != StatusOK || q.Type != MsgAppend && q.Type != MsgCompare && q.Type != MsgTruncate && q.Type != MsgReset {
		return
	}
	if by := (ballot{q.Leader, q.Term}); n.granted != by {
		n.granted, n.grantedTo = by, -1
	}
	to := q.Index
	if q.Type == MsgAppend {
		to = q.Last
	}
	n.grantedTo = max(n.grantedTo, to)
}

func (n *node) checkCut(last Index) {
	if by := (ballot{n.core.led, n.core.term}); n.granted == by && last < n.grantedTo {
		n.g.violate("%s: R4: entries behind %d are cut, acknowledged to %s in term %d are those up to %d", n.id, last, by.node, by.term, n.grantedTo)
	}
	if last < n.disk.commit {
		n.g.violate("%s: R5: entries behind %d are cut, commit index is %d", n.id, last, n.disk.commit)
	}
	if n.core.role == Leader {
		n.g.violate("%s: R5: a leader cuts its log", n.id)
	}
}

func (n *node) checkCommit(from, to Index) {
	g, d := n.g, &n.disk
	if to > d.last() {
		n.g.violate("%s: R7: commit index %d is behind the end %d", n.id, to, d.last())
		return
	}
	if to >= Index(len(g.facts.committed)) && d.has(to) {
		n.checkQuorum(to)
	}
	n.noteCommit(from, to)
}

// noteCommit notes what is committed, and checks it against what was (R2).
func (n *node) noteCommit(from, to Index) {
	g, d := n.g, &n.disk
	for len(g.outside) > 0 && Index(len(g.facts.committed)) < min(d.first, to+1) {
		g.facts.committed = append(g.facts.committed, entry{}) // by members that this group does not run
	}
	for i := max(from+1, d.first); i <= to; i++ {
		if k := Index(len(g.facts.committed)); i > k {
			g.violate("%s: entry %d is committed before entry %d", n.id, i, k)
			return
		} else if i == k {
			g.facts.committed = append(g.facts.committed, d.at(i))
		} else if g.facts.committed[i] != d.at(i) {
			g.violate("%s: R2: entry %d is committed as %v, was %v", n.id, i, d.at(i), g.facts.committed[i])
			return
		}
	}
}

// checkQuorum checks a commit index that nobody had reached before.
func (n *node) checkQuorum(i Index) {
	e, have := n.disk.at(i), 0
	for _, id := range n.g.ids {
		if m := n.g.nodes[id]; m == nil || m.disk.has(i) && m.disk.synced >= i && m.disk.at(i) == e || m.disk.abstain >= i || m.disk.behind {
			have++ // so has one that lost it and abstains; a member this group does not run is believed
		}
	}
	led := n.led // a leader may have committed it and stepped down in one batch
	if n.core.role == Leader {
		led = n.core.term
	}
	switch {
	case n.core.role != Leader && len(n.g.outside) > 0: // of a leader that this group does not run
	case led < e.term:
		n.g.violate("%s: R4: entry %d of term %d is committed first by a %s", n.id, i, e.term, n.core.role)
	case have <= len(n.g.ids)/2:
		n.g.violate("%s: R4: entry %d is committed, but durable on %d of %d members only", n.id, i, have, len(n.g.ids))
	case e.term != led && have+n.g.wiped < len(n.g.ids):
		n.g.violate("%s: R4: entry %d of term %d is committed in term %d by counting", n.id, i, e.term, led)
	}
}

// says tells whether a member may call t the term of its last entry, where its disk says last. What a disk does not know, a leader may have told.
func says(last, t Term) bool {
	return t == last.Ceiling() || last == UnknownTerm || last < UnknownTerm && t >= 0 && t < last.Ceiling()
}

func (n *node) checkMessage(m *Message) {
	d := &n.disk
	vote := func(who ID) {
		b := ballot{n.id, m.Term}
		if was, ok := n.g.facts.votes[b]; ok && was != who {
			n.g.violate("%s: R1: votes for %s in term %d, and had voted for %s", n.id, who, m.Term, was)
		}
		n.g.facts.votes[b] = who
		if d.term < m.Term || d.term == m.Term && d.vote != who { // a later term of the same batch is as good
			n.g.violate("%s: R6: a vote for %s in term %d leaves, stored are %q and %d", n.id, who, m.Term, d.vote, d.term)
		}
	}
	switch m.Type {
	case MsgVote, MsgPreVote:
		if asks := n.core.role == Candidate && n.core.campaign.phase == asking; asks && (m.Index != d.last() || !says(d.termOf(d.last()), m.LogTerm)) {
			n.g.violate("%s: R6: a candidate says its last entry is %d/%d, it is %d/%d", n.id, m.Index, m.LogTerm, d.last(), d.termOf(d.last()))
		}
		if m.Type == MsgVote {
			vote(n.id)
			if m.Term <= n.startTerm {
				n.g.violate("%s: R8: campaigns in term %d after a start in term %d", n.id, m.Term, n.startTerm)
			}
		}
	case MsgVoteAnswer:
		if m.Vote == VoteAccept {
			vote(n.open[m.Ref].msg.Leader)
		}
	}
	if m.Term > d.term && m.Type != MsgPreVote && m.Type != MsgPreVoteAnswer && !n.broken {
		n.g.violate("%s: R6: %s of term %d leaves, stored is %d", n.id, m.Type, m.Term, d.term)
	}
}

// check compares the core with the disk, and looks at who leads.
func (n *node) check() {
	c, d := n.core, &n.disk
	if c.term < n.wasTerm {
		n.g.violate("%s: R1: term falls from %d to %d", n.id, n.wasTerm, c.term)
	}
	n.wasTerm = c.term
	if c.role == Leader {
		if was, ok := n.g.facts.leaders[c.term]; ok && was != n.id {
			n.g.violate("R1: %s and %s lead term %d", was, n.id, c.term)
		}
		n.g.facts.leaders[c.term], n.led = n.id, c.term
	}
	if n.broken {
		return
	}
	if c.log.first != d.first || c.log.last != d.last() || c.commit > c.log.last || c.durable > d.synced {
		n.g.violate("%s: R7: core has %d..%d, commit %d, durable %d; disk %d..%d, synced %d", n.id, c.log.first, c.log.last, c.commit, c.durable, d.first, d.last(), d.synced)
		return
	}
	k := 0
	for i, e := range d.entries {
		if i == 0 || d.entries[i-1].term != e.term {
			if k >= len(c.log.runs) || c.log.runs[k] != (Run{e.term, d.first + Index(i)}) {
				n.g.violate("%s: runs are %v, disk differs at %d", n.id, c.log.runs, d.first+Index(i))
				return
			}
			k++
		}
	}
	if k != len(c.log.runs) {
		n.g.violate("%s: runs are %v, disk has %d", n.id, c.log.runs, k)
	}
}

// leader gives the member that leads the highest term, if any.
func (g *group) leader() *node {
	var best *node
	for _, id := range g.ids {
		n := g.nodes[id]
		leads := n != nil && (n.core != nil && n.core.role == Leader || n.java != nil && n.java.role == Leader)
		if leads && (best == nil || n.disk.term > best.disk.term) {
			best = n
		}
	}
	return best
}
