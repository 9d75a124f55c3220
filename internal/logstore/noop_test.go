package logstore

import (
	"errors"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The checksum of an empty body is 0, which elsewhere means that there is none.
func TestSyncedNoopSurvivesAPowerCut(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	must(t, s.Append(0, 1, entry.MagicNoop, [][]byte{nil}, nil))
	must(t, s.Append(1, 1, entry.MagicNormal, bodies(2, 20), nil))
	must(t, s.Flush())
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, small(m.Fork(vfs.KeepNone)))
	if last := s.State().Last; last != 2 {
		t.Fatalf("log ends at %d, synced was 2", last)
	}
	must(t, s.Close())
}

// A no-op whose write failed within its checksums looks like a whole one without any, as a Java leader writes them.
func TestTornNoopIsNoEntry(t *testing.T) {
	for _, compat := range []raft.Compat{raft.CompatGo, raft.Compat03, raft.Compat04} {
		for n := 1; n < entry.HeaderSize; n++ {
			m := vfs.NewMem()
			cfg := small(m)
			cfg.Compat = compat
			s := mustOpen(t, cfg)
			must(t, s.Append(0, 1, entry.MagicNormal, bodies(1, 20), nil))
			must(t, s.Flush())
			must(t, s.Append(1, 2, entry.MagicNoop, [][]byte{nil}, nil))
			m.SetHook(vfs.FailNth("write", 1, &vfs.ShortError{N: n, Err: syscall.EIO}))
			if err := s.Flush(); !errors.Is(err, ErrFailed) {
				t.Fatalf("flush: %v", err)
			}
			m.SetHook(nil)
			m.Crash(nil)
			s = mustOpen(t, cfg)
			if st := s.State(); st.Last == 1 {
				p, _, err := s.Read(1, 2, 0)
				must(t, err)
				if h, err := entry.Parse(p[0]); err != nil || h.ChainCRC == 0 {
					t.Errorf("compat %v: %d bytes of a no-op are taken for a whole one: %+v, %v", compat, n, h, err)
				}
			}
			must(t, s.Close())
		}
	}
}

// An entry of a Java leader has no checksum that tells whether all of it was written before the process was killed. The last one is not taken unless it was
// synced; what it was acknowledged for in async is remembered.
func TestLastEntryWithoutChecksumIsDoubted(t *testing.T) {
	java := func(i raft.Index, pos int64, last byte) []byte {
		e := make([]byte, entry.HeaderSize+40)
		e[len(e)-1] = last
		entry.PutHeader(e, entry.Header{Magic: entry.MagicNormal, Size: int32(len(e)), Index: i, Term: 1, Pos: pos, BodyLen: 40})
		return e
	}
	for _, c := range []struct {
		name        string
		async, sync bool
		end         byte
		count       raft.Index
		last, lost  raft.Index
	}{
		{"written", false, false, 0, 2, 0, -1},
		{"written and acknowledged", true, false, 0, 2, 0, 1},
		{"synced", false, true, 0, 2, 1, -1},
		{"in another file", false, false, 0, 3, 1, -1},
		{"its end is there", false, false, 'x', 2, 1, -1},
		{"nothing", true, false, 0, 0, -1, -1},
	} {
		m := vfs.NewMem()
		cfg := small(m)
		cfg.Compat, cfg.Async = raft.Compat03, c.async
		s := mustOpen(t, cfg)
		pos := int64(0)
		for i := range c.count {
			pos, _ = entry.Place(pos, entry.HeaderSize+40, cfg.DataFileSize)
			e := java(i, pos, c.end)
			must(t, s.AppendEncoded(i, raft.Payload{e}))
			pos += int64(len(e))
		}
		must(t, s.Flush())
		if c.sync {
			_, err := s.Sync()
			must(t, err)
		}
		m.Crash(nil)
		s = mustOpen(t, cfg)
		if st := s.State(); st.Last != c.last || st.TailLost != c.lost {
			t.Errorf("%s: the log ends at %d, lost %d; want %d and %d", c.name, st.Last, st.TailLost, c.last, c.lost)
		}
		must(t, s.Close())
	}
}
