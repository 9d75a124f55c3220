package dledger

import (
	"errors"
	"time"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/replica"
	"dledger/internal/wire"
)

// handler answers requests (DLedgerServer's handle methods in the Java original). Every request is answered with a body, whatever
// becomes of it: an answer without one leaves callers of the original waiting (docs/protocol.md, "Requests").
type handler struct{ s *Server }

func (h handler) Idle(*remoting.Conn) {}

// headerOK is the header of every answer made here; what came of the request stands in the body.
var headerOK = remoting.Answer{Code: wire.HeaderOK}

func (h handler) Handle(c *remoting.Conn, f *remoting.Frame) {
	switch f.Code {
	case wire.CodeAppend:
		h.append(c, f)
	case wire.CodeGet:
		h.get(c, f)
	case wire.CodeMetadata:
		h.metadata(c, f)
	case wire.CodeAppendBatch:
		h.appendBatch(c, f)
	case wire.CodeGetBatch:
		h.getBatch(c, f)
	case wire.CodeHello:
		h.hello(c, f)
	case wire.CodeStatus:
		h.status(c, f)
	case wire.CodeVote, wire.CodeHeartbeat, wire.CodePush, wire.CodePushBinary, wire.CodeReset, wire.CodeTransfer:
		h.member(c, f)
	case wire.CodeInstallSnapshot:
		h.snapshot(c, f)
	case wire.CodePull, wire.CodeUserDefined:
		base, _ := wire.DecodeBase(f.Body)
		h.refuse(c, f.Ref(), f.Code, &base, wire.ResultUnsupported, "")
	default:
		h.sent(c.ReplyUnsupported(f))
	}
}

// sent takes the outcome of an answer. One that cannot be sent has closed its connection, which the client notices.
func (h handler) sent(err error) {
	if err != nil {
		h.s.log.Debug("answer not sent", "error", err)
	}
}

// vain tells remoting of a request that nobody who belongs here sends: not of one that another member, or this one at another moment, would have taken.
func vain(c *remoting.Conn, ref remoting.Ref, r wire.Result) {
	switch r {
	case wire.ResultUnsupported, wire.ResultUnknownGroup, wire.ResultUnknownMember, wire.ResultUnexpectedMember, wire.ResultUnexpectedArgument, wire.ResultEmptyBodies:
		c.Vain(ref)
	}
}

func (h handler) refuse(c *remoting.Conn, ref remoting.Ref, code int32, base *wire.Base, r wire.Result, leader raft.ID) {
	vain(c, ref, r)
	h.sent(c.Reply(ref, headerOK, wire.AppendError(nil, code, base, r, leader)))
}

// ledger gives the ledger that a client's request in JSON is for; err is what reading it came to. It is nil once the request has been
// refused: it cannot be read, or nobody here is meant by it.
func (h handler) ledger(c *remoting.Conn, f *remoting.Frame, base *wire.Base, err error) *Ledger {
	l, r := h.s.find(base)
	if err != nil {
		l, r = nil, wire.ResultUnexpectedArgument
	}
	if l == nil {
		h.refuse(c, f.Ref(), f.Code, base, r, "")
	}
	return l
}

// member hands a request of another member, or a client's hand-over, to the loop.
func (h handler) member(c *remoting.Conn, f *remoting.Frame) {
	ref, code := f.Ref(), f.Code
	compat := h.compat(f.Body)
	base, m, err := wire.DecodeRequest(compat, code, f.Body)
	l, r := h.s.find(&base)
	switch {
	case r != wire.ResultOK && (err == nil || base.RemoteID != ""):
		h.refuse(c, ref, code, &base, r, "")
		return
	case errors.Is(err, wire.ErrArgument):
		h.refuse(c, ref, code, &base, wire.ResultUnexpectedArgument, "")
		return
	case err != nil || l == nil:
		h.refuse(c, ref, code, &base, wire.ResultInternalError, "")
		return
	}
	if m.Type.IsPush() && base.Dialect != l.cfg.Compat {
		if now, last := time.Now().Unix(), l.dialectTold.Load(); now-last >= 60 && l.dialectTold.CompareAndSwap(last, now) { // whoever says that he is a member may push without end
			l.cfg.Logger.Warn("push of another dialect refused", "from", base.LocalID, "dialect", base.Dialect.String(), "compat", l.cfg.Compat.String())
		}
		h.refuse(c, ref, code, &base, wire.ResultUnexpectedArgument, raft.ID(l.Leader()))
		return
	}
	if m.Type != raft.MsgTransfer && !hasPeer(l.peers, string(m.Leader)) {
		c.Vain(ref)
	}
	m.From = base.LocalID
	m.To = raft.ID(l.cfg.ID)
	req := m
	req.Payload = nil
	l.loop.Deliver(m, func(a *raft.Message) {
		a.Type = req.Type.Answer()
		h.sent(c.Reply(ref, headerOK, wire.AppendAnswer(nil, &base, &req, a)))
	})
}

