package harness

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Request and result codes of the protocol that the harness speaks (DLedgerRequestCode, DLedgerResponseCode).
const (
	codeMetadata = 50000
	codeAppend   = 50001
	codeGet      = 50002
	codeTransfer = 51005
	codeGetBatch = 52004 // of our nodes alone

	OK        = 200
	NotLeader = 404
)

const frameMax = 16 << 20

// CodeError is a result other than 200. Leader is the leader the node named, if any.
type CodeError struct {
	Code   int
	Leader string
}

func (e *CodeError) Error() string { return fmt.Sprintf("answered %d (leader %q)", e.Code, e.Leader) }

// Answer holds the keys of every response body that the harness looks at.
type Answer struct {
	Code     int               `json:"code"`
	LeaderID string            `json:"leaderId"`
	Term     int64             `json:"term"`
	Index    int64             `json:"index"`
	Pos      int64             `json:"pos"`
	Peers    map[string]string `json:"peers"`
	Entries  []Read            `json:"entries"`
}

// Read is one entry of an answer.
type Read struct {
	Index int64  `json:"index"`
	Term  int64  `json:"term"`
	Pos   int64  `json:"pos"`
	Body  []byte `json:"body"`
}

// Client speaks the original's JSON protocol to the nodes of one group. It is written against the protocol alone and shares no
// code with what it tests. Any number of calls may be in flight; a node has one connection, opened on demand. Close ends them.
type Client struct {
	group string
	addrs map[string]string // id → host:port

	mu     sync.Mutex
	conns  map[string]*conn
	leader string // "" = unknown
	closed bool
}

// NewClient makes a client for a group with a peers string ("n0-127.0.0.1:20911;n1-…"). It opens nothing yet.
func NewClient(group, peers string) (*Client, error) {
	c := &Client{group: group, addrs: map[string]string{}, conns: map[string]*conn{}}
	for _, p := range strings.Split(peers, ";") {
		id, addr, ok := strings.Cut(p, "-")
		if !ok {
			return nil, fmt.Errorf("peer %q is not id-host:port", p)
		}
		c.addrs[id] = addr
	}
	return c, nil
}

// Close ends all connections; calls in flight fail.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for id, n := range c.conns {
		n.fail(net.ErrClosed)
		delete(c.conns, id)
	}
}

// Append sends body once, to the node believed to lead, and waits for the answer. After an error that is not a CodeError the
// entry may or may not be in the log, now or later. A wrong belief costs one failed call.
func (c *Client) Append(ctx context.Context, body []byte) (Answer, error) {
	leader, err := c.findLeader(ctx)
	if err != nil {
		return Answer{}, &CodeError{Code: NotLeader}
	}
	a, err := c.AppendTo(ctx, leader, body)
	if err != nil {
		c.forget(leader, err)
	}
	return a, err
}

// AppendTo sends body to node id, leader or not.
func (c *Client) AppendTo(ctx context.Context, id string, body []byte) (Answer, error) {
	b := make([]byte, 0, 80+len(c.group)+len(id)+base64.StdEncoding.EncodedLen(len(body)))
	b = append(b, `{"body":"`...)
	b = base64.StdEncoding.AppendEncode(b, body)
	b = append(b, `","code":200,"group":"`...)
	b = append(b, c.group...)
	b = append(b, `","remoteId":"`...)
	b = append(b, id...)
	b = append(b, `","term":-1}`...)
	return c.call(ctx, id, codeAppend, b)
}

// Get reads the entry at index from the leader and gives its body.
func (c *Client) Get(ctx context.Context, index int64) ([]byte, error) {
	leader, err := c.findLeader(ctx)
	if err != nil {
		return nil, &CodeError{Code: NotLeader}
	}
	a, err := c.GetFrom(ctx, leader, index)
	if err != nil {
		c.forget(leader, err)
		return nil, err
	}
	if len(a.Entries) != 1 || a.Entries[0].Index != index {
		return nil, fmt.Errorf("get %d: answer has %d entries", index, len(a.Entries))
	}
	return a.Entries[0].Body, nil
}

// GetFrom reads the entry at index from node id.
func (c *Client) GetFrom(ctx context.Context, id string, index int64) (Answer, error) {
	b := make([]byte, 0, 80+len(c.group)+len(id))
	b = append(b, `{"beginIndex":`...)
	b = strconv.AppendInt(b, index, 10)
	b = append(b, `,"code":200,"group":"`...)
	b = append(b, c.group...)
	b = append(b, `","maxSize":0,"remoteId":"`...)
	b = append(b, id...)
	b = append(b, `","term":-1}`...)
	return c.call(ctx, id, codeGet, b)
}

