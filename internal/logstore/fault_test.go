package logstore

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// kinds is in which ways a life is lived when one of its calls fails: the settings that change what the store does with its disk.
var kinds = []struct {
	name   string
	config func(*Config)
}{
	{"inline", func(*Config) {}},
	{"background", func(c *Config) { c.Inline = false }},
	{"async", func(c *Config) { c.Async, c.Inline = true, false }},
	{"compat 0.3", func(c *Config) { c.Compat = raft.Compat03 }},
	{"member of a group", func(c *Config) { c.Repairs, c.CacheBytes = true, 1 }},
}

// faults are the calls that fail in TestFirstFailureIsFinal, and with which error. Together with reading they are all kinds of calls that a life makes.
var faults = []struct {
	op  string
	err error
}{{"open", syscall.EIO}, {"create", syscall.EIO}, {"write", syscall.EIO}, {"write", &vfs.ShortError{N: drawn, Err: syscall.EIO}}, {"allocate", syscall.EIO}, {"zero", syscall.EIO},
	{"prewrite", syscall.EIO}, {"truncate", syscall.EIO}, {"datasync", syscall.EIO}, {"sync", syscall.EIO}, {"rename", syscall.EIO}, {"syncdir", syscall.EIO}, {"remove", syscall.EIO},
	{"stat", syscall.EIO}, {"readdir", syscall.EIO}, {"mkdir", syscall.EIO}, {"lock", syscall.EIO}, {"statfs", syscall.EIO}}

// noRoom are those that can fail for want of room.
var noRoom = []struct {
	op    string
	err   error
	final bool // some of these calls cannot be repeated
}{{"open", syscall.ENOSPC, false}, {"create", syscall.ENOSPC, false}, {"write", syscall.ENOSPC, true}, {"write", &vfs.ShortError{N: drawn, Err: syscall.ENOSPC}, true},
	{"allocate", syscall.ENOSPC, false}, {"zero", syscall.ENOSPC, true}, {"prewrite", syscall.ENOSPC, false}, {"truncate", syscall.ENOSPC, false}, {"datasync", syscall.ENOSPC, true},
	{"sync", syscall.ENOSPC, false}, {"rename", syscall.ENOSPC, false}, {"syncdir", syscall.ENOSPC, true}, {"remove", syscall.ENOSPC, true}, {"mkdir", syscall.ENOSPC, false}}

// drawn as the length of a short write is another one for each.
const drawn = -1

// shortWrites are the lengths that are drawn, of a write of n bytes, with part from 0 to 1.
var shortWrites = []struct {
	name string
	of   func(n int, part float64) int
}{
	{"nothing", func(int, float64) int { return 0 }},
	{"the first byte", func(int, float64) int { return 1 }},
	{"a part", func(n int, part float64) int { return int(float64(n) * part) }},
	{"all but the last byte", func(n int, _ float64) int { return n - 1 }},
	{"all", func(n int, _ float64) int { return n }},
}

// Every kind of call that a life makes, in any of its ways, has its rows in the tests below.
func TestEveryKindOfCallIsMadeToFail(t *testing.T) {
	made := map[string]int{}
	for _, k := range kinds {
		l := newLife(t, k.config)
		l.what = k.name
		var mu sync.Mutex
		l.hook(func(c vfs.Call) error {
			mu.Lock()
			defer mu.Unlock()
			made[c.Op]++
			return nil
		})
		must(t, l.everything(func(f func() error) error { return f() }))
		l.end(nil)
	}
	fails, full := map[string]bool{"read": true}, map[string]bool{}
	for _, f := range faults {
		fails[f.op] = true
	}
	for _, op := range []string{"read", "stat", "readdir", "lock", "statfs"} {
		full[op] = true // want of room is no answer to these
	}
	for _, f := range noRoom {
		full[f.op] = true
	}
	for op, n := range made {
		if !fails[op] {
			t.Errorf("%d calls of kind %s in a life, but none fails in TestFirstFailureIsFinal", n, op)
		}
		if !full[op] {
			t.Errorf("%d calls of kind %s in a life, but the space never runs out for one in TestNoSpaceForAnyCallLosesNothing", n, op)
		}
	}
	for op := range fails {
		if made[op] == 0 {
			t.Errorf("no life makes a call of kind %s", op)
		}
	}
	t.Logf("calls of all lives: %v", made)
}

