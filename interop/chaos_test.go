package interop

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dledger/interop/harness"
	"dledger/interop/original"
)

// chaos is a group under load whose network and processes are made to fail.
type chaos struct {
	t    *testing.T
	g    *harness.Group
	w    *harness.Network
	r    *rand.Rand
	long time.Duration // of the longest pause of a process

	registers *harness.Registers
	confirmed bool         // reads are judged too
	key       atomic.Int64 // registers live for one fault each: short histories are quick to judge
	done      atomic.Int64 // operations with an outcome
	clients   sync.WaitGroup
	stop      context.CancelFunc
}

// fault is one thing that goes wrong for a while. It must be over when it returns, but for the network, which is healed after it.
type fault struct {
	name string
	run  func(c *chaos, a, b, other *harness.Node)
}

var faults = []fault{
	{"one node alone", func(c *chaos, a, b, other *harness.Node) { c.apart(a, b); c.apart(a, other); c.last() }},
	{"one node hears nobody", func(c *chaos, a, b, other *harness.Node) {
		c.w.Set(b.ID, a.ID, harness.Fault{Drop: true})
		c.w.Set(other.ID, a.ID, harness.Fault{Drop: true})
		c.last()
	}},
	{"nobody hears one node", func(c *chaos, a, b, other *harness.Node) {
		c.w.Set(a.ID, b.ID, harness.Fault{Drop: true})
		c.w.Set(a.ID, other.ID, harness.Fault{Drop: true})
		c.last()
	}},
	{"a bridge: two nodes hear only the third", func(c *chaos, a, b, _ *harness.Node) { c.apart(a, b); c.last() }},
	{"a ring: each node hears one other", func(c *chaos, a, b, other *harness.Node) {
		for _, d := range [][2]*harness.Node{{a, b}, {b, other}, {other, a}} {
			c.w.Set(d[0].ID, d[1].ID, harness.Fault{Drop: true})
		}
		c.last()
	}},
	{"delays", func(c *chaos, _, _, _ *harness.Node) {
		c.everywhere(harness.Fault{DelayMax: 60 * time.Millisecond})
		c.last()
	}},
	{"a stall of one node's links", func(c *chaos, a, b, other *harness.Node) {
		for _, n := range []*harness.Node{b, other} {
			c.w.Set(a.ID, n.ID, harness.Fault{Hold: true})
			c.w.Set(n.ID, a.ID, harness.Fault{Hold: true})
		}
		c.last()
	}},
	{"a flapping link", func(c *chaos, a, b, _ *harness.Node) {
		for range 6 {
			c.apart(a, b)
			c.wait(150*time.Millisecond, 400*time.Millisecond)
			c.w.Heal()
			c.wait(150*time.Millisecond, 400*time.Millisecond)
		}
	}},
	{"connections cut", func(c *chaos, _, _, _ *harness.Node) {
		for range 5 {
			c.w.Cut()
			c.wait(50*time.Millisecond, 300*time.Millisecond)
		}
	}},
	{"kill of one node", func(c *chaos, a, _, _ *harness.Node) { a.Kill(); c.last(); must(c.t, a.Start()) }},
	{"kill of all nodes", func(c *chaos, _, _, _ *harness.Node) { c.g.Kill(); must(c.t, c.g.Start()) }},
	{"kill of one node while another is alone", func(c *chaos, a, b, other *harness.Node) {
		c.apart(b, a)
		c.apart(b, other)
		a.Kill()
		c.last()
		must(c.t, a.Start())
	}},
	{"pause of one node", func(c *chaos, a, _, _ *harness.Node) {
		must(c.t, a.Process().Pause())
		c.wait(500*time.Millisecond, c.long)
		must(c.t, a.Process().Resume())
	}},
	{"pause of two nodes", func(c *chaos, a, b, _ *harness.Node) {
		must(c.t, a.Process().Pause())
		must(c.t, b.Process().Pause())
		c.wait(500*time.Millisecond, 2*time.Second)
		must(c.t, b.Process().Resume())
		c.wait(100*time.Millisecond, time.Second)
		must(c.t, a.Process().Resume())
	}},
	{"a node that lost everything", func(c *chaos, a, _, _ *harness.Node) {
		// As docs/operating.md says: only when the others hold all there is.
		c.level()
		a.Kill()
		must(c.t, os.RemoveAll(a.Base()))
		must(c.t, a.Start())
		must(c.t, c.g.Hold(within(c.t, limit), a))
	}},
	{"leadership handed on", func(c *chaos, a, b, _ *harness.Node) {
		must(c.t, c.g.Lead(within(c.t, limit), a))
		must(c.t, c.g.Lead(within(c.t, limit), b))
	}},
}

