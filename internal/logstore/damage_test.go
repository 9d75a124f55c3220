package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// stopped gives a disk with a log of two terms that was stopped cleanly, last entry 29.
func stopped(t testing.TB) *vfs.Mem {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	must(t, s.SaveTerm(1, "n0"))
	fill(t, s, 14, 1)
	fill(t, s, 29, 2)
	must(t, s.SetCommit(25))
	must(t, s.Close())
	return m
}

func twoTerms(i raft.Index) raft.Term {
	if i > 14 {
		return 2
	}
	return 1
}

func verify(t testing.TB, m *vfs.Mem) Report {
	t.Helper()
	in, err := Inspect(m, "base/dledger-n0")
	must(t, err)
	rep, err := in.Verify()
	must(t, err)
	must(t, in.Close())
	return rep
}

// Whatever bit flips in data or index files: verify names it, and no reader gets wrong bytes.
func TestEveryFlippedBitIsFound(t *testing.T) {
	clean := stopped(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dir := range []string{"data", "index"} {
		names, err := clean.ReadDir("base/dledger-n0/" + dir)
		must(t, err)
		for _, n := range names {
			name := "base/dledger-n0/" + dir + "/" + n
			info, err := clean.Stat(name)
			must(t, err)
			for off := int64(rng.IntN(3)); off < info.Size; off += 1 + int64(rng.IntN(12)) {
				m := clean.Fork(vfs.KeepAll)
				mask := byte(1) << rng.IntN(8)
				must(t, m.Flip(name, off, mask))
				rep := verify(t, m)
				if len(rep.Problems) == 0 {
					t.Fatalf("%s byte %d mask %#x: verify finds nothing", name, off, mask)
				}
				var de *DamageError
				if !errors.As(rep.Problems[0], &de) {
					t.Errorf("%s byte %d: problem names no place: %v", name, off, rep.Problems[0])
				}
				if off%5 == 0 {
					readsNothingWrong(t, m, fmt.Sprintf("%s byte %d mask %#x", name, off, mask))
				}
			}
		}
	}
}

// readsNothingWrong opens a damaged directory and reads all of it: what is given is right.
func readsNothingWrong(t *testing.T, m *vfs.Mem, what string) {
	t.Helper()
	cfg := small(m)
	cfg.CacheBytes = 1
	s, err := Open(cfg)
	if err != nil {
		if !errors.As(err, new(*DamageError)) {
			t.Errorf("%s: open: %v, want the place", what, err)
		}
		return
	}
	defer func() { must(t, s.Close()) }()
	st := s.State()
	for i := st.First; i <= st.Last; i++ {
		h, b, err := s.Entry(i)
		if err == nil && (h.Term != twoTerms(i) || !bytes.Equal(b, body(i, twoTerms(i)))) {
			t.Errorf("%s: entry %d reads as %+v %q", what, i, h, b)
		}
	}
	if st.Last < 29 && st.TailLost < 29 {
		t.Errorf("%s: %d entries are gone unnoticed", what, 29-st.Last)
	}
}

// An entry that was synced and is damaged stops the start, with the place.
func TestDamageBelowWhatWasSyncedStopsTheStart(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 9, 1)
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	pos, _, err := s.Pos(5)
	must(t, err)
	name := "base/dledger-n0/data/" + fileName(pos-pos%256)
	d := m.Fork(vfs.KeepAll)
	must(t, d.Flip(name, pos%256+50, 1))
	_, err = Open(small(d))
	var de *DamageError
	if !errors.As(err, &de) || de.File != name || de.Offset != pos%256 || de.Index != 5 || !errors.Is(err, entry.ErrBody) {
		t.Errorf("open: %v, want damage of entry 5 in %s at byte %d", err, name, pos%256)
	}
	// Not synced, but committed, and the machine kept running: nothing can have torn it.
	m = vfs.NewMem()
	s = mustOpen(t, small(m))
	fill(t, s, 9, 1)
	must(t, s.SetCommit(9))
	d = m.Fork(nil)
	last := s.last
	must(t, d.Flip("base/dledger-n0/data/"+fileName(last.pos-last.pos%256), last.pos%256+48, 1))
	if _, err := Open(small(d)); !errors.As(err, new(*DamageError)) {
		t.Errorf("committed entry damaged: open: %v", err)
	}
	// Neither synced nor committed: the end of the log.
	m = vfs.NewMem()
	s = mustOpen(t, small(m))
	fill(t, s, 9, 1)
	d = m.Fork(nil)
	must(t, d.Flip("base/dledger-n0/data/"+fileName(last.pos-last.pos%256), last.pos%256+48, 1))
	check(t, mustOpen(t, small(d)), 0, 8, always(1))
}

