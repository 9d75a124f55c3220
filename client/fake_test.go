package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// network is a network in memory: an address without a listener refuses connections.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listener
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// fakeGroup is a group that keeps its log in one place and whose nodes answer as a test wants them to.
type fakeGroup struct {
	t   testing.TB
	net network

	mu      sync.Mutex
	nodes   map[string]*fakeNode
	leader  string
	term    raft.Term
	first   int64 // entries before it are compacted
	log     []string
	asked   map[int32]int // requests by code
	largest int           // most appends in one request
	// transfers are the answers that the next hand-overs get; then they succeed.
	transfers []raft.Status
	// fate, if set, decides over requests with appends, before anything else does.
	fate func(n *fakeNode, bodies [][]byte) fate
}

// fate is what becomes of a request with appends.
type fate struct {
	result wire.Result // 0: as usual
	leader string      // that the refusal names
	take   bool        // the entries get into the log all the same
	silent bool        // there is no answer
	lose   bool        // the connection ends instead of an answer
	hold   <-chan struct{}
	header int32 // the header's code of an answer without a body
}

type fakeNode struct {
	g        *fakeGroup
	id       string
	java     bool
	believes string // whom it takes for the leader, if not the true one
	silent   bool   // it never answers
	stranger bool   // it is no member of the group
	server   *remoting.Server
	served   chan struct{}
}

func address(id string) string { return id + ":1" }

// newFakeGroup starts nodes of one kind; the first is the leader.
func newFakeGroup(t testing.TB, java bool, ids ...string) *fakeGroup {
	g := &fakeGroup{t: t, nodes: make(map[string]*fakeNode), leader: ids[0], term: 3, asked: make(map[int32]int)}
	g.net.listeners = make(map[string]*listener)
	for _, id := range ids {
		g.start(id, java)
	}
	t.Cleanup(func() {
		for _, id := range ids {
			g.stop(id)
		}
	})
	return g
}

func (g *fakeGroup) start(id string, java bool) *fakeNode {
	n := &fakeNode{g: g, id: id, java: java, served: make(chan struct{})}
	n.server = remoting.NewServer(remoting.ServerConfig{Handler: n})
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	g.net.mu.Lock()
	g.net.listeners[address(id)] = l
	g.net.mu.Unlock()
	g.mu.Lock()
	g.nodes[id] = n
	g.mu.Unlock()
	go func() {
		defer close(n.served)
		n.server.Serve(l)
	}()
	return n
}

func (g *fakeGroup) stop(id string) {
	g.net.mu.Lock()
	delete(g.net.listeners, address(id))
	g.net.mu.Unlock()
	g.mu.Lock()
	n := g.nodes[id]
	g.mu.Unlock()
	n.server.Close()
	<-n.served
}

// do changes the group.
func (g *fakeGroup) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *fakeGroup) count(code int32) (n int) {
	g.do(func() { n = g.asked[code] })
	return n
}

func (g *fakeGroup) entries() (log []string) {
	g.do(func() { log = slices.Clone(g.log) })
	return log
}

func (g *fakeGroup) peers() map[string]string {
	peers := make(map[string]string)
	for id := range g.nodes {
		peers[id] = address(id)
	}
	return peers
}

