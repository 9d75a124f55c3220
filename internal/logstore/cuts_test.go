package logstore

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A log of many index and data files is cut at each of its entries, so at each place of an index file and at both edges of each file, and grows again in the next
// term: not as far as before, and further. The power goes at each call to the disk, or the process is killed, or it is stopped and started: never is an entry there
// that was cut, and none missing that was synced.
func TestCutsAtEveryIndexAndFileEdge(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test ./internal/logstore -run %s -crash.seed=%d", t.Name(), seed)
	images := 0
	for cut := raft.Index(-1); cut < 29; cut++ {
		for _, more := range []int{1, 31} {
			if testing.Short() && (int(cut)+more)%9 > 0 {
				continue
			}
			c := newCrashTest(t, shapes[0], seed+uint64(cut+1))
			c.quick, c.off = true, true
			c.vote(1, "n0")
			c.append(30, 1)
			c.flush()
			c.sync()
			c.off = false
			c.truncate(cut)
			c.vote(2, "n1")
			c.append(more, 2)
			c.flush()
			c.sync()
			c.crash(fmt.Sprintf("cut behind %d, %d entries more", cut, more))
			c.do("close", func(m *model) { m.durable = m.flushed() }, c.store.Close)
			c.store = mustOpen(t, c.cfg)
			if err := c.after.compatible(c.store, c.after.last(), body); err != nil {
				t.Fatalf("cut behind %d, %d entries more, stopped and started: %v", cut, more, err)
			}
			must(t, c.store.Close())
			images += c.crashes
		}
	}
	t.Logf("%d images of crashes", images)
}

// dataFiles gives the content of the data files, by name.
func dataFiles(t *testing.T, m *vfs.Mem) map[string]string {
	t.Helper()
	files := map[string]string{}
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	for _, n := range names {
		b, err := vfs.ReadFile(m, "base/dledger-n0/data/"+n)
		must(t, err)
		files[n] = string(b)
	}
	return files
}

// Fault 34: a follower that is cut behind any entry, also the last of a data file, and gets other entries from its next leader, has that leader's files: no blank is left, and each
// entry lies where its header says.
func TestCutFollowerHasTheFilesOfItsNextLeader(t *testing.T) {
	old := mustOpen(t, small(vfs.NewMem()))
	fill(t, old, 29, 1)
	copyTo := func(s *Store, from *Store, lo, hi raft.Index) {
		p, last, err := from.Read(lo, hi, 1<<20)
		must(t, err)
		if last != hi-1 {
			t.Fatalf("read up to %d", last)
		}
		must(t, s.AppendEncoded(lo, p))
		must(t, s.Flush())
	}
	edges := 0
	for cut := raft.Index(-1); cut < 29; cut++ {
		lm, fm := vfs.NewMem(), vfs.NewMem()
		leader, follower := mustOpen(t, small(lm)), mustOpen(t, small(fm))
		if cut >= 0 {
			copyTo(leader, old, 0, cut+1)
		}
		must(t, leader.Append(cut+1, 2, entry.MagicNormal, [][]byte{bodies(1, 100)[0]}, nil)) // another size than what stood there
		must(t, leader.Flush())
		fill(t, leader, 33, 2)
		copyTo(follower, old, 0, 30)
		must(t, follower.Truncate(cut))
		copyTo(follower, leader, cut+1, 34)
		if pos, _, err := old.Pos(cut + 1); err == nil && pos%256 == 0 {
			edges++
		}
		for i := raft.Index(0); i <= 33; i++ {
			h, _, err := follower.Entry(i)
			must(t, err)
			if pos, _, err := follower.Pos(i); err != nil || pos != h.Pos {
				t.Errorf("cut behind %d: entry %d lies at %d, %v, its header says %d", cut, i, pos, err, h.Pos)
			}
		}
		if got, want := dataFiles(t, fm), dataFiles(t, lm); !maps.Equal(got, want) {
			t.Errorf("cut behind %d: the data files differ from the leader's", cut)
		}
		must(t, leader.Close())
		must(t, follower.Close())
	}
	if edges < 5 {
		t.Errorf("only %d cuts at the first byte of a data file", edges)
	}
}

// Fault 12: where headers name positions of another log, a cut goes by where the entries really are: what is kept is whole, and nothing is left behind it.
func TestCutGoesByWhereEntriesReallyAre(t *testing.T) {
	leader := mustOpen(t, small(vfs.NewMem()))
	must(t, leader.Reset(0, 56, -1))
	fill(t, leader, 19, 1)
	p, _, err := leader.Read(0, 20, 1<<20)
	must(t, err)
	cfg := func(m *vfs.Mem) Config {
		c := small(m)
		c.Compat = raft.Compat04
		return c
	}
	for cut := raft.Index(-1); cut < 19; cut++ {
		m := vfs.NewMem()
		s := mustOpen(t, cfg(m))
		must(t, s.AppendEncoded(0, p))
		must(t, s.Flush())
		must(t, s.Truncate(cut))
		whole := mustOpen(t, cfg(vfs.NewMem()))
		if cut >= 0 {
			part, _, err := leader.Read(0, cut+1, 1<<20)
			must(t, err)
			must(t, whole.AppendEncoded(0, part))
			must(t, whole.Flush())
		}
		if got, want := s.State(), whole.State(); got.Last != want.Last || got.End != want.End {
			t.Errorf("cut behind %d: the log ends with entry %d at %d, want %d at %d", cut, got.Last, got.End, want.Last, want.End)
		}
		check(t, s, 0, cut, always(1))
		got, want := dataFiles(t, m), dataFiles(t, whole.fs.(*vfs.Mem))
		for name, b := range got {
			w, there := want[name]
			if there && b != w || !there && strings.Trim(b, "\x00") != "" {
				t.Errorf("cut behind %d: %s is not what it would be without the others", cut, name)
			}
		}
		fill(t, s, 25, 2)
		must(t, s.Close())
		s = mustOpen(t, cfg(m))
		check(t, s, 0, 25, func(i raft.Index) raft.Term { return map[bool]raft.Term{true: 1, false: 2}[i <= cut] })
		must(t, s.Close())
		must(t, whole.Close())
	}
}
