package wire

import (
	"strconv"

	"dledger/internal/raft"
)

// Request codes of the original (DLedgerRequestCode) and, from 52000 on, ours. A Java node answers ours with header code 3.
const (
	CodeMetadata        int32 = 50000 // client → any node
	CodeAppend          int32 = 50001 // client → leader
	CodeGet             int32 = 50002 // client → leader
	CodeVote            int32 = 51001 // candidate → node
	CodeHeartbeat       int32 = 51002 // leader → node
	CodePull            int32 = 51003 // never answered by the original
	CodePush            int32 = 51004 // leader → node
	CodeTransfer        int32 = 51005 // client → leader → transferee
	CodeInstallSnapshot int32 = 51006 // leader → node, 0.4 only
	CodeUserDefined     int32 = 59999 // client → node, 0.4 only

	CodeHello       int32 = 52000 // anyone → any node: who are you? JSON
	CodePushBinary  int32 = 52002 // as PUSH, entries as they are on disk
	CodeAppendBatch int32 = 52003 // client → leader, binary
	CodeGetBatch    int32 = 52004 // client → node, binary
	CodeStatus      int32 = 52005 // client → any node, JSON
	CodeReset       int32 = 52006 // leader → node: start anew behind an index. JSON
)

// HeaderOK is the header's code of every answer whose body a handler made; what came of the request is the Result in the body.
const HeaderOK int32 = 200

// Result is the code in a body (DLedgerResponseCode in the Java original). The original reads one it does not know as -1.
type Result int32

const (
	ResultUnknown              Result = -1
	ResultOK                   Result = 200
	ResultTimeout              Result = 300
	ResultMetadataError        Result = 301
	ResultNetworkError         Result = 302
	ResultUnsupported          Result = 303
	ResultUnknownGroup         Result = 400
	ResultUnknownMember        Result = 401
	ResultUnexpectedMember     Result = 402
	ResultExpiredTerm          Result = 403
	ResultNotLeader            Result = 404
	ResultNotFollower          Result = 405
	ResultInconsistentState    Result = 406
	ResultInconsistentTerm     Result = 407
	ResultInconsistentIndex    Result = 408
	ResultInconsistentLeader   Result = 409
	ResultIndexOutOfRange      Result = 410
	ResultUnexpectedArgument   Result = 411
	ResultRepeatedRequest      Result = 412
	ResultRepeatedPush         Result = 413
	ResultDiskError            Result = 414
	ResultDiskFull             Result = 415
	ResultTermNotReady         Result = 416
	ResultFallBehindTooMuch    Result = 417
	ResultTakeLeadershipFailed Result = 418
	ResultIndexBelowBegin      Result = 419
	ResultEmptyBodies          Result = 420
	ResultPushRequestIsFull    Result = 421
	ResultNewerSnapshot        Result = 422
	ResultInternalError        Result = 500
	ResultTermChanged          Result = 501
	ResultWaitQuorumAckTimeout Result = 502
	ResultLeaderPendingFull    Result = 503
	ResultIllegalMemberState   Result = 504
	ResultLeaderNotReady       Result = 505
	ResultLeaderTransferring   Result = 506
	ResultLoadSnapshotError    Result = 507
	ResultInstallSnapshotError Result = 508
)

var resultNames = map[Result]string{
	ResultUnknown: "UNKNOWN", ResultOK: "SUCCESS", ResultTimeout: "TIMEOUT", ResultMetadataError: "METADATA_ERROR",
	ResultNetworkError: "NETWORK_ERROR", ResultUnsupported: "UNSUPPORTED", ResultUnknownGroup: "UNKNOWN_GROUP",
	ResultUnknownMember: "UNKNOWN_MEMBER", ResultUnexpectedMember: "UNEXPECTED_MEMBER", ResultExpiredTerm: "EXPIRED_TERM",
	ResultNotLeader: "NOT_LEADER", ResultNotFollower: "NOT_FOLLOWER", ResultInconsistentState: "INCONSISTENT_STATE",
	ResultInconsistentTerm: "INCONSISTENT_TERM", ResultInconsistentIndex: "INCONSISTENT_INDEX",
	ResultInconsistentLeader: "INCONSISTENT_LEADER", ResultIndexOutOfRange: "INDEX_OUT_OF_RANGE",
	ResultUnexpectedArgument: "UNEXPECTED_ARGUMENT", ResultRepeatedRequest: "REPEATED_REQUEST",
	ResultRepeatedPush: "REPEATED_PUSH", ResultDiskError: "DISK_ERROR", ResultDiskFull: "DISK_FULL",
	ResultTermNotReady: "TERM_NOT_READY", ResultFallBehindTooMuch: "FALL_BEHIND_TOO_MUCH",
	ResultTakeLeadershipFailed: "TAKE_LEADERSHIP_FAILED", ResultIndexBelowBegin: "INDEX_LESS_THAN_LOCAL_BEGIN",
	ResultEmptyBodies: "REQUEST_WITH_EMPTY_BODYS", ResultPushRequestIsFull: "PUSH_REQUEST_IS_FULL",
	ResultNewerSnapshot: "NEWER_INSTALL_SNAPSHOT_REQUEST_EXIST", ResultInternalError: "INTERNAL_ERROR",
	ResultTermChanged: "TERM_CHANGED", ResultWaitQuorumAckTimeout: "WAIT_QUORUM_ACK_TIMEOUT",
	ResultLeaderPendingFull: "LEADER_PENDING_FULL", ResultIllegalMemberState: "ILLEGAL_MEMBER_STATE",
	ResultLeaderNotReady: "LEADER_NOT_READY", ResultLeaderTransferring: "LEADER_TRANSFERRING",
	ResultLoadSnapshotError: "LOAD_SNAPSHOT_ERROR", ResultInstallSnapshotError: "INSTALL_SNAPSHOT_ERROR",
}

