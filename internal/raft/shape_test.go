package raft

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestShapeAgreesWithAPlainLog compares shape with a slice of terms under random extend, cut, reset and expire.
func TestShapeAgreesWithAPlainLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shape{last: -1, prevTerm: -1}
		first, prev, terms, now := Index(0), Term(-1), []Term(nil), Term(0)
		last := func() Index { return first + Index(len(terms)) - 1 }
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				now++
				fallthrough
			case 1, 2:
				n := rapid.IntRange(1, 4).Draw(t, "n")
				for range n {
					terms = append(terms, now)
				}
				s.extend(last(), now)
			case 3:
				k := rapid.IntRange(0, len(terms)).Draw(t, "keep")
				terms = terms[:k]
				s.cut(last())
			case 4:
				first, prev, terms = last()+Index(rapid.IntRange(1, 3).Draw(t, "gap")), now, nil
				s.reset(first-1, prev)
			case 5:
				k := rapid.IntRange(0, len(terms)+1).Draw(t, "expire")
				to := first + Index(k)
				if k > 0 && k < len(terms) {
					prev = terms[k-1]
					terms, first = terms[k:], to
				}
				s.expire(to)
			}

			term := func(i Index) (Term, bool) {
				switch {
				case i == first-1:
					return prev, true
				case i < first || i > last():
					return -1, false
				}
				return terms[i-first], true
			}
			if s.first != first || s.last != last() {
				t.Fatalf("shape has %d..%d, want %d..%d", s.first, s.last, first, last())
			}
			if want, _ := term(last()); s.lastTerm() != want {
				t.Fatalf("last term is %d, want %d", s.lastTerm(), want)
			}
			for i := first - 2; i <= last()+1; i++ {
				got, ok := s.term(i)
				want, known := term(i)
				if got != want || ok != known {
					t.Fatalf("term of %d is %d, %t; want %d, %t", i, got, ok, want, known)
				}
			}
			for limit := Term(-1); limit <= now; limit++ {
				want := last()
				for want >= first && terms[want-first] > limit {
					want--
				}
				if got := s.lastOf(limit, last()); got != want {
					t.Fatalf("last entry of a term up to %d is %d, want %d", limit, got, want)
				}
			}
			if len(terms) == 0 {
				continue
			}
			i := first + Index(rapid.IntRange(0, len(terms)-1).Draw(t, "i"))
			want := i
			for want > first && terms[want-1-first] == terms[i-first] {
				want--
			}
			if got := s.runFirst(i); got != want {
				t.Fatalf("the run of %d begins at %d, want %d", i, got, want)
			}
			var runs []Run
			for k := i; k <= last(); k++ {
				if k == i || terms[k-first] != terms[k-1-first] {
					runs = append(runs, Run{terms[k-first], k})
				}
			}
			if got := s.slice(i, last()); !slices.Equal(got, runs) {
				t.Fatalf("runs of %d..%d are %v, want %v", i, last(), got, runs)
			}
		}
	})
}