// apart keeps two nodes from hearing each other.
func (c *chaos) apart(a, b *harness.Node) {
	c.w.Set(a.ID, b.ID, harness.Fault{Drop: true})
	c.w.Set(b.ID, a.ID, harness.Fault{Drop: true})
}

func (c *chaos) everywhere(f harness.Fault) {
	for _, a := range c.g.Nodes {
		for _, b := range c.g.Nodes {
			if a != b {
				c.w.Set(a.ID, b.ID, f)
			}
		}
	}
}

// last lets a fault last long enough for an election, or a little shorter.
func (c *chaos) last() { c.wait(300*time.Millisecond, 2500*time.Millisecond) }

func (c *chaos) wait(lo, hi time.Duration) {
	select {
	case <-time.After(lo + time.Duration(c.r.Int64N(int64(hi-lo)))):
	case <-c.t.Context().Done():
	}
}

// level waits until all nodes hold what is acknowledged.
func (c *chaos) level() {
	for _, n := range c.g.Nodes {
		must(c.t, c.g.Hold(within(c.t, limit), n))
	}
}

// goesOn waits until clients are served again.
func (c *chaos) goesOn(after string) {
	goal := c.done.Load() + 20
	if err := harness.Until(within(c.t, limit), "20 more operations after "+after, func() bool { return c.done.Load() >= goal }); err != nil {
		c.t.Fatalf("%v\n%s", err, c.g.Logs())
	}
}

// client writes and reads one register at a time, at whoever says it leads.
func (c *chaos) client(ctx context.Context, id int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(id)))
	wire := c.g.Client()
	defer wire.Close()
	me := c.registers.Client(id, wire)
	leader := ""
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
		var err error
		if leader == "" {
			if leader, err = wire.Leader(call); err != nil {
				leader = ""
			}
		} else {
			key := strconv.FormatInt(c.key.Load(), 10)
			if c.confirmed && r.IntN(2) == 0 {
				_, err = me.Read(call, leader, key)
			} else {
				err = me.Write(call, leader, key)
			}
			if err == nil {
				c.done.Add(1)
			} else {
				leader = ""
			}
		}
		cancel()
		if err != nil { // refusals come quickly
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

func newChaos(t *testing.T, seed uint64, kinds ...harness.Kind) *chaos {
	g := group(t, kinds...)
	confirmed := true
	for _, k := range kinds {
		confirmed = confirmed && k.Java == nil
	}
	if confirmed {
		g.DefaultTimers()
	}
	w, err := harness.NewNetwork(g)
	must(t, err)
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(g.Kill) // before the network
	c := &chaos{t: t, g: g, w: w, r: rand.New(rand.NewPCG(seed, 0)), long: 3 * time.Second, registers: harness.NewRegisters(), confirmed: confirmed}
	if rounds(0, 1) > 0 {
		c.long = 30 * time.Second
	}
	return c
}

func (c *chaos) start(seed uint64) {
	started(c.t, c.g)
	ctx, stop := context.WithCancel(c.t.Context())
	c.stop = stop
	for id := range 4 {
		c.clients.Go(func() { c.client(ctx, id, seed) })
	}
}

// judge ends the clients and looks at what they saw and at what is on the disks.
func (c *chaos) judge() {
	c.t.Helper()
	c.w.Heal()
	c.stop()
	c.clients.Wait()
	last, err := c.g.Settle(within(c.t, limit))
	must(c.t, err)
	if err := c.g.Stop(); err != nil {
		c.t.Errorf("nodes did not end well: %v", err)
	}
	acked, reads := c.registers.Acked(), c.registers.Reads()
	if least := 200; len(acked) < least || c.confirmed && reads < least {
		c.t.Errorf("%d acknowledged writes and %d confirmed reads are too few to say anything, want %d", len(acked), reads, least)
	}
	must(c.t, c.g.Judge(acked, last))
	l, err := harness.ReadLog(c.g.Nodes[0].Root())
	must(c.t, err)
	must(c.t, c.registers.Conclude(l))
	must(c.t, c.registers.Check(limit))
	c.t.Logf("%d operations, %d acknowledged writes, %d confirmed reads, last index %d", c.registers.Len(), len(acked), reads, last)
}

// chaosSeed is new in each run, unless CHAOS_SEED names one; a test prints it.
func chaosSeed(t *testing.T) uint64 {
	seed := rand.Uint64() % 1_000_000
	if s := os.Getenv("CHAOS_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("CHAOS_SEED: %v", err)
		}
	}
	t.Logf("the same again: CHAOS_SEED=%d go test ./interop -run '%s'", seed, t.Name())
	return seed
}

