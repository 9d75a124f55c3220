package dledger

import (
	"errors"
	"fmt"

	"dledger/internal/logstore"
	"dledger/internal/raft"
)

// Outcomes of Propose, Append and the reads. ErrTimeout and ErrLeadershipLost leave an append undecided: it may yet be
// committed, or never. After every other one it was not taken, and never will be.
var (
	ErrNotLeader      = errors.New("not the leader")
	ErrTransferring   = errors.New("leadership is being handed over")
	ErrPendingFull    = errors.New("too many appends are waiting")
	ErrDiskFull       = logstore.ErrDiskFull
	ErrFailed         = errors.New("the disk failed; restart this member once it is well")
	ErrTooLarge       = logstore.ErrTooLarge
	ErrEmpty          = errors.New("a batch needs at least one entry")
	ErrTimeout        = errors.New("no majority acknowledged in time; the entry may yet be committed")
	ErrLeadershipLost = errors.New("leadership was lost before a majority acknowledged; the entry may yet be committed")
	ErrClosed         = errors.New("closed")

	// ErrCompacted: retention has deleted the entry. ErrOutOfRange: no such entry is committed here, yet.
	ErrCompacted  = logstore.ErrCompacted
	ErrOutOfRange = logstore.ErrOutOfRange
	// ErrDamaged: the entry is damaged on this member's disk, and is being fetched from another one.
	ErrDamaged = logstore.ErrDamaged
)

// NotLeaderError is the form in which ErrNotLeader comes. errors.Is(err, ErrNotLeader) finds it.
type NotLeaderError struct {
	Leader string // who leads instead, as far as this member knows; "" = nobody
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return "not the leader; no leader is known"
	}
	return fmt.Sprintf("not the leader; %s is", e.Leader)
}

func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// outcome names what became of a proposal.
func outcome(s raft.Status, leader raft.ID) error {
	switch s {
	case raft.StatusOK:
		return nil
	case raft.StatusNotLeader:
		return &NotLeaderError{Leader: string(leader)}
	case raft.StatusTransferring:
		return ErrTransferring
	case raft.StatusPendingFull:
		return ErrPendingFull
	case raft.StatusDiskFull:
		return ErrDiskFull
	case raft.StatusDiskError:
		return ErrFailed
	case raft.StatusWaitAckTimeout:
		return ErrTimeout
	case raft.StatusTermChanged:
		return ErrLeadershipLost
	case raft.StatusInternal:
		return ErrClosed
	}
	return fmt.Errorf("refused: %v", s)
}
