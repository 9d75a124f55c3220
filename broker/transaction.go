package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
)

// Compatibility: END_TRANSACTION (37), and towards producers CHECK_TRANSACTION_STATE (39).
//
// A message of a transaction (property TRAN_MSG; TransactionalMessageBridge in the Java original) is stored as a half message in the topic
// RMQ_SYS_TRANS_HALF_TOPIC. A commit stores the real message, with the half's offset as its prepared offset, and beside it, as for a rollback, a mark in
// RMQ_SYS_TRANS_OP_HALF_TOPIC whose body is the half's queue offset. Marks are written with the message, not seconds later in bundles; bundles
// of the original are read. Halves without a mark are asked about, again and again up to TransactionChecks; the original stores a half
// anew for each question, with their number, here the question names the half itself, and their number is written down every five seconds.

// half is a transaction that is open.
type half struct {
	offset int64 // in the queue of halves
	pos    int64 // physical offset
	stored int64 // ms
	checks int

	busy chan struct{} // its end is being stored, until this is closed; nil = nobody ends it
}

// transactions knows the open ones while this replica leads (TransactionalMessageServiceImpl in the Java original).
//
//  1. halves below low are done; of those from low to read, the open ones are in halves;
//  2. a half is ended by whom has made it busy, once. Who comes meanwhile waits for what becomes of it.
type transactions struct {
	b *Broker

	mu     sync.Mutex
	ready  chan struct{} // closed once what former leaders left is known; nil while another replica leads
	term   dledger.Term  // in which everything is stored
	low    int64
	read   int64 // of the queue of halves
	marks  int64 // of the queue of marks
	halves map[int64]*half
	done   map[int64]int64 // halves from low on whose mark is known, and the offset of the mark
	asked  map[int64]int   // how often former leaders have asked about halves that are not read yet
	saved  progress
}

// transactionProgress is what stands in the log of it: all halves below Half are done, and the marks of all others lie at Mark or behind.
type transactionProgress struct {
	Half   int64         `json:"half"`
	Mark   int64         `json:"mark"`
	Checks map[int64]int `json:"checks,omitempty"` // how often producers were asked, by the halves' offsets; of checksMax halves at most, the oldest
}

const checksMax = 10_000

// isHalf tells messages of a transaction from others, and from those of one that are consumed again later.
func isHalf(m *mq.Message) bool {
	return mq.ParseBool(m.Prop(mq.PropTranMsg)) && !(m.ReconsumeTimes > 0 && mq.PropHas(m.Properties, mq.PropDelay))
}

// divert changes a message that must not reach its queue now into the one that is stored in its place; mq.Success: go on.
func (b *Broker) divert(m *mq.Message) (code int32, remark string) {
	if p := m.Properties; !strings.Contains(p, mq.PropTranMsg) && !strings.Contains(p, mq.PropDelay) && !strings.Contains(p, mq.PropTimerDeliverMs) {
		return mq.Success, "" // most messages
	}
	if isHalf(m) {
		if b.conf().RejectTransaction {
			return mq.NoPermission, "the broker[" + b.cfg.IP + "] sending transaction message is forbidden"
		}
		standAside(m, mq.TopicHalf, 0)
		m.SetProp(mq.PropTransactionID, m.Prop(mq.PropUniqKey))
		m.SysFlag &^= mq.SysTransaction
		return mq.Success, ""
	}
	if b.divertLevel(m) {
		return mq.Success, ""
	}
	return b.divertTimer(m)
}

// committed is the real message of a half.
func committed(m *mq.Message) (*mq.Message, bool) {
	real, ok := restored(m)
	if !ok {
		return nil, false
	}
	real.SysFlag = m.SysFlag&^mq.SysTransaction | mq.SysCommit
	real.DelProp(mq.PropRealTopic, mq.PropRealQueueID, mq.PropTranMsg)
	return real, true
}

