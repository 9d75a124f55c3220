package logstore

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// aged is a store with 30 entries of two terms in nine files, all committed, and a clock at 4:00.
func aged(t *testing.T, change func(*Config)) (*vfs.Mem, *clock, Config, *Store) {
	m := vfs.NewMem()
	clock := newClock()
	m.SetClock(clock.now)
	cfg := small(m)
	cfg.Now = clock.now
	if change != nil {
		change(&cfg)
	}
	s := mustOpen(t, cfg)
	fill(t, s, 14, 1)
	fill(t, s, 29, 2)
	must(t, s.SetCommit(29))
	return m, clock, cfg, s
}

const hour = 3600

func TestOnlyExpiredFilesGo(t *testing.T) {
	low, check70, force := &vfs.Space{Total: 100, Free: 80}, &vfs.Space{Total: 100, Free: 29}, &vfs.Space{Total: 100, Free: 10}
	for _, c := range []struct {
		name       string
		hours      int64 // that pass before
		space      *vfs.Space
		forceClean bool
		deleted    bool
	}{
		{"too young", 24, low, false, false},
		{"expired, at the hour", 72, low, false, true},
		{"expired, at another hour", 73, low, false, false},
		{"expired, at another hour, but the disk fills", 73, check70, false, true},
		{"too young, the disk is nearly full", 24, force, false, false},
		{"too young, the disk is nearly full, force", 24, force, true, true},
		{"too young, the disk fills, force", 24, check70, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, clock, _, s := aged(t, func(cfg *Config) { cfg.Retention.ForceClean = c.forceClean })
			clock.add(c.hours * hour)
			m.SetSpace(c.space)
			n, err := s.Expire()
			must(t, err)
			if (n > 0) != c.deleted {
				t.Errorf("%d files deleted", n)
			}
			if st := s.State(); (st.First > 0) != c.deleted {
				t.Errorf("first is %d", st.First)
			}
		})
	}
}

