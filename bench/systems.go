package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"dledger/interop/harness"
	"dledger/interop/original"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// cluster is three running processes of one system and a client for them. Nodes are 0, 1 and 2.
type cluster interface {
	// Append adds body to the log and gives its index when the system says it is safe. Any number may be under way.
	Append(ctx context.Context, body []byte) (uint64, error)
	// Get reads the entry at an index that Append gave.
	Get(ctx context.Context, index uint64) error
	// Leader is the node that leads; an error says that none does.
	Leader(ctx context.Context) (int, error)
	// Holds tells whether the node serves and has the entry at index.
	Holds(ctx context.Context, node int, index uint64) bool
	Start(node int) error
	Kill(node int)
	Pids() []int
	Close()
}

// system is one way to keep a replicated log on three nodes.
type system struct {
	Name string
	// Synced says that an acknowledged append is on the disks of two nodes, not in their page caches only.
	Synced bool
	// What the name leaves out: version, settings.
	Note string
	// Compiles says that its code becomes fast only while it runs: such a system is put under load before it is measured.
	Compiles bool
	// WayIn says that it differs from another system only in how requests get in, so that nothing else is measured again.
	WayIn bool
	// Embedded says that node 0 is part of this process, whose own usage cannot be told from its.
	Embedded bool
	start    func(dir string) (cluster, error) // leaves nothing running when it fails
	// batches, if set, gives batches of n entries of size bytes to a leader within the process of the load, inFlight at a time, and tells how many
	// entries a second were acknowledged, also when some failed.
	batches func(ctx context.Context, p plan, dir string, n, size, inFlight int) (perSec float64, err error)
}

// whole tells systems that keep a log, elect, and are processes that can be killed; the limit's leader is fixed.
func (s system) whole() bool { return !s.WayIn && !strings.HasPrefix(s.Name, "limit") }

// procs are three processes that are told apart by their arguments only.
type procs struct {
	dir  string
	argv [3][]string
	proc [3]*harness.Process
}

func (p *procs) Start(node int) (err error) {
	p.proc[node], err = harness.Start(p.argv[node], p.dir, filepath.Join(p.dir, fmt.Sprintf("n%d.log", node)), nil)
	return err
}

func (p *procs) Kill(node int) { p.proc[node].Kill() }

func (p *procs) Pids() (pids []int) {
	for _, q := range p.proc {
		pids = append(pids, q.Pid())
	}
	return pids
}

func (p *procs) startAll() error {
	for node := range p.argv {
		if err := p.Start(node); err != nil {
			p.killAll()
			return err
		}
	}
	return nil
}

func (p *procs) killAll() {
	for _, q := range p.proc {
		if q != nil {
			q.Kill()
		}
	}
}

