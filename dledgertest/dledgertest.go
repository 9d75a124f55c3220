// Package dledgertest gives a program's tests a whole group of members inside one test: each with a disk in memory that loses unsynced
// bytes when its member crashes, joined by a network in memory that can be cut and slowed, and all on virtual time, so that a minute
// of cluster life takes milliseconds. Start at Run.
//
// Time is that of testing/synctest: it stands still while anything runs, and jumps to the next timer when everything waits.
// What a test waits for must therefore be a channel, a timer, a sync.Cond or a member of this cluster, not a socket or a file of
// the machine. A loop that never waits stops the clock; appends take time, since disks and network here do.
package dledgertest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger"
)

// SeedVariable is the environment variable that replaces a random seed.
const SeedVariable = "DLEDGERTEST_SEED"

// Setup is how a cluster differs from the usual. The zero value is that of Run.
type Setup struct {
	// Config changes a member's settings before it is opened, each time it is. What makes up the cluster is set already: the group's
	// name, ids, peers, directory, disk, network, chance and log.
	Config func(id string, c *dledger.Config)

	// Seed decides delays, elections and losses. 0 draws one; DLEDGERTEST_SEED replaces it. The same seed gives the same faults, but not the
	// same run to the last step: goroutines that can run at the same instant do so in any order.
	Seed uint64

	Delay    time.Duration // of every link, one way; default 100 µs; up to a quarter is added at random
	SyncTime time.Duration // of a file on every disk; default 100 µs
	Loss     Loss          // what Kill takes of unsynced writes; default LoseSome
	Patience time.Duration // how long the cluster's methods wait for what they promise before the test fails; default one minute
}

// Run runs f with a cluster of n members, all of them started, named n0, n1, …, and stops it afterwards. The test fails if a goroutine
// outlives that. f uses Cluster.T, and its context, in place of t: they belong to the cluster's time. Neither T.Run nor T.Parallel can be used.
func Run(t *testing.T, n int, f func(c *Cluster)) {
	t.Helper()
	Setup{}.Run(t, n, f)
}

// Run is like the function Run, with this setup.
func (s Setup) Run(t *testing.T, n int, f func(c *Cluster)) {
	t.Helper()
	if v := os.Getenv(SeedVariable); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
		s.Seed = seed
	}
	if s.Seed == 0 {
		s.Seed = rand.Uint64N(1<<32) + 1
	}
	for field, usual := range map[*time.Duration]time.Duration{&s.Delay: 100 * time.Microsecond, &s.SyncTime: 100 * time.Microsecond, &s.Patience: time.Minute} {
		if *field == 0 {
			*field = usual
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, s, n)
		defer c.stop()
		c.Start(c.ids...)
		f(c)
	})
}

// Cluster is a group of members in one test. Its methods may be called from any goroutine of the test, but those that fail the test only
// from its own, as with testing.T.
type Cluster struct {
	T *testing.T // of this cluster's time

	setup   Setup
	ids     []string
	network *network
	log     *slog.Logger
	closing sync.WaitGroup // members that crashed and are being cleared away

	mu      sync.Mutex
	members map[string]*Member // those that run
	disks   map[string]*Disk
	starts  int
	acked   []dledger.Entry // what Append has acknowledged
}

// Member is a running member.
type Member struct {
	*dledger.Ledger
	ID   string
	host *host
}

func newCluster(t *testing.T, s Setup, n int) *Cluster {
	c := &Cluster{T: t, setup: s, members: map[string]*Member{}, disks: map[string]*Disk{}}
	c.network = newNetwork(s.Delay, c.rand("network"))
	c.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	for i := range n {
		id := fmt.Sprintf("n%d", i)
		c.ids = append(c.ids, id)
		c.disks[id] = newDisk(s.SyncTime)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d; the same faults again: %s=%d go test -run '^%s$'", s.Seed, SeedVariable, s.Seed, t.Name())
		}
	})
	return c
}