func TestExpiryKeepsTheLastFileAndWhatIsNotCommitted(t *testing.T) {
	m, clock, cfg, s := aged(t, nil)
	clock.add(72 * hour)
	n, err := s.Expire()
	must(t, err)
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	if n == 0 || len(names) != 1 || s.Stats().Expired != int64(n) {
		t.Errorf("%d deleted, %q left, statistics %+v", n, names, s.Stats())
	}
	st := s.State()
	if st.First == 0 || st.PrevTerm != twoTerms(st.First-1) || st.Runs[0] != (raft.Run{Term: twoTerms(st.First), First: st.First}) {
		t.Errorf("state %+v", st)
	}
	check(t, s, st.First, 29, twoTerms)
	if term, err := s.Term(st.First - 1); err != nil || term != st.PrevTerm {
		t.Errorf("term before the first: %d, %v", term, err)
	}
	for _, err := range []error{second(s.Term(st.First - 2)), third(s.Read(0, 5, 10)), third(s.Entry(st.First - 1)), second(s.ReadAt(0, 10))} {
		if !errors.Is(err, ErrCompacted) {
			t.Errorf("read of a deleted entry: %v", err)
		}
	}
	if rep := verify(t, m); len(rep.Problems) > 0 {
		t.Errorf("problems %v", rep.Problems)
	}
	for _, keep := range []vfs.Keep{nil, vfs.KeepAll} {
		m.Crash(keep)
		s = mustOpen(t, cfg)
		check(t, s, st.First, 29, twoTerms)
		if now := s.State(); now.PrevTerm != st.PrevTerm {
			t.Errorf("term before the first is %d after a restart, was %d", now.PrevTerm, st.PrevTerm)
		}
	}

	cfg.FS = vfs.NewMem()
	s = mustOpen(t, cfg)
	fill(t, s, 29, 1)
	must(t, s.SetCommit(9))
	clock.add(720 * hour)
	if _, err := s.Expire(); err != nil {
		t.Fatal(err)
	}
	if st := s.State(); st.First > 10 {
		t.Errorf("first is %d, entries above 9 are not committed", st.First)
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }

// A round deletes ten files at most.
func TestRoundsAreShort(t *testing.T) {
	_, clock, _, s := aged(t, nil)
	fill(t, s, 99, 2)
	must(t, s.SetCommit(99))
	clock.add(72 * hour)
	files := s.Stats().DataFiles
	for files > 1 {
		n, err := s.Expire()
		must(t, err)
		if n > expireMax || n == 0 {
			t.Fatalf("%d deleted in one round, %d were there", n, files)
		}
		files -= n
	}
	if got := s.Stats().DataFiles; got != 1 {
		t.Errorf("%d files left", got)
	}
}

func TestFullTurnsAtTheRatio(t *testing.T) {
	m, clock, _, s := aged(t, nil)
	for _, c := range []struct {
		free int64
		full bool
	}{{80, false}, {11, false}, {9, true}, {50, false}} {
		m.SetSpace(&vfs.Space{Total: 100, Free: c.free})
		clock.add(2)
		if s.Full() != c.full {
			t.Errorf("%d %% free: full is %v", c.free, !c.full)
		}
	}
}

// Files go to the paths in turn; a path that is full, and one that is only read, gets none; files are found wherever they lie.
func TestFilesAreSpreadOverPaths(t *testing.T) {
	m := vfs.NewMem()
	cfg := small(m)
	cfg.DataDirs = []string{"disk0/d", "disk1/d", "disk2/d"}
	s := mustOpen(t, cfg)
	fill(t, s, 29, 1)
	must(t, s.Close())
	for k, dir := range cfg.DataDirs {
		names, err := m.ReadDir(dir)
		must(t, err)
		for _, n := range names {
			off, err := strconv.ParseInt(n, 10, 64)
			must(t, err)
			if off/256%3 != int64(k) {
				t.Errorf("%s lies in %s", n, dir)
			}
		}
		if len(names) < 2 {
			t.Errorf("%s holds %q", dir, names)
		}
	}
	// disk1 is retired: what it holds is read, new files go to the other two.
	cfg.ReadOnlyDirs = []string{"disk1/d"}
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "disk1/d/"+fileName(1792)) {
		t.Errorf("the end of the log is read-only: open: %v", err)
	}
	cfg.ReadOnlyDirs = nil
	s = mustOpen(t, cfg)
	fill(t, s, 34, 1)
	must(t, s.Close())
	cfg.ReadOnlyDirs = []string{"disk1/d"}
	before, err := m.ReadDir("disk1/d")
	must(t, err)
	s = mustOpen(t, cfg)
	check(t, s, 0, 34, always(1))
	fill(t, s, 59, 1)
	check(t, s, 0, 59, always(1))
	must(t, s.Close())
	after, err := m.ReadDir("disk1/d")
	must(t, err)
	if len(before) != len(after) {
		t.Errorf("%q in the read-only path, were %q", after, before)
	}
	in, err := Inspect(m, cfg.Dir, cfg.DataDirs...)
	must(t, err)
	rep, err := in.Verify()
	must(t, err)
	if len(rep.Problems) > 0 {
		t.Errorf("problems %v", rep.Problems)
	}
}

// With files prepared in the background the log is the same, and Java finds one empty file at most.
func TestFilesArePreparedAhead(t *testing.T) {
	m := vfs.NewMem()
	cfg := small(m)
	cfg.Inline = false
	s := mustOpen(t, cfg)
	for next := raft.Index(0); next < 60; next += 2 {
		must(t, s.Append(next, 1, 1, [][]byte{body(next, 1), body(next+1, 1)}, nil))
		must(t, s.Flush())
	}
	s.background.Wait()
	check(t, s, 0, 59, always(1))
	if end := s.State().End; s.data.list[len(s.data.list)-1].off > end-end%256+256 {
		t.Errorf("log ends at %d, last file begins at %d", end, s.data.list[len(s.data.list)-1].off)
	}
	must(t, s.Truncate(20))
	s.background.Wait()
	fill(t, s, 59, 2)
	must(t, s.Close())
	s = mustOpen(t, cfg)
	check(t, s, 0, 59, func(i raft.Index) raft.Term {
		if i > 20 {
			return 2
		}
		return 1
	})
	must(t, s.Close())
}
