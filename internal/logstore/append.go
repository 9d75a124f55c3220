package logstore

import (
	"encoding/binary"
	"fmt"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Stamp is called for each entry of Append in log order, before its checksums are computed. body is the store's copy, which it may
// change in place; pos is the position of the entry, so body begins at pos + 48. i counts from 0 within the batch.
type Stamp func(i int, index raft.Index, pos int64, body []byte)

// tail is the end of the log including what is staged, and the staged writes. Only the owner uses it.
type tail struct {
	last       mark
	chunks     []*chunk   // staged, oldest first
	writes     []write    // what Flush has to write for them, at most one for each data file
	records    []byte     // their index records
	from       raft.Index // of the first record
	indexFiles []*file    // that the last Flush wrote
	bytes      int64
	bare       bool // an entry without checksum is staged
}

// write is a stretch of one data file: entries back to back, and maybe the blank record that ends the file.
type write struct {
	f    *file
	off  int64 // within the file
	bufs [][]byte
}

// reset makes m the end of the log, with nothing staged.
func (t *tail) reset(m mark) {
	clear(t.chunks)
	for i := range t.writes {
		clear(t.writes[i].bufs)
	}
	*t = tail{last: m, chunks: t.chunks[:0], writes: t.writes[:0], records: t.records[:0], from: m.index + 1, indexFiles: t.indexFiles[:0]}
}

// plan is the end of the log as a batch is placed, entry by entry, before anything of it is staged.
type plan struct {
	end  int64
	last raft.Index
}

// place gives the position of the next entry of size bytes. It makes sure that the files for it are there, at the batch's first entry and where
// one begins a file.
func (s *Store) place(p *plan, size int) (int64, error) {
	if size > entry.MaxSize || int64(size)+entry.BlankSize > s.data.size {
		return 0, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	pos, _ := entry.Place(p.end, size, s.data.size)
	if pos%s.data.size == 0 || p.end == s.tail.last.end {
		if _, err := s.obtain(&s.data, pos); err != nil {
			return 0, err
		}
	}
	p.last++
	if rec := int64(p.last) * entry.IndexSize; rec%s.index.size == 0 || p.last == s.tail.last.index+1 {
		if _, err := s.obtain(&s.index, rec); err != nil {
			return 0, err
		}
	}
	p.end = pos + int64(size)
	return pos, nil
}

// ready tells whether something can be appended now.
func (s *Store) ready() error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.settleEnd(); err != nil {
		return err
	}
	return s.beginLate()
}

// Append encodes, places, stamps, seals and stages entries first, first+1, … of term, which must continue the log. The bodies are
// copied. On an error nothing is staged; ErrDiskFull may pass (it also tells of a log that is damaged at its end and has to be repaired
// first), ErrTooLarge names a body that never fits.
func (s *Store) Append(first raft.Index, term raft.Term, magic int32, bodies [][]byte, stamp Stamp) error {
	if err := s.ready(); err != nil {
		return err
	}
	if first != s.tail.last.index+1 || term < s.tail.last.term {
		return fmt.Errorf("%w: entry %d of term %d behind entry %d of term %d", ErrOrder, first, term, s.tail.last.index, s.tail.last.term)
	}
	if len(bodies) == 0 {
		return nil
	}
	c := s.arena.chunk(first, len(bodies))
	p := plan{end: s.tail.last.end, last: first - 1}
	size := 0
	for _, b := range bodies {
		n := entry.HeaderSize + len(b)
		pos, err := s.place(&p, n)
		if err != nil {
			return s.unplace(err)
		}
		c.recs = append(c.recs, rec{pos: pos, off: uint32(size), size: uint32(n)})
		size += n
	}
	buf := s.arena.take(size)
	for i, b := range bodies {
		r := c.recs[i]
		e := buf[r.off : r.off+r.size : r.off+r.size]
		entry.PutHeader(e, entry.Header{Magic: magic, Size: int32(r.size), Index: first + raft.Index(i), Term: term, Pos: r.pos, BodyLen: int32(len(b))})
		copy(e[entry.HeaderSize:], b)
		if stamp != nil {
			stamp(i, first+raft.Index(i), r.pos, e[entry.HeaderSize:])
		}
		entry.Seal(e)
		s.tail.bare = s.tail.bare || binary.BigEndian.Uint32(e[36:]) == 0 // one checksum in 2^32 looks as if it were absent
		s.stageRecord(entry.Record{Magic: magic, Pos: r.pos, Size: int32(r.size), Index: first + raft.Index(i), Term: term})
	}
	c.size = int64(size)
	c.one[0] = buf
	c.pieces = c.one[:]
	s.stage(c, term)
	return nil
}

// unplace removes files that a refused batch made beyond the next one: Java accepts one empty file behind the end, not two. A store that
// has failed leaves them: a file of which nobody knows whether it is there may lie behind them, and the next start takes no gap.
func (s *Store) unplace(cause error) error {
	if s.failure.Load() != nil {
		return cause
	}
	s.createMu.Lock()
	defer s.createMu.Unlock()
	dataEnd := s.data.base(s.tail.last.end) + 2*s.data.size
	indexEnd := s.index.base(int64(s.tail.last.index+1)*entry.IndexSize) + 2*s.index.size
	err := s.dropBehind(&s.data, dataEnd)
	if err == nil {
		err = s.dropBehind(&s.index, indexEnd)
	}
	if err != nil {
		return s.fail(err)
	}
	return cause
}

// dropBehind removes the files of l from pos on, durably and the last one first: a crash leaves no gap between those that are there.
func (s *Store) dropBehind(l *files, pos int64) error {
	for {
		s.mu.RLock()
		off := int64(-1)
		if n := len(l.list); n > 0 {
			off = l.list[n-1].off
		}
		s.mu.RUnlock()
		if off < pos {
			return nil
		}
		dirs, err := s.dropFrom(l, off)
		if err == nil {
			err = s.syncDirs(dirs)
		}
		if err != nil {
			return err
		}
	}
}

// AppendEncoded stages the entries of p from index from on, which must continue the log; those below from are skipped. p must not be written to
// afterwards: its bytes are what is written, cached and given to readers.
//
// Each entry is checked: form and checksums (ErrEntry), index and term (ErrOrder), and its position (*PositionError) unless compat is 0.4, where a Java leader may
// give positions of its own and the index record alone holds the real one. On an error nothing is staged.
func (s *Store) AppendEncoded(from raft.Index, p raft.Payload) error {
	if err := s.ready(); err != nil {
		return err
	}
	if from != s.tail.last.index+1 {
		return fmt.Errorf("%w: entry %d behind entry %d", ErrOrder, from, s.tail.last.index)
	}
	r := payloadReader{p: p}
	if err := r.skipTo(from); err != nil {
		return fmt.Errorf("%w: before entry %d: %w", ErrEntry, from, err)
	}
	rest := r.rest()
	r = payloadReader{p: rest}
	pl := plan{end: s.tail.last.end, last: from - 1}
	prev := mark{index: from - 1, term: s.tail.last.term}
	c := s.arena.chunk(from, r.count())
	staged := len(s.tail.records)
	bare := false
	err := func() error {
		off := 0
		for !r.empty() {
			e, err := r.next()
			if err != nil {
				return fmt.Errorf("%w: entry %d: %w", ErrEntry, prev.index+1, err)
			}
			h, err := entry.Parse(e)
			if err == nil {
				err = entry.Check(e)
			}
			if err != nil {
				return fmt.Errorf("%w: entry %d: %w", ErrEntry, prev.index+1, err)
			}
			if h.Index != prev.index+1 || h.Term < prev.term {
				return fmt.Errorf("%w: entry %d of term %d behind entry %d of term %d", ErrOrder, h.Index, h.Term, prev.index, prev.term)
			}
			pos, err := s.place(&pl, len(e))
			if err != nil {
				return err
			}
			if h.Pos != pos && s.cfg.Compat != raft.Compat04 && !plantedPositionUnchecked {
				return &PositionError{Index: h.Index, Want: pos, Got: h.Pos}
			}
			c.recs = append(c.recs, rec{pos: pos, off: uint32(off), size: uint32(len(e))})
			s.stageRecord(entry.Record{Magic: h.Magic, Pos: pos, Size: h.Size, Index: h.Index, Term: h.Term})
			bare = bare || h.ChainCRC == 0
			off += len(e)
			prev = mark{index: h.Index, term: h.Term}
		}
		return nil
	}()
	if err != nil {
		s.tail.records = s.tail.records[:staged]
		return s.unplace(err)
	}
	if len(c.recs) == 0 {
		return nil
	}
	c.size = int64(rest.Size())
	c.setPieces(rest)
	s.tail.bare = s.tail.bare || bare
	s.stage(c, prev.term)
	return nil
}

// stageRecord stages one index record.
func (s *Store) stageRecord(r entry.Record) {
	n := len(s.tail.records)
	s.tail.records = append(s.tail.records, make([]byte, entry.IndexSize)...)
	entry.PutRecord(s.tail.records[n:], r)
}

// stage takes a chunk whose records are staged already, and lays out its writes. The last entry has term.
func (s *Store) stage(c *chunk, term raft.Term) {
	t := &s.tail
	t.chunks = append(t.chunks, c)
	t.bytes += c.size
	end := t.last.end
	start := 0 // first rec that is not laid out
	for i := range c.recs {
		if pos := c.recs[i].pos; pos == end && (i == start || pos%s.data.size != 0) {
			end += int64(c.recs[i].size)
			continue
		}
		s.layOut(c, start, i)
		s.blank(end)
		start, end = i, c.recs[i].pos+int64(c.recs[i].size)
	}
	s.layOut(c, start, len(c.recs))
	last := c.recs[len(c.recs)-1]
	t.last = mark{index: c.end() - 1, term: term, pos: last.pos, end: end}
	if end%s.data.size > s.data.size/2 {
		s.prepare(&s.data, s.data.base(end)+s.data.size)
	}
	if n := int64(t.last.index+1) * entry.IndexSize; n%s.index.size > s.index.size/2 {
		s.prepare(&s.index, s.index.base(n)+s.index.size)
	}
}

// layOut adds entries [i, j) of the chunk, which lie in one data file back to back, to the writes.
func (s *Store) layOut(c *chunk, i, j int) {
	if i == j {
		return
	}
	w := s.writeAt(c.recs[i].pos)
	w.bufs = c.slice(c.recs[i].off, c.recs[j-1].off+c.recs[j-1].size, w.bufs)
}

// blank adds the blank record that fills the file from end on; its rest is zeros already (rule 1 of Store).
func (s *Store) blank(end int64) {
	left := s.data.size - end%s.data.size
	if left == s.data.size {
		return // the file is full to its last byte, as a Java log of other sizes may be: nothing to fill
	}
	w := s.writeAt(end)
	b := s.arena.take(entry.BlankSize)
	magic := entry.MagicBlank
	binary.BigEndian.PutUint32(b, uint32(magic))
	binary.BigEndian.PutUint32(b[4:], uint32(left))
	w.bufs = append(w.bufs, b)
}

// writeAt gives the write that goes on at pos.
func (s *Store) writeAt(pos int64) *write {
	t := &s.tail
	if n := len(t.writes); n > 0 && t.writes[n-1].f.off == s.data.base(pos) {
		return &t.writes[n-1]
	}
	s.mu.RLock()
	f := s.data.find(pos) // place made it
	s.mu.RUnlock()
	if n := len(t.writes); n < cap(t.writes) {
		t.writes = t.writes[:n+1]
		t.writes[n] = write{f: f, off: pos - f.off, bufs: t.writes[n].bufs[:0]}
	} else {
		t.writes = append(t.writes, write{f: f, off: pos - f.off})
	}
	return &t.writes[len(t.writes)-1]
}

// Flush writes what is staged, data before index, with one system call for each file touched. When it returns readers see the entries
// and the end of this process does not lose them. On ErrDiskFull they stay staged and unseen.
func (s *Store) Flush() error {
	if err := s.usable(); err != nil {
		return err
	}
	t := &s.tail
	if len(t.chunks) == 0 {
		return nil
	}
	for i := range t.writes {
		w := &t.writes[i]
		if _, err := w.f.WriteVec(s.claim(w), w.off); err != nil {
			return s.noSpace(s.data.size, err)
		}
	}
	if err := s.writeRecords(); err != nil {
		return s.noSpace(s.index.size, err)
	}
	if t.bare && s.sealed.CompareAndSwap(true, false) {
		if err := s.side.note(func(m *meta) { m.sealed = false }); err != nil {
			return s.fail(err)
		}
	}

	s.mu.Lock()
	for _, w := range t.writes {
		s.dirty = with(s.dirty, w.f)
	}
	for _, f := range t.indexFiles {
		s.dirtyIdx = with(s.dirtyIdx, f)
	}
	s.addRuns(t)
	for _, c := range t.chunks {
		s.cache.add(c)
		s.stats.Entries += int64(len(c.recs))
	}
	s.stats.Appends++
	s.stats.Bytes += t.bytes
	s.unsealed = s.unsealed || t.bare
	s.last = t.last
	s.mu.Unlock()

	s.prewrite(t.writes[len(t.writes)-1].f)
	t.reset(t.last)
	return nil
}

func (w *write) size() (n int64) {
	for _, b := range w.bufs {
		n += int64(len(b))
	}
	return n
}

// with adds f to the list unless it is there; mostly it is the last one.
func with(list []*file, f *file) []*file {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == f {
			return list
		}
	}
	return append(list, f)
}

