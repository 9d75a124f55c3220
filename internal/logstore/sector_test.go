package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// deaden makes bytes [off, off+n) of a file unreadable until they are written over at once, as disks give a sector another place then; with dead never again. What writes a
// part of them fails, since the page cache reads the rest first.
func deaden(m *vfs.Mem, name string, off, n int64, dead bool) {
	m.SetHook(deadSector(name, off, n, dead))
}

func deadSector(name string, off, n int64, dead bool) vfs.Hook {
	elsewhere := false
	return func(c vfs.Call) error {
		switch hit := c.Name == name && c.Off < off+n && c.Off+c.N > off; {
		case c.Op == "create" && c.Name == name, c.Op == "rename" && c.NewName == name:
			elsewhere = !dead
		case elsewhere || !hit:
		case c.Op == "read":
			return syscall.EIO
		case c.Op != "write" && c.Op != "zero":
		case c.Off <= off && c.Off+c.N >= off+n:
			elsewhere = !dead
		case !dead:
			return syscall.EIO
		}
		return nil
	}
}

// A sector that the disk does not read is damage like any other: it is found by whoever reads there and by the scrub, named by verify, and repaired, though the disk takes
// nothing but a whole sector there, or the page cache nothing but a whole page. Wherever it lies, also if it was there before the start, and whatever the start is behind.
func TestUnreadableSectorIsDamage(t *testing.T) {
	for _, unit := range []int64{sector, pageSize} {
		if testing.Short() && unit == pageSize {
			continue
		}
		config := func(fs vfs.FS) Config {
			cfg := small(fs)
			cfg.DataFileSize, cfg.IndexFileSize = 4*unit, 2*unit
			return cfg
		}
		n := raft.Index(unit / sector)
		live := vfs.NewMem()
		s := mustOpen(t, config(live))
		must(t, s.SaveTerm(1, "n0"))
		fill(t, s, 44*n, 1)
		fill(t, s, 69*n, 2)
		must(t, s.SetCommit(69*n))
		must(t, s.Checkpoint())
		fill(t, s, 79*n, 2)
		if _, err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		noted := live.Fork(vfs.KeepNone) // but not all of it
		must(t, s.SetCommit(77*n))
		killed := live.Fork(nil)
		must(t, s.Close())
		clean := live.Fork(vfs.KeepAll)
		for state, healthy := range map[string]*vfs.Mem{"a clean stop": clean, "a kill": killed, "a power cut": noted} {
			tried := 0
			for _, sub := range []string{"data", "index"} {
				dir := filepath.Join("base/dledger-n0", sub)
				names, err := healthy.ReadDir(dir)
				must(t, err)
				for _, n := range names {
					name := filepath.Join(dir, n)
					b, err := vfs.ReadFile(healthy, name)
					must(t, err)
					for off := int64(0); off < int64(len(bytes.TrimRight(b, "\x00"))); off += unit {
						what := fmt.Sprintf("%d bytes of %s unreadable at %d after %s", unit, name, off, state)
						m := healthy.Fork(nil)
						deaden(m, name, off, unit, false)
						if rep := verify(t, m); len(rep.Problems) == 0 || !strings.Contains(rep.Problems[0].Error(), name) {
							t.Errorf("%s: verify finds %v", what, rep.Problems)
						}
						tried++
						m = healthy.Fork(nil)
						deaden(m, name, off, unit, false)
						curedIn(t, config, what, m, clean)
					}
				}
			}
			t.Logf("%d times %d bytes repaired after %s", tried, unit, state)
		}
	}
}

