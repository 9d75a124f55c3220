package broker

import (
	"strings"

	"dledger/internal/mq"
)

// Compatibility: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) and its list form (225), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201),
// GET_SUBSCRIPTIONGROUP_CONFIG (352), DELETE_SUBSCRIPTIONGROUP (207), GET_CONSUME_STATS (208), GET_BROKER_CONSUME_STATS (317),
// QUERY_TOPICS_BY_CONSUMER (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345), CLONE_GROUP_OFFSET (314), GET_ALL_CONSUMER_OFFSET (43),
// INVOKE_BROKER_TO_RESET_OFFSET (222). A group that is made is there on all replicas when the answer comes; its retry topic comes with
// its first consumer. Fields of a group
// that a request leaves out have the original's defaults. pullOffset is the consumer's offset: pulls are not tracked. Left out: pages of group tables.

// groupField reads the group that a request is about, which must be there.
func (b *Broker) groupField(r *request, f *mq.Fields, field string) (g mq.SubscriptionGroupConfig, ok bool) {
	name := f.Str(field)
	if err := f.Err(); err != nil {
		r.malformed(err)
		return g, false
	}
	if g, ok = b.meta.groupConfig(name); !ok && !r.toLeader() {
		r.refuse(mq.GroupNotExist, "subscription group [%s] does not exist", name)
	}
	return g, ok
}

func (b *Broker) createGroup(r *request) {
	g := mq.DefaultGroup("")
	if err := mq.Unmarshal(r.body(), &g); err != nil {
		r.malformed(err)
		return
	}
	b.setGroups(r, []mq.SubscriptionGroupConfig{g})
}

func (b *Broker) createGroups(r *request) {
	var list mq.SubscriptionGroupList
	if err := mq.Unmarshal(r.body(), &list); err != nil {
		r.malformed(err)
		return
	}
	b.setGroups(r, list.Groups)
}

// setGroups makes or changes groups: all of them or none.
func (b *Broker) setGroups(r *request, groups []mq.SubscriptionGroupConfig) {
	rec := record{Kind: "groups", Groups: map[string]mq.SubscriptionGroupConfig{}}
	for _, g := range groups {
		if err := mq.CheckGroup(g.GroupName); err != nil {
			r.refuse(mq.InvalidParameter, "%v", err)
			return
		}
		if g.RetryQueueNums < 0 || g.RetryQueueNums > queuesMax || g.RetryMaxTimes < -1 {
			r.refuse(mq.InvalidParameter, "group [%s]: retryQueueNums %d, retryMaxTimes %d", g.GroupName, g.RetryQueueNums, g.RetryMaxTimes)
			return
		}
		rec.Groups[g.GroupName] = g
	}
	if len(groups) == 0 {
		r.refuse(mq.InvalidParameter, "no group in groupConfigList")
		return
	}
	b.meta.submit(rec, func(err error) { b.done(r, err) })
}

func (b *Broker) allGroupConfig(r *request) {
	r.json(mq.SubscriptionGroupTable{Groups: b.meta.groups(), DataVersion: b.meta.version(tableGroups)})
}

func (b *Broker) oneGroupConfig(r *request) {
	if g, ok := b.groupField(r, r.fields(), "group"); ok {
		r.json(g)
	}
}

func (b *Broker) deleteGroup(r *request) {
	f := r.fields()
	name, clean := f.Str("groupName"), f.BoolOr("cleanOffset", false)
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	covers := func(key string, _ int32) bool {
		_, group := splitOffsetKey(key)
		return clean && group == name
	}
	b.offsets.override(covers, func() record {
		rec := record{Kind: "group deleted", NoGroups: []string{name}}
		for key := range b.allOffsets() {
			if covers(key, 0) {
				rec.NoOffsets = append(rec.NoOffsets, key)
			}
		}
		return rec
	}, func(err error) {
		if err == nil {
			b.stats.forget(func(k statKey) bool { return k.group == name })
		}
		b.done(r, err)
	})
}

