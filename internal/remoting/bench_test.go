package remoting

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// echo answers every request with its own body.
type echo struct{}

func (echo) Handle(c *Conn, req *Frame) { c.Reply(req.Ref(), Answer{Code: 200}, req.Body) }
func (echo) Idle(*Conn)                 {}

// BenchmarkEcho measures round trips over loopback TCP with so many calls in flight; both ends run in this process.
func BenchmarkEcho(b *testing.B) {
	for _, size := range []int{100, 16 << 10} {
		for _, flight := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("body=%d/inflight=%d", size, flight), func(b *testing.B) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				s := NewServer(ServerConfig{Handler: echo{}})
				go s.Serve(l)
				defer s.Close()
				cl := NewClient(ClientConfig{})
				defer cl.Close()
				slots := make(chan struct{}, flight)
				address, body := l.Addr().String(), make([]byte, size)
				done := func(_ *Frame, err error) {
					if err != nil {
						b.Error(err)
					}
					<-slots
				}
				b.ReportAllocs()
				for b.Loop() {
					slots <- struct{}{}
					if err := cl.Go(address, Request{Code: 50001}, 3*time.Second, done, body); err != nil {
						b.Fatal(err)
					}
				}
				for range flight {
					slots <- struct{}{}
				}
				calls := float64(cl.Stats().SystemCalls+s.Stats().SystemCalls) / float64(b.N)
				b.ReportMetric(calls, "syscalls/op")
			})
		}
	}
}

func BenchmarkHeaderParse(b *testing.B) {
	for name, head := range map[string]string{
		"dledger": `{"code":51004,"flag":0,"language":"JAVA","opaque":12345,"serializeTypeCurrentRPC":"JSON","version":0}`,
		// A message sent by the stock Go client: separators of properties are escaped.
		"send": `{"code":10,"language":"GO","version":317,"opaque":77,"flag":0,"remark":"","extFields":{"batch":"false","bornTimestamp":"1700000000123",` +
			`"brokerName":"broker-a","defaultTopic":"TBW102","defaultTopicQueueNums":"4","flag":"0","maxReconsumeTimes":"0","producerGroup":"load",` +
			`"properties":"UNIQ_KEY\u00010A000001000100000000000000000001\u0002WAIT\u0001true\u0002TAGS\u0001a\u0002","queueId":"3","reconsumeTimes":"0",` +
			`"sysFlag":"0","topic":"compare","unitMode":"false"}}`,
	} {
		b.Run(name, func(b *testing.B) {
			var h Header
			b.ReportAllocs()
			for b.Loop() {
				h = Header{}
				if err := h.parseJSON([]byte(head)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHeaderWrite(b *testing.B) {
	h := Header{Code: 200, Flag: flagAnswer, Opaque: 12345, Language: Language}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = appendHead(buf[:0], &h, 100); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPush measures requests of many small pieces, as a leader sends them, one way over loopback TCP.
func BenchmarkPush(b *testing.B) {
	for _, pieces := range []int{16, 256} {
		b.Run(fmt.Sprintf("pieces=%d", pieces), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			s := NewServer(ServerConfig{Handler: HandlerFunc(func(c *Conn, req *Frame) { c.Reply(req.Ref(), Answer{Code: 200}) })})
			go s.Serve(l)
			defer s.Close()
			cl := NewClient(ClientConfig{})
			defer cl.Close()
			address, slots := l.Addr().String(), make(chan struct{}, 8)
			body := make([][]byte, pieces)
			for i := range body {
				body[i] = make([]byte, 1072)
			}
			done := func(*Frame, error) { <-slots }
			b.ReportAllocs()
			b.SetBytes(int64(pieces) * 1072)
			for b.Loop() {
				slots <- struct{}{}
				if err := cl.Go(address, Request{Code: 52002}, 3*time.Second, done, body...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