// A sector of the index that the disk does not read costs nobody an entry that is synced and not committed yet: its records are made anew, and the store goes on; or the
// next start does it, where the log ends in that sector and the owner alone may write the whole of it.
func TestUnreadableSectorOfTheUncommittedIndexIsMadeAnew(t *testing.T) {
	one := func(raft.Index) raft.Term { return 1 }
	for at := int64(0); at < 5*sector; at += sector {
		m := vfs.NewMem()
		cfg := sick(m)
		cfg.IndexFileSize = 2 * pageSize
		s := mustOpen(t, cfg)
		fill(t, s, 69, 1)
		fill(t, s, 70, 1) // it takes the place of the former in memory
		must(t, s.SetCommit(20))
		if _, err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		deaden(m, s.index.list[0].name, at, sector, false)
		if at+sector > 71*entry.IndexSize {
			if _, _, err := s.Entry(69); damagedEntry(err) != 69 {
				t.Errorf("the log ends in what is not read: %v", err)
			}
			s.Close()
			s = mustOpen(t, cfg)
		}
		check(t, s, 0, 70, one)
		fill(t, s, 90, 1)
		if _, err := s.Sync(); err != nil {
			t.Fatalf("after the sector at %d of the index: %v", at, err)
		}
		check(t, s, 0, 90, one)
		must(t, s.Close())
	}
}

// A sector that takes what is written, and does not give it back, stays damage: the rest of the log goes on, and who has damage does not lead where another can.
func TestSectorThatStaysUnreadableStaysDamage(t *testing.T) {
	healthy := stopped(t)
	m := healthy.Fork(vfs.KeepAll)
	s := mustOpen(t, sick(m))
	pos, size, err := s.Pos(12)
	must(t, err)
	f := s.data.find(pos)
	deaden(m, f.name, pos-f.off, int64(size), true)
	if _, _, err := s.Entry(12); err == nil || !s.Hurt() {
		t.Fatalf("entry 12: %v, hurt %v", err, s.Hurt())
	}
	good := mustOpen(t, small(healthy))
	p, _, err := good.Read(12, 13, 1)
	must(t, err)
	if _, err := s.Repair(p); err == nil || !s.Hurt() {
		t.Fatalf("repaired: %v, hurt %v", err, s.Hurt())
	}
	fill(t, s, 40, 2)
	must(t, good.Close())
	must(t, s.Close())
}

// smallFiles are the files beside the log that a start reads: a name, and which bytes the disk does not give.
var smallFiles = []struct {
	name   string
	off, n int64
}{
	{termName, 0, sector}, {checkpointName, 0, sector}, {sideName, 0, sideBytes},
	{sideName, 0, pageSize}, {sideName, pageSize, pageSize}, {sideName, 2 * pageSize, pageSize}, {sideName, 3 * pageSize, pageSize}, {sideName, 2 * pageSize, 2 * pageSize},
}

