package logstore

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// small is a store whose files roll after a few entries.
func small(fs vfs.FS) Config {
	return Config{FS: fs, Dir: "base/dledger-n0", DataFileSize: 256, IndexFileSize: 128, Inline: true}
}

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// body gives the body of entry i written in term.
func body(i raft.Index, term raft.Term) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%d/%d ", term, i), 1+int(i)%4)
}

// fill appends entries up to last in term and flushes them.
func fill(t testing.TB, s *Store, last raft.Index, term raft.Term) {
	t.Helper()
	first := s.State().Last + 1
	var bodies [][]byte
	for i := first; i <= last; i++ {
		bodies = append(bodies, body(i, term))
	}
	must(t, s.Append(first, term, entry.MagicNormal, bodies, nil))
	must(t, s.Flush())
}

// check compares every entry with what fill wrote; terms gives the term of each from the first on.
func check(t testing.TB, s *Store, first, last raft.Index, term func(raft.Index) raft.Term) {
	t.Helper()
	st := s.State()
	if st.First != first || st.Last != last {
		t.Fatalf("log is %d to %d, want %d to %d", st.First, st.Last, first, last)
	}
	for i := first; i <= last; i++ {
		h, b, err := s.Entry(i)
		if err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		if h.Index != i || h.Term != term(i) || !bytes.Equal(b, body(i, term(i))) {
			t.Fatalf("entry %d is %+v %q, want term %d %q", i, h, b, term(i), body(i, term(i)))
		}
		got, err := s.Term(i)
		if err != nil || got != term(i) {
			t.Fatalf("term of %d: %d, %v, want %d", i, got, err, term(i))
		}
	}
}

func always(term raft.Term) func(raft.Index) raft.Term {
	return func(raft.Index) raft.Term { return term }
}

func TestEntriesAreThereAfterCloseAndOpen(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 20, 1)
	check(t, s, 0, 20, always(1))
	must(t, s.SaveTerm(3, "n1"))
	must(t, s.SetCommit(17))
	must(t, s.Close())
	s = mustOpen(t, small(m))
	check(t, s, 0, 20, always(1))
	if st := s.State(); st.Term != 3 || st.Vote != "n1" || st.Commit != 17 || st.Durable != 20 || st.TailLost != -1 {
		t.Fatalf("state after open: %+v", st)
	}
	fill(t, s, 40, 3)
	must(t, s.Truncate(30))
	fill(t, s, 35, 4)
	terms := func(i raft.Index) raft.Term {
		switch {
		case i <= 20:
			return 1
		case i <= 30:
			return 3
		}
		return 4
	}
	check(t, s, 0, 35, terms)
	m.Crash(vfs.KeepAll)
	s = mustOpen(t, small(m))
	check(t, s, 0, 35, terms)
	must(t, s.Close())
}

// clock is a time that stands still until it is moved.
type clock struct{ t atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.t.Store(time.Date(2030, 1, 1, 4, 0, 0, 0, time.Local).UnixNano())
	return c
}

func (c *clock) now() time.Time    { return time.Unix(0, c.t.Load()) }
func (c *clock) add(seconds int64) { c.t.Add(seconds * int64(time.Second)) }
