package dledgertest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network is what joins the members: connections as TCP gives them, on a clock that may be virtual.
//
//  1. bytes arrive in order, each piece no sooner than its link's delay after it was sent;
//  2. on a cut link nothing arrives, neither bytes nor the end of a connection; both wait, as retransmission makes them, until it heals;
//  3. where the rate is limited each connection gets all of it, and bytes wait in its sender's buffer;
//  4. what a host sent before it died still arrives; what is sent to it afterwards does not.
type network struct {
	mu        sync.Mutex           // taken last: a stream's lock may be held
	listeners map[string]*listener // by host
	cut       map[link]bool
	delay     map[link]time.Duration // where it differs from usual
	rate      map[link]int64         // bytes a second, where that is limited
	usual     time.Duration
	rand      *rand.Rand
	healed    chan struct{} // closed, and made anew, whenever links change
	streams   map[*stream]struct{}
}

// link is one direction between two hosts.
type link struct{ from, to string }

func newNetwork(usual time.Duration, rnd *rand.Rand) *network {
	return &network{listeners: map[string]*listener{}, cut: map[link]bool{}, delay: map[link]time.Duration{}, rate: map[link]int64{}, usual: usual, rand: rnd,
		healed: make(chan struct{}), streams: map[*stream]struct{}{}}
}

// set changes links under the lock and wakes everybody whom that may concern.
func (n *network) set(change func()) {
	n.mu.Lock()
	change()
	close(n.healed)
	n.healed = make(chan struct{})
	streams := make([]*stream, 0, len(n.streams))
	for s := range n.streams {
		streams = append(streams, s)
	}
	n.mu.Unlock()
	for _, s := range streams {
		s.wake()
	}
}

func (n *network) isCut(l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[l]
}

// lag draws the time that a piece takes on a link: its delay and up to a quarter more.
func (n *network) lag(l link) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, ok := n.delay[l]
	if !ok {
		d = n.usual
	}
	if d < 4 {
		return d
	}
	return d + time.Duration(n.rand.Int64N(int64(d/4)))
}

// takes gives the time that n bytes take to get onto a link.
func (n *network) takes(l link, bytes int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rate[l] == 0 {
		return 0
	}
	return time.Duration(int64(bytes) * int64(time.Second) / n.rate[l])
}

// host is the network as one run of one member sees it: with the member's death it is gone for good.
type host struct {
	net  *network
	name string

	mu    sync.Mutex
	dead  bool
	died  chan struct{}
	conns map[*conn]struct{}
}

func (n *network) host(name string) *host {
	return &host{net: n, name: name, died: make(chan struct{}), conns: map[*conn]struct{}{}}
}

// die ends all connections at this moment, without a word from the host's programs.
func (h *host) die() {
	h.mu.Lock()
	h.dead = true
	close(h.died)
	conns := h.conns
	h.conns = map[*conn]struct{}{}
	h.mu.Unlock()
	h.net.mu.Lock()
	l := h.net.listeners[h.name]
	h.net.mu.Unlock()
	if l != nil && l.host == h {
		l.shut()
	}
	for c := range conns {
		c.end()
	}
}

// add notes a connection; false means that the host is dead.
func (h *host) add(c *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return false
	}
	h.conns[c] = struct{}{}
	return true
}

func (h *host) remove(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}

// Listen implements dledger.Config.Listen.
func (h *host) Listen(address string) (net.Listener, error) {
	l := &listener{host: h, address: hostAddr(address), wake: make(chan struct{}, 1), done: make(chan struct{})}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.net.listeners[h.name] != nil {
		return nil, &net.OpError{Op: "listen", Net: "memory", Addr: l.address, Err: syscall.EADDRINUSE}
	}
	h.net.listeners[h.name] = l
	return l, nil
}

// Dial implements dledger.Config.Dial: it takes a round trip, and as long as a cut link lasts.
func (h *host) Dial(ctx context.Context, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err == nil {
		err = h.cross(ctx, link{h.name, name})
	}
	var c *conn
	refused := error(nil)
	if err == nil {
		c, refused = h.connect(name, address)
		err = h.cross(ctx, link{name, h.name})
	}
	if err == nil {
		err = refused
	}
	if err != nil {
		if c != nil {
			c.end()
		}
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: hostAddr(address), Err: err}
	}
	return c, nil
}

