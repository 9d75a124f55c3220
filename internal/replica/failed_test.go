package replica

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"dledger/internal/raft"
)

// brokenLog takes everything but the commit index.
type brokenLog struct{}

var errBroken = errors.New("broken")

func (brokenLog) Append(raft.Index, raft.Term, int32, [][]byte, Stamp) error { return nil }
func (brokenLog) AppendEncoded(raft.Index, raft.Payload) error               { return nil }
func (brokenLog) Flush() error                                               { return nil }
func (brokenLog) Truncate(raft.Index) error                                  { return nil }
func (brokenLog) Reset(raft.Index, int64, raft.Term) error                   { return nil }
func (brokenLog) CanBegin(int64) bool                                        { return true }
func (brokenLog) Sync() error                                                { return nil }
func (brokenLog) SaveTerm(raft.Term, raft.ID) error                          { return nil }
func (brokenLog) SetCommit(raft.Index) error                                 { return errBroken }
func (brokenLog) Full() bool                                                 { return false }
func (brokenLog) Joined() error                                              { return nil }
func (brokenLog) Hurt() bool                                                 { return false }

// lone makes a member of a group of one, on a disk that takes no commit index.
func lone() *Replica { return loneOn(brokenLog{}, false) }

func loneOn(log Log, behind bool) *Replica {
	return New(Config{
		Core: raft.Config{ID: "n0", Members: []raft.ID{"n0"}, Heartbeat: time.Second, HeartbeatLeak: 3, MinVoteInterval: time.Second, MaxVoteInterval: 2 * time.Second,
			MinTakeInterval: time.Second, MaxTakeInterval: 2 * time.Second, VoteWait: time.Second, PushTimeout: time.Second,
			MaxPending: 10, MaxEntries: 10, MaxInflight: 1, Rand: func(int64) int64 { return 0 }},
		Initial: raft.Initial{First: 0, Last: -1, PrevTerm: -1, Commit: -1, Abstain: -1, Behind: behind},
		Log:     log, AckWait: time.Second, PendingBytes: 1000, UncommittedBytes: 1000, Logger: slog.New(slog.DiscardHandler),
	}, 1)
}

// A repair that finds the disk failed reports it beside the syncer, whose own sync may end well in the same turn. The failure counts.
func TestFailureIsNotUndoneByASyncThatEndsWell(t *testing.T) {
	r := lone()
	r.Turn(1)
	r.SyncDone(errBroken)
	r.SyncDone(nil)
	r.Turn(2)
	if err := r.View().Err; !errors.Is(err, errBroken) {
		t.Errorf("error is %v, want the disk's", err)
	}
}

// A replica whose disk has failed publishes no commit index that its log may not hold (R7), and still answers its readers (R9).
func TestFailedDiskFreezesTheCommitIndexAndAnswersReads(t *testing.T) {
	r := lone()
	r.Turn(1)
	var status raft.Status
	r.Propose(NewProposal([][]byte{{1}}, nil, func(p *Proposal) { status = p.Status }))
	r.Turn(2)
	if !r.NeedSync() {
		t.Fatal("no sync is asked for")
	}
	answers := 0
	r.Confirm(func(_ raft.Index, s raft.Status) {
		answers++
		if s == raft.StatusOK {
			t.Error("a read is confirmed by a replica whose disk failed")
		}
	})
	r.SyncDone(nil)
	for now := raft.Instant(3); now < 6; now++ {
		r.Turn(now)
	}
	if r.Commit() != -1 || r.View().Err == nil {
		t.Errorf("commit index is %d, error %v; want -1 and the disk's", r.Commit(), r.View().Err)
	}
	if answers != 1 || status != raft.StatusTermChanged {
		t.Errorf("read answered %d times, proposal with %v; want once and %v", answers, status, raft.StatusTermChanged)
	}
}

// brokenNote takes everything but the note that the member has caught up.
type brokenNote struct {
	brokenLog
	tries *int
}

func (b brokenNote) SetCommit(raft.Index) error { return nil }

func (b brokenNote) Joined() error {
	*b.tries++
	return errBroken
}

// What a failed disk has refused it is not asked again: each try would end the turn before its end.
func TestFailedDiskIsNotAskedAgainWhetherItHasCaughtUp(t *testing.T) {
	tries := 0
	r := loneOn(brokenNote{tries: &tries}, true)
	for now := raft.Instant(1); now < 5; now++ {
		r.Turn(now)
	}
	if tries != 1 || !errors.Is(r.View().Err, errBroken) {
		t.Errorf("tried %d times, error %v", tries, r.View().Err)
	}
}
