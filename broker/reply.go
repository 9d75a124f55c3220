package broker

import (
	"time"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
)

// Compatibility: SEND_REPLY_MESSAGE (324, long names), SEND_REPLY_MESSAGE_V2 (325), and towards the requester PUSH_REPLY_MESSAGE_TO_CLIENT (326). The requester may
// be connected to any replica. As in the original the reply is kept, too, unless storeReplyMessageEnable is off, and the answer to the replier
// is about the push alone when that failed.

const replyTimeout = 3 * time.Second

func (b *Broker) sendReply(r *request) {
	h, err := readSend(r.code(), r.fields())
	if err != nil {
		r.malformed(err)
		return
	}
	switch {
	case h.topic != mq.ReplyTopic(b.cfg.Cluster):
		r.sendFailed(mq.InvalidParameter, "a reply goes to topic "+mq.ReplyTopic(b.cfg.Cluster)+", not to "+h.topic)
		return
	case len(r.body()) > b.conf().MessageSizeMax || len(h.properties) > mq.PropertiesMax-len(b.suffix)-uniqRoom:
		r.sendFailed(mq.MessageIllegal, "the message is illegal, body or properties are too large")
		return
	}
	if h.queue < 0 {
		h.queue = 0
	}
	id := mq.PropGet(h.properties, mq.PropReplyToClient)
	to, ok := b.clients.producerByID(id)
	if !ok {
		r.sendFailed(mq.SystemError, "push reply message fail, channel of <"+id+"> not found.")
		return
	}
	now := milliseconds(time.Now())
	properties := mq.PropSet(h.properties, mq.PropPushReplyTime, mq.Itoa(now))
	push := remoting.Request{Code: mq.CodePushReply, Ext: map[string]string{
		"producerGroup": h.group, "topic": h.topic, "defaultTopic": h.template, "defaultTopicQueueNums": mq.Itoa(h.queues), "queueId": mq.Itoa(h.queue),
		"sysFlag": mq.Itoa(h.sysFlag), "bornTimestamp": mq.Itoa(h.born), "flag": mq.Itoa(h.flag), "properties": properties, "reconsumeTimes": mq.Itoa(h.reconsumed),
		"unitMode": "false", "bornHost": r.from.String(), "storeHost": b.host.String(), "storeTimestamp": mq.Itoa(now),
	}}
	err = b.askClient(to, push, replyTimeout, func(f *remoting.Frame, err error) {
		switch {
		case err != nil:
			r.sendFailed(mq.SystemError, "push reply message to "+id+" fail: "+err.Error())
		case f.Code != mq.Success:
			r.sendFailed(mq.SystemError, "push reply message to "+id+" fail: "+f.Remark)
		default:
			b.keepReply(r, &h, properties)
		}
	}, r.body())
	if err != nil {
		r.sendFailed(mq.SystemError, "push reply message to "+id+" fail: "+err.Error())
	}
}

// keepReply stores a reply that its requester has. Whether that works no longer matters to the replier.
func (b *Broker) keepReply(r *request, h *sendHeader, properties string) {
	if !b.conf().StoreReplies {
		r.sent(h.queue, 0, "", mq.PropGet(properties, mq.PropUniqKey), "")
		return
	}
	props, uniq := b.stamped(properties)
	m := &mq.Message{Topic: h.topic, QueueID: h.queue, SysFlag: h.sysFlag, Flag: h.flag, BornTime: h.born, BornHost: r.from, ReconsumeTimes: h.reconsumed,
		Body: r.body(), Properties: props}
	b.store.Put([]*mq.Message{m}, func(res msgstore.PutResult) {
		if res.Status != msgstore.PutOK {
			r.sent(h.queue, 0, "", uniq, "")
			return
		}
		r.sent(h.queue, res.QueueOffset, b.ids(res.Pos), uniq, "")
	})
}
