package logstore

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// deaden makes bytes [off, off+n) of a file unreadable until they are written over at once, as disks give a sector another place then; with dead never again. What writes a
// part of them fails, since the page cache reads the rest first.
func deaden(m *vfs.Mem, name string, off, n int64, dead bool) {
	elsewhere := false
	m.SetHook(func(c vfs.Call) error {
		switch hit := c.Name == name && c.Off < off+n && c.Off+c.N > off; {
		case c.Op == "create" && c.Name == name:
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
	})
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
						if rep := verify(t, m); sub == "data" && (len(rep.Problems) == 0 || !strings.Contains(rep.Problems[0].Error(), name)) {
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
