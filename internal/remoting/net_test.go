package remoting

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memNet is a network in memory with one address, for tests in virtual time: a write waits until the other end reads.
type memNet struct {
	mu     sync.Mutex
	accept chan net.Conn // nil = nobody listens
	dials  int
	open   []net.Conn
}

var errRefused = errors.New("refused")

func (n *memNet) dial(context.Context, string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	accept := n.accept
	n.mu.Unlock()
	if accept == nil {
		return nil, errRefused
	}
	near, far := net.Pipe()
	n.mu.Lock()
	n.open = append(n.open, far)
	n.mu.Unlock()
	accept <- far
	return near, nil
}

// cut breaks all connections.
func (n *memNet) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.open {
		c.Close()
	}
	n.open = nil
}

func (n *memNet) listen() net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accept = make(chan net.Conn)
	return &memListener{net: n, accept: n.accept, closed: make(chan struct{})}
}

type memListener struct {
	net    *memNet
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		l.net.accept = nil
		l.net.mu.Unlock()
		close(l.closed)
	})
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

// serve runs a server on TCP until the test ends and gives its address.
func serve(t testing.TB, cfg ServerConfig) (*Server, string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(cfg)
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		ended.Wait()
	})
	return s, l.Addr().String()
}

func dialRaw(t testing.TB, address string) net.Conn {
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// readFrame reads one frame from a raw connection.
func readFrame(t testing.TB, c net.Conn) Frame {
	var d reader
	for {
		if _, err := d.fill(c); err != nil {
			t.Fatal(err)
		}
		whole, err := d.next()
		if err != nil {
			t.Fatal(err)
		}
		if whole != nil {
			var f Frame
			if err := f.parse(whole); err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
}
