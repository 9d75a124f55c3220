package logstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The memory disk erases what Prewrite is told to: an entry that the zeros could reach would be gone.
func TestZerosAheadNeverReachAnEntry(t *testing.T) {
	m := vfs.NewMem()
	calls := make(chan vfs.Call, 1000)
	m.SetHook(func(c vfs.Call) error {
		if c.Op == "prewrite" {
			select {
			case calls <- c:
			default:
			}
		}
		return nil
	})
	cfg := Config{FS: m, Dir: "d", DataFileSize: 12<<20 + 4096, IndexFileSize: 1 << 20, Prewrite: 5 << 20, CacheBytes: 1}
	s := mustOpen(t, cfg)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	big := make([]byte, 1<<20)
	terms := []raft.Term{}
	for term := raft.Term(1); term < 60; term++ {
		var b [][]byte
		for range 1 + rng.IntN(5) {
			b = append(b, append(fmt.Appendf(nil, "%d/%d", term, len(terms)), big[:rng.IntN(len(big))]...))
			terms = append(terms, term)
		}
		must(t, s.Append(s.State().Last+1, term, 1, b, nil))
		must(t, s.Flush())
		if rng.IntN(4) == 0 {
			keep := len(terms) - rng.IntN(min(len(terms), 12))
			must(t, s.Truncate(raft.Index(keep-1)))
			terms = terms[:keep]
		}
	}
	see := func() {
		t.Helper()
		for i, term := range terms {
			h, b, err := s.Entry(raft.Index(i))
			must(t, err)
			if want := fmt.Sprintf("%d/%d", term, i); h.Term != term || string(b[:len(want)]) != want {
				t.Fatalf("entry %d of term %d reads as %q", i, h.Term, b[:len(want)])
			}
		}
	}
	see()
	must(t, s.Close())
	if len(calls) == 0 {
		t.Error("no zeros were written")
	}
	s = mustOpen(t, cfg)
	see()
	must(t, s.Close())
}

// Syncs of a log with and without zeros ahead of it, by turns.
func BenchmarkPrewrite(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("1KiB×%d", n), func(b *testing.B) {
			batch := bodies(n, 1024)
			with, without := benchStore(b, Config{}), benchStore(b, Config{Prewrite: -1})
			var times [2][]float64
			step := func(k int, s *Store) {
				must(b, s.Append(s.tail.last.index+1, 1, 1, batch, nil))
				begin := time.Now()
				must(b, s.Flush())
				_, err := s.Sync()
				must(b, err)
				times[k] = append(times[k], time.Since(begin).Seconds()*1e6)
			}
			for b.Loop() {
				step(0, with)
				step(1, without)
			}
			b.ReportMetric(quantile(times[0], 0.5), "µs-p50-with")
			b.ReportMetric(quantile(times[1], 0.5), "µs-p50-without")
			b.ReportMetric(quantile(times[0], 0.99), "µs-p99-with")
			b.ReportMetric(quantile(times[1], 0.99), "µs-p99-without")
		})
	}
}
