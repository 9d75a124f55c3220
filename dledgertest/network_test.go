package dledgertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair runs f with the two ends of a connection from host a to host b, whose links take a millisecond.
func pair(t *testing.T, f func(t *testing.T, n *network, a, b net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(time.Millisecond, rand.New(rand.NewPCG(1, 1)))
		l, err := n.host("b").Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		a, err := n.host("a").Dial(t.Context(), "b:1")
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		f(t, n, a, b)
		a.Close()
		b.Close()
		l.Close()
		if len(n.streams) > 0 || len(n.listeners) > 0 {
			t.Errorf("%d streams and %d listeners are left", len(n.streams), len(n.listeners))
		}
	})
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Errorf("wrote %d of %d bytes: %v", n, len(s), err)
	}
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Errorf("read %q, %v; want %q", b[:n], err, want)
	}
}

func TestBytesArriveInOrderAfterTheirTime(t *testing.T) {
	pair(t, func(t *testing.T, _ *network, a, b net.Conn) {
		begin := time.Now()
		for range 100 {
			write(t, a, "0123456789")
		}
		write(t, b, "back")
		read(t, b, "012")
		if d := time.Since(begin); d < time.Millisecond || d > 1250*time.Microsecond {
			t.Errorf("the first bytes took %v, want 1 ms and up to a quarter more", d)
		}
		read(t, b, "3456789")
		for range 99 {
			read(t, b, "0123456789")
		}
		read(t, a, "back")
	})
}

func TestCutLinkHoldsBytesUntilItHeals(t *testing.T) {
	pair(t, func(t *testing.T, n *network, a, b net.Conn) {
		write(t, a, "sent before")
		n.set(func() { n.cut[link{"a", "b"}] = true })
		write(t, a, ", sent behind the cut")
		write(t, b, "the other way")
		read(t, a, "the other way")
		if err := b.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if n, err := b.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read %d bytes behind a cut, %v", n, err)
		}
		if err := b.SetReadDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		a.Close() // its farewell waits too
		time.AfterFunc(time.Second, func() { n.set(func() { clear(n.cut) }) })
		begin := time.Now()
		read(t, b, "sent before, sent behind the cut")
		if d := time.Since(begin); d != time.Second {
			t.Errorf("the bytes came after %v, want with the healing after 1 s", d)
		}
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("got %v, want the end", err)
		}
	})
}

func TestSlowLinkIsSlowOneWayOnly(t *testing.T) {
	pair(t, func(t *testing.T, n *network, a, b net.Conn) {
		n.set(func() { n.delay[link{"a", "b"}] = time.Second })
		begin := time.Now()
		write(t, a, "slow")
		write(t, b, "fast")
		read(t, a, "fast")
		if d := time.Since(begin); d > 2*time.Millisecond {
			t.Errorf("the fast way took %v", d)
		}
		read(t, b, "slow")
		if d := time.Since(begin); d < time.Second {
			t.Errorf("the slow way took %v", d)
		}
	})
}

// TestLimitedLinkTakesItsTime: bytes come at the link's rate, and nothing waits that goes the other way.
func TestLimitedLinkTakesItsTime(t *testing.T) {
	pair(t, func(t *testing.T, n *network, a, b net.Conn) {
		n.set(func() { n.rate[link{"a", "b"}] = 64 << 10 })
		begin := time.Now()
		data := string(bytes.Repeat([]byte("0123456789abcdef"), 8<<10))
		write(t, a, data)
		write(t, b, "fast")
		read(t, a, "fast")
		if d := time.Since(begin); d > 2*time.Millisecond {
			t.Errorf("the other way took %v", d)
		}
		read(t, b, data[:64<<10])
		if d := time.Since(begin); d < time.Second || d > time.Second+2*time.Millisecond {
			t.Errorf("64 KiB took %v, want 1 s", d)
		}
		read(t, b, data[64<<10:])
		if d := time.Since(begin); d < 2*time.Second || d > 2*time.Second+2*time.Millisecond {
			t.Errorf("128 KiB took %v, want 2 s", d)
		}
	})
}

func TestWriterWaitsForASlowReader(t *testing.T) {
	pair(t, func(t *testing.T, _ *network, a, b net.Conn) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 3*streamMax/16)
		var writer sync.WaitGroup
		written := 0
		writer.Go(func() {
			for part := data; len(part) > 0; part = part[1<<12:] {
				n, err := a.Write(part[:1<<12])
				if err != nil {
					t.Error(err)
					return
				}
				written += n
			}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if written != streamMax {
			t.Errorf("%d bytes were taken without a reader, want %d", written, streamMax)
		}
		got := make([]byte, len(data))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("what arrived differs, %v", err)
		}
		writer.Wait()
	})
}

func TestDeadlinesEndReadsAndWrites(t *testing.T) {
	pair(t, func(t *testing.T, _ *network, a, b net.Conn) {
		if err := a.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Error(err)
		}
		begin := time.Now()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("the read ended after %v", d)
		}
		if _, err := a.Write([]byte("late")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		if err := a.SetDeadline(time.Time{}); err != nil {
			t.Error(err)
		}
		write(t, a, "in time")
		read(t, b, "in time")
	})
}

func TestClosedEndFailsItsOwnCalls(t *testing.T) {
	pair(t, func(t *testing.T, _ *network, a, b net.Conn) {
		end := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			end <- err
		}()
		time.Sleep(time.Second)
		a.Close()
		if err := <-end; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the read that waited got %v", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write: %v", err)
		}
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the far end reads %v", err)
		}
	})
}

func TestDeadHostRefusesAndIsNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(time.Millisecond, rand.New(rand.NewPCG(1, 1)))
		a, b := n.host("a"), n.host("b")
		if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		if _, err := b.Listen("b:1"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Listen("b:1"); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("second listener: %v", err)
		}
		c, err := a.Dial(t.Context(), "b:1")
		if err != nil {
			t.Fatal(err)
		}
		b.die() // with a connection that nobody has accepted
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read from a dead host: %v", err)
		}
		if _, err := b.Dial(t.Context(), "a:1"); err == nil {
			t.Error("a dead host dials")
		}
		// Its next life is another host of the same name.
		l, err := n.host("b").Listen("b:1")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Dial(t.Context(), "b:1"); err != nil {
			t.Error(err)
		}
		if _, err := l.Accept(); err != nil {
			t.Error(err)
		}
		n.set(func() { n.cut[link{"b", "a"}] = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Dial(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial across a cut: %v", err)
		}
	})
}
