package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of connections. A call that was sent and then fails with ErrClosed or ErrTimeout is undecided: the peer may have carried
// it out, or may yet do so.
var (
	ErrClosed      = errors.New("connection closed")
	ErrTimeout     = errors.New("no answer in time, outcome unknown")
	ErrConnecting  = errors.New("still connecting") // comes with ErrTimeout: the request was not sent
	ErrBusy        = errors.New("outgoing queue full, not sent")
	ErrUnreachable = errors.New("peer unreachable, not sent")
	ErrSlowPeer    = errors.New("peer does not read what is sent to it")
	ErrIdle        = errors.New("no traffic")
)

// Handler works on the requests of a connection.
//
//  1. Both methods are called on the connection's read goroutine, never two at once for one connection, in the order of arrival.
//  2. While they run nothing is read from this connection; other connections go on.
//  3. Every request that is not one-way must get one Reply, then or later, from any goroutine.
type Handler interface {
	// Handle takes one request. req is valid until Handle returns, see Frame.
	Handle(c *Conn, req *Frame)
	// Idle follows once all frames that were already received have been handled, and before the connection waits: the moment to hand on what was gathered.
	Idle(c *Conn)
}

// HandlerFunc is a Handler that gathers nothing.
type HandlerFunc func(c *Conn, req *Frame)

func (f HandlerFunc) Handle(c *Conn, req *Frame) { f(c, req) }
func (f HandlerFunc) Idle(*Conn)                 {}

// Request is the part of a request's header that its sender chooses.
type Request struct {
	Code int32
	Ext  map[string]string
}

// Answer is the part of an answer's header that its sender chooses.
type Answer struct {
	Code   int32
	Remark string
	Ext    map[string]string
}

// Conn is one connection, of a server or of a client; requests and answers travel both ways on it.
//
// It has two goroutines: read, which parses frames and runs handlers and done functions, and write, which sends everything that
// waits with one system call. Its methods may be called from any goroutine and never wait for the network.
type Conn struct {
	// Value is free for the handler. Only the connection's read goroutine, or a hook that runs before it starts, may use it.
	Value any

	nc      net.Conn
	stream  net.Conn // what frames travel on: nc, or TLS over it; guarded by mu, but for the read goroutine, which alone sets it
	opt     *options
	keeper  *keeper
	handler Handler      // nil: requests are answered with CodeUnsupported
	in      reader       // read goroutine only
	barren  int64        // bytes received while there has been no whole frame; -1 once there was one. Read goroutine, and whoever it tells that it has ended
	credit  int64        // requests in vain that are free; read goroutine
	vain    atomic.Int64 // requests in vain since the last turn
	active  atomic.Int64
	queued  atomic.Int64 // bytes waiting or being written; changed under mu

	mu        sync.Mutex
	toWrite   sync.Cond // the write goroutine waits here while out is empty
	drained   sync.Cond // the read goroutine of a server waits here while the queue is over its bound
	out       queue
	parked    bool  // the write goroutine waits
	overSince int64 // when queued went over the bound; 0 = it is not
	err       error // why the connection is closed; nil = open
	calls     map[int32]call
	opaque    int32 // the next to try
}

// call is a request that waits for its answer.
type call struct {
	done     func(*Frame, error)
	deadline int64 // keeper time
}

// options are what Server and Client settings come down to for one connection.
type options struct {
	server     bool // stop reading while the peer does not read
	tls        *TLS // of a server; nil = every connection is plain
	version    int32
	queueMax   int
	idle       time.Duration // 0 = never
	stall      time.Duration
	framesIn   atomic.Uint64
	framesOut  atomic.Uint64
	bytesIn    atomic.Uint64
	bytesOut   atomic.Uint64
	systemCall atomic.Uint64 // reads and writes
	inVain     atomic.Uint64

	vain toll // of a server
}

func newConn(nc net.Conn, opt *options, k *keeper, h Handler) *Conn {
	c := &Conn{nc: nc, stream: nc, opt: opt, keeper: k, handler: h}
	c.toWrite.L, c.drained.L = &c.mu, &c.mu
	c.active.Store(k.now())
	return c
}

// start runs both goroutines; ended is called when they have stopped and all calls have their outcome.
func (c *Conn) start(ended func(cause error)) {
	c.keeper.add(c)
	var writer sync.WaitGroup
	writer.Go(c.write)
	go func() {
		c.read()
		writer.Wait()
		c.keeper.remove(c)
		ended(c.failCalls())
	}()
}

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// LocalAddr is this side's address.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// Close ends the connection; what waits to be sent is dropped. It does not wait for the goroutines.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	return nil
}