// cross waits for a packet to pass a link.
func (h *host) cross(ctx context.Context, l link) error {
	arrived := time.NewTimer(h.net.lag(l))
	defer arrived.Stop()
	passed := false
	for {
		h.net.mu.Lock()
		open, healed := !h.net.cut[l], h.net.healed
		h.net.mu.Unlock()
		if passed && open {
			return nil
		}
		select {
		case <-arrived.C:
			passed = true
		case <-healed:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.died:
			return net.ErrClosed
		}
	}
}

// connect makes both ends and gives the far one to its listener.
func (h *host) connect(name, address string) (*conn, error) {
	h.net.mu.Lock()
	l := h.net.listeners[name]
	h.net.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	out, back := h.net.stream(link{h.name, name}), h.net.stream(link{name, h.name})
	near := &conn{host: h, in: back, out: out, local: hostAddr(h.name), remote: hostAddr(address)}
	far := &conn{host: l.host, in: out, out: back, local: hostAddr(address), remote: hostAddr(h.name)}
	if !h.add(near) {
		return nil, net.ErrClosed
	}
	if !l.host.add(far) || !l.offer(far) {
		near.end()
		far.end()
		return nil, syscall.ECONNREFUSED
	}
	return near, nil
}

type hostAddr string

func (a hostAddr) Network() string { return "memory" }
func (a hostAddr) String() string  { return string(a) }

// listener hands connections out in the order they came.
type listener struct {
	host    *host
	address hostAddr
	wake    chan struct{} // a connection may be there
	done    chan struct{}

	mu     sync.Mutex
	queue  []*conn
	closed bool
}

func (l *listener) Addr() net.Addr { return l.address }

func (l *listener) offer(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.queue = append(l.queue, c)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		if len(l.queue) > 0 {
			c := l.queue[0]
			l.queue = l.queue[1:]
			l.mu.Unlock()
			return c, nil
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-l.done:
			return nil, &net.OpError{Op: "accept", Net: "memory", Addr: l.address, Err: net.ErrClosed}
		}
	}
}

func (l *listener) Close() error {
	if !l.shut() {
		return &net.OpError{Op: "close", Net: "memory", Addr: l.address, Err: net.ErrClosed}
	}
	return nil
}

// shut refuses what is to come and ends what nobody accepted; false if it is shut already.
func (l *listener) shut() bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	l.mu.Unlock()
	close(l.done)
	n := l.host.net
	n.mu.Lock()
	if n.listeners[l.host.name] == l {
		delete(n.listeners, l.host.name)
	}
	n.mu.Unlock()
	for _, c := range queue {
		c.end()
	}
	return true
}

// conn is one end of a connection.
type conn struct {
	host          *host
	in, out       *stream
	local, remote hostAddr
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.write(b) }
func (c *conn) LocalAddr() net.Addr         { return c.local }
func (c *conn) RemoteAddr() net.Addr        { return c.remote }

// end closes this end: its own calls fail, and the far end finds the end of the stream behind what was sent.
func (c *conn) end() {
	c.in.stopReading()
	c.out.stopWriting()
}

