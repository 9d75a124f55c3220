package logstore

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// An index record has no checksum. Where an entry and the term in its record are damaged, the entry is of its own term here after a start, or it is cut off.
func TestDamagedIndexRecordGivesNoOtherTerm(t *testing.T) {
	healthy := vfs.NewMem()
	s := mustOpen(t, small(healthy))
	terms := []raft.Term{3, 3, 6, 6, 6, 7, 12, 12, 13, 13}
	for i, term := range terms {
		must(t, s.Append(raft.Index(i), term, entry.MagicNormal, [][]byte{body(raft.Index(i), term)}, nil))
		must(t, s.Flush())
	}
	must(t, s.SetCommit(raft.Index(len(terms)-1)))
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	must(t, checkpoint(s))
	flip := func(m *vfs.Mem, dir string, at int64, bit int) {
		spoil(t, m, dir, at, 1, func(b []byte) { b[0] ^= 1 << bit })
	}
	cut := 0
	for _, from := range []*vfs.Mem{healthy, stoppedFrom(t, healthy)} {
		for i := range terms {
			pos, _, err := s.Pos(raft.Index(i))
			must(t, err)
			for _, in := range []int64{0, 2, 23, 31, 37, 48, 50} { // magic, term, position, checksum, body; 0: the entry is whole, and its record's position is damaged; 48: no header is left
				for bit := -1; bit < 4; bit++ { // -1: the record is whole
					if in == 23 && bit == 1 {
						continue // both are wrong in the same way
					}
					m := from.Fork(vfs.KeepAll)
					switch {
					case in == entry.HeaderSize && bit >= 0:
						continue // the record is all there is
					case in == entry.HeaderSize:
						spoil(t, m, "data", pos, entry.HeaderSize, func(b []byte) { clear(b) })
					case in > 0:
						flip(m, "data", pos+in, 1)
					default:
						flip(m, "index", int64(i)*entry.IndexSize+9, 1)
					}
					if bit >= 0 {
						flip(m, "index", int64(i)*entry.IndexSize+31, bit)
					}
					n := mustOpen(t, sick(m))
					st := n.State()
					for k := range st.Last + 1 {
						if got, err := n.Term(k); err != nil || got != terms[k] {
							t.Fatalf("byte %d of entry %d and bit %d of its record's term are damaged: term of entry %d is %d (%v), want %d", in, i, bit, k, got, err, terms[k])
						}
					}
					if st.Last < raft.Index(len(terms)-1) {
						cut++
						if bit < 0 && i < len(terms)-1 {
							t.Errorf("byte %d of entry %d is damaged and its record is whole, but the log is cut: %+v", in, i, st)
						}
						if st.Last < raft.Index(i)-1 || st.TailLost < raft.Index(len(terms)-1) {
							t.Fatalf("byte %d of entry %d is damaged: %+v", in, i, st)
						}
					}
					must(t, n.Close())
				}
			}
		}
	}
	t.Logf("%d logs were cut", cut)
}

// spoil changes n bytes from position at on, all in one of the data or index files of a store that small made.
func spoil(t *testing.T, m *vfs.Mem, dir string, at int64, n int, change func([]byte)) {
	t.Helper()
	size := map[string]int64{"data": 256, "index": 128}[dir]
	f, err := m.OpenFile(fmt.Sprintf("base/dledger-n0/%s/%020d", dir, at/size*size), os.O_RDWR)
	must(t, err)
	b := make([]byte, n)
	_, err = f.ReadAt(b, at%size)
	must(t, err)
	change(b)
	_, err = f.WriteAt(b, at%size)
	must(t, err)
	must(t, f.Datasync())
	must(t, f.Close())
}

// stoppedFrom is m after a start and a clean stop.
func stoppedFrom(t *testing.T, m *vfs.Mem) *vfs.Mem {
	m = m.Fork(vfs.KeepAll)
	must(t, mustOpen(t, small(m)).Close())
	return m
}

// The spare file is looked for at the start and after its use, not with each term; while the disk is full there is none, and it comes back with the first term after.
func TestSpareFileIsNotLookedForWithEachTerm(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	looks, full := 0, false
	spare := "base/dledger-n0/" + spareName
	m.SetHook(func(c vfs.Call) error {
		if c.Op == "stat" && c.Name == spare {
			looks++
		}
		if full && (c.Op == "create" || c.Op == "write" && strings.HasSuffix(c.Name, ".tmp")) {
			return syscall.ENOSPC
		}
		return nil
	})
	there := func() bool {
		names, err := m.ReadDir("base/dledger-n0")
		must(t, err)
		return slices.Contains(names, spareName)
	}
	for term := range raft.Term(10) {
		must(t, s.SaveTerm(term+1, ""))
	}
	if looks != 0 || !there() {
		t.Errorf("looked for the spare file %d times in ten terms, want 0; it is there: %t", looks, there())
	}
	full = true
	must(t, s.SaveTerm(11, "n1"))
	if looks != 1 || there() {
		t.Errorf("looked %d times, want 1; the spare file that became currterm is there: %t", looks, there())
	}
	if err := s.SaveTerm(12, "n1"); !errors.Is(err, ErrDiskFull) {
		t.Errorf("without a spare file: %v, want ErrDiskFull", err)
	}
	full = false
	must(t, s.SaveTerm(12, "n1"))
	if !there() {
		t.Error("there is no spare file though there is room again")
	}
	must(t, s.Close())
}
