package msgstore

import (
	"fmt"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
)

// BenchmarkPutAndDispatch is what the store adds to a message of 1 KiB on the leader, in batches as producers' requests come together.
func BenchmarkPutAndDispatch(b *testing.B) {
	r := newRig(b, func(c *Config) {
		c.QueueFileUnits, c.IndexSlots, c.IndexItems, c.CheckpointEvery = unitsPerFile, 5_000_000, 20_000_000, 10*time.Second
	})
	r.lead()
	body := make([]byte, 1024)
	b.ReportAllocs()
	done := make(chan struct{}, 1024)
	n := 0
	for b.Loop() {
		m := &mq.Message{Topic: "bench", QueueID: int32(n % 16), Body: body, BornHost: host, Properties: fmt.Sprintf("UNIQ_KEY\x017F0000010000266474A3%012d\x02TAGS\x01a\x02", n)}
		r.s.Put([]*mq.Message{m}, func(PutResult) { done <- struct{}{} })
		<-done
		if n++; n%512 == 0 {
			r.settle()
			r.log.mu.Lock() // the log is not what is measured
			if k := len(r.log.entries); k > 100_000 {
				r.log.entries = append([]dledger.Entry(nil), r.log.entries[k-1000:]...)
				r.log.first += dledger.Index(k - 1000)
			}
			r.log.mu.Unlock()
		}
	}
}

// BenchmarkGet reads 32 messages that lie in memory.
func BenchmarkGet(b *testing.B) {
	r := newRig(b, func(c *Config) { c.QueueFileUnits = unitsPerFile })
	r.lead()
	r.fill("bench", 0, 1000)
	b.ReportAllocs()
	at := int64(0)
	for b.Loop() {
		g := r.s.Get("bench", 0, at%900, 32, 1<<20, nil)
		if len(g.Messages) != 32 {
			b.Fatal(g.Status)
		}
		at += 32
	}
}