// A log whose end is zeros is valid but short: the store says what is missing until it is there and synced again.
func TestLostTailIsRememberedUntilItIsBack(t *testing.T) {
	m := stopped(t)
	s := mustOpen(t, small(m))
	pos, _, err := s.Pos(20)
	must(t, err)
	must(t, s.Close())
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	for _, n := range names {
		f, err := m.OpenFile("base/dledger-n0/data/"+n, os.O_RDWR)
		must(t, err)
		switch {
		case n > fileName(pos-pos%256):
			must(t, m.Remove("base/dledger-n0/data/"+n))
		case n == fileName(pos-pos%256):
			must(t, f.Zero(pos%256, 256-pos%256))
		}
		must(t, f.Close())
	}
	for range 3 {
		s = mustOpen(t, small(m))
		check(t, s, 0, 19, twoTerms)
		if st := s.State(); st.TailLost != 29 || st.Commit != 19 {
			t.Fatalf("state %+v, want 29 lost", st)
		}
		m.Crash(vfs.KeepAll)
	}
	other := m.Fork(vfs.KeepAll)
	must(t, mustOpen(t, small(other)).Joined()) // a later term has committed without it
	other.Crash(vfs.KeepNone)
	if st := mustOpen(t, small(other)).State(); st.TailLost != -1 {
		t.Errorf("lost %d after the member has caught up otherwise", st.TailLost)
	}
	s = mustOpen(t, small(m))
	fill(t, s, 29, 2)
	if st := s.State(); st.TailLost != 29 {
		t.Errorf("lost %d before the sync, want 29", st.TailLost)
	}
	if _, err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if st := s.State(); st.TailLost != -1 {
		t.Errorf("lost %d after the sync", st.TailLost)
	}
	m.Crash(vfs.KeepAll)
	s = mustOpen(t, small(m))
	if st := s.State(); st.TailLost != -1 || st.Last != 29 {
		t.Errorf("state %+v", st)
	}
}

// Without any data file nothing is there, and all of it is missed.
func TestLostDataDirectoryIsNoticed(t *testing.T) {
	m := stopped(t)
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	for _, n := range names {
		must(t, m.Remove("base/dledger-n0/data/"+n))
	}
	s := mustOpen(t, small(m))
	if st := s.State(); st.Last != -1 || st.TailLost != 29 || st.Term != 1 {
		t.Errorf("state %+v", st)
	}
	fill(t, s, 9, 2)
	check(t, s, 0, 9, always(2))
}

func TestIndexFilesAreMadeAnew(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(m *vfs.Mem, names []string) error
	}{
		{"all missing", func(m *vfs.Mem, names []string) error {
			var err error
			for _, n := range names {
				err = errors.Join(err, m.Remove(n))
			}
			return err
		}},
		{"first missing", func(m *vfs.Mem, names []string) error { return m.Remove(names[0]) }},
		{"one in the middle missing", func(m *vfs.Mem, names []string) error { return m.Remove(names[2]) }},
		{"last missing", func(m *vfs.Mem, names []string) error { return m.Remove(names[len(names)-1]) }},
		{"short", func(m *vfs.Mem, names []string) error {
			f, err := m.OpenFile(names[1], os.O_RDWR)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(40), f.Close())
		}},
		{"zeros", func(m *vfs.Mem, names []string) error {
			f, err := m.OpenFile(names[1], os.O_RDWR)
			if err != nil {
				return err
			}
			return errors.Join(f.Zero(0, 128), f.Close())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := stopped(t)
			want := stopped(t)
			list, err := m.ReadDir("base/dledger-n0/index")
			must(t, err)
			for i := range list {
				list[i] = "base/dledger-n0/index/" + list[i]
			}
			must(t, c.damage(m, list))
			cfg := small(m)
			cfg.CacheBytes = 1
			s := mustOpen(t, cfg)
			if c.name == "zeros" { // not noticed at the start where no term begins there, but by verify
				must(t, s.Close())
				if rep := verify(t, m); len(rep.Problems) == 0 {
					t.Error("verify finds nothing")
				}
				return
			}
			check(t, s, 0, 29, twoTerms)
			must(t, s.Close())
			for _, n := range list {
				got, err := vfs.ReadFile(m, n)
				must(t, err)
				old, err := vfs.ReadFile(want, n)
				must(t, err)
				if !bytes.Equal(got, old) {
					t.Errorf("%s differs", n)
				}
			}
			if rep := verify(t, m); len(rep.Problems) > 0 {
				t.Errorf("problems %v", rep.Problems)
			}
		})
	}
}

