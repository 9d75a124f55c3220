package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/namesrv"
)

// cluster is a whole broker group in one test: logs on memory disks, a name server, brokers and clients joined by pipes, on virtual time.
type cluster struct {
	*dledgertest.Cluster
	net     *pipes
	names   *namesrv.Server
	brokers map[string]*Broker
	clients []*remoting.Client
	setup   func(*Config)

	addresses sync.Map // of brokers, by id; clients look at it beside the test
}

const testNames = "10.0.0.9:9876"

// inCluster runs f with a group of n brokers.
func inCluster(t *testing.T, n int, setup func(*Config), f func(c *cluster)) {
	inClusterOf(t, dledgertest.Setup{}, n, setup, f)
}

// inClusterOf is inCluster for logs that are not the usual.
func inClusterOf(t *testing.T, logs dledgertest.Setup, n int, setup func(*Config), f func(c *cluster)) {
	logs.Run(t, n, func(d *dledgertest.Cluster) {
		c := &cluster{Cluster: d, net: newPipes(), brokers: map[string]*Broker{}, setup: setup}
		l, err := c.net.listen(testNames)
		if err != nil {
			d.T.Fatal(err)
		}
		if c.names, err = namesrv.Listen(namesrv.Config{Listener: l}); err != nil {
			d.T.Fatal(err)
		}
		defer c.close()
		for _, id := range d.IDs() {
			c.open(id)
		}
		f(c)
	})
}

func (c *cluster) close() {
	for _, cl := range c.clients {
		cl.Close()
	}
	for _, b := range c.brokers {
		if err := b.Close(); err != nil {
			c.T.Error(err)
		}
	}
	if err := c.names.Close(); err != nil {
		c.T.Error(err)
	}
}

// address is where a broker is, or was.
func (c *cluster) address(id string) string {
	if a, ok := c.addresses.Load(id); ok {
		return a.(string) // setup may have given it another one than usual
	}
	return "10.0.0.1" + id[1:] + ":10911"
}

// open starts a broker beside a log that runs.
func (c *cluster) open(id string) {
	c.T.Helper()
	cfg := NewConfig()
	cfg.Name, cfg.IP, cfg.NameServers = "a", "10.0.0.1"+id[1:], []string{testNames}
	cfg.Log = dledger.Config{Group: "test", ID: id, Peers: c.Peers(), Dir: "/" + id + "/broker", DataFileSize: 4 << 20, FS: c.Disk(id).Mem()}
	cfg.ledger = c.Member(id).Ledger
	cfg.Listen = c.net.listen
	cfg.Dial = func(_ context.Context, address string) (net.Conn, error) {
		return c.net.dial(net.JoinHostPort(cfg.IP, "0"), address)
	}
	if c.setup != nil {
		c.setup(&cfg)
	}
	b, err := Open(cfg)
	if err != nil {
		c.T.Fatalf("broker %s: %v", id, err)
	}
	c.brokers[id] = b
	c.addresses.Store(id, b.Address())
}

// kill takes the power from a replica.
func (c *cluster) kill(id string) {
	b := c.brokers[id]
	delete(c.brokers, id)
	c.net.die(c.address(id))
	c.Kill(id)
	_ = b.Close() // its disk is gone
}

// start starts a replica that was killed.
func (c *cluster) start(id string) {
	c.Start(id)
	c.open(id)
}

// leader waits for a replica that serves as leader, and gives its id.
func (c *cluster) leader() (id string) {
	c.T.Helper()
	c.Wait("a broker that leads", func() bool {
		for _, i := range c.IDs() {
			if b := c.brokers[i]; b != nil && b.Leads() {
				id = i
				return true
			}
		}
		return false
	})
	return id
}

// follower gives a replica that does not lead.
func (c *cluster) follower() string {
	leader := c.leader()
	for _, id := range c.IDs() {
		if id != leader && c.brokers[id] != nil {
			return id
		}
	}
	c.T.Fatal("no follower runs")
	return ""
}

// client is a client's process: one connection to each address.
type client struct {
	c        *cluster
	r        *remoting.Client
	mu       sync.Mutex
	requests []remoting.Frame // that brokers sent
}

func (c *cluster) client(ip string) *client {
	cl := &client{c: c}
	cl.r = remoting.NewClient(remoting.ClientConfig{Version: 409, PauseMin: time.Millisecond, PauseMax: 10 * time.Millisecond,
		Dial: func(_ context.Context, address string) (net.Conn, error) {
			return c.net.dial(net.JoinHostPort(ip, "50000"), address)
		},
		Handler: remoting.HandlerFunc(func(conn *remoting.Conn, f *remoting.Frame) {
			cl.mu.Lock()
			defer cl.mu.Unlock()
			cl.requests = append(cl.requests, *f)
			_ = conn.Reply(f.Ref(), remoting.Answer{})
		})})
	c.clients = append(c.clients, cl.r)
	return cl
}

// got tells how often a broker has sent a request with this code.
func (cl *client) got(code int32) (n int) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for i := range cl.requests {
		if cl.requests[i].Code == code {
			n++
		}
	}
	return n
}

// call asks a replica and gives its answer, whatever that is.
func (cl *client) call(id string, code int32, ext map[string]string, body []byte) *remoting.Frame {
	cl.c.T.Helper()
	f, err := cl.r.Call(cl.c.T.Context(), cl.c.address(id), remoting.Request{Code: code, Ext: ext}, 60*time.Second, body)
	if err != nil {
		cl.c.T.Fatalf("request %d to %s: %v", code, id, err)
	}
	return f
}

