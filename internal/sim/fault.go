package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// kind is one way in which things go wrong.
type kind int

const (
	noisyNet kind = iota
	noisyLink
	halves
	isolate
	oneWay
	ring
	bridge
	heal
	hangUp
	clockJump
	hoursPass
	pause
	powerCut
	cutInCall
	kill
	restartAll
	stop
	ioError
	fullDisk
	nearlyFull
	slowDisk
	hangingDisk
	wipe
	transfer
	misplace
	rot
	misdirected
	clockBack
	badSector
	blackout
	stragglers
	kinds
)

var kindNames = [kinds]string{"noisy-net", "noisy-link", "halves", "isolate", "one-way", "ring", "bridge", "heal", "hang-up", "clock-jump", "hours-pass", "pause",
	"power-cut", "cut-in-call", "kill", "restart-all", "stop", "io-error", "full-disk", "nearly-full", "slow-disk", "hanging-disk", "wipe", "transfer", "misplace", "rot", "misdirected", "clock-back", "bad-sector", "blackout", "stragglers"}

func (k kind) String() string { return kindNames[k] }

// Struck counts by kind the faults that took effect. Most do so at once; one that waits for something, as for a message on the link that it spoils or for the next call to
// the disk, is counted when that has come, and never if it does not come.
type Struck [kinds]int

// Add counts what others have counted.
func (s *Struck) Add(o *Struck) {
	for k, n := range o {
		s[k] += n
	}
}

func (s *Struck) String() string {
	words := make([]string, kinds)
	for k, n := range s {
		words[k] = fmt.Sprintf("%s %d", kind(k), n)
	}
	return strings.Join(words, ", ")
}

// blow is one fault that may strike later, and counts once.
type blow struct {
	kind kind
	all  *Struck // nil once it is counted
}

func (w *world) blow(k kind) *blow { return &blow{kind: k, all: &w.struck} }

// falls is called whenever the fault has an effect. A nil blow is no fault.
func (b *blow) falls() {
	if b != nil && b.all != nil {
		b.all[b.kind]++
		b.all = nil
	}
}

// late tells whether a fault strikes some time after it was announced, and counts itself then.
func (k kind) late() bool {
	switch k {
	case noisyNet, noisyLink, halves, isolate, oneWay, ring, bridge, cutInCall, stop, ioError, fullDisk, nearlyFull, slowDisk, hangingDisk, transfer, misplace, misdirected, badSector, stragglers:
		return true
	}
	return false
}

// possible tells whether a group can be asked to survive this kind of fault.
func (k kind) possible(s *setup) bool {
	switch k {
	case ring, bridge:
		return len(s.ids) == 5
	case noisyNet, noisyLink, halves, isolate, oneWay, heal, hangUp, transfer, stragglers:
		return len(s.ids) > 1
	case hoursPass, nearlyFull:
		return !s.strangers // a stranger may need every old entry
	case wipe:
		return len(s.ids) > 1
	case cutInCall:
		return !s.async // see powerless
	case rot, badSector:
		return len(s.ids) > 2
	case misdirected:
		return len(s.ids) > 2 && !s.async // see powerless: what is not synced, which a block must be to go astray, others count on there
	case blackout:
		return s.async && !s.strangers && len(s.ids) != 2
	case misplace:
		return len(s.ids) > 1 && s.compat != raft.Compat04 // where the position in an entry is only what its leader says
	}
	return true
}

// Fault is one fault that happened.
type Fault struct {
	No   int // its number in the life's schedule
	At   time.Duration
	What string
}

// schedule arranges fault no, at a time that depends on the seed and the numbers before it alone, and then the next one.
func (w *world) schedule(no int) {
	r := stream(w.c.Seed, forFault, uint64(no))
	if len(w.setup.kinds) == 0 {
		return
	}
	w.after(1+raft.Instant(r.ExpFloat64()*float64(w.setup.gap)), func() {
		if w.calm {
			return
		}
		w.schedule(no + 1)
		if w.wanted(no) {
			k := pick(r, w.setup.kinds...)
			if what := w.strike(k, r); what != "" {
				if !k.late() {
					w.struck[k]++
				}
				w.faults = append(w.faults, Fault{No: no, At: time.Duration(w.now), What: what})
				w.say(nil, "fault %d: %s", no, what)
			}
		}
	})
}

// later undoes a fault, unless the calm has begun.
func (w *world) later(d raft.Instant, undo func()) {
	w.after(d, func() {
		if !w.calm {
			undo()
		}
	})
}

