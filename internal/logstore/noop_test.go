package logstore

import (
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
