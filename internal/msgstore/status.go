package msgstore

import (
	"errors"

	"dledger"
	"dledger/internal/mq"
)

// PutStatus says what became of a message (PutMessageStatus in the original).
type PutStatus uint8

// What a Put comes to.
const (
	PutOK                   PutStatus = iota
	ServiceNotAvailable               // not taken: this member does not lead, or has no room
	InSyncReplicasNotEnough           // undecided: the message may yet be committed
	PageCacheBusy                     // not taken: too much is waiting
	MessageIllegal                    // never to be taken
	UnknownError
)

// statuses is the one table of what clients are told: the log's outcome, the put status, and the code of the answer. Reasons of leadership are
// 14, which every client tries again; never 2, which most do not. 1 is for what may yet be committed, and for what nobody foresaw.
var statuses = []struct {
	err    error
	status PutStatus
}{
	{dledger.ErrUndecided, InSyncReplicasNotEnough}, // before all others: it comes with a reason
	{dledger.ErrNotLeader, ServiceNotAvailable},
	{dledger.ErrTransferring, ServiceNotAvailable},
	{dledger.ErrDiskFull, ServiceNotAvailable},
	{dledger.ErrFailed, ServiceNotAvailable},
	{dledger.ErrClosed, ServiceNotAvailable},
	{ErrClosed, ServiceNotAvailable},
	{ErrNotReady, ServiceNotAvailable},
	{dledger.ErrPendingFull, PageCacheBusy},
	{dledger.ErrTooLarge, MessageIllegal},
	{ErrIllegal, MessageIllegal},
}

var statusNames = [...]struct {
	name string
	code int32
}{
	PutOK:                   {"PUT_OK", mq.Success},
	ServiceNotAvailable:     {"SERVICE_NOT_AVAILABLE", mq.ServiceNotAvailable},
	InSyncReplicasNotEnough: {"IN_SYNC_REPLICAS_NOT_ENOUGH", mq.SystemError},
	PageCacheBusy:           {"OS_PAGE_CACHE_BUSY", mq.SystemBusy},
	MessageIllegal:          {"MESSAGE_ILLEGAL", mq.MessageIllegal},
	UnknownError:            {"UNKNOWN_ERROR", mq.SystemError},
}

// Errors of Put beside those of the log.
var (
	// ErrNotReady: this member does not lead, or does not yet know of all that was committed before.
	ErrNotReady = errors.New("this member is not ready to take messages")
	// ErrIllegal: the message has no stored form.
	ErrIllegal = errors.New("illegal message")
)

// String is the original's name.
func (p PutStatus) String() string { return statusNames[p].name }

// Code is the response code that a client gets.
func (p PutStatus) Code() int32 { return statusNames[p].code }

// StatusOf gives the status for an outcome of the log.
func StatusOf(err error) PutStatus {
	if err == nil {
		return PutOK
	}
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return UnknownError
}
