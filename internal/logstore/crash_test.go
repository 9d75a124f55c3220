package logstore

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/figure"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

var crashSeed = flag.Uint64("crash.seed", 0, "seed of the random crash scripts; 0 takes a few fixed ones and one by the clock")

// model is what a store should hold: terms stands for the entries, whose bodies follow from index and term.
type model struct {
	first    raft.Index
	terms    []raft.Term
	staged   int        // entries at the end that were not flushed
	durable  raft.Index // all up to here survive a power cut
	commit   raft.Index
	term     raft.Term
	vote     raft.ID
	prevTerm raft.Term
}

func (m model) last() raft.Index    { return m.first + raft.Index(len(m.terms)) - 1 }
func (m model) flushed() raft.Index { return m.last() - raft.Index(m.staged) }

func (m model) clone() model {
	m.terms = slices.Clone(m.terms)
	return m
}

// shape is what the files of a crash test look like beside the blocks of 512 bytes that a crash keeps or loses.
type shape struct {
	name string
	cfg  func(vfs.FS) Config
	body func(raft.Index, raft.Term) []byte
	log  int // entries that a script finds
	roll int // entries that reach the next data file
}

var shapes = []shape{
	// Files that are smaller than a block: what a crash may lose is a whole file's change.
	{"small", small, body, 8, 7},
	// Files of several blocks, data and index: one block may be lost between two that are kept, in the middle of an entry or of a record's neighbours. A roll goes over
	// an edge of data files, and over two edges of blocks in the index.
	{"wide", func(fs vfs.FS) Config {
		cfg := small(fs)
		cfg.DataFileSize, cfg.IndexFileSize = 8*vfs.BlockSize, 4*vfs.BlockSize
		return cfg
	}, wideBody, 10, 34},
}

// wideBody gives eight bodies of some 300 bytes, then eight of the short ones, and so on.
func wideBody(i raft.Index, term raft.Term) []byte {
	b := body(i, term)
	if i/8%2 == 0 {
		b = bytes.Repeat(b, 300/len(b))
	}
	return b
}

// everyShape runs a test with each shape of files.
func everyShape(t *testing.T, f func(*testing.T, shape)) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) { f(t, s) })
	}
}

// crashTest runs a script on a disk, and at each call to the disk tries what a crash there would leave.
type crashTest struct {
	t             *testing.T
	rng           *rand.Rand
	disk          *vfs.Mem
	store         *Store
	shape         shape
	cfg           Config
	now           time.Time
	before, after model // the operation under way leads from one to the other
	op            string
	crashes       int
	expired       int            // rounds of retention that moved the first entry up
	holes         map[string]int // crashes that lost one block between two that were kept, by the kind of file: data or index
	depth         int
	quick         bool // one kind of crash by chance at each moment
	whole         bool // every single unsynced block too, kept on its own and lost on its own
	off           bool // no crashes for now
}

// compatible tells whether what a store says after a crash fits m; sure is the last entry that must be there.
func (m model) compatible(s *Store, sure raft.Index, body func(raft.Index, raft.Term) []byte) error {
	st := s.State()
	if st.First != m.first {
		return fmt.Errorf("first is %d, want %d", st.First, m.first)
	}
	if st.Last > m.last() || st.Last < sure {
		return fmt.Errorf("last is %d, want %d to %d", st.Last, sure, m.last())
	}
	if st.PrevTerm != m.prevTerm {
		return fmt.Errorf("term before the first is %d, want %d", st.PrevTerm, m.prevTerm)
	}
	for i := st.First; i <= st.Last; i++ {
		want := m.terms[i-m.first]
		h, b, err := s.Entry(i)
		if err != nil {
			return err
		}
		if h.Term != want || string(b) != string(body(i, want)) {
			return fmt.Errorf("entry %d has term %d and body %q, want term %d", i, h.Term, b, want)
		}
		if term, err := s.Term(i); err != nil || term != want {
			return fmt.Errorf("runs say entry %d has term %d (%v), want %d", i, term, err, want)
		}
	}
	if st.Commit > m.commit || st.Commit > st.Last {
		return fmt.Errorf("commit is %d, was %d, last is %d", st.Commit, m.commit, st.Last)
	}
	if st.TailLost != -1 && (st.TailLost <= st.Last || st.TailLost > m.commit) {
		return fmt.Errorf("tail lost %d, last %d, commit was %d", st.TailLost, st.Last, m.commit)
	}
	if st.Durable != st.Last {
		return fmt.Errorf("durable is %d, last %d", st.Durable, st.Last)
	}
	return nil
}

