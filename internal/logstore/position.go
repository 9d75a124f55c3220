package logstore

import (
	"errors"
	"fmt"
	"slices"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// Whole tells whether b, which ReadAt gave from pos on, is one whole entry, as far as its checksums tell. Where it is not, EntryAt finds out why.
func (s *Store) Whole(pos int64, b []byte) bool {
	h, err := entry.Parse(b)
	switch {
	case err != nil || int(h.Size) != len(b) || h.Pos != pos && !s.side.moved():
		return false
	case s.sealed.Load() && !plantedDamageServed:
		return entry.Sealed(b) // one look at the bytes is enough for intact
	}
	return s.intact(b) == nil
}

// errAstray: index records have led to a place that the entries there contradict.
var errAstray = errors.New("index records and entries contradict each other")

// EntryAt gives the entry up to last, which is committed, that begins at byte position pos, read and checked as Read does it: what is damaged is noted, and waits for
// Repair. ErrOutOfRange says for certain that none begins there, ErrCompacted that the log begins later; every other error, that it is not known for now.
func (s *Store) EntryAt(pos int64, last raft.Index) ([]byte, error) {
	if b, err := s.ReadAt(pos, entry.HeaderSize); err == nil {
		if h, err := entry.Parse(b); err == nil && h.Index <= last { // it is enough if this is right: then nothing has to be looked for
			if at, e, err := s.placed(h.Index); err == nil && at == pos {
				return e, nil
			}
		}
	}
	e, err := s.lookFor(pos, last, false)
	if errors.Is(err, errAstray) {
		e, err = s.lookFor(pos, last, true)
	}
	return e, err
}

// lookFor is EntryAt without trust in what stands at pos. With sure it trusts no index record either, of which one may be wrong without looking so.
func (s *Store) lookFor(pos int64, last raft.Index, sure bool) ([]byte, error) {
	s.mu.RLock()
	lo, begin := s.first, s.firstPos
	err := s.soundBytes(pos, pos+1)
	s.mu.RUnlock()
	switch {
	case pos < begin:
		return nil, fmt.Errorf("%w: position %d, first is %d", ErrCompacted, pos, begin)
	case last < lo:
		return nil, fmt.Errorf("%w: position %d, nothing is committed", ErrOutOfRange, pos)
	case err != nil:
		return nil, err
	}
	for hi := last + 1; hi-lo > 1; { // entry lo begins at pos or before, entry hi behind
		k := lo + (hi-lo)/2
		at, _, err := s.Pos(k)
		if err == nil && sure {
			at, _, err = s.placed(k)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("entry %d: %w", k, err)
		case at <= pos:
			lo = k
		default:
			hi = k
		}
	}
	at, e, err := s.placed(lo)
	end := at + int64(len(e))
	switch {
	case err != nil:
		return nil, fmt.Errorf("entry %d: %w", lo, err)
	case at == pos:
		return e, nil
	case at < pos && pos < end:
		return nil, fmt.Errorf("%w: entry %d is from %d to %d, around %d", ErrOutOfRange, lo, at, end, pos)
	case at < pos && lo == last:
		return nil, fmt.Errorf("%w: position %d, committed are %d", ErrOutOfRange, pos, end)
	}
	if next, _, err := s.placed(lo + 1); at > pos || err != nil || next <= pos {
		return nil, fmt.Errorf("%w: position %d, near entry %d: %v", errAstray, pos, lo, err)
	}
	return nil, fmt.Errorf("%w: a blank record is at %d", ErrOutOfRange, pos)
}

// placed gives where entry i begins and its bytes, checked.
func (s *Store) placed(i raft.Index) (int64, []byte, error) {
	p, _, err := s.Read(i, i+1, 0)
	if err != nil {
		return -1, nil, err
	}
	at, _, err := s.Pos(i)
	if len(p) == 1 {
		return at, p[0], err
	}
	return at, slices.Concat(p...), err
}
