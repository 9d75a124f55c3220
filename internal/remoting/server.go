package remoting

import (
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ServerConfig holds the settings of a Server. The zero value is usable but for Handler.
type ServerConfig struct {
	Handler Handler

	TLS         *TLS                       // nil: every connection is plain
	Version     int32                      // goes into the header of every answer
	ConnsMax    int                        // further connections are closed at once, as are those that leave few descriptors; default 10000
	QueueMax    int                        // bytes that may wait to be sent on one connection before it is no longer read from; default 16 MiB
	StallMax    time.Duration              // how long the queue may stay over QueueMax before the connection is closed; default 30 s
	IdleMax     time.Duration              // a connection without traffic is closed after it; default 120 s, below 0 = never
	Opened      func(c *Conn)              // runs before the first frame of a connection is read
	Closed      func(c *Conn, cause error) // runs after the last one is handled and all calls have ended
	AcceptError func(err error)            // a listener that cannot accept for now, as when file descriptors run out; it is tried again
}

// Server accepts connections and runs one Handler for all of them (NettyRemotingServer in the Java original).
type Server struct {
	cfg      ServerConfig
	opt      options
	keeper   *keeper
	rejected atomic.Uint64
	entry    toll // for barren connections

	mu        sync.Mutex
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[*Conn]struct{}
	running   sync.WaitGroup // accept loops and connections
}

// NewServer makes a server without a listener.
func NewServer(cfg ServerConfig) *Server {
	if cfg.ConnsMax == 0 {
		cfg.ConnsMax = 10000
	}
	s := &Server{cfg: cfg, keeper: newKeeper(), entry: toll{each: 250 * time.Microsecond, burst: 500, longest: 100 * time.Millisecond}, listeners: make(map[net.Listener]struct{}), conns: make(map[*Conn]struct{})}
	s.opt.server = true
	s.opt.vain = toll{each: 250 * time.Microsecond, burst: 128, longest: 250 * time.Millisecond}
	s.opt.tls = cfg.TLS
	s.opt.version = cfg.Version
	s.opt.bounds(cfg.QueueMax, cfg.StallMax, cfg.IdleMax)
	return s
}

// bounds sets the limits of a connection, with their defaults.
func (o *options) bounds(queueMax int, stall, idle time.Duration) {
	if o.queueMax = queueMax; queueMax == 0 {
		o.queueMax = FrameMax
	}
	if o.stall = stall; stall == 0 {
		o.stall = 30 * time.Second
	}
	if o.idle = idle; idle == 0 {
		o.idle = 120 * time.Second
	}
}

// Serve accepts connections from l until l fails or the server is closed; then it returns net.ErrClosed. It closes l. Several Serve
// calls may run at once, each with its own listener.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		l.Close()
		return net.ErrClosed
	}
	s.listeners[l] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	pause := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if err == nil {
			pause = 5 * time.Millisecond
			s.open(nc)
			if wait := s.entry.wait(s.keeper.now()); wait > 0 && !s.keeper.sleep(wait) {
				return net.ErrClosed
			}
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return net.ErrClosed
		}
		if s.cfg.AcceptError != nil {
			s.cfg.AcceptError(err)
		}
		if !s.keeper.sleep(pause) {
			return net.ErrClosed
		}
		pause = min(2*pause, time.Second)
	}
}

// toll slows down what is of no use to anybody, so that those who use the port do not feel it.
//
// One is for connections that are barren: closed before they have sent one whole frame, as those of port scanners and storms of connections are. Each costs a fifteenth of a
// millisecond of processor time, most of it the kernel's. While most are such, connections are accepted more slowly. Clients that come back all at once send something, and are never slowed
// down by each other; but while a storm lasts, who comes new waits in the listener's backlog, with it.
//
// The other is for requests in vain, see Conn.Vain. While there are more of them than good clients send, the connections that they come on are read from more slowly.
type toll struct {
	each    time.Duration // for one
	burst   time.Duration // so many of them in no time wait for nothing
	longest time.Duration // no wait is longer, however many come at once
	paid    atomic.Int64  // up to when, in keeper time, what came has been paid for
}

// tollBytes is for how many bytes a barren connection pays once more.
const tollBytes = 16 << 10

// take charges for n at once, and tells how long those who sent them should wait, if nobody else is to.
func (t *toll) take(now, n int64) time.Duration {
	free := now + int64(t.burst*t.each)
	for {
		paid := t.paid.Load()
		next := min(max(paid, now)+n*int64(t.each), free+int64(t.longest))
		if t.paid.CompareAndSwap(paid, next) {
			return time.Duration(next - free)
		}
	}
}

// wait is how long none should be taken in.
func (t *toll) wait(now int64) time.Duration {
	return time.Duration(t.paid.Load()-now) - t.burst*t.each
}

// accepted counts the connections of all servers in this process.
var accepted atomic.Int64

// acceptedMax keeps descriptors back for files and for connections that this process opens: whoever connects must not be able to stop it from writing.
var acceptedMax = sync.OnceValue(func() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return int64(limit.Cur) - min(int64(limit.Cur)/2, 512)
})

func (s *Server) open(nc net.Conn) {
	c := newConn(nc, &s.opt, s.keeper, s.cfg.Handler)
	s.mu.Lock()
	scarce := accepted.Add(1) > acceptedMax()
	if scarce || s.closed || len(s.conns) >= s.cfg.ConnsMax {
		accepted.Add(-1)
		s.mu.Unlock()
		s.rejected.Add(1)
		s.entry.take(s.keeper.now(), 1)
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	if s.cfg.Opened != nil {
		s.cfg.Opened(c)
	}
	c.start(func(cause error) {
		if s.cfg.Closed != nil {
			s.cfg.Closed(c, cause)
		}
		if c.barren >= 0 {
			s.entry.take(s.keeper.now(), 1+c.barren/tollBytes)
		}
		accepted.Add(-1)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.running.Done()
	})
}

// Close closes listeners and connections and waits for all goroutines; a handler must not call it.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	var errs []error
	for l := range s.listeners {
		errs = append(errs, l.Close())
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.fail(ErrClosed)
	}
	s.keeper.close()
	s.running.Wait()
	return errors.Join(errs...)
}

// Stats are counts since the start, but for Conns, which is the present number.
type Stats struct {
	Conns               int
	Rejected            uint64 // connections refused for ConnsMax
	Vain                uint64 // requests, see Conn.Vain
	FramesIn, FramesOut uint64
	BytesIn, BytesOut   uint64
	SystemCalls         uint64 // reads and writes of sockets
}

func (o *options) stats() Stats {
	return Stats{FramesIn: o.framesIn.Load(), FramesOut: o.framesOut.Load(), BytesIn: o.bytesIn.Load(), BytesOut: o.bytesOut.Load(),
		SystemCalls: o.systemCall.Load(), Vain: o.inVain.Load()}
}

// Stats gives the server's counts.
func (s *Server) Stats() Stats {
	stats := s.opt.stats()
	stats.Rejected = s.rejected.Load()
	s.mu.Lock()
	stats.Conns = len(s.conns)
	s.mu.Unlock()
	return stats
}
