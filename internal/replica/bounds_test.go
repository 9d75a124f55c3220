package replica

import (
	"errors"
	"testing"

	"dledger/internal/raft"
)

// R9: whatever clients send while the loop has no turn, what waits for it is bounded.

func TestAppendsWithoutABodyFillTheInboxToo(t *testing.T) {
	w := start(t, 1, func(c *Config) { c.PendingBytes = 4800 })
	w.lead()
	var all []*outcome
	for range 200 {
		all = append(all, w.propose(""))
	}
	for _, o := range all[:100] {
		o.open(t, "within the bound")
	}
	for _, o := range all[100:] {
		o.is(t, "beyond the bound", raft.StatusPendingFull)
	}
}

func TestQuestionsBeyondTheBoundAreRefused(t *testing.T) {
	w := start(t, 1)
	answered, refused := 0, 0
	for range asksMax {
		if err := w.r.Ask(func(Snapshot) { answered++ }); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.r.Ask(func(Snapshot) { answered++ }); !errors.Is(err, errBusy) {
		t.Errorf("one more question: got %v, want %v", err, errBusy)
	}
	w.r.Confirm(func(_ raft.Index, s raft.Status) {
		if s == raft.StatusPendingFull {
			refused++
		}
	})
	w.turn()
	if answered != asksMax || refused != 1 {
		t.Errorf("%d answered and %d confirmations refused, want %d and 1", answered, refused, asksMax)
	}
}
