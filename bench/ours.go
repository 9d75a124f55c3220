package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"dledger"
	"dledger/client"
	"dledger/interop/harness"
)

// ourCluster is three processes of ours and package client, which speaks binary batches to them.
type ourCluster struct {
	*groupCluster
	c *client.Client
}

func startOurs(dir, program, durability string) (cluster, error) {
	g, err := startGroup(dir, harness.Kind{Go: program}, map[string]string{"compat": "go", "durability": durability})
	if err != nil {
		return nil, err
	}
	o := &ourCluster{groupCluster: g}
	peers, err := client.ParsePeers(g.Peers)
	if err == nil {
		o.c, err = client.New(client.Config{Group: g.Name, Peers: peers})
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return o, nil
}

func (o *ourCluster) Append(ctx context.Context, body []byte) (uint64, error) {
	r, err := o.c.Append(ctx, body)
	return uint64(r.Index), err
}

func (o *ourCluster) Get(ctx context.Context, index uint64) error {
	_, err := o.c.Get(ctx, int64(index))
	return err
}

func (o *ourCluster) Close() {
	o.groupCluster.Close()
	_ = o.c.Close() // its nodes are gone
}

// inProcess is a group whose leader is embedded in this process; the other two are processes. Its own processor time and memory
// are those of the load too.
type inProcess struct {
	*groupCluster
	l *dledger.Ledger
}

func startInProcess(dir, program, durability string) (cluster, error) {
	kind := harness.Kind{Go: program}
	g, err := newGroup(dir, kind, map[string]string{"compat": "go", "durability": durability})
	if err != nil {
		return nil, err
	}
	for _, n := range g.Nodes[1:] {
		if err := n.Start(); err != nil {
			g.Group.Kill()
			return nil, err
		}
	}
	cfg := dledger.Config{Group: g.Name, ID: g.Nodes[0].ID, Peers: g.Peers, Dir: g.Nodes[0].Base()}
	for _, kv := range [][2]string{{"durability", durability}, {"diskSpaceRatioToCheckExpired", "0.99"}, {"diskSpaceRatioToForceClean", "0.99"}} {
		if _, err := cfg.Set(kv[0], kv[1]); err != nil {
			g.Group.Kill()
			return nil, err
		}
	}
	l, err := dledger.Open(cfg)
	if err != nil {
		g.Group.Kill()
		return nil, err
	}
	p := &inProcess{groupCluster: g, l: l}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := harness.Until(ctx, "leadership of the embedded node", func() bool {
		if l.IsLeader() {
			return true
		}
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_ = g.Lead(one, g.Nodes[0]) // tried again
		return l.IsLeader()
	}); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *inProcess) Append(ctx context.Context, body []byte) (uint64, error) {
	e, err := p.l.Append(ctx, body)
	return uint64(e.Index), err
}

func (p *inProcess) Get(_ context.Context, index uint64) error {
	_, err := p.l.Get(dledger.Index(index))
	return err
}

func (p *inProcess) Pids() []int {
	pids := []int{os.Getpid()}
	for _, n := range p.Nodes[1:] {
		pids = append(pids, n.Process().Pid())
	}
	return pids
}

// errEmbedded is the answer to what cannot be done to a part of this process.
var errEmbedded = errors.New("a node embedded in this process cannot be killed and started")

func (p *inProcess) Start(node int) error {
	if node == 0 {
		return errEmbedded
	}
	return p.groupCluster.Start(node)
}

func (p *inProcess) Close() {
	if err := p.l.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: close the embedded node:", err)
	}
	p.groupCluster.Close()
}

// program gives the path of our program: the given one, or one built from the tree around this module.
func program(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return given, nil
	}
	// In its own module: this one does not know all that it needs.
	root, err := harness.Run(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "dledger")
	if err != nil {
		return "", fmt.Errorf("find our module: %w", err)
	}
	path := filepath.Join(dir, "dledger")
	if _, err := harness.Run(ctx, "go", "-C", strings.TrimSpace(string(root)), "build", "-o", path, "./cmd/dledger"); err != nil {
		return "", fmt.Errorf("build our program: %w", err)
	}
	return path, nil
}