// A disk that fails once has the last word: whatever comes later is refused, and a restart finds a log that is right. The n-th call of each kind fails, for every n, in a
// life that does one of each and has three starts, in each of its ways.
func TestFirstFailureIsFinal(t *testing.T) {
	for _, f := range faults {
		everyCall(t, f.op, f.err, func(l *life) {
			err := l.everything(func(f func() error) error { return f() })
			if err == nil && !l.left.Load() && l.hit.Load() {
				t.Fatalf("%s: no call of the store failed by it", l.what)
			}
			if err != nil && !errors.Is(err, syscall.EIO) {
				t.Fatalf("%s: %v", l.what, err)
			}
			l.end(err)
		})
	}
}

// Wherever the space runs out in the same life, the call that needed it is refused and can be repeated, and nothing is lost or seen half; or, where nobody knows any
// more what the disk holds, it is a failure like any other.
func TestNoSpaceForAnyCallLosesNothing(t *testing.T) {
	for _, f := range noRoom {
		refused, failed := 0, 0
		everyCall(t, f.op, f.err, func(l *life) {
			err := l.everything(func(f func() error) error {
				for {
					if l.s == nil { // a start is just tried again
						if err := f(); err == nil || !errors.Is(err, syscall.ENOSPC) {
							return err
						}
						refused++
						continue
					}
					before := l.s.State()
					err := f()
					if err == nil || l.s == nil || !errors.Is(err, ErrDiskFull) || errors.Is(err, ErrFailed) {
						return err
					}
					refused++
					if after := l.s.State(); after.Last != before.Last || after.Term != before.Term || after.First != before.First || after.Commit != before.Commit {
						t.Fatalf("%s: %v, was %+v, is %+v", l.what, err, before, after)
					}
				}
			})
			if err != nil {
				failed++
			}
			if err != nil && (!f.final || !errors.Is(err, syscall.ENOSPC)) {
				t.Errorf("%s: %v", l.what, err)
			}
			l.end(err)
		})
		t.Logf("%s, %s: refused %d times, failed %d times", f.op, named(f.err), refused, failed)
	}
}

// errStop ends a life early, as its store wishes.
var errStop = errors.New("the life is over")

// What a disk does not read once, or from some moment on, is refused or it is damage: no entry reads as another one, what is not there any more is named as lost, and whoever asks again,
// the store or its next start, goes on once the disk reads again.
func TestReadThatFailsIsRefusedOrDamage(t *testing.T) {
	for _, lasts := range []bool{false, true} {
		refused, damaged, missed := 0, 0, 0
		fail := vfs.FailNth
		if lasts {
			fail = failFrom
		}
		everyCallBy(t, fail, "read", syscall.EIO, func(l *life) {
			l.reads, l.loses = true, lasts
			err := l.everything(func(f func() error) error {
				for try := 0; ; try++ {
					start := l.s == nil
					err := f()
					switch {
					case err == nil && start && l.s != nil && (l.s.State().TailLost >= 0 || l.s.State().Behind):
						missed++
						l.synced = -1
						return errStop
					case err == nil && l.s != nil && l.s.Hurt():
						damaged++
						return errStop
					case err == nil:
						return nil
					case !errors.Is(err, syscall.EIO) && !errors.As(err, new(*DamageError)):
						t.Fatalf("%s: %v", l.what, err)
					case errors.Is(err, ErrFailed):
						return err
					case try > 0 && lasts:
						return errStop
					case try > 0:
						t.Fatalf("%s: %v, and it had failed before", l.what, err)
					}
					refused++
				}
			})
			if errors.Is(err, errStop) && l.s != nil {
				must(t, l.readsRight(l.s, true))
				l.hook(func(vfs.Call) error { return nil })
				must(t, l.s.Close())
				l.s = nil
			}
			l.end(err)
		})
		t.Logf("for good %t: refused %d times, damaged %d times, a tail or a note missed %d times", lasts, refused, damaged, missed)
		if refused == 0 || lasts && (damaged == 0 || missed == 0 && !testing.Short()) {
			t.Error("one of these outcomes was not met")
		}
	}
}

// failFrom gives a hook that fails the n-th call of kind op, and from then on all of that kind at the same bytes.
func failFrom(op string, n int, err error) vfs.Hook {
	var mu sync.Mutex
	var bad vfs.Call
	return func(c vfs.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Op != op {
			return nil
		}
		if n--; n == 0 {
			bad = c
		}
		if n <= 0 && c.Name == bad.Name && c.Off < bad.Off+max(bad.N, 1) && bad.Off < c.Off+max(c.N, 1) {
			return err
		}
		return nil
	}
}