// victim prefers the leader: most of what can go wrong goes wrong there.
func (w *world) victim(r *rand.Rand) *node {
	n := w.nodes[r.IntN(len(w.nodes))]
	if r.IntN(2) == 0 {
		if l := w.leader(); l != nil {
			return l
		}
	}
	return n
}

// span draws how long a fault lasts: most are short, some outlast every timer.
func span(r *rand.Rand) raft.Instant {
	if r.IntN(4) == 0 {
		return raft.Instant(between(r, time.Second, 6*time.Second))
	}
	return raft.Instant(between(r, 10*time.Millisecond, time.Second))
}

// strike does one fault and says what it was; "" if it could not be done now.
func (w *world) strike(k kind, r *rand.Rand) string {
	n := w.victim(r)
	switch k {
	case noisyNet, noisyLink:
		return w.makeNoise(k, r, n)
	case halves, isolate, oneWay, ring, bridge:
		return w.part(k, r, n)
	case heal:
		w.healAll(r.IntN(2) == 0)
		return "all links heal"
	case hangUp:
		m := w.other(r, n)
		w.disconnect(n, m)
		w.reconnect(n, m)
		return fmt.Sprintf("connections between %s and %s break", n.id, m.id)
	case clockJump:
		d := raft.Instant(between(r, time.Millisecond, 2*time.Second))
		n.jump(d)
		return fmt.Sprintf("clock of %s jumps by %v", n.id, time.Duration(d))
	case hoursPass:
		n.wall += 2 * time.Hour
		return fmt.Sprintf("calendar of %s goes two hours on", n.id)
	case pause:
		return w.pauseNode(r, n)
	case powerCut:
		return w.cutPower(r, n)
	case cutInCall:
		if !n.up || n.rotten || w.fragile() { // see rot
			return ""
		}
		n.disk.cutIn, n.disk.cutBy = 1+r.IntN(60), w.blow(k)
		return fmt.Sprintf("power of %s goes with call %d from now", n.id, n.disk.cutIn)
	case kill:
		if !n.up {
			return ""
		}
		n.down(nil)
		n.startIn(span(r))
		return fmt.Sprintf("%s is killed", n.id)
	case restartAll:
		for _, m := range w.nodes {
			if m.up {
				m.down(nil)
			}
			m.startIn(1 + raft.Instant(r.Int64N(int64(300*time.Millisecond))))
		}
		return "all members are killed"
	case stop:
		if !n.up || n.paused > 0 {
			return ""
		}
		n.loop.Stop()
		n.stopBy = w.blow(k)
		n.poke()
		w.later(span(r), n.start)
		return fmt.Sprintf("%s is stopped", n.id)
	case ioError:
		n.disk.fail = pick(r, "write", "datasync", "datasync", "sync", "create", "rename", "zero", "syncdir")
		n.disk.failBy = w.blow(k)
		return fmt.Sprintf("next %s of %s fails", n.disk.fail, n.id)
	case fullDisk:
		return w.fill(r, n)
	case nearlyFull:
		share := pick(r, 0.75, 0.88, 0.88, 0.97)
		n.disk.looksUsed(share)
		n.disk.fullBy = w.blow(k)
		w.later(span(r), func() { n.disk.looksUsed(-1) })
		return fmt.Sprintf("disk of %s is used to %.2f", n.id, share)
	case slowDisk:
		n.slowTill, n.slowBy = w.now+span(r), w.blow(k)
		return fmt.Sprintf("disk of %s is slow until %v", n.id, time.Duration(n.slowTill))
	case hangingDisk:
		n.hangTill, n.hangBy = w.now+span(r), w.blow(k)
		return fmt.Sprintf("disk of %s hangs until %v", n.id, time.Duration(n.hangTill))
	case wipe:
		return w.wipe(n)
	case transfer:
		return w.handOver(r, n)
	case rot:
		return w.rot(r, n)
	case misdirected:
		return w.misdirect(r, n)
	case badSector:
		return w.deaden(r, n)
	case clockBack:
		d := between(r, time.Second, 3*time.Hour)
		n.wall -= d
		return fmt.Sprintf("calendar of %s goes back by %v", n.id, d)
	case blackout:
		return w.blackout(r)
	case stragglers:
		return w.straggle(r, n)
	case misplace:
		l := w.link(n.id, w.other(r, n).id)
		l.misplace, l.misplaceBy = 1+r.IntN(3), w.blow(k)
		return fmt.Sprintf("next %d appends from %s to %s name other positions", l.misplace, l.from.id, l.to.id)
	}
	panic("sim: unknown kind of fault")
}

func (w *world) other(r *rand.Rand, n *node) *node {
	return w.nodes[(n.no+1+r.IntN(len(w.nodes)-1))%len(w.nodes)]
}