func TestMissingOrWrongDataFilesStopTheStart(t *testing.T) {
	m := stopped(t)
	must(t, m.Remove("base/dledger-n0/data/"+fileName(512)))
	if _, err := Open(small(m)); err == nil || !strings.Contains(err.Error(), fileName(768)) {
		t.Errorf("gap: %v", err)
	}
	m = stopped(t)
	cfg := small(m)
	cfg.DataFileSize = 512
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "512") {
		t.Errorf("other size: %v", err)
	}
	m = stopped(t)
	must(t, m.Remove("base/dledger-n0/commit"))
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("other size, no sidecar: %v", err)
	}
	// Files that a directory gets from elsewhere are left alone.
	m = stopped(t)
	f, err := m.OpenFile("base/dledger-n0/data/lost+found", os.O_RDWR|os.O_CREATE)
	must(t, err)
	must(t, f.Close())
	must(t, mustOpen(t, small(m)).Close())
	if rep := verify(t, m); len(rep.Problems) != 1 {
		t.Errorf("problems %v", rep.Problems)
	}
}

// The sidecar may be lost or garbage: the log is then opened as one of a Java node.
func TestStoreOpensWithoutItsSidecar(t *testing.T) {
	m := stopped(t)
	must(t, m.Remove("base/dledger-n0/commit"))
	s := mustOpen(t, small(m))
	check(t, s, 0, 29, twoTerms)
	if st := s.State(); st.Commit != 25 || st.TailLost != -1 {
		t.Errorf("state %+v, want the checkpoint's commit 25", st)
	}
	must(t, s.Close())
	for off := int64(0); off < slotSize*slotCount; off += 7 {
		must(t, m.Flip("base/dledger-n0/commit", off, 0x55))
	}
	s = mustOpen(t, small(m))
	check(t, s, 0, 29, twoTerms)
	must(t, s.Close())
}

// The commit index that a Java broker finds is one whose entries are in its queues.
func TestCheckpointOfTheOriginalNamesWhatIsDerived(t *testing.T) {
	m := stopped(t) // commit index 25 of 29
	s := mustOpen(t, small(m))
	for _, c := range []struct {
		derived, want raft.Index
	}{{11, 11}, {11, 11}, {20, 20}, {27, 25}, {-1, -1}} {
		s.SetDerived(c.derived)
		must(t, checkpoint(s))
		text, err := vfs.ReadFile(m, "base/dledger-n0/checkpoint")
		must(t, err)
		if want := fmt.Sprintf("committedIndex=%d\nendIndex=29\n", c.want); string(text) != want {
			t.Errorf("derived %d: got %q, want %q", c.derived, text, want)
		}
	}
	must(t, s.Close())
	s = mustOpen(t, small(m))
	if got := s.State().Commit; got != 25 {
		t.Errorf("commit index after a restart: got %d, want 25", got)
	}
	must(t, s.Close())
}

func TestNonsenseInTheCheckpointIsIgnored(t *testing.T) {
	for _, c := range []struct {
		text string
		want raft.Index
	}{
		{"committedIndex=25\nendIndex=29\n", 25},
		{"endIndex=29\ncommittedIndex=29\n", 29},
		{"committedIndex : 7", 7},
		{"committedIndex=30\nendIndex=30\n", -1},
		{"committedIndex=9223372036854775807\n", -1},
		{"committedIndex=99999999999999999999999\n", -1},
		{"committedIndex=-5\n", -1},
		{"committedIndex=\n", -1},
		{"committedIndex\n", -1},
		{"", -1},
		{"\x00\x00\x00\x00", -1},
		{"committedIndex=1\\", -1},
		{"committedIndex=2x\nendIndex=29\n", -1},
	} {
		m := stopped(t)
		must(t, m.Remove("base/dledger-n0/commit"))
		must(t, vfs.Replace(m, "base/dledger-n0/checkpoint", []byte(c.text)))
		s := mustOpen(t, small(m))
		if st := s.State(); st.Commit != c.want || st.Last != 29 {
			t.Errorf("checkpoint %q: commit %d, last %d, want commit %d", c.text, st.Commit, st.Last, c.want)
		}
		must(t, s.Close())
	}
}