// progress gives how far a group is in the queues of a topic.
func (b *Broker) progress(group string, t mq.TopicConfig, stats *mq.ConsumeStats) {
	key := offsetKey(t.TopicName, group)
	for id := range t.ReadQueueNums {
		o := mq.OffsetWrapper{BrokerOffset: b.store.MaxOffset(t.TopicName, id)}
		if at, ok := b.offsets.get(key, id); ok {
			o.ConsumerOffset = at
		}
		o.PullOffset = o.ConsumerOffset
		if o.ConsumerOffset > 0 {
			o.LastTimestamp = max(b.store.StoreTime(t.TopicName, id, o.ConsumerOffset-1), 0)
		}
		stats.Offsets[b.queueName(t.TopicName, id)] = o
	}
	stats.ConsumeTPS += b.stats.rate(statGroupGet, t.TopicName, group)
}

// wants tells whether a group still subscribes to a topic that it has an offset in. One with no subscriptions at all is offline, and may.
func (b *Broker) wants(group, topic string) bool {
	subscribed := b.clients.topicsOf(group)
	return len(subscribed) == 0 || subscribed[topic]
}

func (b *Broker) consumeStats(r *request) {
	f := r.fields()
	group, only, list := f.Str("consumerGroup"), f.StrOr("topic", ""), f.StrOr("topicList", "")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	topics := split(list, ";") // as they are; without a list, what the group subscribes to
	given := len(topics) > 0
	switch {
	case given:
	case only != "":
		topics = []string{only}
	default:
		topics = b.topicsOf(group)
	}
	stats := mq.ConsumeStats{Offsets: map[mq.MessageQueue]mq.OffsetWrapper{}}
	for _, topic := range topics {
		if t, ok := b.meta.topicConfig(topic); ok && (given || b.wants(group, topic)) {
			b.progress(group, t, &stats)
		}
	}
	r.json(stats)
}

// brokerConsumeStats is consumeStats for all groups, and what all of them have still to consume.
func (b *Broker) brokerConsumeStats(r *request) {
	f := r.fields()
	ordered := f.BoolOr("isOrder", false)
	all := mq.ConsumeStatsList{BrokerAddr: b.cfg.address(), Stats: []map[string][]mq.ConsumeStats{}}
	for group := range b.meta.groups() {
		per := []mq.ConsumeStats{}
		for _, topic := range b.topicsOf(group) {
			t, ok := b.meta.topicConfig(topic)
			if !ok || ordered && !t.Order || !b.wants(group, topic) {
				continue
			}
			stats := mq.ConsumeStats{Offsets: map[mq.MessageQueue]mq.OffsetWrapper{}}
			b.progress(group, t, &stats)
			for _, o := range stats.Offsets {
				all.TotalDiff += o.BrokerOffset - o.ConsumerOffset
			}
			per = append(per, stats)
		}
		if len(per) > 0 {
			all.Stats = append(all.Stats, map[string][]mq.ConsumeStats{group: per})
		}
	}
	r.json(all)
}

func (b *Broker) topicsByConsumer(r *request) {
	f := r.fields()
	group := f.Str("group")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	topics := b.topicsOf(group)
	if topics == nil {
		topics = []string{}
	}
	r.json(mq.TopicList{Topics: topics})
}

// subscriptionAnswer is the answer to QUERY_SUBSCRIPTION_BY_CONSUMER (QuerySubscriptionResponseBody).
type subscriptionAnswer struct {
	Group string               `json:"group"`
	Topic string               `json:"topic"`
	Data  *mq.SubscriptionData `json:"subscriptionData"`
}

func (b *Broker) subscriptionByConsumer(r *request) {
	f := r.fields()
	a := subscriptionAnswer{Group: f.Str("group"), Topic: f.Str("topic")}
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if sub, _, _ := b.clients.subscription(a.Group, a.Topic); sub != nil {
		a.Data = &sub.data
	} else if r.toLeader() {
		return
	}
	r.json(a)
}

func (b *Broker) cloneOffsets(r *request) {
	f := r.fields()
	from, to, topic, offline := f.Str("srcGroup"), f.Str("destGroup"), f.StrOr("topic", ""), f.BoolOr("offline", false)
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if err := mq.CheckGroup(to); err != nil {
		r.refuse(mq.InvalidParameter, "%v", err)
		return
	}
	topics := []string{topic}
	if strings.TrimSpace(topic) == "" {
		topics = b.topicsOf(from)
	}
	all := b.allOffsets()
	rec := record{Kind: "offsets cloned", Sets: true, Offsets: map[string]map[int32]int64{}}
	for _, topic := range topics {
		if _, ok := b.meta.topicConfig(topic); !ok || !offline && !b.wants(from, topic) {
			continue
		}
		if queues := all[offsetKey(topic, from)]; len(queues) > 0 {
			rec.Offsets[offsetKey(topic, to)] = queues
		}
	}
	if len(rec.Offsets) == 0 {
		r.ok()
		return
	}
	b.offsets.override(only(rec.Offsets), func() record { return rec }, func(err error) { b.done(r, err) })
}

