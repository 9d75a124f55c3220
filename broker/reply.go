package broker

import (
	"time"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
)

// Compatibility: SEND_REPLY_MESSAGE (324, long names), SEND_REPLY_MESSAGE_V2 (325), and towards the requester PUSH_REPLY_MESSAGE_TO_CLIENT (326). The requester may
// be connected to any replica. As in the original the reply is kept, too, unless storeReplyMessageEnable is off, whether its requester got it or not, and the answer
// to the replier is about the push alone. Its queue is checked like that of a send; the original makes any.

const replyTimeout = 3 * time.Second

func (b *Broker) sendReply(r *request) {
	h, err := readSend(r.code(), r.fields())
	if err != nil {
		r.malformed(err)
		return
	}
	if !b.acceptsSends(r) {
		return
	}
	t, ok := b.meta.topicConfig(h.topic)
	switch {
	case h.topic != mq.ReplyTopic(b.cfg.Cluster) || !ok:
		r.sendFailed(mq.InvalidParameter, "a reply goes to topic "+mq.ReplyTopic(b.cfg.Cluster)+", not to "+h.topic)
		return
	case len(r.body()) > b.conf().MessageSizeMax || len(h.properties) > mq.PropertiesMax-len(b.suffix)-uniqRoom:
		r.sendFailed(mq.MessageIllegal, "the message is illegal, body or properties are too large")
		return
	}
	if code, remark := b.misdirected(&h, &t); code != mq.Success {
		r.sendFailed(code, remark)
		return
	}
	id := mq.PropGet(h.properties, mq.PropReplyToClient)
	if id == "" {
		b.keepReply(r, &h, "reply message properties["+mq.PropReplyToClient+"] is null")
		return
	}
	to, ok := b.clients.producerByID(id)
	if !ok {
		b.keepReply(r, &h, "push reply message fail, channel of <"+id+"> not found.")
		return
	}
	now := milliseconds(time.Now())
	push := remoting.Request{Code: mq.CodePushReply, Ext: map[string]string{
		"producerGroup": h.group, "topic": h.topic, "defaultTopic": h.template, "defaultTopicQueueNums": mq.Itoa(h.queues), "queueId": mq.Itoa(h.queue),
		"sysFlag": mq.Itoa(h.sysFlag), "bornTimestamp": mq.Itoa(h.born), "flag": mq.Itoa(h.flag), "reconsumeTimes": mq.Itoa(h.reconsumed),
		"properties": mq.PropSet(h.properties, mq.PropPushReplyTime, mq.Itoa(now)),
		"unitMode":   "false", "bornHost": r.from.String(), "storeHost": b.host.String(), "storeTimestamp": mq.Itoa(now),
	}}
	err = b.askClient(to, push, replyTimeout, func(f *remoting.Frame, err error) {
		failure := ""
		switch {
		case err != nil:
			failure = "push reply message to " + id + " fail: " + err.Error()
		case f.Code != mq.Success:
			failure = "push reply message to " + id + " fail: " + f.Remark
		}
		b.keepReply(r, &h, failure)
	}, r.body())
	if err != nil {
		b.keepReply(r, &h, "push reply message to "+id+" fail: "+err.Error())
	}
}

// keepReply stores a reply and answers its replier, who is told how the push went: failure, or "" when the requester has it. Whether storing works does not matter to him.
func (b *Broker) keepReply(r *request, h *sendHeader, failure string) {
	props, uniq := b.stamped(h.properties)
	answer := func(offset int64, ids string) {
		if failure != "" {
			r.sendFailed(mq.SystemError, failure)
			return
		}
		r.sent(h.queue, offset, ids, uniq, "")
	}
	if !b.conf().StoreReplies {
		answer(0, "")
		return
	}
	m := &mq.Message{Topic: h.topic, QueueID: h.queue, SysFlag: h.sysFlag, Flag: h.flag, BornTime: h.born, BornHost: r.from, ReconsumeTimes: h.reconsumed,
		Body: r.body(), Properties: props}
	b.store.Put([]*mq.Message{m}, func(res msgstore.PutResult) {
		if res.Status != msgstore.PutOK {
			answer(0, "")
			return
		}
		answer(res.QueueOffset, b.ids(res.Pos))
	})
}