// String gives the original's name of the code.
func (r Result) String() string {
	if name, ok := resultNames[r]; ok {
		return name
	}
	return "code " + strconv.Itoa(int(r))
}

// statusResults is the one table between the core's outcomes and the codes in bodies.
var statusResults = [...]Result{
	raft.StatusOK:                   ResultOK,
	raft.StatusUnknownMember:        ResultUnknownMember,
	raft.StatusUnexpectedMember:     ResultUnexpectedMember,
	raft.StatusExpiredTerm:          ResultExpiredTerm,
	raft.StatusNotLeader:            ResultNotLeader,
	raft.StatusNotFollower:          ResultNotFollower,
	raft.StatusInconsistentState:    ResultInconsistentState,
	raft.StatusInconsistentTerm:     ResultInconsistentTerm,
	raft.StatusInconsistentLeader:   ResultInconsistentLeader,
	raft.StatusUnexpectedArgument:   ResultUnexpectedArgument,
	raft.StatusDiskError:            ResultDiskError,
	raft.StatusDiskFull:             ResultDiskFull,
	raft.StatusTermNotReady:         ResultTermNotReady,
	raft.StatusFallBehind:           ResultFallBehindTooMuch,
	raft.StatusTakeLeadershipFailed: ResultTakeLeadershipFailed,
	raft.StatusInternal:             ResultInternalError,
	raft.StatusTermChanged:          ResultTermChanged,
	raft.StatusWaitAckTimeout:       ResultWaitQuorumAckTimeout,
	raft.StatusPendingFull:          ResultLeaderPendingFull,
	raft.StatusTransferring:         ResultLeaderTransferring,
	raft.StatusNotReady:             ResultLeaderNotReady,
}

// ResultOf gives the code that a body carries for s.
func ResultOf(s raft.Status) Result {
	if int(s) < len(statusResults) {
		return statusResults[s]
	}
	return ResultInternalError
}

// Status gives the core's word for r. Codes that the core does not tell apart become StatusInternal, but for 421, which asks for the
// same patience as a full leader, and 400, which is a member of another group.
func (r Result) Status() raft.Status {
	switch r {
	case ResultPushRequestIsFull:
		return raft.StatusPendingFull
	case ResultUnknownGroup:
		return raft.StatusUnknownMember
	}
	for s, of := range statusResults {
		if of == r {
			return raft.Status(s)
		}
	}
	return raft.StatusInternal
}

// voteNames are the names of raft.VoteResult, by ordinal (VoteResponse.RESULT in the Java original).
var voteNames = []string{"UNKNOWN", "ACCEPT", "REJECT_UNKNOWN_LEADER", "REJECT_UNEXPECTED_LEADER", "REJECT_EXPIRED_VOTE_TERM",
	"REJECT_ALREADY_VOTED", "REJECT_ALREADY_HAS_LEADER", "REJECT_TERM_NOT_READY", "REJECT_TERM_SMALL_THAN_LEDGER",
	"REJECT_EXPIRED_LEDGER_TERM", "REJECT_SMALL_LEDGER_END_INDEX", "REJECT_TAKING_LEADERSHIP"}

// Push types, by ordinal (PushEntryRequest.Type in the Java original). The first four are in both dialects.
const (
	pushAppend = iota
	pushCommit
	pushCompare
	pushTruncate
	pushReset // only in the binary form; the original's fifth, INSTALL_SNAPSHOT, is never sent
)

var pushNames = []string{"APPEND", "COMMIT", "COMPARE", "TRUNCATE"}
