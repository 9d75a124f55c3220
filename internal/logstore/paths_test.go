package logstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// What a start says of a missing first file, an inspection says as well, and neither says it where a Java node may have deleted it.
func TestInspectionMissesTheFirstFileAsAStartDoes(t *testing.T) {
	const dir = "base/dledger-n0/"
	replace := func(name, text string) func(*vfs.Mem) error {
		return func(m *vfs.Mem) error { return vfs.Replace(m, dir+name, []byte(text)) }
	}
	for _, c := range []struct {
		name   string
		change func(*vfs.Mem) error
		java   bool // a Java node has worked here, if there may be one
	}{
		{"nothing", func(*vfs.Mem) error { return nil }, false},
		{"a vote without checksum", replace("currterm", "voteLeader=n1\ncurrTerm=3\n"), true},
		{"a later checkpoint", replace("checkpoint", "committedIndex=30\nendIndex=31\n"), true},
		{"an earlier checkpoint", replace("checkpoint", "committedIndex=20\nendIndex=21\n"), true},
		{"a checkpoint that says nothing", replace("checkpoint", "nonsense"), false},
		{"no checkpoint", func(m *vfs.Mem) error { return m.Remove(dir + "checkpoint") }, false},
	} {
		for _, compat := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
			what := fmt.Sprintf("%s, compat %s", c.name, compat)
			m := stopped(t)
			cfg := small(m)
			cfg.Compat = compat
			must(t, mustOpen(t, cfg).Close())
			must(t, m.Remove(dir+"data/"+fileName(0)))
			must(t, c.change(m))
			want := compat == raft.CompatGo || !c.java
			in, err := Inspect(m, dir)
			must(t, err)
			inspected := slices.ContainsFunc(in.problems, func(err error) bool { return strings.Contains(err.Error(), fileName(0)+" is missing") })
			must(t, in.Close())
			_, err = Open(cfg)
			if missed := err != nil && strings.Contains(err.Error(), fileName(0)+" is missing"); missed != want || inspected != want {
				t.Errorf("%s: the start misses the file: %t (%v), the inspection: %t; want %t", what, missed, err, inspected, want)
			}
		}
	}
}

// mounted makes the disk refuse every change below dir, as a mount that is read-only does, and notes it.
func mounted(t *testing.T, m *vfs.Mem, dir string) {
	m.SetHook(func(c vfs.Call) error {
		if !strings.HasPrefix(c.Name, dir+"/") && c.Name != dir || reads(c) || c.Op == "mkdir" {
			return nil
		}
		t.Errorf("%s", c)
		return syscall.EROFS
	})
}

// inDir gives the names of a directory.
func inDir(t *testing.T, m *vfs.Mem, dir string) []string {
	t.Helper()
	names, err := m.ReadDir(dir)
	must(t, err)
	return names
}

// retired is a stopped log of 30 entries in two paths, whose end lies in the second. The configuration names the first, where nothing may be changed any more, as
// read-only.
func retired(t *testing.T) (*vfs.Mem, *clock, Config) {
	m := vfs.NewMem()
	clock := newClock()
	m.SetClock(clock.now)
	cfg := small(m)
	cfg.Now, cfg.DataDirs = clock.now, []string{"disk0/d", "disk1/d"}
	s := mustOpen(t, cfg)
	fill(t, s, 14, 1)
	fill(t, s, 29, 2)
	if s.State().End/256%2 != 1 {
		t.Fatalf("the log ends at %d", s.State().End)
	}
	must(t, s.SetCommit(25))
	must(t, s.Close())
	mounted(t, m, "disk0")
	cfg.DataDirs, cfg.ReadOnlyDirs = []string{"disk1/d"}, []string{"./disk0/d/"}
	return m, clock, cfg
}

// sound checks that verify finds nothing wrong in both paths.
func sound(t *testing.T, m *vfs.Mem, first raft.Index) {
	t.Helper()
	in, err := Inspect(m, "base/dledger-n0", "disk0/d", "disk1/d")
	must(t, err)
	rep, err := in.Verify()
	must(t, err)
	if len(rep.Problems) > 0 || rep.Info.First != first {
		t.Errorf("verify finds %v, first %d, want %d", rep.Problems, rep.Info.First, first)
	}
	must(t, in.Close())
}

