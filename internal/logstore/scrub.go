package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// cursor is a place in the log: entry next is expected at pos, behind one of term.
type cursor struct {
	next raft.Index
	pos  int64
	term raft.Term
}

// scrub is a pass over the whole log that looks for damage.
type scrub struct {
	running bool
	at      cursor
	begin   int64     // position where the pass began
	done    int64     // bytes in this pass
	last    time.Time // when the last pass ended; zero = never
}

// ScrubState tells how far the search for damage has come.
type ScrubState struct {
	Running     bool
	Done, Total int64     // bytes, of the pass that runs
	Last        time.Time // end of the last full pass; zero = there was none
}

// Scrubbing gives the progress of Scrub.
func (s *Store) Scrubbing() ScrubState {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := &s.scrub
	st := ScrubState{Running: k.running, Last: k.last}
	if k.running {
		st.Done, st.Total = k.done, max(s.last.end-k.begin, k.done)
	}
	return st
}

// Scrub reads the next stretch of the log, of about n bytes, and checks everything in it: entries, blank records, index records. What the other
// records tell is put right at once, what only another member knows is marked and waits for Repair. It gives how many bytes it has read;
// done tells that a pass is complete, and the next call begins another one. Entries that are not committed and synced are left out.
func (s *Store) Scrub(n int64) (read int64, done bool, err error) {
	s.careMu.Lock()
	defer s.careMu.Unlock()
	if e := s.failure.Load(); e != nil {
		return 0, false, *e
	}
	s.mu.Lock()
	k := &s.scrub
	if !k.running || k.at.next < s.first || k.at.next > s.last.index+1 {
		at := s.beginning()
		if !k.running {
			k.begin, k.done = at.pos, 0
		}
		k.running, k.at = true, at
	}
	at := k.at
	to := min(s.commit, s.durable.index)
	s.mu.Unlock()
	at, read, err = s.examine(at, to, n)
	if err != nil {
		return read, false, err
	}
	s.mu.Lock()
	k.at = at
	k.done += read
	done = at.next > to
	if done {
		k.running, k.last = false, s.cfg.Now()
		s.stats.ScrubPasses++
	}
	s.stats.Scrubbed += read
	last := k.last
	s.mu.Unlock()
	if done {
		err = s.fail(s.side.note(func(m *meta) { m.scrubbed = last.Unix() }))
	}
	return read, done, err
}

// beginning is the cursor at the first entry. The caller holds mu.
func (s *Store) beginning() cursor {
	return cursor{next: s.first, pos: s.firstPos, term: max(s.prevTerm, 0)}
}

// suspect looks closer at entry i, which could not be read. It tells whether reading again may tell something else.
func (s *Store) suspect(err error) bool {
	i := damagedEntry(err)
	if i < 0 || errors.Is(err, ErrDamaged) {
		return false
	}
	s.careMu.Lock()
	defer s.careMu.Unlock()
	s.mu.RLock()
	to := min(i, max(s.commit, s.durable.index))
	_, known := s.holeAt(i)
	s.mu.RUnlock()
	switch {
	case known:
		return true
	case to < i: // what is not even synced may be replaced at any moment; and nobody could give it
		return false
	}
	before := s.Stats()
	if _, _, err := s.examine(s.soundBefore(i), to, 1<<62); err != nil {
		s.log.Warn("damage cannot be looked at", "entry", i, "error", err)
		return false
	}
	after := s.Stats()
	return after.Damages != before.Damages || after.Mended != before.Mended
}

// damagedEntry gives the entry that err says is damaged, or -1.
func damagedEntry(err error) raft.Index {
	if de := (*DamageError)(nil); errors.As(err, &de) {
		return de.Index
	}
	return -1
}

// soundBefore gives a place to begin from, before entry i: behind an entry that is whole.
func (s *Store) soundBefore(i raft.Index) cursor {
	src, done := s.borrow()
	defer done()
	d := s.finder(&src)
	s.mu.RLock()
	begin := s.beginning()
	s.mu.RUnlock()
	for step := raft.Index(1); i-step >= begin.next; step *= 2 {
		k := i - step
		if recs := s.rawRecords(k, 1); len(recs) == 1 && recs[0].Index == k && src.holds(recs[0].Pos) && d.whole(recs[0].Pos, k, 0) {
			return cursor{next: k + 1, pos: d.sc.pos, term: d.sc.hdr.Term}
		}
	}
	return begin
}

