package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Compatibility: SEND_MESSAGE (10, long names), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320, both with one-letter names). Whether a body
// is a batch says its field, not the code. A message sent to a replica that does not lead is passed on; one whose outcome was lost with a leader is
// looked up by its unique key before it is stored again (see settle), where the original tells the client to try again and stores it twice.
// Inner batches are not known. As in the original, permissions keep producers away by way of routes: who has not heard yet that a broker or topic is not to be
// written to any more is served; only order topics of such a broker refuse.

// sendHeader are the fields of a send.
type sendHeader struct {
	group, topic, template string
	queues                 int32 // of a topic that has to be made
	queue                  int32 // negative: any
	sysFlag                int32
	born                   int64
	flag                   int32
	properties             string
	reconsumed             int32
	maxReconsume           int32 // -1 = not given
	batch                  bool
}

// Names of the fields in both forms, in the order of readSend.
var (
	sendNames = [...]string{"producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
		"properties", "reconsumeTimes", "maxReconsumeTimes", "batch"}
	sendNamesV2 = [...]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "l", "m"}
)

func readSend(code int32, f *mq.Fields) (h sendHeader, err error) {
	n := &sendNamesV2
	if code == mq.CodeSend || code == mq.CodeSendReply {
		n = &sendNames
	}
	h = sendHeader{
		group: f.Str(n[0]), topic: f.Str(n[1]), template: f.Str(n[2]), queues: f.Int32(n[3]), queue: f.Int32(n[4]), sysFlag: f.Int32(n[5]),
		born: f.Int64(n[6]), flag: f.Int32(n[7]), properties: f.StrOr(n[8], ""), reconsumed: f.Int32Or(n[9], 0),
		maxReconsume: f.Int32Or(n[10], -1), batch: f.BoolOr(n[11], false),
	}
	return h, f.Err()
}

func (b *Broker) send(r *request) {
	h, err := readSend(r.code(), r.fields())
	if err != nil {
		r.malformed(err)
		return
	}
	if !b.acceptsSends(r) {
		return
	}
	check := mq.CheckTopic
	if strings.HasPrefix(h.topic, mq.RetryPrefix) {
		check = mq.CheckGroup // may be as long as that
	}
	if err := check(h.topic); err != nil {
		r.sendFailed(mq.InvalidParameter, err.Error())
		return
	}
	if mq.IsNoSendTopic(h.topic) {
		r.sendFailed(mq.NoPermission, "Sending message to topic["+h.topic+"] is forbidden.")
		return
	}
	if t := b.topicForSend(r, h.topic, h.template, h.queues, func(t mq.TopicConfig) { b.sendTo(r, &h, t) }); t != nil {
		b.sendTo(r, &h, *t)
	}
}

// acceptsSends refuses what comes before the time from which messages are taken.
func (b *Broker) acceptsSends(r *request) bool {
	from := b.conf().AcceptSendsFrom
	if time.Until(from) > 0 {
		r.sendFailed(mq.SystemError, "broker unable to service, until "+from.Format(time.RFC3339))
		return false
	}
	return true
}

// misdirected tells why a message cannot go to the queue that its sender has named; mq.Success if it can. One that is to go to any has a queue then.
func (b *Broker) misdirected(h *sendHeader, t *mq.TopicConfig) (code int32, remark string) {
	switch {
	case t.Order && b.conf().Permission&mq.PermWrite == 0:
		return mq.NoPermission, "the broker[" + b.cfg.IP + "] sending message is forbidden"
	case h.queue >= max(t.WriteQueueNums, t.ReadQueueNums) || t.WriteQueueNums == 0 && h.queue < 0:
		return mq.InvalidParameter, "request queueId[" + mq.Itoa(h.queue) + "] is illegal, topic[" + h.topic + "] has " + mq.Itoa(max(t.WriteQueueNums, t.ReadQueueNums)) + " queues"
	}
	if h.queue < 0 {
		h.queue = rand.Int32N(t.WriteQueueNums)
	}
	return mq.Success, ""
}