// addRuns takes over the terms of the staged records. The caller holds mu.
func (s *Store) addRuns(t *tail) {
	term := s.last.term
	if s.last.index < s.first {
		term = -1
	}
	for b := t.records; len(b) > 0; b = b[entry.IndexSize:] {
		if r := entry.ParseRecord(b); r.Term != term || len(s.runs) == 0 {
			term = r.Term
			s.runs = append(s.runs, raft.Run{Term: term, First: r.Index})
		}
	}
}

// writeRecords writes the staged index records and notes the files they went to.
func (s *Store) writeRecords() error {
	b := s.tail.records
	s.tail.indexFiles = s.tail.indexFiles[:0]
	for at := int64(s.tail.from) * entry.IndexSize; len(b) > 0; {
		s.mu.RLock()
		f := s.index.find(at)
		s.mu.RUnlock()
		if f == nil {
			return fmt.Errorf("no index file holds entry %d", at/entry.IndexSize)
		}
		part := b[:min(int64(len(b)), f.off+s.index.size-at)]
		if _, err := f.WriteAt(part, at-f.off); err != nil {
			return err
		}
		s.tail.indexFiles = append(s.tail.indexFiles, f)
		b = b[len(part):]
		at += int64(len(part))
	}
	return nil
}

// payloadReader walks over the entries of a payload, copying only those that lie across pieces.
type payloadReader struct {
	p       raft.Payload
	i, off  int // next byte: p[i][off]
	scratch []byte
}