// votes tells whether term and vote are those of m.
func (st State) votes(m model) bool { return st.Term == m.term && st.Vote == m.vote }

// unknownByLog tells whether the log alone shows its last entry's term, above a saved one, so that no vote in it is known. Nothing else makes one unknown at a crash: what was
// saved is there.
func (st State) unknownByLog(saved raft.Term) bool {
	last := st.PrevTerm
	if n := len(st.Runs); n > 0 {
		last = st.Runs[n-1].Term
	}
	return st.Vote == UnknownVote && st.Term == last && last > saved
}

// look opens what a crash left and compares it with both sides of the operation.
func (c *crashTest) look(disk *vfs.Mem, powerCut bool, how string) {
	c.t.Helper()
	c.crashes++
	cfg := c.cfg
	cfg.FS = disk
	if c.depth == 0 && c.rng.IntN(16) == 0 {
		c.again(disk, powerCut, how)
	}
	s, err := Open(cfg)
	if err != nil {
		c.t.Fatalf("%s: %s: open: %v", c.op, how, err)
	}
	errs := []string{}
	for _, m := range []model{c.before, c.after} {
		sure := m.first - 1
		if !powerCut {
			sure = min(c.before.flushed(), m.last())
		} else if m.first == c.before.first {
			sure = max(min(c.before.durable, m.last()), m.first-1)
		}
		if err := m.compatible(s, sure, c.shape.body); err != nil {
			errs = append(errs, err.Error())
		}
	}
	if len(errs) == 2 {
		c.t.Fatalf("%s: %s: %s", c.op, how, strings.Join(errs, "; or "))
	}
	if st := s.State(); !st.votes(c.before) && !st.votes(c.after) && !st.unknownByLog(c.before.term) {
		c.t.Fatalf("%s: %s: term %d vote %q, want %d %q or %d %q", c.op, how, st.Term, st.Vote, c.before.term, c.before.vote, c.after.term, c.after.vote)
	}
	// The log goes on: what is appended now is there after a clean stop.
	st := s.State()
	if err := s.Append(st.Last+1, max(st.Term, 1), entry.MagicNormal, [][]byte{[]byte("after the crash")}, nil); err != nil {
		c.t.Fatalf("%s: %s: append: %v", c.op, how, err)
	}
	if err := s.Close(); err != nil {
		c.t.Fatalf("%s: %s: close: %v", c.op, how, err)
	}
	in, err := Inspect(disk, cfg.Dir)
	if err != nil {
		c.t.Fatalf("%s: %s: inspect: %v", c.op, how, err)
	}
	rep, err := in.Verify()
	if err != nil || len(rep.Problems) > 0 || rep.Info.Last != st.Last+1 {
		c.t.Fatalf("%s: %s: verify: %v %v, last %d, want %d", c.op, how, err, rep.Problems, rep.Info.Last, st.Last+1)
	}
	if err := in.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// again crashes while the store recovers from a crash.
func (c *crashTest) again(disk *vfs.Mem, powerCut bool, how string) {
	c.depth++
	disk = disk.Fork(nil)
	n := 0
	disk.SetHook(func(call vfs.Call) error {
		n++
		if reads(call) || c.rng.IntN(3) > 0 {
			return nil
		}
		seed := c.rng.Uint64()
		c.look(disk.Fork(vfs.KeepRandom(seed)), true, fmt.Sprintf("%s, then at call %d of open, %s, blocks kept by seed %d", how, n, call, seed))
		return nil
	})
	cfg := c.cfg
	cfg.FS = disk
	s, err := Open(cfg)
	if err != nil {
		c.t.Fatalf("%s: %s: open: %v", c.op, how, err)
	}
	disk.SetHook(nil)
	if err := s.release(); err != nil {
		c.t.Fatal(err)
	}
	c.depth--
}

func reads(call vfs.Call) bool {
	return slices.Contains([]string{"read", "open", "stat", "readdir", "mkdir"}, call.Op)
}

// crash tries the kinds of crash at this moment: all of them, or in a quick test one by chance.
func (c *crashTest) crash(where string) {
	if c.off {
		return
	}
	if c.whole {
		all := pieces(c.disk)
		for _, p := range all {
			for _, kept := range []bool{true, false} {
				if len(all) == 1 {
					continue // all or nothing, which comes below
				}
				if !kept && slices.Contains(all, piece{p.name, p.block - 1}) && slices.Contains(all, piece{p.name, p.block + 1}) {
					c.holes[filepath.Base(filepath.Dir(p.name))]++
				}
				c.look(c.disk.Fork(func(name string, block int64) int {
					if (piece{name, block} == p) == kept {
						return vfs.BlockSize
					}
					return 0
				}), true, fmt.Sprintf("%s, of all %d pieces block %d of %s alone kept (%v) or lost", where, len(all), p.block, p.name, kept))
			}
		}
	}
	only := -1
	if c.quick {
		only = c.rng.IntN(4)
	}
	for kind := range 4 {
		if only >= 0 && kind != only {
			continue
		}
		switch seed := c.rng.Uint64(); kind {
		case 0:
			c.look(c.disk.Fork(vfs.KeepNone), true, where+", nothing unsynced kept")
		case 1:
			c.look(c.disk.Fork(vfs.KeepAll), true, where+", all kept")
		case 2:
			c.look(c.disk.Fork(vfs.KeepRandom(seed)), true, fmt.Sprintf("%s, blocks kept by seed %d", where, seed))
		case 3:
			c.look(c.disk.Fork(nil), false, where+", process killed")
		}
	}
}

// do runs one operation with crashes inside and after.
func (c *crashTest) do(op string, change func(*model), run func() error) {
	c.t.Helper()
	c.op = op
	c.after = c.before.clone()
	change(&c.after)
	n := 0
	c.disk.SetHook(func(call vfs.Call) error {
		n++
		if !reads(call) {
			c.crash(fmt.Sprintf("before call %d, %s", n, call))
		}
		return nil
	})
	err := run()
	c.disk.SetHook(nil)
	if err != nil {
		c.t.Fatalf("%s: %v", op, err)
	}
	c.before = c.after
	c.crash("after it")
}

func (c *crashTest) append(n int, term raft.Term) {
	m := c.before
	var bodies [][]byte
	for i := range n {
		bodies = append(bodies, c.shape.body(m.last()+1+raft.Index(i), term))
	}
	c.do(fmt.Sprintf("append %d to %d of term %d", m.last()+1, m.last()+raft.Index(n), term), func(m *model) {
		m.terms = append(m.terms, slices.Repeat([]raft.Term{term}, n)...)
		m.staged += n
	}, func() error {
		return c.store.Append(m.last()+1, term, entry.MagicNormal, bodies, nil)
	})
}

func (c *crashTest) flush() {
	c.do("flush", func(m *model) { m.staged = 0 }, c.store.Flush)
}

func (c *crashTest) sync() {
	c.do("sync", func(m *model) { m.durable = m.flushed() }, func() error {
		_, err := c.store.Sync()
		return err
	})
}

func (c *crashTest) commit(i raft.Index) {
	c.do(fmt.Sprintf("commit %d", i), func(m *model) { m.commit = max(m.commit, i) }, func() error { return c.store.SetCommit(i) })
}

func (c *crashTest) checkpoint() {
	c.do("checkpoint", func(m *model) { m.durable = m.flushed() }, func() error { return checkpoint(c.store) })
}

func (c *crashTest) vote(term raft.Term, id raft.ID) {
	c.do(fmt.Sprintf("vote %d %s", term, id), func(m *model) { m.term, m.vote = term, id }, func() error { return c.store.SaveTerm(term, id) })
}

func (c *crashTest) truncate(last raft.Index) {
	c.flush()
	c.do(fmt.Sprintf("truncate to %d", last), func(m *model) {
		m.terms = m.terms[:last-m.first+1]
		m.durable = min(m.durable, last)
	}, func() error { return c.store.Truncate(last) })
}

func (c *crashTest) reset(next raft.Index, pos int64, term raft.Term) {
	c.flush()
	c.do(fmt.Sprintf("reset to %d at %d", next, pos), func(m *model) {
		m.first, m.terms, m.prevTerm = next, nil, term
		m.commit = max(m.commit, next-1)
		m.durable = next - 1
	}, func() error { return c.store.Reset(next, pos, term) })
}

func (c *crashTest) expire() {
	c.flush()
	was := c.before
	c.now = c.now.Add(4 * 24 * time.Hour) // at four again, the hour of retention
	c.op = "expire"
	// Where the log begins afterwards is asked of a copy.
	fork := c.disk.Fork(nil)
	cfg := c.cfg
	cfg.FS = fork
	s, err := Open(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := s.Expire(); err != nil {
		c.t.Fatal(err)
	}
	st := s.State()
	if err := s.release(); err != nil {
		c.t.Fatal(err)
	}
	c.do(fmt.Sprintf("expire up to %d", st.First), func(m *model) {
		if st.First > was.first {
			c.expired++
			m.prevTerm = was.terms[st.First-1-was.first]
			m.terms = m.terms[st.First-was.first:]
			m.first = st.First
		}
	}, func() error {
		_, err := c.store.Expire()
		return err
	})
}

func newCrashTest(t *testing.T, shape shape, seed uint64) *crashTest {
	c := &crashTest{t: t, shape: shape, holes: map[string]int{}, rng: rand.New(rand.NewPCG(seed, 1)), disk: vfs.NewMem(), now: time.Date(2030, 1, 1, 4, 0, 0, 0, time.UTC)}
	c.disk.SetClock(func() time.Time { return c.now })
	c.cfg = shape.cfg(c.disk)
	c.cfg.Now = func() time.Time { return c.now }
	c.before = model{durable: -1, commit: -1, prevTerm: -1}
	if seed != 1 { // else the default
		c.cfg.Compat = []raft.Compat{raft.CompatGo, raft.CompatGo, raft.Compat04, raft.Compat03}[c.rng.IntN(4)]
		c.cfg.Async = c.rng.IntN(3) == 0
	}
	c.store = mustOpen(t, c.cfg)
	return c
}

// After each call to the disk the power may go, with any part of what was not synced reaching the disk: what a sync covered is there, what was
// truncated is not, the log is one of the two that the operation leads between, and the store opens.
func TestCrashesLeaveTheLogBeforeOrAfter(t *testing.T) {
	everyShape(t, crashesLeaveTheLogBeforeOrAfter)
}

func crashesLeaveTheLogBeforeOrAfter(t *testing.T, shape shape) {
	c := newCrashTest(t, shape, 1)
	c.vote(1, "n0")
	c.append(3, 1)
	c.flush()
	c.sync()
	c.commit(1)
	c.append(6, 1) // rolls
	c.flush()
	c.commit(4)
	c.sync()
	c.checkpoint()
	c.append(5, 1)
	c.flush()
	c.truncate(5) // into an earlier file, before its blank
	c.vote(2, "")
	c.append(4, 2)
	c.flush()
	c.sync()
	c.commit(7)
	c.vote(3, "n2")
	c.append(12, 3)
	c.flush()
	c.commit(15) // ahead of what is durable
	c.checkpoint()
	c.append(shape.roll, 3)
	c.flush()
	c.commit(c.before.flushed())
	c.expire()
	c.append(2, 3)
	c.flush()
	c.reset(100, 4*c.cfg.DataFileSize+175, 3)
	c.append(3, 3)
	c.flush()
	c.sync()
	c.truncate(100)
	c.truncate(99)
	c.append(9, 4)
	c.flush()
	c.sync()
	c.do("close", func(m *model) { m.durable = m.flushed() }, c.store.Close)
	if c.expired == 0 {
		t.Error("nothing expired")
	}
	figure.Log(t, "%d crashes", c.crashes)
}

// The same with scripts made by chance. Replay one with go test -run Random -crash.seed=N.
func TestRandomScriptsSurviveCrashes(t *testing.T) {
	seeds := []uint64{2, 3, uint64(time.Now().UnixNano())}
	if *crashSeed != 0 {
		seeds = []uint64{*crashSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("-crash.seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			for _, shape := range shapes {
				c := newCrashTest(t, shape, seed)
				c.quick = *crashSeed == 0
				for range 20 {
					c.random()
				}
				t.Logf("%s files: %d crashes", shape.name, c.crashes)
			}
		})
	}
}

func (c *crashTest) random() {
	m := c.before
	switch n := c.rng.IntN(20); {
	case n < 6:
		c.append(1+c.rng.IntN(c.shape.roll), max(m.term, 1))
	case n < 9:
		c.flush()
	case n < 11:
		c.sync()
	case n < 13:
		if i := m.flushed(); i > m.commit {
			c.commit(m.commit + 1 + raft.Index(c.rng.IntN(int(i-m.commit))))
		}
	case n < 15:
		c.vote(m.term+raft.Term(c.rng.IntN(2)), raft.ID(fmt.Sprintf("n%d", c.rng.IntN(3))))
	case n < 17:
		c.flush()
		if lo := max(m.commit, m.first-1); m.last() > lo {
			c.truncate(lo + raft.Index(c.rng.IntN(int(m.last()-lo))))
			c.vote(m.term+1, "")
		}
	case n < 18:
		c.checkpoint()
	case n < 19:
		c.expire()
	default:
		c.flush()
		c.reset(m.last()+1+raft.Index(c.rng.IntN(40)), int64(c.rng.IntN(4))*c.cfg.DataFileSize+56+int64(c.rng.IntN(100)), max(m.term, 1))
	}
}
