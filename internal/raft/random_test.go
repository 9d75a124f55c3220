package raft

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var seedFlag = flag.Int64("seed", 0, "run only this seed of a random test")

// TestRandomFaults runs many short lives of groups of 1, 3 and 5 members in every compat and both durabilities: messages are lost,
// delayed, repeated and overtaken, members are cut off, paused and crash with a part of what they had not synced, disks fill up and
// fail, tails and disks are lost, members are wiped, leadership is handed over, old entries expire, clocks run unevenly. R1 to R9 are checked
// after every turn. Then all faults end, and within a bounded time there must be a leader, a new entry committed by
// everybody, and equal logs that hold all that was ever committed; and the group must then be quiet.
//
// There are up to 2500 runs, or as many as fit into ten seconds, but 200 at least; RAFT_RUNS sets their number, whatever it takes. One run again:
// go test ./internal/raft -run RandomFaults -seed N
func TestRandomFaults(t *testing.T) {
	least, runs, first := int64(200), 2500, time.Now().UnixNano()%1e9*10_000
	if testing.Short() {
		runs = 300
	}
	deadline := time.Now().Add(10 * time.Second)
	if k, err := strconv.Atoi(os.Getenv("RAFT_RUNS")); err == nil {
		least, runs = int64(k), k
	}
	if *seedFlag != 0 {
		life(t, *seedFlag, true)
		return
	}
	t.Logf("seeds %d to %d", first, first+int64(runs)-1)
	const workers = 4
	var next, lived atomic.Int64
	t.Cleanup(func() { // behind the workers
		t.Logf("%d lives", lived.Load())
		if lived.Load() < least && !t.Failed() {
			t.Errorf("only %d lives, want %d at least", lived.Load(), least)
		}
	})
	for w := range workers {
		t.Run(strconv.Itoa(w), func(t *testing.T) {
			t.Parallel()
			for !t.Failed() && (lived.Load() < least || time.Now().Before(deadline)) {
				k := next.Add(1) - 1
				if k >= int64(runs) {
					return
				}
				life(t, first+k, false)
				lived.Add(1)
			}
		})
	}
}