func (r *payloadReader) empty() bool {
	for r.i < len(r.p) && r.off == len(r.p[r.i]) {
		r.i, r.off = r.i+1, 0
	}
	return r.i == len(r.p)
}

// peek gives the next n bytes, contiguous, without moving on; fewer at the end.
func (r *payloadReader) peek(n int) []byte {
	if r.empty() {
		return nil
	}
	if b := r.p[r.i][r.off:]; len(b) >= n {
		return b[:n:n]
	}
	r.scratch = r.scratch[:0]
	for i, off := r.i, r.off; i < len(r.p) && len(r.scratch) < n; i, off = i+1, 0 {
		b := r.p[i][off:]
		r.scratch = append(r.scratch, b[:min(len(b), n-len(r.scratch))]...)
	}
	return r.scratch
}

func (r *payloadReader) skip(n int) {
	for n > 0 && !r.empty() {
		m := min(n, len(r.p[r.i])-r.off)
		r.off += m
		n -= m
	}
}

// next gives the next entry, whole. The slice is good until the next call.
func (r *payloadReader) next() ([]byte, error) {
	h, err := entry.Parse(r.peek(entry.HeaderSize))
	if err != nil {
		return nil, err
	}
	e := r.peek(int(h.Size))
	if len(e) < int(h.Size) {
		return nil, entry.ErrShort
	}
	r.skip(int(h.Size))
	return e, nil
}

// skipTo leaves entries below index out.
func (r *payloadReader) skipTo(index raft.Index) error {
	for !r.empty() {
		h, err := entry.Parse(r.peek(entry.HeaderSize))
		if err != nil {
			return err
		}
		if h.Index >= index {
			return nil
		}
		r.skip(int(h.Size))
	}
	return nil
}

// rest gives what has not been read.
func (r *payloadReader) rest() raft.Payload {
	if r.empty() {
		return nil
	}
	if r.i == 0 && r.off == 0 {
		return r.p
	}
	rest := append(raft.Payload{r.p[r.i][r.off:]}, r.p[r.i+1:]...)
	return rest
}

// count gives the number of entries from here on, as their headers tell; it stops at a bad one.
func (r payloadReader) count() (n int) {
	for !r.empty() {
		h, err := entry.Parse(r.peek(entry.HeaderSize))
		if err != nil {
			return n
		}
		r.skip(int(h.Size))
		n++
	}
	return n
}
