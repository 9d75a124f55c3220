package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"dledger/internal/raft"
)

func TestVoteIsSavedBeforeItIsAskedForOrGiven(t *testing.T) {
	w := start(t, 3)
	w.turnAt(w.turn())
	w.answer("n1", raft.MsgPreVote, func(a *raft.Message) { a.Vote = raft.VoteAccept })
	w.turn()
	w.after(`save term 1 vote "n0"`, "send vote to n1", "send vote to n2")

	w = start(t, 3)
	r := w.replies()
	r.deliver(raft.Message{Type: raft.MsgVote, From: "n1", To: "n0", Leader: "n1", Term: 5, Index: -1, LogTerm: -1})
	w.turn()
	r.check()
	w.after(`save term 5 vote "n1"`, "answer vote")
	if strings.HasPrefix(w.trace[0], "answer") {
		t.Errorf("R6: %q", w.trace)
	}
}

// TestLeaderWritesBesideReplication: entries are written before they are sent, and sent before they are synced.
func TestLeaderWritesBesideReplication(t *testing.T) {
	w := start(t, 3)
	w.lead()
	o := w.propose("a", "b")
	w.turn()
	w.after("append 0..1", "flush to 1", "send append to n1", "send append to n2")
	o.open(t, "before anybody has synced")
	if !w.sync() {
		t.Fatal("no sync is wanted")
	}
	o.open(t, "with the leader's own sync alone")
	w.answer("n1", raft.MsgAppend, func(a *raft.Message) { a.End = 1 })
	w.turn()
	o.is(t, "with a majority", raft.StatusOK)
	w.after("sync", "commit 1")
	if p := o.p.Pos(); len(p) != 2 || p[0] != 0 || p[1] != 100 {
		t.Errorf("positions %v, want 0 and 100", p)
	}
}

// TestMajorityOfFollowersCommitsBeforeTheLeadersSync ends.
func TestMajorityOfFollowersCommitsBeforeTheLeadersSync(t *testing.T) {
	w := start(t, 3)
	w.lead()
	o := w.propose("a")
	w.turn()
	w.answer("n1", raft.MsgAppend, func(a *raft.Message) { a.End = 0 })
	w.turn()
	o.open(t, "with one follower")
	w.answer("n2", raft.MsgAppend, func(a *raft.Message) { a.End = 0 })
	w.turn()
	o.is(t, "with both followers", raft.StatusOK)
}

func TestFollowerAnswersOnceItsSyncCoversTheEntries(t *testing.T) {
	w := start(t, 3)
	r := w.replies()
	r.deliver(compare("n1", 1, -1, -1))
	k := r.deliver(push("n1", 1, 0, 2, 1, -1))
	w.turn()
	if len(r.got[k]) > 0 {
		t.Errorf("answered before the sync: %q", w.trace)
	}
	w.sync()
	r.check()
	w.after("save term 1", "append 0..2", "flush to 2", "sync", "answer append ok")
}

func TestAsyncAnswersOnceEntriesAreWritten(t *testing.T) {
	w := start(t, 3, func(c *Config) { c.Async = true })
	r := w.replies()
	r.deliver(compare("n1", 1, -1, -1))
	r.deliver(push("n1", 1, 0, 2, 1, -1))
	w.turn()
	r.check()
	w.after("append 0..2", "flush to 2", "answer append ok")
	if w.r.NeedSync() {
		t.Error("the loop wants a sync")
	}
}

// TestSyncsAreShared: one is under way at a time, and what is written meanwhile shares the next.
func TestSyncsAreShared(t *testing.T) {
	w := start(t, 1)
	w.lead()
	first := w.propose("a")
	w.turn()
	if !w.r.NeedSync() {
		t.Fatal("no sync is wanted")
	}
	var rest []*outcome
	for range 10 {
		rest = append(rest, w.propose("b"))
		w.turn()
		if w.r.NeedSync() {
			t.Fatal("a second sync beside the first")
		}
	}
	w.r.SyncDone(nil)
	w.turn()
	first.is(t, "the first", raft.StatusOK)
	for _, o := range rest {
		o.open(t, "written after the sync began")
	}
	if !w.sync() {
		t.Fatal("no second sync is wanted")
	}
	for _, o := range rest {
		o.is(t, "covered by the second sync", raft.StatusOK)
	}
	if w.r.NeedSync() {
		t.Error("a third sync is wanted, with nothing to sync")
	}
}

