package logstore

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A directory is well at every moment of its use: while files are made ahead, entries are half written, the log is cut and expires.
func TestADirectoryInUseVerifies(t *testing.T) {
	m := vfs.NewMem()
	clock := newClock()
	m.SetClock(clock.now)
	cfg := small(m)
	cfg.Now = clock.now
	s := mustOpen(t, cfg)
	step := ""
	n := 0
	look := func(when string) {
		n++
		in, err := Inspect(m.Fork(nil), cfg.Dir)
		if err != nil {
			t.Fatalf("%s, %s: %v", step, when, err)
		}
		rep, err := in.Verify()
		if err != nil || len(rep.Problems) > 0 {
			t.Fatalf("%s, %s: %v, problems %v", step, when, err, rep.Problems)
		}
		must(t, in.Close())
	}
	m.SetHook(func(c vfs.Call) error {
		if !reads(c) {
			m.SetHook(nil)
			look("before " + c.String())
			m.SetHook(nil)
		}
		return nil
	})
	do := func(name string, f func() error) {
		step = name
		hook := func(c vfs.Call) error {
			if !reads(c) {
				look("before " + c.String())
			}
			return nil
		}
		m.SetHook(hook)
		must(t, f())
		m.SetHook(nil)
		look("after")
	}
	add := func(n int, term raft.Term) {
		do(fmt.Sprintf("append %d", n), func() error {
			var b [][]byte
			first := s.tail.last.index + 1
			for i := range n {
				b = append(b, body(first+raft.Index(i), term))
			}
			if err := s.Append(first, term, 1, b, nil); err != nil {
				return err
			}
			return s.Flush()
		})
	}
	add(5, 1)
	do("commit", func() error { return s.SetCommit(3) })
	add(12, 1)
	do("sync", func() error {
		_, err := s.Sync()
		return err
	})
	do("truncate", func() error { return s.Truncate(6) })
	add(20, 2)
	do("commit", func() error { return s.SetCommit(24) })
	do("checkpoint", func() error { return checkpoint(s) })
	clock.add(72 * hour)
	do("expire", func() error {
		_, err := s.Expire()
		return err
	})
	do("reset", func() error { return s.Reset(90, 2048+99, 2) })
	add(10, 2)
	do("close", s.Close)
	t.Logf("looked %d times", n)
}

func TestInspectorGivesEntriesAndRecords(t *testing.T) {
	m := stopped(t)
	in, err := Inspect(m, "base/dledger-n0")
	must(t, err)
	info := in.Info()
	if info.First != 0 || info.Last != 29 || info.Commit != 25 || info.Term != 1 || info.Vote != "n0" || !info.Ours || !info.Clean ||
		info.DataFileSize != 256 || info.IndexFileSize != 128 {
		t.Errorf("info %+v", info)
	}
	for _, from := range []raft.Index{0, 1, 13, 29, 30} {
		want := max(from, 0)
		for it, err := range in.Entries(from) {
			must(t, err)
			if it.Index != want || it.At != it.Pos || string(it.Body()) != string(body(want, twoTerms(want))) || !strings.Contains(it.File, fileName(it.At-it.Offset)) {
				t.Fatalf("from %d: item %+v, want entry %d", from, it, want)
			}
			want++
		}
		if want != 30 {
			t.Errorf("from %d: entries end at %d", from, want-1)
		}
		want = from
		for r, err := range in.Records(from) {
			must(t, err)
			if r.Index != want {
				t.Fatalf("from %d: record %+v, want entry %d", from, r, want)
			}
			want++
		}
		if want != 30 {
			t.Errorf("from %d: records end at %d", from, want-1)
		}
	}
	must(t, in.Close())
	if _, err := Inspect(m, "base/nothing"); err == nil {
		t.Error("a missing directory is inspected")
	}
}

func TestInspectingChangesNothing(t *testing.T) {
	m := stopped(t)
	m.SetHook(func(c vfs.Call) error {
		if !reads(c) || c.Op == "mkdir" {
			t.Errorf("inspection does %s", c)
		}
		return nil
	})
	verify(t, m)
}

func TestCompareFindsTheFirstDifference(t *testing.T) {
	inspect := func(m *vfs.Mem) *Inspector {
		in, err := Inspect(m, "base/dledger-n0")
		must(t, err)
		return in
	}
	a := stopped(t)
	b := vfs.NewMem()
	s := mustOpen(t, small(b))
	fill(t, s, 14, 1)
	fill(t, s, 22, 2)
	must(t, s.SetCommit(22))
	must(t, s.Close())
	c, err := Compare(inspect(a), inspect(b))
	if err != nil || !c.Equal || c.From != 0 || c.To != 22 {
		t.Errorf("%+v, %v, want equal from 0 to 22", c, err)
	}

	b = vfs.NewMem()
	s = mustOpen(t, small(b))
	fill(t, s, 17, 1)
	must(t, s.SetCommit(17))
	must(t, s.Close())
	c, err = Compare(inspect(a), inspect(b))
	if err != nil || c.Equal || !strings.Contains(c.Differ, "entry 15") {
		t.Errorf("%+v, %v, want a difference at entry 15", c, err)
	}

	// Where nothing is known to be committed, as in a directory of Java 0.4, the smaller end counts.
	for _, m := range []*vfs.Mem{a, b} {
		must(t, m.Remove("base/dledger-n0/commit"))
		must(t, m.Remove("base/dledger-n0/checkpoint"))
	}
	if c, err = Compare(inspect(a), inspect(b)); err != nil || c.Equal || c.To != 17 {
		t.Errorf("%+v, %v, want a difference before 17", c, err)
	}
	f, err := b.OpenFile("base/dledger-n0/data/"+fileName(0), os.O_RDWR)
	must(t, err)
	must(t, f.Zero(100, 100))
	must(t, f.Close())
	if _, err = Compare(inspect(a), inspect(b)); err == nil {
		t.Error("damage below what is compared is no error")
	}
}
