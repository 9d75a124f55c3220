package logstore

import (
	"slices"
	"sort"
	"sync/atomic"

	"dledger/internal/raft"
)

// rec says where an entry lies in its chunk and in the data files.
type rec struct {
	pos       int64
	off, size uint32 // within the chunk's bytes
}

// chunk is a stretch of encoded entries as they were staged together: what is written, pushed, read and cached are the same bytes. It is
// immutable once staged.
type chunk struct {
	first  raft.Index
	recs   []rec
	pieces [][]byte // concatenated: the entries back to back, without blanks
	starts []uint32 // offset of each piece; nil if there is one piece
	size   int64
	one    [1][]byte
}

func (c *chunk) end() raft.Index { return c.first + raft.Index(len(c.recs)) }

// slice appends the bytes [lo, hi) of the chunk to out, without copying them.
func (c *chunk) slice(lo, hi uint32, out raft.Payload) raft.Payload {
	if c.starts == nil {
		return append(out, c.pieces[0][lo:hi:hi])
	}
	i := sort.Search(len(c.starts), func(i int) bool { return c.starts[i] > lo }) - 1
	for ; i < len(c.pieces) && c.starts[i] < hi; i++ {
		p, start := c.pieces[i], c.starts[i]
		from, to := uint32(0), uint32(len(p))
		if lo > start {
			from = lo - start
		}
		if hi < start+to {
			to = hi - start
		}
		if from < to {
			out = append(out, p[from:to:to])
		}
	}
	return out
}

// cut gives the part of the chunk below index hi.
func (c *chunk) cut(hi raft.Index) *chunk {
	n := int(hi - c.first)
	last := c.recs[n-1]
	size := last.off + last.size
	short := &chunk{first: c.first, recs: c.recs[:n:n], size: int64(size)}
	short.setPieces(c.slice(0, size, nil))
	return short
}

// setPieces makes the pieces findable by offset.
func (c *chunk) setPieces(p raft.Payload) {
	c.pieces = p
	if len(p) < 2 {
		return
	}
	c.starts = make([]uint32, len(p))
	n := uint32(0)
	for i, b := range p {
		c.starts[i] = n
		n += uint32(len(b))
	}
}

// cache holds the newest flushed chunks, so that pushing, reading and dispatching fresh entries needs no system call. Store.mu guards it.
type cache struct {
	chunks       []*chunk // consecutive
	size, max    int64
	hits, misses atomic.Int64
}

// first gives the index from which on entries are cached, or end if there are none.
func (c *cache) first(end raft.Index) raft.Index {
	if len(c.chunks) == 0 {
		return end
	}
	return c.chunks[0].first
}

// add takes a chunk that was flushed and lets the oldest go.
func (c *cache) add(ch *chunk) {
	c.chunks = append(c.chunks, ch)
	c.size += ch.size
	n := 0
	for c.size > c.max && n < len(c.chunks)-1 {
		c.size -= c.chunks[n].size
		c.chunks[n] = nil // the array lives on behind the slice
		n++
	}
	c.chunks = c.chunks[n:]
}

// find gives the position in chunks of the one that holds i, or -1.
func (c *cache) find(i raft.Index) int {
	n := sort.Search(len(c.chunks), func(n int) bool { return c.chunks[n].first > i }) - 1
	if n < 0 || i >= c.chunks[n].end() {
		return -1
	}
	return n
}

// locate gives the place of entry i, if it is cached.
func (c *cache) locate(i raft.Index) (*chunk, rec, bool) {
	n := c.find(i)
	if n < 0 {
		return nil, rec{}, false
	}
	ch := c.chunks[n]
	return ch, ch.recs[i-ch.first], true
}

