package dledger

import (
	"errors"
	"fmt"

	"dledger/internal/logstore"
	"dledger/internal/raft"
)

// ErrUndecided is wrapped by every error that leaves an append undecided: its entries may be committed already, or yet, or never, and only
// reading the log tells. After an error without it they were not taken, and never will be.
var ErrUndecided = errors.New("the entry may yet be committed")

// Outcomes of Propose, Append and the reads.
var (
	ErrNotLeader    = errors.New("not the leader")
	ErrTransferring = errors.New("leadership is being handed over")
	ErrPendingFull  = errors.New("too many requests are waiting")
	ErrDiskFull     = logstore.ErrDiskFull
	ErrTooLarge     = logstore.ErrTooLarge
	ErrEmpty        = errors.New("a batch needs at least one entry")
	ErrClosed       = errors.New("closed")
	// ErrFailed: the disk failed, so this member takes part in nothing until it is restarted. An append that has met with it is
	// undecided, as a part of it may be on the disk.
	ErrFailed = errors.New("the disk failed; restart this member once it is well")

	// ErrTimeout and ErrLeadershipLost leave an append undecided.
	ErrTimeout        = fmt.Errorf("no majority acknowledged in time; %w", ErrUndecided)
	ErrLeadershipLost = fmt.Errorf("leadership was lost before a majority acknowledged; %w", ErrUndecided)

	// ErrUnknownMember, ErrBehind and ErrTransferFailed are outcomes of TransferLeadership: who shall take over is not another member of the
	// group, lacks too many entries, or did not win the election.
	ErrUnknownMember  = errors.New("not another member of the group")
	ErrBehind         = errors.New("it is too far behind")
	ErrTransferFailed = errors.New("it did not win the election")

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
		return fmt.Errorf("%w; %w", ErrFailed, ErrUndecided)
	case raft.StatusWaitAckTimeout:
		return ErrTimeout
	case raft.StatusTermChanged:
		return ErrLeadershipLost
	case raft.StatusInternal:
		return ErrClosed
	}
	return fmt.Errorf("refused: %v", s)
}
