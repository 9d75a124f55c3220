package msgstore

import (
	"errors"
	"fmt"
	"testing"

	"dledger"
	"dledger/internal/mq"
)

// What the log says of an append, the put status that it becomes, and the code that a client gets: each row as RocketMQ on DLedger has it, and nothing that has to do with leadership is
// ever 2, which clients do not try again.
func TestOutcomesHaveTheStatusAndCodeOfTheOriginal(t *testing.T) {
	for _, x := range []struct {
		outcome string // the original's DLedgerResponseCode
		err     error
		status  string
		code    int32
	}{
		{"SUCCESS", nil, "PUT_OK", 0},
		{"INCONSISTENT_LEADER, NOT_LEADER", dledger.ErrNotLeader, "SERVICE_NOT_AVAILABLE", 14},
		{"NOT_LEADER, with the leader's id", &dledger.NotLeaderError{Leader: "n1"}, "SERVICE_NOT_AVAILABLE", 14},
		{"LEADER_NOT_READY", ErrNotReady, "SERVICE_NOT_AVAILABLE", 14},
		{"LEADER_TRANSFERRING", dledger.ErrTransferring, "SERVICE_NOT_AVAILABLE", 14},
		{"DISK_FULL", dledger.ErrDiskFull, "SERVICE_NOT_AVAILABLE", 14},
		{"DISK_ERROR, of what was not tried", dledger.ErrFailed, "SERVICE_NOT_AVAILABLE", 14},
		{"DISK_ERROR, of what may be on the disk; the original says that it is not", fmt.Errorf("%w; %w", dledger.ErrFailed, dledger.ErrUndecided), "IN_SYNC_REPLICAS_NOT_ENOUGH", 1},
		{"closed, the log", dledger.ErrClosed, "SERVICE_NOT_AVAILABLE", 14},
		{"closed, the store", ErrClosed, "SERVICE_NOT_AVAILABLE", 14},
		{"WAIT_QUORUM_ACK_TIMEOUT", dledger.ErrTimeout, "IN_SYNC_REPLICAS_NOT_ENOUGH", 1},
		{"TERM_CHANGED", dledger.ErrLeadershipLost, "IN_SYNC_REPLICAS_NOT_ENOUGH", 1},
		{"LEADER_PENDING_FULL", dledger.ErrPendingFull, "OS_PAGE_CACHE_BUSY", 2},
		{"too large", dledger.ErrTooLarge, "MESSAGE_ILLEGAL", mq.MessageIllegal},
		{"no stored form", ErrIllegal, "MESSAGE_ILLEGAL", mq.MessageIllegal},
		{"anything else", errors.New("no such thing"), "UNKNOWN_ERROR", 1},
	} {
		errs := []error{x.err}
		if x.err != nil {
			errs = append(errs, fmt.Errorf("append: %w", x.err))
		}
		for _, err := range errs {
			if s := StatusOf(err); s.String() != x.status || s.Code() != x.code {
				t.Errorf("%s: %v is %v, %d, want %s, %d", x.outcome, err, s, s.Code(), x.status, x.code)
			}
		}
	}
}