// Unconfirmed reads from node id, which must be one of ours, what it takes for committed from index from on: some entries, or none at the end. Nobody confirms that
// there is not more elsewhere. The layout is that of docs/protocol.md.
func (c *Client) Unconfirmed(ctx context.Context, id string, from int64) ([]Entry, error) {
	b := []byte{1, 0, 0, 0} // version; no flags
	b = binary.BigEndian.AppendUint64(b, uint64(from))
	b = append(b, make([]byte, 3*4)...) // no bounds, no wait
	for _, s := range []string{c.group, id} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	n, err := c.conn(ctx, id)
	if err != nil {
		return nil, err
	}
	raw, err := n.call(ctx, codeGetBatch, b)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", id, err)
	}
	const fixed = 36 + 2 // up to the leader's id
	if len(raw) < fixed || raw[0] != 1 || len(raw) < fixed+int(binary.BigEndian.Uint16(raw[36:])) {
		return nil, fmt.Errorf("answer of %s: %q", id, raw)
	}
	switch result := int(binary.BigEndian.Uint16(raw[2:])); result {
	case OK:
	case resultIndexOutOfRange:
		return nil, nil
	default:
		return nil, &CodeError{Code: result}
	}
	l := &Log{bytes: raw[fixed+int(binary.BigEndian.Uint16(raw[36:])):]}
	if end := l.scan(); end != len(l.bytes) || len(l.Entries) == 0 || l.Entries[0].Index != from {
		return nil, fmt.Errorf("answer of %s: %d entries from %d on in %d bytes", id, len(l.Entries), from, len(l.bytes))
	}
	return l.Entries, nil
}

// Metadata asks node id for its view: the peers and the leader it knows.
func (c *Client) Metadata(ctx context.Context, id string) (Answer, error) {
	return c.callJSON(ctx, id, codeMetadata, map[string]any{})
}

// Transfer asks the leader from, which leads in term, to hand leadership to node to. The answer comes when the hand-over is decided.
func (c *Client) Transfer(ctx context.Context, from, to string, term int64) error {
	_, err := c.callJSON(ctx, from, codeTransfer, map[string]any{"transferId": from, "transfereeId": to, "term": term,
		"takeLeadershipLedgerIndex": 0})
	return err
}

// Leader asks all nodes at once and gives the one that says it leads itself.
func (c *Client) Leader(ctx context.Context) (string, error) {
	type view struct{ id, leader string }
	views := make(chan view, len(c.addrs))
	for id := range c.addrs {
		go func() {
			a, err := c.Metadata(ctx, id)
			if err != nil {
				a.LeaderID = ""
			}
			views <- view{id, a.LeaderID}
		}()
	}
	for range c.addrs {
		if v := <-views; v.id == v.leader {
			return v.id, nil
		}
	}
	return "", errors.New("no node says it leads")
}