// life is one run.
func life(t *testing.T, seed int64, verbose bool) {
	r := rand.New(rand.NewSource(seed))
	size := []int{1, 3, 3, 3, 5}[r.Intn(5)]
	ids := []ID{"n0", "n1", "n2", "n3", "n4"}[:size]
	config := Config{
		Compat: Compat(r.Intn(3)), Heartbeat: 100 * time.Millisecond, HeartbeatLeak: 3,
		MinVoteInterval: 30 * time.Millisecond, MaxVoteInterval: 100 * time.Millisecond, MinTakeInterval: 5 * time.Millisecond, MaxTakeInterval: 10 * time.Millisecond,
		VoteWait: 100 * time.Millisecond, PushTimeout: 80 * time.Millisecond, CommitIdle: 10 * time.Millisecond,
		TransferWait: 60 * time.Millisecond, TransferLag: 20, MaxInflight: 1 + r.Intn(5), MaxEntries: Index(1 + r.Intn(6)), MaxPending: 60,
		Rand: r.Int63n,
	}
	if r.Intn(4) == 0 {
		config.Preferred = []ID{ids[r.Intn(size)]}
	}
	g := newGroup(t, config, ids...)
	g.async = r.Intn(5) == 0
	g.strangers = config.Compat == Compat04 && r.Intn(3) == 0
	java := !g.strangers && !g.async && size > 1 && config.Compat != CompatGo && r.Intn(3) == 0
	what := fmt.Sprintf("seed %d: %d members, compat %s, async %t, strangers %t, Java member %t", seed, size, config.Compat, g.async, g.strangers, java)
	g.why = func(format string, args ...any) {
		t.Errorf("%s: after %d ms: %s", what, g.now/ms, fmt.Sprintf(format, args...))
	}
	say := func(string, ...any) {}
	if verbose {
		t.Log(what)
		say = func(format string, args ...any) {
			t.Logf("%5d.%03d "+format, append([]any{g.now / ms, g.now / 1000 % 1000}, args...)...)
		}
		g.sent = func(m *Message) {
			if m.Type != MsgHeartbeat && m.Type != MsgHeartbeatAnswer {
				say("%s > %s  %s", m.From, m.To, describe(m))
			}
		}
		g.seen = func(n *node, e Event) {
			say("%s event %d: %s term=%d log=%s commit=%d synced=%d peer=%s index=%d", n.id, e.Kind, e.Role, e.Term, logOf(&n.disk), n.disk.commit, n.disk.synced, e.Peer, e.Index)
		}
	}
	for _, id := range ids {
		g.nodes[id].rate = 0.9 + 0.2*r.Float64()
	}

	storm := true
	loss, repeat, overtake, slow := r.Float64()*0.2, r.Float64()*0.1, r.Float64()*0.1, r.Intn(3) == 0
	if r.Intn(3) == 0 {
		loss, repeat, overtake = 0, 0, 0
	}
	g.fate = func(m *Message) fate {
		f := fate{delay: ms/10 + Instant(r.Int63n(int64(2*ms)))}
		if !storm {
			return f
		}
		if slow && r.Intn(20) == 0 {
			f.delay += Instant(r.Int63n(int64(400 * ms)))
		}
		f.lost = r.Float64() < loss
		if g.nodes[m.To].java != nil || g.nodes[m.From].java != nil {
			return f // it knows nothing of late messages (fault 3)
		}
		f.early = r.Float64() < overtake
		if r.Float64() < repeat {
			f.copy = Instant(r.Int63n(int64(300 * ms)))
		}
		return f
	}
	g.syncTime = func(n *node) Instant {
		if storm && r.Intn(50) == 0 {
			return Instant(r.Int63n(int64(1500 * ms)))
		}
		return Instant(r.Int63n(int64(8 * ms)))
	}
	if java {
		joinJava(g, ids[size-1], r, &storm)
	}
	for _, id := range ids {
		g.nodes[id].start()
	}

	faults := 40 + r.Intn(120)
	for range faults {
		if g.failed {
			return
		}
		g.run(g.now + Instant(r.Int63n(int64(80*ms))))
		n := g.nodes[ids[r.Intn(size)]]
		if l := g.leader(); l != nil && r.Intn(2) == 0 {
			n = l
		}
		misfortune(g, n, r, say)
	}
	storm = false
	say("storm is over")
	calm(g, say)
	if g.failed && !verbose {
		t.Logf("again: go test ./internal/raft -run RandomFaults -seed %d", seed)
	}
}

