package remoting

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// names is a name server that knows one address, whatever it is asked for.
type names struct {
	address atomic.Value // netip.Addr
	asked   atomic.Int32
}

// dial gives the resolver a connection to it. Messages have their length before them, as over TCP.
func (n *names) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		for {
			var size [2]byte
			if _, err := io.ReadFull(there, size[:]); err != nil {
				return
			}
			query := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(there, query); err != nil {
				return
			}
			n.asked.Add(1)
			answer := n.answer(query)
			if _, err := there.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
				return
			}
		}
	}()
	return here, nil
}

// answer repeats the question, and gives the address to one for IPv4.
func (n *names) answer(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type, class
	be := binary.BigEndian
	found := be.Uint16(query[end-4:]) == 1
	b := append([]byte(nil), query[:2]...)
	b = be.AppendUint16(b, 0x8180) // an answer, recursion wanted and done
	b = be.AppendUint16(b, 1)
	if found {
		b = be.AppendUint16(b, 1)
	} else {
		b = be.AppendUint16(b, 0)
	}
	b = append(b, 0, 0, 0, 0)
	b = append(b, query[12:end]...)
	if found {
		b = append(b, 0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4) // the name in the question, type and class, an hour, four bytes
		b = append(b, n.address.Load().(netip.Addr).AsSlice()...)
	}
	return b
}

// who answers with its name.
type who string

func (w who) Handle(c *Conn, f *Frame) { _ = c.Reply(f.Ref(), Answer{Code: 200}, []byte(w)) }
func (w who) Idle(*Conn)               {}

// A host that gets another address is found there: its name is resolved again whenever the connection is opened again, however long the name's answer was said to be good for.
func TestNamesAreResolvedAtEachConnect(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	second, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Skipf("no second address here: %v", err)
	}
	resolver := new(names)
	resolver.address.Store(netip.MustParseAddr("127.0.0.1"))
	was := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: resolver.dial}
	defer func() { net.DefaultResolver = was }()

	a, b := NewServer(ServerConfig{Handler: who("first")}), NewServer(ServerConfig{Handler: who("second")})
	go a.Serve(first)
	go b.Serve(second)
	defer b.Close()
	lost := make(chan struct{}, 1)
	cl := NewClient(ClientConfig{State: func(_ string, up bool) {
		if !up {
			lost <- struct{}{}
		}
	}})
	defer cl.Close()
	address := net.JoinHostPort("member.example.", port)
	ask := func() string {
		t.Helper()
		f, err := cl.Call(t.Context(), address, Request{Code: 1}, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return string(f.Body)
	}
	if got := ask(); got != "first" {
		t.Fatalf("answered by the %s", got)
	}
	asked := resolver.asked.Load()
	if got := ask(); got != "first" || resolver.asked.Load() != asked {
		t.Errorf("answered by the %s; the name was resolved again though the connection stands", got)
	}
	resolver.address.Store(netip.MustParseAddr("127.0.0.2"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	<-lost
	cl.Retry(address) // a connection that ended soon is followed by a pause
	if got := ask(); got != "second" {
		t.Errorf("answered by the %s after the host has moved", got)
	}
}