// leader is the node that says it leads, nil if none does.
func (c *chaos) leader() *harness.Node {
	wire := c.g.Client()
	defer wire.Close()
	id, err := wire.Leader(within(c.t, time.Second))
	if err != nil {
		return nil
	}
	return c.g.Node(id)
}

// rounds are so many faults. The first node of every second one is the leader.
func (c *chaos) rounds(n int) {
	var order []int
	for round := range n {
		if len(order) == 0 {
			order = c.r.Perm(len(faults)) // each fault comes before one comes again
		}
		f := faults[order[0]]
		order = order[1:]
		who := c.r.Perm(len(c.g.Nodes))
		if leader := c.leader(); leader != nil && round%2 == 0 {
			i := slices.Index(c.g.Nodes, leader)
			at := slices.Index(who, i)
			who[0], who[at] = who[at], who[0]
		}
		c.key.Add(1)
		c.t.Logf("%s: %s %s %s", f.name, c.g.Nodes[who[0]].ID, c.g.Nodes[who[1]].ID, c.g.Nodes[who[2]].ID)
		f.run(c, c.g.Nodes[who[0]], c.g.Nodes[who[1]], c.g.Nodes[who[2]])
		c.w.Heal()
		c.goesOn(f.name)
	}
}

// Real processes, real disks, every fault of the list in an order of chance: registers stay registers, acknowledged entries are on all nodes in the end.
func TestRegistersHoldThroughChaos(t *testing.T) {
	t.Parallel()
	k := ours(t)
	seed := chaosSeed(t)
	c := newChaos(t, seed, k, k, k)
	c.start(seed)
	c.rounds(rounds(len(faults), 10*len(faults)))
	c.judge()
}

