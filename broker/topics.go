package broker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Topics and subscription groups: what every broker has from the start, and how clients make more (TopicConfigManager and
// SubscriptionGroupManager in the Java original).
//
// Compatibility: UPDATE_AND_CREATE_TOPIC (17). A topic is answered for once every replica has it and the name servers have been told; the
// original tells the followers up to ten seconds later.

// systemTopics are those that are there from the start; they take no record.
func systemTopics(cfg *Config) []mq.TopicConfig {
	const rw = mq.PermRead | mq.PermWrite
	topics := []mq.TopicConfig{
		mq.NewTopicConfig(cfg.Cluster, 16, rw|mq.PermInherit),
		mq.NewTopicConfig(cfg.Name, 1, rw|mq.PermInherit),
		mq.NewTopicConfig(mq.TopicSelfTest, 1, rw),
		mq.NewTopicConfig(mq.TopicBenchmark, 1024, rw),
		mq.NewTopicConfig(mq.TopicOffsetMoved, 1, rw),
		mq.NewTopicConfig(mq.TopicSchedule, 18, rw),
		mq.NewTopicConfig(mq.TopicHalf, 1, rw),
		mq.NewTopicConfig(mq.TopicOpHalf, 1, rw),
		mq.NewTopicConfig(mq.ReplyTopic(cfg.Cluster), 1, rw),
		mq.NewTopicConfig(mq.TopicReviveStem+cfg.Cluster, 8, rw),
		mq.NewTopicConfig(mq.TopicSyncMembersStem+cfg.Name, 1, mq.PermInherit),
		mq.NewTopicConfig(mq.TopicTimer, 1, rw),
		mq.NewTopicConfig(mq.TopicMetadataStem+cfg.Name, 1, mq.PermRead),
	}
	if cfg.AutoCreateTopic {
		topics = append(topics, mq.NewTopicConfig(mq.TopicDefault, cfg.DefaultQueues, rw|mq.PermInherit))
	}
	if cfg.TraceTopic {
		topics = append(topics, mq.NewTopicConfig(cfg.TraceTopicName, 1, rw))
	}
	return topics
}

// isSystemTopic tells topics that users may not make, change or delete on this broker.
func (b *Broker) isSystemTopic(name string) bool {
	switch name {
	case b.cfg.Cluster, b.cfg.Name, mq.ReplyTopic(b.cfg.Cluster):
		return true
	}
	return mq.IsSystemTopic(name)
}

// makeTopics gives the group topics; done is called when all replicas know them and the name servers were told, or with the reason why not.
func (b *Broker) makeTopics(topics []mq.TopicConfig, done func(error)) {
	set := make(map[string]mq.TopicConfig, len(topics))
	for _, t := range topics {
		set[t.TopicName] = t
	}
	b.submitTopics(record{Kind: "topics", Topics: set}, done)
}

// makeDefault makes a topic as makeTopics does, for a client that has named it: what somebody else makes meanwhile stays as it is.
func (b *Broker) makeDefault(t mq.TopicConfig, done func(error)) {
	b.submitTopics(record{Kind: "topics", Absent: true, Topics: map[string]mq.TopicConfig{t.TopicName: t}}, done)
}

// submitTopics submits a record that may make topics, and has the name servers told of them.
func (b *Broker) submitTopics(rec record, done func(error)) {
	b.meta.submit(rec, func(err error) {
		if err != nil || len(rec.Topics) == 0 {
			done(err)
			return
		}
		b.names.topics(func() { done(nil) })
	})
}

// topicForSend gives the topic that a producer sends to. One that is not there is made in the likeness of template, if that allows it, or for
// retries; then later is called once it is there, and the result is nil. A refusal is answered here.
func (b *Broker) topicForSend(r *request, name, template string, queues int32, later func(mq.TopicConfig)) *mq.TopicConfig {
	if t, ok := b.meta.topicConfig(name); ok {
		return &t
	}
	var t mq.TopicConfig
	if strings.HasPrefix(name, mq.RetryPrefix) {
		t = mq.NewTopicConfig(name, 1, mq.PermRead|mq.PermWrite)
	} else {
		like, ok := b.meta.topicConfig(template)
		if !ok || like.Perm&mq.PermInherit == 0 || template == mq.TopicDefault && !b.conf().AutoCreateTopic {
			r.refuse(mq.TopicNotExist, "topic[%s] not exist, apply first please!", name)
			return nil
		}
		if have, _ := b.meta.counts(); have >= topicsMax {
			r.refuse(mq.TopicNotExist, "topic[%s] not exist, apply first please! There are %d, and no more are made for producers that name them", name, have)
			return nil
		}
		n := max(min(queues, like.WriteQueueNums), 0)
		t = mq.NewTopicConfig(name, n, like.Perm&^mq.PermInherit)
		t.TopicSysFlag, t.TopicFilterType = like.TopicSysFlag, like.TopicFilterType
	}
	b.makeDefault(t, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		if made, ok := b.meta.topicConfig(name); ok { // by somebody else, perhaps
			t = made
		}
		later(t)
	})
	return nil
}

