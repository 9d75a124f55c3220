package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"
)

// The protocol between the load and those peers that have no client protocol of their own: the least there can be, so that what is
// measured is the peer. Big-endian:
//
//	request:  0 op uint8 · 1 id uint64 · 9 argument uint64 · 17 length uint32 · 21 body
//	answer:   0 id uint64 · 8 status uint8 · 9 value uint64 · 17 length uint32 · 21 body
const (
	opAppend uint8 = 1 // body → value = index
	opGet    uint8 = 2 // argument = index → body
	opStatus uint8 = 3 // → value = last index; status tells whether this node leads, or knows who does

	pipeOK        uint8 = 0 // done; to opStatus: this node leads
	pipeNotLeader uint8 = 1 // to opStatus: another node leads
	pipeNoLeader  uint8 = 2
	pipeFailed    uint8 = 3

	pipeHeader = 21
	pipeBody   = 8 << 20
)

type pipeRequest struct {
	op   uint8
	id   uint64
	arg  uint64
	body []byte
}

type pipeAnswer struct {
	status uint8
	value  uint64
	body   []byte
}

func appendPipe(b []byte, first uint8, id uint64, firstLast bool, value uint64, body []byte) []byte {
	if firstLast {
		b = binary.BigEndian.AppendUint64(b, id)
		b = append(b, first)
	} else {
		b = append(b, first)
		b = binary.BigEndian.AppendUint64(b, id)
	}
	b = binary.BigEndian.AppendUint64(b, value)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func readPipe(r *bufio.Reader, h *[pipeHeader]byte) (body []byte, err error) {
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(h[17:])
	if n > pipeBody {
		return nil, fmt.Errorf("frame of %d bytes", n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return body, err
}

// outbox sends frames over one connection from a goroutine of its own. It lets those who are ready to run add theirs first, so that
// one system call carries many frames.
type outbox struct {
	sock net.Conn

	mu   sync.Mutex
	work sync.Cond
	out  []byte
	err  error // the connection is dead
}

func newOutbox(sock net.Conn) *outbox {
	o := &outbox{sock: sock}
	o.work.L = &o.mu
	go o.write()
	return o
}

func (o *outbox) send(fill func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out = fill(o.out)
	o.work.Signal()
	return o.err
}

func (o *outbox) close(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
		o.sock.Close()
	}
	o.work.Signal()
}

func (o *outbox) write() {
	var spare []byte
	for {
		o.mu.Lock()
		for len(o.out) == 0 && o.err == nil {
			o.work.Wait()
		}
		o.mu.Unlock()
		runtime.Gosched()
		o.mu.Lock()
		if o.err != nil {
			o.mu.Unlock()
			return
		}
		batch := o.out
		o.out = spare[:0]
		o.mu.Unlock()
		if _, err := o.sock.Write(batch); err != nil {
			o.close(err)
			return
		}
		spare = batch
	}
}

// pipeClient is the load's end of one connection.
type pipeClient struct {
	out    *outbox
	callMu sync.Mutex
	calls  map[uint64]chan pipeAnswer
	nextID uint64
	dead   error
}

func dialPipe(addr string) (*pipeClient, error) {
	sock, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	c := &pipeClient{out: newOutbox(sock), calls: map[uint64]chan pipeAnswer{}}
	go c.read()
	return c, nil
}

func (c *pipeClient) close() { c.fail(net.ErrClosed) }

func (c *pipeClient) fail(err error) {
	c.out.close(err)
	c.callMu.Lock()
	defer c.callMu.Unlock()
	if c.dead == nil {
		c.dead = err
	}
	for id, ch := range c.calls {
		close(ch)
		delete(c.calls, id)
	}
}

func (c *pipeClient) read() {
	r := bufio.NewReaderSize(c.out.sock, 256<<10)
	var h [pipeHeader]byte
	for {
		body, err := readPipe(r, &h)
		if err != nil {
			c.fail(err)
			return
		}
		id := binary.BigEndian.Uint64(h[0:])
		c.callMu.Lock()
		ch := c.calls[id]
		delete(c.calls, id)
		c.callMu.Unlock()
		if ch != nil {
			ch <- pipeAnswer{h[8], binary.BigEndian.Uint64(h[9:]), body}
		}
	}
}

func (c *pipeClient) call(ctx context.Context, op uint8, arg uint64, body []byte) (pipeAnswer, error) {
	ch := make(chan pipeAnswer, 1)
	c.callMu.Lock()
	if c.dead != nil {
		c.callMu.Unlock()
		return pipeAnswer{}, c.dead
	}
	c.nextID++
	id := c.nextID
	c.calls[id] = ch
	c.callMu.Unlock()
	if err := c.out.send(func(b []byte) []byte { return appendPipe(b, op, id, false, arg, body) }); err != nil {
		c.fail(err)
		return pipeAnswer{}, err
	}
	select {
	case a, ok := <-ch:
		if !ok {
			return pipeAnswer{}, errors.New("connection lost")
		}
		return a, nil
	case <-ctx.Done():
		c.callMu.Lock()
		delete(c.calls, id)
		c.callMu.Unlock()
		return pipeAnswer{}, ctx.Err()
	}
}

// servePipe accepts connections on addr for ever and gives each request to handle, on the connection's goroutine and in order;
// handle calls answer once, now or later.
func servePipe(addr string, handle func(q pipeRequest, answer func(pipeAnswer))) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		sock, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			out := newOutbox(sock)
			r := bufio.NewReaderSize(sock, 256<<10)
			var h [pipeHeader]byte
			for {
				body, err := readPipe(r, &h)
				if err != nil {
					out.close(err) // the load has gone
					return
				}
				q := pipeRequest{h[0], binary.BigEndian.Uint64(h[1:]), binary.BigEndian.Uint64(h[9:]), body}
				handle(q, func(a pipeAnswer) {
					// A lost connection is the reader's to notice.
					_ = out.send(func(b []byte) []byte { return appendPipe(b, a.status, q.id, true, a.value, a.body) })
				})
			}
		}()
	}
}