// borrow gives the data files as they are now, to be read until done is called.
func (s *Store) borrow() (src source, done func()) {
	s.mu.RLock()
	list := slices.Clone(s.data.list)
	for _, f := range list {
		f.refs.Add(1)
	}
	s.mu.RUnlock()
	src.size = s.data.size
	for _, f := range list {
		src.files = append(src.files, sourceFile{off: f.off, name: f.name, f: f.File})
	}
	return src, func() {
		for _, f := range list {
			s.done(f)
		}
	}
}

func (s *Store) finder(src *source) *finder {
	return &finder{src: src, records: s.rawRecords, checkPos: !s.side.moved(), sealed: s.needsSeal()}
}

// needsSeal is scanner.sealed for entries that are known to be there.
func (s *Store) needsSeal() raft.Index {
	if s.sealed.Load() {
		return -1
	}
	return anySeal
}

// examine checks the entries from a place on, up to entry to, which is committed or synced, or as far as about n bytes go; it gives where it stopped, and how
// many bytes it has looked at. The caller holds careMu.
func (s *Store) examine(at cursor, to raft.Index, n int64) (cursor, int64, error) {
	src, done := s.borrow()
	defer done()
	s.mu.RLock()
	gen, last := s.gen, s.last
	s.mu.RUnlock()
	d := s.finder(&src)
	fix := recordFixer{s: s, gen: gen}
	sc := scanner{src: &src, pos: at.pos, next: at.next, term: at.term, checkPos: d.checkPos, sealed: d.sealed, blanks: true}
	read := int64(0)
	for sc.next <= to && read < n {
		from := sc.pos
		if sc.step() {
			read += sc.pos - from
			if err := fix.add(sc.record()); err != nil {
				return at, read, err
			}
			continue
		}
		if err := fix.flush(); err != nil {
			return at, read, err
		}
		cause := sc.err
		found, ok, err := d.afterDamage(&sc, min(to+1, last.index))
		switch {
		case err != nil:
			return at, read, err
		case s.movedSince(gen):
			return at, read, nil // it was no damage, and the log is another one now
		case ok && found.index == sc.next:
			err = s.fillBlank(sc.pos, found.pos, cause, func(f *file, b []byte, off int64) (bool, error) { return s.rewrite(&s.data, f, b, off, gen) })
		case ok:
			s.markHole(hole{lo: sc.next, hi: found.index, pos: sc.pos, end: found.pos}, gen, cause)
		case to == last.index:
			s.markHole(hole{lo: sc.next, hi: to + 1, pos: sc.pos, end: last.end}, gen, cause)
			return cursor{next: to + 1, pos: last.end, term: last.term}, read + last.end - sc.pos, nil
		default:
			end, ok := s.confirmedEnd(&src, sc.pos, to)
			if !ok {
				return cursor{next: sc.next, pos: sc.pos, term: sc.term}, read, fmt.Errorf("%w, and nothing behind it is whole: %w", src.damage(sc.pos, sc.next, cause), errNoEnd)
			}
			s.markHole(hole{lo: sc.next, hi: to + 1, pos: sc.pos, end: end}, gen, cause)
			return cursor{next: to + 1, pos: end, term: sc.term}, read + end - sc.pos, nil
		}
		if err != nil {
			return at, read, err
		}
		read += found.pos - sc.pos
		sc.pos, sc.next, sc.term, sc.err = found.pos, found.index, max(sc.term, 0), nil
	}
	if err := fix.flush(); err != nil || fix.moved {
		return at, read, err
	}
	return cursor{next: sc.next, pos: sc.pos, term: sc.term}, read, nil
}

// errNoEnd: the log goes on behind damaged entries, and nobody here knows where. The cursor beside it is where they begin.
var errNoEnd = errors.New("the index tells nothing either")

