package broker

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger/internal/mq"
)

// Compatibility: RECALL_MESSAGE (370; fields topic!, recallHandle!, producerGroup), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).
//
// A timer message is taken back by the handle that its send was answered with, from 5.3.2 on, where recallMessageEnable allows it; the default is the
// original's, no. What is stored is a message that names the other one, see timers. 60 and 61 are asked by Java followers in groups with Java brokers, so
// that one of them that leads next neither repeats nor misses a timer message: before its lastReadTimeMs all are delivered, and it takes the others from its
// own wheel, which it fills up to the leader's masterTimerQueueOffset.

// Separators and names in a recall handle (RecallMessageHandle in the Java original): URL-safe Base64 of these parts, with a blank between each two:
//
//	v1 · topic · broker name · when it is due, in ms · unique key
const (
	recallVersion = "v1"
	recallTag     = "_RECALL_TAG_"
)

// recallHandle gives what a message is taken back by; "" unless it waits among the timers.
func (b *Broker) recallHandle(m *mq.Message, uniq string) string {
	if m.Topic != mq.TopicTimer {
		return ""
	}
	topic := m.Prop(mq.PropRealTopic)
	out, err := strconv.ParseInt(m.Prop(mq.PropTimerOutMs), 10, 64)
	if err != nil || topic == "" || strings.HasPrefix(topic, mq.RetryPrefix) {
		return ""
	}
	// One millisecond more, so that it is rounded down to the same time.
	return base64.URLEncoding.EncodeToString([]byte(strings.Join([]string{recallVersion, topic, b.cfg.Name, mq.Itoa(out + 1), uniq}, " ")))
}

// recall takes a timer message back.
func (b *Broker) recall(r *request) {
	f := r.fields()
	topic, handle, group := f.Str("topic"), f.Str("recallHandle"), f.StrOr("producerGroup", "")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	refuse := func(code int32, why string) {
		r.answer(code, "recall failed, "+why, map[string]string{mq.PropMsgRegion: b.cfg.RegionID})
	}
	conf := b.conf()
	switch {
	case !conf.Recall:
		refuse(mq.NoPermission, "operation is forbidden")
		return
	case time.Until(conf.AcceptSendsFrom) > 0, conf.Permission&mq.PermWrite == 0 && !conf.RecallReadOnly:
		refuse(mq.ServiceNotAvailable, "broker service not available")
		return
	}
	if _, ok := b.meta.topicConfig(topic); !ok {
		refuse(mq.TopicNotExist, "the topic["+topic+"] not exist")
		return
	}
	raw, err := base64.URLEncoding.DecodeString(handle)
	parts := strings.Split(string(raw), " ")
	if err != nil || len(parts) < 5 || parts[0] != recallVersion {
		refuse(mq.IllegalOperation, "recall handle is invalid")
		return
	}
	name, due, uniq := parts[2], parts[3], parts[4]
	at, err := strconv.ParseInt(due, 10, 64)
	left := at - milliseconds(time.Now())
	switch {
	case parts[1] != topic:
		refuse(mq.IllegalOperation, "topic not match")
		return
	case name != b.cfg.Name:
		refuse(mq.IllegalOperation, "it is a message of broker "+name)
		return
	case err != nil || left <= 0 || left >= conf.TimerMax.Milliseconds():
		refuse(mq.IllegalOperation, "timestamp invalid")
		return
	case uniq == "" || strings.ContainsAny(uniq, "\x01\x02"):
		refuse(mq.IllegalOperation, "recall handle is invalid")
		return
	}
	m := &mq.Message{Topic: topic, BornTime: milliseconds(time.Now()), BornHost: r.from, Body: []byte("0")}
	m.SetProp(mq.PropTags, recallTag)
	m.SetProp(mq.PropTimerDelUniqKey, topic+"_"+uniq)
	m.SetProp(mq.PropUniqKey, uniq)
	m.SetProp(mq.PropTimerDeliverMs, due)
	if group != "" && !strings.ContainsAny(group, "\x01\x02") {
		m.SetProp(mq.PropProducerGroup, group)
	}
	if code, remark := b.divert(m); code != mq.Success {
		refuse(code, remark)
		return
	}
	b.putOnce(r, []*mq.Message{m}, uniq, kept{func(int32, int64, string) {
		r.answer(mq.Success, "", map[string]string{"msgId": uniq, mq.PropMsgRegion: b.cfg.RegionID})
	}, refuse})
}

