package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Compatibility: UPDATE_AND_CREATE_TOPIC_LIST (18), GET_ALL_TOPIC_CONFIG (21), GET_TOPIC_CONFIG (351), GET_TOPIC_STATS_INFO (202),
// DELETE_TOPIC_IN_BROKER (215), QUERY_TOPIC_CONSUME_BY_WHO (300), QUERY_CONSUME_TIME_SPAN (303), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305),
// QUERY_CONSUME_QUEUE (321). Every tool of the original asks some of these. A deleted topic is deleted on all replicas at one place of the log,
// together with the offsets of its consumers; the original deletes on each by itself. Left out: static topics, pages of topic tables.

// topicField reads the topic that a request is about, which must be there.
func (b *Broker) topicField(r *request, f *mq.Fields) (t mq.TopicConfig, ok bool) {
	name := f.Str("topic")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return t, false
	}
	if t, ok = b.meta.topicConfig(name); !ok && !r.toLeader() {
		r.refuse(mq.TopicNotExist, "topic[%s] not exist", name)
	}
	return t, ok
}

// createTopics makes or changes several topics at once: all of them or none.
func (b *Broker) createTopics(r *request) {
	var list mq.TopicConfigList
	if err := mq.Unmarshal(r.body(), &list); err != nil {
		r.malformed(err)
		return
	}
	if len(list.Topics) == 0 {
		r.refuse(mq.InvalidParameter, "no topic in topicConfigList")
		return
	}
	for i := range list.Topics {
		t := &list.Topics[i]
		var attributes []string // of a whole configuration: each is set
		for name, value := range t.Attributes {
			attributes = append(attributes, "+"+strings.TrimPrefix(name, "+")+"="+value)
		}
		if t.TopicFilterType == "" {
			t.TopicFilterType = mq.FilterSingleTag
		}
		if err := b.setTopic(t, strings.Join(attributes, ",")); err != nil {
			r.refuse(codeOf(err), "%v", err)
			return
		}
	}
	b.makeTopics(list.Topics, func(err error) { b.done(r, err) })
}

// done answers a change that went through the log.
func (b *Broker) done(r *request, err error) {
	if err != nil {
		b.failed(r, err)
		return
	}
	r.ok()
}

func (b *Broker) allTopicConfig(r *request) {
	none := map[string]string{}
	r.json(mq.TopicConfigTable{Topics: b.meta.topics(), DataVersion: b.meta.version(tableTopics), MappingBody: none, MappingInfo: none})
}

func (b *Broker) oneTopicConfig(r *request) {
	if t, ok := b.topicField(r, r.fields()); ok {
		r.json(t)
	}
}

func (b *Broker) topicStats(r *request) {
	t, ok := b.topicField(r, r.fields())
	if !ok {
		return
	}
	table := mq.TopicStats{Offsets: map[mq.MessageQueue]mq.TopicOffset{}, TopicPutTPS: b.stats.rate(statTopicPut, t.TopicName, "")}
	for id := range max(t.ReadQueueNums, t.WriteQueueNums) {
		o := mq.TopicOffset{MinOffset: b.store.MinOffset(t.TopicName, id), MaxOffset: b.store.MaxOffset(t.TopicName, id)}
		if o.MaxOffset > 0 {
			o.LastUpdateTimestamp = max(b.store.StoreTime(t.TopicName, id, o.MaxOffset-1), 0)
		}
		table.Offsets[b.queueName(t.TopicName, id)] = o
	}
	r.json(table)
}

// queueName is a queue of this broker as others name it.
func (b *Broker) queueName(topic string, id int32) mq.MessageQueue {
	return mq.MessageQueue{BrokerName: b.cfg.Name, Topic: topic, QueueID: id}
}

func (b *Broker) deleteTopic(r *request) {
	f := r.fields()
	name := f.Str("topic")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if strings.TrimSpace(name) == "" {
		r.refuse(mq.InvalidParameter, "the name of the topic is blank")
		return
	}
	if b.isSystemTopic(name) {
		r.refuse(mq.InvalidParameter, "the topic[%s] is conflict with system topic", name)
		return
	}
	covers := func(key string, _ int32) bool {
		topic, _ := splitOffsetKey(key)
		return topic == name
	}
	b.offsets.override(covers, func() record { return record{Kind: "topic deleted", NoTopics: []string{name}} }, func(err error) {
		if err == nil {
			b.stats.forget(func(k statKey) bool { return k.topic == name })
		}
		b.done(r, err)
	})
}

