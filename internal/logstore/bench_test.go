package logstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// benchStore is a store on the disk of the machine, with the default file sizes.
func benchStore(b *testing.B, cfg Config) *Store {
	cfg.Dir = b.TempDir()
	s := mustOpen(b, cfg)
	b.Cleanup(func() { must(b, s.Close()) })
	return s
}

func bodies(n, size int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([][]byte, n)
	for i := range out {
		out[i] = make([]byte, size)
		for k := range out[i] {
			out[i][k] = byte(rng.Uint32())
		}
	}
	return out
}

// What the leader does with a batch of 1 KiB bodies, without the sync.
func BenchmarkAppendFlush(b *testing.B) {
	for _, n := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("1KiB×%d", n), func(b *testing.B) {
			s := benchStore(b, Config{})
			batch := bodies(n, 1024)
			next := raft.Index(0)
			b.SetBytes(int64(n) * 1072)
			b.ReportAllocs()
			for b.Loop() {
				must(b, s.Append(next, 1, entry.MagicNormal, batch, nil))
				must(b, s.Flush())
				next += raft.Index(n)
			}
		})
	}
}

// What a follower does with the same batch as it comes from the network.
func BenchmarkAppendEncodedFlush(b *testing.B) {
	for _, n := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("1KiB×%d", n), func(b *testing.B) {
			leader := mustOpen(b, Config{FS: vfs.NewMem(), Dir: "leader", DataFileSize: 1 << 40, Inline: true})
			batch := bodies(n, 1024)
			s := benchStore(b, Config{DataFileSize: 1 << 30})
			next := raft.Index(0)
			b.SetBytes(int64(n) * 1072)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				if next%(1<<14) == 0 && next > 0 { // the leader's disk is memory
					must(b, leader.Reset(next, s.State().End, 1))
				}
				must(b, leader.Append(next, 1, entry.MagicNormal, batch, nil))
				must(b, leader.Flush())
				p, _, err := leader.Read(next, next+raft.Index(n), 1<<30)
				must(b, err)
				b.StartTimer()
				must(b, s.AppendEncoded(next, p))
				must(b, s.Flush())
				next += raft.Index(n)
			}
		})
	}
}

// A group commit: batch, flush, sync.
func BenchmarkAppendSync(b *testing.B) {
	for _, n := range []int{1, 16, 128, 1024} {
		b.Run(fmt.Sprintf("1KiB×%d", n), func(b *testing.B) {
			s := benchStore(b, Config{})
			batch := bodies(n, 1024)
			next := raft.Index(0)
			b.SetBytes(int64(n) * 1072)
			for b.Loop() {
				must(b, s.Append(next, 1, entry.MagicNormal, batch, nil))
				must(b, s.Flush())
				_, err := s.Sync()
				must(b, err)
				next += raft.Index(n)
			}
		})
	}
}

func BenchmarkSetCommit(b *testing.B) {
	s := benchStore(b, Config{})
	batch := bodies(1024, 64)
	next := raft.Index(0)
	commit := raft.Index(-1)
	for b.Loop() {
		if commit++; commit >= next {
			b.StopTimer()
			must(b, s.Append(next, 1, entry.MagicNormal, batch, nil))
			must(b, s.Flush())
			next += 1024
			b.StartTimer()
		}
		must(b, s.SetCommit(commit))
	}
}

func BenchmarkSaveTerm(b *testing.B) {
	s := benchStore(b, Config{})
	term := raft.Term(0)
	for b.Loop() {
		term++
		must(b, s.SaveTerm(term, "n0"))
	}
}

// Reads of 64 entries of 1 KiB from memory and from the files.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name  string
		cache int64
	}{{"cache", 1 << 30}, {"disk", 1}} {
		b.Run(c.name, func(b *testing.B) {
			s := benchStore(b, Config{CacheBytes: c.cache})
			const entries = 1 << 14
			for next := raft.Index(0); next < entries; next += 1024 {
				must(b, s.Append(next, 1, entry.MagicNormal, bodies(1024, 1024), nil))
				must(b, s.Flush())
			}
			rng := rand.New(rand.NewPCG(1, 1))
			b.SetBytes(64 * 1072)
			b.ReportAllocs()
			for b.Loop() {
				lo := raft.Index(rng.IntN(entries - 1100))
				p, last, err := s.Read(lo, lo+64, 1<<20)
				if err != nil || last != lo+63 || p.Size() != 64*1072 {
					b.Fatalf("read up to %d, %d bytes: %v", last, p.Size(), err)
				}
			}
		})
	}
}

// quantile gives the q-quantile of a sample, which it sorts.
func quantile(sample []float64, q float64) float64 {
	slices.Sort(sample)
	return sample[int(q*float64(len(sample)-1))]
}

// Opening a log of 1 GiB: after a clean stop, and with everything since the last checkpoint unsynced, as a killed process leaves it.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	cfg := Config{Dir: dir}
	s := mustOpen(b, cfg)
	batch := bodies(1024, 1024)
	for next := raft.Index(0); next < 1<<20; next += 1024 {
		must(b, s.Append(next, raft.Term(next>>14), entry.MagicNormal, batch, nil))
		must(b, s.Flush())
	}
	must(b, s.Close())
	b.Run("clean", func(b *testing.B) {
		for b.Loop() {
			s := mustOpen(b, cfg)
			b.StopTimer()
			must(b, s.Close())
			b.StartTimer()
		}
	})
	for _, mib := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("killed,%dMiB since the last checkpoint", mib), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := mustOpen(b, cfg)
				next := s.State().Last + 1
				for range mib {
					must(b, s.Append(next, 100, entry.MagicNormal, batch[:1000], nil))
					must(b, s.Flush())
					next += 1000
				}
				must(b, s.release())
				b.StartTimer()
				s = mustOpen(b, cfg)
				b.StopTimer()
				must(b, s.Close())
				b.StartTimer()
			}
		})
	}
}
