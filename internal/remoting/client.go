package remoting

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ClientConfig holds the settings of a Client. The zero value is usable.
type ClientConfig struct {
	// Dial opens a connection; it resolves host names itself, at every call. Default: TCP, without delay.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	Version     int32         // goes into the header of every request
	DialTimeout time.Duration // default 3 s
	QueueMax    int           // bytes that may wait to be sent to one peer; more is refused with ErrBusy; default 16 MiB
	StallMax    time.Duration // how long a queue over QueueMax is suffered before the connection is closed; default 30 s
	IdleMax     time.Duration // a connection without traffic is closed after it; default 120 s, below 0 = never
	PauseMin    time.Duration // after a first failed attempt to connect; default 50 ms
	PauseMax    time.Duration // doubles up to this; default 1 s

	Handler Handler // requests that a peer sends to us; nil answers them with CodeUnsupported
	// State tells that a peer has become reachable, or that its connection is lost. Calls for one address are in order; it must not
	// block.
	State func(address string, up bool)
}

// Client holds one connection for each address that it is asked to talk to, opened when it is first needed and again when it is
// needed after a loss (NettyRemotingClient in the Java original).
type Client struct {
	cfg    ClientConfig
	opt    options
	keeper *keeper
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.RWMutex
	closed  bool
	peers   map[string]*peer
	running sync.WaitGroup // dialing goroutines and connections
}

// NewClient makes a client without connections.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 3 * time.Second
	}
	if cfg.PauseMin == 0 {
		cfg.PauseMin = 50 * time.Millisecond
	}
	if cfg.PauseMax == 0 {
		cfg.PauseMax = time.Second
	}
	cl := &Client{cfg: cfg, keeper: newKeeper(), peers: make(map[string]*peer)}
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	cl.opt.version = cfg.Version
	cl.opt.bounds(cfg.QueueMax, cfg.StallMax, cfg.IdleMax)
	return cl
}

// Go sends a request to address ("host:port", "[::1]:port"). It never waits: while the connection is being opened the request waits
// in line, and during the pause after a failed attempt it is refused with ErrUnreachable. All pieces of the body are handed over:
// they must not be written to any more. See Conn.Go for the rest.
func (cl *Client) Go(address string, req Request, timeout time.Duration, done func(*Frame, error), body ...[]byte) error {
	p, err := cl.peer(address)
	if err != nil {
		return err
	}
	return p.send(req, cl.keeper.now()+int64(timeout), done, body)
}

// Call is Go for a caller that waits. When ctx ends first its error is returned and the outcome is unknown.
func (cl *Client) Call(ctx context.Context, address string, req Request, timeout time.Duration, body ...[]byte) (*Frame, error) {
	return wait(ctx, func(done func(*Frame, error)) error { return cl.Go(address, req, timeout, done, body...) })
}

