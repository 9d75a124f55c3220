package logstore

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt")

// trace records the calls to a disk that change something or make it durable.
type trace struct {
	disk  *vfs.Mem
	lines []string
}

func newTrace() *trace {
	tr := &trace{disk: vfs.NewMem()}
	tr.disk.SetHook(func(c vfs.Call) error {
		if !reads(c) {
			tr.lines = append(tr.lines, "  "+strings.ReplaceAll(c.String(), "base/dledger-n0", "ROOT"))
		}
		return nil
	})
	return tr
}

// step runs one operation under a heading.
func (tr *trace) step(t *testing.T, name string, run func() error) {
	t.Helper()
	tr.lines = append(tr.lines, name)
	must(t, run())
}

// golden compares the trace with testdata/name.txt.
func (tr *trace) golden(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	got := strings.Join(tr.lines, "\n") + "\n"
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if got != string(want) {
		t.Errorf("calls differ from %s (go test -update rewrites it):\n%s", file, got)
	}
}

// The order of system calls is the durability contract: each file in testdata shows one operation's.
func TestSystemCallOrder(t *testing.T) {
	add := func(s *Store, n int) func() error {
		return func() error {
			first := s.tail.last.index + 1
			var b [][]byte
			for i := range n {
				b = append(b, body(first+raft.Index(i), 1))
			}
			if err := s.Append(first, max(s.tail.last.term, 1), entry.MagicNormal, b, nil); err != nil {
				return err
			}
			return s.Flush()
		}
	}
	sync := func(s *Store) func() error {
		return func() error {
			_, err := s.Sync()
			return err
		}
	}
	t.Run("append", func(t *testing.T) {
		tr := newTrace()
		var s *Store
		tr.step(t, "open an empty directory", func() (err error) {
			s, err = Open(small(tr.disk))
			return err
		})
		tr.step(t, "append and flush 2 entries: the first files are made", add(s, 2))
		tr.step(t, "append and flush 1 entry", add(s, 1))
		tr.step(t, "sync", sync(s))
		tr.step(t, "commit 1", func() error { return s.SetCommit(1) })
		tr.step(t, "checkpoint", s.Checkpoint)
		tr.step(t, "checkpoint again: nothing to do", s.Checkpoint)
		tr.golden(t, "append")
	})
	t.Run("roll", func(t *testing.T) {
		tr := newTrace()
		s := mustOpen(t, small(tr.disk))
		must(t, add(s, 3)())
		tr.lines = nil
		tr.step(t, "append and flush 3 entries: data and index roll", add(s, 3))
		tr.step(t, "sync covers both data files", sync(s))
		tr.golden(t, "roll")
	})
	t.Run("truncate", func(t *testing.T) {
		tr := newTrace()
		s := mustOpen(t, small(tr.disk))
		must(t, add(s, 8)())
		must(t, checkpoint(s))
		tr.lines = nil
		tr.step(t, "truncate to 2: the intent is durable before the first byte goes, its end after the last", func() error { return s.Truncate(2) })
		tr.step(t, "truncate to 2 again: nothing to do", func() error { return s.Truncate(2) })
		tr.golden(t, "truncate")
	})
	t.Run("vote", func(t *testing.T) {
		tr := newTrace()
		s := mustOpen(t, small(tr.disk))
		tr.lines = nil
		tr.step(t, "vote for n1 in term 2", func() error { return s.SaveTerm(2, "n1") })
		tr.golden(t, "vote")
	})
	t.Run("reset", func(t *testing.T) {
		tr := newTrace()
		s := mustOpen(t, small(tr.disk))
		must(t, add(s, 4)())
		tr.lines = nil
		tr.step(t, "reset to entry 9 at position 600", func() error { return s.Reset(9, 600, 1) })
		tr.step(t, "append and flush 1 entry", add(s, 1))
		tr.golden(t, "reset")
	})
	t.Run("restart", func(t *testing.T) {
		tr := newTrace()
		s := mustOpen(t, small(tr.disk))
		must(t, add(s, 5)())
		tr.lines = nil
		tr.step(t, "close", s.Close)
		reopen := func() (err error) {
			s, err = Open(small(tr.disk))
			return err
		}
		tr.step(t, "open after a clean stop", reopen)
		must(t, s.Append(5, 1, entry.MagicNormal, bodies(1, 10), nil))
		must(t, s.Flush())
		tr.disk.Crash(vfs.KeepAll)
		tr.step(t, "open after a power cut", reopen)
		tr.golden(t, "restart")
	})
	t.Run("expire", func(t *testing.T) {
		tr := newTrace()
		cfg := small(tr.disk)
		clock := newClock()
		cfg.Now = clock.now
		tr.disk.SetClock(clock.now)
		s := mustOpen(t, cfg)
		must(t, add(s, 12)())
		must(t, s.SetCommit(9))
		clock.add(72 * 3600)
		tr.lines = nil
		tr.step(t, "expire: the term of the last deleted entry is durable before the entry goes", func() error {
			_, err := s.Expire()
			return err
		})
		tr.golden(t, "expire")
	})
}
