package broker

import (
	"math/rand/v2"
	"strings"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Compatibility: QUERY_MESSAGE (12), VIEW_MESSAGE_BY_ID (33), CONSUMER_SEND_MSG_BACK (36). Offsets are the same on all replicas, so each finds a message by an
// id that any of them gave. Messages whose keys only share a hash are left out; the original gives them too.

const queryMax = 64 // messages in an answer to QUERY_MESSAGE

func (b *Broker) viewMessage(r *request) {
	f := r.fields()
	offset := f.Int64("offset")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	stored, err := b.storedAt(offset)
	if err != nil && r.toLeader() {
		return
	}
	if unreadable(err) {
		err = r.patiently(func() (err error) {
			stored, err = b.storedAt(offset)
			return err
		})
	}
	switch {
	case unreadable(err):
		r.unread(err)
		return
	case err != nil:
		r.refuse(mq.SystemError, "can not find message by the offset, %d: %v", offset, err)
		return
	}
	r.answer(mq.Success, "", nil, stored)
}

func (b *Broker) queryMessage(r *request) {
	f := r.fields()
	topic, key, n := f.Str("topic"), f.Str("key"), int(f.Int32("maxNum"))
	begin, end := f.Int64("beginTimestamp"), f.Int64("endTimestamp")
	if f.BoolOr("_UNIQUE_KEY_QUERY", false) {
		n = 32
	}
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if topic == b.meta.topic {
		r.refuse(mq.NoPermission, "the topic[%s] is the group's own", topic)
		return
	}
	query := func() (msgstore.QueryResult, error) {
		return b.store.Query(topic, key, min(max(n, 1), queryMax), begin, end)
	}
	res, err := query()
	if err != nil && r.toLeader() {
		return
	}
	if err != nil {
		err = r.patiently(func() (err error) {
			res, err = query()
			return err
		})
	}
	if err != nil && len(res.Messages) == 0 {
		r.unread(err)
		return
	}
	ext := map[string]string{"indexLastUpdateTimestamp": mq.Itoa(res.LastTime), "indexLastUpdatePhyoffset": mq.Itoa(res.LastPos)}
	if len(res.Messages) == 0 {
		if !r.toLeader() {
			r.answer(mq.QueryNotFound, "can not find message, maybe time range not correct", ext)
		}
		return
	}
	r.answer(mq.Success, "", ext, res.Messages...)
}

// sendBack stores a message again for a group that could not consume it: to be had after a pause that grows, or for good among its dead letters.
func (b *Broker) sendBack(r *request) {
	f := r.fields()
	offset, group, level := f.Int64("offset"), f.Str("group"), f.Int32("delayLevel")
	limit := f.Int32Or("maxReconsumeTimes", -1)
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	config, ok := b.meta.groupConfig(group)
	switch {
	case !ok:
		r.refuse(mq.GroupNotExist, "subscription group not exist, %s", group)
		return
	case b.conf().Permission&mq.PermWrite == 0:
		r.refuse(mq.NoPermission, "the broker[%s] sending message is forbidden", b.cfg.IP)
		return
	case config.RetryQueueNums <= 0:
		r.ok()
		return
	}
	old, err := b.patientAt(r, offset)
	if unreadable(err) {
		r.unread(err)
		return
	}
	if err != nil {
		r.refuse(mq.SystemError, "look message by offset failed, %d: %v", offset, err)
		return
	}
	if limit < 0 || r.frame.Version < mq.VersionMaxReconsume {
		limit = config.RetryMaxTimes
	}
	m := &mq.Message{Topic: mq.RetryTopic(group), QueueID: rand.Int32N(config.RetryQueueNums), Flag: old.Flag, SysFlag: old.SysFlag &^ mq.SysTransaction, BornTime: old.BornTime, BornHost: old.BornHost,
		ReconsumeTimes: old.ReconsumeTimes + 1, Body: old.Body, Properties: strings.Clone(old.Properties)}
	if !mq.PropHas(m.Properties, mq.PropRetryTopic) {
		m.SetProp(mq.PropRetryTopic, strings.Clone(old.Topic))
	}
	if m.Prop(mq.PropOriginMessageID) == "" {
		m.SetProp(mq.PropOriginMessageID, old.MsgID()) // what the client thinks it is does not count: newer ones send the unique id
	}
	if m.Prop(mq.PropUniqKey) == "" {
		m.SetProp(mq.PropUniqKey, old.MsgID()) // the same at each attempt
	}
	target := mq.NewTopicConfig(m.Topic, config.RetryQueueNums, mq.PermRead|mq.PermWrite)
	if old.ReconsumeTimes >= limit || level < 0 {
		target = mq.NewTopicConfig(mq.DLQTopic(group), 1, mq.PermRead|mq.PermWrite)
		m.Topic, m.QueueID = target.TopicName, 0
		m.SetProp(mq.PropDelay, "0")
	} else {
		if level == 0 {
			level = 3 + old.ReconsumeTimes
		}
		m.SetProp(mq.PropDelay, mq.Itoa(level))
	}
	if err := msgstore.CheckTopic(m.Topic); err != nil { // now, as it may be delayed first: then nobody would be told
		r.refuse(mq.SystemError, "%v: what group [%s] sends back cannot be stored: %v", msgstore.MessageIllegal, group, err)
		return
	}
	b.ensureTopic(target, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		if code, remark := b.divert(m); code != mq.Success {
			r.refuse(code, "%s", remark)
			return
		}
		b.putOnce(r, []*mq.Message{m}, "", kept{func(int32, int64, string) {
			b.stats.add(statKey{statSendBack, m.Prop(mq.PropRetryTopic), group}, 1)
			r.ok()
		}, func(_ int32, remark string) { r.refuse(mq.SystemError, "%s", remark) }})
	})
}

// storedAt gives the committed message at a physical offset, in stored form. To clients the group's own records are not there (fromMember).
func (b *Broker) storedAt(offset int64) ([]byte, error) {
	stored, err := b.store.MessageAt(offset)
	if err != nil {
		return nil, err
	}
	if m, _, err := mq.ParseStored(stored); err != nil || m.Topic == b.meta.topic {
		return nil, msgstore.ErrNotFound
	}
	return stored, nil
}

// messageAt reads a committed message; its parts are the log's memory.
func (b *Broker) messageAt(offset int64) (mq.Message, error) {
	stored, err := b.storedAt(offset)
	if err != nil {
		return mq.Message{}, err
	}
	m, _, err := mq.ParseStored(stored)
	return m, err
}

// patientAt is messageAt for a request that may wait for it.
func (b *Broker) patientAt(r *request, offset int64) (m mq.Message, err error) {
	err = r.patiently(func() (err error) {
		m, err = b.messageAt(offset)
		return err
	})
	return m, err
}
