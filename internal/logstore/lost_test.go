package logstore

import (
	"fmt"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A commit index may come from others, ahead of the node's own sync. What the node has not synced nobody counts on it for, unless the group
// counts entries before they are synced.
func TestUnsyncedTailIsMissedOnlyWhereOthersCountOnIt(t *testing.T) {
	for _, async := range []bool{false, true} {
		m := vfs.NewMem()
		cfg := small(m)
		cfg.Async = async
		s := mustOpen(t, cfg)
		must(t, s.Append(0, 1, entry.MagicNormal, bodies(3, 20), nil))
		must(t, s.Flush())
		must(t, s.SetCommit(2))
		kept := func(name string, _ int64) int { // of the unsynced only the hint of the commit index
			if name == "base/dledger-n0/"+sideName {
				return vfs.BlockSize
			}
			return 0
		}
		cfg.FS = m.Fork(kept)
		want := raft.Index(-1)
		if async {
			want = 2
		}
		if st := mustOpen(t, cfg).State(); st.Last != -1 || st.TailLost != want {
			t.Errorf("async %t: last %d, lost %d; want -1 and %d", async, st.Last, st.TailLost, want)
		}
	}
}

// A power cut takes the notes of the last syncs. If an entry before them turns out to be damaged, so that the log is cut there, what is whole behind the damage may have
// been acknowledged, and is missed.
func TestEntriesBehindDamageAreMissedThoughNoNoteTellsOfThem(t *testing.T) {
	for _, c := range []struct {
		name    string
		damaged []raft.Index // the first of them is the last that is noted as synced
		want    raft.Index   // State.TailLost
	}{
		{"one entry", []raft.Index{5}, 19},
		{"the entry behind as well", []raft.Index{5, 6}, 19},
		{"two places", []raft.Index{5, 9}, 19},
		{"the last entry as well", []raft.Index{5, 19}, 18},
		{"nothing is damaged", nil, -1},
	} {
		m := vfs.NewMem()
		s := mustOpen(t, sick(m))
		fill(t, s, 5, 1)
		must(t, s.SetCommit(3))
		must(t, checkpoint(s))
		fill(t, s, 9, 1)
		fill(t, s, 19, 2)
		_, err := s.Sync()
		must(t, err)
		cut := m.Fork(vfs.KeepNone)
		for _, i := range c.damaged {
			pos, size, err := s.Pos(i)
			must(t, err)
			must(t, cut.Flip(fmt.Sprintf("base/dledger-n0/data/%020d", pos/256*256), pos%256+int64(size)-1, 1))
		}
		last := raft.Index(19)
		if len(c.damaged) > 0 {
			last = c.damaged[0] - 1
		}
		for start := range 2 { // the second knows it from the sidecar
			s := mustOpen(t, sick(cut))
			if st := s.State(); st.Last != last || st.TailLost != c.want {
				t.Errorf("%s, start %d: last %d, lost %d; want %d and %d", c.name, start, st.Last, st.TailLost, last, c.want)
			}
			must(t, s.Close())
		}
		must(t, s.Close())
	}
}

// In mode async others count on entries that no sync has covered. Where only the process ended, whatever was written is there: a log that ends before what is noted as
// written, or before whole entries, has lost it to damage, however its end looks.
func TestDamageOfUnsyncedEntriesIsMissedWhereOthersCountOnThem(t *testing.T) {
	for _, c := range []struct {
		name    string
		damaged []raft.Index
		zeros   bool       // where damaged, nothing but zeros is left
		last    raft.Index // State.Last
		want    raft.Index // State.TailLost, in mode async
	}{
		{"nothing", nil, false, 9, -1},
		{"an entry with another behind", []raft.Index{8}, false, 7, 9},
		{"the last that is noted", []raft.Index{7}, false, 6, 9},
		{"it and all behind", []raft.Index{7, 8, 9}, false, 6, 7},
		{"what is noted, as zeros", []raft.Index{6, 7, 8, 9}, true, 5, 7},
		{"all that came since the note, which a write that ends in the middle leaves as well", []raft.Index{8, 9}, false, 7, -1},
	} {
		for _, async := range []bool{true, false} {
			m := vfs.NewMem()
			cfg := sick(m)
			cfg.Async = async
			s := mustOpen(t, cfg)
			fill(t, s, 5, 1)
			_, err := s.Sync()
			must(t, err)
			fill(t, s, 7, 1)
			must(t, s.SetCommit(3)) // which notes what is written
			fill(t, s, 9, 1)
			for _, i := range c.damaged {
				pos, size, err := s.Pos(i)
				must(t, err)
				name := fmt.Sprintf("base/dledger-n0/data/%020d", pos/256*256)
				b, err := vfs.ReadFile(m, name)
				must(t, err)
				for k := range int64(size) {
					if at := pos%256 + k; c.zeros {
						must(t, m.Flip(name, at, b[at]))
					} else if k == int64(size)-1 {
						must(t, m.Flip(name, at, 1))
					}
				}
			}
			want := raft.Index(-1)
			if async {
				want = c.want
			}
			m.Crash(nil)
			for start := range 2 {
				s := mustOpen(t, cfg)
				if st := s.State(); st.Last != c.last || st.TailLost != want {
					t.Errorf("%s, async %t, start %d: last %d, lost %d; want %d and %d", c.name, async, start, st.Last, st.TailLost, c.last, want)
				}
				must(t, s.Close())
			}
		}
	}
}
