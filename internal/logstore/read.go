package logstore

import (
	"errors"
	"fmt"
	"io/fs"
	"sort"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// recordsMax bounds the index records that one disk read looks at.
const recordsMax = 4096

// Read gives entries of [lo, hi), encoded and back to back, as many as fit into maxBytes but at least lo, and the index of the last one.
// The bytes must not be written to. ErrCompacted and ErrOutOfRange tell that lo lies before or behind the log; a *DamageError that
// the disk holds something else: what it names was looked at closer once, and read again.
func (s *Store) Read(lo, hi raft.Index, maxBytes int) (raft.Payload, raft.Index, error) {
	looked := raft.Index(-1) // up to here; a disk that takes what is written and never gives it back must not be asked for ever
	for {
		s.mu.RLock()
		if err := s.covers(lo); err != nil {
			s.mu.RUnlock()
			return nil, lo - 1, err
		}
		if hi <= lo {
			s.mu.RUnlock()
			return nil, lo - 1, nil
		}
		if n := s.cache.find(lo); n >= 0 {
			p, last := s.cache.read(n, lo, min(hi, s.last.index+1), maxBytes)
			s.mu.RUnlock()
			s.cache.hits.Add(1)
			return p, last, nil
		}
		end, err := s.sound(lo, min(hi, s.cache.first(s.last.index+1)))
		gen := s.gen
		s.mu.RUnlock()
		if err != nil {
			return nil, lo - 1, err
		}
		s.cache.misses.Add(1)
		p, last, err := s.readDisk(lo, end, maxBytes)
		if s.movedSince(gen) {
			continue
		}
		i := damagedEntry(err)
		if i <= looked || !s.suspect(err) {
			return p, last, err
		}
		looked = i
	}
}

// ReadCached is Read for a caller that must not wait for the disk: ok is false where entry lo is not in memory.
func (s *Store) ReadCached(lo, hi raft.Index, maxBytes int) (p raft.Payload, last raft.Index, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.covers(lo) != nil || hi <= lo {
		return nil, lo - 1, false
	}
	n := s.cache.find(lo)
	if n < 0 {
		return nil, lo - 1, false
	}
	s.cache.hits.Add(1)
	p, last = s.cache.read(n, lo, min(hi, s.last.index+1), maxBytes)
	return p, last, true
}

// covers tells whether entry i is there. The caller holds mu.
func (s *Store) covers(i raft.Index) error {
	switch {
	case i < s.first:
		return fmt.Errorf("%w: entry %d, first is %d", ErrCompacted, i, s.first)
	case i > s.last.index:
		return fmt.Errorf("%w: entry %d, last is %d", ErrOutOfRange, i, s.last.index)
	}
	return nil
}

// movedSince tells whether the log was cut since generation gen, so that what a reader found, good or broken, may just have gone.
func (s *Store) movedSince(gen uint64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.gen != gen
}

// readDisk is Read for entries that are not cached.
func (s *Store) readDisk(lo, hi raft.Index, maxBytes int) (raft.Payload, raft.Index, error) {
	n := min(int64(hi-lo), int64(maxBytes)/entry.HeaderSize+1, recordsMax)
	recs, err := s.records(lo, int(n))
	if err != nil {
		return nil, lo - 1, err
	}
	size := int64(recs[0].Size)
	k := 1
	for k < len(recs) && size+int64(recs[k].Size) <= int64(maxBytes) {
		size += int64(recs[k].Size)
		k++
	}
	var out raft.Payload
	for i := 0; i < k; {
		j := i + 1
		end := recs[i].Pos + int64(recs[i].Size)
		for j < k && recs[j].Pos == end && s.data.base(recs[j].Pos) == s.data.base(recs[i].Pos) {
			end += int64(recs[j].Size)
			j++
		}
		b, err := s.readEntries(recs[i:j], int(end-recs[i].Pos))
		if err != nil {
			return nil, lo - 1, err
		}
		out = append(out, b)
		i = j
	}
	return out, lo + raft.Index(k) - 1, nil
}

// readEntries reads entries that lie back to back in one file, and checks them.
func (s *Store) readEntries(recs []entry.Record, size int) ([]byte, error) {
	b := make([]byte, size)
	f, err := s.readFile(&s.data, b, recs[0].Pos)
	if errors.Is(err, errNowhere) { // the entry exists, so its index record is wrong
		return nil, &DamageError{File: "index", Offset: int64(recs[0].Index) * entry.IndexSize, Index: recs[0].Index, Err: err}
	}
	if errors.Is(err, errUnreadable) {
		for _, r := range recs { // one of them, and those before it are whole
			if f, one := s.readFile(&s.data, b[:r.Size], r.Pos); errors.Is(one, errUnreadable) {
				return nil, &DamageError{File: f.name, Offset: r.Pos - f.off, Index: r.Index, Err: one}
			}
		}
	}
	if err != nil {
		return nil, err
	}
	off := 0
	for _, r := range recs {
		e := b[off : off+int(r.Size)]
		h, err := entry.Parse(e)
		switch {
		case err != nil:
		case h.Index != r.Index || h.Term != r.Term || h.Size != r.Size:
			err = fmt.Errorf("found entry %d of term %d with %d bytes", h.Index, h.Term, h.Size)
		default:
			err = s.intact(e)
		}
		if err != nil {
			return nil, &DamageError{File: f.name, Offset: r.Pos - f.off, Index: r.Index, Err: err}
		}
		off += int(r.Size)
	}
	return b, nil
}

// intact checks what checksums the whole entry e has, and that it has them.
func (s *Store) intact(e []byte) error {
	if plantedDamageServed {
		return nil
	}
	err := entry.Check(e)
	if err == nil && s.sealed.Load() && !entry.Sealed(e) {
		err = errBare
	}
	return err
}

// errNowhere: of a position.
var errNowhere = errors.New("no file holds position")

// errUnreadable: the disk does not give what it was told to keep. What lies there is lost as much as if it were damaged.
var errUnreadable = errors.New("the disk does not read it")

// readFile fills b from pos of a list, within one file, and gives that file, also with errUnreadable.
func (s *Store) readFile(l *files, b []byte, pos int64) (*file, error) {
	f := s.use(l, pos)
	if f == nil {
		return nil, fmt.Errorf("%w: %w %d", ErrOutOfRange, errNowhere, pos)
	}
	defer s.done(f)
	if pos-f.off+int64(len(b)) > l.size {
		return nil, &DamageError{File: f.name, Offset: pos - f.off, Index: -1, Err: fmt.Errorf("%d bytes go beyond the file: %w %d", len(b), errNowhere, pos+int64(len(b)))}
	}
	if _, err := f.ReadAt(b, pos-f.off); err != nil {
		err = fmt.Errorf("read %s at byte %d: %w", f.name, pos-f.off, err)
		if !errors.Is(err, fs.ErrClosed) {
			err = fmt.Errorf("%w: %w", errUnreadable, err)
		}
		return f, err
	}
	return f, nil
}

// records reads up to n index records from entry lo on, as far as one index file goes, and checks that they can be right.
func (s *Store) records(lo raft.Index, n int) ([]entry.Record, error) {
	at := int64(lo) * entry.IndexSize
	n = int(min(int64(n), (s.index.base(at)+s.index.size-at)/entry.IndexSize))
	b := make([]byte, n*entry.IndexSize)
	f, err := s.readFile(&s.index, b, at)
	if errors.Is(err, errUnreadable) {
		return nil, &DamageError{File: f.name, Offset: at - f.off, Index: lo, Err: err}
	}
	if err != nil {
		return nil, err
	}
	recs := make([]entry.Record, n)
	for i := range recs {
		r := entry.ParseRecord(b[i*entry.IndexSize:])
		if r.Index != lo+raft.Index(i) || r.Size < entry.HeaderSize || r.Size > entry.MaxSize || r.Pos < 0 {
			return nil, &DamageError{File: f.name, Offset: at - f.off + int64(i)*entry.IndexSize, Index: lo + raft.Index(i),
				Err: fmt.Errorf("bad index record: index %d, size %d, position %d", r.Index, r.Size, r.Pos)}
		}
		recs[i] = r
	}
	return recs, nil
}

// Entry gives one entry: its header and its body, which must not be written to.
func (s *Store) Entry(i raft.Index) (entry.Header, []byte, error) {
	p, _, err := s.Read(i, i+1, 0)
	if err != nil {
		return entry.Header{}, nil, err
	}
	r := payloadReader{p: p}
	e, err := r.next()
	if err != nil {
		return entry.Header{}, nil, fmt.Errorf("entry %d: %w", i, err)
	}
	h, err := entry.Parse(e)
	return h, e[entry.HeaderSize:], err
}

// ReadAt gives n bytes from byte position pos of the data files on, which must lie between the first and the last entry. They must not be
// written to. Fresh entries come from memory without a copy; others are read from the files, where Whole has to tell
// whether they are right: bytes inside an entry carry no checksum of their own.
func (s *Store) ReadAt(pos int64, n int) ([]byte, error) {
	for {
		s.mu.RLock()
		var err error
		switch {
		case pos < s.firstPos:
			err = fmt.Errorf("%w: position %d, first is %d", ErrCompacted, pos, s.firstPos)
		case n < 0 || pos+int64(n) > s.last.end:
			err = fmt.Errorf("%w: position %d to %d, the log ends at %d", ErrOutOfRange, pos, pos+int64(n), s.last.end)
		}
		if err != nil {
			s.mu.RUnlock()
			return nil, err
		}
		b, ok := s.cache.at(pos, n)
		err = s.soundBytes(pos, pos+int64(n))
		gen := s.gen
		s.mu.RUnlock()
		if ok {
			s.cache.hits.Add(1)
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		s.cache.misses.Add(1)
		if b, err = s.readRange(pos, n); !s.movedSince(gen) {
			return b, err
		}
	}
}

// CachedAt is ReadAt for bytes of one entry that is in memory; ok is false for all others.
func (s *Store) CachedAt(pos int64, n int) (b []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if n < 0 || pos < s.firstPos || pos+int64(n) > s.last.end {
		return nil, false
	}
	return s.cache.at(pos, n)
}

// readRange reads a range that may go over file ends.
func (s *Store) readRange(pos int64, n int) ([]byte, error) {
	b := make([]byte, n)
	for rest := b; len(rest) > 0; {
		part := rest[:min(int64(len(rest)), s.data.base(pos)+s.data.size-pos)]
		if _, err := s.readFile(&s.data, part, pos); err != nil {
			return nil, err
		}
		rest = rest[len(part):]
		pos += int64(len(part))
	}
	return b, nil
}

// Term gives the term of entry i, or of the one before the first, which may be raft.UnknownTerm.
func (s *Store) Term(i raft.Index) (raft.Term, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i == s.first-1 {
		return s.prevTerm, nil
	}
	if err := s.covers(i); err != nil {
		return -1, err
	}
	n := sort.Search(len(s.runs), func(n int) bool { return s.runs[n].First > i })
	return s.runs[n-1].Term, nil
}

// Pos gives the byte position where entry i begins, and its length.
func (s *Store) Pos(i raft.Index) (pos int64, size int, err error) {
	m, err := s.mark(i)
	if s.suspect(err) {
		m, err = s.mark(i)
	}
	return m.pos, int(m.end - m.pos), err
}

// ToEnd gives how many bytes of the log lie behind the beginning of entry i.
func (s *Store) ToEnd(i raft.Index) (int64, error) {
	pos, _, err := s.Pos(i)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.last.end - pos, err
}

// provenMark is mark for who is going to cut the log behind entry i: the entry lies there, which an index record alone does not prove. A wrong record is mended. Where
// the entry is damaged its end may not be known; then it is the end of a file that lies no earlier (see looseEnd).
func (s *Store) provenMark(i raft.Index) (mark, error) {
	for try := 0; ; try++ {
		m, err := s.mark(i)
		if err == nil {
			err = s.prove(m)
		}
		var de *DamageError
		if try > 0 || !errors.As(err, &de) || errors.Is(err, ErrDamaged) {
			return m, err
		}
		s.careMu.Lock()
		s.mu.RLock()
		gen, end, mendable := s.gen, s.data.base(s.last.end-1)+s.data.size, s.cfg.Repairs && i <= s.commit
		s.mu.RUnlock()
		at, _, failed := s.examine(s.soundBefore(i), i, 1<<62)
		s.careMu.Unlock()
		switch {
		case errors.Is(failed, errNoEnd): // see looseEnd
			s.markHole(hole{lo: at.next, hi: i + 1, pos: at.pos, end: end}, gen, failed)
		case failed != nil:
			return m, errors.Join(err, failed)
		}
		s.mu.RLock()
		h, damaged := s.holeAt(i)
		s.mu.RUnlock()
		if damaged { // the entry itself is damaged too; others may give it
			if h.hi > i+1 {
				h.end = end
			}
			if h.end%s.data.size == 0 && !mendable {
				return m, err // the next start makes it a lost tail
			}
			term, err := s.Term(i)
			return mark{index: i, term: term, pos: h.pos, end: h.end}, err
		}
	}
}

// prove reads the entry that should be at m.
func (s *Store) prove(m mark) error {
	s.mu.RLock()
	_, r, cached := s.cache.locate(m.index)
	none := m.index == s.first-1
	s.mu.RUnlock()
	if none || cached && r.pos == m.pos {
		return nil
	}
	size := int32(m.end - m.pos)
	_, err := s.readEntries([]entry.Record{{Pos: m.pos, Size: size, Index: m.index, Term: m.term}}, int(size))
	return err
}

// mark gives the place of entry i, or of the one before the first.
func (s *Store) mark(i raft.Index) (mark, error) {
	for {
		s.mu.RLock()
		if i == s.first-1 {
			m := mark{index: i, term: s.prevTerm, pos: s.firstPos, end: s.firstPos}
			s.mu.RUnlock()
			return m, nil
		}
		err := s.covers(i)
		_, r, ok := s.cache.locate(i)
		gen := s.gen
		s.mu.RUnlock()
		if err != nil {
			return mark{}, err
		}
		term, err := s.Term(i)
		if err == nil && ok {
			return mark{index: i, term: term, pos: r.pos, end: r.pos + int64(r.size)}, nil
		}
		var recs []entry.Record
		if err == nil {
			recs, err = s.records(i, 1)
		}
		switch {
		case s.movedSince(gen):
		case err != nil:
			return mark{}, err
		default:
			return mark{index: i, term: term, pos: recs[0].Pos, end: recs[0].Pos + int64(recs[0].Size)}, nil
		}
	}
}