// TestSyncFromBeforeACutCountsForNothingBehindIt: the same index and term may be stored again after the cut, and is then not yet durable (R4).
func TestSyncFromBeforeACutCountsForNothingBehindIt(t *testing.T) {
	w := start(t, 3)
	r := w.replies()
	r.deliver(compare("n1", 1, -1, -1))
	r.deliver(push("n1", 1, 0, 5, 1, -1))
	w.turn()
	if !w.r.NeedSync() { // under way from here on
		t.Fatal("no sync is wanted")
	}
	// The leader of term 2 lacks entries 3 to 5; that of term 3 has them.
	r.deliver(compare("n2", 2, 2, 1))
	r.deliver(raft.Message{Type: raft.MsgTruncate, From: "n2", To: "n0", Leader: "n2", Term: 2, Index: 2, LogTerm: 1, Commit: -1})
	r.deliver(compare("n1", 3, 2, 1))
	k := r.deliver(push("n1", 3, 3, 5, 1, 1))
	w.turn()
	w.after("truncate to 2", "append 3..5")
	w.r.SyncDone(nil)
	w.turn()
	if len(r.got[k]) > 0 {
		t.Error("entries are called durable by a sync from before they were stored")
	}
	if !w.sync() {
		t.Fatal("no sync of the entries stored after the cut is wanted")
	}
	r.check()
	if a := r.got[k][0]; a.Status != raft.StatusOK {
		t.Errorf("the push is answered with %v", a.Status)
	}
}

// TestLeaderRefusesWhatFindsNoRoom, goes on with what does, and with the right index.
func TestLeaderRefusesWhatFindsNoRoom(t *testing.T) {
	w := start(t, 1)
	w.lead()
	w.log.room = 3
	fits, tooMany, behind := w.propose("a", "b"), w.propose("c", "d"), w.propose("e")
	w.turn()
	w.sync()
	fits.is(t, "the first batch", raft.StatusOK)
	tooMany.is(t, "the batch that finds no room", raft.StatusDiskFull)
	behind.is(t, "the batch behind it, which would fit but not at its index", raft.StatusDiskFull)
	w.log.room = 100
	o := w.propose("f")
	w.turn()
	w.sync()
	o.is(t, "once there is room", raft.StatusOK)
	if o.p.First != 2 || len(w.log.entries) != 3 || w.log.entries[2].body != "f" {
		t.Errorf("stored as entry %d of %v, want 2", o.p.First, w.log.entries)
	}
	w.log.full = true
	o = w.propose("g")
	w.turn()
	o.is(t, "on a disk that says it is full", raft.StatusDiskFull)
}

// TestNothingThatFoundNoRoomIsSent: followers must not hear of entries that their leader does not hold.
func TestNothingThatFoundNoRoomIsSent(t *testing.T) {
	w := start(t, 3)
	w.lead()
	w.log.room = 1
	w.take()
	w.propose("a")
	w.propose("b")
	w.turn()
	for _, m := range w.take() {
		if m.Type == raft.MsgAppend && m.Last > 0 {
			t.Errorf("entries %d to %d are sent", m.First, m.Last)
		}
	}
}

// TestFullDiskAmidABatchOfPushes: what found no room is as if it had never come; a cut behind it in the same turn, and what then fits, is done.
func TestFullDiskAmidABatchOfPushes(t *testing.T) {
	w := start(t, 3)
	r := w.replies()
	r.deliver(compare("n1", 1, -1, -1))
	r.deliver(push("n1", 1, 0, 3, 1, -1))
	w.turn()
	w.sync()
	w.log.room = 6

	k := r.deliver(push("n1", 1, 4, 9, 1, 1))
	w.turn()
	w.sync()
	if a := r.got[k]; len(a) != 1 || a[0].Status == raft.StatusOK || a[0].End != 3 {
		t.Errorf("the push that finds no room is answered %+v, want a refusal that names end 3", a)
	}
	if len(w.log.entries) != 4 {
		t.Errorf("%d entries are stored, want 4", len(w.log.entries))
	}

	// In one turn: no room, then a new leader cuts further back, and its entries fit.
	r.deliver(compare("n1", 1, 3, 1))
	lost := r.deliver(push("n1", 1, 4, 9, 1, 1))
	r.deliver(compare("n2", 2, 1, 1))
	r.deliver(raft.Message{Type: raft.MsgTruncate, From: "n2", To: "n0", Leader: "n2", Term: 2, Index: 1, LogTerm: 1, Commit: -1})
	taken := r.deliver(push("n2", 2, 2, 4, 2, 1))
	w.turn()
	w.sync()
	r.check()
	if a := r.got[lost][0]; a.Status == raft.StatusOK {
		t.Error("the push that found no room is granted")
	}
	if a := r.got[taken][0]; a.Status != raft.StatusOK {
		t.Errorf("the push that fits behind the cut is answered %v", a.Status)
	}
	var bodies []string
	for _, e := range w.log.entries {
		bodies = append(bodies, e.body)
	}
	if got, want := strings.Join(bodies, " "), "1.0 1.1 2.2 2.3 2.4"; got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
}

