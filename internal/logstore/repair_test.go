package logstore

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

var damageSeed = flag.Uint64("damage.seed", 0, "where random damage falls; 0 = elsewhere each time")

func damageRand(t *testing.T) *rand.Rand {
	seed := *damageSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test ./internal/logstore -run '^%s$' -damage.seed %d", t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// sick gives the configuration of a member whose group has other copies.
func sick(fs vfs.FS) Config {
	cfg := small(fs)
	cfg.Repairs, cfg.CacheBytes = true, 1
	return cfg
}

// cured opens a damaged directory as a member of a group does, looks for all damage, repairs it with what a healthy copy holds, and checks that the
// directories are byte-identical then.
func cured(t *testing.T, what string, m, healthy *vfs.Mem) {
	t.Helper()
	curedIn(t, small, what, m, healthy)
}

// curedIn is cured for stores of another configuration.
func curedIn(t *testing.T, config func(vfs.FS) Config, what string, m, healthy *vfs.Mem) {
	t.Helper()
	good := mustOpen(t, config(healthy.Fork(vfs.KeepAll)))
	cfg := config(m)
	cfg.Repairs, cfg.CacheBytes = true, 1
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	st := s.State()
	want := good.State()
	if st.Last < want.Last && st.TailLost < want.Last && !st.Behind {
		t.Fatalf("%s: entries up to %d are gone unnoticed: %+v", what, want.Last, st)
	}
	readsRight(t, what, s, good)
	for i := st.Last + 1; i <= want.Last; i++ { // the leader sends what the log lacks at its end
		p, _, err := good.Read(i, i+1, 0)
		must(t, err)
		must(t, s.AppendEncoded(i, p))
		if err := s.Flush(); err != nil {
			t.Fatalf("%s: flush of entry %d: %v", what, i, err)
		}
	}
	must(t, s.SetCommit(want.Last)) // until then nobody could give them
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	for pass := 0; pass < 2; pass++ {
		for done := false; !done; {
			var err error
			if _, done, err = s.Scrub(100); err != nil {
				t.Fatalf("%s: scrub: %v", what, err)
			}
		}
		readsRight(t, what, s, good)
		for s.Hurt() {
			d := s.Damaged()[0]
			if pass > 0 || d.First > d.Last || d.Last > want.Last || d.Bytes <= 0 {
				t.Fatalf("%s: damaged in pass %d: %+v", what, pass, s.Damaged())
			}
			p, _, err := good.Read(d.First, d.Last+1, 300)
			must(t, err)
			if _, err := s.Repair(p); err != nil {
				t.Fatalf("%s: repair of %+v: %v", what, d, err)
			}
		}
	}
	if st := s.State(); st.First != want.First || st.Last != want.Last {
		t.Fatalf("%s: log is %d to %d, want %d to %d", what, st.First, st.Last, want.First, want.Last)
	}
	must(t, s.Close())
	if rep := verify(t, m); len(rep.Problems) > 0 {
		t.Fatalf("%s: after the repair: %v", what, rep.Problems)
	}
	sameFiles(t, what, m, healthy)
	must(t, mustOpen(t, config(m)).Close()) // nothing is left that would stop a start
}

// readsRight checks that no reader gets wrong bytes.
func readsRight(t *testing.T, what string, s, good *Store) {
	t.Helper()
	st := s.State()
	for i := st.First; i <= st.Last; i++ {
		h, b, err := s.Entry(i)
		if err != nil {
			if !errors.As(err, new(*DamageError)) {
				t.Fatalf("%s: entry %d: %v, want the place", what, i, err)
			}
			continue
		}
		g, c, err := good.Entry(i)
		must(t, err)
		if h != g || !bytes.Equal(b, c) {
			t.Fatalf("%s: entry %d reads as %+v %q, want %+v %q", what, i, h, b, g, c)
		}
	}
}

// sameFiles compares data and index files; what one directory has more is zeros.
func sameFiles(t *testing.T, what string, a, b *vfs.Mem) {
	t.Helper()
	for _, dir := range []string{"data", "index"} {
		for k, pair := range [][2]*vfs.Mem{{a, b}, {b, a}} {
			names, err := pair[0].ReadDir("base/dledger-n0/" + dir)
			must(t, err)
			for _, n := range names {
				n = filepath.Join("base/dledger-n0", dir, n)
				x, err := vfs.ReadFile(pair[0], n)
				must(t, err)
				y, err := vfs.ReadFile(pair[1], n)
				if errors.Is(err, os.ErrNotExist) {
					y = make([]byte, len(x))
				} else {
					must(t, err)
				}
				if !bytes.Equal(x, y) {
					t.Fatalf("%s: %s differs (%d)", what, n, k)
				}
			}
		}
	}
}

// killed is like stopped, but the process ended without a stop.
func killed(t testing.TB) *vfs.Mem {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	must(t, s.SaveTerm(1, "n0"))
	fill(t, s, 14, 1)
	must(t, checkpoint(s))
	must(t, s.SaveTerm(2, "n0"))
	fill(t, s, 29, 2)
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	must(t, s.SetCommit(25))
	return m
}

// places gives every file of the log and its size.
func places(t *testing.T, m *vfs.Mem, dirs ...string) (names []string, sizes []int64) {
	for _, dir := range dirs {
		list, err := m.ReadDir("base/dledger-n0/" + dir)
		must(t, err)
		for _, n := range list {
			n = "base/dledger-n0/" + dir + "/" + n
			info, err := m.Stat(n)
			must(t, err)
			names, sizes = append(names, n), append(sizes, info.Size)
		}
	}
	return names, sizes
}

// end gives the position behind the last byte of a file that means anything: behind it there are zeros.
func end(t *testing.T, m *vfs.Mem, name string) int64 {
	b, err := vfs.ReadFile(m, name)
	must(t, err)
	return int64(len(bytes.TrimRight(b, "\x00")))
}

// TestEachDamagedByteIsRepaired: whatever one byte of data and index becomes, it is never served, found, and made what it was.
func TestEachDamagedByteIsRepaired(t *testing.T) {
	rng := damageRand(t)
	for _, make := range []func(testing.TB) *vfs.Mem{stopped, killed} {
		healthy := make(t)
		names, _ := places(t, healthy, "data", "index")
		for _, name := range names {
			for off := range end(t, healthy, name) {
				if testing.Short() && rng.IntN(12) > 0 {
					continue
				}
				m := healthy.Fork(nil)
				mask := byte(1 + rng.IntN(255))
				must(t, m.Flip(name, off, mask))
				cured(t, fmt.Sprintf("%s byte %d mask %#x", name, off, mask), m, healthy)
			}
		}
	}
}

// large is a log of many entries of all sizes, in 13 terms.
func large(t *testing.T, rng *rand.Rand) *vfs.Mem {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	for term := raft.Term(1); term <= 13; term++ {
		n := 1 + rng.IntN(20)
		var list [][]byte
		for range n {
			b := make([]byte, rng.IntN(190))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			list = append(list, b)
		}
		must(t, s.Append(s.State().Last+1, term, entry.MagicNormal, list, nil))
		must(t, s.Flush())
		if rng.IntN(3) == 0 {
			must(t, checkpoint(s))
		}
	}
	must(t, s.SaveTerm(13, "n1"))
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	must(t, s.SetCommit(s.State().Last-raft.Index(rng.IntN(4))))
	if rng.IntN(2) == 0 {
		must(t, s.Close())
	} else {
		m.Crash(nil)
	}
	return m
}

// TestRandomDamageIsRepaired: bytes flipped, stretches made zeros or swapped, several at once, in one of data and index; files cut short.
func TestRandomDamageIsRepaired(t *testing.T) {
	rng := damageRand(t)
	runs := 200
	if testing.Short() {
		runs = 30
	}
	var healthy *vfs.Mem
	for run := range runs {
		if run%20 == 0 {
			healthy = large(t, rng)
		}
		m := healthy.Fork(nil)
		dir := []string{"data", "index"}[rng.IntN(2)]
		names, sizes := places(t, m, dir)
		for i := range names { // what is behind the last entry is nobody's
			sizes[i] = max(end(t, m, names[i]), 1)
		}
		what := fmt.Sprintf("run %d: %s:", run, dir)
		for range 1 + rng.IntN(10) {
			k := rng.IntN(len(names))
			f, err := m.OpenFile(names[k], os.O_RDWR)
			must(t, err)
			lo := rng.Int64N(sizes[k])
			n := 1 + rng.Int64N(min(sizes[k]-lo, 100))
			switch rng.IntN(4) {
			case 0:
				for range 1 + rng.IntN(4) {
					must(t, m.Flip(names[k], rng.Int64N(sizes[k]), byte(1+rng.IntN(255))))
				}
				what += fmt.Sprintf(" flips in %s", names[k])
			case 1:
				must(t, f.Zero(lo, n))
				what += fmt.Sprintf(" zeros in %s from %d, %d bytes", names[k], lo, n)
			case 2:
				j := rng.IntN(len(names))
				g, err := m.OpenFile(names[j], os.O_RDWR)
				must(t, err)
				n = min(n, sizes[j])
				to := rng.Int64N(sizes[j] - n + 1)
				a, b := make([]byte, n), make([]byte, n)
				for _, e := range []error{at(f.ReadAt(a, lo)), at(g.ReadAt(b, to)), at(f.WriteAt(b, lo)), at(g.WriteAt(a, to)), g.Close()} {
					must(t, e)
				}
				what += fmt.Sprintf(" swapped in %s from %d with %s from %d, %d bytes", names[k], lo, names[j], to, n)
			case 3:
				must(t, f.Truncate(lo))
				sizes[k] = max(lo, 1)
				what += fmt.Sprintf(" cut %s at %d", names[k], lo)
				must(t, f.Close())
				names, sizes = names[:k], sizes[:k] // nothing else behind it
				f = nil
			}
			if f != nil {
				must(t, f.Close())
			}
			if len(names) == 0 {
				break
			}
		}
		cured(t, what, m, healthy)
	}
	t.Logf("%d damaged disks", runs)
}

func at(_ int, err error) error { return err }

// TestDamagedTermIsNeverAnotherTerm: whatever becomes of currterm, the node comes back with the term it had and no other vote, or does not start.
func TestDamagedTermIsNeverAnotherTerm(t *testing.T) {
	const name = "base/dledger-n0/currterm"
	for _, make := range []func(testing.TB) *vfs.Mem{stopped, killed} {
		healthy := make(t).Fork(nil)
		must(t, mustOpen(t, small(healthy)).SaveTerm(12, "n1"))
		healthy.Crash(nil)
		text, err := vfs.ReadFile(healthy, name)
		must(t, err)
		open := func(what string, m *vfs.Mem) {
			t.Helper()
			s, err := Open(sick(m))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if st := s.State(); st.Term != 12 || st.Vote != "n1" && st.Vote != UnknownVote {
				t.Errorf("%s: term %d, vote %q", what, st.Term, st.Vote)
			}
			must(t, s.Close())
		}
		for off := range text {
			for _, bit := range []int{0, 1, 4} {
				m := healthy.Fork(nil)
				must(t, m.Flip(name, int64(off), 1<<bit))
				open(fmt.Sprintf("byte %d bit %d", off, bit), m)
			}
			m := healthy.Fork(nil)
			must(t, vfs.Replace(m, name, text[:off]))
			open(fmt.Sprintf("cut at %d", off), m)
		}
	}
}

// TestDamagedCheckpointChangesNothing: the sidecar knows all that it says.
func TestDamagedCheckpointChangesNothing(t *testing.T) {
	const name = "base/dledger-n0/checkpoint"
	rng := damageRand(t)
	healthy := stopped(t)
	text, err := vfs.ReadFile(healthy, name)
	must(t, err)
	for off := range text {
		for _, m := range []*vfs.Mem{healthy.Fork(nil), healthy.Fork(nil), healthy.Fork(nil)} {
			switch rng.IntN(3) {
			case 0:
				must(t, m.Flip(name, int64(off), byte(1+rng.IntN(255))))
			case 1:
				must(t, vfs.Replace(m, name, text[:off]))
			case 2:
				must(t, vfs.Replace(m, name, bytes.Repeat([]byte{0}, off)))
			}
			s := mustOpen(t, sick(m))
			if st := s.State(); st.Commit != 25 || st.Last != 29 || st.TailLost != -1 {
				t.Errorf("byte %d: %+v", off, st)
			}
			must(t, s.Close())
		}
	}
}