// A Java node may have left whole entries behind the end. Those that do not continue the log are its end; they are gone for good after the start.
func TestWhatDoesNotContinueEndsAJavaLog(t *testing.T) {
	build := func(t *testing.T) *vfs.Mem {
		old := mustOpen(t, small(vfs.NewMem()))
		fill(t, old, 9, 5)
		var p raft.Payload
		for i := range raft.Index(10) {
			one, _, err := old.Read(i, i+1, 0)
			must(t, err)
			p = append(p, one...)
		}
		m := vfs.NewMem()
		must(t, m.MkdirAll("base/dledger-n0/data"))
		f, err := m.Create("base/dledger-n0/data/"+fileName(0), 1024)
		must(t, err)
		_, err = f.WriteVec([][]byte{p[0], p[1], p[2], p[7], p[8]}, 0)
		must(t, err)
		must(t, f.Close())
		return m
	}
	m := build(t)
	cfg := small(m)
	cfg.DataFileSize = 1024
	if rep := verify(t, m); rep.Info.Last != 2 {
		t.Errorf("verify ends at %d", rep.Info.Last)
	}
	s := mustOpen(t, cfg)
	check(t, s, 0, 2, always(5))
	if st := s.State(); st.Term != 5 || st.Vote != UnknownVote {
		t.Errorf("term %d, vote %q: the log's last term is a lower bound", st.Term, st.Vote)
	}
	end := s.State().End
	must(t, s.Close())
	b, err := vfs.ReadFile(m, "base/dledger-n0/data/"+fileName(0))
	must(t, err)
	if !bytes.Equal(b[end:], make([]byte, 1024-end)) {
		t.Error("stale entries are still there")
	}
}

