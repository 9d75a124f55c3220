package remoting

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// recorder keeps the order of what a handler is told.
type recorder struct {
	mu  sync.Mutex
	log []string
	got chan struct{} // one for each entry
}

func newRecorder() *recorder { return &recorder{got: make(chan struct{}, 1000)} }

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	r.got <- struct{}{}
}

func (r *recorder) Handle(c *Conn, req *Frame) {
	r.add("%d", req.Code)
	c.Reply(req.Ref(), Answer{Code: 200}, req.Body)
}

func (r *recorder) Idle(*Conn) { r.add("idle") }

func request(code, opaque int32, body string) []byte {
	h := Header{Code: code, Opaque: opaque, Language: "JAVA"}
	b, _ := appendHead(nil, &h, len(body))
	return append(b, body...)
}

func TestFramesThatArriveTogetherAreOneBatchInOrder(t *testing.T) {
	rec := newRecorder()
	_, address := serve(t, ServerConfig{Handler: rec})
	c := dialRaw(t, address)
	var together []byte
	for i := range int32(5) {
		together = append(together, request(100+i, i, "")...)
	}
	half := request(105, 5, "tail")
	if _, err := c.Write(append(together, half[:20]...)); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		<-rec.got
	}
	if _, err := c.Write(half[20:]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		<-rec.got
	}
	if got, want := fmt.Sprint(rec.log), "[100 101 102 103 104 idle 105 idle]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHalfAFrameHoldsUpNobodyElse(t *testing.T) {
	_, address := serve(t, ServerConfig{Handler: echo{}})
	slow, quick := dialRaw(t, address), dialRaw(t, address)
	frame := request(7, 1, "abc")
	for at := 1; at < len(frame); at++ {
		if _, err := slow.Write(frame[at-1 : at]); err != nil {
			t.Fatal(err)
		}
		if at%20 == 0 {
			quick.Write(request(7, int32(at), "x"))
			if f := readFrame(t, quick); f.Opaque != int32(at) || string(f.Body) != "x" {
				t.Fatalf("got %+v", f)
			}
		}
	}
	slow.Write(frame[len(frame)-1:])
	if f := readFrame(t, slow); f.Opaque != 1 || string(f.Body) != "abc" || !f.IsAnswer() || f.Language != Language {
		t.Errorf("got %+v", f)
	}
}

func TestUnknownCodesAreAnsweredInTheOriginalsWords(t *testing.T) {
	_, address := serve(t, ServerConfig{Version: 479})
	c := dialRaw(t, address)
	c.Write(request(50999, 3, `{"group":"gm"}`))
	f := readFrame(t, c)
	if f.Code != CodeUnsupported || f.Remark != " request type 50999 not supported" || f.Opaque != 3 || len(f.Body) != 0 || f.Version != 479 {
		t.Errorf("got %+v", f)
	}
}