// sendTo goes on with a send whose topic is there.
func (b *Broker) sendTo(r *request, h *sendHeader, t mq.TopicConfig) {
	if code, remark := b.misdirected(h, &t); code != mq.Success {
		r.sendFailed(code, remark)
		return
	}
	switch {
	case len(r.body()) == 0:
		r.sendFailed(mq.MessageIllegal, "the message is illegal, the body is empty")
		return
	case len(r.body()) > b.conf().MessageSizeMax:
		r.sendFailed(mq.MessageIllegal, "the message is illegal, the body of "+mq.Itoa(len(r.body()))+" bytes exceeds "+mq.Itoa(b.conf().MessageSizeMax))
		return
	case len(h.properties) > mq.PropertiesMax-len(b.suffix)-uniqRoom:
		r.sendFailed(mq.MessageIllegal, "the message is illegal, properties of "+mq.Itoa(len(h.properties))+" bytes exceed "+mq.Itoa(mq.PropertiesMax-len(b.suffix)-uniqRoom))
		return
	}
	if h.batch {
		b.sendBatch(r, h)
		return
	}
	m := &mq.Message{Topic: h.topic, QueueID: h.queue, SysFlag: h.sysFlag, Flag: h.flag, BornTime: h.born, BornHost: r.from,
		ReconsumeTimes: h.reconsumed, Body: r.body()}
	props, uniq := b.stamped(h.properties)
	m.Properties = props
	if strings.HasPrefix(h.topic, mq.RetryPrefix) {
		b.sendRetry(r, h, m, uniq)
		return
	}
	b.keep(r, m, uniq)
}

// uniqRoom is what a unique key made here adds to the properties.
const uniqRoom = 80

// stamped gives the properties with those that the broker adds, and the unique key among them.
func (b *Broker) stamped(props string) (string, string) {
	for _, name := range stampedProps {
		if strings.Contains(props, name) {
			props = mq.PropDel(props, strings.TrimSuffix(name, "\x01"))
		}
	}
	if props != "" && !strings.HasSuffix(props, "\x02") {
		props += "\x02"
	}
	uniq := mq.PropGet(props, mq.PropUniqKey)
	if uniq == "" {
		uniq = b.keys.Next(time.Now())
		props += mq.PropUniqKey + "\x01" + uniq + "\x02"
	}
	return props + b.suffix, uniq
}

var stampedProps = []string{mq.PropMsgRegion + "\x01", mq.PropTraceOn + "\x01", mq.PropCluster + "\x01", mq.PropPopCK + "\x01"}

// suffixOf is what every message gets.
func suffixOf(cfg *Config) string {
	p := mq.PropSet("", mq.PropMsgRegion, cfg.RegionID)
	p = mq.PropSet(p, mq.PropTraceOn, boolText(cfg.TraceOn))
	return mq.PropSet(p, mq.PropCluster, cfg.Cluster)
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// sendRetry is a consumer's own way to have a message again: after the last time it goes to the dead-letter topic. From a group that consumes in order it goes there at
// once, as in the original: such consumers try again by themselves and send what they have given up, those before 5.1.4 with a number that is not yet past the limit.
func (b *Broker) sendRetry(r *request, h *sendHeader, m *mq.Message, uniq string) {
	group := strings.TrimPrefix(h.topic, mq.RetryPrefix)
	config, ok := b.meta.groupConfig(group)
	if !ok {
		r.sendFailed(mq.GroupNotExist, "subscription group not exist, "+group)
		return
	}
	limit := config.RetryMaxTimes
	if h.maxReconsume >= 0 && r.frame.Version >= mq.VersionMaxReconsume {
		limit = h.maxReconsume
	}
	if m.ReconsumeTimes <= limit && !b.meta.holdsLocks(group) {
		b.keep(r, m, uniq)
		return
	}
	dead := mq.NewTopicConfig(mq.DLQTopic(group), 1, mq.PermRead|mq.PermWrite)
	b.ensureTopic(dead, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		m.Topic, m.QueueID = dead.TopicName, 0
		m.SetProp(mq.PropDelay, "-1")
		b.keep(r, m, uniq)
	})
}

// sendBatch stores a client's batch: each message by itself, next to each other in one queue.
func (b *Broker) sendBatch(r *request, h *sendHeader) {
	if strings.HasPrefix(h.topic, mq.RetryPrefix) {
		r.sendFailed(mq.MessageIllegal, "batch request does not support retry group "+strings.TrimPrefix(h.topic, mq.RetryPrefix))
		return
	}
	items, err := mq.SplitBatch(r.body())
	if err != nil || len(items) == 0 {
		r.sendFailed(mq.MessageIllegal, "the batch is illegal: "+errorText(err, "it is empty"))
		return
	}
	uniq := mq.PropGet(h.properties, mq.PropUniqKey)
	msgs := make([]*mq.Message, len(items))
	all := make([]mq.Message, len(items))
	for i, it := range items {
		all[i] = mq.Message{Topic: h.topic, QueueID: h.queue, SysFlag: h.sysFlag, Flag: it.Flag, BornTime: h.born, BornHost: r.from,
			ReconsumeTimes: h.reconsumed, Body: it.Body, Properties: it.Properties}
		if mq.PropHas(it.Properties, mq.PropDelay) || mq.PropHas(it.Properties, mq.PropTranMsg) {
			r.sendFailed(mq.MessageIllegal, "the batch is illegal: messages with a delay or of a transaction are sent one by one")
			return
		}
		if uniq != "" && !mq.PropHas(it.Properties, mq.PropUniqKey) {
			all[i].SetProp(mq.PropUniqKey, nextKey(uniq, i))
		}
		msgs[i] = &all[i]
	}
	b.put(r, msgs, uniq)
}