// The leader stands still for half a minute, much longer than anybody waits, and wakes up in the belief that it leads: the others go on without it, and nothing that it
// says then is a lie.
func TestRegistersHoldThroughALongPauseOfTheLeader(t *testing.T) {
	t.Parallel()
	k := ours(t)
	seed := chaosSeed(t)
	c := newChaos(t, seed, k, k, k)
	c.start(seed)
	c.goesOn("the start")
	old := c.leader()
	if old == nil {
		t.Fatal("no node says it leads")
	}
	must(t, old.Process().Pause())
	end := time.Now().Add(29 * time.Second)
	c.goesOn("the leader stood still")
	for time.Now().Before(end) {
		c.key.Add(1)
		c.wait(time.Second, 1500*time.Millisecond)
	}
	wire := c.g.Client()
	defer wire.Close()
	key, me, asked := strconv.FormatInt(c.key.Load(), 10), c.registers.Client(4, wire), make(chan struct{})
	go func() { // whether it is answered is the node's affair; what is answered is judged
		defer close(asked)
		call, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if me.Write(call, old.ID, key) == nil {
			_, _ = me.Read(call, old.ID, key)
		}
	}()
	c.wait(time.Second, 1500*time.Millisecond) // the request waits in the node's socket
	must(t, old.Process().Resume())
	<-asked
	c.goesOn("the leader went on")
	c.judge()
}

// The same with Java nodes in the group. Their reads are not confirmed, so only writes are judged. The short form has six faults and one Java node, of a generation of
// chance; the long one all faults, and groups of which two nodes are Java too: a fault of the original may show in those.
func TestMixedGroupsHoldThroughChaos(t *testing.T) {
	t.Parallel()
	hold := func(t *testing.T, seed uint64, n int, gen original.Generation, kinds ...harness.Kind) {
		t.Logf("%s, compat %s", composition(kinds), gen)
		c := newChaos(t, seed, kinds...)
		c.g.GoOnly["compat"] = string(gen)
		c.start(seed)
		c.rounds(n)
		c.judge()
	}
	if rounds(0, 1) == 0 {
		seed := chaosSeed(t)
		gen := generations[seed%uint64(len(generations))]
		hold(t, seed, 6, gen, ours(t), ours(t), java(t, gen))
		return
	}
	for _, gen := range generations {
		ours, theirs := ours(t), java(t, gen)
		for _, kinds := range [][]harness.Kind{{ours, ours, theirs}, {ours, theirs, theirs}} {
			t.Run(composition(kinds), func(t *testing.T) { hold(t, chaosSeed(t), 2*len(faults), gen, kinds...) })
		}
	}
}

// The judge must be able to say no: a leader that was cut off is read without confirmation, and that is taken for what there is. The confirmed read at the same node gives no
// value, and the unconfirmed one is as good as any while nothing has been written elsewhere.
func TestUnconfirmedReadIsNotLinearizable(t *testing.T) {
	t.Parallel()
	k := ours(t)
	c := newChaos(t, 1, k, k, k)
	old := started(c.t, c.g)
	ctx := within(t, limit)
	wire := c.g.Client()
	defer wire.Close()
	alice, bob := c.registers.Client(0, wire), c.registers.Client(1, wire)
	must(t, alice.Write(ctx, old.ID, "x"))
	first, err := bob.ReadUnconfirmed(ctx, old.ID, "x")
	must(t, err)
	must(t, c.registers.Check(limit))
	var others []*harness.Node
	for _, n := range c.g.Nodes {
		if n != old {
			others = append(others, n)
			c.apart(old, n)
		}
	}
	var leads string
	must(t, harness.Until(ctx, "another leader", func() bool {
		for _, n := range others {
			one, cancel := context.WithTimeout(ctx, time.Second)
			m, err := wire.Metadata(one, n.ID)
			cancel()
			if err == nil && m.LeaderID == n.ID {
				leads = n.ID
			}
		}
		return leads != ""
	}))
	must(t, alice.Write(ctx, leads, "x"))

	one, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if v, err := bob.Read(one, old.ID, "x"); err == nil {
		t.Errorf("the leader that was cut off confirmed %d", v)
	}
	must(t, c.registers.Check(limit))

	v, err := c.registers.Client(2, wire).ReadUnconfirmed(ctx, old.ID, "x")
	must(t, err)
	if v != first {
		t.Errorf("the leader that was cut off shows %d, want %d as before", v, first)
	}
	if err := c.registers.Check(limit); err == nil {
		t.Error("a stale read passes for a current one")
	}
}