// failed answers a request whose record was not committed, or tries it again at the next leader: to make the same change twice does no harm.
func (b *Broker) failed(r *request, err error) {
	switch {
	case errors.Is(err, errChangesFull):
		r.refuse(mq.SystemBusy, "[OVERLOAD]%v, start flow control for a while", err)
		return
	case errors.Is(err, dledger.ErrTooLarge), errors.Is(err, msgstore.ErrIllegal):
		r.refuse(mq.InvalidParameter, "it is too large: %v", err)
		return
	}
	r.settle = r.settle || errors.Is(err, dledger.ErrUndecided)
	b.gate.retry(r, err.Error())
}

// Bounds of what clients make by naming it. What operators make is not counted against them.
const (
	topicsMax = 500_000 // among them one for each group
	groupsMax = 100_000
)

// ensureTopic makes a topic if it is not there; done follows when it is, possibly at once.
func (b *Broker) ensureTopic(t mq.TopicConfig, done func(error)) {
	if _, ok := b.meta.topicConfig(t.TopicName); ok {
		done(nil)
		return
	}
	b.makeDefault(t, done)
}

// ensureGroup makes a subscription group and its retry topic if they are not there; done follows when they are. Only the leader can.
func (b *Broker) ensureGroup(name string, done func(error)) {
	retry := mq.RetryTopic(name)
	config, known := b.meta.groupConfig(name)
	if !known {
		if err := b.mayBe(name); err != nil {
			done(err)
			return
		}
		config = mq.DefaultGroup(name)
	}
	rec := record{Kind: "groups", Absent: true}
	if !known {
		rec.Groups = map[string]mq.SubscriptionGroupConfig{name: config}
	}
	if _, ok := b.meta.topicConfig(retry); !ok && config.RetryQueueNums > 0 && !mq.IsSystemGroup(name) {
		rec.Topics = map[string]mq.TopicConfig{retry: mq.NewTopicConfig(retry, config.RetryQueueNums, mq.PermRead|mq.PermWrite)}
	}
	if known && rec.Topics == nil {
		done(nil)
		return
	}
	b.submitTopics(rec, done)
}

// mayBe tells why a group is not there and is not made for clients that name it: errNoGroup with the reason; nil if it is there, or may be made.
func (b *Broker) mayBe(name string) error {
	if _, known := b.meta.groupConfig(name); known {
		return nil
	}
	if !b.conf().AutoCreateGroup {
		return fmt.Errorf("%w: subscription group [%s] does not exist", errNoGroup, name)
	}
	if err := mq.CheckGroup(name); err != nil {
		return fmt.Errorf("%w: %w", errNoGroup, err)
	}
	if _, n := b.meta.counts(); n >= groupsMax {
		return fmt.Errorf("%w: there are %d groups, and no more are made for clients that name them", errNoGroup, n)
	}
	return nil
}

// createTopic serves UPDATE_AND_CREATE_TOPIC.
func (b *Broker) createTopic(r *request) {
	f := r.fields()
	t := mq.NewTopicConfig(f.Str("topic"), 0, f.Int32("perm"))
	t.ReadQueueNums, t.WriteQueueNums = f.Int32("readQueueNums"), f.Int32("writeQueueNums")
	t.TopicFilterType = f.StrOr("topicFilterType", mq.FilterSingleTag)
	t.TopicSysFlag = f.Int32Or("topicSysFlag", 0)
	t.Order = f.BoolOr("order", false)
	attributes := f.StrOr("attributes", "")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if err := b.setTopic(&t, attributes); err != nil {
		r.refuse(codeOf(err), "%v", err)
		return
	}
	b.makeTopics([]mq.TopicConfig{t}, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		r.ok()
	})
}