// everyCall lives as many lives as there are calls of kind op, and in each another one of them answers with err; all that in each way of living.
func everyCall(t *testing.T, op string, err error, play func(*life)) {
	t.Helper()
	everyCallBy(t, vfs.FailNth, op, err, play)
}

func everyCallBy(t *testing.T, by func(string, int, error) vfs.Hook, op string, err error, play func(*life)) {
	t.Helper()
	var short *vfs.ShortError
	draw := errors.As(err, &short) && short.N == drawn
	rng := rand.New(rand.NewPCG(0, 0))
	if draw {
		rng = damageRand(t)
	}
	all := 0
	for i, k := range kinds {
		if testing.Short() && i > 1 {
			break
		}
		n := 1
		for ; ; n++ {
			l := newLife(t, k.config)
			l.what = fmt.Sprintf("%s: %s %d, %v", k.name, op, n, err)
			fail := by(op, n, err)
			if draw {
				fault, how, part := fail, shortWrites[rng.IntN(len(shortWrites))], rng.Float64()
				l.what = fmt.Sprintf("%s: %s %d, of which %s is written (part %v), %v", k.name, op, n, how.name, part, short.Err)
				fail = func(c vfs.Call) error {
					err := fault(c)
					if err != nil {
						err = &vfs.ShortError{N: how.of(int(c.N), part), Err: short.Err}
					}
					return err
				}
			}
			l.hook(func(c vfs.Call) error {
				err := fail(c)
				if err != nil {
					l.hit.Store(true)
					if filepath.Base(c.Name) == spareName && op != "write" && op != "truncate" || op == "prewrite" || op == "statfs" || l.full.Load() && op == "write" && filepath.Base(c.Name) == termName+".tmp" { // which has no room anyway
						l.left.Store(true)
					}
				}
				return err
			})
			play(l)
			if !l.hit.Load() {
				break
			}
		}
		all += n - 1
	}
	if all == 0 {
		t.Errorf("no call of kind %s", op)
	}
	t.Logf("%s, %s: %d calls", op, named(err), all)
}

// named says what a call fails with.
func named(err error) string {
	if short := (*vfs.ShortError)(nil); errors.As(err, &short) {
		return fmt.Sprintf("%v behind what is drawn", short.Err)
	}
	return err.Error()
}

// life is a store that does one of each, with three starts, on a disk of which one call fails.
type life struct {
	t      *testing.T
	what   string
	disk   *vfs.Mem
	asks   *vfs.Hook // sees the calls that a Mem's own hook does not
	clock  *clock
	cfg    Config
	s      *Store      // nil while there is none
	synced raft.Index  // the last that has to be there, whatever happens
	reads  bool        // entries are read with tolerance, and what is damaged ends the life
	loses  bool        // what was written around a place that is not read is lost, and the next start may find it damaged
	hit    atomic.Bool // the call came, and failed
	full   atomic.Bool // there is no room on the disk for now
	left   atomic.Bool // the store went on: retention left a file to the next start, there is no spare file for a term now, or nothing is written ahead
}

// asked is a Mem whose locks and questions for free space are calls that a hook sees, too.
type asked struct {
	*vfs.Mem
	hook *vfs.Hook
}

