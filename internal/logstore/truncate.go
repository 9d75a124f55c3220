package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Truncate makes last the last entry; first-1 empties the log. The bytes of the others become zeros and do not come back, whatever
// happens: first the intent is saved, which alone decides whether the entries are there after a crash, then they are erased. The
// next entry goes to the end of the kept one, also where that lies in an earlier file.
// ErrCommitted: last is below the commit index. Readers of removed entries get ErrOutOfRange.
func (s *Store) Truncate(last raft.Index) error {
	if err := s.Flush(); err != nil {
		return err
	}
	s.mu.RLock()
	first, now, commit := s.first, s.last, s.commit
	s.mu.RUnlock()
	switch {
	case last >= now.index:
		return nil
	case last < first-1:
		return fmt.Errorf("%w: truncate to %d, first is %d", ErrCompacted, last, first)
	case last < commit:
		return fmt.Errorf("%w: truncate to %d, commit is %d", ErrCommitted, last, commit)
	}
	keep, err := s.lockedMark(last)
	if err != nil {
		return err
	}
	defer s.ioMu.Unlock()
	if err := s.erasable(keep.end); err != nil {
		return err
	}
	s.mu.Lock()
	if s.durable.index > last {
		s.durable = keep
	}
	s.mu.Unlock()
	return s.cut(keep)
}

// lockedMark is provenMark, of what is still so under ioMu, which it leaves locked if there is no error: a repair may have come between.
func (s *Store) lockedMark(i raft.Index) (mark, error) {
	for {
		s.mu.RLock()
		gen := s.gen
		s.mu.RUnlock()
		keep, err := s.provenMark(i)
		if err != nil {
			return keep, err
		}
		s.ioMu.Lock()
		if !s.movedSince(gen) {
			return keep, nil
		}
		s.ioMu.Unlock()
	}
}

// cut removes what lies behind keep, from an intent on. The caller holds ioMu.
func (s *Store) cut(keep mark) error {
	err := s.side.save(func(m *meta) {
		m.cut, m.keep, m.flushed, m.clean = true, keep, keep, false
		for _, k := range []*mark{&m.durable, &m.checkpoint} {
			if k.index > keep.index {
				*k = keep
			}
		}
	})
	if err != nil {
		return s.fail(err)
	}
	s.mu.Lock()
	s.gen++
	s.last = keep
	s.runs = cutRuns(s.runs, keep.index)
	s.cache.truncate(keep.index)
	s.cutHoles(keep)
	s.mu.Unlock()
	s.tail.reset(keep)
	return s.finishCut(keep)
}

// finishCut erases what an intent says is gone, and ends the intent. Doing it twice does no harm.
func (s *Store) finishCut(keep mark) error {
	s.createMu.Lock()
	defer s.createMu.Unlock()
	if e := s.failure.Load(); e != nil { // a file that was being prepared may be there and in no list; the next start finds it, and ends the intent
		return *e
	}
	err := errors.Join(s.erase(&s.data, keep.end), s.erase(&s.index, int64(keep.index+1)*entry.IndexSize))
	if err == nil {
		err = s.side.save(func(m *meta) { m.cut, m.keep = false, mark{} })
	}
	return s.fail(err)
}

// erase zeros a list from pos on, durably, and removes the files behind. The caller holds createMu.
func (s *Store) erase(l *files, pos int64) error {
	next := l.base(pos)
	if pos > next {
		next += l.size
	}
	dirs, err := s.dropFrom(l, next)
	if err != nil {
		return err
	}
	if err := s.syncDirs(dirs); err != nil {
		return err
	}
	s.mu.RLock()
	f := l.find(pos)
	s.mu.RUnlock()
	if f == nil {
		return nil
	}
	f.ahead.rewind(pos - f.off)
	if err := f.makeReadable(pos-f.off, pos-f.off, l.size); err != nil {
		return err
	}
	if err := f.Zero(pos-f.off, l.size-(pos-f.off)); err != nil {
		return fmt.Errorf("erase %s: %w", f.name, err)
	}
	if err := f.Datasync(); err != nil {
		return fmt.Errorf("sync %s: %w", f.name, err)
	}
	return nil
}

// cutRuns gives the runs of a log that ends at last.
func cutRuns(runs []raft.Run, last raft.Index) []raft.Run {
	n := sort.Search(len(runs), func(n int) bool { return runs[n].First > last })
	return runs[:n:n]
}