// queuesMax bounds the queues of a topic.
const queuesMax = 65536

// setTopic checks a topic that a client makes or changes, and carries over what the change does not name.
func (b *Broker) setTopic(t *mq.TopicConfig, attributes string) error {
	if err := mq.CheckTopic(t.TopicName); err != nil {
		return err
	}
	if b.isSystemTopic(t.TopicName) {
		return fmt.Errorf("the topic[%s] is conflict with system topic", t.TopicName)
	}
	if t.ReadQueueNums < 0 || t.WriteQueueNums < 0 || t.ReadQueueNums > queuesMax || t.WriteQueueNums > queuesMax {
		return fmt.Errorf("the topic[%s] has %d queues to read and %d to write: 0 to %d", t.TopicName, t.ReadQueueNums, t.WriteQueueNums, queuesMax)
	}
	if t.Perm&^(mq.PermRead|mq.PermWrite|mq.PermInherit|8) != 0 {
		return fmt.Errorf("the topic[%s] has perm %d", t.TopicName, t.Perm)
	}
	old, there := b.meta.topicConfig(t.TopicName)
	t.Attributes = maps.Clone(old.Attributes)
	if t.Attributes == nil {
		t.Attributes = map[string]string{}
	}
	return b.setAttributes(t, attributes, !there)
}

// topicAttributes are those that a topic may have, and their values; nil: any number. Those in fixed are given to a new topic alone (TopicAttributes in the Java original).
var (
	topicAttributes = map[string][]string{
		"queue.type":     {"BatchCQ", "SimpleCQ"},
		"cleanup.policy": {"DELETE", "COMPACTION"},
		attrMessageType:  {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", messageTypeMixed},
		"reserve.time":   nil,
	}
	fixedAttributes = []string{"queue.type", "cleanup.policy"}
)

const (
	attrMessageType  = "message.type"
	messageTypeMixed = "MIXED"
)

// errAttribute is what the original has no code of its own for.
var errAttribute = errors.New("wrong attribute")

// codeOf gives the code of a refusal of setTopic.
func codeOf(err error) int32 {
	if errors.Is(err, errAttribute) {
		return mq.SystemError
	}
	return mq.InvalidParameter
}

// setAttributes changes the attributes of a topic as +name=value and -name say, joined by commas; made: the topic is new.
func (b *Broker) setAttributes(t *mq.TopicConfig, changes string, made bool) error {
	for part := range strings.SplitSeq(changes, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "" {
			continue
		}
		sign, name := name[0], name[1:]
		values, known := topicAttributes[name]
		old, there := t.Attributes[name]
		switch {
		case sign != '+' && sign != '-' || sign == '+' && value == "":
			return fmt.Errorf("attribute %q is neither +name=value nor -name", part)
		case sign == '+' && there && old == value: // as where a whole configuration is sent
		case sign == '+' && name == attrMessageType && value == messageTypeMixed && !b.conf().MixedTypes:
			return errors.New("MIXED message type is not supported")
		case !known:
			return fmt.Errorf("%w: unsupported key: %.80q", errAttribute, name)
		case !made && slices.Contains(fixedAttributes, name):
			return fmt.Errorf("%w: attempt to update an unchangeable attribute. key: %s", errAttribute, name)
		case sign == '-' && !there:
			return fmt.Errorf("%w: attempt to delete a nonexistent key: %s", errAttribute, name)
		case sign == '-':
			delete(t.Attributes, name)
		case values != nil && !slices.Contains(values, value):
			return fmt.Errorf("%w: value is not in set: %v", errAttribute, values)
		case values == nil && !isWhole(value):
			return fmt.Errorf("%w: %.40q is no number", errAttribute, value)
		default:
			t.Attributes[name] = value
		}
	}
	return nil
}

func isWhole(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n >= -1
}
