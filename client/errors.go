package client

import (
	"context"
	"errors"
	"fmt"

	"dledger/internal/wire"
)

// Outcomes a caller acts on. Beside them there are *RefusedError, the context's own error, and errors that say which answer of which
// node made no sense.
var (
	// ErrUndecided: the group may have done what was asked, or may yet do it: an entry may be in the log or get there. Only
	// reading the log tells.
	ErrUndecided = errors.New("outcome unknown, it may be done or may yet be done")
	// ErrNoLeader: the context ended before any node called itself the leader. Nothing was sent.
	ErrNoLeader = errors.New("no leader")
	// ErrUnknownGroup: every node of the Config answers that it is no member of the group, or those that answer do so for two seconds while the
	// others cannot be reached; and none has ever answered this client otherwise. Nothing was sent.
	ErrUnknownGroup = errors.New("no node given is a member of it")
	// ErrClosed: the client was closed before anything was sent.
	ErrClosed = errors.New("client closed")
	// ErrTooLarge: the body is larger than an entry, or what a request can carry. Nothing was sent.
	ErrTooLarge = errors.New("body too large")
	// ErrOutOfRange: there is no such entry yet.
	ErrOutOfRange = errors.New("no such entry")
	// ErrCompacted: the entry was deleted by retention. A Java node may say ErrOutOfRange instead.
	ErrCompacted = errors.New("entry is no longer kept")
)

// RefusedError is a group's own refusal. Where it comes without ErrUndecided, nothing was done.
type RefusedError struct {
	Code    int    // as in the original's DLedgerResponseCode
	Name    string // of the code
	Node    string // the id of the node that refused
	Address string // where it was asked
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s (%s) answers %d %s", e.Node, e.Address, e.Code, e.Name)
}

func refused(r wire.Result, by node) error {
	return &RefusedError{Code: int(r), Name: r.String(), Node: string(by.id), Address: by.address}
}

// stranger tells whether err is the answer of a node that does not know the group, or itself under that id.
func stranger(err error) bool {
	var r *RefusedError
	if !errors.As(err, &r) {
		return false
	}
	switch wire.Result(r.Code) {
	case wire.ResultUnknownGroup, wire.ResultUnknownMember, wire.ResultUnexpectedMember:
		return true
	}
	return false
}

func undecided(cause error) error { return fmt.Errorf("%w: %w", ErrUndecided, cause) }

// endedError is the end of a context by a cause of its owner's: it reads as the cause and is the context's error as well.
type endedError struct{ cause, err error }

func (e *endedError) Error() string   { return e.cause.Error() }
func (e *endedError) Unwrap() []error { return []error{e.cause, e.err} }

// ended says why ctx ended.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return &endedError{cause, err}
}
