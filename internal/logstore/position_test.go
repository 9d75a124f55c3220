package logstore

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// TestEntryAtDistinguishesDamageFromAWrongPosition: whichever byte of data or index is flipped below an open log, an entry is given whole or not at all, and never said
// not to be where it is; where none begins, none is given.
func TestEntryAtDistinguishesDamageFromAWrongPosition(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine and each byte of a log: without -short")
	}
	const last = 29
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, last, 1)
	_, err := s.Sync()
	must(t, err)
	must(t, s.SetCommit(last))
	starts := map[int64]raft.Index{}
	for i := raft.Index(0); i <= last; i++ {
		pos, _, err := s.Pos(i)
		must(t, err)
		starts[pos] = i
	}
	end := s.State().End
	must(t, s.Close())
	look := func(t *testing.T, s *Store, what string, damaged bool) {
		t.Helper()
		for pos := int64(0); pos < end; pos++ {
			i, begins := starts[pos]
			if !begins && pos%7 != 0 {
				continue
			}
			e, err := s.EntryAt(pos, last)
			switch {
			case err == nil && (!begins || !bytes.Equal(e[entry.HeaderSize:], body(i, 1)) || entry.Check(e) != nil):
				t.Errorf("%s: at %d is %q", what, pos, e)
			case begins && (errors.Is(err, ErrOutOfRange) || errors.Is(err, ErrCompacted) || err != nil && !damaged):
				t.Errorf("%s: entry %d at %d: %v", what, i, pos, err)
			case !begins && !damaged && !errors.Is(err, ErrOutOfRange):
				t.Errorf("%s: at %d: %v, want none", what, pos, err)
			}
			if err == nil != s.Whole(pos, e) {
				t.Errorf("%s: at %d: whole is %t, %v", what, pos, err != nil, err)
			}
		}
		for _, pos := range []int64{-1, end, end + 1, 1 << 50} {
			if _, err := s.EntryAt(pos, last); !errors.Is(err, ErrOutOfRange) && !errors.Is(err, ErrCompacted) && !damaged {
				t.Errorf("%s: at %d: %v", what, pos, err)
			}
		}
	}
	for _, dir := range []string{"data", "index"} {
		names, err := m.ReadDir("base/dledger-n0/" + dir)
		must(t, err)
		for _, n := range names {
			name := filepath.Join("base/dledger-n0", dir, n)
			b, err := vfs.ReadFile(m, name)
			must(t, err)
			for at := 0; at < len(b); at += 5 {
				disk := m.Fork(vfs.KeepAll)
				s := mustOpen(t, sick(disk))
				must(t, disk.Flip(name, int64(at), 1<<(at%8)))
				look(t, s, filepath.Join(dir, n), true)
				must(t, s.Close())
			}
		}
	}
	s = mustOpen(t, sick(m))
	look(t, s, "a whole log", false)
	if _, err := s.EntryAt(0, -1); !errors.Is(err, ErrOutOfRange) {
		t.Errorf("nothing is committed: %v", err)
	}
	must(t, s.Close())
}