// real is what a commit stores: the real message of a half, or what stands for it while it is delayed.
func (b *Broker) real(m *mq.Message) (*mq.Message, error) {
	real, ok := committed(m)
	if !ok {
		return nil, &notCommittedError{mq.SystemError, "it names no topic"}
	}
	if code, remark := b.divert(real); code != mq.Success {
		return nil, &notCommittedError{code, remark}
	}
	return real, nil
}

// notCommittedError: the message is refused, for now or for good. Its half stays open, so a later answer of the producer commits it, or it is given up where
// operators find it; what was acknowledged as a half is never dropped.
type notCommittedError struct {
	code   int32
	remark string
}

func (e *notCommittedError) Error() string {
	return "not committed, the transaction stays open: " + e.remark
}

// mark is what says that a half is done.
func (b *Broker) mark(m *mq.Message) *mq.Message {
	now := milliseconds(time.Now())
	return &mq.Message{Topic: mq.TopicOpHalf, QueueID: m.QueueID, Body: strconv.AppendInt(nil, m.QueueOffset, 10), BornTime: now, BornHost: b.host,
		PreparedOffset: m.PhysicalOffset, Properties: mq.PropSet("", mq.PropTags, "d")}
}

// Values of the field commitOrRollback.
const (
	endUnknown  = 0
	endCommit   = int64(mq.SysCommit)
	endRollback = int64(mq.SysRollback)
)

// endTransaction commits a half message or takes it back.
func (b *Broker) endTransaction(r *request) {
	f := r.fields()
	group, offset, pos := f.Str("producerGroup"), f.Int64("tranStateTableOffset"), f.Int64("commitLogOffset")
	end, check := f.Int64("commitOrRollback"), f.BoolOr("fromTransactionCheck", false)
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if end != endCommit && end != endRollback {
		r.ok() // the producer does not know; it is asked again
		return
	}
	m, err := b.patientAt(r, pos)
	if unreadable(err) {
		r.unread(err)
		return
	}
	if err != nil || m.Topic != mq.TopicHalf {
		r.refuse(mq.SystemError, "find prepared transaction message failed")
		return
	}
	switch {
	case m.Prop(mq.PropProducerGroup) != group:
		r.refuse(mq.SystemError, "the producer group wrong")
		return
	case m.QueueOffset != offset:
		r.refuse(mq.SystemError, "the transaction state table offset wrong")
		return
	}
	if sec, err := strconv.ParseInt(m.Prop(mq.PropCheckImmunity), 10, 64); err == nil && sec > 0 && !check && milliseconds(time.Now())-m.BornTime > sec*1000 {
		r.refuse(mq.IllegalOperation, "message commit fail [producer end]: more than %d seconds have passed", sec)
		return
	}
	if unread := r.patiently(func() error {
		if err = b.transactions.end(r.b.ctx, &m, end == endCommit); errors.Is(err, errUnread) {
			return err
		}
		return nil
	}); unread != nil {
		r.unread(unread)
		return
	}
	var not *notCommittedError
	switch {
	case err == nil:
		r.ok()
	case errors.As(err, &not):
		r.refuse(not.code, "%v", err)
	case errors.Is(err, dledger.ErrNotLeader), errors.Is(err, msgstore.ErrNotReady):
		b.gate.retry(r, err.Error())
	default:
		r.refuse(mq.SystemError, "%v", err)
	}
}

// end ends the transaction of a half message, unless that is done already or being done. With an error it is open as before, or its end may yet be committed.
func (t *transactions) end(ctx context.Context, m *mq.Message, commit bool) error {
	t.mu.Lock()
	ready, term := t.ready, t.term
	t.mu.Unlock()
	if ready == nil {
		return errNotServing
	}
	select {
	case <-ready:
	case <-ctx.Done():
		return errNotServing
	}
	if err := t.b.store.WaitDispatched(ctx, m.PhysicalOffset); err != nil { // its producer may be quicker than the queue
		return err
	}
	if err := t.look(); err != nil {
		return err
	}
	h, err := t.hold(ctx, ready, m)
	if h == nil {
		return err
	}
	var msgs []*mq.Message
	if commit {
		real, err := t.b.real(m)
		if err != nil {
			return t.still(h, err)
		}
		msgs = append(msgs, real)
	}
	err = t.b.keepFor(ctx, term, append(msgs, t.b.mark(m)))
	t.mu.Lock()
	defer t.mu.Unlock()
	h.release()
	if t.ready == ready && err == nil {
		t.finish(h.offset, math.MaxInt64)
	}
	return err
}

