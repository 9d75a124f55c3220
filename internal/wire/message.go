package wire

import (
	"fmt"

	"dledger/internal/raft"
)

// DecodeRequest reads a request between members, or a LEADERSHIP_TRANSFER from a client. compat is the group's own setting; it
// decides only what a PUSH means whose keys fit both dialects. The base is filled as far as it could be read even when an error is
// returned, so that the error can be answered (ErrorAnswer). The message keeps body, and body may be overwritten.
func DecodeRequest(compat raft.Compat, code int32, body []byte) (Base, raft.Message, error) {
	if code == CodePushBinary {
		return decodePushBinary(body)
	}
	var f fields
	if err := f.parse(body); err != nil {
		f.Dialect = f.pushDialect(compat)
		return f.Base, raft.Message{}, err
	}
	m := raft.Message{From: f.LocalID, To: f.RemoteID, Leader: f.LeaderID, Term: f.Term}
	var err error
	switch code {
	case CodeVote:
		m.Type = raft.MsgVote
		if f.preVote {
			m.Type = raft.MsgPreVote
		}
		m.Index, m.LogTerm = raft.Index(f.ledgerEnd), raft.Term(f.endTerm)
	case CodeHeartbeat:
		m.Type = raft.MsgHeartbeat
		m.Commit = raft.Index(max(f.commitIndex, -1))
	case CodePush:
		f.Dialect = f.pushDialect(compat)
		if f.Dialect == raft.Compat04 {
			err = f.push04(&m)
		} else {
			err = f.push03(&m)
		}
	case CodeTransfer:
		m.Type = raft.MsgTransfer
		m.Transferer, m.Transferee = f.transferer, f.transferee
		m.Index = raft.Index(f.takeIndex)
	case CodeReset:
		f.Dialect = raft.Compat04 // its answer is the JSON one
		m.Type = raft.MsgReset
		m.Index, m.LogTerm, m.Pos = raft.Index(f.preLogIndex), raft.Term(f.preLogTerm), f.pos
		m.Commit = raft.Index(f.commitIndex)
		if m.Index < -1 || m.Pos < 0 {
			err = fmt.Errorf("%w: reset behind index %d at position %d", ErrArgument, m.Index, m.Pos)
		}
	default:
		err = fmt.Errorf("%w: code %d is no request between members", ErrUnsupported, code)
	}
	return f.Base, m, err
}

// pushDialect tells the dialect of a PUSH by its keys: preLogIndex is in every 0.4 request and in no 0.3 request, batch and batchEntry
// the other way round. A request that has both is a probe and gets the answer of our own kind.
func (f *fields) pushDialect(compat raft.Compat) raft.Compat {
	switch {
	case f.has03 && !f.has04:
		return raft.Compat03
	case f.has04 && !f.has03:
		return raft.Compat04
	case compat == raft.Compat03:
		return raft.Compat03
	}
	return raft.Compat04
}

// push04 fills m from a PUSH of dialect 0.4.
func (f *fields) push04(m *raft.Message) error {
	m.Commit = raft.Index(f.commitIndex)
	switch f.pushType {
	case pushAppend:
		return fillAppend(m, &f.list)
	case pushCommit:
		m.Type = raft.MsgCommit
	case pushCompare:
		m.Type, m.End = raft.MsgCompare, raft.Index(f.ledgerEnd)
		m.Index, m.LogTerm = raft.Index(f.preLogIndex), raft.Term(f.preLogTerm)
	case pushTruncate:
		// The index in the request is the first to remove, and its term is not carried.
		m.Type = raft.MsgTruncate
		m.Index, m.LogTerm = raft.Index(f.preLogIndex)-1, raft.UnknownTerm
		m.Runs = behindIndex(m, f.nextTerm, false)
	default:
		return fmt.Errorf("%w: unknown push type", ErrArgument)
	}
	if m.Index < -1 {
		return fmt.Errorf("%w: push of type %s at index %d", ErrArgument, pushNames[f.pushType], f.preLogIndex)
	}
	return nil
}

// push03 fills m from a PUSH of dialect 0.3.
func (f *fields) push03(m *raft.Message) error {
	m.Commit = raft.Index(f.commitIndex)
	switch f.pushType {
	case pushAppend:
		if f.batch || f.single.count() == 0 {
			return fillAppend(m, &f.batched)
		}
		return fillAppend(m, &f.single)
	case pushCommit:
		m.Type = raft.MsgCommit
		return nil
	case pushCompare:
		m.Type, m.End = raft.MsgCompare, raft.Index(f.ledgerEnd)
	case pushTruncate:
		m.Type = raft.MsgTruncate
	default:
		return fmt.Errorf("%w: unknown push type", ErrArgument)
	}
	if f.single.bad != nil {
		return fmt.Errorf("%w: %w", ErrArgument, f.single.bad)
	}
	if f.single.count() == 0 {
		return fmt.Errorf("%w: push of type %s without its entry", ErrArgument, pushNames[f.pushType])
	}
	m.Index, m.LogTerm = f.single.first, f.single.runs[0].Term
	m.Payload = f.single.payload()
	if m.Type == raft.MsgTruncate {
		m.Runs = behindIndex(m, f.nextTerm, f.anew)
	}
	return nil
}

