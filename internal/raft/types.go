package raft

import "fmt"

// Index counts entries of the log, from 0; -1 means "none" (an empty log ends at -1).
type Index int64

// Term is an election term; -1 means "none" (the term of the entry before the first).
type Term int64

// ID names a member of the group ("n0"). The empty ID means "nobody".
type ID string

// Instant is a moment on the caller's clock in nanoseconds. The core only compares and adds; it never reads a clock.
type Instant int64

// Compat says which nodes a group may hold, and with it which push dialect its members speak and what a log may contain.
type Compat uint8

const (
	CompatGo Compat = iota // all members are ours: binary push, no-op entries, checked previous entry
	Compat04               // may hold Java 0.4.0 members: JSON push with preLogIndex and preLogTerm, no-op entries
	Compat03               // may hold Java 0.3.x members: JSON push with whole entries, no no-op entries
)

// String gives the value of the setting `compat`: "go", "0.4" or "0.3".
func (c Compat) String() string {
	switch c {
	case CompatGo:
		return "go"
	case Compat04:
		return "0.4"
	case Compat03:
		return "0.3"
	}
	return fmt.Sprintf("Compat(%d)", uint8(c))
}

// Run is a stretch of the log written in one term.
//
//  1. runs are ordered by First, and by Term, both strictly;
//  2. the entry before a run's First belongs to the previous run;
//  3. the last run ends at the log's last index.
type Run struct {
	Term  Term
	First Index
}

// MsgType tells requests and answers apart; an answer's type is its request's type + 1.
type MsgType uint8

const (
	MsgNone MsgType = iota
	_
	MsgPreVote // asks, without any effect at the receiver, whether a vote would be given; only between our nodes
	MsgPreVoteAnswer
	MsgVote // VOTE, 51001
	MsgVoteAnswer
	MsgHeartbeat // HEART_BEAT, 51002
	MsgHeartbeatAnswer
	MsgCompare // PUSH of type COMPARE: does the receiver hold (Index, LogTerm)?
	MsgCompareAnswer
	MsgTruncate // PUSH of type TRUNCATE: Index becomes the receiver's last entry
	MsgTruncateAnswer
	MsgAppend // PUSH of type APPEND: entries First..Last behind (Index, LogTerm)
	MsgAppendAnswer
	MsgCommit // PUSH of type COMMIT: the commit index alone
	MsgCommitAnswer
	MsgReset // the receiver's log starts anew behind (Index, LogTerm), at Pos; only between our nodes
	MsgResetAnswer
	MsgTransfer // LEADERSHIP_TRANSFER, from a client to the leader or from the leader to the transferee
	MsgTransferAnswer
)

var msgNames = [...]string{"none", "?", "prevote", "prevote-answer", "vote", "vote-answer", "heartbeat", "heartbeat-answer",
	"compare", "compare-answer", "truncate", "truncate-answer", "append", "append-answer", "commit", "commit-answer",
	"reset", "reset-answer", "transfer", "transfer-answer"}

func (t MsgType) String() string {
	if int(t) < len(msgNames) {
		return msgNames[t]
	}
	return fmt.Sprintf("MsgType(%d)", uint8(t))
}

// Answer gives the type of the answer to a request of type t.
func (t MsgType) Answer() MsgType { return t + 1 }

// IsAnswer tells answers from requests.
func (t MsgType) IsAnswer() bool { return t&1 == 1 }

// IsPush tells the requests and answers that travel as PUSH (51004) in the original.
func (t MsgType) IsPush() bool { return t >= MsgCompare && t <= MsgCommitAnswer }

// VoteResult is the outcome of a vote request, in the original's order and with its ordinals (VoteResponse.RESULT).
type VoteResult uint8

const (
	VoteUnknown VoteResult = iota
	VoteAccept
	VoteUnknownLeader
	VoteUnexpectedLeader
	VoteExpiredTerm
	VoteAlreadyVoted
	VoteAlreadyHasLeader
	VoteTermNotReady
	VoteTermSmallThanLedger
	VoteExpiredLedgerTerm
	VoteSmallLedgerEndIndex
	VoteTakingLeadership
)

// Status is the outcome of a request between nodes or from a client; package wire maps it to the original's codes.
type Status uint8