// must is call for what has to succeed.
func (cl *client) must(id string, code int32, ext map[string]string, body []byte) *remoting.Frame {
	cl.c.T.Helper()
	f := cl.call(id, code, ext, body)
	if f.Code != mq.Success {
		cl.c.T.Fatalf("request %d to %s: code %d, %s", code, id, f.Code, f.Remark)
	}
	return f
}

// ext makes fields of pairs.
func ext(pairs ...any) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = fmt.Sprint(pairs[i+1])
	}
	return m
}

// sendExt are the fields of a send.
func sendExt(topic string, queue int, more ...any) map[string]string {
	return ext(append([]any{"producerGroup", "p", "topic", topic, "defaultTopic", mq.TopicDefault, "defaultTopicQueueNums", 4, "queueId", queue, "sysFlag", 0,
		"bornTimestamp", 1700000000123, "flag", 0, "properties", "KEYS\x01k\x02"}, more...)...)
}

// pullExt are the fields of a pull; suspend in ms, 0 = not at all.
func pullExt(group, topic string, queue int, offset int64, suspend int, more ...any) map[string]string {
	flag := pullHasSub
	if suspend > 0 {
		flag |= pullSuspends
	}
	return ext(append([]any{"consumerGroup", group, "topic", topic, "queueId", queue, "queueOffset", offset, "maxMsgNums", 32, "sysFlag", flag, "commitOffset", 0,
		"suspendTimeoutMillis", suspend, "subscription", "*", "subVersion", 0}, more...)...)
}

// bodies gives the bodies of the messages in a PULL answer, and their queue offsets.
func bodies(t *testing.T, b []byte) (bodies []string, offsets []int64) {
	t.Helper()
	for len(b) > 0 {
		m, n, err := mq.ParseStored(b)
		if err != nil {
			t.Fatal(err)
		}
		bodies, offsets, b = append(bodies, string(m.Body)), append(offsets, m.QueueOffset), b[n:]
	}
	return bodies, offsets
}

// pipes is a network of pipes in memory.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	conns     map[string][]net.Conn   // by the address that was dialled
	cut       map[string]*atomic.Bool // what is sent to these addresses, and from them, is lost; of "host>address" alone on what that host has opened
}

func newPipes() *pipes {
	return &pipes{listeners: map[string]*pipeListener{}, conns: map[string][]net.Conn{}, cut: map[string]*atomic.Bool{}}
}

type pipeListener struct {
	p       *pipes
	address string
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

type pipeAddr string

func (pipeAddr) Network() string  { return "tcp" }
func (a pipeAddr) String() string { return string(a) }

// pipeConn is one end with the addresses that it is meant to have.
type pipeConn struct {
	net.Conn
	local, remote pipeAddr
	cut           [2]*atomic.Bool
}

func (c pipeConn) Write(b []byte) (int, error) {
	if c.cut[0].Load() || c.cut[1].Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// lose makes everything be lost that is sent to an address or from it on connections that are open; nobody is told.
func (p *pipes) lose(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[address].Store(true)
}

// loseBetween is lose for the connections that one host has opened.
func (p *pipes) loseBetween(host, address string) { p.lose(host + ">" + address) }

func (c pipeConn) LocalAddr() net.Addr  { return c.local }
func (c pipeConn) RemoteAddr() net.Addr { return c.remote }

func (p *pipes) listen(address string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners[address] != nil {
		return nil, errors.New("address in use")
	}
	l := &pipeListener{p: p, address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	p.listeners[address] = l
	return l, nil
}

func (p *pipes) dial(from, to string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(from)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	l := p.listeners[to]
	p.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	a, b := net.Pipe()
	p.mu.Lock()
	var cut [2]*atomic.Bool
	for i, name := range [...]string{to, host + ">" + to} {
		if p.cut[name] == nil {
			p.cut[name] = new(atomic.Bool)
		}
		cut[i] = p.cut[name]
	}
	p.mu.Unlock()
	mine, theirs := pipeConn{a, pipeAddr(from), pipeAddr(to), cut}, pipeConn{b, pipeAddr(to), pipeAddr(from), cut}
	select {
	case l.conns <- theirs:
	case <-l.closed:
		return nil, errors.New("connection refused")
	}
	p.mu.Lock()
	p.conns[to] = append(p.conns[to], a, b)
	p.mu.Unlock()
	return mine, nil
}

// reset breaks the connections to an address; new ones are possible.
func (p *pipes) reset(address string) {
	p.mu.Lock()
	conns := p.conns[address]
	delete(p.conns, address)
	p.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// die ends everything that leads to an address.
func (p *pipes) die(address string) {
	p.mu.Lock()
	l, conns := p.listeners[address], p.conns[address]
	delete(p.conns, address)
	p.mu.Unlock()
	if l != nil {
		l.Close()
	}
	for _, c := range conns {
		c.Close()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		l.p.mu.Lock()
		delete(l.p.listeners, l.address)
		l.p.mu.Unlock()
		close(l.closed)
	})
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.address) }

// route asks the name server for a topic.
func (cl *client) route(topic string) (mq.TopicRouteData, bool) {
	cl.c.T.Helper()
	f, err := cl.r.Call(cl.c.T.Context(), testNames, remoting.Request{Code: mq.CodeRoute, Ext: ext("topic", topic)}, 5*time.Second)
	if err != nil {
		cl.c.T.Fatal(err)
	}
	var route mq.TopicRouteData
	if f.Code != mq.Success {
		return route, false
	}
	if err := mq.Unmarshal(f.Body, &route); err != nil {
		cl.c.T.Fatal(err)
	}
	return route, true
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// secret is what the members know each other by.
func (c *cluster) secret() string { return *c.brokers[c.leader()].meta.pass.Load() }