// timerInfo is what the leader tells of its timer messages.
type timerInfo struct {
	mu        sync.Mutex
	read      int64 // of their queue
	delivered int64 // ms; all that are due before are
	next      int64 // ms; when the first that waits is due; 0 = not known yet, math.MaxInt64 = none waits
	counts    map[string]timerCount
	version   mq.DataVersion
}

// timerCount counts the messages of one topic that wait (TimerMetrics.Metric in the Java original).
type timerCount struct {
	Count int64 `json:"count"`
	At    int64 `json:"timeStamp"` // of the last change
}

// begin forgets an earlier leadership.
func (i *timerInfo) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.read, i.delivered, i.next, i.counts = 0, 0, 0, map[string]timerCount{}
}

func (i *timerInfo) at(read, delivered, next int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if read != i.read || delivered != i.delivered {
		i.version.Counter++
		i.version.Timestamp = milliseconds(time.Now())
	}
	i.read, i.delivered, i.next = read, delivered, next
}

func (i *timerInfo) count(topic string, n int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c, known := i.counts[topic]
	if !known {
		topic = strings.Clone(topic) // of the log's memory
	}
	if c.Count, c.At = c.Count+n, milliseconds(time.Now()); c.Count > 0 {
		i.counts[topic] = c
	} else {
		delete(i.counts, topic)
	}
}

// timersBehind tells for how long the first timer message that waits has been due, and how many of their queue are not read yet; nothing where another replica leads.
func (b *Broker) timersBehind(now time.Time) (behind time.Duration, unread int64) {
	if !b.gate.here() {
		return 0, 0
	}
	i := &b.timerInfo
	i.mu.Lock()
	read, next := i.read, i.next
	i.mu.Unlock()
	if ms := milliseconds(now); next > 0 && next < ms {
		behind = time.Duration(ms-next) * time.Millisecond
	}
	return behind, max(b.store.MaxOffset(mq.TopicTimer, 0)-read, 0)
}

// timerCheckPoint answers as the original writes its file timercheck (TimerCheckpoint), big-endian:
//
//	offset  bytes  what
//	0       8      lastReadTimeMs: all that are due before are delivered
//	8       8      lastTimerLogFlushPos: 0, there is no such log
//	16      8      lastTimerQueueOffset: as the next
//	24      8      masterTimerQueueOffset: how far the leader has read the queue of timers
//	32      8      state version
//	40      8      timestamp of the version
//	48      8      counter of the version
func (b *Broker) timerCheckPoint(r *request) {
	i := &b.timerInfo
	i.mu.Lock()
	v := i.version
	body := make([]byte, 0, 56)
	for _, n := range []int64{i.delivered, 0, i.read, i.read, b.term.Load(), v.Timestamp, v.Counter} {
		body = binary.BigEndian.AppendUint64(body, uint64(n))
	}
	known := i.delivered > 0
	i.mu.Unlock()
	if !known {
		r.refuse(mq.SystemError, "The checkpoint is null") // this leadership has just begun
		return
	}
	r.answer(mq.Success, "", nil, body)
}

func (b *Broker) timerMetrics(r *request) {
	i := &b.timerInfo
	i.mu.Lock()
	v := i.version
	v.StateVersion = b.term.Load()
	counts := i.counts
	if counts == nil { // this leadership has just begun; null would be an error to who asks
		counts = map[string]timerCount{}
	}
	body := mq.Marshal(struct {
		Version mq.DataVersion        `json:"dataVersion"`
		Counts  map[string]timerCount `json:"timingCount"`
	}{v, counts})
	i.mu.Unlock()
	r.answer(mq.Success, "", nil, body)
}