func (b *Broker) allConsumerOffset(r *request) {
	r.json(mq.ConsumerOffsetTable{Offsets: b.allOffsets(), DataVersion: b.meta.version(tableOffsets)})
}

// resetOffset gives a group another place in a topic: in the log, so that whichever replica its consumers ask next tells them.
func (b *Broker) resetOffset(r *request) {
	f := r.fields()
	group, ts, force := f.Str("group"), f.Int64("timestamp"), f.BoolOr("isForce", false)
	queue, offset := f.Int32Or("queueId", -1), f.Int64Or("offset", -1)
	t, ok := b.topicField(r, f)
	if !ok {
		return
	}
	targets := map[int32]int64{}
	for id := range t.ReadQueueNums {
		if queue >= 0 && id != queue {
			continue
		}
		lo, hi := b.store.MinOffset(t.TopicName, id), b.store.MaxOffset(t.TopicName, id)
		switch {
		case queue >= 0 && offset >= 0:
			if offset < lo || offset > hi+1 {
				r.refuse(mq.SystemError, "target offset %d not in consume queue range [%d-%d]", offset, lo, hi)
				return
			}
			targets[id] = min(offset, hi)
		case ts < 0:
			targets[id] = hi
		default:
			targets[id] = b.store.OffsetByTime(t.TopicName, id, ts, false)
		}
	}
	if len(targets) == 0 {
		r.refuse(mq.SystemError, "no queues to reset")
		return
	}
	if !b.conf().ServerReset {
		b.resetAtClients(r, group, t, ts, force, targets)
		return
	}
	if _, ok := b.meta.groupConfig(group); !ok {
		r.refuse(mq.GroupNotExist, "subscription group [%s] does not exist", group)
		return
	}
	key := offsetKey(t.TopicName, group)
	table := map[string]map[int32]int64{key: targets}
	// What consumers commit until they hear of it is not noted (see commitOffset).
	b.offsets.override(only(table), func() record { return record{Kind: "reset", Offsets: table, Resets: table} }, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		body := mq.QueueOffsets{Offsets: map[mq.MessageQueue]int64{}}
		for id, to := range targets {
			body.Offsets[b.queueName(t.TopicName, id)] = to
		}
		r.json(body)
	})
}

// resetAtClients is the way before useServerSideResetOffset: consumers are told, and commit the new offsets themselves. Without force
// none moves forward.
func (b *Broker) resetAtClients(r *request, group string, t mq.TopicConfig, ts int64, force bool, targets map[int32]int64) {
	members := b.clients.members(group)
	if len(members) == 0 {
		r.refuse(mq.ConsumerNotOnline, "Consumer not online, so can not reset offset, Group: %s Topic: %s Timestamp: %d", group, t.TopicName, ts)
		return
	}
	body := mq.QueueOffsets{Offsets: map[mq.MessageQueue]int64{}}
	list := []queueOffset{}
	for id, to := range targets {
		if at, ok := b.offsets.get(offsetKey(t.TopicName, group), id); ok && at < to && !force {
			to = at
		}
		q := b.queueName(t.TopicName, id)
		body.Offsets[q] = to
		list = append(list, queueOffset{q.BrokerName, to, q.QueueID, q.Topic})
	}
	for _, m := range members {
		text := mq.Marshal(body)
		if m.language == "CPP" { // reads no objects as keys
			text = mq.Marshal(struct {
				Offsets []queueOffset `json:"offsetTable"`
			}{list})
		}
		b.tellClient(m, mq.CodeResetConsumerOffset, map[string]string{"topic": t.TopicName, "group": group, "timestamp": mq.Itoa(ts), "isForce": boolText(force)}, text)
	}
	r.json(body)
}

type queueOffset struct {
	BrokerName string `json:"brokerName"`
	Offset     int64  `json:"offset"`
	QueueID    int32  `json:"queueId"`
	Topic      string `json:"topic"`
}
