package broker

import (
	"errors"
	"time"

	"dledger/internal/mq"
)

// Compatibility: RESUME_CHECK_HALF_MESSAGE (323; fields topic, msgId!). A transaction that was given up after too many questions (see transactions.discard) is
// opened once more: its half message is stored again, as in the original. The original takes any message, this takes those of transactions alone; the same one
// is opened once, however often that is asked.

func (b *Broker) resumeHalf(r *request) {
	f := r.fields()
	id := f.Str("msgId")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	const failed = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: "
	_, pos, err := mq.ParseMsgID(id)
	if err != nil {
		r.refuse(mq.SystemError, failed+"%v", err)
		return
	}
	given, err := b.patientAt(r, pos)
	switch {
	case unreadable(err):
		r.unread(err)
		return
	case err != nil:
		r.refuse(mq.SystemError, failed+"%v", err)
		return
	case given.Topic != mq.TopicTransCheckMax || !mq.ParseBool(given.Prop(mq.PropTranMsg)) || given.Prop(mq.PropRealTopic) == "":
		r.refuse(mq.SystemError, failed+"message %s of topic %s is no transaction that was given up", id, given.Topic)
		return
	}
	term, _ := b.store.Ready()
	if err := b.barrier(r.b.ctx, term); err != nil { // what an earlier attempt has given to the log is in the index then
		b.failed(r, err)
		return
	}
	m := &mq.Message{Topic: mq.TopicHalf, SysFlag: given.SysFlag &^ mq.SysTransaction, Flag: given.Flag, BornTime: given.BornTime, BornHost: given.BornHost,
		ReconsumeTimes: given.ReconsumeTimes, PreparedOffset: pos, Body: given.Body, Properties: given.Properties}
	m.SetProp(mq.PropCheckTimes, "0")
	open, err := b.delivered(r.b.ctx, mq.TopicHalf, given.Prop(mq.PropUniqKey), &given)
	if err == nil && !open {
		err = b.keepFor(r.b.ctx, term, []*mq.Message{m})
	}
	switch {
	case err == nil:
		b.log.Info("a transaction that was given up is open again", "topic", given.Prop(mq.PropRealTopic), "key", given.Prop(mq.PropUniqKey),
			"given up", time.UnixMilli(given.StoreTime), "by", r.from.String())
		r.ok()
	case errors.Is(err, errDropped):
		r.refuse(mq.SystemError, failed+"%v", err)
	default:
		b.failed(r, err)
	}
}