func (a asked) Lock(dir string) (io.Closer, error) {
	if err := (*a.hook)(vfs.Call{Op: "lock", Name: dir}); err != nil {
		return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return a.Mem.Lock(dir)
}

func (a asked) Space(path string) (vfs.Space, error) {
	if err := (*a.hook)(vfs.Call{Op: "statfs", Name: path}); err != nil {
		return vfs.Space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return a.Mem.Space(path)
}

func newLife(t *testing.T, config func(*Config)) *life {
	l := &life{t: t, disk: vfs.NewMem(), asks: new(vfs.Hook), clock: newClock(), synced: -1}
	l.hook(func(vfs.Call) error { return nil })
	l.cfg = small(asked{l.disk, l.asks})
	l.cfg.Now = l.clock.now
	config(&l.cfg)
	l.disk.SetClock(l.clock.now)
	return l
}

// hook makes h see every call to the disk.
func (l *life) hook(h vfs.Hook) {
	l.disk.SetHook(h)
	*l.asks = h
}

// everything does one of each, each by try, and stops at the first error.
func (l *life) everything(try func(func() error) error) (err error) {
	do := func(f func() error) {
		if err == nil {
			err = try(f)
		}
	}
	open := func() {
		do(func() error {
			s, err := Open(l.cfg)
			if err == nil {
				l.s = s
			}
			return err
		})
	}
	add := func(n int, term raft.Term) {
		do(func() error {
			var b [][]byte
			first := l.s.tail.last.index + 1
			for i := range n {
				b = append(b, body(first+raft.Index(i), term))
			}
			return l.s.Append(first, term, entry.MagicNormal, b, nil)
		})
		do(func() error { return l.s.Flush() })
	}
	sync := func() {
		do(func() error {
			last, err := l.s.Sync()
			if err == nil {
				l.synced = last
			}
			return err
		})
	}
	read := func() { do(func() error { return l.readsRight(l.s, l.reads) }) }
	stop := func(f func(*Store) error) {
		do(func() error {
			s := l.s
			l.s = nil
			return f(s)
		})
	}
	open()
	do(func() error { return l.s.SaveTerm(1, "n0") })
	add(6, 1)
	sync()
	do(func() error { return l.s.SaveTerm(2, "n1") })
	add(3, 2)
	l.synced = min(l.synced, 4)
	do(func() error { return l.s.Truncate(4) })
	add(20, 2)
	sync()
	do(func() error { return l.s.SetCommit(18) })
	do(func() error { return checkpoint(l.s) })
	read()
	l.clock.add(4 * 24 * 3600)
	do(func() error {
		_, err := l.s.Expire()
		if err != nil && !errors.Is(err, ErrFailed) {
			l.left.Store(true)
			err = nil
		}
		return err
	})
	if err == nil && l.s.State().First == 0 && !l.hit.Load() {
		l.t.Errorf("%s: nothing expired", l.what)
	}
	stop((*Store).Close)
	open()
	read()
	add(10, 2)
	sync()
	again := false
	do(func() error { // the spare file becomes currterm
		if !again {
			l.disk.SetCapacity(l.disk.Used())
			l.full.Store(true)
		}
		again = true
		err := l.s.SaveTerm(3, "")
		l.disk.SetCapacity(0)
		if l.full.Store(false); errors.Is(err, ErrDiskFull) && !errors.Is(err, ErrFailed) && l.left.Load() {
			return l.s.SaveTerm(3, "") // there was none
		}
		return err
	})
	do(func() error { return l.s.Reset(100, 4*256+175, 2) })
	add(5, 3)
	sync()
	l.synced = min(l.synced, 102)
	do(func() error { return l.s.Truncate(102) })
	add(7, 3)
	stop(func(s *Store) error { // as if the process were killed
		s.stopping.Store(true)
		s.background.Wait()
		failed := s.failure.Load()
		if err := s.release(); err != nil || failed == nil {
			return err
		}
		return *failed
	})
	open()
	read()
	add(5, 3)
	sync()
	stop((*Store).Close)
	do(l.ahead)
	return err
}

// ahead is the short life of a store beside the other one, whose files are so large that zeros are written ahead of the log.
func (l *life) ahead() error {
	cfg := l.cfg
	cfg.Dir, cfg.DataFileSize, cfg.Prewrite = "base/dledger-n1", 8<<20, 32<<20
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	st := s.State()
	err = s.Append(st.Last+1, 1, entry.MagicNormal, [][]byte{body(0, 1)}, nil)
	if err == nil {
		err = s.Flush()
	}
	s.background.Wait() // or it ends before it has begun
	return errors.Join(err, s.Close())
}

// readsRight reads every entry; with damage, it may be that one is refused as damaged.
func (l *life) readsRight(s *Store, damage bool) error {
	t := l.t
	t.Helper()
	st := s.State()
	for i := st.First; i <= st.Last; i++ {
		h, b, err := s.Entry(i)
		if err != nil && damage && errors.As(err, new(*DamageError)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		right := map[bool]raft.Term{true: 1, false: 2}[i < 5]
		if i >= 100 {
			right = 3
		}
		if h.Term != right && (i != 5 || h.Term != 1) || string(b) != string(body(i, h.Term)) {
			t.Fatalf("%s: entry %d has term %d, %q", l.what, i, h.Term, b)
		}
	}
	return nil
}

// end looks at what err has left: a store that takes nothing any more, and a directory that a restart finds right, with and without a power cut.
func (l *life) end(err error) {
	t := l.t
	t.Helper()
	l.hook(func(vfs.Call) error { return nil })
	if s := l.s; s != nil {
		if !errors.Is(err, ErrFailed) {
			t.Fatalf("%s: %v, want a failed store", l.what, err)
		}
		_, syncErr := s.Sync()
		_, expireErr := s.Expire()
		for i, err := range []error{s.Append(s.tail.last.index+1, 9, 1, bodies(1, 5), nil), s.AppendEncoded(s.tail.last.index+1, nil), s.Flush(),
			s.Truncate(0), s.Reset(999, 0, 1), s.SaveTerm(9, ""), s.SetCommit(9), s.Checkpoint(), syncErr, expireErr} {
			if !errors.Is(err, ErrFailed) {
				t.Fatalf("%s: later call %d gives %v, want a failed store", l.what, i, err)
			}
		}
		if err := s.Close(); !errors.Is(err, ErrFailed) {
			t.Fatalf("%s: close gives %v", l.what, err)
		}
	}
	for _, disk := range []*vfs.Mem{l.disk.Fork(vfs.KeepNone), l.disk} {
		cfg := l.cfg
		cfg.FS = disk
		s, err := Open(cfg)
		if l.loses && !cfg.Repairs && errors.As(err, new(*DamageError)) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: open: %v", l.what, err)
		}
		st := s.State()
		if st.Last < l.synced && (!l.loses || st.TailLost < l.synced) {
			t.Fatalf("%s: synced up to %d, %d is the last, up to %d is lost", l.what, l.synced, st.Last, st.TailLost)
		}
		must(t, l.readsRight(s, l.loses))
		if s.Hurt() {
			must(t, s.Close())
			continue
		}
		files, err := disk.ReadDir(filepath.Join(l.cfg.Dir, "data"))
		must(t, err)
		if len(files) > 0 && files[0] < fileName(s.data.base(s.firstPos)) {
			t.Errorf("%s: the log begins at %d, files are %q", l.what, s.firstPos, files)
		}
		must(t, s.Append(st.Last+1, 9, entry.MagicNormal, bodies(1, 20), nil))
		must(t, s.Close())
		in, err := Inspect(disk, l.cfg.Dir)
		must(t, err)
		if rep, err := in.Verify(); err != nil || len(rep.Problems) > 0 || rep.Info.Last != st.Last+1 {
			t.Fatalf("%s: verify: %v %v, last %d, want %d", l.what, err, rep.Problems, rep.Info.Last, st.Last+1)
		}
		must(t, in.Close())
	}
}

// fillUntilFull appends entries from next on, one by one, until there is no room, and gives the first that found none.
func fillUntilFull(t *testing.T, s *Store, next raft.Index) raft.Index {
	t.Helper()
	for ; ; next++ {
		if err := s.Append(next, 1, entry.MagicNormal, [][]byte{body(next, 1)}, nil); err != nil {
			if !errors.Is(err, ErrDiskFull) || errors.Is(err, ErrFailed) {
				t.Fatalf("append of entry %d: %v, want that the disk is full", next, err)
			}
			return next
		}
		must(t, s.Flush())
	}
}

// fileless is a store with entries 0 to 3 on a disk that has room, but makes no further files.
func fileless(t *testing.T, errno syscall.Errno) (*vfs.Mem, *clock, Config, *Store) {
	t.Helper()
	m := vfs.NewMem()
	clock := newClock()
	cfg := small(m)
	cfg.Now = clock.now
	s := mustOpen(t, cfg)
	fill(t, s, 3, 1)
	m.SetHook(func(c vfs.Call) error {
		if c.Op == "create" {
			return errno
		}
		return nil
	})
	return m, clock, cfg, s
}

// A log that starts anew on a full disk refuses entries until there is space, and needs no restart then; a start in between leaves nothing behind.
func TestLogBeginsAnewOnAFullDisk(t *testing.T) {
	for _, restart := range []bool{false, true} {
		m, clock, cfg, s := fileless(t, syscall.ENOSPC)
		must(t, s.Reset(100, 1000, 2))
		for range 3 {
			if err := s.Append(100, 3, entry.MagicNormal, [][]byte{body(100, 3)}, nil); !errors.Is(err, ErrDiskFull) || errors.Is(err, ErrFailed) {
				t.Fatalf("append: %v", err)
			}
			must(t, s.Flush())
			must(t, checkpoint(s))
		}
		if st := s.State(); st.First != 100 || st.Last != 99 || st.Commit != 99 || !s.Full() {
			t.Fatalf("state %+v, full %v", st, s.Full())
		}
		if restart {
			must(t, s.Close())
			if _, err := Open(cfg); !errors.Is(err, ErrDiskFull) {
				t.Fatalf("open: %v", err)
			}
		}
		m.SetHook(nil)
		clock.add(10)
		if restart {
			s = mustOpen(t, cfg)
		}
		fill(t, s, 110, 3)
		check(t, s, 100, 110, always(3))
		must(t, s.Close())
		s = mustOpen(t, cfg)
		check(t, s, 100, 110, always(3))
		must(t, s.Close())
	}
}

// A second error beside the full disk is not taken for a full disk.
func TestLogThatCannotBeginAnewFails(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 20, 1)
	m.SetHook(func(c vfs.Call) error {
		switch c.Op {
		case "create":
			return syscall.ENOSPC
		case "remove":
			return syscall.EIO
		}
		return nil
	})
	if err := s.Reset(101, 300, 2); !errors.Is(err, ErrFailed) {
		t.Fatalf("reset: %v", err)
	}
	m.SetHook(nil)
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v", err)
	}
}