func TestAcknowledgementIsWaitedForNoLonger(t *testing.T) {
	w := start(t, 3)
	w.lead()
	o := w.propose("a")
	w.turn()
	due := w.now + raft.Instant(ackWait)
	w.sync()
	for w.now < due { // the followers answer heartbeats, and nothing else
		w.answer("n1", raft.MsgHeartbeat, nil)
		d := w.turn()
		if w.now < due {
			o.open(t, "before the time is over")
		}
		w.now = min(d, due)
	}
	w.turn()
	o.is(t, "after ackWait", raft.StatusWaitAckTimeout)
	w.answer("n1", raft.MsgCompare, func(a *raft.Message) { a.End = 0 })
	w.turn()
	o.is(t, "after it was committed all the same", raft.StatusWaitAckTimeout)
	if c := w.r.Commit(); c != 0 {
		t.Errorf("commit is %d, want 0", c)
	}
}

// deposed is a leader with an uncommitted entry 0, which n2 deposes.
func deposed(t *testing.T) (*world, *replies, *outcome) {
	w := start(t, 3)
	w.lead()
	o := w.propose("a")
	w.turn()
	r := w.replies()
	r.deliver(raft.Message{Type: raft.MsgHeartbeat, From: "n2", To: "n0", Leader: "n2", Term: 2, Index: 1, Commit: -1})
	w.turn()
	r.check()
	if v := w.r.View(); v.Role != raft.Follower || v.Leader != "n2" {
		t.Fatalf("n0 is %v under %q", v.Role, v.Leader)
	}
	return w, r, o
}

// TestDeposedLeaderAnswersWhatItsSuccessorCommits: the entry reached it before the election.
func TestDeposedLeaderAnswersWhatItsSuccessorCommits(t *testing.T) {
	w, r, o := deposed(t)
	o.open(t, "before the successor speaks")
	r.deliver(compare("n2", 2, 0, 1))
	m := push("n2", 2, 1, 1, 2, 1)
	m.Commit = 1
	r.deliver(m)
	w.turn()
	w.sync()
	r.check()
	o.is(t, "committed by the successor", raft.StatusOK)
}

// TestDeposedLeaderTellsWhatItsSuccessorReplaced: at its index another entry is committed.
func TestDeposedLeaderTellsWhatItsSuccessorReplaced(t *testing.T) {
	w, r, o := deposed(t)
	r.deliver(compare("n2", 2, -1, -1))
	r.deliver(raft.Message{Type: raft.MsgTruncate, From: "n2", To: "n0", Leader: "n2", Term: 2, Index: -1, LogTerm: -1, Commit: -1})
	w.turn()
	o.open(t, "cut, which a third member may yet undo")
	m := push("n2", 2, 0, 1, 2, -1)
	m.Commit = 1
	r.deliver(m)
	w.turn()
	w.sync()
	r.check()
	o.is(t, "replaced", raft.StatusTermChanged)
}

func TestDeposedLeaderWaitsForItsSuccessorNoLongerThanAnElection(t *testing.T) {
	w, _, o := deposed(t)
	until := w.now + raft.Instant(3*heartbeat)
	for w.now < until {
		w.turnAt(min(w.r.deadline(), until))
	}
	w.turn()
	o.is(t, "unheard of", raft.StatusTermChanged)
}