// A small file that the disk does not give is a damaged one: verify names it, the start goes on, on another sector, and the node says what it does not know any more. It gives no second
// vote, and where it may have noted more than it finds it is behind, over further starts and power cuts, until it has caught up. Only the term is asked for as
// TestMissingTermFileIsNoticed tells: after a power cut nobody knows it.
func TestUnreadableSmallFileIsDamage(t *testing.T) {
	for _, end := range []string{"stopped", "killed", "power cut"} {
		for _, f := range smallFiles {
			what := fmt.Sprintf("%s, %d bytes of %s unreadable at %d", end, f.n, f.name, f.off)
			m := stopped(t)
			if end != "stopped" {
				s := mustOpen(t, small(m))
				fill(t, s, 35, 2)
				must(t, s.SaveTerm(7, "n2"))
				fill(t, s, 39, 7)
				must(t, s.SetCommit(36))
				must(t, checkpoint(s))
				must(t, s.Truncate(37))
				fill(t, s, 39, 7)
				_, err := s.Sync()
				must(t, err)
				m.Crash(map[string]vfs.Keep{"killed": nil, "power cut": vfs.KeepNone}[end])
			}
			was := mustOpen(t, small(m.Fork(nil)))
			want, good := was.State(), was
			if end == "power cut" { // Fork(nil) is a kill
				m.Crash(vfs.KeepNone)
			}
			deaden(m, "base/dledger-n0/"+f.name, f.off, f.n, false)
			in, err := Inspect(m, "base/dledger-n0")
			must(t, err)
			rep, err := in.Verify()
			must(t, err)
			if named := len(rep.Problems) > 0 && strings.Contains(rep.Problems[0].Error(), "base/dledger-n0/"+f.name); named == (f.name == checkpointName) { // which counts only without a sidecar
				t.Errorf("%s: verify finds %v", what, rep.Problems)
			}
			must(t, in.Close())
			s, err := Open(small(m))
			if f.name == termName && end == "power cut" {
				if err == nil || !strings.Contains(err.Error(), "base/dledger-n0/"+termName) {
					t.Errorf("%s: open: %v", what, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: open: %v", what, err)
				continue
			}
			forgot := f.name == sideName
			same := func(s *Store, last raft.Index) {
				t.Helper()
				st := s.State()
				if st.Term != want.Term || st.Vote != want.Vote && (f.name != termName || st.Vote != UnknownVote) || st.Behind != forgot || st.Last > last || st.Last < last && !forgot || st.Commit > last {
					t.Errorf("%s: %+v, want term %d, vote %q, last %d, behind %t", what, st, want.Term, want.Vote, last, forgot)
				}
				if f.name == termName && st.Vote != UnknownVote {
					t.Errorf("%s: vote %q though it cannot be read", what, st.Vote)
				}
				readsRight(t, what, s, good)
			}
			same(s, want.Last)
			last := s.State().Last
			again := m.Fork(vfs.KeepNone) // the file is another one from now on
			same(mustOpen(t, small(again)), last)
			must(t, checkpoint(s))
			must(t, s.Close())
			s = mustOpen(t, small(m)) // and is read, though the sector is as it was
			same(s, last)
			must(t, s.Joined())
			must(t, s.SaveTerm(9, "n1"))
			fill(t, s, last+5, 9)
			must(t, s.SetCommit(last+5))
			must(t, checkpoint(s))
			m.Crash(vfs.KeepNone)
			s = mustOpen(t, small(m))
			if st := s.State(); st.Behind || st.Term != 9 || st.Vote != "n1" || st.Last != last+5 || st.Commit != last+5 || st.TailLost >= 0 {
				t.Errorf("%s: it goes on as %+v", what, st)
			}
			must(t, s.Close())
		}
	}
}

// The sidecar is made anew, and the machine goes down at each call to the disk meanwhile: the node is behind at the next start, from the old file or from the new one.
func TestPowerCutWhileTheSidecarIsMadeAnew(t *testing.T) {
	const name = "base/dledger-n0/" + sideName
	for _, ill := range smallFiles {
		if ill.name != sideName {
			continue
		}
		m := vfs.NewMem()
		s := mustOpen(t, small(m))
		must(t, s.SaveTerm(3, "n2"))
		fill(t, s, 20, 3)
		must(t, s.SetCommit(12))
		must(t, checkpoint(s))
		must(t, s.Truncate(15))
		m.Crash(nil)
		old, err := vfs.ReadFile(m, name)
		must(t, err)
		tried := 0
		look := func(after *vfs.Mem, what string) {
			if now, err := vfs.ReadFile(after, name); err != nil {
				t.Fatal(err)
			} else if bytes.Equal(now, old) {
				deaden(after, name, ill.off, ill.n, false)
			}
			s := mustOpen(t, small(after))
			if st := s.State(); !st.Behind || st.Term != 3 || st.Vote != "n2" || st.Last > 15 {
				t.Errorf("%d bytes unreadable at %d, %s: %+v", ill.n, ill.off, what, st)
			}
			tried++
			must(t, s.Close())
		}
		live := m.Fork(nil)
		dead := deadSector(name, ill.off, ill.n, false)
		live.SetHook(func(c vfs.Call) error {
			if !reads(c) {
				for what, keep := range map[string]vfs.Keep{"nothing kept": vfs.KeepNone, "all kept": vfs.KeepAll, "parts kept": vfs.KeepRandom(uint64(tried)), "killed": nil} {
					look(live.Fork(keep), fmt.Sprintf("before %s, %s", c, what))
				}
			}
			return dead(c)
		})
		s = mustOpen(t, small(live))
		live.SetHook(nil)
		must(t, s.Close())
		if tried < 20 {
			t.Errorf("only %d crashes", tried)
		}
	}
}

// What may pass, or says nothing of what is in a file, is no damage: no permission, no descriptor, a directory that cannot be read. The start ends by it, names the file and has changed nothing.
func TestStartThatMayNotReadEnds(t *testing.T) {
	for _, end := range []string{"stopped", "killed"} {
		healthy := stopped(t)
		if end == "killed" {
			mustOpen(t, small(healthy))
			healthy.Crash(nil)
		}
		for _, f := range []string{termName, termName + ".tmp", termName + ".bak", checkpointName, sideName, "data", "index", "data/" + fileName(256), "index/" + fileName(128)} {
			name := "base/dledger-n0/" + f
			for _, c := range []struct {
				op  string
				err error
			}{{"open", syscall.EACCES}, {"open", syscall.EMFILE}, {"open", syscall.ENFILE}, {"open", syscall.EIO}, {"read", syscall.EACCES}, {"readdir", syscall.EACCES}, {"readdir", syscall.EIO},
				{"stat", syscall.EACCES}, {"stat", syscall.EIO}} {
				if strings.Contains(f, "/") && c.op == "read" {
					continue // an error of reading there is damage, whichever
				}
				m := healthy.Fork(nil)
				if f == checkpointName {
					must(t, m.Remove("base/dledger-n0/"+sideName)) // or it is not read
				}
				hit := false
				m.SetHook(func(call vfs.Call) error {
					if call.Op == c.op && call.Name == name {
						hit = true
						return c.err
					}
					return nil
				})
				s, err := Open(small(m))
				if !hit {
					if err == nil {
						must(t, s.Close())
					}
					continue
				}
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s, %s of %s gives %v: open: %v", end, c.op, f, c.err, err)
				}
				m.SetHook(nil)
				want := mustOpen(t, small(m.Fork(nil))).State()
				s, err = Open(small(m))
				if err != nil {
					t.Fatalf("%s, after %s of %s gave %v: %v", end, c.op, f, c.err, err)
				}
				if st := s.State(); st.Behind || st.Term != want.Term || st.Vote != want.Vote || st.Last != 29 {
					t.Errorf("%s, after %s of %s gave %v: %+v", end, c.op, f, c.err, st)
				}
				must(t, s.Close())
			}
		}
	}
}

// A batch that needs several new files, and a directory that fails to sync one of them, leave a directory that opens, whatever of it a crash keeps.
func TestFailedSyncOfADirectoryLeavesNoGap(t *testing.T) {
	for n := 1; ; n++ {
		m := vfs.NewMem()
		s := mustOpen(t, small(m))
		fill(t, s, 9, 1)
		must(t, checkpoint(s))
		m.SetHook(vfs.FailNth("syncdir", n, syscall.EIO))
		err := s.Append(s.tail.last.index+1, 3, entry.MagicNormal, bodies(12, 20), nil)
		m.SetHook(nil)
		_ = s.Close()
		if err == nil {
			if n < 4 {
				t.Fatalf("the batch needs %d new files only", n-1)
			}
			break
		}
		for name, keep := range map[string]vfs.Keep{"all of it": vfs.KeepAll, "nothing": vfs.KeepNone} {
			after, err := Open(sick(m.Fork(keep)))
			if err != nil {
				t.Errorf("sync %d fails, a crash keeps %s: %v", n, name, err)
				continue
			}
			must(t, after.Close())
		}
	}
}

// A file that is prepared in the background, and of which the directory fails to be synced, is in no list. A log that is cut or begins anew at that moment must not count as done, since
// that file would stay behind a gap.
func TestFileWhosePreparationFailsLeavesNoGap(t *testing.T) {
	for name, change := range map[string]func(*Store) error{
		"reset":    func(s *Store) error { return s.Reset(100, 8*256+175, 2) },
		"truncate": func(s *Store) error { return s.Truncate(0) },
	} {
		m := vfs.NewMem()
		cfg := small(m)
		cfg.Inline = false
		s := mustOpen(t, cfg)
		fill(t, s, 14, 1)
		s.background.Wait()
		preparing, intent := make(chan bool), make(chan bool)
		var stage atomic.Int32 // 1 from the creation of a file on, 2 from the sync of its directory on
		var saved atomic.Bool
		m.SetHook(func(c vfs.Call) error {
			switch {
			case c.Op == "create" && strings.Contains(c.Name, "/data/"): // all are made ahead
				stage.CompareAndSwap(0, 1)
			case c.Op == "syncdir" && strings.HasSuffix(c.Name, "data") && stage.CompareAndSwap(1, 2):
				close(preparing)
				<-intent
				return syscall.EIO
			case c.Op == "datasync" && strings.HasSuffix(c.Name, sideName) && saved.CompareAndSwap(false, true):
				close(intent)
			}
			return nil
		})
		for i, reached := raft.Index(15), false; !reached; i++ {
			must(t, s.Append(i, 1, entry.MagicNormal, [][]byte{body(i, 1)}, nil))
			must(t, s.Flush())
			idle := make(chan bool)
			go func() {
				s.background.Wait()
				close(idle)
			}()
			select {
			case <-preparing:
				reached = true
			case <-idle:
			}
		}
		if err := change(s); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v, want a failed store", name, err)
		}
		s.background.Wait()
		m.SetHook(nil)
		_ = s.Close()
		for kept, keep := range map[string]vfs.Keep{"all of it": vfs.KeepAll, "nothing": vfs.KeepNone} {
			after, err := Open(small(m.Fork(keep)))
			if err != nil {
				t.Errorf("%s, a crash keeps %s: %v", name, kept, err)
				continue
			}
			must(t, after.Close())
		}
	}
}

