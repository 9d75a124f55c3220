package logstore

import (
	"bytes"
	"errors"
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

// checkpoint syncs everything that is flushed, and notes that.
func checkpoint(s *Store) error {
	if _, err := s.Sync(); err != nil {
		return err
	}
	return s.Checkpoint()
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

// What comes from memory and what comes from the files is the same, in any portion.
func TestReadsAreTheSameFromMemoryAndDisk(t *testing.T) {
	m := vfs.NewMem()
	cfg := small(m)
	s := mustOpen(t, cfg)
	for last := raft.Index(0); last < 60; last += 3 {
		fill(t, s, last, 1)
	}
	must(t, checkpoint(s))
	cfg.FS, cfg.CacheBytes = m.Fork(nil), 1
	disk := mustOpen(t, cfg)
	end := s.State().Last + 1
	for lo := raft.Index(0); lo < end; lo++ {
		for _, hi := range []raft.Index{lo + 1, lo + 2, lo + 7, end, end + 9} {
			for _, size := range []int{0, 60, 130, 500, 1 << 20} {
				a, lastA, err := s.Read(lo, hi, size)
				must(t, err)
				c, lastC, ok := s.ReadCached(lo, hi, size)
				if !ok || lastC != lastA || c.Size() != a.Size() {
					t.Fatalf("[%d, %d) in %d bytes: cached read ends at %d, %v, want %d", lo, hi, size, lastC, ok, lastA)
				}
				b, lastB, err := disk.Read(lo, hi, size)
				must(t, err)
				if lastB > lastA || lastB < lo { // a disk read may stop at the end of an index file
					t.Fatalf("[%d, %d) in %d bytes: disk read ends at %d, cached at %d", lo, hi, size, lastB, lastA)
				}
				if got, want := bytes.Join(b, nil), bytes.Join(a, nil); !bytes.HasPrefix(want, got) {
					t.Fatalf("[%d, %d) in %d bytes differs", lo, hi, size)
				}
				if a.Size() > size && lastA != lo {
					t.Fatalf("[%d, %d): %d bytes where %d were asked for", lo, hi, a.Size(), size)
				}
			}
		}
		pos, size, err := s.Pos(lo)
		must(t, err)
		for _, cut := range []int{0, 1, 20, 48} {
			a, err := s.ReadAt(pos+int64(cut), size-cut)
			must(t, err)
			b, err := disk.ReadAt(pos+int64(cut), size-cut)
			must(t, err)
			if !bytes.Equal(a, b) || len(a) != size-cut {
				t.Fatalf("entry %d from byte %d differs", lo, cut)
			}
		}
	}
	if _, _, ok := disk.ReadCached(3, 9, 100); ok {
		t.Error("an entry of an earlier life is in memory")
	}
	st := s.State()
	all, err := s.ReadAt(0, int(st.End))
	must(t, err)
	if b, err := disk.ReadAt(0, int(st.End)); err != nil || !bytes.Equal(all, b) {
		t.Errorf("the whole log differs: %v", err)
	}
	for _, err := range []error{third(s.Read(end, end+1, 9)), second(s.ReadAt(st.End-1, 2)), second(s.Term(end)), third(s.Entry(end)), third(s.Pos(end))} {
		if !errors.Is(err, ErrOutOfRange) {
			t.Errorf("behind the end: %v", err)
		}
	}
}

// The leader's stamp sees each entry in order, with its position, before the checksums are made, and may change the body.
func TestStampChangesTheBody(t *testing.T) {
	s := mustOpen(t, small(vfs.NewMem()))
	own := [][]byte{[]byte("aaaa"), []byte("bbbb"), make([]byte, 150), []byte("cccc")}
	n := 0
	must(t, s.Append(0, 1, entry.MagicNormal, own, func(i int, index raft.Index, pos int64, b []byte) {
		if i != n || index != raft.Index(i) || !bytes.Equal(b, own[i]) {
			t.Errorf("stamp %d gets entry %d of the batch, index %d, body %q", n, i, index, b)
		}
		n++
		copy(b, fmt.Sprintf("%04d", pos))
	}))
	must(t, s.Flush())
	for i := range raft.Index(4) {
		pos, _, err := s.Pos(i)
		must(t, err)
		p, _, err := s.Read(i, i+1, 0)
		must(t, err)
		e := bytes.Join(p, nil)
		if want := fmt.Sprintf("%04d", pos); string(e[48:52]) != want || entry.Check(e) != nil {
			t.Errorf("entry %d is %q, want it to begin with %s: %v", i, e[48:], want, entry.Check(e))
		}
	}
	if string(own[0]) != "aaaa" {
		t.Error("the stamp changed the caller's body")
	}
}