// groupsOf gives the groups that consume a topic: those that are connected and those that have left an offset.
func (b *Broker) groupsOf(topic string) []string {
	found := b.clients.groupsOf(topic)
	for key := range b.allOffsets() {
		if t, group := splitOffsetKey(key); t == topic {
			found[group] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// topicsOf gives the topics that a group has an offset in.
func (b *Broker) topicsOf(group string) []string {
	found := map[string]bool{}
	for key := range b.allOffsets() {
		if topic, g := splitOffsetKey(key); g == group {
			found[topic] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// allOffsets gives every group's offsets, those included that are not in the log yet.
func (b *Broker) allOffsets() map[string]map[int32]int64 {
	all := b.meta.allOffsets()
	b.offsets.mu.Lock()
	defer b.offsets.mu.Unlock()
	for key, queues := range b.offsets.pending {
		all[key] = merged(all[key], queues)
	}
	return all
}

func (b *Broker) topicConsumedBy(r *request) {
	if t, ok := b.topicField(r, r.fields()); ok {
		r.json(mq.GroupList{Groups: b.groupsOf(t.TopicName)})
	}
}

func (b *Broker) consumeTimeSpan(r *request) {
	f := r.fields()
	group := f.Str("group")
	t, ok := b.topicField(r, f)
	if !ok {
		return
	}
	body := mq.ConsumeTimeSpan{Spans: []mq.QueueTimeSpan{}}
	key := offsetKey(t.TopicName, group)
	for id := range t.WriteQueueNums {
		end := b.store.MaxOffset(t.TopicName, id)
		s := mq.QueueTimeSpan{Queue: b.queueName(t.TopicName, id), MinTimestamp: b.store.EarliestTime(t.TopicName, id), MaxTimestamp: b.store.StoreTime(t.TopicName, id, end-1)}
		at, known := b.offsets.get(key, id)
		if s.ConsumeTimestamp = s.MinTimestamp; known && at > 0 {
			s.ConsumeTimestamp = b.store.StoreTime(t.TopicName, id, at-1)
		}
		if at < end {
			if next := b.store.StoreTime(t.TopicName, id, max(at, b.store.MinOffset(t.TopicName, id))); next > 0 {
				s.DelayTime = max(milliseconds(time.Now())-next, 0)
			}
		}
		body.Spans = append(body.Spans, s)
	}
	r.json(body)
}

func (b *Broker) systemTopicList(r *request) {
	list := mq.TopicList{Topics: []string{}}
	for name := range b.meta.topics() {
		if b.isSystemTopic(name) {
			list.Topics = append(list.Topics, name)
		}
	}
	slices.Sort(list.Topics)
	r.json(list)
}

// consumeQueueMax bounds the entries of one answer to QUERY_CONSUME_QUEUE.
const consumeQueueMax = 1000

// queryConsumeQueue shows entries of a queue, and with a group whether its subscription wants each. They are made from the messages.
func (b *Broker) queryConsumeQueue(r *request) {
	f := r.fields()
	id, index, count := f.Int32("queueId"), f.Int64("index"), f.Int32("count")
	group := f.StrOr("consumerGroup", "")
	t, ok := b.topicField(r, f)
	if !ok {
		return
	}
	page := mq.ConsumeQueuePage{Queue: []mq.ConsumeQueueEntry{}, MinQueueIndex: b.store.MinOffset(t.TopicName, id), MaxQueueIndex: b.store.MaxOffset(t.TopicName, id)}
	if _, there := b.store.Queues(t.TopicName)[id]; !there {
		r.refuse(mq.SystemError, "%d@%s is not exist!", id, t.TopicName)
		return
	}
	var want filter
	if sub, _, _ := b.clients.subscription(group, t.TopicName); group != "" && sub != nil && sub.err == nil {
		page.Subscription, want = &sub.data, sub.filter
	}
	for n := min(int(count), consumeQueueMax); len(page.Queue) < n; {
		got := b.store.Get(t.TopicName, id, index, n-len(page.Queue), pullBytesMax, nil)
		if got.Status != msgstore.Found {
			break
		}
		for _, stored := range got.Messages {
			e, err := queueEntry(stored, want)
			if err != nil {
				r.malformed(err)
				return
			}
			page.Queue = append(page.Queue, e)
		}
		index = got.Next
	}
	r.json(page)
}

func queueEntry(stored []byte, want filter) (e mq.ConsumeQueueEntry, err error) {
	m, size, err := mq.ParseStored(stored)
	if err != nil {
		return e, fmt.Errorf("a message in the queue: %w", err)
	}
	e = mq.ConsumeQueueEntry{PhysicOffset: m.PhysicalOffset, PhysicSize: int32(size), TagsCode: mq.TagsCode(m.Prop(mq.PropTags))}
	if want != nil {
		e.Eval = want.MatchCode(e.TagsCode) && want.Match(stored)
	}
	return e, nil
}
