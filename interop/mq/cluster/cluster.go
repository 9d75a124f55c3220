// Package cluster runs a name server and broker groups as processes on loopback ports: the stock RocketMQ ones, or ours with the same
// configuration files, or ours as `dledger up` starts them. It imports nothing of the code it judges. Start at Start and Up.
package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"dledger/interop/harness"
	"dledger/interop/mq/stock"
)

// Cluster is a name server and the members of its broker groups. Its methods are for one goroutine, but for Ask and Leader.
type Cluster struct {
	Dir        string
	NameServer string // host:port; `;` between several
	Peers      string // of the logs
	Nodes      []*Node
	Sides      []string         // the name servers as the clients of each side reach them: one side, NameServer, but for StartApart
	Network    *harness.Network // of StartApart, between the logs; who starts it closes it
	Ports      *harness.Network // of StartApart, between everybody else, see apart; who starts it closes it

	names  []*harness.Process                 // name servers that are processes of their own
	again  []func() (*harness.Process, error) // starts the name servers of Start
	up     *harness.Process                   // `dledger up`, which runs all of it, until a node is killed
	behind map[string]string                  // by an address that brokers tell, where it is reached without a proxy; the others are not in it
	pids   []*atomic.Int64                    // of the brokers' processes, if they are apart: for goroutines of Ports
}

// Node is a process that holds members of broker groups, one of Start's and, under `dledger up`, one of each.
type Node struct {
	ID    string
	Addrs []string // where it serves clients, one for each member it holds

	argv, env []string
	dir, log  string
	lines     []string // of its configuration, those of its kind left out
	proc      *harness.Process
	runs      *atomic.Int64 // if not nil: gets the id of proc's process
	pid       int           // under `dledger up`, until it is killed
}

const (
	// ClusterName and BrokerName are the names in the clusters of Start.
	ClusterName = "DefaultCluster"
	BrokerName  = "broker-a"
)

// Kind says which servers to start. Exactly one of Program and Kit is set.
type Kind struct {
	Program string     // ours
	Kit     *stock.Kit // the stock ones

	Lines    []string // more lines for the brokers' configuration
	Replicas int      // brokers in the group of Start, 3 if it is 0
	Pair     bool     // of the stock ones: an asynchronous master and its slave in place of a group in DLedger mode
}

func (k Kind) nameServer(home, conf string) []string {
	if k.Kit != nil {
		return k.Kit.NameServer(home, conf)
	}
	return []string{k.Program, "namesrv", "-c", conf}
}

func (k Kind) broker(home, conf string) []string {
	if k.Kit != nil {
		return k.Kit.Broker(home, conf)
	}
	return []string{k.Program, "broker", "-c", conf}
}

// Start starts a name server and one group of brokers, three in DLedger mode unless their kind says otherwise. Configuration files are the same for both kinds.
func Start(dir string, names, brokers Kind) (*Cluster, error) {
	n := brokers.Replicas
	switch {
	case brokers.Pair:
		n = 2
	case n == 0:
		n = 3
	}
	return StartMixed(dir, names, slices.Repeat([]Kind{brokers}, n)...)
}

// StartMixed is Start for a group in which each broker, three at most, is of its own kind.
func StartMixed(dir string, names Kind, brokers ...Kind) (*Cluster, error) {
	return startGroup(dir, false, names, brokers...)
}

// StartApart is Start with two name servers, Network between the logs of three brokers, and Ports between everybody else. A test that asks at NameServer or Node.Addrs goes
// by neither.
func StartApart(dir string, names, brokers Kind) (*Cluster, error) {
	return startGroup(dir, true, names, slices.Repeat([]Kind{brokers}, 3)...)
}