func (cl *Client) peer(address string) (*peer, error) {
	cl.mu.RLock()
	p, closed := cl.peers[address], cl.closed
	cl.mu.RUnlock()
	if closed {
		return nil, ErrClosed
	}
	if p != nil {
		return p, nil
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.closed {
		return nil, ErrClosed
	}
	if p = cl.peers[address]; p == nil {
		p = &peer{client: cl, address: address}
		cl.peers[address] = p
		cl.keeper.add(p)
	}
	return p, nil
}

// Close closes all connections, fails the calls that wait with ErrClosed, and waits for all goroutines. A done function must not
// call it.
func (cl *Client) Close() error {
	cl.mu.Lock()
	if cl.closed {
		cl.mu.Unlock()
		return nil
	}
	cl.closed = true
	peers := cl.peers
	cl.peers = nil
	cl.mu.Unlock()
	cl.cancel()
	for _, p := range peers {
		p.close()
	}
	cl.running.Wait()
	cl.keeper.close()
	return nil
}

// Retry ends the pause after failed attempts to connect to address: who is there has shown itself by other means. The next request dials at once.
func (cl *Client) Retry(address string) {
	cl.mu.RLock()
	p := cl.peers[address]
	cl.mu.RUnlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	p.failures, p.retry = 0, 0
	p.mu.Unlock()
}

// Stats gives the client's counts.
func (cl *Client) Stats() Stats {
	stats := cl.opt.stats()
	cl.mu.RLock()
	defer cl.mu.RUnlock()
	for _, p := range cl.peers {
		if p.conn.Load() != nil {
			stats.Conns++
		}
	}
	return stats
}

// peer is one address: connected, being dialled, or neither.
type peer struct {
	client  *Client
	address string
	conn    atomic.Pointer[Conn] // nil = not connected; written under mu

	mu       sync.Mutex
	closed   bool
	dialing  bool
	waiting  []waiting // only while dialing
	bytes    int       // of waiting, frame prefixes included
	failures int       // attempts since the last connection that lasted
	retry    int64     // no attempt before this moment
	since    int64     // when the present connection was opened
	lastErr  error     // of the last attempt or connection
}

// waiting is a request that is kept until its connection is open.
type waiting struct {
	req      Request
	deadline int64
	done     func(*Frame, error)
	body     [][]byte
}

func (p *peer) send(req Request, deadline int64, done func(*Frame, error), body [][]byte) error {
	if c := p.conn.Load(); c != nil {
		return c.send(req, deadline, done, body)
	}
	return p.sendLater(req, deadline, done, append([][]byte(nil), body...))
}

// sendLater keeps the request in line and starts to dial if nobody does.
func (p *peer) sendLater(req Request, deadline int64, done func(*Frame, error), body [][]byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conn.Load(); c != nil {
		return c.send(req, deadline, done, body)
	}
	if p.closed {
		return ErrClosed
	}
	if !p.dialing {
		if wait := p.retry - p.client.keeper.now(); wait > 0 {
			return fmt.Errorf("%w: %s: next attempt in %v: %w", ErrUnreachable, p.address, time.Duration(wait).Round(time.Millisecond),
				p.lastErr)
		}
		if !p.client.goDial(p) {
			return ErrClosed
		}
		p.dialing = true
	}
	size := prefixSize + total(body)
	if p.bytes+size > p.client.opt.queueMax {
		return ErrBusy
	}
	p.bytes += size
	p.waiting = append(p.waiting, waiting{req: req, deadline: deadline, done: done, body: body})
	p.client.keeper.note(deadline)
	return nil
}

// goDial starts the goroutine that opens p's connection, unless the client is closed.
func (cl *Client) goDial(p *peer) bool {
	cl.mu.RLock()
	defer cl.mu.RUnlock()
	if cl.closed {
		return false
	}
	cl.running.Go(p.dial)
	return true
}

// dial makes one attempt and ends the wait of all requests in line, one way or the other.
func (p *peer) dial() {
	cl := p.client
	ctx, cancel := context.WithTimeout(cl.ctx, cl.cfg.DialTimeout)
	defer cancel()
	nc, err := cl.cfg.Dial(ctx, p.address)
	if err != nil {
		p.dialFailed(err)
		return
	}
	c := newConn(nc, &cl.opt, cl.keeper, cl.cfg.Handler)
	if cl.cfg.State != nil {
		cl.cfg.State(p.address, true)
	}
	p.mu.Lock()
	line := p.waiting
	p.waiting, p.bytes, p.dialing = nil, 0, false
	closed := p.closed
	if !closed {
		p.since = cl.keeper.now()
		p.conn.Store(c)
	}
	var failed []waiting
	var errs []error
	for _, w := range line { // under mu: nothing may overtake them
		if err := c.send(w.req, w.deadline, w.done, w.body); err != nil && w.done != nil {
			failed, errs = append(failed, w), append(errs, err)
		}
	}
	p.mu.Unlock()
	for i, w := range failed {
		w.done(nil, errs[i])
	}
	if closed {
		c.fail(ErrClosed)
	}
	cl.running.Add(1)
	c.start(func(cause error) {
		p.lost(c, cause)
		cl.running.Done()
	})
}

func (p *peer) dialFailed(err error) {
	p.mu.Lock()
	line := p.waiting
	p.waiting, p.bytes, p.dialing = nil, 0, false
	p.pause(err)
	p.mu.Unlock()
	err = fmt.Errorf("%w: %s: %w", ErrUnreachable, p.address, err)
	for _, w := range line {
		if w.done != nil {
			w.done(nil, err)
		}
	}
}

// pause delays the next attempt; mu is held.
func (p *peer) pause(err error) {
	cfg := &p.client.cfg
	pause := cfg.PauseMax
	if p.failures < 20 {
		pause = min(pause, cfg.PauseMin<<p.failures)
	}
	p.failures++
	p.lastErr = err
	p.retry = p.client.keeper.now() + int64(pause)
}

// lost follows the end of connection c.
func (p *peer) lost(c *Conn, cause error) {
	cl := p.client
	p.mu.Lock()
	p.conn.CompareAndSwap(c, nil)
	if cl.keeper.now()-p.since >= int64(cl.cfg.PauseMax) {
		p.failures = 0 // it lasted: the next attempt may follow at once
		p.retry = 0
	} else {
		p.pause(cause)
	}
	p.mu.Unlock()
	if cl.cfg.State != nil {
		cl.cfg.State(p.address, false)
	}
}

func (p *peer) close() {
	p.mu.Lock()
	p.closed = true
	c := p.conn.Load()
	p.mu.Unlock()
	if c != nil {
		c.fail(ErrClosed)
	}
}

// expire gives up the requests in line whose time has passed.
func (p *peer) expire(now int64) (next int64) {
	next = never
	var late []waiting
	p.mu.Lock()
	kept := p.waiting[:0]
	for _, w := range p.waiting {
		if w.deadline <= now && w.done != nil {
			late = append(late, w)
			p.bytes -= prefixSize + total(w.body)
			continue
		}
		if w.done != nil {
			next = min(next, w.deadline)
		}
		kept = append(kept, w)
	}
	clear(p.waiting[len(kept):])
	p.waiting = kept
	p.mu.Unlock()
	for _, w := range late {
		w.done(nil, fmt.Errorf("%w: %s: %w", ErrTimeout, p.address, ErrConnecting))
	}
	return next
}