func freeAddrs() ([]string, error) {
	var out []string
	for range 3 {
		port, err := harness.FreePort()
		if err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return out, nil
}

// role is the argument list that makes this program the node of a peer; main's switch takes it apart.
func role(kind string, id int, peers, addrs []string, dir string, sync bool) []string {
	return []string{self(), "-role", kind, "-id", fmt.Sprint(id), "-peers", strings.Join(peers, ","), "-addrs", strings.Join(addrs, ","),
		"-node-dir", mkdir(dir, fmt.Sprintf("node%d", id)), "-sync=" + fmt.Sprint(sync)}
}

func self() string {
	exe, err := os.Executable()
	if err != nil {
		fatal(err)
	}
	return exe
}

// pipeCluster is a system behind the pipe protocol: the limit and hashicorp/raft.
type pipeCluster struct {
	procs
	addrs []string

	mu     sync.Mutex
	conn   [3]*pipeClient
	leader int // -1 = look for it
}

func startPipe(kind string, dir string, sync bool) (cluster, error) {
	peers, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	c := &pipeCluster{procs: procs{dir: dir}, addrs: addrs, leader: -1}
	for id := range c.argv {
		c.argv[id] = role(kind, id, peers, addrs, dir, sync)
	}
	return c, c.startAll()
}

func (c *pipeCluster) to(node int) (*pipeClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.conn[node]; n != nil {
		n.callMu.Lock()
		dead := n.dead
		n.callMu.Unlock()
		if dead == nil {
			return n, nil
		}
	}
	n, err := dialPipe(c.addrs[node])
	if err == nil {
		c.conn[node] = n
	}
	return n, err
}

func (c *pipeCluster) status(ctx context.Context, node int) (pipeAnswer, error) {
	n, err := c.to(node)
	if err != nil {
		return pipeAnswer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return n.call(ctx, opStatus, 0, nil)
}

func (c *pipeCluster) Leader(ctx context.Context) (int, error) {
	for node := range c.addrs {
		if a, err := c.status(ctx, node); err == nil && a.status == pipeOK {
			return node, nil
		}
	}
	return -1, errors.New("no leader")
}

func (c *pipeCluster) call(ctx context.Context, op uint8, arg uint64, body []byte) (pipeAnswer, error) {
	c.mu.Lock()
	leader := c.leader
	c.mu.Unlock()
	if leader < 0 {
		var err error
		if leader, err = c.Leader(ctx); err != nil {
			return pipeAnswer{}, err
		}
		c.mu.Lock()
		c.leader = leader
		c.mu.Unlock()
	}
	n, err := c.to(leader)
	var a pipeAnswer
	if err == nil {
		a, err = n.call(ctx, op, arg, body)
	}
	if err == nil && a.status != pipeOK {
		err = fmt.Errorf("status %d", a.status)
	}
	if err != nil {
		c.mu.Lock()
		c.leader = -1
		c.mu.Unlock()
	}
	return a, err
}

func (c *pipeCluster) Append(ctx context.Context, body []byte) (uint64, error) {
	a, err := c.call(ctx, opAppend, 0, body)
	return a.value, err
}

func (c *pipeCluster) Get(ctx context.Context, index uint64) error {
	a, err := c.call(ctx, opGet, index, nil)
	if err == nil && len(a.body) == 0 {
		err = fmt.Errorf("entry %d is empty", index)
	}
	return err
}

func (c *pipeCluster) Holds(ctx context.Context, node int, index uint64) bool {
	a, err := c.status(ctx, node)
	return err == nil && a.status != pipeNoLeader && a.value >= index
}

func (c *pipeCluster) Close() {
	c.killAll()
	for _, n := range c.conn {
		if n != nil {
			n.close()
		}
	}
}

// groupCluster is a group of package harness, ours or Java's, through the original's JSON protocol.
type groupCluster struct {
	*harness.Group
	client *harness.Client
}

func newGroup(dir string, kind harness.Kind, ours map[string]string) (*groupCluster, error) {
	g, err := harness.NewGroup("bench", dir, kind, kind, kind)
	if err != nil {
		return nil, err
	}
	g.Settings = map[string]string{"diskSpaceRatioToCheckExpired": "0.99", "diskSpaceRatioToForceClean": "0.99"}
	g.GoOnly = ours
	g.JVM = []string{"-Xms512m", "-Xmx1g"} // all else is what the JVM chooses for this machine
	if kind.Java != nil {
		g.Settings["statusEveryMs"] = "100"
	}
	return &groupCluster{Group: g, client: g.Client()}, nil
}

func startGroup(dir string, kind harness.Kind, ours map[string]string) (*groupCluster, error) {
	g, err := newGroup(dir, kind, ours)
	if err != nil {
		return nil, err
	}
	if err := g.Group.Start(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (c *groupCluster) Append(ctx context.Context, body []byte) (uint64, error) {
	a, err := c.client.Append(ctx, body)
	return uint64(a.Index), err
}

func (c *groupCluster) Get(ctx context.Context, index uint64) error {
	_, err := c.client.Get(ctx, int64(index))
	return err
}

func (c *groupCluster) Leader(ctx context.Context) (int, error) {
	id, err := c.client.Leader(ctx)
	if err != nil {
		return -1, err
	}
	return c.at(id), nil
}

func (c *groupCluster) at(id string) int {
	for i, n := range c.Nodes {
		if n.ID == id {
			return i
		}
	}
	return -1
}

func (c *groupCluster) Holds(ctx context.Context, node int, index uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := c.Nodes[node]
	if a, err := c.client.Metadata(ctx, n.ID); err != nil || a.LeaderID == "" {
		return false
	}
	end, err := harness.EndOf(n.Root())
	return err == nil && end >= int64(index)
}

func (c *groupCluster) Start(node int) error { return c.Nodes[node].Start() }
func (c *groupCluster) Kill(node int)        { c.Nodes[node].Kill() }

func (c *groupCluster) Pids() (pids []int) {
	for _, n := range c.Nodes {
		pids = append(pids, n.Process().Pid())
	}
	return pids
}

func (c *groupCluster) Close() {
	c.client.Close()
	c.Group.Kill()
}

// natsCluster is a JetStream stream with three replicas.
type natsCluster struct {
	procs
	addrs []string

	mu sync.Mutex
	nc *nats.Conn
	js jetstream.JetStream
	st jetstream.Stream
}

const natsStream, natsSubject = "log", "log.x"

func startNATS(dir string, syncAlways bool) (cluster, error) {
	routes, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddrs()
	if err != nil {
		return nil, err
	}
	c := &natsCluster{procs: procs{dir: dir}, addrs: addrs}
	for id := range c.argv {
		c.argv[id] = role("nats", id, routes, addrs, dir, syncAlways)
	}
	return c, c.startAll()
}

// stream connects to all servers and finds or makes the stream.
func (c *natsCluster) stream(ctx context.Context) (jetstream.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st != nil {
		return c.st, nil
	}
	if c.nc == nil {
		nc, err := nats.Connect(strings.Join(c.addrs, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
			nats.ReconnectJitter(0, 0), nats.DontRandomize(), nats.Timeout(time.Second),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // it would print what calls return anyway
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
		if err != nil {
			return nil, err
		}
		c.nc, c.js = nc, js
	}
	one, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := c.js.CreateOrUpdateStream(one, jetstream.StreamConfig{Name: natsStream, Subjects: []string{natsSubject}, Replicas: 3,
		Storage: jetstream.FileStorage, AllowDirect: true})
	if err != nil {
		return nil, err
	}
	c.st = st
	return st, nil
}

func (c *natsCluster) Append(ctx context.Context, body []byte) (uint64, error) {
	if _, err := c.stream(ctx); err != nil {
		return 0, err
	}
	f, err := c.js.PublishMsgAsync(&nats.Msg{Subject: natsSubject, Data: body})
	if err != nil {
		return 0, err
	}
	select {
	case a := <-f.Ok():
		return a.Sequence, nil
	case err := <-f.Err():
		return 0, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *natsCluster) Get(ctx context.Context, index uint64) error {
	st, err := c.stream(ctx)
	if err != nil {
		return err
	}
	_, err = st.GetMsg(ctx, index)
	return err
}

func (c *natsCluster) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	st, err := c.stream(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return st.Info(ctx)
}

func (c *natsCluster) Leader(ctx context.Context) (int, error) {
	i, err := c.info(ctx)
	if err != nil {
		return -1, err
	}
	if i.Cluster == nil || i.Cluster.Leader == "" {
		return -1, errors.New("no leader")
	}
	return int(i.Cluster.Leader[1] - '0'), nil
}

func (c *natsCluster) Holds(ctx context.Context, node int, index uint64) bool {
	i, err := c.info(ctx)
	if err != nil || i.Cluster == nil || i.State.LastSeq < index {
		return false
	}
	name := fmt.Sprintf("s%d", node)
	if i.Cluster.Leader == name {
		return true
	}
	for _, r := range i.Cluster.Replicas {
		if r.Name == name {
			return r.Current && !r.Offline && r.Lag == 0
		}
	}
	return false
}

func (c *natsCluster) Close() {
	c.killAll()
	if c.nc != nil {
		c.nc.Close()
	}
}

// systems are all that can be measured here; the reasons why others cannot are printed by the caller.
func systems(ctx context.Context, dledger string) (all []system, missing []string) {
	add := func(name string, synced bool, note string, start func(string) (cluster, error)) {
		all = append(all, system{Name: name, Synced: synced, Note: note, start: start})
	}
	add("limit+sync", true, "three processes that only copy, write and fdatasync", func(dir string) (cluster, error) { return startPipe("limit", dir, true) })
	for _, durability := range []string{"group", "async"} {
		synced := durability == "group"
		add("ours "+durability, synced, "compat go, package client", func(dir string) (cluster, error) {
			return startOurs(dir, dledger, durability)
		})
		add("ours "+durability+" json", synced, "compat go, the original's client protocol", func(dir string) (cluster, error) {
			return startGroup(dir, harness.Kind{Go: dledger}, map[string]string{"compat": "go", "durability": durability})
		})
		add("ours "+durability+" embed", synced, "compat go, the leader embedded in the process of the load", func(dir string) (cluster, error) {
			return startInProcess(dir, dledger, durability)
		})
		all[len(all)-1].batches = func(ctx context.Context, p plan, dir string, n, size, inFlight int) (float64, error) {
			return embeddedBatches(ctx, p, dir, dledger, durability, n, size, inFlight)
		}
		all[len(all)-2].WayIn = true
		all[len(all)-1].WayIn, all[len(all)-1].Embedded = true, true
	}
	add("hashicorp/raft", true, "v1.8.0, raft-wal v0.4.0, MaxAppendEntries 1024, BatchApplyCh", func(dir string) (cluster, error) { return startPipe("hraft", dir, true) })
	add("nats R3 sync", true, "v2.15.3, SyncAlways", func(dir string) (cluster, error) { return startNATS(dir, true) })
	add("limit", false, "three processes that only copy and write", func(dir string) (cluster, error) { return startPipe("limit", dir, false) })
	for _, g := range []original.Generation{original.G03, original.G04} {
		kit, err := original.Fetch(ctx, g)
		if err != nil {
			missing = append(missing, fmt.Sprintf("java %s: %v", g, err))
			continue
		}
		add("java "+g.Version(), false, "the original, -Xmx1g", func(dir string) (cluster, error) {
			return startGroup(dir, harness.Kind{Java: kit}, nil)
		})
		all[len(all)-1].Compiles = true
		all[len(all)-1].batches = func(ctx context.Context, p plan, dir string, n, size, inFlight int) (float64, error) {
			return originalBatches(ctx, p, kit, dir, n, size, inFlight)
		}
	}
	add("nats R3", false, "v2.15.3, default: syncs every 2 min", func(dir string) (cluster, error) { return startNATS(dir, false) })
	return all, missing
}
