package logstore

import (
	"strings"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/vfs"
)

// A process that ends while it removes files leaves a directory that a power cut may still undo in part. The next process must not build on it
// before it is durable, or the files that come back have gaps between them.
func TestRemovedFilesDoNotComeBackInPart(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	for i := range 30 {
		must(t, s.Append(s.State().Last+1, 1, entry.MagicNormal, bodies(1, 100), nil))
		must(t, s.Flush())
		if i == 0 {
			must(t, checkpoint(s))
		}
	}
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	m.SetHook(func(c vfs.Call) error {
		if c.Op == "syncdir" && strings.HasSuffix(c.Name, "data") {
			return syscall.EIO
		}
		return nil
	})
	if err := s.Truncate(1); err == nil {
		t.Fatal("the directory cannot be synced, but entries are cut")
	}
	m.SetHook(nil)
	m.Crash(nil)
	mustOpen(t, small(m))
	for seed := range uint64(20) {
		must(t, mustOpen(t, small(m.Fork(vfs.KeepRandom(seed)))).Close())
	}
}
