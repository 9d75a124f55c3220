package wire

import (
	"fmt"

	"dledger/internal/raft"
)

// AppendAnswer appends the body of ans, the answer to req, whose base is as DecodeRequest gave it. Which fields of the request are
// echoed follows the original: all ids for a vote, the group for a push, none for a heartbeat.
func AppendAnswer(dst []byte, base *Base, req, ans *raft.Message) []byte {
	switch req.Type {
	case raft.MsgVote, raft.MsgPreVote:
		return base.appendVoteAnswer(dst, ResultOf(ans.Status), ans.Term, ans.Vote)
	case raft.MsgHeartbeat:
		w := begin(dst)
		w.int(`"code":`, int64(ResultOf(ans.Status)))
		w.int(`"term":`, int64(heartbeatTerm(ans)))
		return w.end()
	case raft.MsgTransfer:
		if ans.Status == raft.StatusOK {
			w := begin(dst)
			w.int(`"code":`, int64(ResultOK))
			w.int(`"term":`, int64(ans.Term))
			return w.end()
		}
		echo := *base
		echo.Code, echo.Term, echo.LeaderID = ResultOf(ans.Status), ans.Term, ans.Leader
		return echo.appendTo(dst)
	}
	if base.Dialect == raft.CompatGo {
		return appendPushBinaryAnswer(dst, ans)
	}
	return base.appendPushAnswer(dst, req, ans)
}

// heartbeatTerm gives the term of a heartbeat's answer: the original fills it only where something is wrong.
func heartbeatTerm(ans *raft.Message) raft.Term {
	if ans.Status == raft.StatusOK {
		return -1
	}
	return ans.Term
}

func (base *Base) appendVoteAnswer(dst []byte, code Result, term raft.Term, vote raft.VoteResult) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(code))
	w.text(`"group":`, base.Group)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.text(`"localId":`, string(base.LocalID))
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(term))
	w.text(`"voteResult":`, voteNames[vote])
	return w.end()
}

// appendPushAnswer writes the answer to a PUSH or RESET in JSON. beginIndex and endIndex are always filled, which the 0.4 original
// does not do and does not mind: our own leader needs them. The term is the request's, as in the original, unless the answer is
// there to tell of a higher one.
func (base *Base) appendPushAnswer(dst []byte, req, ans *raft.Message) []byte {
	count, first, _ := pushCount(base.Dialect, req)
	term := req.Term
	if ans.Status == raft.StatusExpiredTerm {
		term = ans.Term
	}
	w := begin(dst)
	w.int(`"beginIndex":`, int64(ans.Begin))
	w.int(`"code":`, int64(ResultOf(ans.Status)))
	w.int(`"count":`, count)
	w.int(`"endIndex":`, int64(ans.End))
	w.text(`"group":`, base.Group)
	if req.Type != raft.MsgCommit {
		w.int(`"index":`, first)
	}
	w.int(`"term":`, int64(term))
	if base.Dialect == raft.Compat04 {
		xIndex, xTerm := int64(-1), int64(-1)
		if req.Type == raft.MsgCompare && ans.Status == raft.StatusInconsistentState {
			xIndex, xTerm = int64(ans.XIndex), int64(ans.XTerm)
		}
		w.int(`"xIndex":`, xIndex)
		w.int(`"xTerm":`, xTerm)
	}
	return w.end()
}

// appendTo writes a body of base fields alone.
func (base *Base) appendTo(dst []byte) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(base.Code))
	w.rest(base)
	return w.end()
}

