package logstore

import (
	"testing"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// In mode async a crash of the machine may take entries that others count on together with everything that was noted of them.
func TestCrashOfTheMachineIsRememberedInAsync(t *testing.T) {
	for _, async := range []bool{false, true} {
		m := vfs.NewMem()
		cfg := small(m)
		cfg.Async = async
		behind := func(what string, want bool) *Store {
			t.Helper()
			s := mustOpen(t, cfg)
			if got := s.State().Behind; got != (want && async) {
				t.Errorf("async %t, %s: behind %t", async, what, got)
			}
			return s
		}
		s := mustOpen(t, cfg)
		must(t, s.SaveTerm(1, "n0"))
		fill(t, s, 9, 1)
		must(t, s.SetCommit(9))
		m.Crash(nil)
		behind("the process was killed", false)
		m.Crash(vfs.KeepNone)
		behind("the machine went down", true)
		m.Crash(nil)
		s = behind("killed before it had caught up", true)
		must(t, s.Close())
		s = behind("stopped before it had caught up", true)
		must(t, s.Joined())
		m.Crash(nil)
		s = behind("it has caught up", false)
		must(t, s.Close())
		m.Crash(vfs.KeepNone)
		behind("the machine was shut down", false)
		m.Crash(vfs.KeepNone)
		must(t, m.Remove("base/dledger-n0/"+sideName))
		behind("and the sidecar is lost", true)
	}
}

// An empty directory is a first start or a lost disk, and remains that until the group has been asked.
func TestEmptyDirectoryIsNewUntilJoined(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	must(t, s.SaveTerm(7, ""))
	for _, keep := range []vfs.Keep{nil, vfs.KeepNone, vfs.KeepAll} {
		m.Crash(keep)
		if s = mustOpen(t, small(m)); !s.State().New || s.State().Term != 7 {
			t.Fatalf("state %+v, want a new one of term 7", s.State())
		}
	}
	must(t, s.Joined())
	m.Crash(vfs.KeepNone)
	if st := mustOpen(t, small(m)).State(); st.New {
		t.Errorf("state %+v after joining and a power cut", st)
	}
	// What a Java node left has a past.
	m = vfs.NewMem()
	must(t, m.MkdirAll("base/dledger-n0"))
	must(t, vfs.Replace(m, "base/dledger-n0/currterm", []byte("voteLeader=n1\ncurrTerm=3\n")))
	if st := mustOpen(t, small(m)).State(); st.New || st.Term != raft.Term(3) {
		t.Errorf("state %+v of a directory with a term", st)
	}
}
