package broker

import (
	"time"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Compatibility: PULL_MESSAGE (11), LITE_PULL_MESSAGE (361). Every replica serves from what it has committed and dispatched; only the leader says
// that an offset lies behind the end (and only after the group has confirmed that it leads), that a topic, group or subscription is unknown, or that an offset
// was reset, since others may not have heard yet. Up to
// bytesMax are given, whether they come from memory or disk; the original gives less from disk. suggestWhichBrokerId is always 0. Filter servers are not known.

// Bits of sysFlag.
const (
	pullCommits   = 1 << 0 // commitOffset is to be noted
	pullSuspends  = 1 << 1 // wait for messages if there are none
	pullHasSub    = 1 << 2 // the subscription is in the request
	pullBytesMax  = 256 << 10
	pullMsgsMax   = 1024
	suspendMax    = 60 * time.Second
	longPollAgain = 5 * time.Second // a held pull looks again after this time, whatever it was told
	unreadAgain   = 100 * time.Millisecond
	passOverMax   = 16000       // messages that a pull passes over before its client is told, as in the original,
	passOverTime  = time.Second // and for how long it does so: its client waits, and so do others that this goroutine serves
)

// pull is one request for messages, possibly held.
type pull struct {
	r        *request
	group    string
	key      queueKey
	offset   int64 // grows when messages that the filter does not want are passed over
	from     int64 // where it began
	msgs     int
	bytes    int
	filter   filter
	suspends bool
	flags    [2]int32  // of the topic and of the group, which clients are told
	due      time.Time // held until then; polls.mu, as what follows
	look     time.Time // next look at the queue
	index    int       // in the heap; -1 = not held

	// Of the present look, which began when the request came or was woken; they belong to whoever works on it.
	began  time.Time
	passed int64 // messages that were passed over
}

func (b *Broker) pull(r *request) {
	f := r.fields()
	p := &pull{r: r, group: f.Str("consumerGroup"), index: -1}
	p.key = queueKey{f.Str("topic"), f.Int32("queueId")}
	p.offset, p.msgs = f.Int64("queueOffset"), int(f.Int32("maxMsgNums"))
	flag, commit, suspend := f.Int32("sysFlag"), f.Int64Or("commitOffset", 0), f.Int64Or("suspendTimeoutMillis", 0)
	version, expr, exprType := f.Int64Or("subVersion", 0), f.StrOr("subscription", ""), f.StrOr("expressionType", mq.ExprTag)
	p.bytes = int(f.Int32Or("maxMsgBytes", pullBytesMax))
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	p.from, p.msgs, p.bytes = p.offset, min(max(p.msgs, 1), pullMsgsMax), min(max(p.bytes, 1), pullBytesMax)

	if b.conf().Permission&mq.PermRead == 0 {
		p.refuse(1, mq.NoPermission, "the broker["+b.cfg.IP+"] pulling message is forbidden")
		return
	}
	config, ok := b.meta.groupConfig(p.group)
	if !ok {
		if !r.toLeader() {
			b.withGroup(r, p.group, func() { b.pull(r) })
		}
		return
	}
	if !config.ConsumeEnable {
		p.refuse(2, mq.NoPermission, "subscription group no permission, "+p.group)
		return
	}
	topic, ok := b.meta.topicConfig(p.key.Topic)
	if !ok {
		if !r.toLeader() {
			r.refuse(mq.TopicNotExist, "topic[%s] not exist, apply first please!", p.key.Topic)
		}
		return
	}
	if topic.Perm&mq.PermRead == 0 || p.key.Topic == b.meta.topic {
		p.refuse(3, mq.NoPermission, "the topic["+p.key.Topic+"] pulling message is forbidden")
		return
	}
	p.flags = [2]int32{topic.TopicSysFlag, config.GroupSysFlag}
	if p.key.ID < 0 || p.key.ID >= topic.ReadQueueNums {
		if topic.ReadQueueNums > p.key.ID || !r.toLeader() {
			r.refuse(mq.InvalidParameter, "queueId[%d] is illegal, topic:[%s] topicConfig.readQueueNums:[%d] consumer:[%s]", p.key.ID, p.key.Topic, topic.ReadQueueNums, r.from)
		}
		return
	}
	var sub *subscription
	if flag&pullHasSub != 0 {
		sub = b.subscribe(mq.SubscriptionData{Topic: p.key.Topic, SubString: expr, ExpressionType: exprType})
		if sub.err != nil {
			r.refuse(mq.SubscriptionParseFailed, "parse the consumer's subscription failed: %v", sub.err)
			return
		}
	} else if sub = p.registered(config, version); sub == nil {
		return
	}
	if sub.data.ExpressionType == mq.ExprSQL && !b.conf().PropertyFilter {
		r.refuse(mq.SystemError, "The broker does not support consumer to filter message by %s", mq.ExprSQL)
		return
	}
	p.filter = sub.filter
	if flag&pullCommits != 0 && !r.committed && !r.held {
		r.committed = true
		b.commitOffset(p.group, p.key.Topic, p.key.ID, commit)
	}
	wait := time.Duration(suspend) * time.Millisecond
	if !b.conf().LongPolling {
		wait = min(wait, b.conf().ShortPolling)
	}
	p.suspends = flag&pullSuspends != 0 && wait > 0
	p.began = time.Now()
	p.due = p.began.Add(min(wait, suspendMax))
	p.work(p.suspends)
}

// registered gives the subscription of the group's heartbeats; nil: the request is answered or passed on.
func (p *pull) registered(config mq.SubscriptionGroupConfig, version int64) *subscription {
	sub, model, known := p.r.b.clients.subscription(p.group, p.key.Topic)
	switch {
	case !known:
		if !p.r.toLeader() {
			p.r.refuse(mq.SubscriptionNotExist, "the consumer's group info not exist, group: %s", p.group)
		}
	case !config.ConsumeBroadcastEnable && model == mq.Broadcasting:
		p.refuse(4, mq.NoPermission, "the consumer group["+p.group+"] can not consume by broadcast way")
	case sub == nil:
		if !p.r.toLeader() {
			p.r.refuse(mq.SubscriptionNotExist, "the consumer's subscription not exist, group: %s, topic: %s", p.group, p.key.Topic)
		}
	case sub.data.SubVersion < version:
		if !p.r.toLeader() {
			p.r.refuse(mq.SubscriptionNotLatest, "the consumer's subscription not latest, group: %s, topic: %s", p.group, p.key.Topic)
		}
	case sub.err != nil:
		p.r.refuse(mq.SubscriptionParseFailed, "%v", sub.err)
	default:
		return sub
	}
	return nil
}

// refuse answers with the reason that newer clients look at.
func (p *pull) refuse(forbidden int64, code int32, remark string) {
	p.r.answer(code, remark, map[string]string{"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "forbiddenType": mq.Itoa(forbidden)})
}

// work looks for messages, and answers unless the request can be held.
func (p *pull) work(hold bool) {
	for p.find(hold, false) {
	}
}

// surely looks again once it is certain that this replica leads and has everything; false: it is.
func (p *pull) surely(hold, sure bool) bool {
	switch {
	case p.r.toLeader():
	case sure:
		return false
	default:
		p.r.vain() // whether or not the offset has to be moved; at once, since the majority's word takes a while
		p.r.b.surely(p.r, func() {
			for p.find(hold && time.Now().Before(p.due), true) {
			}
		})
	}
	return true
}

// find looks at a stretch of the queue; more: there was nothing in it that the filter wants, and the next stretch is to be looked at. sure: this replica was just
// found to lead.
func (p *pull) find(hold, sure bool) (more bool) {
	b := p.r.b
	offsets := offsetKey(p.key.Topic, p.group)
	if to, reset := b.meta.reset(offsets, p.key.ID); reset {
		p.moveTo(offsets, to)
		return false
	}
	var filter msgstore.Filter
	if p.filter != nil {
		filter = p.filter
	}
	got := b.store.Get(p.key.Topic, p.key.ID, p.offset, p.msgs, p.bytes, filter)
	switch got.Status {
	case msgstore.Found:
		b.consumed(p, &got)
		p.answer(mq.Success, &got)
	case msgstore.NoMatch:
		if hold && p.goesOn(got.Next) {
			return true
		}
		p.answer(mq.PullRetryImmediately, &got)
	case msgstore.Removing:
		p.answer(mq.PullRetryImmediately, &got)
	case msgstore.OffsetTooSmall:
		if !p.r.toLeader() { // whose log may begin earlier
			p.answer(mq.PullOffsetMoved, &got)
		}
	case msgstore.NoSuchQueue, msgstore.NoMessageInQueue:
		switch {
		case p.offset == 0:
			p.wait(hold, longPollAgain, &got)
		case !p.surely(hold, sure):
			p.answer(mq.PullOffsetMoved, &got)
		}
	case msgstore.OffsetOverflowBadly:
		if !p.surely(hold, sure) {
			p.answer(mq.PullOffsetMoved, &got)
		}
	case msgstore.OffsetOverflowOne:
		p.wait(hold, longPollAgain, &got)
	default: // messages that cannot be read now: a replica that has just started may not know yet that they are committed
		if !p.r.toLeader() {
			p.wait(hold, unreadAgain, &got)
		}
	}
	return false
}

// goesOn passes over what the filter does not want, up to next; false: that is to be told the client first.
func (p *pull) goesOn(next int64) bool {
	n := next - p.offset
	if p.passed += n; n <= 0 || p.passed >= passOverMax || time.Since(p.began) >= passOverTime {
		return false
	}
	p.offset = next
	return true
}

// wait holds the request, or answers that there is nothing. The queue is looked at again after some time at the latest.
func (p *pull) wait(hold bool, again time.Duration, got *msgstore.GetResult) {
	if hold && p.r.b.polls.hold(p, again) {
		return
	}
	if hold { // no room: the client comes again after a pause
		p.r.refuse(mq.SystemBusy, "[OVERLOAD]%d pulls are held already, start flow control for a while", p.r.b.cfg.PullHeldMax)
		return
	}
	if p.offset > p.from { // what it does not want was passed over, which it has to be told
		got.Next = p.offset
		p.answer(mq.PullRetryImmediately, got)
		return
	}
	p.r.b.stats.missed.Add(1)
	p.answer(mq.PullNotFound, got)
}

// moveTo tells the client that its offset was reset, once the group knows that it was told.
func (p *pull) moveTo(key string, to int64) {
	b := p.r.b
	if p.r.toLeader() {
		return
	}
	moved := map[string]map[int32]int64{key: {p.key.ID: to}}
	done := record{Kind: "reset done", Offsets: moved, Resets: map[string]map[int32]int64{key: {p.key.ID: -1}}}
	b.offsets.override(only(moved), func() record { return done }, func(err error) {
		if err != nil {
			b.failed(p.r, err)
			return
		}
		p.answer(mq.PullOffsetMoved, &msgstore.GetResult{Status: msgstore.OffsetFoundNull, Next: to, Min: b.store.MinOffset(p.key.Topic, p.key.ID), Max: b.store.MaxOffset(p.key.Topic, p.key.ID)})
	})
}

func (p *pull) answer(code int32, got *msgstore.GetResult) {
	p.r.answer(code, got.Status.String(), map[string]string{"suggestWhichBrokerId": "0", "nextBeginOffset": mq.Itoa(got.Next), "minOffset": mq.Itoa(got.Min),
		"maxOffset": mq.Itoa(got.Max), "topicSysFlag": mq.Itoa(p.flags[0]), "groupSysFlag": mq.Itoa(p.flags[1])}, got.Messages...)
}

// consumed counts what was given out.
func (b *Broker) consumed(p *pull, got *msgstore.GetResult) {
	b.stats.get(b.cfg.Cluster, p.key.Topic, p.group, len(got.Messages), got.Size)
}
