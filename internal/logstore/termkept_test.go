package logstore

import (
	"syscall"
	"testing"

	"dledger/internal/vfs"
)

// A process that ends in the middle of SaveTerm leaves a term that may be in the page cache alone. The next one goes by it, so it has to
// make it durable (R6).
func TestTermFoundAfterAKillIsMadeDurable(t *testing.T) {
	for _, op := range []string{"sync", "rename", "syncdir"} {
		m := vfs.NewMem()
		s := mustOpen(t, small(m))
		must(t, s.SaveTerm(1, "n0"))
		m.SetHook(vfs.FailNth(op, 1, syscall.EIO))
		if err := s.SaveTerm(2, "n1"); err == nil {
			t.Fatalf("%s fails, but the term is saved", op)
		}
		m.SetHook(nil)
		m.Crash(nil)
		found := mustOpen(t, small(m)).State()
		after := mustOpen(t, small(m.Fork(vfs.KeepNone))).State()
		if after.Term != found.Term || after.Vote != found.Vote {
			t.Errorf("%s: a restart found vote %q in term %d, a power cut later it is %q in term %d", op, found.Vote, found.Term, after.Vote, after.Term)
		}
	}
}