// compat gives the setting of the group on this port; with several groups that of the one a JSON body names.
func (h handler) compat(body []byte) raft.Compat {
	h.s.mu.RLock()
	defer h.s.mu.RUnlock()
	if len(h.s.ledgers) == 1 {
		for _, l := range h.s.ledgers {
			return l.cfg.Compat
		}
	}
	if base, err := wire.DecodeBase(body); err == nil {
		if l := h.s.ledgers[member{base.Group, base.RemoteID}]; l != nil {
			return l.cfg.Compat
		}
	}
	return raft.CompatGo
}

// snapshot answers INSTALL_SNAPSHOT, which no node of ours takes, as the generation that the group speaks does without data.
func (h handler) snapshot(c *remoting.Conn, f *remoting.Frame) {
	base, err := wire.DecodeBase(f.Body)
	l, r := h.s.find(&base)
	switch {
	case err != nil || l == nil:
		h.refuse(c, f.Ref(), f.Code, &base, r, "")
	case l.cfg.Compat == raft.Compat03:
		h.sent(c.ReplyUnsupported(f))
	default:
		h.refuse(c, f.Ref(), f.Code, &base, wire.ResultUnexpectedArgument, "")
	}
}

// append serves APPEND of the original's clients.
func (h handler) append(c *remoting.Conn, f *remoting.Frame) {
	ref := f.Ref()
	var req wire.AppendRequest
	err := req.Decode(f.Body)
	l := h.ledger(c, f, &req.Base, err)
	switch {
	case l == nil:
	case req.Body == nil || len(req.Body) > l.bodyMax():
		h.refuse(c, ref, f.Code, &req.Base, wire.ResultUnexpectedArgument, raft.ID(l.Leader()))
	default:
		base := req.Base
		l.loop.Propose(replica.NewProposal([][]byte{req.Body}, nil, func(p *replica.Proposal) {
			if p.Status != raft.StatusOK {
				h.refuse(c, ref, wire.CodeAppend, &base, wire.ResultOf(p.Status), l.loop.View().Leader)
				return
			}
			a := wire.AppendResponse{Base: wire.Base{Group: base.Group, LeaderID: raft.ID(l.cfg.ID), Code: wire.ResultOK, Term: p.Term}, Index: p.First, Pos: p.Pos()[0]}
			h.sent(c.Reply(ref, headerOK, a.AppendTo(make([]byte, 0, 160))))
		}))
	}
}

// appendBatch serves our own clients: many entries, one answer.
func (h handler) appendBatch(c *remoting.Conn, f *remoting.Frame) {
	ref := f.Ref()
	var req wire.AppendBatchRequest
	err := req.Decode(f.Body)
	l, r := h.s.find(&wire.Base{Group: req.Group, RemoteID: req.RemoteID})
	answer := func(a wire.AppendBatchResponse) { h.sent(c.Reply(ref, headerOK, a.AppendTo(nil))) }
	refused := wire.AppendBatchResponse{First: -1, Term: -1}
	switch {
	case err != nil:
		refused.Code = wire.ResultUnexpectedArgument
	case l == nil:
		refused.Code = r
	case len(req.Bodies) == 0:
		refused.Code = wire.ResultEmptyBodies
	case l.checkBatch(req.Bodies) != nil:
		refused.Code = wire.ResultUnexpectedArgument
	default:
		l.loop.Propose(replica.NewProposal(req.Bodies, nil, func(p *replica.Proposal) {
			a := wire.AppendBatchResponse{Code: wire.ResultOf(p.Status), LeaderID: l.loop.View().Leader, Term: p.Term, First: p.First, Positions: p.Pos()}
			if p.Status != raft.StatusOK {
				a.First, a.Positions = -1, nil
			}
			answer(a)
		}))
		return
	}
	vain(c, ref, refused.Code)
	answer(refused)
}

