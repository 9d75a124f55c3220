package interop

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/wire"
	"dledger/interop/harness"
)

// A follower of ours whose disk gives wrong bytes asks the leader of the original for the entry, one GET at a time, and writes it where it was. What such a leader
// has written carries no checksums, so the damage is in a header. A reader makes it known.
func TestDamagedFollowerIsRepairedByOriginalLeader(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting
			theirs := java(t, gen)
			g := group(t, theirs, ours(t), theirs)
			g.GoOnly["compat"] = string(gen)
			must(t, g.Start())
			_, err := g.WaitLeader(within(t, limit))
			must(t, err)
			must(t, g.Lead(within(t, limit), g.Nodes[0]))
			load := harness.StartLoad(g, "damage", 16, 200)
			must(t, load.More(within(t, limit), 2*longEnough))
			acked, _, err := load.Stop()
			must(t, err)
			_, err = g.Settle(within(t, limit))
			must(t, err)

			n := g.Nodes[1]
			must(t, n.Stop())
			l, err := harness.ReadLog(n.Root())
			must(t, err)
			e, ok := l.At(longEnough)
			if !ok {
				t.Fatalf("no entry %d", longEnough)
			}
			name := filepath.Join(n.Root(), "data", fmt.Sprintf("%020d", 0))
			whole := make([]byte, 48+len(e.Body))
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			_, err = f.ReadAt(whole, e.At)
			must(t, err)
			_, err = f.WriteAt([]byte("damage"), e.At+2)
			must(t, err)
			must(t, n.Start())

			client := remoting.NewClient(remoting.ClientConfig{})
			defer client.Close()
			var got []byte
			err = harness.Until(within(t, limit), "the damaged entry to be repaired", func() bool {
				req := wire.GetBatchRequest{Group: g.Name, RemoteID: raft.ID(n.ID), From: raft.Index(e.Index), EntriesMax: 1}
				answer := make(chan []byte, 1)
				if err := client.Go(fmt.Sprintf("127.0.0.1:%d", n.Port), remoting.Request{Code: wire.CodeGetBatch}, time.Second, func(f *remoting.Frame, err error) {
					var a wire.GetBatchResponse
					if err == nil {
						err = a.Decode(f.Code, bytes.Clone(f.Body))
					}
					var b []byte
					if err == nil && a.Code == wire.ResultOK {
						b = bytes.Join(a.Entries, nil)
					}
					answer <- b
				}, req.AppendTo(nil)); err != nil {
					return false
				}
				got = <-answer
				return got != nil
			})
			must(t, err)
			if !bytes.Equal(got, whole) {
				t.Errorf("entry %d comes as %x, it was %x", longEnough, got[:48], whole[:48])
			}
			after := make([]byte, len(whole))
			_, err = f.ReadAt(after, e.At)
			must(t, err)
			if !bytes.Equal(after, whole) {
				t.Errorf("entry %d is on disk as %x, it was %x", longEnough, after[:48], whole[:48])
			}
			last, err := g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))
		})
	}
}
