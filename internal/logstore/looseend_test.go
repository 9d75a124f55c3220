package logstore

import (
	"errors"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The log is cut behind an entry that is damaged, as is its index record, and behind which a blank record and another file began: nothing here tells where it
// ends. What is appended waits for the repair, and goes where it goes on a member that was never damaged.
func TestLogCutBehindADamagedEntryEndsWhereOthersDo(t *testing.T) {
	healthy := vfs.NewMem()
	h := mustOpen(t, small(healthy))
	must(t, h.Append(0, 1, entry.MagicNormal, bodies(10, 100), nil))
	must(t, h.Flush())
	last := raft.Index(-1)
	var at, next int64
	for i := range raft.Index(8) {
		if pos, n, err := h.Pos(i); err != nil {
			t.Fatal(err)
		} else if following, _, err := h.Pos(i + 1); err != nil {
			t.Fatal(err)
		} else if following%256 == 0 && following-pos-int64(n) >= entry.HeaderSize+entry.BlankSize+5 {
			last, at, next = i, pos, following
		}
	}
	if last < 0 {
		t.Fatal("no entry has room for a small one between it and the next file")
	}
	must(t, h.SetCommit(last))
	must(t, h.Close())
	for restarts := range 4 {
		m := healthy.Fork(vfs.KeepAll)
		for dir, from := range map[string]int64{"data": at, "index": int64(last) * entry.IndexSize} {
			spoil(t, m, dir, from, 20, func(b []byte) {
				for i := range b {
					b[i] = 0xff
				}
			})
		}
		good, s := mustOpen(t, small(healthy.Fork(vfs.KeepAll))), mustOpen(t, sick(m))
		again := func(when int) {
			if restarts&when != 0 {
				must(t, s.Close())
				s = mustOpen(t, sick(m))
			}
		}
		for done := false; !done; {
			var err error
			_, done, err = s.Scrub(100)
			must(t, err)
		}
		must(t, s.Truncate(last))
		must(t, good.Truncate(last))
		must(t, good.Append(last+1, 2, entry.MagicNormal, [][]byte{[]byte("small")}, nil))
		must(t, good.Flush())
		p, _, err := good.Read(last+1, last+2, 0)
		must(t, err)
		again(1)
		if st := s.State(); st.Last < last { // a restart cuts what is damaged at the end
			if st.Last != last-1 || st.TailLost != last {
				t.Fatalf("restarts %02b: %+v", restarts, st)
			}
			whole, _, err := good.Read(last, last+1, 0)
			must(t, err)
			must(t, s.AppendEncoded(last, whole))
			must(t, s.Flush())
		} else {
			repairEnd(t, s, good, p)
		}
		again(2)
		if err := s.AppendEncoded(last+1, p); err != nil {
			t.Fatalf("restarts %02b, entry %d, next file at %d: %v", restarts, last+1, next, err)
		}
		must(t, s.Flush())
		readsRight(t, "after the repair", s, good)
		must(t, s.Close())
		must(t, good.Close())
		if rep := verify(t, m); len(rep.Problems) > 0 {
			t.Fatal(rep.Problems)
		}
	}
}

// repairEnd repairs the last entry, before which nothing is appended: neither own entries nor p, which a leader sends.
func repairEnd(t *testing.T, s, good *Store, p raft.Payload) {
	t.Helper()
	last := s.State().Last
	d := s.Damaged()
	if len(d) != 1 || d[0].Last != last {
		t.Fatalf("damaged are %+v, want up to %d", d, last)
	}
	if err := s.Append(last+1, 2, entry.MagicNormal, [][]byte{[]byte("small")}, nil); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("append behind an entry whose end is not known: %v", err)
	}
	if err := s.AppendEncoded(last+1, p); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("append behind an entry whose end is not known: %v", err)
	}
	whole, _, err := good.Read(d[0].First, last+1, 0)
	must(t, err)
	if i, err := s.Repair(whole); err != nil || i != last {
		t.Fatalf("repaired up to %d, %v", i, err)
	}
}