// get serves GET of the original's clients: one entry, from the leader, only if it is committed. An index beyond what this leader
// knows as committed is refused only after a majority has confirmed that it leads: another may have committed it.
func (h handler) get(c *remoting.Conn, f *remoting.Frame) {
	ref := f.Ref()
	var req wire.GetRequest
	err := req.Decode(f.Body)
	l := h.ledger(c, f, &req.Base, err)
	switch {
	case l == nil:
	case !l.IsLeader():
		h.refuse(c, ref, f.Code, &req.Base, wire.ResultNotLeader, raft.ID(l.Leader()))
	case req.BeginIndex <= l.Commit():
		h.reply(c, ref, l, &req)
	default:
		l.loop.Confirm(func(i raft.Index, s raft.Status) {
			switch {
			case s != raft.StatusOK:
				h.refuse(c, ref, wire.CodeGet, &req.Base, unconfirmed(s), raft.ID(l.Leader()))
			case req.BeginIndex > i:
				h.refuse(c, ref, wire.CodeGet, &req.Base, wire.ResultIndexOutOfRange, raft.ID(l.Leader()))
			case !l.aside(func() { h.reply(c, ref, l, &req) }):
				h.refuse(c, ref, wire.CodeGet, &req.Base, wire.ResultLeaderPendingFull, raft.ID(l.Leader()))
			}
		})
	}
}

// unconfirmed is the answer to a read that no majority has confirmed: there may be another leader.
func unconfirmed(s raft.Status) wire.Result {
	if s == raft.StatusPendingFull {
		return wire.ResultLeaderPendingFull
	}
	return wire.ResultNotLeader
}

// asideMost bounds the reads that wait for the disk once a majority has confirmed this member.
const asideMost = 1024

// aside runs a read that the loop has found to be due; the loop itself waits for no disk. False: too many are at it.
func (l *Ledger) aside(read func()) bool {
	if l.reading.Add(1) > asideMost {
		l.reading.Add(-1)
		return false
	}
	l.tasks.Go(func() {
		defer l.reading.Add(-1)
		read()
	})
	return true
}

// reply reads one committed entry and answers with it.
func (h handler) reply(c *remoting.Conn, ref remoting.Ref, l *Ledger, req *wire.GetRequest) {
	p, _, err := l.store.Read(req.BeginIndex, req.BeginIndex+1, 1)
	if err != nil {
		h.refuse(c, ref, wire.CodeGet, &req.Base, readResult(err), raft.ID(l.Leader()))
		return
	}
	a := wire.GetResponse{Base: wire.Base{Group: req.Group, Code: wire.ResultOK, Term: -1}, Entries: p}
	b, err := a.AppendTo(make([]byte, 0, 256+p.Size()*4/3))
	if err != nil {
		h.s.log.Error("entry cannot be encoded", "index", req.BeginIndex, "error", err)
		h.refuse(c, ref, wire.CodeGet, &req.Base, wire.ResultInternalError, raft.ID(l.Leader()))
		return
	}
	h.sent(c.Reply(ref, headerOK, b))
}

func readResult(err error) wire.Result {
	switch {
	case errors.Is(err, ErrCompacted):
		return wire.ResultIndexBelowBegin
	case errors.Is(err, ErrOutOfRange):
		return wire.ResultIndexOutOfRange
	}
	return wire.ResultDiskError
}

// Bounds of batch reads.
const (
	getBytes   = 1 << 20
	getWaitMax = 30 * time.Second
)

// getBatch serves our own clients, from any member: committed entries as they are on disk.
func (h handler) getBatch(c *remoting.Conn, f *remoting.Frame) {
	ref := f.Ref()
	var req wire.GetBatchRequest
	if err := req.Decode(f.Body); err != nil {
		h.batch(c, ref, nil, wire.GetBatchResponse{Code: wire.ResultUnexpectedArgument})
		return
	}
	l, r := h.s.find(&wire.Base{Group: req.Group, RemoteID: req.RemoteID})
	switch {
	case l == nil:
		h.batch(c, ref, nil, wire.GetBatchResponse{Code: r})
	case req.Confirmed:
		l.loop.Confirm(func(i raft.Index, s raft.Status) {
			if s != raft.StatusOK {
				h.batch(c, ref, l, wire.GetBatchResponse{Code: unconfirmed(s)})
				return
			}
			if !l.aside(func() { h.read(c, ref, l, &req, i) }) {
				h.batch(c, ref, l, wire.GetBatchResponse{Code: wire.ResultLeaderPendingFull})
			}
		})
	case req.From > l.Commit() && req.Wait > 0:
		l.waits.add(min(req.Wait, getWaitMax), req.From, func() { h.read(c, ref, l, &req, l.Commit()) })
	default:
		h.read(c, ref, l, &req, l.Commit())
	}
}

