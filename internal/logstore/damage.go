package logstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// ErrDamaged, in a *DamageError: the entry is known to be damaged, and waits for Repair.
var ErrDamaged = errors.New("entry is damaged and waits for a copy of another member")

// hole is a stretch of entries whose bytes on disk are not to be trusted.
//
//  1. entry lo-1 is whole and ends at pos, or lo is the log's first entry; entry hi is whole and begins at end, or hi-1 is the log's last and ends there, or
//     before (see looseEnd);
//  2. all of its entries are committed, so that whoever else has them has the same;
//  3. Store.runs are right for them.
type hole struct {
	lo, hi   raft.Index // entries lo to hi-1; never empty
	pos, end int64      // their bytes, with the blank records between them
}

// Damage is a stretch of damaged entries.
type Damage struct {
	First, Last raft.Index
	Bytes       int64
}

// Damaged lists what is known to be damaged, in order.
func (s *Store) Damaged() []Damage {
	if !s.Hurt() {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []Damage
	for _, h := range s.holes {
		out = append(out, Damage{First: h.lo, Last: h.hi - 1, Bytes: h.end - h.pos})
	}
	return out
}

// Hurt tells whether any entry is known to be damaged. It costs nothing.
func (s *Store) Hurt() bool { return s.hurt.Load() }

// Hurting gives a channel that gets a value when damage is found.
func (s *Store) Hurting() <-chan struct{} { return s.hurting }

// holeAt gives the hole that holds entry i. The caller holds mu.
func (s *Store) holeAt(i raft.Index) (hole, bool) {
	for _, h := range s.holes {
		if i >= h.lo && i < h.hi {
			return h, true
		}
	}
	return hole{}, false
}

// sound gives how far of [lo, hi) can be read: up to the next damaged entry. An error says that lo is one. The caller holds mu.
func (s *Store) sound(lo, hi raft.Index) (raft.Index, error) {
	for _, h := range s.holes {
		switch {
		case lo >= h.lo && lo < h.hi:
			return lo, s.damagedAt(h)
		case h.lo > lo:
			return min(hi, h.lo), nil
		}
	}
	return hi, nil
}

// soundBytes refuses bytes [pos, end) that lie in a damaged entry. The caller holds mu.
func (s *Store) soundBytes(pos, end int64) error {
	for _, h := range s.holes {
		if pos < h.end && h.pos < end {
			return s.damagedAt(h)
		}
	}
	return nil
}

// damagedAt is the error of reading in a hole. The caller holds mu.
func (s *Store) damagedAt(h hole) error {
	e := &DamageError{File: "data", Offset: h.pos, Index: h.lo, Err: ErrDamaged}
	if f := s.data.find(h.pos); f != nil {
		e.File, e.Offset = f.name, h.pos-f.off
	}
	return e
}

// markHole notes a hole, together with those it touches. gen is that of the log in which it was found; in another one it is none.
func (s *Store) markHole(h hole, gen uint64, cause error) {
	s.mu.Lock()
	if s.gen != gen {
		s.mu.Unlock()
		return
	}
	known := false
	s.holes = slices.DeleteFunc(s.holes, func(o hole) bool {
		if o.hi < h.lo || h.hi < o.lo {
			return false
		}
		known = known || o.lo <= h.lo && h.hi <= o.hi
		if o.lo < h.lo {
			h.lo, h.pos = o.lo, o.pos
		}
		if o.hi > h.hi {
			h.hi, h.end = o.hi, o.end
		}
		return true
	})
	at, _ := slices.BinarySearchFunc(s.holes, h, func(a, b hole) int { return int(a.lo - b.lo) })
	s.holes = slices.Insert(s.holes, at, h)
	s.hurt.Store(true)
	if !known {
		s.stats.Damages++
	}
	err := s.damagedAt(h)
	s.mu.Unlock()
	if !known {
		s.announce(h, err, cause)
	}
}

// announce tells of a new hole: the log, the next start, and whoever repairs.
func (s *Store) announce(h hole, at, cause error) {
	if !s.cfg.Repairs {
		s.log.Error("entries are damaged, and nobody else has them", "first", h.lo, "last", h.hi-1, "bytes", h.end-h.pos, "at", at, "reason", cause)
		return
	}
	s.log.Warn("entries are damaged; they are fetched from another member", "first", h.lo, "last", h.hi-1, "bytes", h.end-h.pos, "at", at, "reason", cause)
	if err := s.side.note(func(m *meta) { m.hurt = true }); err != nil {
		s.log.Warn("the next start will not know of the damage", "error", s.fail(err))
	}
	select {
	case s.hurting <- struct{}{}:
	default:
	}
}

// heal ends a hole up to entry k, behind which the bytes go on at pos, and gives whether any hole is left. The caller holds mu.
func (s *Store) heal(lo, k raft.Index, pos int64) bool {
	for i := range s.holes {
		if h := &s.holes[i]; h.lo == lo {
			if h.lo, h.pos = k, pos; h.lo >= h.hi {
				s.holes = slices.Delete(s.holes, i, i+1)
			}
			break
		}
	}
	s.hurt.Store(len(s.holes) > 0)
	return len(s.holes) > 0
}

// cutHoles forgets what is damaged behind keep: it is gone, and what comes there is whole. The caller holds mu.
func (s *Store) cutHoles(keep mark) {
	s.holes = slices.DeleteFunc(s.holes, func(h hole) bool { return h.lo > keep.index })
	for i := range s.holes {
		if h := &s.holes[i]; h.hi > keep.index+1 {
			h.hi, h.end = keep.index+1, keep.end
		}
	}
	s.hurt.Store(len(s.holes) > 0)
}

// looseEnd tells that the log ends in a damaged entry of which is not known where it ends: what was behind it is cut off, and was damaged as well, or began the next
// file, and a blank record may lie between. The hole ends with a file then, which no entry does. The caller holds mu.
func (s *Store) looseEnd() bool {
	if len(s.holes) == 0 {
		return false
	}
	h := s.holes[len(s.holes)-1]
	return h.hi == s.last.index+1 && h.end == s.last.end && h.end%s.data.size == 0
}

// errLooseEnd: nothing can be appended before the last entry is repaired.
var errLooseEnd = errors.New("the last entry is damaged, and where it ends is not known before it is repaired")

// settleEnd takes over from Repair where the log ends, if that was not known, or tells that it still is not. Owner only.
func (s *Store) settleEnd() error {
	if !s.Hurt() && s.trueEnd.Load() == nil { // in this order
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looseEnd() {
		return fmt.Errorf("%w: %w", ErrDiskFull, errLooseEnd)
	}
	if k := s.trueEnd.Swap(nil); k != nil && k.index == s.last.index && s.tail.last == s.last {
		if s.durable == s.last {
			s.durable.end = k.end
		}
		s.last.end = k.end
		s.tail.reset(s.last)
	}
	return nil
}

// dropHoles forgets the holes before entry first: retention deleted them. The caller holds mu.
func (s *Store) dropHoles(first raft.Index) {
	s.holes = slices.DeleteFunc(s.holes, func(h hole) bool { return h.hi <= first })
	s.hurt.Store(len(s.holes) > 0)
}

// Repair writes whole entries over damaged ones, as another member holds them: the first of p is the first of a damaged stretch, and p ends in it or with it. Their
// bytes are durable when it returns the last of them. ErrEntry, ErrOrder and *PositionError tell that they cannot be what was there; nothing is written then.
// It runs on any goroutine but the owner's.
func (s *Store) Repair(p raft.Payload) (raft.Index, error) {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	s.ioMu.Lock() // not while the log starts anew
	defer s.ioMu.Unlock()
	if e := s.failure.Load(); e != nil {
		return -1, *e
	}
	b := slices.Concat(p...)
	h, err := entry.Parse(b)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	s.mu.RLock()
	o, ok := s.holeAt(h.Index)
	loose := ok && o.hi == s.last.index+1 && s.looseEnd()
	s.mu.RUnlock()
	if !ok || o.lo != h.Index {
		return -1, fmt.Errorf("%w: entry %d does not begin a damaged stretch", ErrOrder, h.Index)
	}
	g, err := s.graft(o, b, loose)
	if err != nil {
		return -1, err
	}
	if err := s.overwrite(g); err != nil {
		return -1, err
	}
	ends := loose && g.next == o.hi
	if ends { // what was cut off behind may still be there
		s.createMu.Lock()
		err := s.erase(&s.data, g.pos)
		s.createMu.Unlock()
		if err != nil {
			return -1, s.fail(err)
		}
	}
	s.mu.Lock()
	s.gen++ // who read meanwhile, reads again
	if ends {
		s.trueEnd.Store(&mark{index: g.next - 1, end: g.pos}) // before the log looks well; see settleEnd
	}
	left := s.heal(o.lo, g.next, g.pos)
	s.stats.Repaired += int64(g.next - o.lo)
	s.mu.Unlock()
	if !left {
		err = s.fail(s.side.note(func(m *meta) { m.hurt = false }))
	}
	s.log.Warn("damaged entries are whole again", "first", o.lo, "last", g.next-1, "bytes", g.pos-o.pos)
	return g.next - 1, err
}

// graft is what Repair writes.
type graft struct {
	data    []patch
	records []byte     // of the index
	from    raft.Index // of the first record
	next    raft.Index // the entry behind
	pos     int64      // and where it, or the blank record before it, begins
}

// patch is a stretch of one data file.
type patch struct {
	pos int64
	b   []byte
}

// put adds bytes at pos.
func (g *graft) put(pos int64, b []byte, size int64) {
	if n := len(g.data); n > 0 && g.data[n-1].pos+int64(len(g.data[n-1].b)) == pos && pos%size != 0 {
		g.data[n-1].b = append(g.data[n-1].b, b...)
		return
	}
	g.data = append(g.data, patch{pos: pos, b: bytes.Clone(b)})
}

// graft lays the entries b out over hole o and checks that they are what was there. With loose the log ends with o, and nobody here knows where exactly.
func (s *Store) graft(o hole, b []byte, loose bool) (*graft, error) {
	g := &graft{from: o.lo, next: o.lo, pos: o.pos}
	size := s.data.size
	for len(b) > 0 {
		h, err := entry.Parse(b)
		if err == nil && int(h.Size) > len(b) {
			err = entry.ErrShort
		}
		if err == nil {
			err = s.intact(b[:h.Size])
		}
		if err != nil {
			return nil, fmt.Errorf("%w: entry %d: %w", ErrEntry, g.next, err)
		}
		term, err := s.Term(g.next)
		if err != nil {
			return nil, err
		}
		if h.Index != g.next || h.Term != term || g.next >= o.hi {
			return nil, fmt.Errorf("%w: entry %d of term %d, damaged are %d to %d, here of term %d", ErrOrder, h.Index, h.Term, g.next, o.hi-1, term)
		}
		pos, blank := entry.Place(g.pos, int(h.Size), size)
		if blank > 0 {
			g.put(g.pos, blankRecord(blank), size)
		}
		if h.Pos != pos && !s.side.moved() {
			return nil, &PositionError{Index: h.Index, Want: pos, Got: h.Pos}
		}
		g.put(pos, b[:h.Size], size)
		n := len(g.records)
		g.records = append(g.records, make([]byte, entry.IndexSize)...)
		entry.PutRecord(g.records[n:], entry.Record{Magic: h.Magic, Pos: pos, Size: h.Size, Index: h.Index, Term: h.Term})
		g.next, g.pos = g.next+1, pos+int64(h.Size)
		if g.pos > o.end {
			return nil, fmt.Errorf("%w: entries up to %d end at %d, entry %d begins at %d", ErrOrder, g.next-1, g.pos, o.hi, o.end)
		}
		b = b[h.Size:]
	}
	if g.next < o.hi || g.pos == o.end || loose {
		return g, nil
	}
	// A blank record may follow the last of them.
	if o.end%size != 0 || o.end-g.pos < entry.BlankSize || s.data.base(g.pos) != o.end-size {
		return nil, fmt.Errorf("%w: entries up to %d end at %d, entry %d begins at %d", ErrOrder, g.next-1, g.pos, o.hi, o.end)
	}
	g.put(g.pos, blankRecord(o.end-g.pos), size)
	g.pos = o.end
	return g, nil
}

// blankRecord gives what fills n bytes: a blank record, or zeros where none fits.
func blankRecord(n int64) []byte {
	b := make([]byte, n)
	if n < entry.BlankSize {
		return b
	}
	magic := entry.MagicBlank
	binary.BigEndian.PutUint32(b, uint32(magic))
	binary.BigEndian.PutUint32(b[4:], uint32(n))
	return b
}

// overwrite writes a graft, durably, and reads it back: what a disk does not give even then stays damaged. The caller holds ioMu.
func (s *Store) overwrite(g *graft) error {
	write := func(l *files, at int64, b []byte) error {
		f := s.use(l, at)
		if f == nil {
			return fmt.Errorf("%w: no file holds position %d", ErrOutOfRange, at)
		}
		defer s.done(f)
		if f.readOnly {
			return fmt.Errorf("%s lies in a read-only path and cannot be repaired", f.name)
		}
		if err := s.replace(l, f, b, at-f.off); err != nil {
			return err
		}
		back := make([]byte, len(b))
		if _, err := f.ReadAt(back, at-f.off); err != nil || !bytes.Equal(back, b) {
			return fmt.Errorf("%s at byte %d does not keep what was written over damage: %w", f.name, at-f.off, cmp.Or(err, errOther))
		}
		return nil
	}
	for _, p := range g.data {
		if err := write(&s.data, p.pos, p.b); err != nil {
			return err
		}
	}
	for at, b := int64(g.from)*entry.IndexSize, g.records; len(b) > 0; {
		n := min(int64(len(b)), s.index.base(at)+s.index.size-at)
		if err := write(&s.index, at, b[:n]); err != nil {
			return err
		}
		at, b = at+n, b[n:]
	}
	return nil
}

// errOther: of what is read.
var errOther = errors.New("it reads something else")

// finder looks for where a log goes on behind a damaged place.
type finder struct {
	src      *source
	records  func(lo raft.Index, n int) []entry.Record
	checkPos bool
	sealed   raft.Index // as scanner.sealed
	sc       scanner

	before   entry.Header // the last whole entry before the damaged place; Size 0 = not known
	beforeAt int64        // where it lies
}

// misplaced tells whether the entry at pos, with header h, lies nearer to the one before the damage, or farther off, than its leader has written it: a block that a crash has put in a
// wrong place is whole, too. Where headers hold the positions of this log that is known without the entry before. Where they are those of a leader whose files begin with
// other entries, both have to be in one file. A wrong yes costs that what follows is fetched anew; it is one where the next leader's log lies differently in its files.
func (d *finder) misplaced(h *entry.Header, pos int64) bool {
	if d.checkPos || d.before.Size == 0 {
		return false
	}
	shift := d.before.Pos - d.beforeAt
	return h.Pos-pos != shift && (shift == 0 || d.src.at(d.beforeAt) == d.src.at(pos))
}

// whole tells whether the entry at pos is entry i, whole, of term at least term; sc then stands behind it.
func (d *finder) whole(pos int64, i raft.Index, term raft.Term) bool {
	d.sc = scanner{src: d.src, pos: pos, next: i, term: term, checkPos: d.checkPos, sealed: d.sealed, ahead: 16 << 10, buf: d.sc.buf, bufPos: d.sc.bufPos}
	return d.sc.step() && d.sc.at == pos
}

// afterDamage is after, of where sc has stopped.
func (d *finder) afterDamage(sc *scanner, limit raft.Index) (mark, bool, error) {
	d.before, d.beforeAt = sc.hdr, sc.at
	return d.after(sc.pos, sc.next, sc.term, limit)
}

// after gives the first whole entry that is not before next and lies behind pos, where entry next should be and is not; no later one than
// limit, and of term at least term. The index records tell where to look; where they tell nothing the bytes are searched for what has checksums.
func (d *finder) after(pos int64, next raft.Index, term raft.Term, limit raft.Index) (mark, bool, error) {
	for i := next; i <= limit; {
		recs := d.records(i, int(min(limit-i+1, 1024)))
		for _, r := range recs {
			if r.Index == i && r.Pos >= pos && (i > next || r.Pos > pos) && d.whole(r.Pos, i, term) {
				return mark{index: i, term: d.sc.hdr.Term, pos: r.Pos, end: d.sc.pos}, true, nil
			}
			i++
		}
		if len(recs) == 0 {
			break
		}
	}
	return d.search(pos, next, term, limit)
}

// A disk reads whole sectors or nothing of them. A search passes over those that it does not read, but not over a disk that reads none.
const (
	sector         = 512
	unreadableMost = 4096
)

// search is after without an index.
func (d *finder) search(pos int64, next raft.Index, term raft.Term, limit raft.Index) (mark, bool, error) {
	if zeros, err := d.src.zerosFrom(pos); err == nil && zeros {
		return mark{}, false, nil
	}
	sc := scanner{src: d.src}
	unreadable := 0
	step := int64(4 << 10) // until it is asked again whether anything follows: a file is zeros from the end of the log on
	ask := pos + step
	for pos++; pos+entry.HeaderSize <= d.src.limit(); pos++ {
		if pos >= ask {
			if zeros, err := d.src.zerosFrom(pos); err == nil && zeros {
				return mark{}, false, nil
			}
			step *= 2
			ask = pos + step
		}
		left := d.src.at(pos).off + d.src.size - pos
		if left < entry.HeaderSize {
			pos += left - 1
			continue
		}
		head, err := sc.peek(pos, entry.HeaderSize)
		if err != nil {
			if unreadable++; unreadable > unreadableMost {
				return mark{}, false, err
			}
			pos += sector - pos%sector - 1
			continue
		}
		if head[0] != 0 || head[1] != 0 || head[2] != 0 || head[3] == 0 || head[3] > byte(entry.MagicConfig) {
			continue
		}
		h, err := entry.Parse(head)
		if err != nil || h.ChainCRC == 0 || int64(h.Size) > left || h.Index < next || h.Index > limit {
			continue
		}
		if !d.misplaced(&h, pos) && d.whole(pos, h.Index, term) {
			return mark{index: h.Index, term: h.Term, pos: pos, end: d.sc.pos}, true, nil
		}
	}
	return mark{}, false, nil
}

// rawRecords gives up to n index records from entry lo on, as they are, whatever they say; fewer where the files end or cannot be read.
func (s *Store) rawRecords(lo raft.Index, n int) []entry.Record {
	var out []entry.Record
	for n > 0 {
		at := int64(lo) * entry.IndexSize
		k := int(min(int64(n), (s.index.base(at)+s.index.size-at)/entry.IndexSize))
		b := make([]byte, k*entry.IndexSize)
		if _, err := s.readFile(&s.index, b, at); err != nil {
			return out
		}
		for i := range k {
			out = append(out, entry.ParseRecord(b[i*entry.IndexSize:]))
		}
		lo, n = lo+raft.Index(k), n-k
	}
	return out
}