// hold makes the half of a message busy, once nobody else ends it; nil: it is ended, or err.
func (t *transactions) hold(ctx context.Context, ready chan struct{}, m *mq.Message) (*half, error) {
	for {
		t.mu.Lock()
		h := t.halves[m.QueueOffset]
		switch {
		case t.ready != ready:
			t.mu.Unlock()
			return nil, errNotServing
		case h == nil || h.pos != m.PhysicalOffset:
			t.mu.Unlock()
			return nil, nil
		case h.busy == nil:
			h.busy = make(chan struct{})
			t.mu.Unlock()
			return h, nil
		}
		busy := h.busy
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, errNotServing
		}
	}
}

// release ends what hold began. The caller holds mu of transactions.
func (h *half) release() {
	close(h.busy)
	h.busy = nil
}

// finish notes that a half is done. The caller holds mu.
func (t *transactions) finish(offset, mark int64) {
	delete(t.halves, offset)
	if offset < t.low {
		return
	}
	if old, ok := t.done[offset]; !ok || mark < old {
		t.done[offset] = mark
	}
	for {
		if _, ok := t.done[t.low]; !ok {
			return
		}
		delete(t.done, t.low)
		t.low++
	}
}

// look reads halves and marks that have come to their queues. errUnread: not all of them. Then some halves may be missing, or are not read yet, but none counts as
// open whose mark is there.
func (t *transactions) look() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for { // marks first: what is marked need not be looked at
		g := t.b.store.Get(mq.TopicOpHalf, 0, t.marks, 512, 4<<20, nil)
		if g.Status == msgstore.OffsetTooSmall || g.Status == msgstore.Removing {
			t.marks = max(g.Next, t.marks)
		}
		if g.Status == msgstore.OffsetFoundNull {
			if !t.b.lost(mq.TopicOpHalf, 0, t.marks, g.Err) {
				return errUnread
			}
			t.marks++
			continue
		}
		if g.Status != msgstore.Found {
			break
		}
		for i, stored := range g.Messages {
			m, _, err := mq.ParseStored(stored)
			if err != nil {
				return err
			}
			for s := range strings.SplitSeq(string(m.Body), ",") {
				if offset, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
					t.finish(offset, t.marks+int64(i))
				}
			}
		}
		t.marks = g.Next
	}
	for {
		g := t.b.store.Get(mq.TopicHalf, 0, t.read, 512, 4<<20, nil)
		if g.Status == msgstore.OffsetTooSmall || g.Status == msgstore.Removing {
			for ; t.read < g.Next; t.read++ {
				t.finish(t.read, math.MaxInt64) // retention took it
			}
			continue
		}
		if g.Status == msgstore.OffsetFoundNull {
			if !t.b.lost(mq.TopicHalf, 0, t.read, g.Err) {
				return errUnread
			}
			t.finish(t.read, math.MaxInt64)
			t.read++
			continue
		}
		if g.Status != msgstore.Found {
			return nil
		}
		for _, stored := range g.Messages {
			m, _, err := mq.ParseStored(stored)
			if err != nil {
				return err
			}
			if _, ok := t.done[m.QueueOffset]; !ok && m.QueueOffset >= t.low {
				h := &half{offset: m.QueueOffset, pos: m.PhysicalOffset, stored: m.StoreTime, checks: t.asked[m.QueueOffset]}
				if n, err := strconv.Atoi(m.Prop(mq.PropCheckTimes)); err == nil { // a Java leader has stored it anew
					h.checks = max(h.checks, n)
				}
				t.halves[m.QueueOffset] = h
			}
		}
		for i := t.read; i < g.Next; i++ {
			delete(t.asked, i)
		}
		t.read = g.Next
	}
}

