package remoting

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
)

// tcpPair gives both ends of one TCP connection.
func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return c.(*net.TCPConn), a.(*net.TCPConn)
}

// The aim: whatever the sizes and the number of pieces, they arrive whole and in order, though the kernel takes only a part of them at a time. The way:
// a send buffer that holds a small part of what is sent, more pieces than one call takes, empty ones among them.
func TestSocketWritesAllPieces(t *testing.T) {
	near, far := tcpPair(t)
	if err := near.SetWriteBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var rounds []net.Buffers
	for _, n := range []int{1, 3, vectorMax, 3*vectorMax + 7} {
		pieces := make(net.Buffers, n)
		for i := range pieces {
			pieces[i] = make([]byte, rnd.IntN(1+min(100_000, 1_000_000/n)))
			for k := range pieces[i] {
				pieces[i][k] = byte(rnd.Uint32())
			}
		}
		pieces[n/2] = pieces[n/2][:0:0]
		rounds = append(rounds, pieces)
	}
	want := bytes.Join(slices.Concat(rounds...), nil)
	sent := make(chan error, 1)
	go func() {
		s := socketOf(near)
		for _, pieces := range rounds {
			if err := s.writeAll(slices.Clone(pieces)); err != nil {
				sent <- err
				return
			}
		}
		sent <- near.CloseWrite()
	}()
	var got []byte
	s, buf := socketOf(far), make([]byte, 1500)
	for {
		n, err := s.Read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes, want %d, or others", len(got), len(want))
	}
}

// A reader that waits, and a writer whose peer reads nothing, end when their connection is closed; a broken one gives the system's error.
func TestSocketEndsWithItsConnection(t *testing.T) {
	near, far := tcpPair(t)
	s := socketOf(near)
	ended := make(chan error, 2)
	go func() {
		_, err := s.Read(make([]byte, 10))
		ended <- err
	}()
	go func() {
		for {
			if err := s.writeAll(net.Buffers{make([]byte, 1<<20)}); err != nil {
				ended <- err
				return
			}
		}
	}()
	if _, err := io.ReadFull(far, make([]byte, 1<<20)); err != nil { // both are at it
		t.Fatal(err)
	}
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err == nil || err == io.EOF {
			t.Fatalf("got %v, want an error of the closed connection", err)
		}
	}
	near, far = tcpPair(t)
	if err := far.SetLinger(0); err != nil { // its close is a reset
		t.Fatal(err)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := socketOf(near).Read(make([]byte, 10)); n != 0 || err == nil || err == io.EOF {
		t.Fatalf("got %d, %v, want the system's error", n, err)
	}
}

func TestSocketIsOfTCPOnly(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if socketOf(a) != nil {
		t.Fatal("a pipe is no socket")
	}
}
