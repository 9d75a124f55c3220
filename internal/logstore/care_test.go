package logstore

import (
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The search puts a record right in a file that retention deletes in the same moment. The next sync must not stumble over that file, which would make
// a sound disk a failed one.
func TestSearchAndRetentionMeetInOneFile(t *testing.T) {
	for _, where := range []string{"read of data", "write of data", "read of index", "write of index"} {
		op, dir, _ := strings.Cut(where, " of ")
		t.Run(where, func(t *testing.T) {
			m, clock, cfg, s := aged(t, func(c *Config) { c.Repairs = true })
			must(t, checkpoint(s))
			off := int64(20) // of the term in an index record
			if dir == "data" {
				_, size, err := s.Pos(0)
				must(t, err)
				off = int64(size) // behind the last entry of the first file: its blank record
				for i := raft.Index(1); ; i++ {
					pos, size, err := s.Pos(i)
					must(t, err)
					if pos >= cfg.DataFileSize {
						break
					}
					off = pos + int64(size)
				}
			}
			must(t, m.Flip(path.Join(cfg.Dir, dir, fileName(0)), off, 1))
			clock.add(72 * hour)
			deleted := 0
			var begin sync.Once
			var meanwhile sync.WaitGroup
			expire := func() {
				n, err := s.Expire()
				if err != nil {
					t.Error(err)
				}
				deleted = n
			}
			chosen := make(chan struct{})
			tell := sync.OnceFunc(func() { close(chosen) })
			m.SetHook(func(c vfs.Call) error {
				switch {
				case c.Op == op && strings.Contains(c.Name, "/"+dir+"/"):
					begin.Do(func() {
						if meanwhile.Go(expire); op == "read" {
							meanwhile.Wait()
							return
						}
						<-chosen // whoever writes then keeps retention waiting
					})
				case c.Op == "datasync" && strings.HasSuffix(c.Name, sideName):
					tell()
				}
				return nil
			})
			for done := false; !done; {
				var err error
				_, done, err = s.Scrub(1000)
				must(t, err)
			}
			meanwhile.Wait()
			if deleted <= 0 {
				t.Fatalf("%d files deleted; the test does not do what it is for", deleted)
			}
			if err := checkpoint(s); err != nil {
				t.Errorf("checkpoint: %v", err)
			}
			m.SetHook(nil)
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// A disk that takes its time over a record that was put right holds up no entry.
func TestEntriesAreSyncedBesideAMendedRecord(t *testing.T) {
	for _, what := range []string{"index", "data"} {
		m := vfs.NewMem()
		cfg := sick(m)
		s := mustOpen(t, cfg)
		fill(t, s, 30, 1)
		must(t, s.SetCommit(30))
		must(t, checkpoint(s))
		off := int64(20) // of the term in an index record
		if what == "data" {
			for i := raft.Index(0); ; i++ {
				pos, size, err := s.Pos(i)
				must(t, err)
				if pos >= cfg.DataFileSize {
					break
				}
				off = pos + int64(size) // of the blank record behind it
			}
		}
		name := path.Join(cfg.Dir, what, fileName(0))
		must(t, m.Flip(name, off, 1))
		begun, release := make(chan struct{}), make(chan struct{})
		m.SetHook(func(c vfs.Call) error {
			if c.Op == "datasync" && c.Name == name {
				close(begun)
				<-release
			}
			return nil
		})
		scrubbed := make(chan error, 1)
		go func() {
			_, _, err := s.Scrub(1 << 20)
			scrubbed <- err
		}()
		<-begun
		fill(t, s, 31, 1)
		synced := make(chan error, 1)
		go func() {
			_, err := s.Sync()
			synced <- err
		}()
		select {
		case err := <-synced:
			must(t, err)
		case <-time.After(10 * time.Second):
			t.Errorf("%s: a sync of entries waits for that of a mended record", what)
		}
		close(release)
		must(t, <-scrubbed)
		must(t, s.Close())
	}
}

// A blank record is written only into the log in which it was missed: not into one that was started anew meanwhile, whose entries may lie there.
func TestBlankIsNotWrittenIntoAnotherLog(t *testing.T) {
	s := mustOpen(t, sick(vfs.NewMem()))
	fill(t, s, 9, 1)
	must(t, s.SetCommit(9))
	gen := s.gen
	must(t, s.Reset(100, 100, 1))
	fill(t, s, 100, 2)
	fill(t, s, 101, 2) // it takes the place of the former in memory
	pos, size, err := s.Pos(100)
	must(t, err)
	must(t, s.fillBlank(pos, s.data.size, errZeros, func(f *file, b []byte, off int64) (bool, error) { return s.rewrite(&s.data, f, b, off, gen) }))
	if _, _, err := s.Entry(100); err != nil {
		t.Errorf("entry 100 at %d, %d bytes: %v", pos, size, err)
	}
	must(t, s.Close())
}

// A member may say anything of where its log begins. Positions and index records have to fit into numbers, or nothing is done.
func TestNoLogBeginsWhereNumbersEnd(t *testing.T) {
	s := mustOpen(t, sick(vfs.NewMem()))
	fill(t, s, 9, 1)
	for _, pos := range []int64{-1, maxPos, 1<<63 - 1} {
		if s.CanBegin(pos) {
			t.Errorf("a log can begin at %d", pos)
		}
	}
	for _, next := range []raft.Index{-1, maxPos/32 + 1, 1 << 58, 1 << 59, 1<<63 - 1} {
		if err := s.Reset(next, 0, 1); err == nil || s.State().Last != 9 {
			t.Errorf("reset to %d: %v, the log ends at %d", next, err, s.State().Last)
		}
	}
	last := raft.Index(maxPos / 32)
	must(t, s.Reset(last, maxPos-4096, 1))
	fill(t, s, last, 2)
	if _, _, err := s.Entry(last); err != nil {
		t.Error(err)
	}
	must(t, s.Close())
}
