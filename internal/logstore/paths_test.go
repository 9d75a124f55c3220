package logstore

import (
	"slices"
	"strings"
	"testing"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// away moves data files to other directories, as somebody does who retires a disk or restores half of a copy.
func away(t *testing.T, m *vfs.Mem, to string, offs ...int64) {
	t.Helper()
	must(t, m.MkdirAll(to))
	for _, off := range offs {
		must(t, m.Rename("base/dledger-n0/data/"+fileName(off), to+"/"+fileName(off)))
	}
}

// Where the files with the oldest entries are not there, the log does not begin later: they may lie in a path that was not named.
func TestMissingOldestFilesStopTheStart(t *testing.T) {
	m := stopped(t)
	away(t, m, "old", 0, 256, 512)
	for _, repairs := range []bool{false, true} {
		cfg := small(m)
		cfg.Repairs, cfg.ReadOnlyDirs = repairs, []string{"odl"}
		for range 2 {
			if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "the log begins with entry 0, but file "+fileName(0)+" is missing") {
				t.Fatalf("open: %v, want the file that is missing", err)
			}
		}
		if rep := verify(t, m); len(rep.Problems) == 0 || !strings.Contains(rep.Problems[0].Error(), fileName(0)+" is missing") {
			t.Errorf("verify finds %v", rep.Problems)
		}
		cfg.ReadOnlyDirs = []string{"old"}
		s := mustOpen(t, cfg)
		check(t, s, 0, 29, twoTerms)
		must(t, s.Close())
	}
	if names, err := m.ReadDir("old"); err != nil || len(names) != 3 {
		t.Errorf("%q are left of three files, %v", names, err)
	}
	// The same where retention has moved the first entry.
	m, clock, cfg, s := aged(t, nil)
	fill(t, s, 60, 2) // what is not committed stays
	clock.add(72 * hour)
	_, err := s.Expire()
	must(t, err)
	first := s.State().First
	must(t, s.Close())
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	must(t, m.Remove("base/dledger-n0/data/"+names[0]))
	if _, err := Open(cfg); first == 0 || len(names) < 2 || err == nil || !strings.Contains(err.Error(), names[0]+" is missing") {
		t.Errorf("the log began at %d in %q; open without the first: %v", first, names, err)
	}
}

// A Java node deletes old files without a note in the sidecar. It may have done so in a term in which it had nothing to vote for; then its checkpoint tells.
func TestJavaNodeMayDeleteTheOldestFiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*vfs.Mem) error
		opens  bool
	}{
		{"it has voted", func(m *vfs.Mem) error {
			return vfs.Replace(m, "base/dledger-n0/currterm", []byte("voteLeader=n1\ncurrTerm=3\n"))
		}, true},
		{"it has appended", func(m *vfs.Mem) error {
			return vfs.Replace(m, "base/dledger-n0/checkpoint", []byte("committedIndex=30\nendIndex=31\n"))
		}, true},
		{"it was not there", func(*vfs.Mem) error { return nil }, false},
		{"the sidecar is gone", func(m *vfs.Mem) error { return m.Remove("base/dledger-n0/commit") }, true},
	} {
		m := stopped(t)
		cfg := small(m)
		cfg.Compat = raft.Compat03
		must(t, mustOpen(t, cfg).Close())
		must(t, m.Remove("base/dledger-n0/data/"+fileName(0)))
		must(t, c.change(m))
		s, err := Open(cfg)
		if (err == nil) != c.opens {
			t.Errorf("%s: open: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if st := s.State(); st.First == 0 || st.Last != 29 || slices.ContainsFunc(st.Runs, func(r raft.Run) bool { return r.First < st.First }) {
			t.Errorf("%s: state %+v", c.name, st)
		}
		must(t, s.Close())
	}
}
