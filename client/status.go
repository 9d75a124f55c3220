package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// Metadata is what a node tells anybody about its group.
type Metadata struct {
	Group  string
	Leader string            // "" = unknown
	Peers  map[string]string // id → "host:port"
}

// Metadata asks all nodes and gives the first answer that names a leader, or else any answer.
func (c *Client) Metadata(ctx context.Context) (Metadata, error) {
	nodes := c.nodes()
	replies := make(chan reply, len(nodes))
	for _, n := range nodes {
		c.askMetadata(&opinion{node: n}, replies)
	}
	var got *Metadata
	failure := error(nil)
	for range nodes {
		var r reply
		select {
		case r = <-replies:
		case <-ctx.Done():
			return Metadata{}, ended(ctx)
		}
		if r.err != nil {
			failure = fmt.Errorf("%s (%s): %w", r.from.id, r.from.address, r.err)
			continue
		}
		m := Metadata{Group: c.cfg.Group, Leader: string(r.meta.LeaderID), Peers: r.meta.Peers}
		if m.Leader != "" {
			return m, nil
		}
		got = &m
	}
	if got == nil {
		return Metadata{}, failure
	}
	return *got, nil
}

// NodeStatus is the state of one node as it told it. Indexes and the term are -1 where they are unknown or there is none.
type NodeStatus struct {
	ID, Address string
	Err         error  // why the node did not tell; then nothing below is set
	Product     string // "java" for nodes of the original, which tell role, leader and term only
	Version     string
	Role        string // leader, follower or candidate
	Term        int64
	Leader      string // whom this node takes for the leader; "" = nobody
	Begin, End  int64  // first and last index; an empty log has End = Begin-1
	Commit      int64
	Durable     int64 // the last entry that the node's own sync has covered
	Applied     int64
	Pending     int // appends that wait for their acknowledgement
	Uptime      time.Duration
	Compat      string
	Durability  string
	Failure     string            // why the node no longer takes part
	Abstains    bool              // it does not vote until it has caught up
	DiskFull    bool              // it takes no more entries until there is space
	Damaged     []Damage          // committed entries that are damaged on its disk
	Repaired    int64             // entries it has repaired since its start
	ScrubDone   int64             // bytes, of the search for damage that runs
	ScrubTotal  int64             // 0 = none runs
	Scrubbed    time.Time         // end of the last full search; zero = there was none
	Progress    []Progress        // what a leader knows of the others
	Refused     map[string]string // by id: nodes that this one takes for no members of its group, and why

	peers map[string]string // whom the node takes for members
}

// Progress is what a leader knows of another node.
type Progress struct {
	ID      string
	State   string        // compare, truncate, reset or append
	Match   int64         // it holds the entries up to here
	Idle    time.Duration // since its last answer; -1 = none yet
	Kind    string        // go, java, silent or refused
	Refused string        // why it is refused
}

// Java is the Product of nodes of the original.
const Java = "java"

