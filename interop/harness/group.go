// Package harness runs groups of real server processes, ours and the Java original's, on loopback ports, puts load on them and
// judges what is left in their data directories. It is written against the protocol and the file format alone: it
// imports nothing of the code it judges except the originals' launcher. Start at Group; Client is the wire, Load the load, Log the files.
package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger/interop/original"
)

// Status is what a Java node prints of itself; see original/Node.java.
type Status struct {
	Role   string `json:"role"`
	Term   int64  `json:"term"`
	Leader string `json:"leader"`
	Begin  int64  `json:"begin"`
	End    int64  `json:"end"`
	Commit int64  `json:"commit"`
}

// Kind says how to start a node. Exactly one of the fields is set.
type Kind struct {
	Go   string        // path of our program
	Java *original.Kit // the original
}

// String is "go" or "java 0.3".
func (k Kind) String() string {
	if k.Java != nil {
		return "java " + string(k.Java.Gen)
	}
	return "go"
}

// Node is one member of a Group and, while it runs, its process.
type Node struct {
	ID   string
	Kind Kind
	Port int
	// Peers, if set, is the peers string as this node shall see it; the group's otherwise.
	Peers string

	// Wrap, if set before Start, gives the command line that runs the node's: for limits that a process takes over from another.
	Wrap func(argv []string) []string
	// Watch, if set before Start, is called with every status a Java node prints, on a goroutine of the process.
	Watch func(Status)

	group *Group
	base  string
	argv  []string // instead of what Kind says
	proc  *Process

	mu     sync.Mutex
	status Status // of a Java node: the last line it printed
}

// Group is a set of nodes with one peers string and one set of settings. Its methods are for one goroutine, Client calls for any.
type Group struct {
	Name  string
	Dir   string // holds a store base directory and a log file per node
	Peers string
	Nodes []*Node // in the order of their ids n0, n1, …

	Settings map[string]string // for every node; keys of DLedgerConfig
	GoOnly   map[string]string // for our nodes: compat, durability
	JVM      []string          // Java options
}

// Quick are the original's timers at a fifth, so that tests wait little and busy machines depose few leaders, and small files, so that they
// roll. Mixed groups need equal timers and equal sizes on all nodes.
func Quick() map[string]string {
	return map[string]string{
		"heartBeatTimeIntervalMs":       "400",
		"maxHeartBeatLeak":              "3",
		"minVoteIntervalMs":             "60",
		"maxVoteIntervalMs":             "200",
		"mappedFileSizeForEntryData":    "262144",
		"mappedFileSizeForEntryIndex":   "65536",
		"diskSpaceRatioToCheckExpired":  "0.99", // a fuller disk is not what these tests are about
		"diskSpaceRatioToForceClean":    "0.99",
		"leadershipTransferWaitTimeout": "1000",
	}
}

// DefaultTimers makes the nodes keep the timers they have when nobody sets any: for groups whose leader is to stay, whatever else this machine
// does, and for measuring.
func (g *Group) DefaultTimers() {
	for key := range g.Settings {
		if strings.HasPrefix(key, "heartBeat") || strings.HasPrefix(key, "maxHeartBeat") || strings.HasSuffix(key, "VoteIntervalMs") {
			delete(g.Settings, key)
		}
	}
}

// NewGroup places one node of each kind on free ports; it starts none. dir must exist.
func NewGroup(name, dir string, kinds ...Kind) (*Group, error) {
	g := &Group{Name: name, Dir: dir, Settings: Quick(), GoOnly: map[string]string{}, JVM: original.Lean}
	var peers []string
	for i, k := range kinds {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		n := &Node{ID: fmt.Sprintf("n%d", i), Kind: k, Port: port, group: g}
		n.base = filepath.Join(dir, n.ID)
		g.Nodes = append(g.Nodes, n)
		peers = append(peers, fmt.Sprintf("%s-127.0.0.1:%d", n.ID, port))
	}
	g.Peers = strings.Join(peers, ";")
	return g, nil
}

// Attach makes a group of nodes that somebody else has started, with one store base directory for all. argv, by id, is what starts each
// again; the group knows no process until its Start.
func Attach(name, peers, dir string, argv map[string][]string) (*Group, error) {
	g := &Group{Name: name, Dir: dir, Peers: peers}
	for _, p := range strings.Split(peers, ";") {
		id, addr, ok := strings.Cut(p, "-")
		_, port, err := net.SplitHostPort(addr)
		if !ok || err != nil {
			return nil, fmt.Errorf("peer %q is not id-host:port", p)
		}
		n := &Node{ID: id, group: g, base: dir, argv: argv[id]}
		if n.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("port of peer %q: %w", p, err)
		}
		g.Nodes = append(g.Nodes, n)
	}
	return g, nil
}

