package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"dledger/interop/harness"
)

// Up runs `dledger up --nodes 3`: three processes, each with a name server and a member of each of three broker groups. A node that was
// killed starts again by itself, with the command line it had.
func Up(ctx context.Context, dir, program string, settings ...string) (*Cluster, error) {
	const step, groupStep = 10, 100
	base, err := harness.UpPorts(3)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir}
	var names, peers []string
	for i := range 3 {
		peers = append(peers, fmt.Sprintf("n%d-127.0.0.1:%d", i, base+step*i))
		names = append(names, fmt.Sprintf("127.0.0.1:%d", base+1+step*i))
		n := &Node{ID: fmt.Sprintf("n%d", i), dir: dir, log: filepath.Join(dir, fmt.Sprintf("n%d.again.log", i))}
		for group := range 3 {
			n.Addrs = append(n.Addrs, fmt.Sprintf("127.0.0.1:%d", base+groupStep+step*i+groupStep*group))
		}
		c.Nodes = append(c.Nodes, n)
	}
	c.NameServer, c.Peers = strings.Join(names, ";"), strings.Join(peers, ";")
	c.Sides = []string{c.NameServer}
	argv := []string{program, "up", "--nodes", "3", "--dir", dir, "--port-base", strconv.Itoa(base)}
	for _, s := range settings {
		argv = append(argv, "--set", s)
	}
	var mu sync.Mutex
	said := 0
	c.up, err = harness.Start(argv, dir, filepath.Join(dir, "up.log"), func(line []byte) {
		m := upLine.FindSubmatch(line)
		if m == nil {
			return
		}
		i, _ := strconv.Atoi(string(m[1])) // digits
		pid, err := strconv.Atoi(string(m[2]))
		if err != nil || i >= len(c.Nodes) {
			return // too large for a process id
		}
		mu.Lock()
		defer mu.Unlock()
		c.Nodes[i].pid = pid
		said++
	})
	if err != nil {
		return nil, err
	}
	err = harness.Until(ctx, "`dledger up` to name its nodes", func() bool {
		select {
		case <-c.up.Done():
			return true
		default:
		}
		mu.Lock()
		defer mu.Unlock()
		return said == len(c.Nodes)
	})
	for _, n := range c.Nodes {
		if err == nil && n.pid == 0 {
			err = errors.New("`dledger up` ended")
		}
		if err == nil {
			n.argv, err = commandLine(n.pid)
		}
	}
	if err != nil {
		c.Kill()
		return nil, fmt.Errorf("%w\n%s", err, c.Logs())
	}
	return c, nil
}

var upLine = regexp.MustCompile(`^  n(\d)  \S+  pid (\d+)  `)

func commandLine(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, fmt.Errorf("command line of a node: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}