// rand gives a source of chance for one purpose.
func (c *Cluster) rand(purpose string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(c.setup.Seed, h.Sum64()))
}

// Rand gives a source of chance that follows from the seed, for the test's own decisions. Each call gives the same one anew.
func (c *Cluster) Rand() *rand.Rand { return c.rand("test") }

// IDs gives the names of all members, running or not.
func (c *Cluster) IDs() []string { return slices.Clone(c.ids) }

// Peers gives the members and addresses as Config.Peers has them.
func (c *Cluster) Peers() string {
	var b strings.Builder
	for _, id := range c.ids {
		fmt.Fprintf(&b, "%s-%s:20911;", id, id)
	}
	return b.String()
}

// Start opens members that do not run, with what their disks hold.
func (c *Cluster) Start(ids ...string) {
	c.T.Helper()
	for _, id := range ids {
		if err := c.TryStart(id); err != nil {
			c.T.Fatalf("start %s: %v", id, err)
		}
	}
}

// TryStart opens a member that does not run; the error is that of dledger.Open.
func (c *Cluster) TryStart(id string) error {
	c.mu.Lock()
	disk, running := c.disks[id], c.members[id]
	c.starts++
	start := c.starts
	c.mu.Unlock()
	switch {
	case disk == nil:
		return fmt.Errorf("there is no member %q", id)
	case running != nil:
		return errors.New("it is running")
	}
	h := c.network.host(id)
	cfg := dledger.Config{
		Group: "test", ID: id, Peers: c.Peers(), Dir: "/" + id, DataFileSize: 4 << 20, IndexFileSize: 32 << 12,
		Logger: c.log, FS: disk.mem, Dial: h.Dial, Listen: h.Listen, Rand: c.rand(fmt.Sprintf("%s, start %d", id, start)).Int64N,
	}
	if c.setup.Config != nil {
		c.setup.Config(id, &cfg)
	}
	l, err := dledger.Open(cfg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[id] = &Member{Ledger: l, ID: id, host: h}
	return nil
}

// take removes a running member from the list.
func (c *Cluster) take(id string) *Member {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if m == nil {
		c.T.Fatalf("%s does not run", id)
	}
	delete(c.members, id)
	return m
}

// Stop closes members as planned: a leader hands its leadership over.
func (c *Cluster) Stop(ids ...string) {
	c.T.Helper()
	for _, id := range ids {
		if err := c.take(id).Close(); err != nil {
			c.T.Errorf("close %s: %v", id, err)
		}
	}
}

// Kill takes the power from members, all at this instant: what was not synced is lost as Setup.Loss says, connections end. Calls to them that
// wait are undecided, whatever they return.
func (c *Cluster) Kill(ids ...string) {
	c.T.Helper()
	for _, id := range ids {
		m := c.take(id)
		m.host.die()
		c.mu.Lock()
		d, life := c.disks[id], c.starts
		c.mu.Unlock()
		d.mem.Crash(c.setup.Loss.keep(c.setup.Seed + uint64(life)))
		c.closing.Go(func() {
			_ = m.Close() // its disk and network are gone: it can only fail
		})
	}
}

// Wipe kills a member, if it runs, and gives it an empty disk.
func (c *Cluster) Wipe(id string) {
	c.T.Helper()
	if c.up(id) != nil {
		c.Kill(id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disks[id].Resume()
	c.disks[id] = newDisk(c.setup.SyncTime)
}

// stop ends everything, faults first.
func (c *Cluster) stop() {
	c.Heal()
	c.mu.Lock()
	members := c.members
	c.members = map[string]*Member{}
	for _, d := range c.disks {
		d.Resume()
	}
	c.mu.Unlock()
	for _, m := range members {
		c.closing.Go(func() {
			if err := m.Close(); err != nil {
				c.log.Warn("close", "id", m.ID, "error", err)
			}
		})
	}
	c.closing.Wait()
}

func (c *Cluster) up(id string) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[id]
}

// Member gives a member that runs.
func (c *Cluster) Member(id string) *Member {
	c.T.Helper()
	m := c.up(id)
	if m == nil {
		c.T.Fatalf("%s does not run", id)
	}
	return m
}

// Running gives the members that run, by name.
func (c *Cluster) Running() []*Member {
	var out []*Member
	for _, id := range c.ids {
		if m := c.up(id); m != nil {
			out = append(out, m)
		}
	}
	return out
}

// Disk gives the disk of a member, running or not.
func (c *Cluster) Disk(id string) *Disk {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.disks[id]
	if d == nil {
		c.T.Fatalf("there is no member %q", id)
	}
	return d
}

// Partition lets members talk only within their group; those that are not named make one more. It replaces an earlier partition.
func (c *Cluster) Partition(groups ...[]string) {
	side := map[string]int{}
	for i, g := range groups {
		for _, id := range g {
			side[id] = i + 1
		}
	}
	c.network.set(func() {
		clear(c.network.cut)
		for _, a := range c.ids {
			for _, b := range c.ids {
				if side[a] != side[b] {
					c.network.cut[link{a, b}] = true
				}
			}
		}
	})
}

// Cut stops the traffic from one member to another; the way back stays open.
func (c *Cluster) Cut(from, to string) {
	c.network.set(func() { c.network.cut[link{from, to}] = true })
}

// Delay sets the time from one member to another; a negative one restores the usual.
func (c *Cluster) Delay(from, to string, d time.Duration) {
	c.network.set(func() {
		if d < 0 {
			delete(c.network.delay, link{from, to})
		} else {
			c.network.delay[link{from, to}] = d
		}
	})
}

// Limit lets each connection from one member to another carry so many bytes a second; 0 ends that.
func (c *Cluster) Limit(from, to string, bytesPerSecond int64) {
	c.network.set(func() { c.network.rate[link{from, to}] = bytesPerSecond })
}

// Heal ends every Partition, Cut, Delay and Limit. What was sent meanwhile arrives now, where the connection still lasts.
func (c *Cluster) Heal() {
	c.network.set(func() {
		clear(c.network.cut)
		clear(c.network.delay)
		clear(c.network.rate)
	})
}

// Wait waits until cond holds. It is asked every millisecond of virtual time, while everything else stands still. what completes "waited in vain for".
func (c *Cluster) Wait(what string, cond func() bool) {
	c.T.Helper()
	for end := time.Now().Add(c.setup.Patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.T.Fatalf("waited in vain for %s\n%s", what, c.describe())
		}
	}
}

// describe tells the state of every member, for the message of a failed test.
func (c *Cluster) describe() string {
	var b strings.Builder
	for _, id := range c.ids {
		m := c.up(id)
		if m == nil {
			fmt.Fprintf(&b, "%s does not run\n", id)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := m.Status(ctx)
		cancel()
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", id, err)
			continue
		}
		fmt.Fprintf(&b, "%s %s of term %d, leader %q, log %d to %d, durable %d, commit %d, pending %d, failure %v\n", id, s.Role, s.Term, s.Leader, s.First, s.Last,
			s.Durable, s.Commit, s.Pending, s.Err)
		for _, p := range s.Peers {
			fmt.Fprintf(&b, "   %s: %s, %s, match %d, silent for %v %s\n", p.ID, p.Kind, p.State, p.Match, p.Idle, p.Refused)
		}
	}
	return b.String()
}

// Leader waits for a leader that a majority of all members follows, and gives it.
func (c *Cluster) Leader() *Member {
	c.T.Helper()
	var l *Member
	c.Wait("a leader", func() bool { l = c.leader(); return l != nil })
	return l
}

// leader gives the leader that a majority follows at this instant, or nil.
func (c *Cluster) leader() *Member {
	running := c.Running()
	for _, m := range running {
		if !m.IsLeader() {
			continue
		}
		n := 0
		for _, f := range running {
			if f.Leader() == m.ID {
				n++
			}
		}
		if n > len(c.ids)/2 {
			return m
		}
	}
	return nil
}

// Followers waits for a leader and gives the other members that run.
func (c *Cluster) Followers() []*Member {
	c.T.Helper()
	l := c.Leader()
	return slices.DeleteFunc(c.Running(), func(m *Member) bool { return m.ID == l.ID })
}

// Append appends at the leader, and again at the next one while it is refused for want of a leader. An error of another kind, and one that
// leaves the append undecided, is returned. Agree knows what was acknowledged here.
func (c *Cluster) Append(ctx context.Context, body []byte) (dledger.Entry, error) {
	for {
		if l := c.leader(); l != nil {
			e, err := l.Append(ctx, body)
			if err == nil {
				e.Body = slices.Clone(body)
				c.mu.Lock()
				c.acked = append(c.acked, e)
				c.mu.Unlock()
			}
			if !errors.Is(err, dledger.ErrNotLeader) && !errors.Is(err, dledger.ErrTransferring) && !errors.Is(err, dledger.ErrClosed) {
				return e, err
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return dledger.Entry{Index: -1, Term: -1, Pos: -1}, ctx.Err()
		}
	}
}

// WaitCommitted waits until members know entry i as committed; without ids, all that run.
func (c *Cluster) WaitCommitted(i dledger.Index, ids ...string) {
	c.T.Helper()
	c.Wait(fmt.Sprintf("entry %d to be committed", i), func() bool {
		for _, m := range c.Running() {
			if m.Commit() < i && (len(ids) == 0 || slices.Contains(ids, m.ID)) {
				return false
			}
		}
		return true
	})
}

// Agree ends all faults, starts what does not run, and waits until all members have committed the same entries. The test fails if an entry differs
// anywhere, or if one is missing or another that Append acknowledged. It returns the last index.
func (c *Cluster) Agree() dledger.Index {
	c.T.Helper()
	c.Heal()
	for _, id := range c.ids {
		c.Disk(id).Resume()
		if c.up(id) == nil {
			c.Start(id)
		}
	}
	l := c.Leader()
	ctx, cancel := context.WithTimeout(context.Background(), c.setup.Patience)
	defer cancel()
	last, err := l.Confirm(ctx)
	if err != nil {
		c.T.Fatalf("the leader cannot confirm that it leads: %v\n%s", err, c.describe())
	}
	c.WaitCommitted(last)
	for i := l.first(ctx); i <= last; i++ {
		want, err := l.Get(i)
		if err != nil {
			c.T.Fatalf("%s: entry %d: %v", l.ID, i, err)
		}
		for _, m := range c.Running() {
			if i < m.first(ctx) {
				continue
			}
			if got, err := m.Get(i); err != nil {
				c.T.Errorf("%s: entry %d: %v", m.ID, i, err)
			} else if got.Term != want.Term || string(got.Body) != string(want.Body) {
				c.T.Errorf("entry %d is %q of term %d on %s, %q of term %d on %s", i, got.Body, got.Term, m.ID, want.Body, want.Term, l.ID)
			}
		}
	}
	c.mu.Lock()
	acked := slices.Clone(c.acked)
	c.mu.Unlock()
	for _, e := range acked {
		if e.Index < l.first(ctx) {
			continue
		}
		if got, err := l.Get(e.Index); err != nil || got.Term != e.Term || string(got.Body) != string(e.Body) {
			c.T.Errorf("entry %d was acknowledged as %q of term %d, and is %q of term %d: %v", e.Index, e.Body, e.Term, got.Body, got.Term, err)
		}
	}
	return last
}

// first is the index of the first entry that a member keeps.
func (m *Member) first(ctx context.Context) dledger.Index {
	s, err := m.Status(ctx)
	if err != nil {
		return 0
	}
	return s.First
}