// read gives entries of [lo, hi) from chunk n on, as many as fit into maxBytes and at least one, and the last one's index.
func (c *cache) read(n int, lo, hi raft.Index, maxBytes int) (raft.Payload, raft.Index) {
	var out raft.Payload
	last := lo - 1
	left := int64(maxBytes)
	for ; n < len(c.chunks) && c.chunks[n].first < hi; n++ {
		ch := c.chunks[n]
		recs := ch.recs[lo-ch.first : min(hi, ch.end())-ch.first]
		from := recs[0].off
		k := sort.Search(len(recs), func(k int) bool { return int64(recs[k].off+recs[k].size-from) > left })
		if k == 0 && out == nil {
			k = 1
		}
		if k == 0 {
			break
		}
		to := recs[k-1].off + recs[k-1].size
		if out == nil {
			pieces := len(ch.pieces)
			if k == len(recs) && lo+raft.Index(k) < hi {
				pieces += min(len(c.chunks)-n, 15) // more chunks follow
			}
			out = make(raft.Payload, 0, pieces)
		}
		out = ch.slice(from, to, out)
		left -= int64(to - from)
		last += raft.Index(k)
		lo += raft.Index(k)
		if k < len(recs) {
			break
		}
	}
	return out, last
}

// truncate forgets the entries behind last.
func (c *cache) truncate(last raft.Index) {
	i := sort.Search(len(c.chunks), func(i int) bool { return c.chunks[i].end() > last+1 })
	if i == len(c.chunks) {
		return
	}
	for _, ch := range c.chunks[i:] {
		c.size -= ch.size
	}
	cut := c.chunks[i]
	kept := slices.Clone(c.chunks[:i]) // readers may hold nothing of the list, but its array is shared with what was let go
	if cut.first <= last {
		short := cut.cut(last + 1)
		kept = append(kept, short)
		c.size += short.size
	}
	c.chunks = kept
}

// clear forgets everything.
func (c *cache) clear() { c.chunks, c.size = nil, 0 }

// at gives n bytes from position pos on, if they lie within one cached entry: without copying if they lie in one piece.
func (c *cache) at(pos int64, n int) ([]byte, bool) {
	i := sort.Search(len(c.chunks), func(i int) bool { return c.chunks[i].recs[0].pos > pos }) - 1
	if i < 0 {
		return nil, false
	}
	ch := c.chunks[i]
	k := sort.Search(len(ch.recs), func(k int) bool { return ch.recs[k].pos > pos }) - 1
	r := ch.recs[k]
	lo := pos - r.pos
	if lo+int64(n) > int64(r.size) {
		return nil, false
	}
	from, to := r.off+uint32(lo), r.off+uint32(lo)+uint32(n)
	if ch.starts == nil {
		return ch.pieces[0][from:to:to], true
	}
	p := ch.slice(from, to, nil)
	if len(p) == 1 {
		return p[0], true
	}
	return slices.Concat(p...), true
}

// arena hands out memory for the leader's entries and their bookkeeping in slabs, so that a batch costs no allocation of its own
// most of the time. Slabs live as long as a chunk that uses them.
type arena struct {
	bytes  []byte
	recs   []rec
	chunks []chunk
}

const (
	arenaBytes  = 256 << 10
	arenaRecs   = 1024
	arenaChunks = 64
)

// take gives n bytes.
func (a *arena) take(n int) []byte {
	if n > len(a.bytes) {
		if n >= arenaBytes/4 {
			return make([]byte, n)
		}
		a.bytes = make([]byte, arenaBytes)
	}
	b := a.bytes[:n:n]
	a.bytes = a.bytes[n:]
	return b
}

// chunk gives an empty chunk with room for n recs.
func (a *arena) chunk(first raft.Index, n int) *chunk {
	if len(a.chunks) == 0 {
		a.chunks = make([]chunk, arenaChunks)
	}
	c := &a.chunks[0]
	a.chunks = a.chunks[1:]
	c.first = first
	if n > len(a.recs) {
		if n >= arenaRecs/4 {
			c.recs = make([]rec, 0, n)
			return c
		}
		a.recs = make([]rec, arenaRecs)
	}
	c.recs = a.recs[:0:n]
	a.recs = a.recs[n:]
	return c
}
