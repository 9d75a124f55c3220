// Package sim runs whole groups of real members, loop and core and store, in one goroutine on a virtual clock, network and disks. A
// seed draws the group, its settings, its clients and a schedule of faults; after each turn of each member everything that has happened
// is held against the invariants of docs/invariants.md. The same seed gives the same life, event by event. Start at Run.
//
// A life has three phases. In the storm, faults happen and nothing may be lost, but what power cuts may take in mode async. Then one majority is healed for good while
// the rest stays broken, and a write must be acknowledged within ten seconds. Then all is healed, and all members must come to hold the same
// bytes, with everything in them that was ever acknowledged.
package sim

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"dledger/internal/raft"
)

// Case names one life.
type Case struct {
	Seed  uint64
	Steps int // events of the storm
	// Faults are the numbers of those faults of the schedule that happen; nil = all.
	Faults []int
	// Clients is how many of the clients there are; 0 = all.
	Clients int
	// Trace gets every event as a line; nil = nobody does.
	Trace io.Writer

	forbidden func(*world) string // an oracle of a test, asked after each event of the storm: what is wrong; nil = none
}

// Result is what came of a life.
type Result struct {
	Case   Case
	Setup  string  // what the seed drew
	Faults []Fault // those that happened, in order
	Err    error   // what was violated, and when; nil = nothing
	Stats  Stats
	Tail   []string // the last lines of the trace, if it was traced
	Hash   uint64   // of the whole trace, if it was traced
}

// Stats counts what happened.
type Stats struct {
	Steps, Turns      int
	Time              time.Duration // virtual
	Committed, Acked  int           // entries; proposals
	Undecided, Reads  int           // proposals; confirmed reads
	Leaders, Restarts int
	Lost              int // committed entries that power cuts took from every disk, in mode async

	Struck   Struck // faults that took effect
	Repaired int    // repairs of damaged entries with what another member has
	Expired  int    // times that retention deleted something
	Resets   int    // logs that were started anew where their leader's begins
	Partly   int    // 1 where the group recovered though some of its members were still down, cut off or ill
}

// Add counts what another life has counted.
func (s *Stats) Add(o *Stats) {
	s.Steps += o.Steps
	s.Turns += o.Turns
	s.Time += o.Time
	s.Committed += o.Committed
	s.Acked += o.Acked
	s.Undecided += o.Undecided
	s.Reads += o.Reads
	s.Leaders += o.Leaders
	s.Restarts += o.Restarts
	s.Lost += o.Lost
	s.Struck.Add(&o.Struck)
	s.Repaired += o.Repaired
	s.Expired += o.Expired
	s.Resets += o.Resets
	s.Partly += o.Partly
}

// Run lives the life of a seed with a storm of so many events.
func Run(seed uint64, steps int) Result { return Case{Seed: seed, Steps: steps}.Run() }

// world is one life.
type world struct {
	c       Case
	setup   *setup
	now     raft.Instant
	queue   queue
	chance  *rand.Rand // of the network
	stray   *rand.Rand // of stragglers
	nodes   []*node
	links   []*link // from each member to each other, in order
	clients []*client
	check   *checker
	faults  []Fault
	err     error

	calm      bool   // the storm is over
	trusted   []bool // in the calm: who is healed
	quiet     bool   // clients make no further requests
	closing   bool   // members are stopped for good
	written   int    // proposals made in the calm and acknowledged
	confirmed int
	gone      int // entries that power cuts have taken from every disk
	partly    int // as in Stats, like what follows
	repaired  int
	expired   int
	resets    int
	struck    Struck
	steps     int
	turns     int

	lines []string // the last lines of the trace
	hash  interface {
		io.Writer
		Sum64() uint64
	}
}

// Run lives the life. It does not panic: what panics inside is a violation.
func (c Case) Run() (res Result) {
	w := &world{c: c, setup: draw(c.Seed), chance: stream(c.Seed, forNetwork, 0), stray: stream(c.Seed, forStragglers, 1)}
	if c.Trace != nil {
		w.hash = fnv.New64a()
	}
	w.check = newChecker(w)
	defer func() {
		if p := recover(); p != nil {
			w.violate("panic: %v\n%s", p, debug.Stack())
		}
		res = w.result()
	}()
	w.say(nil, "%s", w.setup)
	w.begin()
	w.storm()
	if !w.failed() {
		w.heal()
	}
	if !w.failed() {
		w.finish()
	}
	return res
}

func (w *world) result() Result {
	r := Result{Case: w.c, Setup: w.setup.String(), Faults: w.faults, Err: w.err, Tail: w.lines,
		Stats: Stats{Steps: w.steps, Turns: w.turns, Time: time.Duration(w.now), Committed: len(w.check.committed), Reads: w.confirmed, Leaders: len(w.check.leaders), Lost: w.gone,
			Struck: w.struck, Repaired: w.repaired, Expired: w.expired, Resets: w.resets, Partly: w.partly}}
	for _, o := range w.check.ops {
		switch o.state {
		case acknowledged:
			r.Stats.Acked++
		case undecided:
			r.Stats.Undecided++
		}
	}
	for _, n := range w.nodes {
		r.Stats.Restarts += n.life - 1
	}
	if w.hash != nil {
		r.Hash = w.hash.Sum64()
	}
	return r
}