// misfortune is one random step.
func misfortune(g *group, n *node, r *rand.Rand, say func(string, ...any)) {
	up := n.core != nil
	if n.java != nil {
		n.propose(1 + r.Intn(4))
		return
	}
	switch k := r.Intn(100); {
	case k < 45:
		if up {
			n.propose(1 + r.Intn(4))
		}
	case k < 50:
		if up {
			n.read()
		}
	case k < 56:
		say("fault: %s cut off %s", n.id, map[bool]string{true: "from one", false: "from all"}[k < 53])
		for _, id := range g.ids {
			if id != n.id && (k >= 53 || r.Intn(2) == 0) {
				g.links[[2]ID{n.id, id}].cut = true
				g.links[[2]ID{id, n.id}].cut = r.Intn(4) > 0
			}
		}
	case k < 64:
		say("fault: links heal")
		for _, l := range g.links {
			l.cut = false
		}
	case k < 71:
		if up {
			say("fault: %s crashes", n.id)
			n.crash(n.disk.synced + Index(r.Intn(4)))
		} else {
			say("fault: %s starts", n.id)
			n.restart(r)
		}
	case k < 77:
		for _, id := range g.ids {
			if m := g.nodes[id]; m.core == nil && m.java == nil {
				say("fault: %s starts", m.id)
				m.restart(r)
			}
		}
	case k < 80:
		if up && !n.paused {
			say("fault: %s pauses", n.id)
			n.pause()
		}
	case k < 84:
		if up && n.paused {
			n.resume()
		}
	case k < 87:
		n.disk.full = !n.disk.full
		say("fault: %s disk full: %t", n.id, n.disk.full)
	case k < 88:
		if up && !n.paused {
			say("fault: %s disk fails", n.id)
			n.breakDisk()
		}
	case k < 93:
		if up && !n.paused {
			to := g.ids[r.Intn(len(g.ids))]
			say("transfer %s to %s", n.id, to)
			n.transfer(to, func(s Status) { say("transfer %s to %s: %s", n.id, to, s) })
		}
	case k < 97:
		if up && !n.paused && n.disk.commit > n.disk.first && !(g.config.Compat == Compat04 && g.mixed()) { // a stranger may need every old entry
			n.expire(n.disk.first + Index(r.Int63n(int64(n.disk.commit-n.disk.first)+1)))
			say("%s keeps from %d", n.id, n.disk.first)
		}
	case k < 98:
		if up && g.others(n, func(m *node) bool { return m.disk.abstain < 0 && m.whole() }) {
			say("fault: %s loses its tail", n.id)
			n.loseTail(r)
		}
	default:
		// A wiped disk forgets votes and acknowledgements. That is survived if the others have everything and know the leader of
		// a term in which it has nothing left to vote.
		l := g.leader()
		if l != nil && l != n && max(n.disk.last(), n.disk.abstain) < Index(len(g.facts.committed)) && g.others(n, func(m *node) bool {
			return m.core != nil && m.whole() && m.disk.abstain < 0 && m.core.led == l.id && m.disk.term >= n.disk.term && m.disk.term == l.disk.term
		}) {
			say("fault: %s is wiped", n.id)
			n.wipe()
		} else if g.config.Compat == CompatGo && !g.async && // one that is told may lose it at any time, if no other member owes anything
			len(g.ids) > 2 && g.others(n, func(m *node) bool { return m.disk.abstain < 0 && !m.disk.behind }) {
			say("fault: %s loses its disk, and is told", n.id)
			n.wipe()
			n.disk.behind = true
		}
	}
}

// mixed tells whether some members are not known to be ours.
func (g *group) mixed() bool {
	return slices.ContainsFunc(g.ids, func(id ID) bool { return !g.nodes[id].ours() })
}

func (g *group) others(n *node, ok func(m *node) bool) bool {
	for _, id := range g.ids {
		if m := g.nodes[id]; m != n && !ok(m) {
			return false
		}
	}
	return len(g.ids) > 1
}

// whole tells whether a member has all that was ever committed, durably.
func (n *node) whole() bool {
	last := Index(len(n.g.facts.committed)) - 1
	return n.disk.synced >= last && (last < n.disk.first || n.disk.at(last) == n.g.facts.committed[last])
}

func (n *node) restart(r *rand.Rand) {
	n.start()
	for _, id := range n.g.ids {
		if m := n.g.nodes[id]; m != n && r.Intn(4) > 0 { // the others notice, mostly
			n.g.after(Instant(r.Int63n(int64(20*ms))), func() { m.act(func() { m.core.Connected(n.id, n.ours()) }) })
		}
	}
}

// loseTail takes durable entries away, and lets recovery notice.
func (n *node) loseTail(r *rand.Rand) {
	d := &n.disk
	was := d.synced
	n.crash(d.synced)
	if len(d.entries) < 2 {
		return
	}
	keep := d.first + Index(r.Intn(len(d.entries)-1))
	d.entries = d.entries[:keep-d.first+1]
	n.grantedTo = min(n.grantedTo, keep)
	d.synced, d.commit, d.abstain = keep, min(d.commit, keep), max(d.abstain, was)
}

func (n *node) wipe() {
	n.g.wiped++
	n.crash(-1)
	for b := range n.g.facts.votes {
		if b.node == n.id {
			delete(n.g.facts.votes, b)
		}
	}
	n.disk, n.grantedTo = disk{prev: -1, synced: -1, commit: -1, abstain: -1}, -1
}

