package replica

import (
	"errors"
	"strings"
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

// A candidate that wakes up finds the appends of the leader that its term has got meanwhile, and a vote behind them: it answers the vote in the same turn, and all of the
// appends cost it one write, and no sync, before that.
func TestVoteIsAnsweredInTheTurnOfWhatLiesBeforeIt(t *testing.T) {
	const pushes = 5000
	w := start(t, 3)
	w.turnAt(w.turn())
	w.answer("n1", raft.MsgPreVote, func(a *raft.Message) { a.Vote = raft.VoteAccept })
	w.turn()
	if v := w.r.View(); v.Role != raft.Candidate || v.Term != 1 {
		t.Fatalf("n0 is %v of term %d, want candidate of term 1", v.Role, v.Term)
	}
	w.trace = nil
	turns, r := w.r.Counters().Turns.Load(), w.replies()
	r.deliver(compare("n1", 1, -1, -1))
	for i := range raft.Index(pushes) {
		prev := raft.Term(1)
		if i == 0 {
			prev = -1
		}
		r.deliver(push("n1", 1, i, i, 1, prev))
	}
	vote := r.deliver(raft.Message{Type: raft.MsgVote, From: "n2", To: "n0", Leader: "n2", Term: 2, Index: pushes - 1, LogTerm: 1})
	w.turn()
	if a := r.got[vote]; len(a) != 1 || a[0].Vote != raft.VoteAccept || a[0].Term != 2 {
		t.Fatalf("after one turn the vote is answered %+v", a)
	}
	if n := w.r.Counters().Turns.Load() - turns; n != 1 {
		t.Errorf("%d turns, want one", n)
	}
	flushes := 0
	for _, l := range w.trace {
		if strings.HasPrefix(l, "answer vote") {
			break
		}
		if strings.HasPrefix(l, "flush") {
			flushes++
		}
		if strings.HasPrefix(l, "sync") {
			t.Error("a sync before the vote")
		}
	}
	if n := len(w.log.entries); n != pushes || flushes != 1 {
		t.Errorf("%d entries in %d writes before the vote, want %d in one", n, flushes, pushes)
	}
	for w.sync() {
	}
	r.check()
}
