package logstore

import (
	"errors"
	"syscall"
	"testing"

	"dledger/internal/entry"
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

// A no-op whose write failed within its checksums looks like a whole one without any.
func TestTornNoopIsNoEntry(t *testing.T) {
	for n := 1; n < entry.HeaderSize; n++ {
		m := vfs.NewMem()
		s := mustOpen(t, small(m))
		must(t, s.Append(0, 1, entry.MagicNormal, bodies(1, 20), nil))
		must(t, s.Flush())
		must(t, s.Append(1, 2, entry.MagicNoop, [][]byte{nil}, nil))
		m.SetHook(vfs.FailNth("write", 1, &vfs.ShortError{N: n, Err: syscall.EIO}))
		if err := s.Flush(); !errors.Is(err, ErrFailed) {
			t.Fatalf("flush: %v", err)
		}
		m.SetHook(nil)
		m.Crash(nil)
		s = mustOpen(t, small(m))
		if st := s.State(); st.Last == 1 {
			p, _, err := s.Read(1, 2, 0)
			must(t, err)
			if h, err := entry.Parse(p[0]); err != nil || h.ChainCRC == 0 {
				t.Errorf("%d bytes of a no-op are taken for a whole one: %+v, %v", n, h, err)
			}
		}
		must(t, s.Close())
	}
}