// fillAppend makes m an append of e. The originals do not say which entry they take to be before it.
func fillAppend(m *raft.Message, e *entries) error {
	m.Type = raft.MsgAppend
	if e.bad != nil {
		return fmt.Errorf("%w: %w", ErrArgument, e.bad)
	}
	if e.count() == 0 {
		return fmt.Errorf("%w: append without entries", ErrArgument)
	}
	m.First, m.Last, m.Runs, m.Payload = e.first, e.last, e.runs, e.payload()
	m.Index, m.LogTerm = e.first-1, raft.UnknownTerm
	return nil
}

// EncodeRequest writes the request m for a member that speaks dialect. The pieces alias m's payload. An error means that m cannot be
// said in that dialect: only a bug does that.
func EncodeRequest(dialect raft.Compat, group string, m *raft.Message) (code int32, pieces [][]byte, err error) {
	base := Base{Group: group, RemoteID: m.To, LocalID: m.From, LeaderID: m.Leader, Code: ResultOK, Term: m.Term}
	switch m.Type {
	case raft.MsgVote, raft.MsgPreVote:
		return CodeVote, one(base.appendVote(nil, m)), nil
	case raft.MsgHeartbeat:
		return CodeHeartbeat, one(base.appendHeartbeat(nil, m, dialect)), nil
	case raft.MsgTransfer:
		return CodeTransfer, one(base.appendTransfer(nil, m)), nil
	case raft.MsgCompare, raft.MsgTruncate, raft.MsgAppend, raft.MsgCommit, raft.MsgReset:
		if dialect == raft.CompatGo {
			pieces, err := encodePushBinary(group, m)
			return CodePushBinary, pieces, err
		}
		if m.Type == raft.MsgReset {
			return CodeReset, one(base.appendReset(nil, m)), nil
		}
		var b []byte
		if dialect == raft.Compat04 {
			b, err = base.appendPush04(nil, m)
		} else {
			b, err = base.appendPush03(nil, m)
		}
		if err != nil {
			return 0, nil, fmt.Errorf("encode %v for dialect %v: %w", m.Type, dialect, err)
		}
		return CodePush, one(b), nil
	}
	return 0, nil, fmt.Errorf("encode %v: no request", m.Type)
}

func one(b []byte) [][]byte { return [][]byte{b} }

// The request writers below give the keys in alphabetical order, as the original does; no reader depends on it.

func (base *Base) appendVote(dst []byte, m *raft.Message) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(base.Code))
	w.text(`"group":`, base.Group)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.int(`"ledgerEndIndex":`, int64(m.Index))
	w.int(`"ledgerEndTerm":`, int64(m.LogTerm))
	w.text(`"localId":`, string(base.LocalID))
	if m.Type == raft.MsgPreVote {
		w.raw(`"preVote":`, "true") // to ours alone: the original would take it for a vote
	}
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(base.Term))
	return w.end()
}

func (base *Base) appendHeartbeat(dst []byte, m *raft.Message, dialect raft.Compat) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(base.Code))
	if dialect == raft.CompatGo && m.Commit >= 0 {
		w.int(`"commitIndex":`, int64(m.Commit)) // ours alone
	}
	w.rest(base)
	return w.end()
}

// rest writes the base fields behind code.
func (w *writer) rest(base *Base) {
	w.text(`"group":`, base.Group)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.text(`"localId":`, string(base.LocalID))
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(base.Term))
}