func (c *conn) Close() error {
	c.host.remove(c)
	c.end()
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// streamMax bounds what one direction of a connection holds, as socket buffers do; a writer waits beyond it.
const streamMax = 1 << 20

// stream is one direction of a connection.
type stream struct {
	net  *network
	link link

	mu              sync.Mutex
	cond            sync.Cond // something changed: pieces, time, or an end
	pieces          []piece
	size            int
	last            time.Time // when the last piece arrives: none overtakes another
	busy            time.Time // until when the link takes to send what was written
	endAt           time.Time // when the writer's end arrives
	ended           bool      // the writer closed
	deaf            bool      // the reader closed
	readBy, writeBy time.Time
}

type piece struct {
	data []byte
	at   time.Time // when it arrives
}

func (n *network) stream(l link) *stream {
	s := &stream{net: n, link: l}
	s.cond.L = &s.mu
	n.mu.Lock()
	n.streams[s] = struct{}{}
	n.mu.Unlock()
	return s
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cond.Broadcast()
}

// wakeAt wakes the waiting at an instant to come. The caller may hold mu.
func (s *stream) wakeAt(t time.Time) { time.AfterFunc(time.Until(t), s.wake) }

func (s *stream) setDeadline(field *time.Time, t time.Time) {
	s.mu.Lock()
	*field = t
	s.cond.Broadcast()
	s.mu.Unlock()
	if !t.IsZero() {
		s.wakeAt(t)
	}
}

func passed(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case s.deaf:
			return 0, net.ErrClosed
		case passed(s.readBy, now):
			return 0, os.ErrDeadlineExceeded
		case s.net.isCut(s.link):
		case len(s.pieces) > 0 && !now.Before(s.pieces[0].at):
			return s.take(b, now), nil
		case s.ended && len(s.pieces) == 0 && !now.Before(s.endAt):
			return 0, io.EOF
		}
		s.cond.Wait()
	}
}

// take moves what has arrived to b. The caller holds mu.
func (s *stream) take(b []byte, now time.Time) (n int) {
	for n < len(b) && len(s.pieces) > 0 && !now.Before(s.pieces[0].at) {
		p := &s.pieces[0]
		k := copy(b[n:], p.data)
		n += k
		if p.data = p.data[k:]; len(p.data) == 0 {
			s.pieces[0] = piece{}
			s.pieces = s.pieces[1:]
		}
	}
	s.size -= n
	s.cond.Broadcast()
	return n
}

func (s *stream) write(b []byte) (int, error) {
	written, lag := len(b), s.net.lag(s.link)
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.size >= streamMax && !s.ended && !s.deaf && !passed(s.writeBy, time.Now()) {
		s.cond.Wait()
	}
	switch {
	case s.ended:
		return 0, net.ErrClosed
	case passed(s.writeBy, time.Now()):
		return 0, os.ErrDeadlineExceeded
	case s.deaf:
		return len(b), nil // the far end is gone and its farewell is under way
	}
	s.size += len(b)
	if now := time.Now(); s.busy.Before(now) {
		s.busy = now
	}
	for len(b) > 0 {
		n := len(b)
		took := s.net.takes(s.link, n)
		if took > 0 && n > packet { // what comes first arrives first
			n = packet
			took = s.net.takes(s.link, n)
		}
		s.busy = s.busy.Add(took)
		s.send(b[:n], s.busy.Add(lag))
		b = b[n:]
	}
	return written, nil
}

// packet is how much arrives at once where the rate is limited.
const packet = 16 << 10

// send lets a piece arrive at an instant, behind those before it. The caller holds mu.
func (s *stream) send(b []byte, at time.Time) {
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.pieces = append(s.pieces, piece{data: append([]byte(nil), b...), at: at})
	if at.After(time.Now()) {
		s.wakeAt(at)
	} else {
		s.cond.Broadcast()
	}
}

func (s *stream) stopReading() {
	s.mu.Lock()
	s.deaf = true
	s.pieces, s.size = nil, 0
	s.cond.Broadcast()
	s.mu.Unlock()
	s.forget()
}

func (s *stream) stopWriting() {
	lag := s.net.lag(s.link)
	s.mu.Lock()
	if !s.ended {
		s.ended, s.endAt = true, time.Now().Add(lag)
		if s.endAt.Before(s.last) {
			s.endAt = s.last
		}
		s.cond.Broadcast()
	}
	at := s.endAt
	s.mu.Unlock()
	s.wakeAt(at)
	s.forget()
}

// forget lets go of a stream that both ends have closed.
func (s *stream) forget() {
	s.mu.Lock()
	over := s.ended && s.deaf
	s.mu.Unlock()
	if over {
		s.net.mu.Lock()
		delete(s.net.streams, s)
		s.net.mu.Unlock()
	}
}
