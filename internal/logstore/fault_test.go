package logstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A disk that fails once has the last word: whatever comes later is refused, and a restart finds a log that is right. The n-th call of each kind fails, for every n, in a
// life that does one of each and has three starts.
func TestFirstFailureIsFinal(t *testing.T) {
	short := &vfs.ShortError{N: 11, Err: syscall.EIO}
	for _, f := range []struct {
		op  string
		err error
	}{{"open", syscall.EIO}, {"create", syscall.EIO}, {"write", syscall.EIO}, {"write", short}, {"allocate", syscall.EIO}, {"zero", syscall.EIO}, {"datasync", syscall.EIO},
		{"sync", syscall.EIO}, {"rename", syscall.EIO}, {"syncdir", syscall.EIO}, {"remove", syscall.EIO}} {
		everyCall(t, f.op, f.err, func(l *life) {
			err := l.everything(func(f func() error) error { return f() })
			if err == nil && !l.left && l.hit {
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
	short := &vfs.ShortError{N: 11, Err: syscall.ENOSPC}
	for _, f := range []struct {
		op    string
		err   error
		final bool // some of these calls cannot be repeated
	}{{"open", syscall.ENOSPC, false}, {"create", syscall.ENOSPC, false}, {"write", syscall.ENOSPC, true}, {"write", short, true}, {"allocate", syscall.ENOSPC, false},
		{"zero", syscall.ENOSPC, true}, {"datasync", syscall.ENOSPC, true}, {"sync", syscall.ENOSPC, false}, {"rename", syscall.ENOSPC, false}, {"syncdir", syscall.ENOSPC, true},
		{"remove", syscall.ENOSPC, true}} {
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
		t.Logf("%s, %v: refused %d times, failed %d times", f.op, f.err, refused, failed)
	}
}

// everyCall lives as many lives as there are calls of kind op, and in each another one of them answers with err.
func everyCall(t *testing.T, op string, err error, play func(*life)) {
	t.Helper()
	n := 1
	for ; ; n++ {
		l := newLife(t)
		l.what = fmt.Sprintf("%s %d, %v", op, n, err)
		fail := vfs.FailNth(op, n, err)
		l.disk.SetHook(func(c vfs.Call) error {
			err := fail(c)
			l.hit = l.hit || err != nil
			l.left = l.left || err != nil && filepath.Base(c.Name) == spareName
			return err
		})
		play(l)
		if !l.hit {
			break
		}
	}
	if n == 1 {
		t.Errorf("no call of kind %s", op)
	}
	t.Logf("%s, %v: %d calls", op, err, n-1)
}

// life is a store that does one of each, with three starts, on a disk of which one call fails.
type life struct {
	t      *testing.T
	what   string
	disk   *vfs.Mem
	clock  *clock
	cfg    Config
	s      *Store     // nil while there is none
	synced raft.Index // the last that has to be there, whatever happens
	hit    bool       // the call came, and failed
	left   bool       // the store went on: retention left a file to the next start, or there is no spare file for a term now
}

func newLife(t *testing.T) *life {
	l := &life{t: t, disk: vfs.NewMem(), clock: newClock(), synced: -1}
	l.cfg = small(l.disk)
	l.cfg.Now = l.clock.now
	l.disk.SetClock(l.clock.now)
	return l
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
	l.clock.add(4 * 24 * 3600)
	do(func() error {
		_, err := l.s.Expire()
		if err != nil && !errors.Is(err, ErrFailed) {
			l.left = true
			err = nil
		}
		return err
	})
	if err == nil && l.s.State().First == 0 {
		l.t.Errorf("%s: nothing expired", l.what)
	}
	stop((*Store).Close)
	open()
	add(10, 2)
	sync()
	do(func() error { return l.s.SaveTerm(3, "") })
	do(func() error { return l.s.Reset(100, 4*256+175, 2) })
	add(5, 3)
	sync()
	l.synced = min(l.synced, 102)
	do(func() error { return l.s.Truncate(102) })
	add(7, 3)
	stop((*Store).release) // as if the process were killed
	open()
	add(5, 3)
	sync()
	stop((*Store).Close)
	return err
}

// end looks at what err has left: a store that takes nothing any more, and a directory that a restart finds right, with and without a power cut.
func (l *life) end(err error) {
	t := l.t
	t.Helper()
	l.disk.SetHook(nil)
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
		if err != nil {
			t.Fatalf("%s: open: %v", l.what, err)
		}
		st := s.State()
		if st.Last < l.synced {
			t.Fatalf("%s: synced up to %d, %d is the last", l.what, l.synced, st.Last)
		}
		for i := st.First; i <= st.Last; i++ {
			h, b, err := s.Entry(i)
			if err != nil {
				t.Fatalf("%s: entry %d: %v", l.what, i, err)
			}
			right := map[bool]raft.Term{true: 1, false: 2}[i < 5]
			if i >= 100 {
				right = 3
			}
			if h.Term != right && (i != 5 || h.Term != 1) || string(b) != string(body(i, h.Term)) {
				t.Fatalf("%s: entry %d has term %d, %q", l.what, i, h.Term, b)
			}
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