func TestTermFile(t *testing.T) {
	ours := string(ballot{term: 137, vote: "n1"}.encode())
	java := "voteLeader=n1\ncurrTerm=137\n"
	older := java + crcLine([]byte(java))
	for _, c := range []struct {
		name           string
		main, tmp, bak string // "" = missing
		term           raft.Term
		vote           raft.ID
		fails          bool
	}{
		{name: "none", term: 0},
		{name: "ours", main: ours, term: 137, vote: "n1"},
		{name: "ours, older", main: older, term: 137, vote: "n1"},
		{name: "ours, older, changed digit", main: strings.Replace(older, "137", "127", 1), fails: true},
		{name: "java", main: java, term: 137, vote: "n1"},
		{name: "java, no vote", main: "voteLeader=\ncurrTerm=9\n", term: 9},
		{name: "other syntax", main: "# c\n! c\n\n currTerm : 9\nvoteLeader\tn\\u0032\r\n", term: 9, vote: "n2"},
		{name: "renaming was cut short", tmp: java, bak: "voteLeader=\ncurrTerm=137\n", term: 137, vote: "n1"},
		{name: "tmp is torn", main: java, tmp: "voteLeader=n2\ncurrTerm=1", term: 137, vote: "n1"},
		{name: "tmp is newer", main: java, tmp: "voteLeader=n2\ncurrTerm=138\n", term: 138, vote: "n2"},
		{name: "bak is older", main: java, bak: "voteLeader=n2\ncurrTerm=136\n", term: 137, vote: "n1"},
		{name: "bak has the vote", main: "voteLeader=\ncurrTerm=137\n", bak: java, term: 137, vote: "n1"},
		{name: "torn, bak helps", main: "currTerm=1", bak: java, term: 137, vote: "n1"},
		{name: "torn, bak has no vote", main: "currTerm=1", bak: "voteLeader=\ncurrTerm=137\n", term: 137, vote: UnknownVote},
		{name: "missing, bak has no vote", bak: "voteLeader=\ncurrTerm=137\n", term: 137, vote: UnknownVote},
		{name: "ours, damaged, bak is older", main: "!" + ours[1:], bak: java, fails: true},
		{name: "empty", main: "\n", fails: true},
		{name: "zeros", main: "\x00\x00\x00\x00\x00", fails: true},
		{name: "half a number", main: "voteLeader=n1\ncurrTerm=1", fails: true},
		{name: "only the vote", main: "voteLeader=n1\n", fails: true},
		{name: "negative", main: "voteLeader=n1\ncurrTerm=-1\n", fails: true},
		{name: "no number", main: "voteLeader=n1\ncurrTerm=x\n", fails: true},
		{name: "huge", main: "voteLeader=n1\ncurrTerm=99999999999999999999\n", fails: true},
		{name: "changed digit", main: strings.Replace(ours, "137", "127", 1), fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := vfs.NewMem()
			must(t, m.MkdirAll("base/dledger-n0"))
			for _, f := range [][2]string{{"", c.main}, {".tmp", c.tmp}, {".bak", c.bak}} { // in this order: Replace goes through .tmp
				if f[1] != "" {
					must(t, vfs.Replace(m, "base/dledger-n0/currterm"+f[0], []byte(f[1])))
				}
			}
			s, err := Open(small(m))
			if c.fails {
				if err == nil || !strings.Contains(err.Error(), "base/dledger-n0/currterm") {
					t.Fatalf("open: %v, want an error that names the file", err)
				}
				return
			}
			must(t, err)
			if st := s.State(); st.Term != c.term || st.Vote != c.vote {
				t.Errorf("term %d vote %q, want %d %q", st.Term, st.Vote, c.term, c.vote)
			}
			must(t, s.Close())
			for _, suffix := range []string{".tmp", ".bak"} { // nobody needs them from now on
				if err := m.Remove("base/dledger-n0/currterm" + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			s = mustOpen(t, small(m))
			if st := s.State(); st.Term != c.term || st.Vote != c.vote {
				t.Errorf("term %d vote %q without the other files, want %d %q", st.Term, st.Vote, c.term, c.vote)
			}
			must(t, s.Close())
		})
	}
	// Of a renaming that was cut short the newer file may be the one that the disk does not give: then the older one does not count.
	for _, c := range []struct {
		ill, main, tmp, bak string
		fails               bool
	}{
		{ill: ".tmp", tmp: java, bak: "voteLeader=\ncurrTerm=137\n", fails: true},
		{ill: ".tmp", main: "voteLeader=\ncurrTerm=137\n", tmp: java},
		{ill: ".bak", tmp: "voteLeader=\ncurrTerm=137\n", bak: java},
		{ill: ".bak", bak: java, fails: true},
		{ill: "", main: java, fails: true},
	} {
		m := vfs.NewMem()
		must(t, m.MkdirAll("base/dledger-n0"))
		for _, f := range [][2]string{{"", c.main}, {".tmp", c.tmp}, {".bak", c.bak}} {
			if f[1] != "" {
				must(t, vfs.Replace(m, "base/dledger-n0/currterm"+f[0], []byte(f[1])))
			}
		}
		m.SetHook(func(call vfs.Call) error {
			if call.Op == "read" && call.Name == "base/dledger-n0/currterm"+c.ill {
				return syscall.EIO
			}
			return nil
		})
		s, err := Open(small(m))
		if c.fails {
			if err == nil || !strings.Contains(err.Error(), "base/dledger-n0/currterm"+c.ill) {
				t.Errorf("%+v: open: %v, want an error that names the file", c, err)
			}
			continue
		}
		must(t, err)
		if st := s.State(); st.Term != 137 || st.Vote != "" {
			t.Errorf("%+v: %+v", c, st)
		}
		must(t, s.Close())
	}
	for n := range len(ours) { // no part of it may pass for a Java node's either, behind which nothing is known of what was durable
		if b, err := parseBallot([]byte(ours[:n])); err == nil {
			t.Errorf("cut at %d bytes it reads as term %d", n, b.term)
		}
	}
	for _, text := range []string{ours, older} { // nor may a file with one changed byte
		for i := range len(text) {
			for mask := 1; mask < 256; mask++ {
				changed := []byte(text)
				changed[i] ^= byte(mask)
				if b, err := parseBallot(changed); err == nil {
					t.Errorf("changed at byte %d by %#x it reads as %+v", i, mask, b)
				}
			}
		}
	}
}

// A log that began anew and has no entry yet goes on behind a blank record. If that is damaged it is made anew, or the next start would miss what came behind it.
func TestDamagedBlankBeforeAnEmptyLogIsMadeAnew(t *testing.T) {
	for _, config := range []func(vfs.FS) Config{small, sick} {
		for _, clean := range []bool{true, false} {
			for off := range int64(8) {
				m := vfs.NewMem()
				s := mustOpen(t, config(m))
				must(t, s.SaveTerm(2, "n1"))
				must(t, s.Reset(100, 4*256+175, 2))
				if clean {
					must(t, s.Close())
				}
				m.Crash(vfs.KeepNone)
				must(t, m.Flip("base/dledger-n0/data/"+fileName(1024), off, 0x10))
				must(t, m.Flip("base/dledger-n0/data/"+fileName(1024), 8+20*off, 0x10))
				s = mustOpen(t, config(m))
				if st := s.State(); st.First != 100 || st.Last != 99 {
					t.Fatalf("byte %d: %+v", off, st)
				}
				fill(t, s, 103, 3)
				must(t, s.SetCommit(102))
				_, err := s.Sync()
				must(t, err)
				m.Crash(vfs.KeepNone)
				s = mustOpen(t, config(m))
				check(t, s, 100, 103, always(3))
				must(t, s.Close())
				if rep := verify(t, m); len(rep.Problems) > 0 {
					t.Errorf("byte %d: %v", off, rep.Problems)
				}
			}
		}
	}
}

// The sidecar knows a lower bound of the term, so a term file that went missing is noticed. After a clean stop, or where only the process died, it
// knows the very term, and a node that gives no vote in it can go on; not so after a power cut, or where a Java node may have voted since.
func TestMissingTermFileIsNoticed(t *testing.T) {
	const name = "base/dledger-n0/currterm"
	for _, damage := range []func(m *vfs.Mem) error{
		func(m *vfs.Mem) error { return m.Remove(name) },
		func(m *vfs.Mem) error { return m.Flip(name, 12, 4) },
		func(m *vfs.Mem) error { return m.Flip(name, 25, 1) },
		func(m *vfs.Mem) error { return vfs.Replace(m, name, nil) },
	} {
		for _, end := range []string{"stopped", "killed", "power cut", "compat 0.4"} {
			m := vfs.NewMem()
			cfg := small(m)
			if end == "compat 0.4" {
				cfg.Compat = raft.Compat04
			}
			s := mustOpen(t, cfg)
			must(t, s.SaveTerm(7, "n2"))
			switch end {
			case "killed":
				m.Crash(nil)
			case "power cut":
				m.Crash(vfs.KeepAll)
			default:
				must(t, s.Close())
			}
			must(t, damage(m))
			s, err := Open(cfg)
			if end == "compat 0.4" && err == nil && s.State().Vote == "n2" {
				continue // it may be a Java node's
			}
			if end == "power cut" || end == "compat 0.4" {
				if err == nil || !strings.Contains(err.Error(), "currterm") {
					t.Errorf("%s: open: %v", end, err)
				}
				continue
			}
			must(t, err)
			if st := s.State(); st.Term != 7 || st.Vote != UnknownVote {
				t.Errorf("%s: term %d, vote %q, want 7 and a vote for nobody", end, st.Term, st.Vote)
			}
			m.Crash(vfs.KeepNone)
			if st := mustOpen(t, cfg).State(); st.Term != 7 || st.Vote != UnknownVote {
				t.Errorf("%s, and a power cut: term %d, vote %q", end, st.Term, st.Vote)
			}
		}
	}
}

// A Java node that takes over writes currterm, commits and cuts as it likes; what our sidecar says of its files is void.
func TestWhatAJavaNodeDidMeanwhileCounts(t *testing.T) {
	m := stopped(t)
	// It cut the log behind 26, which was synced but not committed, and appended other entries, shorter ones.
	donor := mustOpen(t, small(m.Fork(nil)))
	must(t, donor.Truncate(26))
	pos := donor.State().End
	must(t, donor.Append(27, 3, 1, [][]byte{[]byte("java"), []byte("was"), []byte("here")}, nil))
	must(t, donor.Flush())
	p, _, err := donor.Read(27, 30, 1<<20)
	must(t, err)
	b := bytes.Join(p, nil)
	f, err := m.OpenFile("base/dledger-n0/data/"+fileName(pos-pos%256), os.O_RDWR)
	must(t, err)
	room := int(256 - pos%256)
	n := 0 // whole entries that fit
	for n < len(b) {
		h, err := entry.Parse(b[n:])
		must(t, err)
		if n+int(h.Size) > room {
			break
		}
		n += int(h.Size)
	}
	_, err = f.WriteAt(b[:n], pos%256)
	must(t, err)
	must(t, f.Close())
	for _, dir := range []string{"data", "index"} { // it removes the files behind
		names, err := m.ReadDir("base/dledger-n0/" + dir)
		must(t, err)
		for _, name := range names {
			if dir == "data" && name > fileName(pos-pos%256) || dir == "index" && name > fileName(27*32/128*128) {
				must(t, m.Remove("base/dledger-n0/"+dir+"/"+name))
			}
		}
	}
	must(t, vfs.Replace(m, "base/dledger-n0/currterm", []byte("voteLeader=n1\ncurrTerm=3\n")))
	cfg := small(m)
	cfg.Compat = raft.Compat04
	s := mustOpen(t, cfg)
	st := s.State()
	if st.Last < 27 || st.Runs[len(st.Runs)-1] != (raft.Run{Term: 3, First: 27}) || st.Term != 3 || st.Vote != "n1" || st.Commit != 25 {
		t.Errorf("state %+v", st)
	}
	if _, body, err := s.Entry(27); err != nil || string(body) != "java" {
		t.Errorf("entry 27 is %q, %v", body, err)
	}
	must(t, s.Close())
}

// tamper does to the files of a directory what a program says, five bytes a step: what to do, to which file, where or with which other one, and how much. No step
// makes anything larger than it was by more than 255 bytes.
func tamper(t testing.TB, m *vfs.Mem, program []byte) {
	t.Helper()
	const dir = "base/dledger-n0"
	for ; len(program) >= 5; program = program[5:] {
		var names []string
		for _, d := range []string{dir, dir + "/data", dir + "/index"} {
			list, err := m.ReadDir(d)
			must(t, err)
			for _, n := range list {
				name := d + "/" + n
				if info, err := m.Stat(name); err == nil && !info.Dir && n != vfs.LockName {
					names = append(names, name)
				}
			}
		}
		if len(names) == 0 {
			return
		}
		name, other := names[int(program[1])%len(names)], names[int(program[2])%len(names)]
		b, err := vfs.ReadFile(m, name)
		must(t, err)
		at, n := 0, int(program[4])
		if len(b) > 0 {
			at = (int(program[2])<<8 | int(program[3])) % len(b)
		}
		end := min(at+n, len(b))
		switch program[0] % 8 {
		case 0: // a byte changes
			if len(b) > 0 {
				b[at] ^= program[4]
			}
		case 1: // zeros
			clear(b[at:end])
		case 2: // cut
			b = b[:at]
		case 3: // something is behind
			b = append(b, bytes.Repeat([]byte{program[3]}, n)...)
		case 4: // two files are in each other's place
			c, err := vfs.ReadFile(m, other)
			must(t, err)
			put(t, m, other, b)
			b = c
		case 5: // gone
			must(t, m.Remove(name))
			continue
		case 6: // a copy of another place
			copy(b[at:end], b[int(program[3])%max(len(b), 1):])
		case 7: // there twice, the second time somewhere else
			if sub := filepath.Dir(name); sub != dir {
				name = filepath.Join(sub, fileName(int64(program[2])<<8|int64(program[3])&^63))
			}
		}
		put(t, m, name, b)
	}
}

// put makes b the content of a file.
func put(t testing.TB, m *vfs.Mem, name string, b []byte) {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	must(t, err)
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}

// FuzzRecovery opens directories of ours and of the originals with files that are changed, cut, made longer, exchanged, doubled and gone: Open gives a log of which each entry
// reads as it was written, or not at all, and that goes on; or an error that says why. Never a panic, never other bytes, and no memory beyond what the files take.
func FuzzRecovery(f *testing.F) {
	for which := range uint8(12) {
		f.Add(which, []byte{})
		for kind := range uint8(8) {
			f.Add(which, []byte{kind, which + kind, 0, 100, 60})
			f.Add(which, []byte{kind, 3 * kind, 1, 10, 1, 7 - kind, 2 + which, 0, 48, 200})
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, program []byte) {
		if len(program) > 60 {
			return
		}
		var m *vfs.Mem
		var cfg Config
		want := map[raft.Index]string{}
		switch which % 4 {
		case 0, 1:
			m = stopped(t)
			for i := range raft.Index(30) {
				want[i] = string(body(i, twoTerms(i)))
			}
		default:
			v := goldenVersions[which%2]
			g := readGolden(t, v.version)
			m = g.Steps[int(which/4)%len(g.Steps)].disk(t)
			cfg.Compat = v.compat
			for _, e := range g.Steps[0].Entries {
				want[e.Index] = string(e.encode(t)[entry.HeaderSize:])
			}
		}
		config := small(m)
		config.Compat, config.CacheBytes, config.Repairs = cfg.Compat, 1, which%4%2 == 1
		const side = "base/dledger-n0/" + sideName
		noted, _ := vfs.ReadFile(m, side)
		tamper(t, m, program)
		now, _ := vfs.ReadFile(m, side)
		believes := len(noted) == 0 || !bytes.Equal(noted, now)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if in, err := Inspect(m, "base/dledger-n0"); err == nil {
			if _, err := in.Verify(); err != nil && err.Error() == "" {
				t.Error("verify: an error without a message")
			}
			must(t, in.Close())
		}
		s, err := Open(config)
		runtime.ReadMemStats(&after)
		if most := uint64(8 << 20); after.TotalAlloc-before.TotalAlloc > most {
			t.Errorf("%d bytes of memory for %d on the disk", after.TotalAlloc-before.TotalAlloc, m.Used())
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a message")
			}
			return
		}
		reads := func(s *Store) (st State) {
			st = s.State()
			if st.Commit > st.Last || st.Last < st.First-1 {
				t.Errorf("R7: %+v", st)
			}
			for i := st.First; i <= min(st.Last, st.First+1000); i++ {
				h, b, err := s.Entry(i)
				bare := h.ChainCRC == 0 || h.BodyCRC == 0 // as Java writes it, where nobody knows better: then nothing tells
				if err == nil && (h.Index != i || want[i] != string(b) && !(bare && believes)) {
					t.Errorf("entry %d reads as %+v %q, want %q", i, h, b, want[i])
				}
			}
			return st
		}
		st := reads(s)
		err = s.Append(st.Last+1, max(st.Term, 3), entry.MagicNormal, [][]byte{[]byte("x")}, nil)
		if err == nil {
			err = s.Flush()
			want[st.Last+1] = "x"
		}
		if err != nil && !errors.Is(err, errLooseEnd) {
			t.Errorf("the log does not go on: %v", err)
		}
		must(t, s.Close())
		again := mustOpen(t, config)
		if after := reads(again); err == nil && after.Last != st.Last+1 && !again.Hurt() && after.TailLost < 0 {
			t.Errorf("the log ended with entry %d, and now with %d", st.Last+1, after.Last)
		}
		must(t, again.Close())
	})
}

