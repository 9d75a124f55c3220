package broker

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// place says which replica can work on a request.
type place uint8

const (
	// anywhere: every replica answers from what it knows; the handler passes on what it is not sure of (request.toLeader).
	anywhere place = iota
	// atLeader: the leader alone. The handler runs only on a replica that leads, has dispatched all that was committed before, and has told so.
	atLeader
)

// route is how one request is worked on.
type route struct {
	at place
	// waits: the handler may wait for the disk, the log or a client, so it gets a goroutine of its own, of which there are waitersMax. Others
	// run on the connection's read goroutine, in order, and must not wait.
	waits bool
	do    func(b *Broker, r *request)
}

// table lists every request that is served; all others are answered with mq.NotSupported.
func table() map[int32]route {
	t := map[int32]route{
		mq.CodeSend:        {atLeader, false, (*Broker).send},
		mq.CodeSendV2:      {atLeader, false, (*Broker).send},
		mq.CodeSendBatch:   {atLeader, false, (*Broker).send},
		mq.CodeSendReply:   {atLeader, false, (*Broker).sendReply},
		mq.CodeSendReplyV2: {atLeader, false, (*Broker).sendReply},
		mq.CodeSendBack:    {atLeader, true, (*Broker).sendBack},

		mq.CodePull:     {anywhere, false, (*Broker).pull},
		mq.CodeLitePull: {anywhere, false, (*Broker).pull},

		mq.CodeQueryConsumerOffset:  {atLeader, false, (*Broker).queryOffset},
		mq.CodeUpdateConsumerOffset: {atLeader, false, (*Broker).updateOffset},
		mq.CodeMaxOffset:            {atLeader, false, (*Broker).maxOffset},
		mq.CodeMinOffset:            {anywhere, false, (*Broker).minOffset},
		mq.CodeSearchOffset:         {anywhere, true, (*Broker).searchOffset},
		mq.CodeEarliestStoreTime:    {anywhere, true, (*Broker).earliestTime},

		mq.CodeHeartbeat:         {anywhere, false, (*Broker).heartbeat},
		mq.CodeUnregisterClient:  {anywhere, false, (*Broker).unregisterClient},
		mq.CodeConsumerList:      {anywhere, false, (*Broker).consumerList},
		mq.CodeCheckClientConfig: {anywhere, false, (*Broker).checkClientConfig},
		mq.CodeLockQueues:        {atLeader, false, (*Broker).lockQueues},
		mq.CodeUnlockQueues:      {atLeader, false, (*Broker).unlockQueues},

		mq.CodeQueryMessage: {anywhere, true, (*Broker).queryMessage},
		mq.CodeViewMessage:  {anywhere, true, (*Broker).viewMessage},

		mq.CodeEndTransaction: {atLeader, true, (*Broker).endTransaction},
		mq.CodeRecallMessage:  {atLeader, false, (*Broker).recall},

		mq.CodeQueryAssignment: {anywhere, true, (*Broker).queryAssignment},

		mq.CodeCreateTopic: {atLeader, true, (*Broker).createTopic},

		codeTellClients: {anywhere, false, (*Broker).told},
		codeRelay:       {anywhere, false, (*Broker).handOn},
	}
	maps.Copy(t, adminRoutes())
	return t
}

// Fields that replicas add when they pass a request on; clients never see them.
const (
	fieldFrom      = "__dledgerFrom"      // the client's address
	fieldMember    = "__dledgerMember"    // the group's secret: who knows it is a member
	fieldSettle    = "__dledgerSettle"    // the request may have been carried out already: look, from this position on, before doing it again
	fieldLate      = "__dledgerLate"      // an offset that a former leader could not write, or that was held on its way, from this term: see Broker.outdated
	fieldUndecided = "__dledgerUndecided" // in an answer: it may yet be carried out
)

// request is one request on its way through this replica.
//
//  1. it is answered once, by answer or a function that ends in it, from any goroutine;
//  2. frame and fields belong to it: they are not changed by anybody.
type request struct {
	b         *Broker
	session   *session
	ref       remoting.Ref
	frame     remoting.Frame
	route     route
	from      netip.AddrPort // the client, also when another replica passed the request on
	passed    bool           // another replica did: it is not passed on again
	settle    bool           // an earlier attempt is undecided
	after     int64          // position in the log: what is before was stored when the request came to the group
	inVain    bool           // see vain
	again     bool           // it was passed on before, and came back
	held      bool           // it had to wait for a leader, or for the next try: what came later may be done already; gate.mu, while the gate has it
	since     int64          // of an offset: the term that this replica knew when it came
	committed bool           // of a pull: the offset that it commits was noted or passed on; it may be held for long, and consumers go on meanwhile
	due       time.Time      // when holding it ends
	last      time.Time      // when the leader's patience with it ends; zero until it is passed on
}

func (r *request) code() int32        { return r.frame.Code }
func (r *request) body() []byte       { return r.frame.Body }
func (r *request) fields() *mq.Fields { return mq.FieldsOf(r.frame.Ext) }
func (r *request) oneWay() bool       { return r.frame.IsOneWay() }

// stores tells whether the request puts messages into the log, so that a broker that cannot tell whether it has done so must not get it twice.
func (r *request) stores() bool {
	switch r.frame.Code {
	case mq.CodeSend, mq.CodeSendV2, mq.CodeSendBatch, mq.CodeSendReply, mq.CodeSendReplyV2, mq.CodeSendBack, mq.CodeEndTransaction:
		return true
	}
	return false
}