// AppendError appends the answer to a request with the given code that was not carried out: the request's fields are echoed, leader is
// the leader this node knows ("" = none), and the fields of the answer proper say "none". It is the right form for every request code,
// also for one whose body could not be read.
func AppendError(dst []byte, code int32, base *Base, result Result, leader raft.ID) []byte {
	echo := *base
	echo.Code, echo.LeaderID = result, leader
	switch code {
	case CodeAppend:
		return (&AppendResponse{Base: echo, Index: -1, Pos: -1}).AppendTo(dst)
	case CodeGet:
		return (&GetResponse{Base: echo}).appendEmpty(dst)
	case CodeVote:
		return echo.appendVoteAnswer(dst, result, base.Term, raft.VoteUnknown)
	case CodePush:
		return echo.appendPushError(dst)
	case CodePushBinary:
		ans := raft.Message{Status: result.Status(), Term: base.Term, Leader: leader, Begin: -1, End: -1, XTerm: -1, XIndex: -1}
		return appendPushBinaryAnswer(dst, &ans)
	case CodeAppendBatch:
		return (&AppendBatchResponse{Code: result, LeaderID: leader, Term: base.Term, First: -1}).AppendTo(dst)
	case CodeGetBatch:
		return (&GetBatchResponse{Code: result, LeaderID: leader, Term: base.Term, Commit: -1, First: -1, Last: -1}).appendHead(dst)
	}
	return echo.appendTo(dst)
}

func (base *Base) appendPushError(dst []byte) []byte {
	w := begin(dst)
	w.int(`"beginIndex":`, 0)
	w.int(`"code":`, int64(base.Code))
	w.int(`"count":`, 0)
	w.int(`"endIndex":`, 0)
	w.rest(base)
	if base.Dialect == raft.Compat04 {
		w.b = append(w.b, `"xIndex":-1,"xTerm":-1,`...)
	}
	return w.end()
}

// DecodeAnswer reads the answer to req, which was encoded in dialect. An answer that is none is ErrNetwork, and also ErrUnsupported
// when the peer does not know the request.
func DecodeAnswer(dialect raft.Compat, req *raft.Message, headerCode int32, body []byte) (raft.Message, error) {
	if err := headerError(headerCode, body); err != nil {
		return raft.Message{}, err
	}
	ans := raft.Message{Type: req.Type.Answer(), From: req.To, To: req.From, Asked: req.Asked, Index: req.Index, First: req.First, Last: req.Last}
	if dialect == raft.CompatGo && (req.Type.IsPush() || req.Type == raft.MsgReset) {
		return ans, decodePushBinaryAnswer(body, &ans)
	}
	var f fields
	if err := f.parse(body); err != nil {
		return raft.Message{}, err
	}
	ans.Status, ans.Term, ans.Leader = f.Code.Status(), f.Term, f.LeaderID
	switch req.Type {
	case raft.MsgVote, raft.MsgPreVote:
		if f.vote < 0 {
			return raft.Message{}, fmt.Errorf("%w: unknown vote result", ErrMalformed)
		}
		ans.Vote = raft.VoteResult(f.vote)
	case raft.MsgHeartbeat:
		if ans.Status == raft.StatusOK && ans.Term < 0 {
			ans.Term = req.Term
		}
	case raft.MsgTransfer:
	default:
		ans.Begin, ans.End = raft.Index(f.beginIndex), raft.Index(f.endIndex)
		ans.XIndex, ans.XTerm = raft.Index(f.xIndex), raft.Term(f.xTerm)
	}
	return ans, nil
}

// SnapshotDialect tells the generation by the answer to an INSTALL_SNAPSHOT without data, which changes nothing and is answered in
// every role: 0.3 does not know the request, 0.4 refuses it in a body. The request is AppendSnapshotProbe's.
func SnapshotDialect(headerCode int32, body []byte) (raft.Compat, error) {
	if headerCode == 3 {
		return raft.Compat03, nil
	}
	if err := headerError(headerCode, body); err != nil {
		return 0, err
	}
	return raft.Compat04, nil
}

// AppendSnapshotProbe appends an INSTALL_SNAPSHOT, CodeInstallSnapshot, without data.
func AppendSnapshotProbe(dst []byte, group string, remote, local raft.ID) []byte {
	base := Base{Group: group, RemoteID: remote, LocalID: local, LeaderID: local, Code: ResultOK, Term: -1}
	return base.appendTo(dst)
}