func TestAnswersTakeTheFormOfTheirRequest(t *testing.T) {
	_, address := serve(t, ServerConfig{Handler: echo{}})
	c := dialRaw(t, address)
	h := Header{Serial: SerialBinary, Code: 105, Opaque: 9, Language: "CPP"}
	b, err := appendHead(nil, &h, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Write(b)
	if f := readFrame(t, c); f.Serial != SerialBinary || f.Opaque != 9 || f.Code != 200 {
		t.Errorf("got %+v", f)
	}
}

func TestOneWayRequestsAreNotAnswered(t *testing.T) {
	_, address := serve(t, ServerConfig{Handler: echo{}})
	c := dialRaw(t, address)
	h := Header{Code: 1, Flag: flagOneWay, Opaque: 1, Language: "JAVA"}
	b, err := appendHead(nil, &h, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Write(append(b, request(1, 2, "")...))
	if f := readFrame(t, c); f.Opaque != 2 {
		t.Errorf("got an answer to %d", f.Opaque)
	}
}

func TestMalformedFramesCloseOnlyTheirConnection(t *testing.T) {
	causes := make(chan error, 10)
	_, address := serve(t, ServerConfig{Handler: echo{}, Closed: func(_ *Conn, cause error) { causes <- cause }})
	good := dialRaw(t, address)
	for _, bad := range []string{"\x00\x00\x00\x02", "\xff\xff\xff\xff", "\x00\x00\x00\x05\x00\x00\x00\x09x", "GET / HTTP/1.1\r\n\r\n",
		"\x00\x00\x00\x06\x00\x00\x00\x02{x"} {
		c := dialRaw(t, address)
		c.Write([]byte(bad))
		if n, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			t.Errorf("%q: got %d bytes back", bad, n)
		}
		if cause := <-causes; !errors.Is(cause, ErrFrame) {
			t.Errorf("%q: closed for %v", bad, cause)
		}
	}
	good.Write(request(1, 1, ""))
	if f := readFrame(t, good); f.Opaque != 1 {
		t.Errorf("got %+v", f)
	}
}

// Many connections that promise the largest frame and send little of it cost what they sent, not what they promised.
func TestPromisesCostNoMemory(t *testing.T) {
	const conns = 200
	s, address := serve(t, ServerConfig{Handler: echo{}})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	promise := append([]byte{0, 0xff, 0xff, 0xfc, 0, 0, 0, 20}, make([]byte, 1016)...)
	for range conns {
		if _, err := dialRaw(t, address).Write(promise); err != nil {
			t.Fatal(err)
		}
	}
	for s.Stats().BytesIn < conns*uint64(len(promise)) {
		runtime.Gosched()
	}
	if grown := int64(heap() - before); grown > 8<<20 {
		t.Errorf("%d connections grew the heap by %d bytes", conns, grown)
	} else {
		t.Logf("%d connections grew the heap by %d bytes", conns, grown)
	}
}

func TestTheLargestFrameTravelsBothWays(t *testing.T) {
	_, address := serve(t, ServerConfig{Handler: echo{}})
	cl := NewClient(ClientConfig{})
	defer cl.Close()
	body := bytes.Repeat([]byte("0123456789abcdef"), (FrameMax-256)/16)
	f, err := cl.Call(t.Context(), address, Request{Code: 1}, time.Minute, body[:len(body)/2], body[len(body)/2:])
	if err != nil || !bytes.Equal(f.Body, body) {
		t.Fatalf("%v", err)
	}
	if _, err := cl.Call(t.Context(), address, Request{Code: 1}, time.Minute, body, body); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestConnectionsOverTheBoundAreRefused(t *testing.T) {
	s, address := serve(t, ServerConfig{Handler: echo{}, ConnsMax: 2})
	a, b := dialRaw(t, address), dialRaw(t, address)
	for i, c := range []net.Conn{a, b} {
		c.Write(request(1, int32(i), ""))
		readFrame(t, c)
	}
	c := dialRaw(t, address)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was served")
	}
	if got := s.Stats(); got.Conns != 2 || got.Rejected != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		closed := make(chan error, 1)
		s := NewServer(ServerConfig{Handler: echo{}, Closed: func(_ *Conn, cause error) { closed <- cause }})
		defer s.Close()
		l := network.listen()
		go s.Serve(l)
		c, err := network.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(100 * time.Second)
		c.Write(request(1, 1, ""))
		readFrame(t, c)
		if cause := <-closed; !errors.Is(cause, ErrIdle) {
			t.Errorf("closed for %v", cause)
		}
		if after := time.Since(start); after < 220*time.Second || after > 221*time.Second {
			t.Errorf("closed after %v", after)
		}
	})
}

// A peer that asks and does not read the answers is no longer read from, and then given up; the answers that wait for it are bounded.
func TestPeersThatDoNotReadAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		closed := make(chan error, 1)
		handled := 0
		handler := HandlerFunc(func(c *Conn, req *Frame) {
			handled++
			c.Reply(req.Ref(), Answer{Code: 200}, make([]byte, 10_000))
		})
		s := NewServer(ServerConfig{Handler: handler, QueueMax: 100_000, Closed: func(_ *Conn, cause error) { closed <- cause }})
		defer s.Close()
		l := network.listen()
		go s.Serve(l)
		c, err := network.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go func() {
			for i := range int32(1000) {
				if _, err := c.Write(request(1, i, "")); err != nil {
					return
				}
			}
			t.Error("all requests were taken")
		}()
		if cause := <-closed; !errors.Is(cause, ErrSlowPeer) {
			t.Errorf("closed for %v", cause)
		}
		if after := time.Since(start); after < 30*time.Second || after > 31*time.Second {
			t.Errorf("closed after %v", after)
		}
		if handled < 10 || handled > 12 {
			t.Errorf("%d requests were handled", handled)
		}
	})
}

// The same peer is served on when it reads in time.
func TestPeersThatReadLateLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		handler := HandlerFunc(func(c *Conn, req *Frame) { c.Reply(req.Ref(), Answer{Code: 200}, make([]byte, 10_000)) })
		s := NewServer(ServerConfig{Handler: handler, QueueMax: 100_000})
		defer s.Close()
		l := network.listen()
		go s.Serve(l)
		c, err := network.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for i := range int32(100) {
				c.Write(request(1, i, ""))
			}
		}()
		var d reader
		var got int32
		for got < 100 {
			time.Sleep(100 * time.Millisecond)
			if _, err := d.fill(c); err != nil {
				t.Fatal(err)
			}
			for {
				whole, err := d.next()
				if err != nil {
					t.Fatal(err)
				}
				if whole == nil {
					break
				}
				var f Frame
				if err := f.parse(whole); err != nil || f.Opaque != got {
					t.Fatalf("got %+v, %v, want %d", f, err, got)
				}
				got++
			}
		}
	})
}

