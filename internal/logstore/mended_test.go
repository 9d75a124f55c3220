package logstore

import (
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A cut goes by where the entry that it keeps lies, not by what an index record says alone: a wrong one would have it erase what is to stay, or go on elsewhere.
func TestCutBelievesNoWrongIndexRecord(t *testing.T) {
	healthy := vfs.NewMem()
	h := mustOpen(t, small(healthy))
	must(t, h.Append(0, 1, entry.MagicNormal, bodies(12, 20), nil))
	must(t, h.Flush())
	must(t, h.SetCommit(5))
	must(t, checkpoint(h))
	for last := raft.Index(5); last < 11; last++ { // committed or not
		for off := range int64(entry.IndexSize) {
			m := healthy.Fork(vfs.KeepAll)
			s, good := mustOpen(t, sick(m)), mustOpen(t, small(healthy.Fork(vfs.KeepAll)))
			spoil(t, m, "index", int64(last)*entry.IndexSize+off, 1, func(b []byte) { b[0] ^= 0x28 })
			must(t, s.Truncate(last))
			must(t, good.Truncate(last))
			for _, x := range []*Store{s, good} {
				must(t, x.Append(last+1, 2, entry.MagicNormal, bodies(3, 30), nil))
				must(t, x.Flush())
			}
			if got, want := s.State(), good.State(); got.Last != want.Last || got.End != want.End {
				t.Fatalf("byte %d of record %d is wrong: the log ends at entry %d, byte %d, want %d, %d", off, last, got.Last, got.End, want.Last, want.End)
			}
			readsRight(t, "behind the cut", s, good)
			search(t, s) // a cut has no need of the magic in the record
			must(t, s.Close())
			must(t, good.Close())
			if rep := verify(t, m); len(rep.Problems) > 0 {
				t.Fatalf("byte %d of record %d was wrong: %v", off, last, rep.Problems)
			}
		}
	}
}

// search looks through the whole log for damage, after what it has is committed and synced.
func search(t *testing.T, s *Store) {
	t.Helper()
	must(t, s.SetCommit(s.State().Last))
	must(t, checkpoint(s))
	for done := false; !done; {
		var err error
		_, done, err = s.Scrub(100)
		must(t, err)
	}
}

// What the search has mended is on the disk when it calls the log whole: a power cut behind that does not bring the damage back.
func TestWhatTheSearchMendedOutlivesAPowerCut(t *testing.T) {
	healthy := vfs.NewMem()
	h := mustOpen(t, small(healthy))
	must(t, h.Append(0, 1, entry.MagicNormal, bodies(12, 20), nil))
	must(t, h.Flush())
	must(t, h.SetCommit(11))
	must(t, h.Close())
	damage := []struct {
		dir string
		at  int64
	}{{"index", 0}, {"index", 7*entry.IndexSize + 5}}
	for i := range raft.Index(11) { // the blank record between two files
		pos, n, err := h.Pos(i)
		must(t, err)
		if next, _, err := h.Pos(i + 1); err != nil {
			t.Fatal(err)
		} else if next-pos-int64(n) >= entry.BlankSize {
			damage = append(damage, struct {
				dir string
				at  int64
			}{"data", pos + int64(n) + 4})
		}
	}
	if len(damage) < 3 {
		t.Fatal("no file ends with a blank record")
	}
	for _, d := range damage {
		m := healthy.Fork(vfs.KeepAll)
		s := mustOpen(t, sick(m))
		spoil(t, m, d.dir, d.at, 1, func(b []byte) { b[0] ^= 0x10 })
		search(t, s)
		if s.Hurt() || s.Stats().Mended == 0 {
			t.Fatalf("byte %d of %s: mended are %d, hurt %t", d.at, d.dir, s.Stats().Mended, s.Hurt())
		}
		if rep := verify(t, m.Fork(vfs.KeepNone)); len(rep.Problems) > 0 {
			t.Errorf("byte %d of %s was damaged and mended, and a power cut leaves %v", d.at, d.dir, rep.Problems)
		}
	}
}
