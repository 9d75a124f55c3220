package harness

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Network stands between processes that speak in frames: between the nodes of a group, of Group or any other (Between), each of which reaches each other one through a proxy of
// their own, and wherever else Pass puts a proxy. What goes through none is not its business.
//
//  1. a frame is passed on whole or not at all;
//  2. a fault of a direction holds for requests one way and for answers to requests the other way, as on a real network;
//  3. frames of one connection stay in order.
type Network struct {
	ctx  context.Context
	stop context.CancelFunc
	wait sync.WaitGroup

	mu      sync.Mutex
	faults  map[direction]Fault
	changed chan struct{} // closed when faults change
	conns   map[net.Conn]direction
	err     error // of a listener
}

type direction struct{ from, to string }

// Fault is what happens to frames of one direction. The zero value is a sound link.
type Fault struct {
	Drop     bool          // they are lost
	Hold     bool          // they wait until the fault is over
	DelayMax time.Duration // each waits a random while up to this
}

// OpenNetwork gives a network without proxies, for Pass.
func OpenNetwork() *Network {
	w := &Network{faults: map[direction]Fault{}, changed: make(chan struct{}), conns: map[net.Conn]direction{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Link is one proxy: what From sends to To by connecting to At goes to Target.
type Link struct {
	From, To   string
	At, Target string
	Who        func(net.Conn) string     // in place of From where several share At: who has connected; "" is nobody who may
	Answer     func(frame []byte) []byte // if not nil: what becomes of a frame of To's
}

// Pass puts a proxy where the link says.
func (w *Network) Pass(k Link) error {
	l, err := net.Listen("tcp", k.At)
	if err != nil {
		return fmt.Errorf("proxy from %s to %s: %w", k.From, k.To, err)
	}
	context.AfterFunc(w.ctx, func() { l.Close() }) // an error would mean that it is closed
	w.wait.Go(func() { w.serve(l, k) })
	return nil
}

// NewNetwork puts proxies between the nodes of g, which must not run yet.
func NewNetwork(g *Group) (*Network, error) {
	var ends []Endpoint
	for _, n := range g.Nodes {
		ends = append(ends, Endpoint{n.ID, n.Port})
	}
	w, peers, err := Between(ends)
	if err != nil {
		return nil, err
	}
	for i, n := range g.Nodes {
		n.Peers = peers[i]
	}
	return w, nil
}

// Endpoint is a node and the port on which it listens for the others.
type Endpoint struct {
	ID   string
	Port int
}

// Between puts proxies between nodes that do not run yet, and gives the peers string of each.
func Between(nodes []Endpoint) (*Network, []string, error) {
	w := OpenNetwork()
	var all []string
	for _, n := range nodes {
		var peers []string
		for _, m := range nodes {
			port := m.Port
			if m != n {
				l, err := w.listen()
				if err != nil {
					return nil, nil, errors.Join(err, w.Close())
				}
				port = l.Addr().(*net.TCPAddr).Port
				w.wait.Go(func() { w.serve(l, Link{From: n.ID, To: m.ID, Target: fmt.Sprintf("127.0.0.1:%d", m.Port)}) })
			}
			peers = append(peers, fmt.Sprintf("%s-127.0.0.1:%d", m.ID, port))
		}
		all = append(all, strings.Join(peers, ";"))
	}
	return w, all, nil
}

// listen takes a port that nobody listens on. One that FreePort has just looked at may be held for a moment still: a process that another test is
// starting inherits the socket until it executes its program.
func (w *Network) listen() (net.Listener, error) {
	for {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // there is an end to the ports
		}
		if err == nil {
			context.AfterFunc(w.ctx, func() { l.Close() }) // an error would mean that it is closed
		}
		return l, err
	}
}

// Close ends all proxies and their connections. It gives the first thing that went wrong with a listener.
func (w *Network) Close() error {
	w.stop()
	w.Cut()
	w.wait.Wait()
	return w.err
}

// Set puts a fault on frames from one node to another. Frames that are held or delayed see it at once.
func (w *Network) Set(from, to string, f Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[direction{from, to}] = f
	w.tell()
}

// Heal makes all links sound.
func (w *Network) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.faults)
	w.tell()
}

// Cut closes all connections between nodes; they may open new ones.
func (w *Network) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close() // its proxy notices
	}
}

func (w *Network) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Network) serve(l net.Listener, k Link) {
	for {
		client, err := l.Accept()
		if err != nil {
			if w.ctx.Err() == nil {
				w.mu.Lock()
				w.err = fmt.Errorf("proxy from %s to %s: %w", k.From, k.To, err)
				w.mu.Unlock()
			}
			return
		}
		d := direction{k.From, k.To}
		if k.Who != nil {
			d.from = k.Who(client)
		}
		if d.from == "" { // it may have gone
			client.Close()
			continue
		}
		server, err := net.Dial("tcp", k.Target)
		if err != nil { // the node is down
			client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = d, d
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			w.Cut()
		}
		w.wait.Go(func() { w.pass(client, server, d, nil) })
		w.wait.Go(func() { w.pass(server, client, direction{d.to, d.from}, k.Answer) })
	}
}

// pass moves frames, or what change makes of them, until one side ends; then it closes both.
func (w *Network) pass(from, to net.Conn, d direction, change func([]byte) []byte) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range []net.Conn{from, to} {
			delete(w.conns, c)
			c.Close()
		}
	}()
	r := bufio.NewReaderSize(from, 64<<10)
	var frame []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(head[:]))
		if n > frameMax {
			return // no node sends such a frame; a client has no business here
		}
		frame = append(frame[:0], head[:]...)
		frame = append(frame, make([]byte, n)...)
		if _, err := io.ReadFull(r, frame[4:]); err != nil {
			return
		}
		if !w.through(d) {
			continue
		}
		out := frame
		if change != nil {
			out = change(frame)
		}
		if _, err := to.Write(out); err != nil {
			return
		}
	}
}

// through waits as long as the direction's fault wants, and tells whether the frame goes on.
func (w *Network) through(d direction) bool {
	delayed := false
	for {
		w.mu.Lock()
		f, changed := w.faults[d], w.changed
		w.mu.Unlock()
		var late <-chan time.Time
		switch {
		case f.Drop || w.ctx.Err() != nil:
			return false
		case f.Hold:
		case f.DelayMax > 0 && !delayed:
			delayed = true
			late = time.After(time.Duration(rand.Int64N(int64(f.DelayMax))))
		default:
			return true
		}
		select {
		case <-changed:
		case <-late:
		case <-w.ctx.Done():
		}
	}
}