// nextKey gives the i-th unique key behind one, as its counter goes; it is the same whenever it is asked for.
func nextKey(uniq string, i int) string {
	stem := uniq[:max(0, len(uniq)-4)]
	n, err := strconv.ParseUint(uniq[len(stem):], 16, 16)
	if err != nil {
		stem, n = uniq, 0
	}
	return fmt.Sprintf("%s%04X", stem, uint16(n+uint64(i)))
}

func errorText(err error, otherwise string) string {
	if err != nil {
		return err.Error()
	}
	return otherwise
}

// keep stores one message, or what stands for it while it is delayed or its transaction is open.
func (b *Broker) keep(r *request, m *mq.Message, uniq string) {
	if code, remark := b.divert(m); code != mq.Success {
		r.sendFailed(code, remark)
		return
	}
	b.put(r, []*mq.Message{m}, uniq)
}

// kept is how a request is answered whose messages are in the log, or surely not.
type kept struct {
	sent   func(queue int32, offset int64, ids string)
	failed func(code int32, remark string)
}

// put gives messages to the log and answers with where they are.
func (b *Broker) put(r *request, msgs []*mq.Message, uniq string) {
	handle := b.recallHandle(msgs[0], uniq)
	b.putOnce(r, msgs, uniq, kept{func(queue int32, offset int64, ids string) { r.sent(queue, offset, ids, uniq, handle) }, r.sendFailed})
}

// putOnce gives messages to the log, unless an earlier attempt has.
func (b *Broker) putOnce(r *request, msgs []*mq.Message, uniq string, k kept) {
	if r.settle {
		b.settle(r, msgs, uniq, k)
		return
	}
	b.putBy(b.store.Put, r, msgs, k)
}

// putBy is putOnce with what gives messages to the log.
func (b *Broker) putBy(put func([]*mq.Message, func(msgstore.PutResult)), r *request, msgs []*mq.Message, k kept) {
	from := time.Now()
	put(msgs, func(res msgstore.PutResult) {
		switch {
		case res.Status == msgstore.PutOK:
			b.stats.put(b.cfg.Cluster, msgs, time.Since(from))
			k.sent(msgs[0].QueueID, res.QueueOffset, b.ids(res.Pos))
		case res.Status == msgstore.ServiceNotAvailable:
			b.gate.retry(r, errorText(res.Err, "not taken"))
		case errors.Is(res.Err, dledger.ErrUndecided) && !errors.Is(res.Err, dledger.ErrTimeout): // another one leads, or will: it finds out
			r.settle = true
			b.gate.retry(r, res.Err.Error())
		default:
			b.stats.putsFailed.Add(1)
			k.failed(res.Status.Code(), res.Status.String()+": "+errorText(res.Err, ""))
		}
	})
}

// ids gives the message ids of positions.
func (b *Broker) ids(pos []int64) string {
	if len(pos) == 1 {
		return mq.OffsetMsgID(b.host, pos[0])
	}
	var s strings.Builder
	for i, p := range pos {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(mq.OffsetMsgID(b.host, p))
	}
	return s.String()
}

// sent answers a send that succeeded; handle is what a timer message is taken back by, "" for others.
func (r *request) sent(queue int32, offset int64, ids, uniq, handle string) {
	ext := map[string]string{"msgId": ids, "queueId": mq.Itoa(queue), "queueOffset": mq.Itoa(offset),
		mq.PropMsgRegion: r.b.cfg.RegionID, mq.PropTraceOn: boolText(r.b.cfg.TraceOn)}
	if uniq != "" {
		ext["transactionId"] = uniq
	}
	if handle != "" {
		ext["recallHandle"] = handle
	}
	r.answer(mq.Success, "", ext)
}

// sendFailed answers one that did not.
func (r *request) sendFailed(code int32, remark string) {
	r.answer(code, remark, map[string]string{mq.PropMsgRegion: r.b.cfg.RegionID, mq.PropTraceOn: boolText(r.b.cfg.TraceOn)})
}