// A batch that finds no room takes back the files it has made. The power goes while it does, and any one of the removals is kept.
func TestPowerCutWhileABatchIsTakenBackLeavesNoGap(t *testing.T) {
	for n := 1; ; n++ { // the n-th removal has not been synced
		m := vfs.NewMem()
		s := mustOpen(t, small(m))
		fill(t, s, 1, 1)
		_, err := s.Sync()
		must(t, err)
		m.SetCapacity(m.Used() + 5*256)
		var removed []string
		m.SetHook(func(c vfs.Call) error {
			switch {
			case c.Op == "remove":
				removed = append(removed, c.Name)
			case c.Op == "syncdir" && len(removed) >= n:
				return syscall.EIO
			}
			return nil
		})
		if err := s.Append(2, 1, entry.MagicNormal, bodies(40, 100), nil); err == nil {
			t.Fatal("there was room")
		}
		m.SetHook(nil)
		if len(removed) < n {
			if n < 3 {
				t.Fatalf("it removes %d files only", len(removed))
			}
			return
		}
		_ = s.Close()
		for _, name := range removed {
			after := m.Fork(func(file string, block int64) int {
				if block == vfs.MetaName && file == name {
					return vfs.BlockSize
				}
				return 0
			})
			after.SetCapacity(0)
			again, err := Open(small(after))
			if err != nil {
				t.Errorf("removal %d of %d synced, that of %s kept: %v", n-1, len(removed), name, err)
				continue
			}
			must(t, again.Close())
		}
	}
}
