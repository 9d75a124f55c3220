package msgstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// BenchmarkGetCold reads 32 messages of 1 KiB that lie in files: of one queue, and of one of two that were filled in turn, so that half of what is read is wanted.
func BenchmarkGetCold(b *testing.B) {
	for _, queues := range []int{1, 2} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) {
			dir := b.TempDir()
			open := func() (*dledger.Ledger, *msgstore.Store, func()) {
				l, err := dledger.Open(dledger.Config{Group: "g", ID: "n0", Peers: "n0-127.0.0.1:20911", Dir: dir})
				if err != nil {
					b.Fatal(err)
				}
				s, err := msgstore.Open(msgstore.Config{Ledger: l, Dir: dir, StoreHost: netip.MustParseAddrPort("10.0.0.1:10911")})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(b.Context())
				ran := make(chan error, 1)
				go func() { ran <- s.Run(ctx) }()
				if err := s.WaitReady(ctx); err != nil {
					b.Fatal(err)
				}
				return l, s, func() {
					cancel()
					if err := errors.Join(<-ran, s.Close(), l.Close()); err != nil {
						b.Fatal(err)
					}
				}
			}
			_, s, stop := open()
			const count = 8192
			body := make([]byte, 1024)
			done := make(chan msgstore.PutResult, count)
			for i := range count {
				m := &mq.Message{Topic: "bench", QueueID: int32(i % queues), Body: body, BornHost: netip.MustParseAddrPort("127.0.0.1:1"), Properties: fmt.Sprintf("UNIQ_KEY\x01%032d\x02", i)}
				s.Put([]*mq.Message{m}, func(p msgstore.PutResult) { done <- p })
			}
			var end int64
			for range count {
				p := <-done
				if p.Status != msgstore.PutOK {
					b.Fatal(p.Err)
				}
				end = max(end, p.Pos[0])
			}
			if err := s.WaitDispatched(b.Context(), end); err != nil {
				b.Fatal(err)
			}
			stop()
			_, s, stop = open()
			defer stop()
			b.ReportAllocs()
			b.SetBytes(32 * 1024)
			at := int64(0)
			for b.Loop() {
				g := s.Get("bench", 0, at%(int64(count/queues)-32), 32, 1<<20, nil)
				if len(g.Messages) != 32 {
					b.Fatal(g.Status)
				}
				at += 32
			}
		})
	}
}
