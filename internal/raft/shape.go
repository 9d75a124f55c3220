package raft

import "sort"

// shape is what the core knows of the log: which indexes exist and in which term each was written. It holds no entries.
//
//  1. entries first..last exist; first = last+1 means none do;
//  2. runs cover first..last (see Run) and are empty exactly when no entry exists;
//  3. prevTerm is the term of entry first-1: -1 for the very beginning, UnknownTerm, or AtMost, when it was deleted and not noted.
type shape struct {
	first, last Index
	prevTerm    Term
	runs        []Run
}

// lastTerm is the term of the last entry, or of the one before the log when it is empty. Where that is AtMost(t), it is t: who asks for votes with it claims less
// than entry first of term t, which has been here, and whatever was committed from first on is of term t or later.
func (s *shape) lastTerm() Term {
	if n := len(s.runs); n > 0 {
		return s.runs[n-1].Term
	}
	return s.prevTerm.Ceiling()
}

// run gives the position in runs of the run that holds i; i must exist.
func (s *shape) run(i Index) int {
	n := len(s.runs)
	if s.runs[n-1].First <= i { // nearly every question is about the newest run
		return n - 1
	}
	return sort.Search(n, func(k int) bool { return s.runs[k].First > i }) - 1
}

// term gives the term of entry i; ok is false where i lies outside first-1..last or the term of first-1 is not known.
func (s *shape) term(i Index) (t Term, ok bool) {
	switch {
	case i == s.first-1:
		if s.prevTerm <= UnknownTerm {
			return UnknownTerm, false
		}
		return s.prevTerm, true
	case i < s.first || i > s.last:
		return -1, false
	}
	return s.runs[s.run(i)].Term, true
}

// matches tells whether the log holds an entry i of term t (or begins right behind it).
func (s *shape) matches(i Index, t Term) bool {
	have, ok := s.term(i)
	return ok && have == t
}

// runFirst is the first index of the run that holds i.
func (s *shape) runFirst(i Index) Index { return max(s.first, s.runs[s.run(i)].First) }

// lastOf gives the last index at or below i whose term is at most t; first-1 if there is none.
func (s *shape) lastOf(t Term, i Index) Index {
	k := sort.Search(len(s.runs), func(k int) bool { return s.runs[k].Term > t })
	if k < len(s.runs) {
		i = min(i, s.runs[k].First-1)
	}
	return min(i, s.last)
}

// extend adds entries up to hi of term t behind the last.
func (s *shape) extend(hi Index, t Term) {
	if n := len(s.runs); n == 0 || s.runs[n-1].Term != t {
		s.runs = append(s.runs, Run{Term: t, First: s.last + 1})
	}
	s.last = hi
}

// cut makes i the last entry.
func (s *shape) cut(i Index) {
	for n := len(s.runs); n > 0 && s.runs[n-1].First > i; n-- {
		s.runs = s.runs[:n-1]
	}
	s.last = i
}

// reset empties the log so that the next entry is i+1, behind entry i of term t.
func (s *shape) reset(i Index, t Term) {
	*s = shape{first: i + 1, last: i, prevTerm: t, runs: s.runs[:0]}
}

// expire forgets the entries before first (they were deleted from the disk).
func (s *shape) expire(first Index) {
	if first <= s.first || first > s.last {
		return
	}
	s.prevTerm, _ = s.term(first - 1)
	k := s.run(first)
	s.runs = append(s.runs[:0], s.runs[k:]...)
	s.runs[0].First = first
	s.first = first
}

// slice gives the runs of lo..hi, both of which exist, in new memory.
func (s *shape) slice(lo, hi Index) []Run {
	k := s.run(lo)
	out := []Run{{Term: s.runs[k].Term, First: lo}}
	for k++; k < len(s.runs) && s.runs[k].First <= hi; k++ {
		out = append(out, s.runs[k])
	}
	return out
}