// Retention moves the log's begin over files in read-only paths, and leaves them there; later starts do so, too.
func TestFilesInReadOnlyPathsAreNeverRemoved(t *testing.T) {
	m, clock, cfg := retired(t)
	before := inDir(t, m, "disk0/d")
	s := mustOpen(t, cfg)
	clock.add(72 * hour)
	n, err := s.Expire()
	must(t, err)
	first := s.State().First
	stay := 0 // files that are no longer part of the log
	for _, name := range before {
		if name < fileName(s.Bounds().FirstPos) {
			stay++
		}
	}
	if stay < 2 || int(s.Stats().Expired) != n-stay {
		t.Errorf("%d files expired, %d of them in the read-only path; statistics %+v, first %d", n, stay, s.Stats(), first)
	}
	check(t, s, first, 29, twoTerms)
	for _, keep := range []vfs.Keep{nil, vfs.KeepNone, vfs.KeepAll} {
		m.Crash(keep)
		s = mustOpen(t, cfg)
		check(t, s, first, 29, twoTerms)
		sound(t, m, first)
	}
	must(t, s.Reset(100, 4096, 2))
	must(t, s.Close())
	s = mustOpen(t, cfg)
	if st := s.State(); st.First != 100 || st.Last != 99 {
		t.Errorf("state %+v", st)
	}
	fill(t, s, 119, 3)
	must(t, s.Close())
	sound(t, m, 100)
	if after := inDir(t, m, "disk0/d"); !slices.Equal(after, before) {
		t.Errorf("%q in the read-only path, were %q", after, before)
	}
}

// A file that was made ahead in a path that is read-only now is not written to: another one takes its place, now and after every start.
func TestFilePreparedInAReadOnlyPathIsNotUsed(t *testing.T) {
	for _, size := range []int64{256, 0} { // a crash may leave an empty one
		for _, behind := range []bool{false, true} { // the end of a batch that was refused may have left a second one
			m, _, cfg := retired(t)
			m.SetHook(nil)
			names := inDir(t, m, "disk1/d")
			last, err := strconv.ParseInt(names[len(names)-1], 10, 64)
			must(t, err)
			ahead := func(name string, size int64) {
				f, err := m.Create(name, size)
				must(t, err)
				must(t, f.Close())
			}
			ahead("disk0/d/"+fileName(last+256), size)
			if behind {
				ahead("disk1/d/"+fileName(last+512), 256)
			}
			mounted(t, m, "disk0")
			before := inDir(t, m, "disk0/d")
			for i := range raft.Index(3) {
				s := mustOpen(t, cfg)
				fill(t, s, 29+10*i, 2)
				check(t, s, 0, 29+10*i, twoTerms)
				if i == 1 {
					m.Crash(vfs.KeepAll)
					continue
				}
				must(t, s.Close())
				sound(t, m, 0)
			}
			if after := inDir(t, m, "disk0/d"); !slices.Equal(after, before) {
				t.Errorf("%q in the read-only path, were %q", after, before)
			}
			// The path is written to again: the empty file goes.
			m.SetHook(nil)
			cfg.DataDirs, cfg.ReadOnlyDirs = []string{"disk0/d", "disk1/d"}, nil
			s := mustOpen(t, cfg)
			check(t, s, 0, 49, twoTerms)
			if after := inDir(t, m, "disk0/d"); slices.Contains(after, fileName(last+256)) {
				t.Errorf("%q in the path, one of them has a twin", after)
			}
			must(t, s.Close())
		}
	}
}

// What would have to be erased in a read-only path is refused before anything is changed.
func TestNothingIsErasedInReadOnlyPaths(t *testing.T) {
	m, _, cfg := retired(t)
	s := mustOpen(t, cfg)
	for _, err := range []error{s.Truncate(25), s.Reset(30, 1024, 2)} {
		if err == nil || !strings.Contains(err.Error(), "disk0/d/") {
			t.Errorf("got %v, want the file that is in the way", err)
		}
	}
	check(t, s, 0, 29, twoTerms)
	must(t, s.Close())
	sound(t, m, 0)
	// An intent may be older than the setting.
	m.SetHook(nil)
	writable := cfg
	writable.DataDirs, writable.ReadOnlyDirs = []string{"disk0/d", "disk1/d"}, nil
	for name, change := range map[string]func(*Store) error{
		"cut":   func(s *Store) error { return s.Truncate(25) },
		"reset": func(s *Store) error { return s.Reset(30, 1024, 2) },
	} {
		d := m.Fork(vfs.KeepAll)
		c := writable
		c.FS = d
		s = mustOpen(t, c)
		d.SetHook(func(c vfs.Call) error {
			if c.Op == "remove" {
				return syscall.EIO
			}
			return nil
		})
		if err := change(s); err == nil {
			t.Fatalf("%s: nothing was removed, but there is no error", name)
		}
		d.SetHook(nil)
		d.Crash(vfs.KeepAll)
		c.DataDirs, c.ReadOnlyDirs = cfg.DataDirs, cfg.ReadOnlyDirs
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "disk0/d/") {
			t.Errorf("%s: open: %v, want the file that is in the way", name, err)
		}
		c.DataDirs, c.ReadOnlyDirs = writable.DataDirs, nil
		must(t, mustOpen(t, c).Close())
	}
}