// TestEverythingIsFinishedOnce, whatever ends the replica, and whatever comes after that.
func TestEverythingIsFinishedOnce(t *testing.T) {
	fail := errors.New("broken")
	for _, k := range []struct {
		name string
		end  func(w *world)
	}{
		{"closed", func(w *world) { w.r.Stop() }},
		{"term cannot be saved", func(w *world) {
			w.log.saveErr = fail
			w.r.Deliver(raft.Message{Type: raft.MsgVote, From: "n1", To: "n0", Leader: "n1", Term: 9, Index: 100, LogTerm: 8}, func(*raft.Message) {})
		}},
		{"write fails", func(w *world) { w.log.flushErr = fail }},
		{"append fails", func(w *world) { w.log.appendErr = fail }},
		{"commit cannot be noted", func(w *world) {
			w.log.commitErr = fail
			w.answer("n1", raft.MsgAppend, func(a *raft.Message) { a.End = a.Last })
			w.answer("n2", raft.MsgAppend, func(a *raft.Message) { a.End = a.Last })
		}},
		{"sync fails", func(w *world) {
			if w.r.NeedSync() {
				w.r.SyncDone(fail)
			}
		}},
		{"first a sync fails, then it is closed", func(w *world) {
			if w.r.NeedSync() {
				w.r.SyncDone(fail)
			}
			w.turn()
			w.r.Stop()
		}},
		{"first no term, then no sync", func(w *world) {
			w.log.saveErr = fail
			w.r.Deliver(raft.Message{Type: raft.MsgVote, From: "n1", To: "n0", Leader: "n1", Term: 9, Index: 100, LogTerm: 8}, func(*raft.Message) {})
			w.turn()
			w.r.SyncDone(fail)
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			w := start(t, 3)
			w.lead()
			r := w.replies()
			var all []*outcome
			confirms, asked := 0, 0
			load := func() {
				all = append(all, w.propose("a"), w.propose("b", "c"))
				r.deliver(raft.Message{Type: raft.MsgHeartbeat, From: "n1", To: "n0", Leader: "n1", Term: 1, Index: 1, Commit: -1})
				r.deliver(raft.Message{Type: raft.MsgTransfer, To: "n0", Transferer: "n0", Transferee: "n1", Term: -1})
				r.deliver(push("n2", 0, 0, 1, 0, -1))
				asked++
				w.r.Confirm(func(raft.Index, raft.Status) { confirms++ })
			}
			all = append(all, w.propose("accepted"))
			w.turn()
			load()
			k.end(w)
			w.turn()
			load()
			w.turn()
			w.r.Stop()
			w.turn()
			load()
			for _, o := range all {
				if o.times != 1 {
					t.Errorf("R9: proposal of entry %d finished %d times, %v", o.p.First, o.times, o.p.Status)
				}
			}
			r.check()
			if confirms != asked {
				t.Errorf("%d confirmations of %d", confirms, asked)
			}
		})
	}
}

// TestWithoutATermNothingIsSaid: a member that could not save its term or vote may not be believed, whatever happens afterwards.
func TestWithoutATermNothingIsSaid(t *testing.T) {
	w := start(t, 3)
	w.lead()
	o := w.propose("a")
	w.turn()
	if !w.r.NeedSync() {
		t.Fatal("no sync is wanted")
	}
	w.log.saveErr = errors.New("broken")
	r := w.replies()
	k := r.deliver(raft.Message{Type: raft.MsgVote, From: "n1", To: "n0", Leader: "n1", Term: 9, Index: 100, LogTerm: 8})
	w.take()
	w.turn()
	w.r.SyncDone(errors.New("broken too"))
	deadline := w.turn()
	r.deliver(push("n1", 9, 1, 1, 9, 1))
	w.turn()
	r.check()
	if a := r.got[k][0]; a.Vote == raft.VoteAccept {
		t.Error("R6: a vote that is not saved is given")
	}
	for _, m := range w.take() {
		t.Errorf("%v is sent to %s", m.Type, m.To)
	}
	o.is(t, "what was accepted", raft.StatusTermChanged)
	if w.r.View().Err == nil {
		t.Error("the view tells of no failure")
	}
	if deadline < w.now+raft.Instant(time.Hour) {
		t.Errorf("it wants another turn in %v", time.Duration(deadline-w.now))
	}
}

