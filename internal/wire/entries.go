package wire

import (
	"fmt"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// entries are log entries that came as JSON objects, turned into the file encoding.
//
//  1. buf holds them back to back, as the header fields in JSON say and with nothing added;
//  2. while bad is nil they are entries first…last without a gap, their terms never fall and runs gives the terms.
type entries struct {
	buf         []byte
	first, last raft.Index // -1, -1 when empty
	runs        []raft.Run
	bad         error // the first reason why they are not what 2 says
}

func noEntries() entries { return entries{first: -1, last: -1} }

// reset empties e and keeps its memory: a key that comes again and again must not cost a new buffer each time.
func (e *entries) reset() { *e = entries{buf: e.buf[:0], first: -1, last: -1} }

func (e *entries) count() int64 {
	if e.first < 0 {
		return 0
	}
	return int64(e.last - e.first + 1)
}

// payload gives the entries as messages carry them.
func (e *entries) payload() raft.Payload {
	if len(e.buf) == 0 {
		return nil
	}
	return raft.Payload{e.buf}
}

// list reads an array of entries; null is an empty one.
func (e *entries) list(s *scanner) {
	e.reset()
	if !s.open('[') {
		return
	}
	for first := true; s.more(']', first); first = false {
		e.one(s)
	}
}

// one reads one entry (DLedgerEntry in the Java original); null adds none. Behind a bad one nothing is kept: entries that are shorter in
// JSON than on disk would make little input into much memory.
func (e *entries) one(s *scanner) {
	if !s.open('{') {
		return
	}
	if e.buf == nil {
		e.buf = make([]byte, 0, (len(s.b)-s.i)/4*3+entry.HeaderSize) // what the rest of the input can hold at most, roughly
	}
	start := len(e.buf)
	e.buf = append(e.buf, zeroHeader[:]...)
	h := entry.Header{Magic: entry.MagicNormal, Index: -1, Term: -1}
	for first := true; s.more('}', first); first = false {
		key := s.key()
		if s.err == nil && !e.value(s, &h, start, key) {
			if other := smartKey(key); other == nil || !e.value(s, &h, start, other) {
				s.skip(0)
			}
		}
	}
	if s.err != nil {
		return
	}
	if e.bad != nil {
		e.buf = e.buf[:start]
		return
	}
	h.BodyLen = int32(len(e.buf) - start - entry.HeaderSize)
	entry.PutHeader(e.buf[start:], h)
	e.bad = e.extend(e.buf[start:])
}

var zeroHeader [entry.HeaderSize]byte

// value reads the value of an entry's key; the body goes behind the header, which begins at start of buf.
func (e *entries) value(s *scanner, h *entry.Header, start int, key []byte) bool {
	switch string(key) {
	case "magic":
		s.int32(&h.Magic)
	case "size":
		s.int32(&h.Size)
	case "index":
		s.int((*int64)(&h.Index))
	case "term":
		s.int((*int64)(&h.Term))
	case "pos":
		s.int(&h.Pos)
	case "channel":
		s.int32(&h.Channel)
	case "chainCrc":
		h.ChainCRC = s.crc()
	case "bodyCrc":
		h.BodyCRC = s.crc()
	case "body":
		e.buf = s.appendBytes(e.buf[:start+entry.HeaderSize])
	default:
		return false
	}
	return true
}

// extend takes in the encoded entry b if it continues the ones before it.
func (e *entries) extend(b []byte) error {
	h, err := entry.Parse(b)
	if err != nil {
		return err
	}
	if e.first < 0 {
		e.first, e.last = h.Index, h.Index-1
	}
	if e.runs, err = continueRuns(e.runs, e.last, h); err != nil {
		return err
	}
	e.last = h.Index
	return nil
}

// continueRuns adds the entry h, which must follow index last, to the runs of the entries before it.
func continueRuns(runs []raft.Run, last raft.Index, h entry.Header) ([]raft.Run, error) {
	if h.Index != last+1 {
		return runs, fmt.Errorf("entry %d behind entry %d", h.Index, last)
	}
	if len(runs) == 0 || h.Term > runs[len(runs)-1].Term {
		return append(runs, raft.Run{Term: h.Term, First: h.Index}), nil
	}
	if h.Term < runs[len(runs)-1].Term {
		return runs, fmt.Errorf("entry %d has term %d behind term %d", h.Index, h.Term, runs[len(runs)-1].Term)
	}
	return runs, nil
}

// cursor walks over the entries of a payload.
type cursor struct {
	rest raft.Payload
	at   int    // bytes of rest[0] that are done
	join []byte // an entry that two pieces hold
}

// next gives the next entry whole, or nil at the end. The result may be written over by the following call.
func (c *cursor) next() (entry.Header, []byte, error) {
	for len(c.rest) > 0 && c.at == len(c.rest[0]) {
		c.rest, c.at = c.rest[1:], 0
	}
	if len(c.rest) == 0 {
		return entry.Header{}, nil, nil
	}
	head := c.rest[0][c.at:]
	if len(head) < entry.HeaderSize {
		if head = c.take(entry.HeaderSize); len(head) < entry.HeaderSize {
			return entry.Header{}, nil, entry.ErrShort
		}
	}
	h, err := entry.Parse(head)
	if err != nil {
		return h, nil, err
	}
	whole := c.take(int(h.Size))
	if len(whole) < int(h.Size) {
		return h, nil, fmt.Errorf("entry %d: %w", h.Index, entry.ErrShort)
	}
	c.at += int(h.Size)
	for len(c.rest) > 0 && c.at > len(c.rest[0]) {
		c.at -= len(c.rest[0])
		c.rest = c.rest[1:]
	}
	return h, whole, nil
}

// take gives the next n bytes without moving on, fewer at the end; it joins pieces only where it must.
func (c *cursor) take(n int) []byte {
	if head := c.rest[0][c.at:]; len(head) >= n {
		return head[:n]
	}
	c.join = append(c.join[:0], c.rest[0][c.at:]...)
	for _, piece := range c.rest[1:] {
		if len(c.join) == n {
			break
		}
		c.join = append(c.join, piece[:min(len(piece), n-len(c.join))]...)
	}
	return c.join
}

// entries writes the entries of p as a JSON array, or without brackets.
func (w *writer) entries(p raft.Payload) error {
	c := cursor{rest: p}
	for first := true; ; first = false {
		h, whole, err := c.next()
		if err != nil || whole == nil {
			return err
		}
		if !first {
			w.b = append(w.b, ',')
		}
		w.entry(h, whole[entry.HeaderSize:])
	}
}

func (w *writer) entry(h entry.Header, body []byte) {
	w.b = append(w.b, '{')
	w.bytes(`"body":`, body)
	w.int(`"bodyCrc":`, int64(int32(h.BodyCRC)))
	w.int(`"chainCrc":`, int64(int32(h.ChainCRC)))
	w.int(`"channel":`, int64(h.Channel))
	w.int(`"index":`, int64(h.Index))
	w.int(`"magic":`, int64(h.Magic))
	w.int(`"pos":`, h.Pos)
	w.int(`"size":`, int64(h.Size))
	w.int(`"term":`, int64(h.Term))
	w.end()
}

// jsonSize is about how many bytes the entries of p take as JSON, so that a buffer is made once.
func jsonSize(p raft.Payload, count int64) int { return p.Size()/3*4 + int(count)*128 }