// A file that is refused although the disk has room (a quota, no descriptors left) keeps the store full long enough for a leader to give way, and is tried again then.
func TestRefusalThatTheFreeSpaceDoesNotExplainLasts(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EDQUOT, syscall.ENOSPC, syscall.EMFILE} {
		_, clock, _, s := fileless(t, errno)
		fillUntilFull(t, s, 4)
		for range spaceShut / time.Second {
			if !s.Full() {
				t.Fatalf("%v: not full", errno)
			}
			clock.add(1)
		}
		if s.Full() {
			t.Errorf("%v: full for ever", errno)
		}
		must(t, s.Close())
	}
}

func TestFullDiskRefusesAndGoesOn(t *testing.T) {
	m := vfs.NewMem()
	clock := newClock()
	cfg := small(m)
	cfg.Now = clock.now
	s := mustOpen(t, cfg)
	fill(t, s, 3, 1)
	must(t, s.SaveTerm(1, "n0"))
	m.SetCapacity(m.Used() + 600) // room for two data files
	next := fillUntilFull(t, s, 4)
	if !s.Full() {
		t.Error("not full")
	}
	check(t, s, 0, next-1, always(1))
	if _, err := s.Sync(); err != nil {
		t.Errorf("sync on a full disk: %v", err)
	}
	must(t, s.SetCommit(next-1))
	must(t, checkpoint(s))
	clock.add(2)
	if !s.Full() {
		t.Error("not full after a while")
	}
	m.SetCapacity(0)
	if !s.Full() {
		t.Error("looked at the disk again within a second")
	}
	clock.add(2)
	if s.Full() {
		t.Error("full although there is space again")
	}
	fill(t, s, 30, 1)
	check(t, s, 0, 30, always(1))
	must(t, s.Close())
	check(t, mustOpen(t, cfg), 0, 30, always(1))
}