// A member that has given up waiting for what it lost says so where it accepts a candidate. If its disk fails in the same turn it does not vote at all, as others do not.
func TestFailedDiskVotesForNobody(t *testing.T) {
	for _, lapsed := range []bool{false, true} {
		w := start(t, 3, func(c *Config) { c.Initial.Behind = lapsed })
		w.turnAt(w.turn())
		if lapsed {
			for _, id := range []raft.ID{"n1", "n2"} {
				w.answer(id, raft.MsgPreVote, func(a *raft.Message) { a.Vote, a.Status, a.Term = raft.VoteTermNotReady, raft.StatusNotReady, 0 })
			}
			w.turn()
		}
		vote := raft.Message{Type: raft.MsgVote, From: "n1", To: "n0", Leader: "n1", Term: 8, Index: 100, LogTerm: 7}
		r := w.replies()
		sound := r.deliver(vote)
		w.turn()
		if a := r.got[sound][0]; a.Vote != raft.VoteAccept || (a.Status == raft.StatusNotReady) != lapsed {
			t.Fatalf("lapsed %v: on a sound disk the vote is %v, %v", lapsed, a.Vote, a.Status)
		}
		vote.Term = 9
		w.log.flushErr = errors.New("broken")
		k := r.deliver(vote)
		r.deliver(compare("n1", 9, -1, -1))
		r.deliver(push("n1", 9, 0, 0, 9, -1))
		w.turn()
		r.check()
		if a := r.got[k][0]; a.Vote == raft.VoteAccept || a.Status == raft.StatusOK {
			t.Errorf("lapsed %v: the vote is %v, %v", lapsed, a.Vote, a.Status)
		}
	}
}

// TestFailedSyncAcknowledgesNothing: the leader gives its leadership away, and no answer of the turn speaks of what is not on disk.
func TestFailedSyncAcknowledgesNothing(t *testing.T) {
	w := start(t, 3)
	w.lead()
	w.answer("n1", raft.MsgHeartbeat, nil)
	o := w.propose("a")
	w.turn()
	if !w.r.NeedSync() {
		t.Fatal("no sync is wanted")
	}
	w.take()
	w.r.SyncDone(errors.New("broken"))
	w.turn()
	o.is(t, "what the sync should have covered", raft.StatusTermChanged)
	var types []string
	for _, m := range w.take() {
		types = append(types, m.Type.String())
	}
	if strings.Join(types, " ") != "transfer" {
		t.Errorf("sent %v, want one transfer", types)
	}
	if v := w.r.View(); v.Role == raft.Leader || v.Err == nil {
		t.Errorf("it is %v, failure %v", v.Role, v.Err)
	}
	o = w.propose("b")
	w.turn()
	if o.times != 1 || o.p.Status == raft.StatusOK {
		t.Errorf("a later proposal is finished %d times, %v", o.times, o.p.Status)
	}
}

func TestMailboxIsBounded(t *testing.T) {
	w := start(t, 3)
	r := w.replies()
	for range inboxMax + 10 {
		r.deliver(raft.Message{Type: raft.MsgHeartbeat, From: "n1", To: "n0", Leader: "n1", Term: 1, Index: 1, Commit: -1})
	}
	refused := 0
	for _, a := range r.got {
		if a[0].Status != raft.StatusInternal || a[0].Type != raft.MsgHeartbeatAnswer {
			t.Errorf("refused with %v %v", a[0].Type, a[0].Status)
		}
		refused++
	}
	if refused != 10 {
		t.Errorf("%d are refused, want 10", refused)
	}
	w.turn()
	r.check()

	w = start(t, 1, func(c *Config) { c.PendingBytes = 10 })
	w.lead()
	first, second, third := w.propose("0123456789"), w.propose("x"), w.propose("y")
	second.is(t, "beyond PendingBytes", raft.StatusPendingFull)
	third.is(t, "beyond PendingBytes", raft.StatusPendingFull)
	w.turn()
	again := w.propose("z")
	w.turn()
	w.sync()
	w.sync()
	first.is(t, "within PendingBytes", raft.StatusOK)
	again.is(t, "after a turn", raft.StatusOK)
}