func (w *world) makeNoise(k kind, r *rand.Rand, n *node) string {
	x := noise{by: w.blow(k)}
	if r.IntN(2) == 0 {
		x.drop = r.Float64() * 0.3
	}
	if r.IntN(2) == 0 {
		x.repeat = r.Float64() * 0.3
	}
	if r.IntN(2) == 0 {
		x.overtake = r.Float64() * 0.5
	}
	x.slow, x.slowMax = r.Float64()*0.2, between(r, time.Millisecond, 500*time.Millisecond)
	links, where := w.links, "all links"
	if k == noisyLink {
		l := w.link(n.id, w.other(r, n).id)
		links, where = []*link{l}, fmt.Sprintf("link %s to %s", l.from.id, l.to.id)
	}
	for _, l := range links {
		l.noise = x
	}
	w.later(span(r), func() {
		for _, l := range links {
			if l.noise == x {
				l.noise = noise{}
			}
		}
	})
	return fmt.Sprintf("%s: drop %.2f, repeat %.2f, overtake %.2f, slow %.2f up to %v", where, x.drop, x.repeat, x.overtake, x.slow, x.slowMax)
}

// straggle makes copies of what a member sends come again much later, when it may lead no more.
func (w *world) straggle(r *rand.Rand, n *node) string {
	late, by := raft.Instant(between(r, 300*time.Millisecond, 4*time.Second)), w.blow(stragglers)
	for _, l := range w.links {
		if l.from == n {
			l.late, l.lateBy = late, by
		}
	}
	w.later(span(r), func() {
		for _, l := range w.links {
			if l.from == n {
				l.late = 0
			}
		}
	})
	return fmt.Sprintf("of what %s sends much comes once more within %v", n.id, time.Duration(late))
}

// part cuts links.
func (w *world) part(k kind, r *rand.Rand, n *node) string {
	size := len(w.nodes)
	var cut func(from, to *node) bool
	what := ""
	switch k {
	case halves:
		side := r.IntN(1 << size)
		cut = func(a, b *node) bool { return side>>a.no&1 != side>>b.no&1 }
		what = fmt.Sprintf("halves %0*b", size, side)
	case isolate:
		cut = func(a, b *node) bool { return a == n || b == n }
		what = fmt.Sprintf("%s is cut off", n.id)
	case oneWay:
		m, all, out := w.other(r, n), r.IntN(2) == 0, r.IntN(2) == 0
		cut = func(a, b *node) bool {
			if !out {
				a, b = b, a
			}
			return a == n && (all || b == m)
		}
		what = fmt.Sprintf("%s has one-way links (out %t, all %t, %s)", n.id, out, all, m.id)
	case ring: // each member sees its two neighbours: every one has another majority
		cut = func(a, b *node) bool { d := (a.no - b.no + size) % size; return d != 1 && d != size-1 }
		what = "ring of majorities"
	case bridge: // two halves that see each other only through one member
		cut = func(a, b *node) bool {
			x, y := (a.no-n.no+size)%size, (b.no-n.no+size)%size
			return x != 0 && y != 0 && (x <= size/2) != (y <= size/2)
		}
		what = fmt.Sprintf("%s is the bridge between two halves", n.id)
	}
	by := w.blow(k)
	for _, l := range w.links {
		l.cut, l.cutBy = cut(l.from, l.to), by
	}
	w.later(span(r), func() { w.healAll(r.IntN(2) == 0) })
	return what
}

// healAll joins all links; anew tells whether the connections were lost meanwhile.
func (w *world) healAll(anew bool) {
	for _, l := range w.links {
		if l.cut && anew {
			w.disconnect(l.from, l.to)
		}
		l.cut = false
	}
	for _, l := range w.links {
		if !l.known && l.from.up {
			w.greet(l)
		}
	}
}

func (w *world) pauseNode(r *rand.Rand, n *node) string {
	if !n.up {
		return ""
	}
	d := span(r)
	n.paused++
	n.after(d, func() {
		if n.paused > 0 {
			n.paused--
		}
		n.trouble(w.now)
	})
	return fmt.Sprintf("%s pauses for %v", n.id, time.Duration(d))
}

func (w *world) cutPower(r *rand.Rand, n *node) string {
	if !n.up || n.rotten || w.fragile() || w.setup.async && !w.setup.losing && !w.powerless(n) { // see rot
		return ""
	}
	k, what := keep(r)
	n.down(k)
	n.startIn(span(r))
	return fmt.Sprintf("power cut at %s; of what was not synced stays: %s", n.id, what)
}