// confirmedEnd gives where entry i+1 begins, of which, as of entry i, only the index record may be whole, from no earlier than pos on. Records have no checksum: it
// takes those of both, and that they agree.
func (s *Store) confirmedEnd(src *source, pos int64, i raft.Index) (int64, bool) {
	recs := s.rawRecords(i, 2)
	if len(recs) < 2 || recs[0].Index != i || recs[0].Pos < pos || !s.adjoin(recs[0], recs[1]) || !src.holds(recs[1].Pos) {
		return -1, false
	}
	return recs[1].Pos, true
}

// fillBlank has the blank record that belongs between pos and end, where a file ends, written once more. write tells whether the log has moved since the blank was missed, as rewrite does.
func (s *Store) fillBlank(pos, end int64, cause error, write func(f *file, b []byte, off int64) (moved bool, err error)) error {
	f := s.use(&s.data, pos)
	if f == nil {
		return nil
	}
	defer s.done(f)
	if f.readOnly {
		return nil // it stays as it is; the entries are whole
	}
	if end-pos < entry.BlankSize || end != f.off+s.data.size {
		return fmt.Errorf("%s at byte %d: %w", f.name, pos-f.off, cause)
	}
	if moved, err := write(f, blankRecord(end-pos), pos-f.off); err != nil || moved {
		return err
	}
	s.mu.Lock()
	s.stats.Mended++
	s.mu.Unlock()
	s.log.Warn("damaged blank record is whole again", "file", f.name, "offset", pos-f.off, "reason", cause)
	return nil
}

// rewrite puts b right in file f of list l, durably: a pass that is complete has found nothing, or mended it for good. It does nothing, and says so, where the log has moved since
// generation gen: what is not committed may be cut, and others may be in its place.
func (s *Store) rewrite(l *files, f *file, b []byte, off int64, gen uint64) (moved bool, err error) {
	s.ioMu.Lock()
	if moved = s.movedSince(gen); !moved {
		err = s.putRight(l, f, b, off)
	}
	s.ioMu.Unlock()
	if moved || err != nil {
		return moved, s.fail(err)
	}
	return false, s.settle(f) // for which no other sync has to wait; if f is cut or deleted meanwhile it does no harm
}

// replace is rewrite for a caller that holds ioMu: nothing moves.
func (s *Store) replace(l *files, f *file, b []byte, off int64) error {
	if err := s.putRight(l, f, b, off); err != nil {
		return s.fail(err)
	}
	return s.settle(f)
}

// settle syncs what was put right in f.
func (s *Store) settle(f *file) error {
	if err := f.Datasync(); err != nil {
		return s.fail(fmt.Errorf("sync %s: %w", f.name, err))
	}
	return nil
}

// recordFixer compares index records with the entries they belong to, a stretch at a time, and rewrites those that differ.
type recordFixer struct {
	s     *Store
	gen   uint64
	moved bool // the log has been cut meanwhile: what was compared has to be compared again
	stretch
}

func (x *recordFixer) add(r entry.Record) error {
	if !x.gather(r, x.s.index.size) {
		return nil
	}
	return x.flush()
}

func (x *recordFixer) flush() error {
	if len(x.want) == 0 {
		return nil
	}
	s := x.s
	want := x.want
	x.want = x.want[:0]
	at := int64(x.from) * entry.IndexSize
	f := s.use(&s.index, at)
	if f == nil {
		return nil // deleted meanwhile
	}
	defer s.done(f)
	x.have = append(x.have[:0], want...)
	_, err := f.ReadAt(x.have, at-f.off)
	if err == nil && bytes.Equal(x.have, want) {
		return nil
	}
	wrong := int64(0)
	for i := 0; i < len(want); i += entry.IndexSize {
		if err != nil || !bytes.Equal(x.have[i:i+entry.IndexSize], want[i:i+entry.IndexSize]) {
			wrong++
		}
	}
	moved, failed := s.rewrite(&s.index, f, want, at-f.off, x.gen)
	if x.moved = x.moved || moved; x.moved || failed != nil {
		return failed
	}
	s.mu.Lock()
	s.stats.Mended += wrong
	s.mu.Unlock()
	s.log.Warn("damaged index records are made anew from the entries", "file", f.name, "first", x.from, "records", wrong)
	return nil
}
