// Package wire owns the bytes of DLedger's requests and answers: it is the only place that knows request codes, result codes and the
// dialects of the originals. It turns them into raft.Message and the client structs of this package, and back; it never sends, waits
// or decides. Start at DecodeRequest and EncodeRequest for members, at AppendRequest for clients.
//
// Compatibility: METADATA, APPEND, GET, VOTE, HEART_BEAT and LEADERSHIP_TRANSFER are alike in all releases of the original. PUSH has
// two dialects, 0.3 and 0.4, and a third form of ours. docs/protocol.md lists what this package reads, writes and leaves out.
package wire

import (
	"errors"
	"fmt"

	"dledger/internal/raft"
)

// Errors of decoding. The three say who is to blame; the text behind them says for what.
var (
	// ErrMalformed: the bytes are not what the request's code calls for.
	ErrMalformed = errors.New("malformed body")
	// ErrArgument: the bytes are well-formed, but lack or contradict what the request needs. Answered with ResultUnexpectedArgument.
	ErrArgument = errors.New("unexpected argument")
	// ErrNetwork: the answer is no answer: the header's code is not 200, or there is no body (NETWORK_ERROR in the original).
	ErrNetwork = errors.New("network error")
	// ErrUnsupported: the peer does not know the request's code.
	ErrUnsupported = errors.New("request not supported by the peer")
)

// Base holds the fields that every request and answer has (RequestOrResponse in the Java original).
type Base struct {
	Group    string
	RemoteID raft.ID // the receiver of the request; echoed in some answers
	LocalID  raft.ID // the sender of the request
	LeaderID raft.ID // the leader or candidate; in answers the known leader
	Code     Result  // 200 in requests
	Term     raft.Term

	// Dialect is what a PUSH or RESET was written in: its answer must be in the same. It is not a field of the body.
	Dialect raft.Compat
}

// headerError gives the error of an answer that has no body to decode, or nil.
func headerError(code int32, body []byte) error {
	switch {
	case code == 3:
		return fmt.Errorf("%w: %w", ErrNetwork, ErrUnsupported)
	case code != HeaderOK:
		return fmt.Errorf("%w: header code %d", ErrNetwork, code)
	case len(body) == 0:
		return fmt.Errorf("%w: answer without a body", ErrNetwork)
	}
	return nil
}
