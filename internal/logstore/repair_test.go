package logstore

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	before := verify(t, m)
	if wrong := differs(t, m, healthy, good); wrong != "" && len(before.Problems) == 0 {
		t.Fatalf("%s: %s is not what it was, and verify finds nothing", what, wrong)
	}
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
			if _, done, err = s.Scrub(max(100, cfg.DataFileSize/8)); err != nil {
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
	if stats := s.Stats(); (st.TailLost >= 0 || stats.Damages > 0 || stats.Mended > 0) && len(before.Problems) == 0 {
		t.Fatalf("%s: damage was found (%+v, %d places, %d mended) that verify does not name", what, st, stats.Damages, stats.Mended)
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

// differs names a data or index file in which an entry, what is between two, or an index record is not as in healthy, which good has open; "" is none.
func differs(t *testing.T, m, healthy *vfs.Mem, good *Store) string {
	t.Helper()
	cfg, st := good.cfg, good.State()
	for _, l := range []struct {
		dir           string
		size, lo, end int64
	}{{"data", cfg.DataFileSize, good.firstPos, st.End}, {"index", cfg.IndexFileSize, int64(st.First) * entry.IndexSize, int64(st.Last+1) * entry.IndexSize}} {
		for off := l.lo / l.size * l.size; off < l.end; off += l.size {
			name := "base/dledger-n0/" + l.dir + "/" + fileName(off)
			lo, hi := max(l.lo-off, 0), min(l.end-off, l.size)
			want, err := vfs.ReadFile(healthy, name)
			must(t, err)
			got, err := vfs.ReadFile(m, name)
			if err != nil || int64(len(got)) < hi || !bytes.Equal(got[lo:hi], want[lo:hi]) {
				return name
			}
		}
	}
	return ""
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

// blocky is a store whose files are of several of the blocks that file systems go by.
func blocky(fs vfs.FS) Config {
	cfg := small(fs)
	cfg.DataFileSize, cfg.IndexFileSize = 8*pageSize, 2*pageSize
	return cfg
}

// large is a log of many entries of all sizes below bodyMax, in 13 terms.
func large(t *testing.T, rng *rand.Rand, config func(vfs.FS) Config, bodyMax int) *vfs.Mem {
	m := vfs.NewMem()
	s := mustOpen(t, config(m))
	for term := raft.Term(1); term <= 13; term++ {
		n := 1 + rng.IntN(20)
		var list [][]byte
		for range n {
			b := make([]byte, rng.IntN(bodyMax))
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

// TestRandomDamageIsRepaired: bytes flipped, stretches made zeros or swapped, several at once, in one of data and index; files cut short. In small files the stretches are of some bytes, in
// those of several blocks they are one or two whole blocks of 4 KiB.
func TestRandomDamageIsRepaired(t *testing.T) {
	t.Run("bytes", func(t *testing.T) { randomDamage(t, 200, small, 190, 1) })
	t.Run("blocks", func(t *testing.T) { randomDamage(t, 100, blocky, 1500, pageSize) })
}

// randomDamage is that in files of one configuration; unit is what stretches begin at, and are of.
func randomDamage(t *testing.T, runs int, config func(vfs.FS) Config, bodyMax int, unit int64) {
	rng := damageRand(t)
	if testing.Short() {
		runs = 30
	}
	blocks := 0
	var healthy *vfs.Mem
	for run := range runs {
		if run%20 == 0 {
			healthy = large(t, rng, config, bodyMax)
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
			if unit > 1 { // a file is of whole blocks, whatever is behind its last entry
				lo = lo / unit * unit
				n = unit * (1 + rng.Int64N(2))
				if info, err := m.Stat(names[k]); err == nil {
					n = min(n, info.Size-lo)
				}
				blocks++
			}
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
				to := int64(0)
				if unit > 1 {
					to = rng.Int64N(sizes[j]) / unit * unit
					n = unit
				} else {
					n = min(n, sizes[j])
					to = rng.Int64N(sizes[j] - n + 1)
				}
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
		curedIn(t, config, what, m, healthy)
	}
	t.Logf("%d damaged disks, %d whole blocks", runs, blocks)
}

// TestFilesCutAnywhereAreRepaired: a file of data or index ends before, at and behind each edge of an entry or a record, and at two hundred other places spread evenly.
func TestFilesCutAnywhereAreRepaired(t *testing.T) {
	for name, make := range map[string]func(testing.TB) *vfs.Mem{"stopped": stopped, "killed": killed} {
		healthy := make(t)
		type place struct {
			file string
			at   int64
		}
		places := map[place]bool{}
		add := func(dir string, size, pos int64) {
			for _, at := range []int64{pos - 1, pos, pos + 1} {
				if file := at / size * size; at >= 0 {
					places[place{"base/dledger-n0/" + dir + "/" + fileName(file), at - file}] = true
				}
			}
		}
		s := mustOpen(t, small(healthy.Fork(vfs.KeepAll)))
		st := s.State()
		for i := st.First; i <= st.Last; i++ {
			pos, size, err := s.Pos(i)
			must(t, err)
			add("data", s.data.size, pos)
			add("data", s.data.size, pos+int64(size))
			add("index", s.index.size, int64(i)*entry.IndexSize)
		}
		add("index", s.index.size, int64(st.Last+1)*entry.IndexSize)
		edges, spread := len(places), 0
		for _, l := range []struct {
			dir  string
			size int64
			end  int64
		}{{"data", s.data.size, st.End}, {"index", s.index.size, int64(st.Last+1) * entry.IndexSize}} {
			for k := range int64(100) {
				at := l.end * k / 100
				places[place{"base/dledger-n0/" + l.dir + "/" + fileName(at/l.size*l.size), at % l.size}] = true
				spread++
			}
		}
		must(t, s.Close())
		cut := 0
		for p := range places {
			if testing.Short() && cut >= 40 {
				break
			}
			m := healthy.Fork(nil)
			f, err := m.OpenFile(p.file, os.O_RDWR)
			if errors.Is(err, os.ErrNotExist) {
				continue // behind the last file
			}
			must(t, err)
			must(t, f.Truncate(p.at))
			must(t, f.Close())
			cured(t, fmt.Sprintf("%s, %s cut at %d", name, p.file, p.at), m, healthy)
			cut++
		}
		t.Logf("%s: cut at %d places: at %d edges, and at %d that lie evenly", name, cut, edges, spread)
		if (cut < 200 || edges < 3*int(st.Last-st.First+1) || spread < 200) && !testing.Short() {
			t.Errorf("%s: cut at %d places only", name, cut)
		}
	}
}

func at(_ int, err error) error { return err }

// TestDamagedTermIsNeverAnotherTerm: whatever becomes of currterm, the node comes back with the term it had, no other vote and all it knew of what it had synced, or does not start; and
// `verify` names the file. In each compat, after each kind of end, with and without what a Java node left beside it, and with the end of the log lost as well.
func TestDamagedTermIsNeverAnotherTerm(t *testing.T) {
	const name = "base/dledger-n0/currterm"
	ends := []struct {
		name string
		end  func(*testing.T, *vfs.Mem, *Store)
		sure bool // the sidecar holds the very term
	}{
		{"stopped", func(t *testing.T, _ *vfs.Mem, s *Store) { must(t, s.Close()) }, true},
		{"killed", func(_ *testing.T, m *vfs.Mem, _ *Store) { m.Crash(nil) }, true},
		{"power cut", func(_ *testing.T, m *vfs.Mem, _ *Store) { m.Crash(vfs.KeepNone) }, false},
	}
	for _, compat := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
		config := func(m *vfs.Mem) Config {
			cfg := sick(m)
			cfg.Compat = compat
			return cfg
		}
		for _, e := range ends {
			t.Run(fmt.Sprintf("%v/%s", compat, e.name), func(t *testing.T) {
				healthy := killed(t).Fork(nil)
				must(t, vfs.Replace(healthy, name+".bak", []byte("voteLeader=\ncurrTerm=2\n")))
				if compat != raft.CompatGo { // a Java node has worked here
					must(t, vfs.Replace(healthy, name, []byte("voteLeader=n0\ncurrTerm=2\n")))
				}
				s := mustOpen(t, config(healthy))
				must(t, checkpoint(s))
				must(t, s.SaveTerm(12, "n1"))
				lost, _, err := s.Pos(20)
				must(t, err)
				e.end(t, healthy, s)
				text, err := vfs.ReadFile(healthy, name)
				must(t, err)
				opened, refused := 0, 0
				open := func(what string, damage func(*vfs.Mem)) {
					t.Helper()
					for _, bak := range []string{"", "voteLeader=\ncurrTerm=2\n", "voteLeader=\ncurrTerm=12\n"} {
						for _, tail := range []raft.Index{29, 19} {
							what := fmt.Sprintf("%s, beside it %q, the log ends with %d", what, bak, tail)
							m := healthy.Fork(nil)
							if bak == "" {
								must(t, m.Remove(name+".bak"))
							} else {
								must(t, vfs.Replace(m, name+".bak", []byte(bak)))
							}
							if tail < 29 {
								names, sizes := places(t, m, "data")
								for i, n := range names {
									f, err := m.OpenFile(n, os.O_RDWR)
									must(t, err)
									from := min(max(lost-int64(i)*256, 0), sizes[i])
									must(t, f.Zero(from, sizes[i]-from))
									must(t, f.Close())
								}
							}
							damage(m)
							if rep := verify(t, m); !slices.ContainsFunc(rep.Problems, func(err error) bool { return strings.Contains(err.Error(), name) }) {
								t.Errorf("%s: verify finds %v", what, rep.Problems)
							}
							s, err := Open(config(m))
							if err != nil {
								refused++
								if !errors.Is(err, errBallot) || !strings.Contains(err.Error(), name) || compat == raft.CompatGo && e.sure {
									t.Errorf("%s: %v", what, err)
								}
								continue
							}
							opened++
							want := raft.Index(-1)
							if tail < 29 {
								want = 29
							}
							if st := s.State(); st.Term != 12 || st.Vote != "n1" && st.Vote != UnknownVote || st.Last != tail || st.TailLost != want {
								t.Errorf("%s: %+v", what, st)
							}
							must(t, s.Close())
							if rep := verify(t, m); len(rep.Problems) > 0 && tail == 29 {
								t.Errorf("%s: after a start verify finds %v", what, rep.Problems)
							}
						}
					}
				}
				for off := range text {
					for bit := range 8 {
						if (off > len(crcLine(nil)) || testing.Short()) && bit%4 != off%4 {
							continue
						}
						open(fmt.Sprintf("byte %d bit %d", off, bit), func(m *vfs.Mem) { must(t, m.Flip(name, int64(off), 1<<bit)) })
					}
					if off == 0 && compat != raft.CompatGo && !e.sure {
						continue // nobody knows that it was ours, since a Java node syncs nothing: what it left in a higher term than the sidecar knows of is believed
					}
					open(fmt.Sprintf("cut at %d", off), func(m *vfs.Mem) { must(t, vfs.Replace(m, name, text[:off])) })
				}
				t.Logf("opened %d times, refused %d times", opened, refused)
				if opened == 0 && compat == raft.CompatGo && e.sure || refused == 0 && (compat != raft.CompatGo || !e.sure) {
					t.Error("one of both was never seen")
				}
			})
		}
	}
}

// TestDamagedCheckpointChangesNothing: the sidecar knows all that it says. Without a sidecar, as in a directory of a Java node, its commit index is all there is, which nothing checks: it is never one
// beyond the log, and where the number was not what is damaged it is right or unknown.
func TestDamagedCheckpointChangesNothing(t *testing.T) {
	const name = "base/dledger-n0/checkpoint"
	rng := damageRand(t)
	healthy := stopped(t)
	text, err := vfs.ReadFile(healthy, name)
	must(t, err)
	if !bytes.Contains(text, []byte("=25\n")) {
		t.Fatalf("no commit index 25 in %q", text)
	}
	for off := range text {
		for what, damage := range map[string]func(*vfs.Mem) error{
			"flipped":      func(m *vfs.Mem) error { return m.Flip(name, int64(off), byte(1+rng.IntN(255))) },
			"a bit":        func(m *vfs.Mem) error { return m.Flip(name, int64(off), 1<<rng.IntN(8)) },
			"cut":          func(m *vfs.Mem) error { return vfs.Replace(m, name, text[:off]) },
			"zeros before": func(m *vfs.Mem) error { return vfs.Replace(m, name, make([]byte, off)) },
			"zeros behind": func(m *vfs.Mem) error {
				return vfs.Replace(m, name, append(bytes.Clone(text[:off]), make([]byte, len(text)-off)...))
			},
		} {
			for _, sidecar := range []bool{true, false} {
				m := healthy.Fork(nil)
				must(t, damage(m))
				if !sidecar {
					must(t, m.Remove("base/dledger-n0/commit"))
				}
				left, err := vfs.ReadFile(m, name)
				must(t, err)
				s := mustOpen(t, sick(m))
				st := s.State()
				right := st.Commit == 25
				if !sidecar {
					right = right || st.Commit == -1 || st.Commit <= 29 && !bytes.Contains(left, []byte("=25\n"))
				}
				if !right || st.Last != 29 || st.TailLost != -1 {
					t.Errorf("byte %d, %s, with sidecar %t: %+v, checkpoint %q", off, what, sidecar, st, left)
				}
				check(t, s, 0, 29, twoTerms)
				must(t, s.Close())
			}
		}
	}
}

// A block that a crash has put in a wrong place holds whole entries. Where headers need not hold the positions of this log (compat 0.4), and the index does not tell either, what lies there is
// not taken for what follows the damage, or the stretch between would not hold what other members have of it, and would never be repaired.
func TestEntryInAWrongPlaceDoesNotEndADamagedStretch(t *testing.T) {
	roomy := func(fs vfs.FS) Config {
		cfg := small(fs)
		cfg.Compat, cfg.DataFileSize, cfg.IndexFileSize = raft.Compat04, 4096, 4096
		return cfg
	}
	for from := raft.Index(5); from <= 18; from++ { // the entry whose copy lies in the wrong place; 18 and 19 are not known to be committed
		healthy := vfs.NewMem()
		s := mustOpen(t, roomy(healthy))
		fill(t, s, 17, 1)
		must(t, s.SetCommit(17))
		must(t, checkpoint(s))
		fill(t, s, 19, 1)
		if _, err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		damage := func(m *vfs.Mem) {
			f, err := m.OpenFile(fmt.Sprintf("base/dledger-n0/data/%020d", 0), os.O_RDWR)
			must(t, err)
			pos, size, err := s.Pos(from)
			must(t, err)
			wrong := make([]byte, size)
			_, err = f.ReadAt(wrong, pos)
			must(t, err)
			at, _, err := s.Pos(2)
			must(t, err)
			_, err = f.WriteAt(wrong, at+10)
			must(t, err)
			must(t, f.Datasync())
			must(t, f.Close())
			f, err = m.OpenFile(fmt.Sprintf("base/dledger-n0/index/%020d", 0), os.O_RDWR)
			must(t, err)
			must(t, f.Zero(2*entry.IndexSize, 18*entry.IndexSize))
			must(t, f.Datasync())
			must(t, f.Close())
		}
		what := fmt.Sprintf("a copy of entry %d lies in entry 2", from)
		m := healthy.Fork(vfs.KeepAll)
		damage(m)
		curedIn(t, roomy, what, m, healthy)

		cfg := roomy(healthy.Fork(vfs.KeepAll))
		cfg.Repairs, cfg.CacheBytes = true, 1
		running := mustOpen(t, cfg)
		must(t, running.SetCommit(19))
		damage(cfg.FS.(*vfs.Mem))
		for done := false; !done; {
			var err error
			_, done, err = running.Scrub(1000)
			must(t, err)
		}
		for running.Hurt() {
			d := running.Damaged()[0]
			p, _, err := s.Read(d.First, d.Last+1, 1000)
			must(t, err)
			if _, err := running.Repair(p); err != nil {
				t.Fatalf("%s of a running store: repair of %+v: %v", what, d, err)
			}
		}
		readsRight(t, what, running, s)
		must(t, running.Close())
	}
}