// Close of a server that is in the middle of everything leaves no goroutine behind (TestMain looks).
func TestCloseWaitsForEverything(t *testing.T) {
	s, address := serve(t, ServerConfig{Handler: echo{}})
	cl := NewClient(ClientConfig{})
	defer cl.Close()
	var wait sync.WaitGroup
	for range 100 {
		wait.Add(1)
		if err := cl.Go(address, Request{Code: 1}, time.Second, func(*Frame, error) { wait.Done() }, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wait.Wait()
	if n := s.Stats().Conns; n != 0 {
		t.Errorf("%d connections left", n)
	}
}

// Requests may gather for long, as those that wait for new entries do, and be answered all at once: that, too, is bounded.
func TestAnswersToGatheredRequestsAreBounded(t *testing.T) {
	const queueMax = 100_000
	h := new(silent)
	inMemory(t, h, ClientConfig{}, func(t *testing.T, network *memNet, _ *Server, _ *Client) {
		closed := make(chan error, 1)
		s := NewServer(ServerConfig{Handler: h, QueueMax: queueMax, Closed: func(_ *Conn, cause error) { closed <- cause }})
		defer s.Close()
		go s.Serve(network.listen())
		c, err := network.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range int32(1000) {
			if _, err := c.Write(request(1, i, "")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		sent := 0
		for _, ref := range h.refs {
			if err = h.conn.Reply(ref, Answer{Code: 200}, make([]byte, 10_000)); err != nil {
				break
			}
			sent += 10_000
		}
		if !errors.Is(err, ErrSlowPeer) || sent > (queueFactor+1)*queueMax {
			t.Errorf("after %d bytes: %v", sent, err)
		}
		if cause := <-closed; !errors.Is(cause, ErrSlowPeer) {
			t.Errorf("closed for %v", cause)
		}
	})
}

// Connections that say nothing are taken more slowly than they come, those that say something never are, and whoever is connected is served all the while.
func TestStormOfConnectionsIsSlowedDown(t *testing.T) {
	for _, c := range []struct {
		name        string
		talk        func(net.Conn)
		least, most time.Duration // for 2,000 of them
	}{
		{"closed at once", func(net.Conn) {}, 370 * time.Millisecond, 480 * time.Millisecond},
		{"nonsense", func(c net.Conn) { c.Write(binary.BigEndian.AppendUint32(nil, 0x7fffffff)) }, 370 * time.Millisecond, 480 * time.Millisecond},
		{"long nonsense", func(c net.Conn) { c.Write(append(binary.BigEndian.AppendUint32(nil, 64<<10), make([]byte, 63<<10)...)) }, 1600 * time.Millisecond, 2100 * time.Millisecond},
		{"a request", func(c net.Conn) { c.Write(request(1, 1, "")); readFrame(t, c) }, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := new(memNet)
				s := NewServer(ServerConfig{Handler: echo{}})
				defer s.Close()
				l := network.listen()
				go s.Serve(l)
				good, err := network.dial(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				for i := range int32(2000) {
					nc, err := network.dial(t.Context(), "")
					if err != nil {
						t.Fatal(err)
					}
					c.talk(nc)
					nc.Close()
					synctest.Wait()
					asked := time.Now()
					good.Write(request(2, i, ""))
					if readFrame(t, good); time.Since(asked) > 0 {
						t.Fatalf("a good request took %v", time.Since(asked))
					}
				}
				if took := time.Since(start); took < c.least || took > c.most {
					t.Errorf("2,000 took %v", took)
				}
			})
		})
	}
}

// Requests in vain are taken more slowly than they come, on however many connections, and nobody else waits: not who sends others, nor who sends one in vain at times.
func TestFloodOfRequestsInVainIsSlowedDown(t *testing.T) {
	const each, conns = 200, 40
	for _, c := range []struct {
		name        string
		good        int           // of so many requests one is not in vain
		body        int           // bytes
		least, most time.Duration // for 8,000 of them
	}{
		{"all in vain", each + 1, 0, 1700 * time.Millisecond, 2000 * time.Millisecond}, // four a millisecond
		{"all in vain, and large", each + 1, 2 * vainBytes, 5500 * time.Millisecond, 6500 * time.Millisecond},
		{"nearly all in vain", 40, 0, 800 * time.Millisecond, 1300 * time.Millisecond},
		{"many in vain", 10, 0, 0, 0},
		{"none in vain", 1, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := new(memNet)
				s := NewServer(ServerConfig{Handler: HandlerFunc(func(c *Conn, req *Frame) {
					if req.Code == 1 {
						c.ReplyUnsupported(req)
						return
					}
					c.Reply(req.Ref(), Answer{Code: 200})
				})})
				defer s.Close()
				go s.Serve(network.listen())
				good, err := network.dial(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				var strangers sync.WaitGroup
				for range conns {
					nc, err := network.dial(t.Context(), "")
					if err != nil {
						t.Fatal(err)
					}
					var flood []byte
					for i := range int32(each) {
						code := int32(1)
						if int(i)%c.good == c.good-1 {
							code = 2
						}
						flood = append(flood, request(code, i, strings.Repeat("x", c.body))...)
					}
					go nc.Write(flood)
					strangers.Go(func() {
						defer nc.Close()
						var in reader
						for n := 0; n < each; {
							if _, err := in.fill(nc); err != nil {
								t.Error(err)
								return
							}
							for whole, _ := in.next(); whole != nil; whole, _ = in.next() {
								n++
							}
						}
					})
				}
				done := make(chan struct{})
				go func() { strangers.Wait(); close(done) }()
				for i, over := int32(0), false; !over; i++ {
					asked := time.Now()
					good.Write(request(2, i, ""))
					if readFrame(t, good); time.Since(asked) > 0 {
						t.Fatalf("a good request took %v", time.Since(asked))
					}
					select {
					case <-done:
						over = true
					case <-time.After(time.Millisecond):
					}
				}
				if took := time.Since(start); took < c.least || took > c.most+time.Millisecond {
					t.Errorf("%d requests took %v", conns*each, took)
				}
			})
		})
	}
}