func (c *Client) findLeader(ctx context.Context) (string, error) {
	c.mu.Lock()
	leader := c.leader
	c.mu.Unlock()
	if leader != "" {
		return leader, nil
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	c.leader = leader
	c.mu.Unlock()
	return leader, nil
}

// forget drops the belief in a leader that failed, in favour of the one it named.
func (c *Client) forget(leader string, err error) {
	var code *CodeError
	if errors.As(err, &code) && code.Code != NotLeader {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == leader {
		c.leader = ""
		if code != nil && code.Leader != leader {
			c.leader = code.Leader
		}
	}
}

func (c *Client) callJSON(ctx context.Context, id string, code int, keys map[string]any) (Answer, error) {
	keys["group"], keys["remoteId"], keys["code"] = c.group, id, OK
	if _, ok := keys["term"]; !ok {
		keys["term"] = -1
	}
	b, err := json.Marshal(keys)
	if err != nil {
		return Answer{}, fmt.Errorf("encode request: %w", err)
	}
	return c.call(ctx, id, code, b)
}

func (c *Client) call(ctx context.Context, id string, code int, body []byte) (Answer, error) {
	n, err := c.conn(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	raw, err := n.call(ctx, code, body)
	if err != nil {
		return Answer{}, fmt.Errorf("call %s: %w", id, err)
	}
	a, err := readAnswer(code, raw)
	if err != nil {
		return Answer{}, fmt.Errorf("answer of %s: %w", id, err)
	}
	if a.Code != OK {
		return a, &CodeError{Code: a.Code, Leader: a.LeaderID}
	}
	return a, nil
}

// readAnswer reads a body. A measurement shall show the node and not this client, so the two answers that come by the ten thousand are read without
// reflection, if they look like all nodes write them: no escapes, and no key twice.
func readAnswer(code int, raw []byte) (Answer, error) {
	a := Answer{Index: -1, Pos: -1, Term: -1}
	if a.quick(code, raw) {
		return a, nil
	}
	a = Answer{Index: -1, Pos: -1, Term: -1}
	return a, json.Unmarshal(raw, &a)
}

func (a *Answer) quick(code int, raw []byte) bool {
	if bytes.IndexByte(raw, '\\') >= 0 {
		return false
	}
	var entry []byte
	switch code {
	case codeAppend:
	case codeGet:
		lo, hi := bytes.Index(raw, []byte(`"entries":[{`)), bytes.LastIndex(raw, []byte(`}]`))
		if lo < 0 || hi < lo || bytes.Count(raw[lo:hi], []byte("{")) != 1 {
			return false
		}
		entry = raw[lo+len(`"entries":[`) : hi+1]
		raw = slices.Concat(raw[:lo], raw[hi+len(`}]`):])
	default:
		return false
	}
	result, ok := number(raw, `"code":`)
	if !ok || result != OK {
		return false
	}
	a.Code = OK
	if entry == nil {
		var have [3]bool
		a.Index, have[0] = number(raw, `"index":`)
		a.Pos, have[1] = number(raw, `"pos":`)
		a.Term, have[2] = number(raw, `"term":`)
		return have == [3]bool{true, true, true}
	}
	var e Read
	if lo := bytes.Index(entry, []byte(`"body":"`)); lo >= 0 {
		text := entry[lo+len(`"body":"`):]
		n := bytes.IndexByte(text, '"')
		if n < 0 {
			return false
		}
		body, err := base64.StdEncoding.AppendDecode(nil, text[:n])
		if err != nil {
			return false
		}
		e.Body = body
		entry = slices.Concat(entry[:lo], text[n+1:])
	}
	var have [3]bool
	e.Index, have[0] = number(entry, `"index":`)
	e.Pos, have[1] = number(entry, `"pos":`)
	e.Term, have[2] = number(entry, `"term":`)
	a.Entries = []Read{e}
	return have == [3]bool{true, true, true}
}

// number gives the integer behind key, which stands with its quotes and colon.
func number(raw []byte, key string) (v int64, ok bool) {
	i := bytes.Index(raw, []byte(key))
	if i < 0 {
		return 0, false
	}
	end := i + len(key)
	for end < len(raw) && (raw[end] == '-' || raw[end] >= '0' && raw[end] <= '9') {
		end++
	}
	v, err := strconv.ParseInt(string(raw[i+len(key):end]), 10, 64)
	return v, err == nil
}

func (c *Client) conn(ctx context.Context, id string) (*conn, error) {
	c.mu.Lock()
	n, closed := c.conns[id], c.closed
	c.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	if n != nil && n.alive() {
		return n, nil
	}
	addr, ok := c.addrs[id]
	if !ok {
		return nil, fmt.Errorf("no node %q in the group", id)
	}
	s, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.conns[id]; c.closed || other != nil && other.alive() { // lost a race
		s.Close()
		if c.closed {
			return nil, net.ErrClosed
		}
		return other, nil
	}
	n = &conn{sock: s, calls: map[int32]chan answer{}}
	n.work.L = &n.mu
	c.conns[id] = n
	go n.read()
	go n.write()
	return n, nil
}

// conn is one connection with a goroutine that reads and one that writes; both end when it fails, and Close makes it fail.
type conn struct {
	sock net.Conn

	mu     sync.Mutex
	work   sync.Cond // out or err has changed
	out    []byte    // frames to send
	opaque int32
	calls  map[int32]chan answer // each holds one answer; closed without one when the connection fails
	err    error                 // why the connection is dead
}

type answer struct {
	body []byte
	err  error // the node answered with a remoting error, which has no body
}

func (n *conn) alive() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err == nil
}

func (n *conn) call(ctx context.Context, code int, body []byte) ([]byte, error) {
	got := make(chan answer, 1)
	n.mu.Lock()
	if n.err != nil {
		n.mu.Unlock()
		return nil, n.err
	}
	n.opaque++
	opaque := n.opaque
	n.calls[opaque] = got
	n.out = appendFrame(n.out, code, opaque, body)
	n.work.Signal()
	n.mu.Unlock()
	select {
	case a, ok := <-got:
		if !ok {
			n.mu.Lock()
			defer n.mu.Unlock()
			return nil, n.err
		}
		return a.body, a.err
	case <-ctx.Done():
		n.mu.Lock()
		delete(n.calls, opaque)
		n.mu.Unlock()
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// write sends what callers queue. It lets those that are ready to run queue theirs first, so that one system call carries many.
func (n *conn) write() {
	var spare []byte
	for {
		n.mu.Lock()
		for len(n.out) == 0 && n.err == nil {
			n.work.Wait()
		}
		n.mu.Unlock()
		runtime.Gosched()
		n.mu.Lock()
		if n.err != nil {
			n.mu.Unlock()
			return
		}
		batch := n.out
		n.out = spare[:0]
		n.mu.Unlock()
		if _, err := n.sock.Write(batch); err != nil {
			n.fail(err)
			return
		}
		spare = batch
	}
}

func appendFrame(b []byte, code int, opaque int32, body []byte) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, `,"flag":0,"language":"JAVA","opaque":`...)
	b = strconv.AppendInt(b, int64(opaque), 10)
	b = append(b, `,"serializeTypeCurrentRPC":"JSON","version":0}`...)
	header := len(b) - at - 8
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	binary.BigEndian.PutUint32(b[at+4:], uint32(header)) // the first byte, serialize type JSON, is 0
	return b
}

func (n *conn) read() {
	r := &frameReader{r: n.sock}
	for {
		header, body, err := r.next()
		if err != nil {
			n.fail(err)
			return
		}
		var h struct {
			Code   int    `json:"code"`
			Opaque int32  `json:"opaque"`
			Remark string `json:"remark"`
		}
		opaque, haveOpaque := number(header, `"opaque":`)
		code, haveCode := number(header, `"code":`)
		if haveOpaque && haveCode && code == OK && bytes.IndexByte(header, '\\') < 0 {
			h.Opaque, h.Code = int32(opaque), OK
		} else if err := json.Unmarshal(header, &h); err != nil {
			n.fail(fmt.Errorf("answer header: %w", err))
			return
		}
		a := answer{body: bytes.Clone(body)}
		if h.Code != OK || len(body) == 0 {
			a = answer{err: fmt.Errorf("answer without a body: header code %d, remark %q", h.Code, h.Remark)}
		}
		n.mu.Lock()
		got := n.calls[h.Opaque]
		delete(n.calls, h.Opaque)
		n.mu.Unlock()
		if got != nil {
			got <- a
		}
	}
}

func (n *conn) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return
	}
	n.err = err
	n.work.Signal()
	n.sock.Close() // its error adds nothing to err
	for opaque, got := range n.calls {
		close(got)
		delete(n.calls, opaque)
	}
}