const (
	StatusOK Status = iota
	StatusUnknownMember
	StatusUnexpectedMember
	StatusExpiredTerm
	StatusNotLeader
	StatusNotFollower
	StatusInconsistentState // the answer that sends a leader back to COMPARE
	StatusInconsistentTerm
	StatusInconsistentLeader
	StatusUnexpectedArgument
	StatusDiskError
	StatusDiskFull
	StatusTermNotReady
	StatusFallBehind
	StatusTakeLeadershipFailed
	StatusInternal
	StatusTermChanged
	StatusWaitAckTimeout
	StatusPendingFull
	StatusTransferring
	StatusNotReady
)

var statusNames = [...]string{"ok", "unknown-member", "unexpected-member", "expired-term", "not-leader", "not-follower",
	"inconsistent-state", "inconsistent-term", "inconsistent-leader", "unexpected-argument", "disk-error", "disk-full",
	"term-not-ready", "fall-behind", "take-leadership-failed", "internal", "term-changed", "wait-ack-timeout",
	"pending-full", "transferring", "not-ready"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// Payload is the encoded entries First..Last of a MsgAppend, or the one entry of a MsgCompare or MsgTruncate in dialect 0.3:
// complete entries of the file format back to back, without blanks, cut anywhere into pieces that concatenate to them.
// The core carries it from a message to an Effect and never looks inside. It must not be written to once handed over.
type Payload [][]byte

// Size is the number of bytes of all pieces.
func (p Payload) Size() (n int) {
	for _, b := range p {
		n += len(b)
	}
	return n
}

// Message is one request or answer between two members, or from a client (MsgTransfer with an empty From).
// Fields that a type does not name below are zero.
//
//	MsgVote, MsgPreVote      Leader = the candidate, Index and LogTerm = its last entry
//	…Answer                  Vote, Term
//	MsgHeartbeat             Leader, Commit (only between our nodes; else -1)
//	MsgCompare               Leader, Index, LogTerm, Commit, End = the leader's last entry (-1: not said, which only ours are told);
//	                         in dialect 0.3 Payload holds that entry
//	MsgTruncate              Leader, Index = last entry to keep (-1: none), LogTerm, Commit; in dialect 0.3 Payload holds that
//	                         entry. Between ours Runs tells the term of the leader's entry behind Index: of the one it
//	                         has, or its own, which whatever comes there will be of. If Runs begins with Index itself
//	                         (dialect 0.3) a log without that entry starts anew with it
//	MsgAppend                Leader, First, Last, Runs = terms of First..Last, Payload, Commit; Index, LogTerm = the entry
//	                         before First, or LogTerm = UnknownTerm where the dialect does not carry it
//	MsgCommit                Leader, Commit
//	MsgReset                 Leader, Index, LogTerm = entry before the first kept one (or AtMost), Pos = byte position of the first kept one; a MsgTruncate with Payload has Pos too
//	push answers             Status, Begin, End = the follower's log, XTerm, XIndex (term conflict in MsgCompareAnswer);
//	                         Index, First, Last are those of the request
//	MsgTransfer              Leader, Transferer, Transferee, Index = end index the transferee must hold
//	MsgTransferAnswer        Status, Term, Leader
type Message struct {
	Type     MsgType
	Status   Status
	Vote     VoteResult
	From, To ID
	Leader   ID
	Term     Term

	// Ref ties an answer to its request at the node that received the request. 0 in messages that this node sends as requests.
	Ref uint64

	// Asked numbers the question that a request is, or the conversation that it belongs to. It stays with the sender of the request: whoever reads the answer
	// off the wire puts it back. An answer to what is not asked any more does not count.
	Asked Index

	Index       Index
	LogTerm     Term
	First, Last Index
	Commit      Index
	Begin, End  Index
	XTerm       Term
	XIndex      Index
	Pos         int64
	Runs        []Run
	Payload     Payload

	Transferer, Transferee ID
}

// UnknownTerm as LogTerm of a MsgAppend: the sender's dialect does not carry the previous entry. As PrevTerm: nobody knows.
const UnknownTerm Term = -2

// AtMost stands for the term of an entry before a log of which only this is known: it is t or less, as the term of the entry behind it is t. It is less than
// UnknownTerm, and stands in Initial.PrevTerm, Effect.Term, and LogTerm of a MsgReset only.
func AtMost(t Term) Term { return UnknownTerm - 1 - t }

// Ceiling gives the t of AtMost(t), and every other term as it is.
func (t Term) Ceiling() Term {
	if t < UnknownTerm {
		return UnknownTerm - 1 - t
	}
	return t
}