func (h handler) read(c *remoting.Conn, ref remoting.Ref, l *Ledger, req *wire.GetBatchRequest, commit raft.Index) {
	bytes := getBytes
	if req.BytesMax > 0 {
		bytes = min(bytes, req.BytesMax)
	}
	hi := commit + 1
	if req.EntriesMax > 0 {
		hi = min(hi, req.From+raft.Index(req.EntriesMax))
	}
	if req.From > commit {
		h.batch(c, ref, l, wire.GetBatchResponse{Code: wire.ResultIndexOutOfRange})
		return
	}
	p, last, err := l.store.Read(req.From, hi, bytes)
	if err != nil {
		h.batch(c, ref, l, wire.GetBatchResponse{Code: readResult(err)})
		return
	}
	a := wire.GetBatchResponse{Code: wire.ResultOK, First: req.From, Last: last, Entries: p}
	v := l.loop.View()
	a.LeaderID, a.Term, a.Commit = v.Leader, v.Term, commit
	h.sent(c.Reply(ref, headerOK, a.Pieces()...))
}

// batch answers a batch read without entries.
func (h handler) batch(c *remoting.Conn, ref remoting.Ref, l *Ledger, a wire.GetBatchResponse) {
	vain(c, ref, a.Code)
	a.First, a.Last, a.Term, a.Commit = -1, -1, -1, -1
	if l != nil {
		v := l.loop.View()
		a.LeaderID, a.Term, a.Commit = v.Leader, v.Term, l.Commit()
	}
	h.sent(c.Reply(ref, headerOK, a.Pieces()...))
}

func (h handler) metadata(c *remoting.Conn, f *remoting.Frame) {
	var req wire.MetadataRequest
	err := req.Decode(f.Body)
	if l := h.ledger(c, f, &req.Base, err); l != nil {
		a := wire.MetadataResponse{Base: wire.Base{Group: l.cfg.Group, LeaderID: raft.ID(l.Leader()), Code: wire.ResultOK, Term: -1}, Peers: l.addresses()}
		h.sent(c.Reply(f.Ref(), headerOK, a.AppendTo(nil)))
	}
}

func (h handler) hello(c *remoting.Conn, f *remoting.Frame) {
	var req wire.Hello
	a := wire.HelloResponse{Node: wire.Node{Product: wire.Product, Version: Version}}
	if err := wire.DecodeJSON(f.Body, &req); err != nil {
		a.Code = wire.ResultUnexpectedArgument
	} else if l, r := h.s.anyOf(req.Group, req.RemoteID); l == nil {
		a.Code = r
	} else {
		l.net.met(req.LocalID)
		a = wire.HelloResponse{Code: wire.ResultOK, Group: l.cfg.Group, ID: raft.ID(l.cfg.ID), Past: l.past(), Node: l.cfg.node()}
	}
	vain(c, f.Ref(), a.Code)
	h.sent(c.Reply(f.Ref(), headerOK, wire.EncodeJSON(&a)))
}

// status tells the state of one member. The loop is asked, so that all indexes are of one moment.
func (h handler) status(c *remoting.Conn, f *remoting.Frame) {
	ref := f.Ref()
	var req wire.StatusRequest
	if err := wire.DecodeJSON(f.Body, &req); err != nil {
		vain(c, ref, wire.ResultUnexpectedArgument)
		h.sent(c.Reply(ref, headerOK, wire.EncodeJSON(&wire.StatusResponse{Code: wire.ResultUnexpectedArgument})))
		return
	}
	l, r := h.s.anyOf(req.Group, req.RemoteID)
	if l == nil {
		vain(c, ref, r)
		h.sent(c.Reply(ref, headerOK, wire.EncodeJSON(&wire.StatusResponse{Code: r, Group: req.Group})))
		return
	}
	answer := func(a *wire.StatusResponse) { h.sent(c.Reply(ref, headerOK, wire.EncodeJSON(a))) }
	if err := l.loop.Ask(func(s replica.Snapshot) { answer(l.statusResponse(l.statusOf(s))) }); err != nil {
		answer(&wire.StatusResponse{Code: wire.ResultInternalError, Group: l.cfg.Group, ID: raft.ID(l.cfg.ID), Node: l.cfg.node(), Error: err.Error()})
	}
}