// begin makes members, links and clients and starts them.
func (w *world) begin() {
	for i := range w.setup.ids {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			w.links = append(w.links, &link{from: a, to: b})
		}
	}
	count := w.setup.clients
	if w.c.Clients > 0 {
		count = min(count, w.c.Clients)
	}
	for i := range count {
		c := &client{w: w, no: i, chance: stream(w.c.Seed, forClient, uint64(i))}
		w.clients = append(w.clients, c)
		w.after(c.think(), c.act)
	}
	for _, n := range w.nodes {
		n.startIn(raft.Instant(n.chance.Int64N(int64(50 * time.Millisecond))))
	}
	w.schedule(0)
	w.auditing()
}

// link gives the way from a to b. Those from a member to itself are never used.
func (w *world) link(a, b raft.ID) *link {
	return w.links[w.byID(a).no*len(w.nodes)+w.byID(b).no]
}

func (w *world) byID(id raft.ID) *node { return w.nodes[id[1]-'0'] }

// leader is the member that leads the highest term, as it believes.
func (w *world) leader() (best *node) {
	for _, n := range w.nodes {
		if n.up && n.loop.View().Role == raft.Leader && (best == nil || n.loop.View().Term > best.loop.View().Term) {
			best = n
		}
	}
	return best
}

// wanted tells whether fault no happens in this case.
func (w *world) wanted(no int) bool {
	return w.c.Faults == nil || slices.Contains(w.c.Faults, no)
}

func (w *world) auditing() {
	w.check.audit()
	w.after(500*ms, w.auditing)
}

func (w *world) after(d raft.Instant, do func()) { w.queue.add(w.now+d, do) }

// step lets the next thing happen: a turn, or what the queue has.
func (w *world) step() {
	var next *node
	at := w.queue.next()
	for _, n := range w.nodes {
		if t := n.runnable(); t < at {
			at, next = t, n
		}
	}
	w.now = max(w.now, at)
	w.steps++
	if next != nil {
		w.turns++
		next.turn()
		return
	}
	w.queue.take()()
}

// until lets things happen until done, or until limit has passed; it tells whether done.
func (w *world) until(limit raft.Instant, done func() bool) bool {
	limit += w.now
	for !done() {
		if w.now > limit || w.failed() {
			return false
		}
		w.step()
	}
	return true
}

func (w *world) storm() {
	for w.steps < w.c.Steps && !w.failed() {
		w.step()
		if f := w.c.forbidden; f != nil {
			if wrong := f(w); wrong != "" {
				w.violate("%s", wrong)
			}
		}
	}
}

// recovery is how long a healed majority may take to acknowledge a write.
const recovery = 10_000 * ms

// heal makes one majority whole for good, and leaves the rest as broken as it is.
func (w *world) heal() {
	r := stream(w.c.Seed, forCalm, 0)
	order := r.Perm(len(w.nodes))
	// Who lost its disk, or its power in mode async, or has lost its tail to damage, does not vote until it has caught up.
	lame := func(i int) int {
		if n := w.nodes[i]; n.wanting() || w.setup.async && !n.up && n.unpowered {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b int) int { return lame(a) - lame(b) })
	count := len(w.nodes)/2 + 1
	if lame(order[count-1]) > 0 {
		count = len(order)
	}
	w.calm = true
	w.trusted = make([]bool, len(w.nodes))
	for _, i := range order[:count] {
		w.trusted[i] = true
	}
	w.say(nil, "the storm is over; healed for good: %v", w.trusted)
	w.mend()
	for _, n := range w.nodes {
		if w.trusted[n.no] {
			continue
		}
		in, out := r.IntN(3) > 0, r.IntN(3) > 0 // it is cut off, or hears without being heard, or the reverse, or is only ill itself
		for _, l := range w.links {
			if l.to == n || l.from == n {
				l.cut, l.cutBy, l.noise, l.late = l.to == n && in || l.from == n && out, nil, noise{}, 0
			}
		}
	}
	w.written = 0
	if !w.until(recovery, func() bool { return w.written > 0 }) && !w.failed() {
		w.violate("a healed majority %v has acknowledged no write for %v\n%s", w.trusted, time.Duration(recovery), w.describe())
	}
	if !w.failed() && slices.ContainsFunc(w.nodes, w.ill) {
		w.partly = 1
	}
}

// ill tells whether a member that was not healed is of no use to the others, or of little.
func (w *world) ill(n *node) bool {
	return !w.trusted[n.no] && (!n.up || n.failing || n.paused > 0 || n.hangTill > w.now || n.wanting() ||
		slices.ContainsFunc(w.links, func(l *link) bool { return l.cut && (l.from == n || l.to == n) }))
}

