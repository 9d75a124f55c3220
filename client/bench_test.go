package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
)

// sink is a leader on a loopback socket that acknowledges everything at once and keeps nothing: what is measured is the client, the
// sockets and the codecs.
type sink struct{ requests *atomic.Int64 } // appends

func (sink) Idle(*remoting.Conn) {}

func (s sink) Handle(c *remoting.Conn, req *remoting.Frame) {
	ok := remoting.Answer{Code: wire.HeaderOK}
	switch req.Code {
	case wire.CodeMetadata:
		a := wire.MetadataResponse{Base: wire.Base{LeaderID: "n0", Code: wire.ResultOK, Term: -1}}
		c.Reply(req.Ref(), ok, a.AppendTo(nil))
	case wire.CodeHello:
		c.Reply(req.Ref(), ok, wire.EncodeJSON(wire.HelloResponse{Code: wire.ResultOK}))
	case wire.CodeAppend:
		s.requests.Add(1)
		a := wire.AppendResponse{Base: wire.Base{Code: wire.ResultOK, Term: 1, LeaderID: "n0"}}
		c.Reply(req.Ref(), ok, a.AppendTo(nil))
	case wire.CodeAppendBatch:
		s.requests.Add(1)
		var a wire.AppendBatchRequest
		if a.Decode(req.Body) != nil {
			c.Close()
			return
		}
		r := wire.AppendBatchResponse{Code: wire.ResultOK, LeaderID: "n0", Term: 1, Positions: make([]int64, len(a.Bodies))}
		c.Reply(req.Ref(), ok, r.AppendTo(nil))
	case wire.CodeGetBatch:
		g := fakeGroup{log: []string{string(make([]byte, 1024))}}
		r := wire.GetBatchResponse{Code: wire.ResultOK, LeaderID: "n0", First: 0, Last: 0, Entries: raft.Payload{g.encoded(0)}}
		c.Reply(req.Ref(), ok, r.Pieces()...)
	}
}

func benchClient(b *testing.B, cfg Config) (*Client, *atomic.Int64) {
	requests := new(atomic.Int64)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := remoting.NewServer(remoting.ServerConfig{Handler: sink{requests}})
	go s.Serve(l)
	b.Cleanup(func() { s.Close() })
	cfg.Peers = map[string]string{"n0": l.Addr().String()}
	c, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	if _, err := c.Leader(b.Context()); err != nil {
		b.Fatal(err)
	}
	return c, requests
}

// BenchmarkAppend is the client's own share of an append of 1 KiB, by how many goroutines append.
func BenchmarkAppend(b *testing.B) {
	for name, cfg := range map[string]Config{"ours": {}, "json": {JSON: true}} {
		for callers, label := range map[int]string{1: "1", 64: "64", 256: "256"} {
			b.Run(name+"/"+label, func(b *testing.B) {
				c, requests := benchClient(b, cfg)
				body := make([]byte, 1024)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				b.ResetTimer()
				var all sync.WaitGroup
				for w := range callers {
					all.Go(func() {
						for i := w; i < b.N; i += callers {
							if _, err := c.Append(context.Background(), body); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/float64(requests.Load()), "entries/request")
			})
		}
	}
}

// BenchmarkGo is BenchmarkAppend for one goroutine with 256 appends on the way.
func BenchmarkGo(b *testing.B) {
	for name, cfg := range map[string]Config{"ours": {}, "json": {JSON: true}} {
		b.Run(name, func(b *testing.B) {
			c, requests := benchClient(b, cfg)
			body := make([]byte, 1024)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			free := make(chan struct{}, 256)
			done := func(_ Result, err error) {
				if err != nil {
					b.Error(err)
				}
				<-free
			}
			for b.Loop() {
				free <- struct{}{}
				if err := c.Go(context.Background(), body, done); err != nil {
					b.Fatal(err)
				}
			}
			for range cap(free) {
				free <- struct{}{}
			}
			b.ReportMetric(float64(b.N)/float64(requests.Load()), "entries/request")
		})
	}
}

// BenchmarkGet reads entries of 1 KiB one by one from 64 goroutines.
func BenchmarkGet(b *testing.B) {
	c, _ := benchClient(b, Config{})
	b.SetBytes(1024)
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for w := range 64 {
		all.Go(func() {
			for i := w; i < b.N; i += 64 {
				if _, err := c.Get(context.Background(), 0); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
