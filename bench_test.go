package dledger

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// BenchmarkPropose appends batches of 64 entries of 1 KiB from inside the leader's process, 64 batches under way. The other members run in the
// same process too, over loopback, so that with three of them the processor does the work of three.
func BenchmarkPropose(b *testing.B) {
	const entriesInBatch, underWay, size = 64, 64, 1 << 10
	for _, n := range []int{1, 3} {
		for _, durability := range []Durability{Async, Group} {
			b.Run(fmt.Sprintf("members=%d/%v", n, durability), func(b *testing.B) {
				members := group(b, n, func(c *Config) { c.Durability, c.DataFileSize = durability, 256<<20 })
				l := leader(b, members)
				batch := make([][]byte, entriesInBatch)
				for i := range batch {
					batch[i] = make([]byte, size)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				syncs, turns := l.Stats().Syncs, l.Stats().Turns
				b.SetBytes(entriesInBatch * size)
				b.ReportAllocs()
				b.ResetTimer()
				var line [underWay]*Pending
				wait := func(p *Pending) {
					if p == nil {
						return
					}
					if _, err := p.Wait(ctx); err != nil {
						b.Fatal(err)
					}
				}
				for i := range b.N {
					wait(line[i%underWay])
					line[i%underWay] = l.Propose(batch, nil)
				}
				for _, p := range line {
					wait(p)
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N*entriesInBatch)/b.Elapsed().Seconds(), "entries/s")
				b.ReportMetric(float64(l.Stats().Syncs-syncs)/float64(b.N), "syncs/op")
				b.ReportMetric(float64(l.Stats().Turns-turns)/float64(b.N), "turns/op")
			})
		}
	}
}

// BenchmarkAppend is one client that waits for each entry: the latency of the whole path.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 3} {
		for _, durability := range []Durability{Async, Group} {
			b.Run(fmt.Sprintf("members=%d/%v", n, durability), func(b *testing.B) {
				l := leader(b, group(b, n, func(c *Config) { c.Durability, c.DataFileSize = durability, 256<<20 }))
				body := make([]byte, 1<<10)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Append(ctx, body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