func (base *Base) appendTransfer(dst []byte, m *raft.Message) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(base.Code))
	w.text(`"group":`, base.Group)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.text(`"localId":`, string(base.LocalID))
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"takeLeadershipLedgerIndex":`, int64(m.Index))
	w.int(`"term":`, int64(base.Term))
	w.text(`"transferId":`, string(m.Transferer))
	w.text(`"transfereeId":`, string(m.Transferee))
	return w.end()
}

func (base *Base) appendReset(dst []byte, m *raft.Message) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(base.Code))
	w.int(`"commitIndex":`, int64(m.Commit))
	w.text(`"group":`, base.Group)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.text(`"localId":`, string(base.LocalID))
	w.int(`"pos":`, m.Pos)
	w.int(`"preLogIndex":`, int64(m.Index))
	w.int(`"preLogTerm":`, int64(m.LogTerm))
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(base.Term))
	return w.end()
}

var pushTypes = map[raft.MsgType]int{raft.MsgAppend: pushAppend, raft.MsgCommit: pushCommit, raft.MsgCompare: pushCompare,
	raft.MsgTruncate: pushTruncate, raft.MsgReset: pushReset}

// pushCount gives the number of entries that a push carries, and the first and last index, in the given dialect.
func pushCount(dialect raft.Compat, m *raft.Message) (count, first, last int64) {
	switch {
	case m.Type == raft.MsgAppend:
		return int64(m.Last - m.First + 1), int64(m.First), int64(m.Last)
	case dialect == raft.Compat03 && (m.Type == raft.MsgCompare || m.Type == raft.MsgTruncate):
		return 1, int64(m.Index), int64(m.Index)
	}
	return 0, -1, -1
}

func (base *Base) appendPush04(dst []byte, m *raft.Message) ([]byte, error) {
	count, first, last := pushCount(raft.Compat04, m)
	lastTerm := int64(-1)
	if m.Type == raft.MsgAppend && len(m.Runs) > 0 {
		lastTerm = int64(m.Runs[len(m.Runs)-1].Term)
	}
	preIndex, preTerm := int64(-1), int64(-1)
	switch m.Type {
	case raft.MsgCompare:
		preIndex, preTerm = int64(m.Index), int64(m.LogTerm)
	case raft.MsgTruncate:
		preIndex = int64(m.Index) + 1
	}
	size := 0
	if m.Type == raft.MsgAppend {
		size = m.Payload.Size()
	}
	w := begin(grow(dst, 384+jsonSize(m.Payload, count)))
	w.int(`"code":`, int64(base.Code))
	w.int(`"commitIndex":`, int64(m.Commit))
	w.int(`"count":`, count)
	w.b = append(w.b, `"entries":[`...)
	if count > 0 {
		if err := w.entries(m.Payload); err != nil {
			return dst, err
		}
	}
	w.b = append(w.b, ']', ',')
	w.int(`"firstEntryIndex":`, first)
	w.text(`"group":`, base.Group)
	w.int(`"lastEntryIndex":`, last)
	w.int(`"lastEntryTerm":`, lastTerm)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.ledgerEnd(m)
	w.text(`"localId":`, string(base.LocalID))
	w.nextTerm(m)
	w.int(`"preLogIndex":`, preIndex)
	w.int(`"preLogTerm":`, preTerm)
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(base.Term))
	w.int(`"totalSize":`, int64(size))
	w.text(`"type":`, pushNames[pushTypes[m.Type]])
	return w.end(), nil
}

func (base *Base) appendPush03(dst []byte, m *raft.Message) ([]byte, error) {
	count, first, last := pushCount(raft.Compat03, m)
	if m.Type != raft.MsgCommit && len(m.Payload) == 0 {
		return dst, fmt.Errorf("no entry at index %d", m.Index)
	}
	batch, size := count > 1, 0
	w := begin(grow(dst, 384+jsonSize(m.Payload, count)))
	if startsAnew(m) {
		w.raw(`"anew":`, "true") // said to ours alone
	}
	if batch {
		size = m.Payload.Size()
		w.raw(`"batch":`, "true")
	} else {
		w.raw(`"batch":`, "false")
	}
	w.b = append(w.b, `"batchEntry":[`...)
	if batch {
		if err := w.entries(m.Payload); err != nil {
			return dst, err
		}
	}
	w.b = append(w.b, ']', ',')
	w.int(`"code":`, int64(base.Code))
	w.int(`"commitIndex":`, int64(m.Commit))
	w.int(`"count":`, count)
	if count == 1 {
		w.b = append(w.b, `"entry":`...)
		if err := w.entries(m.Payload); err != nil {
			return dst, err
		}
		w.b = append(w.b, ',')
	}
	w.int(`"firstEntryIndex":`, first)
	w.text(`"group":`, base.Group)
	w.int(`"lastEntryIndex":`, last)
	w.text(`"leaderId":`, string(base.LeaderID))
	w.ledgerEnd(m)
	w.text(`"localId":`, string(base.LocalID))
	w.nextTerm(m)
	w.text(`"remoteId":`, string(base.RemoteID))
	w.int(`"term":`, int64(base.Term))
	w.int(`"totalSize":`, int64(size))
	w.text(`"type":`, pushNames[pushTypes[m.Type]])
	return w.end(), nil
}

// ledgerEnd tells ours, to whom alone it is said, where the log of the leader that compares ends.
func (w *writer) ledgerEnd(m *raft.Message) {
	if m.Type == raft.MsgCompare && m.End >= 0 {
		w.int(`"ledgerEndIndex":`, int64(m.End))
	}
}

// nextTerm tells ours, to whom alone it is said, the term of the entry behind the one that is to be the last.
func (w *writer) nextTerm(m *raft.Message) {
	if t := nextTerm(m); t >= 0 {
		w.int(`"nextTerm":`, int64(t))
	}
}