// What was gathered is handed on before its connection has to wait, and no wait outlasts its server.
func TestRequestsBeforeAFloodAreHandedOnAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		h := &gatherer{}
		s := NewServer(ServerConfig{Handler: h})
		go s.Serve(network.listen())
		var conns []net.Conn
		for range 100 {
			nc, err := network.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, nc)
			go nc.Write(bytes.Repeat(request(1, 1, ""), 100))
			go io.Copy(io.Discard, nc)
		}
		synctest.Wait()
		if h.gathered.Load() != 0 || h.handled.Load() < 128 || h.handled.Load() > 100*turnFrames+128 {
			t.Errorf("of %d requests %d are still gathered", h.handled.Load(), h.gathered.Load())
		}
		start := time.Now()
		if s.Close(); time.Since(start) > 0 {
			t.Errorf("the server closed after %v", time.Since(start))
		}
		for _, nc := range conns {
			nc.Close()
		}
	})
}

// gatherer refuses everything, once it is idle.
type gatherer struct{ gathered, handled atomic.Int32 }

func (g *gatherer) Handle(c *Conn, req *Frame) {
	g.gathered.Add(1)
	g.handled.Add(1)
	c.ReplyUnsupported(req)
}

func (g *gatherer) Idle(*Conn) { g.gathered.Store(0) }

// A prober that comes a thousand times a second, for as long as it likes, does not keep others from coming.
func TestNewcomersAreTakenAmidAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		s := NewServer(ServerConfig{Handler: echo{}})
		defer s.Close()
		go s.Serve(network.listen())
		for i := range 10_000 {
			nc, err := network.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if i%1000 == 0 {
				came := time.Now()
				nc.Write(request(1, 1, ""))
				if readFrame(t, nc); time.Since(came) > 0 {
					t.Fatalf("after %d, one that came was served %v later", i, time.Since(came))
				}
			}
			nc.Close()
			time.Sleep(time.Millisecond)
		}
	})
}

// However much ended badly at once, nobody who comes then waits for long.
func TestEndOfManyConnectionsHoldsUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(memNet)
		s := NewServer(ServerConfig{Handler: echo{}})
		defer s.Close()
		l := network.listen()
		go s.Serve(l)
		var open []net.Conn
		for range 2000 {
			nc, err := network.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			nc.Write(append(binary.BigEndian.AppendUint32(nil, 64<<10), make([]byte, 63<<10)...))
			open = append(open, nc)
		}
		for _, nc := range open {
			nc.Close()
		}
		synctest.Wait()
		start := time.Now()
		for range 3 {
			nc, err := network.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			nc.Write(request(1, 1, ""))
			readFrame(t, nc)
		}
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("three that came then took %v", took)
		}
	})
}