// A batch that goes over several files and is refused leaves at most one empty file: the original does not start with two.
func TestRefusedBatchLeavesAtMostOneEmptyFile(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 1, 1)
	m.SetCapacity(m.Used() + 3*256)
	if err := s.Append(2, 1, entry.MagicNormal, bodies(20, 100), nil); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("append: %v", err)
	}
	names, err := m.ReadDir("base/dledger-n0/data")
	must(t, err)
	if len(names) > 2 {
		t.Errorf("files %q", names)
	}
	fill(t, s, 5, 1)
	check(t, s, 0, 5, always(1))
}

func TestEntriesThatDoNotBelongAreRefused(t *testing.T) {
	leader := mustOpen(t, small(vfs.NewMem()))
	fill(t, leader, 9, 3)
	encoded := func(lo, hi raft.Index) raft.Payload {
		p, last, err := leader.Read(lo, hi, 1<<20)
		must(t, err)
		if last != hi-1 {
			t.Fatalf("read up to %d", last)
		}
		b := slices.Concat(p...)
		return raft.Payload{b[:30:30], b[30:45], nil, b[45:]}
	}
	change := func(p raft.Payload, off int, mask byte) raft.Payload {
		b := slices.Concat(p...)
		b[off] ^= mask
		return raft.Payload{b}
	}
	s := mustOpen(t, small(vfs.NewMem()))
	must(t, s.AppendEncoded(0, encoded(0, 2)))
	must(t, s.AppendEncoded(2, encoded(0, 4))) // what is there already is skipped
	must(t, s.Flush())

	bare := slices.Concat(encoded(4, 5)...)
	clear(bare[36:44])
	moved := slices.Clone(bare)
	moved[31] ^= 4
	old := slices.Clone(bare)
	old[23] = 2
	cases := []struct {
		name string
		from raft.Index
		p    raft.Payload
		want error
	}{
		{"gap", 5, encoded(5, 7), ErrOrder},
		{"overlap", 3, encoded(3, 5), ErrOrder},
		{"gap inside", 4, append(encoded(4, 5), encoded(6, 7)...), ErrOrder},
		{"older term", 4, raft.Payload{old}, ErrOrder},
		{"header changed", 4, change(encoded(4, 6), 17, 1), entry.ErrChain},
		{"body changed", 4, change(encoded(4, 6), 50, 1), entry.ErrBody},
		{"cut", 4, raft.Payload{bare[:50]}, entry.ErrShort},
		{"cut in the header", 4, raft.Payload{bare[:20]}, entry.ErrShort},
		{"no entry", 4, raft.Payload{make([]byte, 100)}, entry.ErrHeader},
	}
	for _, c := range cases {
		if err := s.AppendEncoded(c.from, c.p); !errors.Is(err, c.want) || errors.Is(err, ErrEntry) == (c.want == ErrOrder) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	var pe *PositionError
	if err := s.AppendEncoded(4, raft.Payload{moved}); !errors.As(err, &pe) || pe.Index != 4 || pe.Want == pe.Got {
		t.Errorf("moved: %v, want a position error for entry 4", err)
	}
	must(t, s.AppendEncoded(4, encoded(2, 10)))
	must(t, s.Flush())
	check(t, s, 0, 9, always(3))

	if err := s.Append(9, 3, 1, bodies(1, 1), nil); !errors.Is(err, ErrOrder) {
		t.Errorf("append at a taken index: %v", err)
	}
	if err := s.Append(10, 2, 1, bodies(1, 1), nil); !errors.Is(err, ErrOrder) {
		t.Errorf("append of an older term: %v", err)
	}
	if err := s.Append(10, 3, 1, [][]byte{nil, make([]byte, 256-48-7)}, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("append of a large body: %v", err)
	}
	must(t, s.Append(10, 3, 1, [][]byte{make([]byte, 256-48-8)}, nil))
	must(t, s.Flush())
	if err := s.Truncate(3); err != nil {
		t.Errorf("truncate: %v", err)
	}
	must(t, s.SetCommit(3))
	if err := s.Truncate(2); !errors.Is(err, ErrCommitted) {
		t.Errorf("truncate of a committed entry: %v", err)
	}
}

// Where Java 0.4 leads, an entry may carry a position of another log: it is stored as it came, and the index record has the real one.
func TestMovedEntriesAreStoredWhereTheyBelong(t *testing.T) {
	leader := mustOpen(t, small(vfs.NewMem()))
	must(t, leader.Reset(0, 56, -1))
	fill(t, leader, 9, 1)
	p, _, err := leader.Read(0, 10, 1<<20)
	must(t, err)
	m := vfs.NewMem()
	cfg := small(m)
	cfg.Compat = raft.Compat04
	s := mustOpen(t, cfg)
	must(t, s.AppendEncoded(0, p))
	must(t, s.Flush())
	see := func() {
		check(t, s, 0, 9, always(1))
		want := int64(0)
		for i := range raft.Index(10) {
			pos, size, err := s.Pos(i)
			must(t, err)
			if place, _ := entry.Place(want, size, 256); pos != place {
				t.Errorf("entry %d lies at %d, want %d", i, pos, place)
			}
			want = pos + int64(size)
		}
	}
	see()
	m.Crash(vfs.KeepAll)
	cfg.Compat = raft.CompatGo // the group's setting may change; the log remembers
	s = mustOpen(t, cfg)
	see()
	must(t, s.Close())
	in, err := Inspect(m, cfg.Dir)
	must(t, err)
	rep, err := in.Verify()
	must(t, err)
	if len(rep.Problems) > 0 || rep.Moved != 10 {
		t.Errorf("%d moved, problems %v", rep.Moved, rep.Problems)
	}
}

// A stuck sync holds up neither appends nor reads.
func TestAppendsGoOnDuringASync(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 2, 1)
	stuck, free := make(chan bool), make(chan bool)
	m.SetHook(func(c vfs.Call) error {
		if c.Op == "datasync" {
			stuck <- true
			<-free
		}
		return nil
	})
	done := make(chan error)
	go func() {
		last, err := s.Sync()
		if err == nil && last != 2 {
			err = fmt.Errorf("sync covers %d, want 2", last)
		}
		done <- err
	}()
	<-stuck
	fill(t, s, 20, 1)
	must(t, s.SetCommit(10))
	check(t, s, 0, 20, always(1))
	m.SetHook(nil)
	close(free)
	must(t, <-done)
	if st := s.State(); st.Durable != 2 {
		t.Errorf("durable %d, want 2", st.Durable)
	}
	if last, err := s.Sync(); last != 20 || err != nil {
		t.Errorf("second sync: %d, %v", last, err)
	}
}

