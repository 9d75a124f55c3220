package dledger

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"dledger/internal/raft"
)

// TestEntriesComeInTheSameBytesByEitherRequest: a batch from a node of ours, or one entry at a time, as JSON, from a leader that is taken for a node of
// the original. Another node of the original is not asked.
func TestEntriesComeInTheSameBytesByEitherRequest(t *testing.T) {
	members := group(t, 3, func(c *Config) {
		c.Compat = Compat04
		c.Heartbeat, c.MinVoteInterval, c.MaxVoteInterval = 200*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lead := leader(t, members)
	var last Entry
	for _, body := range []string{"", "a", "\x00\xff\"\\", string(bytes.Repeat([]byte("long"), 30_000))} {
		var err error
		if last, err = lead.Append(ctx, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	want, n, err := lead.store.Read(0, last.Index+1, 1<<20)
	if err != nil || n != last.Index {
		t.Fatalf("read up to %d: %v", n, err)
	}
	asks := members[(slices.Index(members, lead)+1)%3]
	p := asks.net.peers[raft.ID(lead.cfg.ID)]
	for lead.Commit() < last.Index || p.kindNow() != kindOurs {
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	got, err := p.fetch(ctx, 0, last.Index, false)
	if err != nil || !bytes.Equal(slices.Concat(got...), slices.Concat(want...)) {
		t.Errorf("batch: %d bytes, %v, want %d", got.Size(), err, want.Size())
	}
	p.mu.Lock()
	p.kind = kindJava
	p.mu.Unlock()
	if _, err := p.fetch(ctx, 0, last.Index, false); err == nil {
		t.Error("a node of the original that does not lead was asked")
	}
	var one []byte
	for i := Index(0); i <= last.Index; i++ {
		e, err := p.fetch(ctx, i, last.Index, true)
		if err != nil {
			t.Fatal(err)
		}
		one = append(one, slices.Concat(e...)...)
	}
	if !bytes.Equal(one, slices.Concat(want...)) {
		t.Errorf("one by one: %d bytes, want %d", len(one), want.Size())
	}
}

func (p *peer) kindNow() peerKind {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kind
}