// transacted looks after open transactions until ctx ends.
func (b *Broker) transacted(ctx context.Context, term dledger.Term) error {
	t := &b.transactions
	if err := t.quiet(ctx); err != nil {
		return nil
	}
	ready := make(chan struct{})
	t.mu.Lock()
	t.ready, t.term = ready, term
	t.low, t.read, t.marks = 0, 0, 0
	t.halves, t.done = map[int64]*half{}, map[int64]int64{}
	t.saved = progress{b: b, name: serviceTransaction}
	var p transactionProgress
	err := t.saved.load(&p)
	t.low, t.read, t.marks, t.asked = p.Half, p.Half, p.Mark, p.Checks
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.ready = nil
		t.mu.Unlock()
		select {
		case <-ready:
		default:
			close(ready) // who waits finds that this replica does not serve
		}
	}()
	for err == nil {
		if err = t.look(); !errors.Is(err, errUnread) {
			break
		}
		err = pause(ctx, unreadAgain)
	}
	if err == nil {
		err = t.inherit(ctx)
	}
	if err != nil {
		return ended(ctx, err)
	}
	close(ready)
	tick := time.NewTicker(b.cfg.TransactionEvery)
	defer tick.Stop()
	save := time.NewTicker(progressEvery)
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.alarms.half:
		case <-save.C:
			t.mu.Lock()
			p := t.progress()
			t.mu.Unlock()
			t.saved.save(p)
		case <-tick.C:
			if err := t.check(ctx); err != nil {
				return ended(ctx, err)
			}
		}
		switch err := t.look(); {
		case errors.Is(err, errUnread):
			time.AfterFunc(unreadAgain, func() { ring(b.alarms.half) })
		case err != nil:
			return ended(ctx, err)
		}
	}
}

// quiet waits for those who still end a transaction of before, as that is to be ended once. Where this replica has gone on leading nothing else stops them.
func (t *transactions) quiet(ctx context.Context) error {
	t.mu.Lock()
	var busy []chan struct{}
	for _, h := range t.halves {
		if h.busy != nil {
			busy = append(busy, h.busy)
		}
	}
	t.mu.Unlock()
	for _, c := range busy {
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// progress is what the next leader needs. The caller holds mu.
func (t *transactions) progress() transactionProgress {
	p := transactionProgress{Half: t.low, Mark: t.marks, Checks: map[int64]int{}}
	for _, mark := range t.done {
		p.Mark = min(p.Mark, mark)
	}
	for i := t.low; i < t.read && len(p.Checks) < checksMax; i++ {
		if h := t.halves[i]; h != nil && h.checks > 0 {
			p.Checks[i] = h.checks
		}
	}
	return p
}

// open gives the open transactions, the oldest first.
func (t *transactions) open() []*half {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*half, 0, len(t.halves))
	for _, h := range t.halves {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *half) int { return int(a.offset - b.offset) })
	return all
}

// inherit marks halves that a former leader committed without having been able to store the mark: the real message is there.
func (t *transactions) inherit(ctx context.Context) error {
	for _, h := range t.open() {
		var m mq.Message
		if err := t.b.whole(ctx, func() (err error) {
			m, err = t.b.messageAt(h.pos)
			return err
		}); ctx.Err() != nil {
			return err
		} else if err != nil {
			continue // check finds out
		}
		real, ok := committed(&m)
		if !ok {
			continue
		}
		for _, topic := range []string{real.Topic, mq.TopicSchedule, mq.TopicTimer} {
			had, err := t.b.delivered(ctx, topic, m.Prop(mq.PropUniqKey), &m)
			if err != nil {
				return err
			}
			if had {
				if err := t.b.keepFor(ctx, t.term, []*mq.Message{t.b.mark(&m)}); err != nil {
					return err
				}
				t.mu.Lock()
				t.finish(h.offset, math.MaxInt64)
				t.mu.Unlock()
				break
			}
		}
	}
	return nil
}