// answer gives the outcome. A connection that has gone meanwhile gets none, nor does a client whom the outcome would lead astray.
func (r *request) answer(code int32, remark string, ext map[string]string, body ...[]byte) {
	if r.asksOffset() && !r.passed && code != mq.Success && code != mq.QueryNotFound && readOffsetQuery(r).err == nil {
		r.b.log.Debug("a question for an offset gets no answer, so that its client asks again", "from", r.from.String(), "code", code, "remark", remark)
		return
	}
	r.reply(code, remark, ext, body...)
}

// vain says, once, that the request is one that a client should not send, or seldom, see remoting.Conn.Vain.
func (r *request) vain() {
	if !r.passed && !r.inVain {
		r.inVain = true
		r.session.conn.Vain(r.ref)
	}
}

func (r *request) reply(code int32, remark string, ext map[string]string, body ...[]byte) {
	switch code {
	case mq.SystemError, mq.MessageIllegal, mq.NoPermission, mq.TopicNotExist, mq.PullOffsetMoved, mq.SubscriptionParseFailed, mq.SubscriptionNotExist, mq.GroupNotExist, mq.InvalidParameter:
		r.vain()
	}
	err := r.session.conn.Reply(r.ref, remoting.Answer{Code: code, Remark: remark, Ext: ext}, body...)
	if err == remoting.ErrTooLarge {
		_ = r.session.conn.Reply(r.ref, remoting.Answer{Code: mq.SystemError, Remark: "the answer is too large"}) // as above
	}
}

func (r *request) ok()                 { r.answer(mq.Success, "", nil) }
func (r *request) json(v any)          { r.answer(mq.Success, "", nil, mq.Marshal(v)) }
func (r *request) malformed(err error) { r.answer(mq.SystemError, err.Error(), nil) }
func (r *request) offset(name string, n int64) {
	r.answer(mq.Success, "", map[string]string{name: mq.Itoa(n)})
}

func (r *request) refuse(code int32, format string, args ...any) {
	r.answer(code, fmt.Sprintf(format, args...), nil)
}

// toLeader passes a request on that this replica cannot answer for sure. false: it leads itself, so nobody knows better. One that was passed here
// goes back to the replica that took this one for the leader.
func (r *request) toLeader() bool {
	if r.b.gate.here() {
		return false
	}
	r.route.at, r.due = atLeader, time.Now().Add(r.holdMax()) // it may have been held here before
	r.b.gate.submit(r)
	return true
}

// asksOffset tells questions for a group's offset. Clients before 5.0 take any error for "there is none" and begin at one end of the queue, while they ask again
// if nothing is answered: so a client gets the offset, or that there surely is none, or no answer.
func (r *request) asksOffset() bool { return r.code() == mq.CodeQueryConsumerOffset }

// askOffsetMax is how long clients wait for an offset; the Go client three seconds.
const askOffsetMax = 5 * time.Second

// holdMax is how long the request may be held. What another replica has passed on goes back to it soon, as it may know another leader.
func (r *request) holdMax() time.Duration {
	if r.asksOffset() && !r.passed {
		return max(askOffsetMax, r.b.cfg.ForwardWait)
	}
	return r.b.cfg.ForwardWait
}

// waitersMax bounds the goroutines of requests that wait.
const waitersMax = 4096

// handle takes every request from every connection.
func (b *Broker) handle(c *remoting.Conn, f *remoting.Frame) {
	rt, ok := b.routes[f.Code]
	if !ok {
		_ = c.ReplyUnsupported(f) // the connection has gone
		return
	}
	s := c.Value.(*session)
	r := &request{b: b, session: s, ref: f.Ref(), frame: *f, route: rt, from: s.addr}
	switch f.Code {
	case mq.CodeHeartbeat, mq.CodeUnregisterClient, mq.CodeCheckClientConfig:
		r.vain() // a client sends one now and then
	}
	from, passed := f.Ext[fieldFrom]
	if (passed || f.Code == codeTellClients || f.Code == codeRelay) && !b.fromMember(f) { // or from one that this replica has not heard the secret with yet
		r.reply(mq.ServiceNotAvailable, "only members of the group pass requests on", nil)
		return
	}
	if passed {
		r.passed = true
		if at, ok := f.Ext[fieldSettle]; ok {
			r.settle = true
			r.after, _ = strconv.ParseInt(at, 10, 64) // else 0: the whole log
		}
		if a, err := netip.ParseAddrPort(from); err == nil {
			r.from = a
		}
	}
	r.due = time.Now().Add(r.holdMax())
	if rt.at == atLeader {
		if f.Code == mq.CodeUpdateConsumerOffset {
			r.since = b.meta.term()
		}
		if !r.passed {
			r.after = b.store.DispatchedTo() // the end of the log may be further by now, but never before
			b.noteSend(r)
		}
		b.gate.submit(r)
		return
	}
	b.run(r)
}

// run works on a request here. A panic of its handler ends the process, as everywhere else: half of a change may be made and a lock held, and going on
// from there could harm what the log keeps whole. That no request leads to one is what tests show (TestRandomRequestsGetOneAnswerEach), not something that is caught here.
func (b *Broker) run(r *request) {
	if !r.route.waits {
		r.route.do(b, r)
		return
	}
	if b.waiting.Add(1) > waitersMax {
		b.waiting.Add(-1)
		r.refuse(mq.SystemBusy, "[OVERLOAD]%d requests wait already, start flow control for a while", waitersMax)
		return
	}
	b.spawn(func() {
		defer b.waiting.Add(-1)
		r.route.do(b, r)
	})
}
