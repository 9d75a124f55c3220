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
	toll     toll

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
	s := &Server{cfg: cfg, keeper: newKeeper(), listeners: make(map[net.Listener]struct{}), conns: make(map[*Conn]struct{})}
	s.opt.server = true
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
			if wait := s.toll.wait(s.keeper.now()); wait > 0 && !s.sleep(wait) {
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
		if !s.sleep(pause) {
			return net.ErrClosed
		}
		pause = min(2*pause, time.Second)
	}
}

// sleep waits; false means that the server was closed meanwhile.
func (s *Server) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.keeper.stop:
		return false
	}
}

// toll slows the accepting of connections down while most of them are barren: closed before they have sent one whole frame, as port scanners and storms of connections do.
// Each such connection costs a fifteenth of a millisecond of processor time, most of it the kernel's, which those would lack who are connected. Clients that come back all at once send
// something, and are never slowed down by each other; but while a storm lasts, who comes new waits in the listener's backlog, with it.
type toll struct{ paid atomic.Int64 } // up to when, in keeper time, what came has been paid for

// Each barren connection takes tollEach, and for what it has sent another one for each tollBytes. tollMax is how far in advance that may be: a burst of 500 waits for nothing. However
// many end at once, no wait is longer than tollWait.
const (
	tollEach  = int64(2 * time.Millisecond)
	tollBytes = 16 << 10
	tollMax   = 500 * tollEach
	tollWait  = int64(100 * time.Millisecond)
)

// take charges for a connection that has received so many bytes in vain.
func (t *toll) take(now, bytes int64) {
	for cost := tollEach * (1 + bytes/tollBytes); ; {
		paid := t.paid.Load()
		if t.paid.CompareAndSwap(paid, min(max(paid, now)+cost, now+tollMax+tollWait)) {
			return
		}
	}
}

// wait is how long no connection should be accepted.
func (t *toll) wait(now int64) time.Duration { return time.Duration(t.paid.Load() - now - tollMax) }

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
		s.toll.take(s.keeper.now(), 0)
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
			s.toll.take(s.keeper.now(), c.barren)
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
	FramesIn, FramesOut uint64
	BytesIn, BytesOut   uint64
	SystemCalls         uint64 // reads and writes of sockets
}

func (o *options) stats() Stats {
	return Stats{FramesIn: o.framesIn.Load(), FramesOut: o.framesOut.Load(), BytesIn: o.bytesIn.Load(), BytesOut: o.bytesOut.Load(),
		SystemCalls: o.systemCall.Load()}
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