// client makes a client of the group.
func (g *fakeGroup) client(cfg Config) *Client {
	g.t.Helper()
	if cfg.Peers == nil {
		g.do(func() { cfg.Peers = g.peers() })
	}
	cfg.Dial = g.net.dial
	c, err := New(cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

func (n *fakeNode) Idle(*remoting.Conn) {}

func (n *fakeNode) Handle(c *remoting.Conn, req *remoting.Frame) {
	g := n.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked[req.Code]++
	if n.silent {
		return
	}
	ok := remoting.Answer{Code: wire.HeaderOK}
	ref := req.Ref()
	leader := g.leader
	if n.believes != "" {
		leader = n.believes
	}
	if n.java && req.Code >= wire.CodeHello && req.Code <= wire.CodeReset {
		c.ReplyUnsupported(req)
		return
	}
	if n.stranger {
		a := wire.MetadataResponse{Base: wire.Base{Code: wire.ResultUnknownMember, Term: -1}}
		c.Reply(ref, ok, a.AppendTo(nil))
		return
	}
	switch req.Code {
	case wire.CodeMetadata:
		a := wire.MetadataResponse{Base: wire.Base{LeaderID: raft.ID(leader), Code: wire.ResultOK, Term: -1}, Peers: g.peers()}
		c.Reply(ref, ok, a.AppendTo(nil))
	case wire.CodeHello:
		c.Reply(ref, ok, wire.EncodeJSON(wire.HelloResponse{Code: wire.ResultOK, ID: raft.ID(n.id), Node: wire.Node{Product: wire.Product}}))
	case wire.CodeAppend:
		var a wire.AppendRequest
		n.must(a.Decode(req.Body))
		n.must(n.addressed(a.RemoteID))
		n.append(c, ref, [][]byte{a.Body}, func(r wire.Result, leader string, first int64) []byte {
			resp := wire.AppendResponse{Base: wire.Base{Code: r, Term: g.term, LeaderID: raft.ID(leader)}, Index: raft.Index(first), Pos: 100 * first}
			return resp.AppendTo(nil)
		})
	case wire.CodeAppendBatch:
		var a wire.AppendBatchRequest
		n.must(a.Decode(req.Body))
		n.must(n.addressed(a.RemoteID))
		n.append(c, ref, a.Bodies, func(r wire.Result, leader string, first int64) []byte {
			resp := wire.AppendBatchResponse{Code: r, Term: g.term, LeaderID: raft.ID(leader), First: raft.Index(first)}
			for i := range a.Bodies {
				if first >= 0 {
					resp.Positions = append(resp.Positions, 100*(first+int64(i)))
				}
			}
			return resp.AppendTo(nil)
		})
	case wire.CodeGet:
		var a wire.GetRequest
		n.must(a.Decode(req.Body))
		resp := wire.GetResponse{Base: wire.Base{Code: n.readable(leader, int64(a.BeginIndex)), LeaderID: raft.ID(leader), Term: -1}}
		if resp.Code == wire.ResultOK {
			resp.Entries = raft.Payload{g.encoded(int64(a.BeginIndex))}
		}
		b, err := resp.AppendTo(nil)
		n.must(err)
		c.Reply(ref, ok, b)
	case wire.CodeGetBatch:
		var a wire.GetBatchRequest
		n.must(a.Decode(req.Body))
		n.getBatch(c, ref, &a, leader)
	case wire.CodeStatus:
		role := "follower"
		if leader == n.id {
			role = "leader"
		}
		end := raft.Index(len(g.log) - 1)
		c.Reply(ref, ok, wire.EncodeJSON(wire.StatusResponse{Code: wire.ResultOK, ID: raft.ID(n.id), Role: role, Term: g.term, LeaderID: raft.ID(leader),
			First: raft.Index(g.first), Last: end, Commit: end, Durable: end, Peers: g.peers(), Node: wire.Node{Product: wire.Product}}))
	case wire.CodeHeartbeat:
		base, m, err := wire.DecodeRequest(raft.Compat04, req.Code, req.Body)
		n.must(err)
		a := raft.Message{Type: raft.MsgHeartbeatAnswer, Status: raft.StatusExpiredTerm, Term: g.term}
		if m.Term >= g.term {
			n.must(fmt.Errorf("a heartbeat of term %d would change the node", m.Term))
		}
		c.Reply(ref, ok, wire.AppendAnswer(nil, &base, &m, &a))
	case wire.CodeTransfer:
		base, m, err := wire.DecodeRequest(raft.Compat04, req.Code, req.Body)
		n.must(err)
		a := raft.Message{Type: raft.MsgTransferAnswer, Term: g.term, Leader: raft.ID(leader)}
		switch {
		case leader != n.id:
			a.Status = raft.StatusNotLeader
		case n.java && m.Term != g.term:
			a.Status = raft.StatusInconsistentTerm
		case g.nodes[string(m.Transferee)] == nil:
			a.Status = raft.StatusUnknownMember
		case len(g.transfers) > 0:
			a.Status, g.transfers = g.transfers[0], g.transfers[1:]
		default:
			g.leader = string(m.Transferee)
			g.term++
		}
		c.Reply(ref, ok, wire.AppendAnswer(nil, &base, &m, &a))
	default:
		c.ReplyUnsupported(req)
	}
}

func (n *fakeNode) must(err error) {
	if err != nil {
		n.g.t.Errorf("node %s: %v", n.id, err)
	}
}

func (n *fakeNode) addressed(id raft.ID) error {
	if string(id) != n.id {
		return fmt.Errorf("request is for %s", id)
	}
	return nil
}

// append works on a request with appends; mu is held.
func (n *fakeNode) append(c *remoting.Conn, ref remoting.Ref, bodies [][]byte, answer func(r wire.Result, leader string, first int64) []byte) {
	g := n.g
	g.largest = max(g.largest, len(bodies))
	leader := g.leader
	if n.believes != "" {
		leader = n.believes
	}
	f := fate{}
	if g.fate != nil {
		f = g.fate(n, bodies)
	}
	if f.result == 0 {
		f.result, f.leader = wire.ResultOK, leader
		if f.take = leader == n.id; !f.take {
			f.result = wire.ResultNotLeader
		}
	}
	first := int64(-1)
	if f.take {
		first = int64(len(g.log))
		for _, b := range bodies {
			g.log = append(g.log, string(b))
		}
	}
	if f.result != wire.ResultOK {
		first = -1
	}
	body := answer(f.result, f.leader, first)
	switch {
	case f.silent:
	case f.lose:
		c.Close()
	case f.header != 0:
		c.Reply(ref, remoting.Answer{Code: f.header, Remark: "so the test wants"})
	case f.hold != nil:
		go func() {
			<-f.hold
			c.Reply(ref, remoting.Answer{Code: wire.HeaderOK}, body)
		}()
	default:
		c.Reply(ref, remoting.Answer{Code: wire.HeaderOK}, body)
	}
}

// readable judges a read; mu is held.
func (n *fakeNode) readable(leader string, index int64) wire.Result {
	switch {
	case n.java && leader != n.id:
		return wire.ResultNotLeader
	case index < n.g.first:
		return wire.ResultIndexBelowBegin
	case index >= int64(len(n.g.log)):
		return wire.ResultIndexOutOfRange
	}
	return wire.ResultOK
}

func (n *fakeNode) getBatch(c *remoting.Conn, ref remoting.Ref, a *wire.GetBatchRequest, leader string) {
	g := n.g
	resp := wire.GetBatchResponse{Code: n.readable(leader, int64(a.From)), LeaderID: raft.ID(leader), Term: g.term, Commit: raft.Index(len(g.log) - 1), First: -1, Last: -1}
	if a.Confirmed && g.leader != n.id {
		resp.Code, resp.LeaderID = wire.ResultNotLeader, ""
	}
	if resp.Code == wire.ResultIndexOutOfRange && a.Wait > 0 {
		again := *a
		again.Wait = 0
		time.AfterFunc(a.Wait, func() {
			g.do(func() { n.getBatch(c, ref, &again, leader) })
		})
		return
	}
	if resp.Code == wire.ResultOK {
		limit := 3
		if a.EntriesMax > 0 {
			limit = a.EntriesMax
		}
		resp.First = a.From
		for i := int64(a.From); i < int64(len(g.log)) && limit > 0; i++ {
			resp.Entries = append(resp.Entries, g.encoded(i))
			resp.Last = raft.Index(i)
			limit--
		}
	}
	c.Reply(ref, remoting.Answer{Code: wire.HeaderOK}, resp.Pieces()...)
}

// encoded gives entry i in the file encoding; mu is held.
func (g *fakeGroup) encoded(i int64) []byte {
	b := append(make([]byte, entry.HeaderSize), g.log[i]...)
	entry.PutHeader(b, entry.Header{Magic: entry.MagicNormal, Size: int32(len(b)), Index: raft.Index(i), Term: g.term, Pos: 100 * i, BodyLen: int32(len(g.log[i]))})
	entry.Seal(b)
	return b
}

// inBubble runs a test on virtual time. It fails if a goroutine of the client outlives Close.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// bothKinds runs a test with a group of ours and with one of the original.
func bothKinds(t *testing.T, f func(t *testing.T, java bool)) {
	t.Helper()
	for name, java := range map[string]bool{"ours": false, "original": true} {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { f(t, java) }) })
	}
}