// frameReader cuts a stream into frames, many per system call. What next returns is valid until the next call.
type frameReader struct {
	r      io.Reader
	buf    []byte
	lo, hi int
}

func (f *frameReader) next() (header, body []byte, err error) {
	if err := f.have(8); err != nil {
		return nil, nil, err
	}
	size := int(binary.BigEndian.Uint32(f.buf[f.lo:]))
	h := int(binary.BigEndian.Uint32(f.buf[f.lo+4:]) & 0xffffff)
	if size > frameMax || h > size-4 {
		return nil, nil, fmt.Errorf("bad frame: length %d, header %d", size, h)
	}
	if err := f.have(4 + size); err != nil {
		return nil, nil, err
	}
	b := f.buf[f.lo+8 : f.lo+4+size]
	f.lo += 4 + size
	return b[:h], b[h:], nil
}

func (f *frameReader) have(n int) error {
	if f.hi-f.lo >= n {
		return nil
	}
	if f.lo == f.hi {
		f.lo, f.hi = 0, 0
	}
	if len(f.buf)-f.lo < n {
		fresh := make([]byte, max(64<<10, 2*n))
		f.hi = copy(fresh, f.buf[f.lo:f.hi])
		f.lo, f.buf = 0, fresh
	}
	got, err := io.ReadAtLeast(f.r, f.buf[f.hi:], n-(f.hi-f.lo))
	f.hi += got
	return err
}
