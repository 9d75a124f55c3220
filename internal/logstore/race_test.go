package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
	"go.uber.org/goleak"
)

// Readers, the syncer, checkpoints and expiry run beside an owner that appends and cuts: readers see whole entries or a named
// error, never anything else. Run it with -race.
func TestEverythingAtOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := vfs.NewMem()
	cfg := small(m)
	cfg.DataFileSize, cfg.IndexFileSize = 2048, 1024
	cfg.CacheBytes = 3000
	cfg.Inline = false
	cfg.Retention = Retention{ForceClean: true, CheckRatio: 0.01}
	m.SetSpace(&vfs.Space{Total: 100, Free: 14}) // above ForceRatio, not full
	s := mustOpen(t, cfg)
	stop := make(chan bool)
	var wg sync.WaitGroup
	run := func(name string, f func(rng *rand.Rand) error) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(len(name))))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(rng); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	gone := func(err error) bool { return errors.Is(err, ErrCompacted) || errors.Is(err, ErrOutOfRange) }
	pick := func(rng *rand.Rand) raft.Index {
		st := s.State()
		return st.First + raft.Index(rng.IntN(int(st.Last-st.First)+3)) - 1
	}
	run("read", func(rng *rand.Rand) error {
		lo := pick(rng)
		p, last, err := s.Read(lo, lo+10, rng.IntN(2000))
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r := payloadReader{p: p}
		i := lo
		for ; !r.empty(); i++ {
			e, err := r.next()
			if err != nil {
				return err
			}
			h, err := entry.Parse(e)
			if err != nil {
				return err
			}
			if err := entry.Check(e); err != nil || h.Index != i || !bytes.Equal(e[entry.HeaderSize:], body(i, h.Term)) {
				return fmt.Errorf("entry %d is %+v %q: %v", i, h, e[entry.HeaderSize:], err)
			}
		}
		if i != last+1 {
			return fmt.Errorf("read %d to %d, told up to %d", lo, i-1, last)
		}
		return nil
	})
	run("place", func(rng *rand.Rand) error {
		i := pick(rng)
		pos, size, err := s.Pos(i)
		if err == nil && size > 0 {
			_, err = s.ReadAt(pos, size)
		}
		if err == nil {
			_, err = s.Term(i)
		}
		if gone(err) {
			return nil
		}
		return err
	})
	run("sync", func(*rand.Rand) error {
		_, err := s.Sync()
		return err
	})
	run("checkpoint", func(*rand.Rand) error {
		s.Full()
		s.Stats()
		return s.Checkpoint()
	})
	run("expire", func(*rand.Rand) error {
		_, err := s.Expire()
		return err
	})
	rng := rand.New(rand.NewPCG(seed, 99))
	for term := raft.Term(1); term < 100; term++ {
		st := s.State()
		if rng.IntN(8) == 0 && st.Last > max(st.Commit, st.First-1) {
			lo := max(st.Commit, st.First-1)
			must(t, s.Truncate(lo+raft.Index(rng.IntN(int(st.Last-lo)))))
		}
		fill(t, s, s.State().Last+1+raft.Index(rng.IntN(40)), term)
		st = s.State()
		must(t, s.SetCommit(st.Commit+raft.Index(rng.IntN(int(st.Last-st.Commit)+1))))
		if rng.IntN(40) == 0 {
			must(t, s.SaveTerm(term, "n0"))
		}
	}
	close(stop)
	wg.Wait()
	must(t, s.Close())
	if rep := verify(t, m); len(rep.Problems) > 0 {
		t.Errorf("problems %v", rep.Problems)
	}
}