func TestLeavingReplicaTakesNoProposal(t *testing.T) {
	w := start(t, 1)
	w.lead()
	o := w.propose("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.r.Drain(ctx)
	late := w.propose("b")
	late.is(t, "after Drain", raft.StatusNotLeader)
	w.turn()
	w.sync()
	o.is(t, "before Drain", raft.StatusOK)
}

// TestRunEndsWithClose: the loop and its syncer are gone, and what waited is answered.
func TestRunEndsWithClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	w := start(t, 1)
	begin := time.Now()
	now := func() raft.Instant { return raft.Instant(time.Since(begin)) + 1 }
	go w.r.Run(now)
	for !leads(w.r) {
		<-w.r.Changed()
	}
	done := make(chan raft.Status, 1000)
	for range cap(done) {
		w.r.Propose(NewProposal([][]byte{{1}}, nil, func(p *Proposal) { done <- p.Status }))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w.r.Drain(ctx)
	w.r.Close()
	for range cap(done) {
		if s := <-done; s != raft.StatusOK {
			t.Fatalf("a proposal is finished with %v", s)
		}
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// leads tells whether r leads; the channel of Changed must be asked for before.
func leads(r *Replica) bool { return r.View().Role == raft.Leader }

// TestRandomInputsAreAnsweredOnce: any mixture of requests, proposals, failures of room and syncs, in any order.
func TestRandomInputsAreAnsweredOnce(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		w := start(t, 3)
		r := w.replies()
		var all []*outcome
		term := raft.Term(1)
		for range 60 {
			from := raft.ID([]string{"n1", "n2"}[rnd.IntN(2)])
			i := raft.Index(rnd.IntN(8)) - 1
			switch rnd.IntN(12) {
			case 0:
				term++
				r.deliver(raft.Message{Type: raft.MsgVote, From: from, To: "n0", Leader: from, Term: term, Index: i, LogTerm: term - 1})
			case 1:
				r.deliver(raft.Message{Type: raft.MsgHeartbeat, From: from, To: "n0", Leader: from, Term: term, Index: 1, Commit: -1})
			case 2:
				r.deliver(compare(from, term, w.log.last(), w.r.core.LastTerm()))
			case 3:
				r.deliver(push(from, term, w.log.last()+1, w.log.last()+1+raft.Index(rnd.IntN(4)), term, w.r.core.LastTerm()))
			case 4:
				r.deliver(raft.Message{Type: raft.MsgTruncate, From: from, To: "n0", Leader: from, Term: term, Index: i, LogTerm: term, Commit: -1})
			case 5:
				r.deliver(raft.Message{Type: raft.MsgTransfer, From: from, To: "n0", Leader: from, Transferer: from, Transferee: "n0", Term: term, Index: i})
			case 6:
				w.log.room = rnd.IntN(30)
			case 7:
				w.turnAt(w.r.deadline())
			case 8:
				for _, typ := range []raft.MsgType{raft.MsgPreVote, raft.MsgVote} {
					for _, m := range w.sent {
						if m.Type == typ && m.To == from {
							w.answer(from, typ, func(a *raft.Message) { a.Vote = raft.VoteAccept })
							break
						}
					}
				}
			default:
				all = append(all, w.propose("x", "y"))
			}
			if rnd.IntN(2) == 0 {
				w.turn()
				term = max(term, w.r.core.Term())
			}
			if rnd.IntN(3) == 0 {
				w.sync()
			}
		}
		if rnd.IntN(2) == 0 {
			w.log.saveErr = errors.New("broken")
			w.turn()
		}
		w.r.Stop()
		w.turn()
		for _, o := range all {
			if o.times != 1 {
				t.Errorf("R9: proposal of entry %d finished %d times", o.p.First, o.times)
			}
		}
		r.check()
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, strings.Join(w.trace, "\n"))
		}
	}
}

// TestProposalOfAnotherTermIsNotTaken: not one of the past, and not one of the future.
func TestProposalOfAnotherTermIsNotTaken(t *testing.T) {
	w := start(t, 1)
	w.lead()
	term := w.r.View().Term
	for _, k := range []struct {
		in   raft.Term
		want raft.Status
	}{{term - 1, raft.StatusNotLeader}, {term, raft.StatusOK}, {term + 1, raft.StatusNotLeader}, {-1, raft.StatusOK}} {
		var got []raft.Status
		w.r.Propose(NewProposal([][]byte{[]byte("a")}, nil, func(p *Proposal) { got = append(got, p.Status) }).In(k.in))
		w.turn()
		w.sync()
		w.turn()
		if len(got) != 1 || got[0] != k.want {
			t.Errorf("bound to term %d in term %d: %v, want %v", k.in, term, got, k.want)
		}
	}
}