func startGroup(dir string, apart bool, names Kind, brokers ...Kind) (*Cluster, error) {
	servers, bind := 1, ""
	if apart {
		servers, bind = 2, "bindAddress=127.0.0.1\n" // the proxies have the same ports at other addresses
	}
	// A broker listens on its port, the one two below it for old clients, and says the one above it, for the original's replication.
	base, err := block(servers + 3*4 + 3)
	if err != nil {
		return nil, err
	}
	ports := base + servers - 1 // those of brokers are behind it
	c := &Cluster{Dir: dir, behind: map[string]string{}}
	env := append(os.Environ(), "ROCKETMQ_HOME="+dir)
	var at []string // the name servers
	for i := range servers {
		home := filepath.Join(dir, Name(i))
		if err := os.MkdirAll(home, 0o755); err != nil {
			return nil, fmt.Errorf("make directory of the name server: %w", err)
		}
		file, err := write(filepath.Join(dir, Name(i)+".conf"), bind+fmt.Sprintf("listenPort=%d\nkvConfigPath=%[2]s/kvConfig.json\nconfigStorePath=%[2]s/namesrv.properties\n", base+i, home))
		if err != nil {
			return nil, err
		}
		c.again = append(c.again, func() (*harness.Process, error) {
			return start(names.nameServer(home, file), env, dir, filepath.Join(dir, Name(i)+".log"), nil)
		})
		at = append(at, fmt.Sprintf("127.0.0.1:%d", base+i))
	}
	c.NameServer = strings.Join(at, ";")
	c.Sides = []string{c.NameServer}
	if err := c.startNames(); err != nil {
		return nil, err
	}
	var members []string
	var ends []harness.Endpoint
	for i := range brokers {
		id, port := fmt.Sprintf("n%d", i), ports+13+i
		members = append(members, fmt.Sprintf("%s-127.0.0.1:%d", id, port))
		ends = append(ends, harness.Endpoint{ID: id, Port: port})
	}
	c.Peers = strings.Join(members, ";")
	peers := slices.Repeat([]string{c.Peers}, len(brokers))
	if apart {
		if c.Network, peers, err = harness.Between(ends); err != nil {
			c.Kill()
			return nil, err
		}
	}
	known := slices.Repeat([]string{c.NameServer}, len(brokers))
	var told []string
	for i := range brokers {
		told = append(told, fmt.Sprintf("127.0.0.1:%d", ports+1+4*i+2))
	}
	if apart {
		if known, told, err = c.apart(at, told); err != nil {
			c.Kill()
			return nil, errors.Join(err, c.Ports.Close(), c.Network.Close())
		}
	}
	for i, kind := range brokers {
		id := fmt.Sprintf("n%d", i)
		ip, _, _ := strings.Cut(told[i], ":")
		port := ports + 1 + 4*i + 2
		if err := os.MkdirAll(filepath.Join(dir, id), 0o755); err != nil {
			return nil, fmt.Errorf("make directory of %s: %w", id, err)
		}
		lines := []string{
			"brokerClusterName=" + ClusterName,
			"brokerName=" + BrokerName,
			"brokerIP1=" + ip,
			"listenPort=" + strconv.Itoa(port),
			"namesrvAddr=" + known[i],
			"storePathRootDir=" + filepath.Join(dir, id, "store"),
			"enablePropertyFilter=true",
			"transactionCheckInterval=2000",
			"waitTimeMillsInSendQueue=10000", // on a busy machine the original would refuse sends
			"mappedFileSizeCommitLog=67108864",
			"mappedFileSizeConsumeQueue=600000",
			"mappedFileSizeTimerLog=1048576",
			"diskMaxUsedSpaceRatio=95", // a fuller disk is not what these tests are about
		}
		if kind.Pair {
			lines = append(lines, fmt.Sprintf("brokerId=%d", i), "brokerRole="+[]string{"ASYNC_MASTER", "SLAVE"}[i], fmt.Sprintf("haListenPort=%d", port+1))
		} else {
			lines = append(lines, "enableDLegerCommitLog=true", "dLegerGroup="+BrokerName, "dLegerPeers="+peers[i], "dLegerSelfId="+id)
		}
		n := &Node{ID: id, Addrs: []string{fmt.Sprintf("127.0.0.1:%d", port)}, env: env, dir: dir, log: filepath.Join(dir, id+".log"), lines: lines}
		if apart {
			n.lines = append(n.lines, strings.TrimSpace(bind))
			n.runs = c.pids[i]
		}
		c.Nodes = append(c.Nodes, n)
		err := n.Become(kind)
		if err == nil {
			err = n.Start()
		}
		if err != nil {
			c.Kill()
			return nil, err
		}
	}
	return c, nil
}

// startNames starts the name servers of Start.
func (c *Cluster) startNames() error {
	c.names = nil
	for _, again := range c.again {
		p, err := again()
		if err != nil {
			c.Kill()
			return err
		}
		c.names = append(c.names, p)
	}
	return nil
}

func write(name, text string) (string, error) {
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return name, nil
}

// start is harness.Start with an environment, for which a shell is not needed: env(1) is everywhere.
func start(argv, env []string, dir, log string, line func([]byte)) (*harness.Process, error) {
	home := ""
	for _, kv := range env {
		if strings.HasPrefix(kv, "ROCKETMQ_HOME=") {
			home = kv
		}
	}
	if home != "" {
		argv = append([]string{"/usr/bin/env", home}, argv...)
	}
	return harness.Start(argv, dir, log, line)
}

// block finds n ports in a row on which nobody listens and gives the first.
func block(n int) (int, error) {
	var row []int
	for i := range n {
		row = append(row, i)
	}
	return harness.FreePorts(row...)
}