// check asks producers about what has been open for long, and gives up what nobody knows. What cannot be given up now is tried again with the next check.
func (t *transactions) check(ctx context.Context) error {
	for _, h := range t.open() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m, err := t.b.messageAt(h.pos)
		if err != nil {
			t.b.log.Warn("a half message cannot be read", "offset", h.offset, "position", h.pos, "error", err)
			continue
		}
		immune := t.b.conf().TransactionTimeout
		if sec, err := strconv.ParseInt(m.Prop(mq.PropCheckImmunity), 10, 32); err == nil && sec > 0 {
			immune = time.Duration(sec) * time.Second
		}
		if time.Since(time.UnixMilli(h.stored)) < immune {
			continue
		}
		t.mu.Lock()
		busy := h.busy != nil || t.halves[h.offset] != h
		if !busy {
			h.checks++
		}
		give := h.checks > t.b.conf().TransactionChecks
		if !busy && give {
			h.busy = make(chan struct{})
		}
		t.mu.Unlock()
		switch {
		case busy:
		case give:
			if err := t.discard(ctx, h, &m); over(err) || ctx.Err() != nil {
				return err
			} else if err != nil { // the disk is full, or too many changes wait
				t.b.log.Warn("a transaction cannot be given up now; that is tried again", "offset", h.offset, "error", err)
			}
		default:
			t.b.ask(&m, h.checks)
		}
	}
	return nil
}

// still notes that a half is as it was, and gives err back.
func (t *transactions) still(h *half, err error) error {
	t.mu.Lock()
	h.release()
	t.mu.Unlock()
	return err
}

// discard moves a half that nobody decides about where operators find it.
func (t *transactions) discard(ctx context.Context, h *half, m *mq.Message) error {
	there := make(chan error, 1)
	t.b.ensureTopic(mq.NewTopicConfig(mq.TopicTransCheckMax, 1, mq.PermRead|mq.PermWrite), func(err error) { there <- err })
	select {
	case err := <-there:
		if err != nil {
			return t.still(h, fmt.Errorf("topic %s: %w", mq.TopicTransCheckMax, err))
		}
	case <-ctx.Done():
		return t.still(h, ctx.Err())
	}
	kept := *m
	kept.Topic, kept.QueueID, kept.PreparedOffset = mq.TopicTransCheckMax, 0, m.PhysicalOffset
	t.b.log.Warn("a transaction was asked about too often and is given up", "group", m.Prop(mq.PropProducerGroup), "topic", m.Prop(mq.PropRealTopic), "key", m.Prop(mq.PropUniqKey))
	err := t.b.keepFor(ctx, t.term, []*mq.Message{&kept, t.b.mark(m)})
	t.mu.Lock()
	defer t.mu.Unlock()
	h.release()
	if err == nil {
		t.finish(h.offset, math.MaxInt64)
	}
	return err
}

// ask sends the question about a half message to a producer of its group, wherever that is connected.
func (b *Broker) ask(m *mq.Message, checks int) {
	group := m.Prop(mq.PropProducerGroup)
	shown, ok := restored(m)
	if !ok {
		return
	}
	shown.PreparedOffset = 0
	shown.SetProp(mq.PropCheckTimes, mq.Itoa(checks))
	body, err := mq.AppendStored(nil, shown)
	if err != nil {
		b.log.Warn("a producer cannot be asked about its transaction", "group", group, "error", err)
		return
	}
	mq.SetStored(body, m.QueueOffset, m.PhysicalOffset)
	uniq := m.Prop(mq.PropUniqKey)
	ext := map[string]string{"tranStateTableOffset": mq.Itoa(m.QueueOffset), "commitLogOffset": mq.Itoa(m.PhysicalOffset), "msgId": uniq, "transactionId": m.Prop(mq.PropTransactionID),
		"offsetMsgId": m.MsgID(), "topic": shown.Topic, "bname": b.cfg.Name}
	to, ok := b.clients.producer(group, "")
	if !ok {
		return // the question comes again
	}
	if err := b.askClient(to, remoting.Request{Code: mq.CodeCheckTransaction, Ext: ext}, forwardTimeout, nil, body); err != nil {
		b.log.Debug("a producer was not asked about its transaction", "group", group, "client", to.id, "error", err)
	}
}