// fail closes the connection for a reason; the first one stays.
func (c *Conn) fail(cause error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = cause
	c.toWrite.Broadcast()
	c.drained.Broadcast()
	c.mu.Unlock()
	c.nc.Close() // its error says nothing more: both goroutines see the closed connection
}

// Reply answers the request ref. For a one-way request it does nothing. Pieces of the body above CopyMax are handed over: they must
// not be written to any more; smaller ones are free when Reply returns. An error means that the answer will not arrive: ErrTooLarge leaves the connection as it is, so that another answer
// can be given; after any other the connection is closed.
func (c *Conn) Reply(ref Ref, a Answer, body ...[]byte) error {
	if ref.oneWay {
		return nil
	}
	h := Header{Serial: ref.serial, Code: a.Code, Flag: flagAnswer, Opaque: ref.opaque, Version: c.opt.version,
		Language: Language, Remark: a.Remark, Ext: a.Ext}
	c.mu.Lock()
	err := c.enqueue(&h, body)
	c.mu.Unlock()
	if err == nil && c.queued.Load() > queueFactor*int64(c.opt.queueMax) {
		err = ErrSlowPeer
		c.fail(err)
	}
	return err
}

// ReplyUnsupported answers a request whose code nobody handles, in the original's words.
func (c *Conn) ReplyUnsupported(req *Frame) error {
	c.Vain(req.Ref())
	return c.Reply(req.Ref(), Answer{Code: CodeUnsupported, Remark: fmt.Sprintf(" request type %d not supported", req.Code)})
}

// Vain tells the server that the request ref on c was refused as one that nobody should send, or was one that a good client sends now and then. Each other one makes up for vainFree of them; beyond
// that the connection is read from more slowly while the server gets more of them, on all connections, than it should. Any goroutine may call it.
func (c *Conn) Vain(ref Ref) {
	c.vain.Add(1 + int64(ref.size)/vainBytes)
	c.opt.inVain.Add(1)
}

// Each request that is not in vain makes up for so many that are, gathered to at most vainMost of them.
const (
	vainFree = 16
	vainMost = 4096

	vainBytes = 8 << 10 // of a body; for each so many a request in vain counts once more
)

// owes settles what was in vain of n frames, or before, and tells how long a server should not read from the connection.
func (c *Conn) owes(n int64) time.Duration {
	if !c.opt.server || n == 0 {
		return 0
	}
	vain := c.vain.Swap(0)
	c.credit = min(c.credit+vainFree*max(n-vain, 0), vainMost)
	free := min(vain, c.credit)
	if c.credit -= free; vain == free {
		return 0
	}
	return max(0, c.opt.vain.take(c.keeper.now(), vain-free))
}

// Go sends a request. done is called once, on another goroutine, with the answer, or with an error that wraps ErrTimeout or ErrClosed;
// it must not block. The frame it gets is valid until it returns, see Frame. With done nil the request is one-way.
// An error of Go itself means that nothing was sent and done will not be called. The body's pieces are handed over as in Reply.
func (c *Conn) Go(req Request, timeout time.Duration, done func(*Frame, error), body ...[]byte) error {
	return c.send(req, c.keeper.now()+int64(timeout), done, body)
}