// blackout takes the power of several members at once, also of those whose processes do not run: what these have written is in no better place.
func (w *world) blackout(r *rand.Rand) string {
	if w.fragile() {
		return ""
	}
	hit := r.Perm(len(w.nodes))
	if r.IntN(2) == 0 {
		hit = hit[:1+r.IntN(len(hit))]
	}
	what := "the power of some goes at once; of what was not synced stays:"
	for _, i := range hit {
		n := w.nodes[i]
		kept, words := keep(r)
		n.down(kept)
		n.startIn(1 + raft.Instant(between(r, time.Millisecond, time.Second)))
		what += fmt.Sprintf(" %s %s,", n.id, words)
	}
	return strings.TrimSuffix(what, ",")
}

func (w *world) fill(r *rand.Rand, n *node) string {
	room := pick[int64](r, 0, 100, 3000, 20_000)
	n.disk.limit(room)
	n.disk.fullBy = w.blow(fullDisk)
	w.later(span(r), func() { n.disk.limit(-1) })
	return fmt.Sprintf("disk of %s has %d bytes left", n.id, room)
}

// powerless tells whether a group in mode async can be asked to lose nothing when this member loses power. What it wrote last and never
// synced is gone then, acknowledged or not; that is the price of the mode. So nothing may be under way there, and of the others one
// must hold everything that is committed, and those who do not be too few to elect a leader. The member itself does not vote until it has caught up (docs/adr/0012);
// where it would wait for ever, since it does not know that the others are of this implementation, a majority of the others must hold everything.
func (w *world) powerless(n *node) bool {
	last := raft.Index(len(w.check.committed)) - 1
	if n.flushed.index > last {
		return false
	}
	have, waiting := 0, 1
	for _, m := range w.nodes {
		if m != n && m.behind {
			waiting++
			continue
		}
		if m == n || m.store == nil || m.flushed.index < last || m.rotten {
			continue
		}
		if last >= 0 {
			if t, err := m.store.Term(last); err != nil || t != w.check.committed[last].term {
				continue
			}
		}
		have++
	}
	majority := len(w.nodes)/2 + 1
	if w.setup.strangers {
		return have >= majority
	}
	return have > 0 && len(w.nodes)-waiting-have < majority
}

// fragile tells whether damage on one member and power that goes on another may take together what neither takes alone: where power may take what was acknowledged.
func (w *world) fragile() bool {
	return w.setup.losing && slices.ContainsFunc(w.nodes, func(m *node) bool { return m.rotten })
}

// wipe takes a member's disk. It forgets votes and acknowledgements, so a group survives it only if all others hold all that is committed, and, where it does not
// know that it has forgotten something, are in a term whose leader is known to all of them: then there is nothing left for it to vote in. Where it knows (guarded),
// it asks the others for their terms, and any will do, if these have not forgotten theirs.
func (w *world) wipe(n *node) string {
	last := raft.Index(len(w.check.committed)) - 1
	if w.setup.async {
		w.syncAll()
	}
	if (n.up || w.setup.async) && n.flushed.index > last || n.durable.index > last {
		return ""
	}
	term := raft.Term(-1)
	guarded := w.setup.compat == raft.CompatGo && len(w.nodes) > 2
	for _, m := range w.nodes {
		if m == n {
			continue
		}
		if !m.up || m.paused > 0 || m.failing || m.rotten || m.durable.index < last || m.behind || n.savedTerm > m.savedTerm && !guarded {
			return ""
		}
		if last >= 0 {
			if t, err := m.store.Term(last); err != nil || t != w.check.committed[last].term {
				return "" // what it has there is not what was committed
			}
		}
		v := m.loop.View()
		if guarded {
			continue
		}
		if v.Leader == "" || v.Leader == n.id || term >= 0 && v.Term != term || v.Term != m.savedTerm {
			return ""
		}
		term = v.Term
	}
	n.down(vfs.KeepNone)
	n.disk = newDisk(n.chance)
	n.disk.mem.SetClock(n.calendar)
	n.behind, n.rotten = true, false
	w.check.forget(n)
	n.startIn(100 * ms)
	return fmt.Sprintf("disk of %s is lost", n.id)
}

func (w *world) handOver(r *rand.Rand, n *node) string {
	to := w.other(r, n)
	if !n.up {
		return ""
	}
	life, answers, by := n.life, 0, w.blow(transfer)
	n.loop.Transfer(to.id, -1, func(s raft.Status) {
		if answers++; answers > 1 && n.life == life {
			w.violate("R9: %s answers a transfer twice", n.id)
		}
		if s == raft.StatusOK {
			by.falls()
		}
		w.say(n, "transfer to %s: %v", to.id, s)
	})
	n.poke()
	return fmt.Sprintf("%s is asked to hand leadership to %s", n.id, to.id)
}