// A follower of a Java leader holds entries without checksums. What of them was synced stays after a power cut; what was
// not, nobody can tell from torn bytes, so it goes.
func TestEntriesWithoutChecksumAreTrustedAsFarAsSynced(t *testing.T) {
	leader := mustOpen(t, small(vfs.NewMem()))
	fill(t, leader, 9, 1)
	var p raft.Payload
	for i := range raft.Index(10) {
		one, _, err := leader.Read(i, i+1, 0)
		must(t, err)
		b := slices.Concat(one...)
		clear(b[36:44])
		p = append(p, b)
	}
	cfg := func(fs vfs.FS) Config {
		c := small(fs)
		c.Compat = raft.Compat04
		return c
	}
	m := vfs.NewMem()
	s := mustOpen(t, cfg(m))
	must(t, s.AppendEncoded(0, p[:6]))
	must(t, s.Flush())
	last, err := s.Sync()
	must(t, err)
	if last != 5 {
		t.Fatalf("synced %d", last)
	}
	must(t, s.AppendEncoded(6, p[6:]))
	must(t, s.Flush())
	check(t, mustOpen(t, cfg(m.Fork(vfs.KeepAll))), 0, 5, always(1))
	check(t, mustOpen(t, cfg(m.Fork(vfs.KeepNone))), 0, 5, always(1))
	check(t, mustOpen(t, cfg(m.Fork(nil))), 0, 9, always(1))
}