// Node gives the member with this id; nil if there is none.
func (g *Group) Node(id string) *Node {
	for _, n := range g.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// Start starts every node that does not run, without waiting for anything.
func (g *Group) Start() error {
	for _, n := range g.Nodes {
		if !n.Running() {
			if err := n.Start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Kill ends all nodes with SIGKILL.
func (g *Group) Kill() {
	for _, n := range g.Nodes {
		n.Kill()
	}
}

// Stop ends all nodes in an orderly way, at the same time.
func (g *Group) Stop() error {
	errs := make(chan error, len(g.Nodes))
	for _, n := range g.Nodes {
		go func() { errs <- n.Stop() }()
	}
	var all error
	for range g.Nodes {
		all = errors.Join(all, <-errs)
	}
	return all
}

// Client makes a new client for this group.
func (g *Group) Client() *Client {
	c, err := NewClient(g.Name, g.Peers)
	if err != nil {
		panic(err) // NewGroup wrote the peers string
	}
	return c
}

// WaitLeader waits until a running node says it leads and has taken an append, and gives it. The append's body is "hello".
func (g *Group) WaitLeader(ctx context.Context) (*Node, error) {
	c := g.Client()
	defer c.Close()
	id := ""
	err := Until(ctx, "a leader that takes appends", func() bool {
		one, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var err error
		if id, err = c.Leader(one); err != nil {
			return false
		}
		_, err = c.AppendTo(one, id, []byte("hello"))
		return err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, g.Logs())
	}
	return g.Node(id), nil
}

// Lead moves leadership to node to and waits until it leads, asking again as often as needed: a transfer may be refused while
// the log moves, and an election may end otherwise.
func (g *Group) Lead(ctx context.Context, to *Node) error {
	c := g.Client()
	defer c.Close()
	var last error
	err := Until(ctx, "leadership of "+to.ID, func() bool {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		from, err := c.Leader(one)
		if err != nil {
			last = err
			return false
		}
		if from == to.ID {
			return true
		}
		// Only an answer to an append tells the term.
		a, err := c.AppendTo(one, from, []byte("which term"))
		if err == nil {
			err = c.Transfer(one, from, to.ID, a.Term)
		}
		if err != nil {
			last = err
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("%w; last refusal: %v\n%s", err, last, g.Logs())
	}
	return nil
}

// Logs gives the last lines of every node's log, for a failed test.
func (g *Group) Logs() string {
	var b strings.Builder
	for _, n := range g.Nodes {
		text, err := os.ReadFile(n.logFile())
		if err != nil {
			continue // it never started
		}
		if len(text) > 4000 {
			text = text[len(text)-4000:]
		}
		fmt.Fprintf(&b, "--- %s (%s) %+v\n%s\n", n.ID, n.Kind, n.Status(), text)
	}
	return b.String()
}

func (n *Node) logFile() string { return filepath.Join(n.group.Dir, n.ID+".log") }

// Base is the node's store base directory, which its restarts share.
func (n *Node) Base() string { return n.base }

// Root is the directory with the node's data and index directories.
func (n *Node) Root() string { return filepath.Join(n.Base(), "dledger-"+n.ID) }

// Running tells whether the node's process is there.
func (n *Node) Running() bool {
	if n.proc == nil {
		return false
	}
	select {
	case <-n.proc.Done():
		return false
	default:
		return true
	}
}

// Process is the node's running, or last, process; nil before the first Start.
func (n *Node) Process() *Process { return n.proc }

// Start starts the node's process.
func (n *Node) Start() error {
	if err := os.MkdirAll(n.Base(), 0o755); err != nil {
		return fmt.Errorf("make store directory: %w", err)
	}
	argv, line := n.argv, (func([]byte))(nil)
	switch {
	case argv != nil:
	case n.Kind.Java != nil:
		argv, line = n.javaArgs(), n.takeStatus
	default:
		argv = n.goArgs()
	}
	if n.Wrap != nil {
		argv = n.Wrap(argv)
	}
	p, err := Start(argv, n.group.Dir, n.logFile(), line)
	if err != nil {
		return err
	}
	n.proc = p
	return nil
}

func (n *Node) javaArgs() []string {
	g := n.group
	settings := maps.Clone(g.Settings)
	settings["group"], settings["selfId"], settings["peers"], settings["storeBaseDir"] = g.Name, n.ID, n.peers(), n.Base()
	return n.Kind.Java.Node(g.JVM, g.Dir, pairs(settings)...)
}

func (n *Node) goArgs() []string {
	g := n.group
	settings := maps.Clone(g.Settings)
	maps.Copy(settings, g.GoOnly)
	argv := []string{n.Kind.Go, "server", "-g", g.Name, "-i", n.ID, "-p", n.peers(), "-s", n.Base()}
	for _, kv := range pairs(settings) {
		argv = append(argv, "--set", kv)
	}
	return argv
}

func (n *Node) peers() string {
	if n.Peers != "" {
		return n.Peers
	}
	return n.group.Peers
}

func pairs(m map[string]string) []string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

func (n *Node) takeStatus(line []byte) {
	var s Status
	if json.Unmarshal(line, &s) != nil {
		return // something else that the original prints
	}
	n.mu.Lock()
	n.status = s
	n.mu.Unlock()
	if n.Watch != nil {
		n.Watch(s)
	}
}

// Status is what a Java node last said of itself; zero for others.
func (n *Node) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// Kill ends the node as a power switch ends a process, and waits until it is gone.
func (n *Node) Kill() {
	if n.proc != nil {
		n.proc.Kill()
	}
}

// Stop ends the node in an orderly way. One that does not run is fine.
func (n *Node) Stop() error {
	if !n.Running() {
		return nil
	}
	if err := n.proc.Stop(20 * time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", n.ID, err)
	}
	return nil
}