// Ready waits until every name server that runs names a leader for each of groups broker groups, and those take a new topic.
func (c *Cluster) Ready(ctx context.Context, groups int) error {
	var last error
	err := harness.Until(ctx, "broker groups that lead", func() bool {
		if ctx.Err() != nil {
			return false // and last tells of the time before
		}
		var leaders map[string]string
		for server := range strings.SplitSeq(c.NameServer, ";") {
			known, err := c.leadersOf(ctx, server)
			switch {
			case err != nil && strings.Contains(c.NameServer, ";"):
				continue // it may have been killed
			case err != nil || len(known) < groups:
				last = errors.Join(err, fmt.Errorf("name server %s knows %d leaders", server, len(known)))
				return false
			}
			leaders = known
		}
		for name, addr := range leaders {
			began := time.Now()
			if err := c.CreateTopicAt(ctx, addr, "ready", 1); err != nil {
				last = fmt.Errorf("%s, after %v: %w", name, time.Since(began).Round(time.Millisecond), err)
				return false
			}
		}
		return len(leaders) >= groups
	})
	if err != nil {
		return fmt.Errorf("%w: %w\n%s", err, last, c.Logs())
	}
	return nil
}

// Serves waits until a node that was started answers at every address: what is sent to it before that fails, and clients that have not asked for routes again may do so.
func (c *Cluster) Serves(ctx context.Context, n *Node) error {
	var last error
	err := harness.Until(ctx, n.ID+" to serve", func() bool {
		for _, addr := range n.Addrs {
			if _, err := Ask(ctx, addr, 28, nil, nil); err != nil {
				last = err
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%w: %w\n%s", err, last, c.Logs())
	}
	return nil
}

// Leaders asks a name server for the address of id 0 by broker name.
func (c *Cluster) Leaders(ctx context.Context) (map[string]string, error) {
	var all error
	for server := range strings.SplitSeq(c.NameServer, ";") {
		leaders, err := c.leadersOf(ctx, server)
		if err == nil {
			return leaders, nil
		}
		all = errors.Join(all, err)
	}
	return nil, all
}

// LeaderAt is the node under id 0 of a broker group at the i-th name server, nil if there is none.
func (c *Cluster) LeaderAt(ctx context.Context, i int, broker string) *Node {
	leaders, err := c.leadersOf(ctx, strings.Split(c.NameServer, ";")[i])
	if err != nil {
		return nil
	}
	return c.NodeAt(leaders[broker])
}

// Leader waits until a name server names a leader of a broker group, and gives the node that it is.
func (c *Cluster) Leader(ctx context.Context, broker string) (n *Node, err error) {
	err = harness.Until(ctx, "a leader of "+broker, func() bool {
		leaders, err := c.Leaders(ctx)
		n = c.NodeAt(leaders[broker])
		return err == nil && n != nil
	})
	return n, err
}

func (c *Cluster) leadersOf(ctx context.Context, server string) (map[string]string, error) {
	r, err := Ask(ctx, server, 106, nil, nil)
	if err != nil {
		return nil, err
	}
	if r.Code != 0 {
		return nil, fmt.Errorf("name server answers %d to the question for its cluster: %s", r.Code, r.Remark)
	}
	var info struct {
		BrokerAddrTable map[string]struct {
			BrokerAddrs map[string]string
		}
	}
	if err := json.Unmarshal(unquoted.ReplaceAll(r.Body, []byte(`$1"$2":`)), &info); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", r.Body, err)
	}
	leaders := map[string]string{}
	for name, b := range info.BrokerAddrTable {
		if addr := b.BrokerAddrs["0"]; addr != "" {
			leaders[name] = cmp.Or(c.behind[addr], addr)
		}
	}
	return leaders, nil
}

var unquoted = regexp.MustCompile(`([{,])(-?\d+):`) // the original writes integer keys bare

// CreateTopic makes a topic with queues on every broker group and waits until the name servers know it.
func (c *Cluster) CreateTopic(ctx context.Context, topic string, queues int) error {
	leaders, err := c.Leaders(ctx)
	if err != nil {
		return err
	}
	for _, addr := range leaders {
		if err := c.CreateTopicAt(ctx, addr, topic, queues); err != nil {
			return err
		}
	}
	return c.Routed(ctx, topic, len(leaders))
}

// Routed waits until every name server that runs knows a topic of as many broker groups.
func (c *Cluster) Routed(ctx context.Context, topic string, groups int) error {
	for server := range strings.SplitSeq(c.NameServer, ";") {
		var said string // at last
		err := harness.Until(ctx, "a route for "+topic+" at "+server, func() bool {
			r, err := Ask(ctx, server, 105, map[string]string{"topic": topic}, nil)
			if ctx.Err() == nil {
				said = fmt.Sprintf("code %d %s %s, %v", r.Code, r.Remark, r.Body, err)
			}
			return err == nil && r.Code == 0 && bytes.Count(r.Body, []byte(`"writeQueueNums"`)) == groups
		})
		if err != nil {
			return fmt.Errorf("%w; it says %s", err, said)
		}
	}
	return nil
}

// CreateTopicAt makes a topic on the broker at addr.
func (c *Cluster) CreateTopicAt(ctx context.Context, addr, topic string, queues int) error {
	n := strconv.Itoa(queues)
	r, err := Ask(ctx, addr, 17, map[string]string{"topic": topic, "defaultTopic": "TBW102", "readQueueNums": n, "writeQueueNums": n, "perm": "6",
		"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}, nil)
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return fmt.Errorf("broker %s answers %d to a new topic: %s", addr, r.Code, r.Remark)
	}
	return nil
}

// NodeAt gives the node that serves clients at addr; nil if there is none.
func (c *Cluster) NodeAt(addr string) *Node {
	for _, n := range c.Nodes {
		if slices.Contains(n.Addrs, addr) {
			return n
		}
	}
	return nil
}

// RestartNames kills the name servers of Start and starts them again: they know nothing then.
func (c *Cluster) RestartNames() error {
	for _, p := range c.names {
		p.Kill()
	}
	return c.startNames()
}

// Kill ends everything with SIGKILL.
func (c *Cluster) Kill() {
	if c.up != nil {
		_ = c.up.Stop(10 * time.Second) // it ends its nodes; those that are gone make it fail, and here some are
		c.up = nil
	}
	for _, n := range c.Nodes {
		n.Kill()
	}
	for _, p := range c.names {
		p.Kill()
	}
	c.names = nil
}

// Logs gives the last lines of every log, for a failed test.
func (c *Cluster) Logs() string {
	files, _ := filepath.Glob(filepath.Join(c.Dir, "*.log")) // the pattern is right
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it was there a moment ago
		}
		text = chatter.ReplaceAll(text, nil)
		text = text[max(0, len(text)-3000):]
		fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), text)
	}
	return b.String()
}

