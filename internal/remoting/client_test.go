package remoting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// silent takes requests and answers none until told to.
type silent struct {
	mu   sync.Mutex
	refs []Ref
	conn *Conn
}

func (s *silent) Handle(c *Conn, req *Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = c
	s.refs = append(s.refs, req.Ref())
}

func (s *silent) Idle(*Conn) {}

// inMemory runs f in virtual time with a client, and a server of handler that is up from the start.
func inMemory(t *testing.T, handler Handler, cfg ClientConfig, f func(t *testing.T, network *memNet, s *Server, cl *Client)) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		s := NewServer(ServerConfig{Handler: handler})
		go s.Serve(network.listen())
		cfg.Dial = network.dial
		cl := NewClient(cfg)
		synctest.Wait()
		f(t, network, s, cl)
		cl.Close()
		s.Close()
	})
}

func TestCallsAreMatchedToTheirAnswersInAnyOrder(t *testing.T) {
	h := new(silent)
	inMemory(t, h, ClientConfig{}, func(t *testing.T, _ *memNet, _ *Server, cl *Client) {
		got := map[int]string{}
		for i := range 5 {
			err := cl.Go("a", Request{Code: 1}, time.Second, func(f *Frame, err error) { got[i] = string(f.Body) })
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		h.conn.Reply(Ref{opaque: 77}, Answer{Code: 200}) // nobody asked
		for _, i := range []int{3, 0, 4, 1, 2} {
			h.conn.Reply(h.refs[i], Answer{Code: 200}, fmt.Appendf(nil, "answer %d", i))
			h.conn.Reply(h.refs[i], Answer{Code: 200}, []byte("again"))
		}
		synctest.Wait()
		for i := range 5 {
			if want := fmt.Sprintf("answer %d", i); got[i] != want {
				t.Errorf("got %q, want %q", got[i], want)
			}
		}
	})
}

func TestCallsWithoutAnAnswerTimeOut(t *testing.T) {
	inMemory(t, new(silent), ClientConfig{}, func(t *testing.T, _ *memNet, _ *Server, cl *Client) {
		start := time.Now()
		after := map[time.Duration]time.Duration{}
		for _, timeout := range []time.Duration{3 * time.Second, time.Second, 2 * time.Second} {
			err := cl.Go("a", Request{Code: 1}, timeout, func(f *Frame, err error) {
				if f != nil || !errors.Is(err, ErrTimeout) {
					t.Errorf("got %+v, %v", f, err)
				}
				after[timeout] = time.Since(start)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if len(after) != 3 {
			t.Errorf("%d of 3 calls timed out", len(after))
		}
		for timeout, got := range after {
			if got < timeout || got > timeout+2*scanMin {
				t.Errorf("time-out %v after %v", timeout, got)
			}
		}
	})
}

func TestALostConnectionFailsItsCallsAndTheNextCallDialsAgain(t *testing.T) {
	var states []string
	cfg := ClientConfig{State: func(address string, up bool) { states = append(states, fmt.Sprint(address, " ", up)) }}
	inMemory(t, new(silent), cfg, func(t *testing.T, network *memNet, _ *Server, cl *Client) {
		var lost error
		if err := cl.Go("a", Request{Code: 1}, time.Hour, func(_ *Frame, err error) { lost = err }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		network.cut()
		synctest.Wait()
		if !errors.Is(lost, ErrClosed) {
			t.Errorf("got %v", lost)
		}
		if err := cl.Go("a", Request{Code: 1}, time.Hour, func(*Frame, error) {}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if network.dials != 2 {
			t.Errorf("%d dials", network.dials)
		}
		if got, want := fmt.Sprint(states), "[a true a false a true]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestAnUnreachablePeerIsDialledWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet) // nobody listens
		cl := NewClient(ClientConfig{Dial: network.dial, PauseMin: 100 * time.Millisecond, PauseMax: 800 * time.Millisecond})
		defer cl.Close()
		start := time.Now()
		var at []time.Duration
		for time.Since(start) < 3*time.Second {
			before := network.dials
			_, err := cl.Call(t.Context(), "a", Request{Code: 1}, time.Second)
			if !errors.Is(err, ErrUnreachable) || !errors.Is(err, errRefused) {
				t.Fatalf("got %v", err)
			}
			if network.dials > before {
				at = append(at, time.Since(start))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got, want := fmt.Sprint(at), "[0s 100ms 300ms 700ms 1.5s 2.3s]"; got != want {
			t.Errorf("got dials at %s, want %s", got, want)
		}
	})
}

func TestRequestsWaitInLineForTheConnectionAndKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		rec := newRecorder()
		s := NewServer(ServerConfig{Handler: rec})
		defer s.Close()
		go s.Serve(network.listen())
		dialled := make(chan struct{})
		cl := NewClient(ClientConfig{Dial: func(ctx context.Context, address string) (net.Conn, error) {
			<-dialled
			return network.dial(ctx, address)
		}})
		defer cl.Close()
		var late error
		if err := cl.Go("a", Request{Code: 99}, time.Second, func(_ *Frame, err error) { late = err }); err != nil {
			t.Fatal(err)
		}
		for i := range int32(5) {
			if err := cl.Go("a", Request{Code: i}, time.Minute, func(*Frame, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !errors.Is(late, ErrTimeout) || !errors.Is(late, ErrConnecting) {
			t.Errorf("a call whose time ended while the connection was opened: %v", late)
		}
		close(dialled)
		synctest.Wait()
		var codes []string
		for _, entry := range rec.log {
			if entry != "idle" {
				codes = append(codes, entry)
			}
		}
		if got, want := fmt.Sprint(codes), "[0 1 2 3 4]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if network.dials != 1 {
			t.Errorf("%d dials", network.dials)
		}
	})
}

func TestAFullQueueRefusesRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		l := network.listen()
		cl := NewClient(ClientConfig{Dial: network.dial, QueueMax: 10_000})
		defer cl.Close()
		done := 0
		send := func() error {
			return cl.Go("a", Request{Code: 1}, time.Minute, func(_ *Frame, err error) {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("got %v", err)
				}
				done++
			}, make([]byte, 1000))
		}
		if err := send(); err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept() // and never reads
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		synctest.Wait()
		sent := 1
		for err = send(); err == nil; err = send() {
			sent++
		}
		if !errors.Is(err, ErrBusy) || sent < 9 || sent > 11 {
			t.Errorf("after %d requests: %v", sent, err)
		}
		start := time.Now()
		synctest.Wait()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if done != sent {
			t.Errorf("%d of %d calls ended %v after the peer stopped reading", done, sent, time.Since(start))
		}
		l.Close()
	})
}

func TestServersCallTheirClients(t *testing.T) {
	var answer string
	server := HandlerFunc(func(c *Conn, req *Frame) {
		ref := req.Ref()
		err := c.Go(Request{Code: 40, Ext: map[string]string{"consumerGroup": "cg"}}, time.Second, func(f *Frame, err error) {
			c.Reply(ref, Answer{Code: 200}, f.Body)
		})
		if err != nil {
			t.Error(err)
		}
	})
	client := HandlerFunc(func(c *Conn, req *Frame) { c.Reply(req.Ref(), Answer{Code: 0}, []byte(req.Ext["consumerGroup"])) })
	inMemory(t, server, ClientConfig{Handler: client}, func(t *testing.T, _ *memNet, _ *Server, cl *Client) {
		f, err := cl.Call(t.Context(), "a", Request{Code: 34}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if answer = string(f.Body); answer != "cg" {
			t.Errorf("got %q", answer)
		}
	})
}

func TestACancelledCallReturnsAtOnce(t *testing.T) {
	inMemory(t, new(silent), ClientConfig{}, func(t *testing.T, _ *memNet, _ *Server, cl *Client) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := cl.Call(ctx, "a", Request{Code: 1}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if after := time.Since(start); after != 100*time.Millisecond {
			t.Errorf("after %v", after)
		}
	})
}

func TestAClosedClientFailsEverything(t *testing.T) {
	inMemory(t, new(silent), ClientConfig{}, func(t *testing.T, _ *memNet, _ *Server, cl *Client) {
		var got error
		if err := cl.Go("a", Request{Code: 1}, time.Hour, func(_ *Frame, err error) { got = err }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cl.Close()
		if !errors.Is(got, ErrClosed) {
			t.Errorf("got %v", got)
		}
		if err := cl.Go("a", Request{Code: 1}, time.Hour, func(*Frame, error) {}); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
		if err := cl.Go("b", Request{Code: 1}, time.Hour, func(*Frame, error) {}); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestIPv6AddressesAreDialled(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	s := NewServer(ServerConfig{Handler: echo{}})
	go s.Serve(l)
	defer s.Close()
	cl := NewClient(ClientConfig{})
	defer cl.Close()
	if _, err := cl.Call(t.Context(), l.Addr().String(), Request{Code: 1}, 3*time.Second); err != nil {
		t.Error(err)
	}
}

// Bodies of all sizes and in several pieces arrive whole while many calls are in flight, and a body that is kept stays as it was.
func TestKeptBodiesStayAsTheyWere(t *testing.T) {
	_, address := serve(t, ServerConfig{Handler: echo{}})
	cl := NewClient(ClientConfig{})
	defer cl.Close()
	const calls = 300
	var mu sync.Mutex
	kept := map[int][]byte{}
	var wait sync.WaitGroup
	body := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i*i%9000) }
	for i := range calls {
		b := body(i)
		wait.Add(1)
		err := cl.Go(address, Request{Code: 1}, time.Minute, func(f *Frame, err error) {
			defer wait.Done()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			kept[i] = f.Body
			mu.Unlock()
		}, b[:len(b)/3], b[len(b)/3:])
		if err != nil {
			t.Fatal(err)
		}
	}
	wait.Wait()
	for i := range calls {
		if !bytes.Equal(kept[i], body(i)) {
			t.Errorf("body %d of %d bytes: got %d bytes", i, len(body(i)), len(kept[i]))
		}
	}
}
