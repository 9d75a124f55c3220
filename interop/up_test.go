package interop

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dledger/interop/harness"
)

// A person's first cluster: `dledger up --nodes 3` under load; the leader is killed twenty times and started again with the command line it
// had; every acknowledged append is on all three nodes in the end.
func TestUpKeepsAcknowledgedEntriesOverKillsOfTheLeader(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	nodes := up(t, ours(t).Go, dir)
	var peers []string
	argv := map[string][]string{}
	kill := map[string]func(){} // by id, the node that runs
	for _, n := range nodes {
		peers = append(peers, n.id+"-"+n.addr)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.pid))
		must(t, err)
		argv[n.id] = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		kill[n.id] = func() { must(t, syscall.Kill(n.pid, syscall.SIGKILL)) }
	}
	g, err := harness.Attach("default", strings.Join(peers, ";"), dir, argv)
	must(t, err)
	t.Cleanup(g.Kill)
	load := harness.StartLoad(g, "up", 16, 200)
	c := g.Client()
	defer c.Close()
	var waits []time.Duration
	for i := range 20 {
		must(t, load.More(within(t, limit), 200))
		id, err := c.Leader(within(t, limit))
		must(t, err)
		term, killed := load.Term(), time.Now()
		kill[id]()
		next, err := load.AckAbove(within(t, limit), term)
		if err != nil {
			t.Fatalf("after kill %d: %v\n%s", i+1, err, g.Logs())
		}
		waits = append(waits, next.Sub(killed))
		must(t, g.Node(id).Start())
		kill[id] = g.Node(id).Kill
	}
	for id, k := range kill { // those still run by `up`, if any, so that finish ends all nodes alike
		if !g.Node(id).Running() {
			k()
			must(t, g.Node(id).Start())
		}
	}
	finish(t, g, load)
	report(t, waits)
}

// upNode is a node as `dledger up` describes it.
type upNode struct {
	id, addr string
	pid      int
}

var upLine = regexp.MustCompile(`^  (n\d)  (\S+)  pid (\d+)  `)

// up runs `dledger up --nodes 3` in dir until the test ends, and gives its nodes once there is a leader.
func up(t *testing.T, program, dir string) []upNode {
	t.Helper()
	port, err := harness.UpPorts(3)
	must(t, err)
	var mu sync.Mutex
	var nodes []upNode
	p, err := harness.Start([]string{program, "up", "--nodes", "3", "--dir", dir, "--port-base", strconv.Itoa(port),
		"--set", "mappedFileSizeForEntryData=262144", "--set", "mappedFileSizeForEntryIndex=65536"}, dir, // the judge reads files whole
		filepath.Join(dir, "up.log"), func(line []byte) {
			m := upLine.FindSubmatch(line)
			if m == nil {
				return
			}
			pid, err := strconv.Atoi(string(m[3]))
			if err != nil {
				return // too large for a process id
			}
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, upNode{string(m[1]), string(m[2]), pid})
		})
	must(t, err)
	t.Cleanup(func() { _ = p.Stop(20 * time.Second) }) // it fails when its nodes are gone, and here they are
	have := func() []upNode {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(nodes)
	}
	if err := harness.Until(within(t, limit), "`dledger up` to name its nodes", func() bool { return len(have()) == 3 }); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "up.log")) // the error says enough without it
		t.Fatalf("%v\n%s", err, bytes.TrimSpace(log))
	}
	return have()
}