// goldenTexts adds the files of a name that the originals left.
func goldenTexts(f *testing.F, name string) {
	f.Helper()
	for _, v := range goldenVersions {
		for _, step := range readGolden(f, v.version).Steps {
			for file := range step.Files {
				if base := filepath.Base(file); strings.HasPrefix(base, name) {
					f.Add(step.bytes(f, file))
				}
			}
		}
	}
}

func FuzzTermFile(f *testing.F) {
	goldenTexts(f, termName)
	f.Add([]byte("voteLeader=n0\ncurrTerm=1\n"))
	f.Add(ballot{term: 5, vote: "n0"}.encode())
	f.Add([]byte("currTerm=\\u0031\nvoteLeader=\\\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := parseBallot(text)
		if err != nil {
			return
		}
		if b.term < 0 || len(text) == 0 || text[len(text)-1] != '\n' {
			t.Errorf("%q reads as %+v", text, b)
		}
	})
}

func FuzzCheckpoint(f *testing.F) {
	goldenTexts(f, checkpointName)
	f.Add([]byte("committedIndex=4\nendIndex=5\n"))
	f.Add([]byte("committedIndex=-1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if c := parseCheckpoint(text); c.commit < -1 || c.end < -1 {
			t.Errorf("%q reads as %+v", text, c)
		}
	})
}