var chatter = regexp.MustCompile(`(?m)^.* \|-(INFO|WARN) in .*\n`) // what the original's logging says of itself
// Become makes the node one of another kind from its next start on, in the same directories and with the same configuration but for the kind's own lines.
func (n *Node) Become(k Kind) error {
	file, err := write(filepath.Join(n.dir, n.ID+".conf"), strings.Join(slices.Concat(n.lines, k.Lines), "\n")+"\n")
	if err != nil {
		return err
	}
	n.argv = k.broker(filepath.Join(n.dir, n.ID), file)
	return nil
}

// Store is the node's storePathRootDir, Root the directory of its log in there.
func (n *Node) Store() string { return filepath.Join(n.dir, n.ID, "store") }
func (n *Node) Root() string  { return filepath.Join(n.Store(), "dledger-"+n.ID) }

// Start starts the node with the command line it had.
func (n *Node) Start() error {
	p, err := start(n.argv, n.env, n.dir, n.log, nil)
	if err != nil {
		return err
	}
	n.proc, n.pid = p, 0
	if n.runs != nil {
		n.runs.Store(int64(p.Pid()))
	}
	return nil
}

// Kill ends the node as a power switch ends a process, and waits until it is gone.
func (n *Node) Kill() {
	if n.proc != nil {
		n.proc.Kill()
		return
	}
	if n.pid == 0 {
		return
	}
	for syscall.Kill(n.pid, syscall.SIGKILL) == nil { // its parent collects it, and then there is no such process
		time.Sleep(time.Millisecond)
	}
	n.pid = 0
}

// Pid is the id of the node's process.
func (n *Node) Pid() int {
	if n.proc != nil {
		return n.proc.Pid()
	}
	return n.pid
}

// Stop ends the node in an orderly way, as an operator would, within grace; two signals say that there is no time for clients to go elsewhere. A node
// that does not end writes what its goroutines, or threads, do to its log.
func (n *Node) Stop(grace time.Duration) error {
	if err := n.Term(); err != nil {
		return err
	}
	pid := n.id()
	for end := time.Now().Add(grace); n.Running(); time.Sleep(time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGQUIT) // if it is gone now, so much the better
		time.Sleep(time.Second)
		n.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM", n.ID, grace)
	}
	n.pid = 0
	return nil
}

// Term asks the node to end.
func (n *Node) Term() error {
	if !n.Running() {
		return nil
	}
	if err := syscall.Kill(n.id(), syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", n.ID, err)
	}
	return nil
}

func (n *Node) id() int {
	if n.proc != nil {
		return n.proc.Pid()
	}
	return n.pid
}

// Running tells whether the node's process is there.
func (n *Node) Running() bool {
	if n.proc == nil {
		return n.pid != 0 && syscall.Kill(n.pid, 0) == nil // its parent collects it, and then there is no such process
	}
	select {
	case <-n.proc.Done():
		return false
	default:
		return true
	}
}