func TestDirectoryIsHeldByOneStore(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	if _, err := Open(small(m)); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	must(t, s.Close())
	must(t, mustOpen(t, small(m)).Close())
	if err := s.Append(0, 1, 1, bodies(1, 1), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a closed store: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, c := range []Config{
		{},
		{Dir: "d", DataFileSize: 55},
		{Dir: "d", IndexFileSize: 33},
		{Dir: "d", DataDirs: []string{"x"}, ReadOnlyDirs: []string{"x"}},
		{Dir: "d", DataDirs: []string{"x", "y/"}, ReadOnlyDirs: []string{"y", "./x"}},
		{Dir: "d", Retention: Retention{DeleteWhen: "4;25"}},
		{Dir: "d", Retention: Retention{DeleteWhen: "four"}},
	} {
		c.FS = vfs.NewMem()
		if s, err := Open(c); err == nil {
			t.Errorf("%+v opens", c)
			must(t, s.Close())
		}
	}
}

// Descriptors that run out while a file is made refuse the append, like a full disk, and the next try makes the file.
func TestNoDescriptorsCanBeRetried(t *testing.T) {
	for _, op := range []string{"create", "syncdir"} {
		t.Run(op, func(t *testing.T) {
			m := vfs.NewMem()
			clock := newClock()
			cfg := small(m)
			cfg.Now = clock.now
			s := mustOpen(t, cfg)
			fill(t, s, 3, 1)
			refused := 0
			m.SetHook(func(call vfs.Call) error {
				if call.Op == op {
					refused++
					return syscall.EMFILE
				}
				return nil
			})
			fillUntilFull(t, s, 4)
			if refused == 0 {
				t.Fatal("no call was refused")
			}
			m.SetHook(nil)
			clock.add(2)
			fill(t, s, 30, 1)
			must(t, s.Close())
			check(t, mustOpen(t, cfg), 0, 30, always(1))
		})
	}
}