// Reset drops the whole log. The next entry is next, at byte position pos, behind an entry of prevTerm; entries below count as committed.
// ErrCommitted: a committed entry would be neither kept nor below next.
// What lies before pos in its file becomes a blank record, as after a snapshot of the original. Where there is no space for its file that is left to the next append.
func (s *Store) Reset(next raft.Index, pos int64, prevTerm raft.Term) error {
	if err := s.usable(); err != nil {
		return err
	}
	if next < 0 || next > maxPos/entry.IndexSize || !s.CanBegin(pos) {
		return fmt.Errorf("reset to entry %d at position %d: no entry can begin there", next, pos)
	}
	s.mu.RLock()
	commit := s.commit
	s.mu.RUnlock()
	if next-1 < commit {
		return fmt.Errorf("%w: reset to %d, commit is %d", ErrCommitted, next, commit)
	}
	s.expireMu.Lock()
	defer s.expireMu.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if err := s.erasable(pos); err != nil {
		return err
	}
	keep := mark{index: next - 1, term: prevTerm, pos: pos, end: pos}
	err := s.side.save(func(m *meta) {
		m.reset, m.keep, m.clean, m.hurt = true, keep, false, false
		m.first, m.firstPos, m.prevTerm = next, pos, prevTerm
		m.commit, m.flushed, m.durable, m.checkpoint = next-1, keep, keep, keep
	})
	if err != nil {
		return s.fail(err)
	}
	s.begin(keep)
	s.mu.Lock()
	s.commit = keep.index
	s.mu.Unlock()
	s.unbegun = nil
	if err := s.finishReset(keep); !errors.Is(err, ErrDiskFull) || errors.Is(err, ErrFailed) {
		return err
	}
	s.unbegun = &keep // and that needs space only once there is an entry
	return nil
}

// beginLate makes the files of a log that began while the disk was full. Owner only.
func (s *Store) beginLate() error {
	if s.unbegun == nil {
		return nil
	}
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	err := s.finishReset(*s.unbegun)
	if err == nil {
		s.unbegun = nil
	}
	return err
}

// begin makes the log an empty one behind keep, in memory.
func (s *Store) begin(keep mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen++
	s.first, s.firstPos, s.prevTerm = keep.index+1, keep.end, keep.term
	s.last, s.durable = keep, keep
	s.runs = nil
	s.unsealed = false
	s.holes, s.scrub.running = nil, false
	s.trueEnd.Store(nil)
	s.hurt.Store(false)
	s.cache.clear()
	s.tail.reset(keep)
}

// CanBegin tells whether a log may begin at byte position pos: Reset takes no other.
func (s *Store) CanBegin(pos int64) bool {
	return pos >= 0 && pos < maxPos && !blankAt(pos, s.data.size)
}

// maxPos keeps positions from overflowing, whatever another member says.
const maxPos = 1 << 62

// blankAt tells whether pos leaves too little room before it, or behind it, in its file for what has to stand there.
func blankAt(pos, size int64) bool {
	in := pos % size
	return in > 0 && in <= entry.BlankSize || size-in < entry.BlankSize
}

// finishReset removes every file, makes those that the next entry goes to, and ends the intent. Doing it twice does no harm.
func (s *Store) finishReset(keep mark) error {
	s.createMu.Lock()
	defer s.createMu.Unlock()
	if e := s.failure.Load(); e != nil { // see finishCut
		return *e
	}
	data, index := s.restart(&s.data, keep.end), s.restart(&s.index, int64(keep.index+1)*entry.IndexSize)
	err := errors.Join(data, index)
	if may := func(err error) bool { return err == nil || errors.Is(err, ErrDiskFull) }; err != nil && may(data) && may(index) {
		s.refused.Store(true)
		return err
	}
	if err == nil {
		err = s.side.save(func(m *meta) { m.reset, m.keep = false, mark{} })
	}
	return s.fail(err)
}

// restart empties a list and makes its first live byte pos, behind a leading blank if pos is not the first byte of its file. The caller holds createMu.
func (s *Store) restart(l *files, pos int64) error {
	dirs, err := s.dropFrom(l, 0)
	if err != nil {
		return err
	}
	if err := s.syncDirs(dirs); err != nil {
		return err
	}
	in := pos - l.base(pos)
	if in == 0 {
		return nil // the first append makes the file
	}
	f, err := s.createLocked(l, l.base(pos))
	if err != nil {
		return err
	}
	b := make([]byte, entry.BlankSize)
	magic := entry.MagicBlank
	binary.BigEndian.PutUint32(b, uint32(magic))
	binary.BigEndian.PutUint32(b[4:], uint32(in))
	if _, err := f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	if err := f.Datasync(); err != nil {
		return fmt.Errorf("sync %s: %w", f.name, err)
	}
	return nil
}