// mend repairs the trusted members and the links between them.
func (w *world) mend() {
	for _, n := range w.nodes {
		if !w.trusted[n.no] {
			continue
		}
		n.disk.limit(-1)
		n.disk.looksUsed(-1)
		n.disk.fail, n.disk.cutIn = "", 0
		n.slowTill, n.hangTill, n.paused = 0, min(n.hangTill, w.now), 0
		n.trouble(w.now)
		if n.up && n.failing {
			n.down(nil)
		}
		n.start()
	}
	for _, l := range w.links {
		if w.trusted[l.from.no] && w.trusted[l.to.no] && l.from != l.to {
			l.cut, l.noise, l.late = false, noise{}, 0
			w.greet(l)
		}
	}
}

// finish heals everybody, waits until all have the same, and looks at what they have.
func (w *world) finish() {
	for i := range w.trusted {
		w.trusted[i] = true
	}
	w.say(nil, "everybody is healed")
	w.mend()
	w.written = 0
	ok := w.until(recovery, func() bool { return w.written > 0 })
	w.quiet = true
	if ok {
		ok = w.until(2*recovery, w.agreed)
	}
	if w.failed() {
		return
	}
	if !ok {
		w.violate("members that are all healed do not come to hold the same\n%s", w.describe())
		return
	}
	turns := w.turns
	w.until(1000*ms, func() bool { return false })
	if most := 1500 * len(w.nodes); w.turns-turns > most {
		w.violate("busy loop: an idle group makes %d turns in a second", w.turns-turns)
	}
	for _, n := range w.nodes {
		if !n.up || w.failed() {
			continue
		}
		if err := w.check.whole(n); err != nil {
			w.violate("%s: %v", n.id, err)
		}
		if err := w.check.alike(w.nodes[0], n); err != nil {
			w.violate("files differ: %v", err)
		}
	}
	if w.failed() {
		return
	}
	w.closing = true
	for _, n := range w.nodes {
		n.loop.Stop()
		n.poke()
	}
	w.until(1000*ms, func() bool { return !slices.ContainsFunc(w.nodes, func(n *node) bool { return n.up }) })
}

// agreed tells whether everything that any member has is committed on all of them.
func (w *world) agreed() bool {
	last := raft.Index(len(w.check.committed)) - 1
	for _, n := range w.nodes {
		if !n.up || n.loop.Commit() != last || n.flushed.index != last || n.rotten {
			return false
		}
	}
	return true
}

func (w *world) failed() bool { return w.err != nil }

// violate ends the life: what must not be is.
func (w *world) violate(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %v and %d events: %s", time.Duration(w.now), w.steps, fmt.Sprintf(format, args...))
		w.say(nil, "VIOLATION %v", w.err)
	}
}

// describe says what state everybody is in.
func (w *world) describe() string {
	var b strings.Builder
	for _, n := range w.nodes {
		fmt.Fprintf(&b, "%s up=%t failing=%t paused=%d last=%d/%d durable=%d term=%d vote=%q", n.id, n.up, n.failing, n.paused, n.flushed.index, n.flushed.term, n.durable.index, n.savedTerm, n.savedVote)
		if n.up {
			v := n.loop.View()
			fmt.Fprintf(&b, " %s term=%d leader=%q commit=%d err=%v", v.Role, v.Term, v.Leader, n.loop.Commit(), v.Err)
		}
		b.WriteByte('\n')
	}
	for _, l := range w.links {
		if l.from != l.to && (l.cut || !l.known) {
			fmt.Fprintf(&b, "%s to %s: cut=%t known=%t\n", l.from.id, l.to.id, l.cut, l.known)
		}
	}
	return b.String()
}

func (w *world) tracing() bool { return w.hash != nil }

// tailMax is how many lines of a trace are kept.
const tailMax = 200

// say adds a line to the trace.
func (w *world) say(n *node, format string, args ...any) {
	if w.hash == nil {
		return
	}
	who := "--"
	if n != nil {
		who = string(n.id)
	}
	line := fmt.Sprintf("%12.6f %s %s", time.Duration(w.now).Seconds(), who, fmt.Sprintf(format, args...))
	if len(w.lines) == tailMax {
		w.lines = w.lines[:copy(w.lines, w.lines[1:])]
	}
	w.lines = append(w.lines, line)
	for _, out := range []io.Writer{w.hash, w.c.Trace} {
		if _, err := io.WriteString(out, line+"\n"); err != nil {
			panic(fmt.Sprintf("sim: trace: %v", err))
		}
	}
}

// describe gives a message in a line.
func describe(m *raft.Message) string {
	s := fmt.Sprintf("%s from %s term=%d", m.Type, m.From, m.Term)
	if m.Type.IsAnswer() {
		return fmt.Sprintf("%s %v vote=%d index=%d first=%d last=%d end=%d x=%d/%d", s, m.Status, m.Vote, m.Index, m.First, m.Last, m.End, m.XIndex, m.XTerm)
	}
	return fmt.Sprintf("%s index=%d/%d first=%d last=%d commit=%d runs=%v bytes=%d", s, m.Index, m.LogTerm, m.First, m.Last, m.Commit, m.Runs, m.Payload.Size())
}