// calm ends all faults and checks that the group recovers.
func calm(g *group, say func(string, ...any)) {
	heartbeat := Instant(g.config.Heartbeat)
	for _, l := range g.links {
		l.cut = false
	}
	for _, id := range g.ids {
		n := g.nodes[id]
		n.disk.full = false
		switch {
		case n.java != nil:
		case n.core == nil:
			n.start()
		case n.broken:
			n.crash(n.disk.synced)
			n.start()
		case n.paused:
			n.resume()
		}
	}
	for _, a := range g.ids {
		for _, b := range g.ids {
			if a != b {
				g.nodes[a].act(func() { g.nodes[a].core.Connected(b, g.nodes[b].ours()) })
			}
		}
	}
	const patience = 60
	var last Index
	for k := 0; ; k++ {
		if g.failed {
			return
		}
		if k == patience {
			g.violate("no entry is committed by all %d heartbeats after the last fault\n%s", patience, g.describe())
			return
		}
		g.run(g.now + heartbeat)
		if l := g.leader(); l != nil && last == 0 {
			if first, s := l.propose(1); s == StatusOK {
				last = first
				if last == 0 {
					last = 1
					l.propose(1)
				}
			}
		}
		if last > 0 && g.agreed(max(last, Index(len(g.facts.committed))-1)) {
			break
		}
		if k%20 == 19 {
			last = 0 // the leader may have changed
		}
	}
	g.compare()
	if g.leader() != nil && g.leader().java != nil {
		return // its traffic is the original's
	}

	g.run(g.now + 20*heartbeat) // the slowest sync is over
	clear(g.sends)
	g.run(g.now + 20*heartbeat)
	peers := len(g.ids) - 1
	if l := g.leader(); l == nil || g.sends[MsgHeartbeat] > 26*peers || g.sends[MsgCommit] > 5*peers || g.sends[MsgVote]+g.sends[MsgPreVote]+g.sends[MsgCompare]+g.sends[MsgAppend] > 0 {
		if len(g.config.Preferred) == 0 {
			g.violate("a group without work sends %v in 20 heartbeats\n%s", g.sends, g.describe())
		}
	}
	for _, id := range g.ids {
		for ref, q := range g.nodes[id].open {
			if g.now-q.at > 10*heartbeat && q.life == g.life(q.msg.From) {
				g.violate("R9: %s has not answered %s from %s of %d ms ago (ref %d)", id, q.msg.Type, q.msg.From, (g.now-q.at)/ms, ref)
			}
		}
		if left := len(g.nodes[id].reads); left > 0 && g.nodes[id].core.role != Leader {
			g.violate("R9: %s has not answered %d reads", id, left)
		}
	}
}

func (g *group) life(id ID) int {
	if n := g.nodes[id]; n != nil {
		return n.life
	}
	return 0
}

// agreed tells whether all members have committed entry i, and have none behind it.
func (g *group) agreed(i Index) bool {
	for _, id := range g.ids {
		if d := &g.nodes[id].disk; d.commit < i || d.last() > i {
			return false
		}
	}
	return true
}

// compare checks that all logs are equal, as far as each still has them, and hold all that was committed.
func (g *group) compare() {
	for _, id := range g.ids {
		d := &g.nodes[id].disk
		for i, e := range g.facts.committed {
			if i := Index(i); i >= d.first && (!d.has(i) || d.at(i) != e) {
				g.violate("%s: entry %d, committed, is lost\n%s", id, i, g.describe())
				return
			}
		}
		if d.last() != Index(len(g.facts.committed))-1 {
			g.violate("%s ends at %d, committed are %d\n%s", id, d.last(), len(g.facts.committed)-1, g.describe())
			return
		}
	}
}

func (g *group) describe() string {
	var b strings.Builder
	for _, id := range g.ids {
		n := g.nodes[id]
		if n.core == nil {
			fmt.Fprintf(&b, "%s down or Java, term=%d vote=%s log=%s\n", id, n.disk.term, n.disk.vote, logOf(&n.disk))
			continue
		}
		c := n.core
		fmt.Fprintf(&b, "%s %s term=%d leader=%q log=%s commit=%d durable=%d matched=%d abstain=%d", id, c.role, c.term, c.leader, logOf(&n.disk), c.commit, c.durable, c.matched, c.abstain)
		for _, p := range c.peers {
			if c.role == Leader {
				fmt.Fprintf(&b, "  %s:%s cmp=%d match=%d next=%d inflight=%d retry=%d", p.id, p.state, p.cmp, p.match, p.next, len(p.inflight), (p.retryAt-c.now)/ms)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
