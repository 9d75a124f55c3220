package mq

import (
	"encoding/binary"
	"encoding/hex"
	"iter"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Names of properties that broker or clients give a meaning (MessageConst in the original).
const (
	PropKeys              = "KEYS" // several, divided by blanks
	PropTags              = "TAGS"
	PropWait              = "WAIT"
	PropDelay             = "DELAY" // delay level
	PropRetryTopic        = "RETRY_TOPIC"
	PropRealTopic         = "REAL_TOPIC"
	PropRealQueueID       = "REAL_QID"
	PropTranMsg           = "TRAN_MSG"
	PropProducerGroup     = "PGROUP"
	PropMinOffset         = "MIN_OFFSET"
	PropMaxOffset         = "MAX_OFFSET"
	PropOriginMessageID   = "ORIGIN_MESSAGE_ID"
	PropReconsumeTime     = "RECONSUME_TIME"
	PropMsgRegion         = "MSG_REGION"
	PropTraceOn           = "TRACE_ON"
	PropUniqKey           = "UNIQ_KEY"
	PropMaxReconsumeTimes = "MAX_RECONSUME_TIMES"
	PropConsumeStartTime  = "CONSUME_START_TIME"
	PropInnerNum          = "INNER_NUM"
	PropCheckImmunity     = "CHECK_IMMUNITY_TIME_IN_SECONDS"
	PropPreparedOffset    = "TRAN_PREPARED_QUEUE_OFFSET"
	PropTransactionID     = "__transactionId__"
	PropCheckTimes        = "TRANSACTION_CHECK_TIMES"
	PropInstanceID        = "INSTANCE_ID"
	PropCorrelationID     = "CORRELATION_ID"
	PropReplyToClient     = "REPLY_TO_CLIENT"
	PropTTL               = "TTL"
	PropArriveTime        = "ARRIVE_TIME"
	PropPushReplyTime     = "PUSH_REPLY_TIME"
	PropCluster           = "CLUSTER"
	PropMsgType           = "MSG_TYPE"
	PropPopCK             = "POP_CK"
	PropFirstPopTime      = "1ST_POP_TIME"
	PropShardingKey       = "__SHARDINGKEY"
	PropTimerDelaySec     = "TIMER_DELAY_SEC"
	PropTimerDelayMs      = "TIMER_DELAY_MS"
	PropTimerDeliverMs    = "TIMER_DELIVER_MS"
	PropTimerOutMs        = "TIMER_OUT_MS"
	PropTimerEnqueueMs    = "TIMER_ENQUEUE_MS"
	PropTimerDequeueMs    = "TIMER_DEQUEUE_MS"
	PropTimerRollTimes    = "TIMER_ROLL_TIMES"
	PropTimerDelUniqKey   = "TIMER_DEL_UNIQKEY"
	PropDLQOriginTopic    = "DLQ_ORIGIN_TOPIC"
	PropDLQOriginID       = "DLQ_ORIGIN_MESSAGE_ID"
	PropCRC32             = "__CRC32#"
)

// Properties travel as one string: name 0x01 value 0x02, repeated. The last 0x02 may be missing.
const (
	nameEnd  = "\x01"
	valueEnd = "\x02"
)

// PropAll iterates over the properties of a wire string in their order. Pairs without a name, a value or a divider between them are passed over.
func PropAll(p string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for len(p) > 0 {
			var pair string
			pair, p, _ = strings.Cut(p, valueEnd)
			if name, value, _ := strings.Cut(pair, nameEnd); name != "" && value != "" && !yield(name, value) {
				return
			}
		}
	}
}

// PropGet gives a property's value, "" if there is none. Of several with one name the last counts, as in the original. name holds no divider.
func PropGet(p, name string) string {
	var found string
	n := len(name)
	for len(p) > n+1 {
		end := strings.IndexByte(p, valueEnd[0])
		if end < 0 {
			end = len(p)
		}
		if end > n+1 && p[n] == nameEnd[0] && p[:n] == name && n > 0 {
			found = p[n+1 : end]
		}
		p = p[min(end+1, len(p)):]
	}
	return found
}

// PropHas tells whether the property is there.
func PropHas(p, name string) bool { return PropGet(p, name) != "" }

// PropSet gives p with the property set to value; an empty value deletes it.
func PropSet(p, name, value string) string {
	p = PropDel(p, name)
	if value == "" {
		return p
	}
	if p != "" && !strings.HasSuffix(p, valueEnd) {
		p += valueEnd
	}
	return p + name + nameEnd + value + valueEnd
}

// PropDel gives p without the properties of these names.
func PropDel(p string, names ...string) string {
	for _, name := range names {
		if !PropHas(p, name) {
			continue
		}
		var b strings.Builder
		b.Grow(len(p))
		for k, v := range PropAll(p) {
			if k != name {
				b.WriteString(k + nameEnd + v + valueEnd)
			}
		}
		p = b.String()
	}
	return p
}

// Prop gives the value of a property of the message; "" if it has none.
func (m *Message) Prop(name string) string { return PropGet(m.Properties, name) }

// SetProp sets a property; an empty value deletes it.
func (m *Message) SetProp(name, value string) { m.Properties = PropSet(m.Properties, name, value) }

// DelProp deletes properties.
func (m *Message) DelProp(names ...string) { m.Properties = PropDel(m.Properties, names...) }

// IndexKeys iterates over the keys under which a message is found (DefaultMessageStore's IndexService in the original): its unique key and each word
// of KEYS, with the topic before it.
func (m *Message) IndexKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		if u := m.Prop(PropUniqKey); u != "" && !yield(IndexKey(m.Topic, u)) {
			return
		}
		for k := range strings.SplitSeq(m.Prop(PropKeys), " ") {
			if k != "" && !yield(IndexKey(m.Topic, k)) {
				return
			}
		}
	}
}

// IndexKey is a key as the index knows it.
func IndexKey(topic, key string) string { return topic + "#" + key }

// Unique keys are made by clients, and by the broker for a message that comes without one (MessageClientIDSetter in the original):
//
//	4 IP (16 with IPv6) · 2 process id · 4 hash, here of the start time · 4 ms since the first of the month · 2 counter
type UniqKeys struct {
	head    []byte
	counter atomic.Uint32
}

// NewUniqKeys makes the source for one process at this address.
func NewUniqKeys(ip netip.Addr) *UniqKeys {
	b := appendHost(nil, netip.AddrPortFrom(ip, 0))
	b = binary.BigEndian.AppendUint16(b[:len(b)-4], uint16(os.Getpid()))
	return &UniqKeys{head: binary.BigEndian.AppendUint32(b, uint32(time.Now().UnixNano()>>10))}
}

// Next gives a new key.
func (u *UniqKeys) Next(now time.Time) string {
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, now.Location())
	b := append(make([]byte, 0, len(u.head)+6), u.head...)
	b = binary.BigEndian.AppendUint32(b, uint32(now.Sub(month).Milliseconds()))
	b = binary.BigEndian.AppendUint16(b, uint16(u.counter.Add(1)))
	return strings.ToUpper(hex.EncodeToString(b))
}