func (c *Conn) send(req Request, deadline int64, done func(*Frame, error), body [][]byte) error {
	h := Header{Code: req.Code, Version: c.opt.version, Language: Language, Ext: req.Ext}
	if done == nil {
		h.Flag = flagOneWay
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queued.Load() > int64(c.opt.queueMax) {
		return ErrBusy
	}
	for {
		h.Opaque = c.opaque
		c.opaque++
		if _, taken := c.calls[h.Opaque]; !taken {
			break
		}
	}
	if err := c.enqueue(&h, body); err != nil || done == nil {
		return err
	}
	if c.calls == nil {
		c.calls = make(map[int32]call)
	}
	c.calls[h.Opaque] = call{done: done, deadline: deadline}
	c.keeper.note(deadline)
	return nil
}

// Call is Go for a caller that waits. When ctx ends first its error is returned and the answer, if it comes, is dropped:
// the outcome is unknown.
func (c *Conn) Call(ctx context.Context, req Request, timeout time.Duration, body ...[]byte) (*Frame, error) {
	return wait(ctx, func(done func(*Frame, error)) error { return c.Go(req, timeout, done, body...) })
}

// wait turns a call with a done function into one that returns.
func wait(ctx context.Context, send func(done func(*Frame, error)) error) (*Frame, error) {
	type outcome struct {
		frame *Frame
		err   error
	}
	got := make(chan outcome, 1)
	err := send(func(f *Frame, err error) {
		if f != nil {
			kept := *f
			f = &kept
		}
		got <- outcome{f, err}
	})
	if err != nil {
		return nil, err
	}
	select {
	case o := <-got:
		return o.frame, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enqueue adds a frame to what waits; mu is held.
func (c *Conn) enqueue(h *Header, body [][]byte) error {
	if c.err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, c.err)
	}
	before := c.out.size
	if err := c.out.add(h, body); err != nil {
		return err
	}
	queued := c.queued.Add(int64(c.out.size - before))
	c.opt.framesOut.Add(1)
	if queued > int64(c.opt.queueMax) && c.overSince == 0 {
		c.overSince = c.keeper.now()
		c.keeper.note(c.overSince + int64(c.opt.stall))
	}
	if c.parked {
		c.parked = false
		c.toWrite.Signal()
	}
	return nil
}

// write is the write goroutine: it sends all that waits at once, again and again.
func (c *Conn) write() {
	var sending queue
	var vector, unsent net.Buffers
	var record []byte // for TLS
	c.mu.Lock()
	for {
		for c.out.size == 0 && c.err == nil {
			c.parked = true
			c.toWrite.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		sending, c.out = c.out, sending
		stream := c.stream
		c.mu.Unlock()

		vector = sending.vector(vector[:0])
		unsent = vector // WriteTo consumes its receiver
		var err error
		if _, secure := stream.(*tls.Conn); secure {
			record, err = whole(stream, unsent, record)
		} else {
			_, err = unsent.WriteTo(stream)
		}
		clear(vector)
		c.active.Store(c.keeper.now())
		c.opt.systemCall.Add(1)
		c.opt.bytesOut.Add(uint64(sending.size))
		if err != nil {
			c.fail(fmt.Errorf("write: %w", err))
		}

		c.mu.Lock()
		queued := c.queued.Add(-int64(sending.size))
		if c.overSince != 0 && queued <= int64(c.opt.queueMax)/2 {
			c.overSince = 0
			c.drained.Broadcast()
		}
		sending.reset()
	}
}

// turnFrames is how many frames of one connection are handled before others have their turn: a peer may send thousands at once.
const turnFrames = 16

// read is the read goroutine: it runs until the connection fails.
func (c *Conn) read() {
	var f Frame
	fresh := c.opt.tls != nil
	for {
		n, err := c.in.fill(c.stream)
		c.opt.systemCall.Add(1)
		if n > 0 {
			c.active.Store(c.keeper.now())
			c.opt.bytesIn.Add(uint64(n))
			if c.barren >= 0 {
				c.barren += int64(n)
			}
		}
		if fresh && n > 0 {
			fresh = false
			if err := c.secure(); err != nil {
				c.fail(err)
				return
			}
		}
		handled := 0 // in this turn
		gathered := false
		for {
			whole, bad := c.in.next()
			if bad == nil && whole == nil {
				break
			}
			if bad == nil {
				bad = f.parse(whole)
			}
			if bad != nil {
				c.fail(bad)
				return
			}
			handled, gathered, c.barren = handled+1, true, -1
			c.dispatch(&f)
			if c.opt.server && c.queued.Load() > int64(c.opt.queueMax) && !c.waitDrained() {
				return
			}
			if handled == turnFrames {
				handled = 0
				if wait := c.owes(turnFrames); wait > 0 {
					c.idle(&gathered)
					c.keeper.sleep(wait)
				} else {
					runtime.Gosched()
				}
			}
		}
		wait := c.owes(int64(handled))
		c.idle(&gathered)
		c.keeper.sleep(wait)
		if err != nil {
			if err != io.EOF {
				err = fmt.Errorf("read: %w", err)
			}
			c.fail(err)
			return
		}
	}
}

// idle calls the handler's Idle if there were requests since it was last called.
func (c *Conn) idle(gathered *bool) {
	if *gathered && c.handler != nil {
		c.handler.Idle(c)
	}
	*gathered = false
}

func (c *Conn) dispatch(f *Frame) {
	c.opt.framesIn.Add(1)
	switch {
	case f.IsAnswer():
		c.mu.Lock()
		waiting, ok := c.calls[f.Opaque]
		delete(c.calls, f.Opaque)
		c.mu.Unlock()
		if ok { // else nobody asked, or nobody waits any more
			waiting.done(f, nil)
		}
	case c.handler != nil:
		c.handler.Handle(c, f)
	default:
		if err := c.ReplyUnsupported(f); err != nil {
			c.fail(err)
		}
	}
}

// waitDrained waits until the peer has read half of what the queue may hold; false means the connection is closed.
func (c *Conn) waitDrained() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.overSince != 0 && c.err == nil {
		c.drained.Wait()
	}
	return c.err == nil
}

// expire fails the calls whose time has passed, closes the connection if its peer is silent or does not read, and gives the
// moment to look again.
func (c *Conn) expire(now int64) (next int64) {
	next = never
	var late []call
	c.mu.Lock()
	for opaque, waiting := range c.calls {
		if waiting.deadline <= now {
			late = append(late, waiting)
			delete(c.calls, opaque)
		} else {
			next = min(next, waiting.deadline)
		}
	}
	overSince := c.overSince
	c.mu.Unlock()
	for _, waiting := range late {
		waiting.done(nil, ErrTimeout)
	}
	if overSince != 0 {
		if due := overSince + int64(c.opt.stall); due <= now {
			c.fail(ErrSlowPeer)
		} else {
			next = min(next, due)
		}
	}
	if c.opt.idle > 0 {
		if due := c.active.Load() + int64(c.opt.idle); due <= now {
			c.fail(ErrIdle)
		} else {
			next = min(next, due)
		}
	}
	return next
}

// failCalls gives every call that still waits the cause of the close, and returns that.
func (c *Conn) failCalls() (cause error) {
	c.mu.Lock()
	calls := c.calls
	c.calls, cause = nil, c.err
	err := fmt.Errorf("%w, outcome unknown: %w", ErrClosed, cause)
	c.mu.Unlock()
	for _, waiting := range calls {
		waiting.done(nil, err)
	}
	return cause
}

// CopyMax is the size up to which a piece of a body is copied behind the header before it; larger ones become vector elements of their
// own. A copied piece is free at once, but a push of 256 entries of 1 KiB takes half the CPU time when they are not copied.
const CopyMax = 512

// queueFactor times the bound of a queue closes its connection at once. Reading has stopped at the bound itself; beyond it come only
// answers to requests that were read before, and of those a peer can have let many gather.
const queueFactor = 4

// bufferKept is the largest buffer of headers and small pieces that a connection keeps for the next round; it has two.
const bufferKept = 256 << 10

// queue is what waits to be written: buf with the pieces cut into it.
type queue struct {
	buf  []byte
	cuts []cut
	size int // of everything
}

// cut is a large piece that goes behind the first at bytes of buf.
type cut struct {
	at    int
	piece []byte
}

func (q *queue) add(h *Header, body [][]byte) error {
	size := total(body)
	before := len(q.buf)
	var err error
	if q.buf, err = appendHead(q.buf, h, size); err != nil {
		return err
	}
	q.size += len(q.buf) - before + size
	for _, piece := range body {
		if len(piece) <= CopyMax {
			q.buf = append(q.buf, piece...)
		} else {
			q.cuts = append(q.cuts, cut{at: len(q.buf), piece: piece})
		}
	}
	return nil
}

// total is the size of all pieces.
func total(body [][]byte) (n int) {
	for _, piece := range body {
		n += len(piece)
	}
	return n
}

// vector appends the queue's bytes to v, in order.
func (q *queue) vector(v net.Buffers) net.Buffers {
	from := 0
	for _, cut := range q.cuts {
		if cut.at > from {
			v = append(v, q.buf[from:cut.at])
		}
		v = append(v, cut.piece)
		from = cut.at
	}
	if len(q.buf) > from {
		v = append(v, q.buf[from:])
	}
	return v
}

// reset empties the queue and keeps its memory, unless that has become large.
func (q *queue) reset() {
	clear(q.cuts)
	q.cuts, q.size = q.cuts[:0], 0
	if cap(q.buf) > bufferKept {
		q.buf = nil
	}
	q.buf = q.buf[:0]
}