// Status asks every node of the group at the same time, also those that only other nodes know of, and gives them in the order of their
// ids. A node of Config.Peers that is silent and that no other counts as a member is left out. Err is set for a node that does not answer while ctx lasts or within Config.RequestTimeout.
func (c *Client) Status(ctx context.Context) []NodeStatus {
	var all []NodeStatus
	for {
		var ask []node
		for _, n := range c.nodes() {
			if !slices.ContainsFunc(all, func(s NodeStatus) bool { return s.ID == string(n.id) }) {
				ask = append(ask, n)
			}
		}
		if len(ask) == 0 {
			break
		}
		told := make([]NodeStatus, len(ask))
		var asking sync.WaitGroup
		for i, n := range ask {
			asking.Go(func() { told[i] = c.nodeStatus(ctx, n) })
		}
		asking.Wait()
		all = append(all, told...)
	}
	all = slices.DeleteFunc(all, func(s NodeStatus) bool { return s.Err != nil && !member(s.ID, all) })
	slices.SortFunc(all, func(a, b NodeStatus) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// member tells whether a node that did not answer is in the group: if some that did name their peers, one of them has to name it.
func member(id string, all []NodeStatus) bool {
	told := false
	for _, s := range all {
		if s.Err == nil && s.peers != nil {
			told = true
			if _, ok := s.peers[id]; ok {
				return true
			}
		}
	}
	return !told
}

func (c *Client) nodeStatus(ctx context.Context, n node) NodeStatus {
	s := NodeStatus{ID: string(n.id), Address: n.address, Term: -1, Begin: -1, End: -1, Commit: -1, Durable: -1, Applied: -1}
	var a wire.StatusResponse
	err := c.ask(ctx, n, wire.CodeStatus, wire.EncodeJSON(wire.StatusRequest{Group: c.cfg.Group, RemoteID: n.id}), func(f *remoting.Frame) error {
		return wire.DecodeJSONAnswer(f.Code, f.Body, &a)
	})
	switch {
	case errors.Is(err, wire.ErrUnsupported):
		s.Err = c.originalStatus(ctx, n, &s)
	case err != nil:
		s.Err = err
	case a.Code != wire.ResultOK:
		s.Err = refused(a.Code, n)
	default:
		s.fill(&a)
		s.peers = a.Peers
		c.learn(a.Peers)
	}
	return s
}

// Damage is a stretch of entries that are damaged on a node's disk.
type Damage struct{ First, Last, Bytes int64 }

func (s *NodeStatus) fill(a *wire.StatusResponse) {
	s.Product, s.Version, s.Compat, s.Durability = a.Product, a.Version, a.Compat, a.Durability
	s.Role, s.Term, s.Leader = a.Role, int64(a.Term), string(a.LeaderID)
	s.Begin, s.End, s.Commit, s.Durable, s.Applied = int64(a.First), int64(a.Last), int64(a.Commit), int64(a.Durable), int64(a.Applied)
	s.Pending, s.Uptime, s.Failure = a.Pending, time.Duration(a.UptimeMs)*time.Millisecond, a.Error
	s.DiskFull = a.DiskFull
	s.Abstains, s.Repaired, s.ScrubDone, s.ScrubTotal = a.Abstains, a.Repaired, a.ScrubDone, a.ScrubTotal
	if a.ScrubbedMs > 0 {
		s.Scrubbed = time.UnixMilli(a.ScrubbedMs)
	}
	for _, d := range a.Damaged {
		s.Damaged = append(s.Damaged, Damage{First: int64(d.First), Last: int64(d.Last), Bytes: d.Bytes})
	}
	for _, p := range a.Progress {
		idle := time.Duration(p.IdleMs) * time.Millisecond
		if p.IdleMs < 0 {
			idle = -1
		}
		s.Progress = append(s.Progress, Progress{ID: string(p.ID), State: p.State, Match: int64(p.Match), Idle: idle, Kind: p.Kind, Refused: p.Refused})
	}
	for id, why := range a.Refused {
		if s.Refused == nil {
			s.Refused = make(map[string]string)
		}
		s.Refused[string(id)] = why
	}
}

// originalStatus finds out what a Java node tells: its leader, and by that its role, and its term.
func (c *Client) originalStatus(ctx context.Context, n node, s *NodeStatus) error {
	req := wire.MetadataRequest{Base: wire.ClientBase(c.cfg.Group, n.id)}
	var a wire.MetadataResponse
	err := c.ask(ctx, n, wire.CodeMetadata, req.AppendTo(nil), func(f *remoting.Frame) error { return a.Decode(f.Code, f.Body) })
	if err != nil {
		return err
	}
	if a.Code != wire.ResultOK {
		return refused(a.Code, n)
	}
	s.peers = a.Peers
	c.learn(a.Peers)
	s.Product, s.Leader = Java, string(a.LeaderID)
	switch s.Leader {
	case s.ID:
		s.Role = "leader"
	case "":
		s.Role = "candidate"
	default:
		s.Role = "follower"
	}
	term, err := c.originalTerm(ctx, n)
	s.Term = int64(term)
	return err
}

// originalTerm asks a Java node for its term, which it tells nobody but a leader whose own is too low: it gets the heartbeat of one,
// with a term below all others, which changes nothing.
func (c *Client) originalTerm(ctx context.Context, n node) (raft.Term, error) {
	from := n.id // alone in its group it answers even that
	for _, other := range c.nodes() {
		if other.id != n.id {
			from = other.id
		}
	}
	m := raft.Message{Type: raft.MsgHeartbeat, From: from, To: n.id, Leader: from, Term: -1, Commit: -1}
	code, body, err := wire.EncodeRequest(raft.Compat04, c.cfg.Group, &m)
	if err != nil {
		return -1, err
	}
	var a raft.Message
	err = c.ask(ctx, n, code, slices.Concat(body...), func(f *remoting.Frame) (err error) {
		a, err = wire.DecodeAnswer(raft.Compat04, &m, f.Code, f.Body)
		return err
	})
	if err != nil {
		return -1, err
	}
	return a.Term, nil
}

// ask sends one request to one node and has its answer read.
func (c *Client) ask(ctx context.Context, n node, code int32, body []byte, read func(*remoting.Frame) error) error {
	f, err := c.rc.Call(ctx, n.address, remoting.Request{Code: code}, c.cfg.RequestTimeout, body)
	if err != nil {
		return err
	}
	return read(f)
}

// transferTimeout is how long a transfer may take, as in the original's client: the next leader may have to catch up first.
const transferTimeout = 10 * time.Second

// Transfer hands leadership to the member to. It tries for as long as ctx lasts while there is no leader that could do so, or a
// Java leader refuses for a reason that passes. An error
// that wraps ErrUndecided: the group may have done it, or may yet do it.
func (c *Client) Transfer(ctx context.Context, to string) error {
	for pause := readPauseMin; ; pause = min(2*pause, readPauseMax) {
		l, err := c.lookup(ctx)
		if err != nil {
			return err
		}
		if string(l.id) == to {
			return nil
		}
		v, err := c.transfer(ctx, l, raft.ID(to))
		if v == taken {
			c.mu.Lock()
			c.forget(l)
			c.mu.Unlock()
			return nil
		}
		if v == unsure || v == never {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: last tried: %w", ended(ctx), err)
		}
	}
}

func (c *Client) transfer(ctx context.Context, l node, to raft.ID) (verdict, error) {
	term := raft.Term(-1) // for our nodes: the present one
	if l.kind == kindOriginal {
		var err error
		if term, err = c.originalTerm(ctx, l); err != nil {
			return c.readFailed(l, err), fmt.Errorf("%s (%s): %w", l.id, l.address, err)
		}
	}
	m := wire.TransferRequest(l.id, to, term)
	code, body, err := wire.EncodeRequest(raft.Compat04, c.cfg.Group, &m)
	if err != nil {
		return never, err
	}
	f, err := c.rc.Call(ctx, l.address, remoting.Request{Code: code}, transferTimeout, body...)
	if errors.Is(err, remoting.ErrUnreachable) || errors.Is(err, remoting.ErrBusy) {
		return c.readFailed(l, err), err
	}
	var a raft.Message
	if err == nil {
		a, err = wire.DecodeAnswer(raft.Compat04, &m, f.Code, f.Body)
	}
	if err != nil {
		return unsure, undecided(fmt.Errorf("transfer to %s: %s (%s): %w", to, l.id, l.address, err))
	}
	switch a.Status {
	case raft.StatusOK:
		return taken, nil
	case raft.StatusNotLeader:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.follow(l, a.Leader)
		return elsewhere, refused(wire.ResultOf(a.Status), l)
	case raft.StatusTransferring, raft.StatusNotReady:
		return later, refused(wire.ResultOf(a.Status), l)
	case raft.StatusTakeLeadershipFailed, raft.StatusFallBehind:
		// A Java 0.4 member that was told to lead falls back when a heartbeat of its leader overtakes the campaign, and a Java leader takes everyone
		// to be behind right after its election: both pass. Ours waits itself for what passes.
		if l.kind == kindOriginal {
			return later, refused(wire.ResultOf(a.Status), l)
		}
	}
	return never, refused(wire.ResultOf(a.Status), l)
}
