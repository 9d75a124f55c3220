package broker

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// json asks for a body that must come, and reads it.
func (cl *client) json(id string, code int32, ext map[string]string, body []byte, v any) {
	cl.c.T.Helper()
	f := cl.must(id, code, ext, body)
	if err := mq.Unmarshal(f.Body, v); err != nil {
		cl.c.T.Fatalf("request %d: %v in %s", code, err, f.Body)
	}
}

// refused makes a request that must be answered with a code and a remark that names the reason.
func (cl *client) refused(id string, code int32, ext map[string]string, body []byte, want int32, remark string) {
	cl.c.T.Helper()
	f := cl.call(id, code, ext, body)
	if f.Code != want || !strings.Contains(f.Remark, remark) {
		cl.c.T.Errorf("request %d %v: code %d %q, want %d with %q", code, ext, f.Code, f.Remark, want, remark)
	}
}

// consumer is a client that answers what brokers ask of it.
func (c *cluster) consumer(ip string, answer func(f *remoting.Frame) (remoting.Answer, []byte)) *client {
	cl := &client{c: c}
	cl.r = remoting.NewClient(remoting.ClientConfig{Version: 409, IdleMax: -1,
		Dial: func(_ context.Context, address string) (net.Conn, error) { return c.net.dial(ip+":50000", address) },
		Handler: remoting.HandlerFunc(func(conn *remoting.Conn, f *remoting.Frame) {
			cl.mu.Lock()
			cl.requests = append(cl.requests, *f)
			cl.mu.Unlock()
			if f.IsOneWay() {
				return
			}
			if a, body := answer(f); a.Code >= 0 { // below: silence
				if err := conn.Reply(f.Ref(), a, body); err != nil {
					c.T.Error(err)
				}
			}
		})})
	c.clients = append(c.clients, cl.r)
	return cl
}

// beat sends a heartbeat of a consumer of topic t.
func (cl *client) beat(broker, client, group string, topics ...string) {
	cl.c.T.Helper()
	h := mq.Heartbeat{ClientID: client, Consumers: []mq.ConsumerData{{GroupName: group, ConsumeType: mq.ConsumePush, MessageModel: mq.Clustering, ConsumeFromWhere: mq.FromLastOffset}},
		Producers: []mq.ProducerData{{GroupName: "p"}}}
	for _, topic := range topics {
		h.Consumers[0].Subscriptions = append(h.Consumers[0].Subscriptions, mq.SubscriptionData{Topic: topic, SubString: "*", SubVersion: 1, ExpressionType: mq.ExprTag})
	}
	cl.must(broker, mq.CodeHeartbeat, nil, mq.Marshal(h))
}

// dispatched waits until a replica has so many messages in a queue.
func (c *cluster) dispatched(id, topic string, queue int32, n int64) {
	c.T.Helper()
	c.Wait(fmt.Sprintf("%d messages on %s", n, id), func() bool { return c.brokers[id].store.MaxOffset(topic, queue) == n })
}

func queue(topic string, id int32) mq.MessageQueue {
	return mq.MessageQueue{BrokerName: "a", Topic: topic, QueueID: id}
}

// Every replica is asked: what only the leader knows is passed on to it.
func TestTopicsAreAdministered(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n, other := c.leader(), c.follower()
		p := c.client("10.1.0.1")
		list := mq.TopicConfigList{Topics: []mq.TopicConfig{mq.NewTopicConfig("t", 2, 6), mq.NewTopicConfig("u", 3, 6)}}
		list.Topics[1].Attributes = map[string]string{"message.type": "FIFO"}
		p.must(other, mq.CodeCreateTopics, nil, mq.Marshal(list))
		if route, ok := p.route("u"); !ok || route.QueueDatas[0].ReadQueueNums != 3 {
			t.Errorf("the route of a topic from a list: %+v", route)
		}
		for _, id := range c.IDs() {
			var one mq.TopicConfig
			p.json(id, mq.CodeTopicConfig, ext("topic", "u"), nil, &one)
			if one.WriteQueueNums != 3 || one.Attributes["message.type"] != "FIFO" {
				t.Errorf("%s: %+v", id, one)
			}
			var all mq.TopicConfigTable
			c.Wait("all topics", func() bool {
				p.json(id, mq.CodeAllTopicConfig, nil, nil, &all)
				return all.Topics["t"].ReadQueueNums == 2
			})
			if all.DataVersion.StateVersion == 0 || all.Topics[mq.TopicDefault].Perm != 7 {
				t.Errorf("%s: %+v", id, all.DataVersion)
			}
			var system mq.TopicList
			p.json(id, mq.CodeBrokerSystemTopics, nil, nil, &system)
			if !slices.Contains(system.Topics, mq.TopicSchedule) || !slices.Contains(system.Topics, "a") || slices.Contains(system.Topics, "t") {
				t.Errorf("%s: system topics %v", id, system.Topics)
			}
		}

		before := time.Now().UnixMilli()
		for i := range 5 {
			p.must(n, mq.CodeSend, sendExt("t", 1, "properties", "TAGS\x01x\x02"), fmt.Append(nil, i))
		}
		c.dispatched(n, "t", 1, 5)
		var stats mq.TopicStats
		p.json(other, mq.CodeTopicStats, ext("topic", "t"), nil, &stats)
		if q := stats.Offsets[queue("t", 1)]; len(stats.Offsets) != 2 || q.MaxOffset != 5 || q.MinOffset != 0 || q.LastUpdateTimestamp < before || stats.TopicPutTPS <= 0 {
			t.Errorf("stats of the topic: %+v", stats)
		}
		var page mq.ConsumeQueuePage
		p.json(n, mq.CodeQueryConsumeQueue, ext("topic", "t", "queueId", 1, "index", 1, "count", 3), nil, &page)
		if len(page.Queue) != 3 || page.MaxQueueIndex != 5 || page.Queue[0].TagsCode != mq.TagsCode("x") || page.Queue[1].PhysicOffset <= page.Queue[0].PhysicOffset || page.Queue[0].Eval {
			t.Errorf("entries of the queue: %+v", page)
		}
		p.refused(n, mq.CodeQueryConsumeQueue, ext("topic", "t", "queueId", 0, "index", 0, "count", 3), nil, mq.SystemError, "0@t is not exist")

		p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil)
		p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1, "commitOffset", 2), nil)
		var groups mq.GroupList
		p.json(other, mq.CodeTopicConsumedBy, ext("topic", "t"), nil, &groups)
		equal(t, "groups of the topic", groups.Groups, []string{"g"})
		var span mq.ConsumeTimeSpan
		time.Sleep(time.Second)
		p.json(other, mq.CodeConsumeTimeSpan, ext("topic", "t", "group", "g"), nil, &span)
		if s := span.Spans[1]; len(span.Spans) != 2 || s.Queue != queue("t", 1) || s.ConsumeTimestamp < before || s.MinTimestamp < before || s.MaxTimestamp < s.MinTimestamp || s.DelayTime < 1000 {
			t.Errorf("time span: %+v", span)
		}

		p.must(other, mq.CodeDeleteTopic, ext("topic", "t"), nil)
		for _, id := range c.IDs() {
			c.Wait("the topic to be gone on "+id, func() bool {
				_, there := c.brokers[id].meta.topicConfig("t")
				return !there && len(c.brokers[id].store.Queues("t")) == 0 && c.brokers[id].meta.allOffsets()["t@g"] == nil
			})
		}
		p.refused(other, mq.CodeTopicStats, ext("topic", "t"), nil, mq.TopicNotExist, "t")
		p.refused(other, mq.CodeTopicConfig, ext("topic", "t"), nil, mq.TopicNotExist, "t")
		p.must(n, mq.CodeSend, sendExt("t", 1), []byte("again")) // made anew, and consumed from where it now begins
		c.Wait("the message in the new topic", func() bool { return c.brokers[n].store.MaxOffset("t", 1) > 0 })
		f := p.call(n, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil)
		if f.Code == mq.PullOffsetMoved {
			f = p.must(n, mq.CodePull, pullExt("g", "t", 1, 5, 0), nil)
		}
		if got, _ := bodies(t, f.Body); !slices.Equal(got, []string{"again"}) {
			t.Errorf("in the topic made anew: %q, code %d", got, f.Code)
		}

		for _, bad := range []struct {
			code   int32
			ext    map[string]string
			body   string
			want   int32
			remark string
		}{
			{mq.CodeDeleteTopic, ext("topic", mq.TopicSchedule), "", mq.InvalidParameter, "system topic"},
			{mq.CodeDeleteTopic, ext("topic", " "), "", mq.InvalidParameter, "blank"},
			{mq.CodeDeleteTopic, nil, "", mq.SystemError, "topic: missing"},
			{mq.CodeCreateTopics, nil, `{"topicConfigList":[]}`, mq.InvalidParameter, "no topic"},
			{mq.CodeCreateTopics, nil, `{"topicConfigList":[{"topicName":"v","perm":6,"readQueueNums":1,"writeQueueNums":1},{"topicName":"a b"}]}`, mq.InvalidParameter, "illegal characters"},
			{mq.CodeCreateTopics, nil, `{`, mq.SystemError, "malformed"},
			{mq.CodeTopicConsumedBy, ext("topic", "none"), "", mq.TopicNotExist, "none"},
			{mq.CodeConsumeTimeSpan, ext("topic", "u"), "", mq.SystemError, "group: missing"},
			{mq.CodeQueryConsumeQueue, ext("topic", "u", "queueId", "x", "index", 0, "count", 1), "", mq.SystemError, "queueId"},
		} {
			p.refused(n, bad.code, bad.ext, []byte(bad.body), bad.want, bad.remark)
		}
		p.refused(n, mq.CodeTopicConfig, ext("topic", "v"), nil, mq.TopicNotExist, "v") // all of a list, or none
	})
}

func TestGroupsAreAdministered(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n, other := c.leader(), c.follower()
		p := c.client("10.1.0.1")
		p.must(other, mq.CodeCreateGroup, nil, []byte(`{"groupName":"g","retryMaxTimes":3}`))
		p.must(other, mq.CodeCreateGroups, nil, []byte(`{"groupConfigList":[{"groupName":"h","consumeEnable":false},{"groupName":"i"}]}`))
		for _, id := range c.IDs() {
			var g mq.SubscriptionGroupConfig
			p.json(id, mq.CodeGroupConfig, ext("group", "g"), nil, &g)
			if g.RetryMaxTimes != 3 || !g.ConsumeEnable || g.RetryQueueNums != 1 {
				t.Errorf("%s: %+v", id, g)
			}
			var all mq.SubscriptionGroupTable
			c.Wait("all groups", func() bool {
				p.json(id, mq.CodeAllGroupConfig, nil, nil, &all)
				return all.Groups["i"].GroupName == "i"
			})
			if all.Groups["h"].ConsumeEnable || !all.Groups["i"].ConsumeEnable || all.Groups["g"].RetryMaxTimes != 3 {
				t.Errorf("%s: %+v", id, all)
			}
		}
		if _, ok := p.route(mq.RetryTopic("g")); ok {
			t.Error("a group that nobody consumes for has a retry topic: tools list it as one that is offline")
		}

		for i := range 7 {
			p.must(n, mq.CodeSend, sendExt("t", 1), fmt.Append(nil, i))
		}
		c.dispatched(n, "t", 1, 7)
		p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil)
		p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1, "commitOffset", 4), nil)
		var stats mq.ConsumeStats
		p.json(other, mq.CodeConsumeStats, ext("consumerGroup", "g"), nil, &stats) // at once: the leader has it
		if q := stats.Offsets[queue("t", 1)]; len(stats.Offsets) != 4 || q.BrokerOffset != 7 || q.ConsumerOffset != 4 || q.LastTimestamp == 0 || stats.ConsumeTPS <= 0 {
			t.Errorf("progress: %+v", stats)
		}
		var all mq.ConsumeStatsList
		p.json(other, mq.CodeBrokerConsumeStats, ext("isOrder", "false"), nil, &all)
		if all.TotalDiff != 3 || len(all.Stats) != 1 || len(all.Stats[0]["g"]) != 1 {
			t.Errorf("progress of all: %+v", all)
		}
		var topics mq.TopicList
		p.json(other, mq.CodeTopicsByConsumer, ext("group", "g"), nil, &topics)
		equal(t, "topics of the group", topics.Topics, []string{"t"})
		p.json(other, mq.CodeTopicsByConsumer, ext("group", "nobody"), nil, &topics)
		equal(t, "topics of a group that has none", topics.Topics, []string{})

		// A topic that members no longer subscribe to does not count.
		consumer := c.client("10.1.0.2")
		consumer.beat(n, "c1", "g", "other")
		p.json(n, mq.CodeConsumeStats, ext("consumerGroup", "g"), nil, &stats)
		if len(stats.Offsets) != 0 {
			t.Errorf("progress in a topic that is not subscribed to: %+v", stats)
		}
		consumer.must(n, mq.CodeUnregisterClient, ext("clientID", "c1", "consumerGroup", "g"), nil)

		p.must(other, mq.CodeCloneGroupOffset, ext("srcGroup", "g", "destGroup", "i", "topic", "t", "offline", "true"), nil)
		if f := p.must(n, mq.CodeQueryConsumerOffset, ext("consumerGroup", "i", "topic", "t", "queueId", 1), nil); f.Ext["offset"] != "4" {
			t.Errorf("cloned offset: %v", f.Ext)
		}
		var offsets mq.ConsumerOffsetTable
		p.json(other, mq.CodeAllConsumerOffset, nil, nil, &offsets)
		if offsets.Offsets["t@g"][1] != 4 || offsets.Offsets["t@i"][1] != 4 {
			t.Errorf("all offsets: %+v", offsets)
		}

		p.must(other, mq.CodeDeleteGroup, ext("groupName", "g", "cleanOffset", "true"), nil)
		p.must(other, mq.CodeDeleteGroup, ext("groupName", "i"), nil)
		c.Wait("the groups to be gone", func() bool {
			_, g := c.brokers[other].meta.groupConfig("g")
			_, i := c.brokers[other].meta.groupConfig("i")
			return !g && !i
		})
		p.json(n, mq.CodeAllConsumerOffset, nil, nil, &offsets)
		if offsets.Offsets["t@g"] != nil || offsets.Offsets["t@i"] == nil {
			t.Errorf("offsets of deleted groups: %+v", offsets)
		}
		p.refused(other, mq.CodeGroupConfig, ext("group", "g"), nil, mq.GroupNotExist, "g")
		for _, bad := range []struct {
			code   int32
			ext    map[string]string
			body   string
			want   int32
			remark string
		}{
			{mq.CodeCreateGroup, nil, `{"groupName":"a b"}`, mq.InvalidParameter, "illegal characters"},
			{mq.CodeCreateGroup, nil, `{}`, mq.InvalidParameter, "blank"},
			{mq.CodeCreateGroup, nil, `{"groupName":"x","retryQueueNums":-1}`, mq.InvalidParameter, "retryQueueNums"},
			{mq.CodeCreateGroup, nil, `nonsense`, mq.SystemError, "malformed"},
			{mq.CodeCreateGroups, nil, `{}`, mq.InvalidParameter, "no group"},
			{mq.CodeDeleteGroup, nil, "", mq.SystemError, "groupName: missing"},
			{mq.CodeConsumeStats, nil, "", mq.SystemError, "consumerGroup: missing"},
			{mq.CodeCloneGroupOffset, ext("srcGroup", "g"), "", mq.SystemError, "destGroup: missing"},
			{mq.CodeCloneGroupOffset, ext("srcGroup", "g", "destGroup", "a b"), "", mq.InvalidParameter, "illegal characters"},
		} {
			p.refused(n, bad.code, bad.ext, []byte(bad.body), bad.want, bad.remark)
		}
	})
}

// A reset holds although the consumer goes on committing what it had, and although leadership moves in between.
// TestWhatOperatorsMakeIsNotOverwritten by the default of a client that names it at the same time, for a topic and for a group, whichever comes first.
func TestWhatOperatorsMakeIsNotOverwritten(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		n := c.leader()
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(20 * time.Millisecond)
		}
		for _, cl := range []*client{p, q} {
			cl.must(n, mq.CodeSend, sendExt("warm", 0), []byte("x")) // connects
		}
		both := func(first, second func()) {
			var wg sync.WaitGroup
			wg.Go(first)
			time.Sleep(5 * time.Millisecond) // it is on its way
			wg.Go(second)
			wg.Wait()
		}
		for i, order := range []func(operator, client func()){both, func(operator, client func()) { both(client, operator) }} {
			name := fmt.Sprint(i)
			order(func() {
				p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"g`+name+`","retryMaxTimes":3,"consumeEnable":false}`))
			}, func() {
				q.must(n, mq.CodeHeartbeat, nil, heart("a", "g"+name, "t"+name))
			})
			if g, ok := c.brokers[n].meta.groupConfig("g" + name); !ok || g.RetryMaxTimes != 3 || g.ConsumeEnable {
				t.Errorf("order %d: the group is %+v", i, g)
			}
			if _, ok := c.brokers[n].meta.topicConfig(mq.RetryTopic("g" + name)); !ok {
				t.Errorf("order %d: the group has no retry topic", i)
			}
			order(func() {
				p.must(n, mq.CodeCreateTopic, ext("topic", "t"+name, "defaultTopic", mq.TopicDefault, "readQueueNums", 16, "writeQueueNums", 16, "perm", 6,
					"topicFilterType", mq.FilterSingleTag, "topicSysFlag", 0, "order", false), nil)
			}, func() {
				q.must(n, mq.CodeSend, sendExt("t"+name, 0), []byte("x"))
			})
			if made, ok := c.brokers[n].meta.topicConfig("t" + name); !ok || made.WriteQueueNums != 16 {
				t.Errorf("order %d: the topic is %+v", i, made)
			}
			if route, _ := p.route("t" + name); len(route.QueueDatas) != 1 || route.QueueDatas[0].WriteQueueNums != 16 {
				t.Errorf("order %d: the route is %+v", i, route.QueueDatas)
			}
		}
	})
}

func TestOffsetsAreReset(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n, other := c.leader(), c.follower()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"g"}`))
		var middle int64
		for i := range 10 {
			if i == 5 {
				time.Sleep(time.Second)
				middle = time.Now().UnixMilli()
				time.Sleep(time.Second)
			}
			p.must(n, mq.CodeSend, sendExt("t", 1), fmt.Append(nil, i))
		}
		c.dispatched(n, "t", 1, 10)
		commit := func(offset int) {
			p.must(c.leader(), mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1, "commitOffset", offset), nil)
		}
		commit(9)
		var to mq.QueueOffsets
		p.json(other, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", middle, "isForce", "true"), nil, &to)
		if len(to.Offsets) != 4 || to.Offsets[queue("t", 1)] != 5 || to.Offsets[queue("t", 0)] != 0 {
			t.Errorf("targets: %+v", to)
		}
		commit(10)
		c.kill(n)
		n = c.leader()
		query := func() string {
			return p.must(n, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1), nil).Ext["offset"]
		}
		if got := query(); got != "5" {
			t.Errorf("after the reset: offset %s, want 5", got)
		}
		if f := p.call(n, mq.CodePull, pullExt("g", "t", 1, 10, 0), nil); f.Code != mq.PullOffsetMoved || f.Ext["nextBeginOffset"] != "5" {
			t.Errorf("the consumer is told: code %d %v", f.Code, f.Ext)
		}
		commit(6) // from there on
		if got := query(); got != "6" {
			t.Errorf("after the consumer has gone on: offset %s, want 6", got)
		}

		p.json(n, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", -1, "isForce", "true", "queueId", 1), nil, &to)
		if len(to.Offsets) != 1 || to.Offsets[queue("t", 1)] != 10 {
			t.Errorf("to the end: %+v", to)
		}
		p.json(n, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", "true", "queueId", 1, "offset", 3), nil, &to)
		if to.Offsets[queue("t", 1)] != 3 || query() != "3" {
			t.Errorf("to an offset: %+v", to)
		}
		p.refused(n, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", "true", "queueId", 1, "offset", 12), nil, mq.SystemError, "[0-10]")
		p.refused(n, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", "true", "queueId", 99), nil, mq.SystemError, "no queues")
		p.refused(n, mq.CodeResetOffset, ext("topic", "t", "group", "none", "timestamp", 0, "isForce", "true"), nil, mq.GroupNotExist, "none")
		p.refused(n, mq.CodeResetOffset, ext("topic", "none", "group", "g", "timestamp", 0, "isForce", "true"), nil, mq.TopicNotExist, "none")
		p.refused(n, mq.CodeResetOffset, ext("topic", "t", "group", "g"), nil, mq.SystemError, "timestamp: missing")
	})
}

func TestOffsetsAreResetAtClientsWhenConfigured(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.ServerReset = false }, func(c *cluster) {
		t := c.T
		n := c.leader()
		p, consumer := c.client("10.1.0.1"), c.client("10.1.0.2")
		for range 3 {
			p.must(n, mq.CodeSend, sendExt("t", 1), []byte("x"))
		}
		c.dispatched(n, "t", 1, 3)
		reset := ext("topic", "t", "group", "g", "timestamp", -1, "isForce", "false")
		p.refused(n, mq.CodeResetOffset, reset, nil, mq.ConsumerNotOnline, "not online")
		consumer.beat(n, "c1", "g", "t")
		p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1, "commitOffset", 1), nil)
		var to mq.QueueOffsets
		p.json(n, mq.CodeResetOffset, reset, nil, &to)
		if to.Offsets[queue("t", 1)] != 1 {
			t.Errorf("without force nothing moves forward: %+v", to)
		}
		reset["isForce"] = "true"
		p.json(n, mq.CodeResetOffset, reset, nil, &to)
		if to.Offsets[queue("t", 1)] != 3 {
			t.Errorf("with force: %+v", to)
		}
		c.Wait("the consumer to be told", func() bool { return consumer.got(mq.CodeResetConsumerOffset) == 2 })
		var told mq.QueueOffsets
		consumer.mu.Lock()
		last := consumer.requests[len(consumer.requests)-1]
		consumer.mu.Unlock()
		if err := mq.Unmarshal(last.Body, &told); err != nil || !maps.Equal(told.Offsets, to.Offsets) || last.Ext["group"] != "g" {
			t.Errorf("the consumer was told %v %v, %v", last.Ext, told, err)
		}
	})
}

func TestClientsAreListedAndAsked(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n, other := c.leader(), c.follower()
		p := c.client("10.1.0.1")
		id := p.must(n, mq.CodeSend, sendExt("t", 1), []byte("consume me")).Ext["msgId"]
		consumer := c.consumer("10.1.0.2", func(f *remoting.Frame) (remoting.Answer, []byte) {
			switch f.Code {
			case mq.CodeConsumerRunningInfo:
				return remoting.Answer{}, []byte(`{"properties":{}}`)
			case mq.CodeConsumeDirectly:
				m, _, err := mq.ParseStored(f.Body)
				if err != nil {
					return remoting.Answer{Code: mq.SystemError, Remark: err.Error()}, nil
				}
				return remoting.Answer{}, fmt.Appendf(nil, `{"consumeResult":"CR_SUCCESS","remark":"%s on %s"}`, m.Body, f.Ext["brokerName"])
			case mq.CodeConsumerStatus:
				return remoting.Answer{}, mq.Marshal(mq.ConsumerStatus{MessageQueues: map[mq.MessageQueue]int64{queue("t", 1): 17}})
			}
			return remoting.Answer{Code: mq.NotSupported}, nil
		})
		silent := c.consumer("10.1.0.3", func(*remoting.Frame) (remoting.Answer, []byte) { return remoting.Answer{Code: -1}, nil })
		for _, cl := range []struct {
			cl *client
			id string
		}{{consumer, "c1"}, {silent, "c2"}} {
			cl.cl.beat(n, cl.id, "g", "t")
		}
		for _, id := range []string{n, other} { // the follower has not heard of them
			var conns mq.ConsumerConnection
			p.json(id, mq.CodeConsumerConnections, ext("consumerGroup", "g"), nil, &conns)
			if len(conns.Connections) != 2 || conns.Connections[0].ClientID != "c1" || conns.Connections[0].Version != 409 || conns.Connections[0].ClientAddr != "10.1.0.2:50000" ||
				conns.ConsumeType != mq.ConsumePush || conns.Subscriptions["t"].SubString != "*" {
				t.Errorf("%s: consumers %+v", id, conns)
			}
			var producers mq.ProducerConnection
			p.json(id, mq.CodeProducerConnections, ext("producerGroup", "p"), nil, &producers)
			if len(producers.Connections) != 2 || producers.Connections[1].ClientID != "c2" {
				t.Errorf("%s: producers %+v", id, producers)
			}
			var sub struct {
				Data mq.SubscriptionData `json:"subscriptionData"`
			}
			p.json(id, mq.CodeSubscriptionByConsumer, ext("group", "g", "topic", "t"), nil, &sub)
			if sub.Data.Topic != "t" {
				t.Errorf("%s: subscription %+v", id, sub)
			}
			f := p.must(id, mq.CodeConsumerRunningInfo, ext("consumerGroup", "g", "clientId", "c1", "jstackEnable", "false"), nil)
			if string(f.Body) != `{"properties":{}}` {
				t.Errorf("%s: running info %s", id, f.Body)
			}
			p.refused(id, mq.CodeConsumerRunningInfo, ext("consumerGroup", "g", "clientId", "c9"), nil, mq.SystemError, "not online")
			p.refused(id, mq.CodeConsumerConnections, ext("consumerGroup", "none"), nil, mq.ConsumerNotOnline, "none")
			p.refused(id, mq.CodeProducerConnections, ext("producerGroup", "none"), nil, mq.SystemError, "none")
			p.refused(id, mq.CodeGetConsumerStatus, ext("topic", "t", "group", "none"), nil, mq.SystemError, "none")
		}
		var table mq.ProducerTable
		p.json(n, mq.CodeAllProducers, nil, nil, &table)
		if len(table.Data["p"]) != 2 || table.Data["p"][0].RemoteIP == "" {
			t.Errorf("all producers: %+v", table)
		}
		f := p.must(n, mq.CodeConsumeDirectly, ext("consumerGroup", "g", "clientId", "c1", "msgId", id, "brokerName", "x"), nil)
		if !strings.Contains(string(f.Body), "consume me on a") {
			t.Errorf("consumed directly: %s", f.Body)
		}
		p.refused(n, mq.CodeConsumerRunningInfo, ext("consumerGroup", "g", "clientId", "c2"), nil, mq.ConsumeTimeout, "c2")
		p.refused(n, mq.CodeConsumeDirectly, ext("consumerGroup", "g", "clientId", "c1", "msgId", "x"), nil, mq.SystemError, "x")
		var status mq.ConsumerStatus
		p.json(n, mq.CodeGetConsumerStatus, ext("topic", "t", "group", "g"), nil, &status) // without the one that is silent
		if len(status.Consumers) != 1 || status.Consumers["c1"][queue("t", 1)] != 17 {
			t.Errorf("status: %+v", status)
		}
	})
}

// TestProgressOfTopicsInAListIsGivenWithoutSubscriptions, which count where one topic is named, or none.
func TestProgressOfTopicsInAListIsGivenWithoutSubscriptions(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		for _, topic := range []string{"t", "old"} {
			p.must(n, mq.CodeSend, sendExt(topic, 0), []byte("x"))
		}
		p.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		for _, topic := range []string{"t", "old"} {
			p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", topic, "queueId", 0, "commitOffset", 1), nil)
		}
		for _, k := range []struct {
			fields map[string]string
			want   []string
		}{
			{ext("consumerGroup", "g"), []string{"t"}},
			{ext("consumerGroup", "g", "topic", "old"), nil},
			{ext("consumerGroup", "g", "topic", "t"), []string{"t"}},
			{ext("consumerGroup", "g", "topicList", "old"), []string{"old"}},
			{ext("consumerGroup", "g", "topicList", "old;t"), []string{"old", "t"}},
			{ext("consumerGroup", "g", "topicList", "old", "topic", "t"), []string{"old"}},
		} {
			var stats mq.ConsumeStats
			p.json(n, mq.CodeConsumeStats, k.fields, nil, &stats)
			got := map[string]bool{}
			for q := range stats.Offsets {
				got[q.Topic] = true
			}
			equal(c.T, fmt.Sprint(k.fields), slices.Sorted(maps.Keys(got)), k.want)
		}
	})
}

// TestRuntimeInfoTellsOfTimers: how many wait, and how far their delivery is behind.
func TestRuntimeInfoTellsOfTimers(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		for i := range 3 {
			p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELAY_SEC\x0130\x02UNIQ_KEY\x01"+fmt.Sprint("U", i)+"\x02"), []byte("x"))
		}
		tells := func(what, waiting, behind, unread string) {
			c.Wait(what, func() bool {
				var info mq.KVTable
				p.json(n, mq.CodeRuntimeInfo, nil, nil, &info)
				return info.Table["timerCongestNum"] == waiting && info.Table["timerReadBehind"] == behind && info.Table["timerOffsetBehind"] == unread
			})
		}
		tells("that three wait", "3", "0", "0")
		b := c.brokers[n]
		b.timerInfo.at(1, milliseconds(time.Now())-8500, milliseconds(time.Now())-7500) // as if the service was behind
		tells("that it is behind", "3", "7", "2")
		time.Sleep(40 * time.Second)
		tells("that none waits", "0", "0", "0")
		for range 20 {
			time.Sleep(700 * time.Millisecond)
			tells("that none is late", "0", "0", "0")
		}
	})
}

func TestBrokerTellsOfItself(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n, other := c.leader(), c.follower()
		p := c.client("10.1.0.1")
		for range 20 {
			p.must(n, mq.CodeSend, sendExt("t", 1), []byte("x"))
		}
		c.dispatched(n, "t", 1, 20)
		p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil)
		p.call(n, mq.CodePull, pullExt("g", "t", 1, 20, 0), nil)
		time.Sleep(5 * time.Second)
		var info mq.KVTable
		p.json(n, mq.CodeRuntimeInfo, nil, nil, &info)
		for _, key := range strings.Fields(`brokerVersionDesc brokerActive putTps getTransferredTps sendThreadPoolQueueSize pullThreadPoolQueueSize ackThreadPoolQueueSize
			sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp
			commitLogDiskRatio timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps msgPutTotalYesterdayMorning msgPutTotalTodayMorning
			msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow runtime commitLogMinOffset commitLogMaxOffset scheduleMessageOffset_1
			scheduleMessageOffset_18 dispatchBehindBytes putMessageDistributeTime bootTimestamp litePullThreadPoolQueueSize queryThreadPoolQueueCapacity`) {
			if info.Table[key] == "" {
				t.Errorf("%s is missing", key)
			}
		}
		put := strings.Fields(info.Table["putTps"])
		if len(put) != 3 {
			t.Fatalf("putTps: %q", info.Table["putTps"])
		}
		if rate, err := strconv.ParseFloat(put[0], 64); err != nil || rate < 1 || rate > 20 {
			t.Errorf("putTps: %q, %v", put, err)
		}
		for key, want := range map[string]string{"brokerActive": "true", "msgPutTotalTodayNow": "20", "msgGetTotalTodayNow": "20", "brokerVersionDesc": "V5_3_3", "putMessageTimesTotal": "20"} {
			if got := info.Table[key]; got != want {
				t.Errorf("%s: got %q, want %q", key, got, want)
			}
		}
		p.json(other, mq.CodeRuntimeInfo, nil, nil, &info)
		if info.Table["brokerActive"] != "false" || info.Table["msgPutTotalTodayNow"] != "0" {
			t.Errorf("a follower: %v", info.Table)
		}

		for _, id := range []string{n, other} {
			for key, want := range map[string]int64{"TOPIC_PUT_NUMS t": 20, "GROUP_GET_NUMS t@g": 20, "BROKER_PUT_NUMS DefaultCluster": 20} {
				name, key, _ := strings.Cut(key, " ")
				var s mq.BrokerStats
				p.json(id, mq.CodeViewStats, ext("statsName", name, "statsKey", key), nil, &s)
				if s.Day.Sum != want || s.Minute.Sum != want || s.Minute.TPS <= 0 || s.Minute.AvgPT <= 0 {
					t.Errorf("%s: %s %s: %+v, want a sum of %d", id, name, key, s, want)
				}
			}
			p.refused(id, mq.CodeViewStats, ext("statsName", "TOPIC_PUT_NUMS", "statsKey", "none"), nil, mq.SystemError, "not exist")
		}
		time.Sleep(90 * time.Second)
		var s mq.BrokerStats
		p.json(n, mq.CodeViewStats, ext("statsName", "TOPIC_PUT_NUMS", "statsKey", "t"), nil, &s)
		if s.Minute.Sum != 0 || s.Hour.Sum != 20 {
			t.Errorf("a minute and a half later: %+v", s)
		}

		var ha mq.HARuntimeInfo
		p.json(n, mq.CodeHAStatus, nil, nil, &ha)
		if !ha.Master || ha.InSyncSlaveNums != 2 || ha.MaxOffset == 0 {
			t.Errorf("replication: %+v", ha)
		}
		for _, code := range []int32{mq.CodeCleanExpiredQueues, mq.CodeCleanUnusedTopic, mq.CodeDeleteExpiredLog} {
			p.must(n, code, nil, nil)
		}
	})
}

func TestConfigurationIsShownAndChanged(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		lines := func() string {
			f := p.must(n, mq.CodeGetBrokerConfig, nil, nil)
			var v mq.DataVersion
			if err := mq.Unmarshal([]byte(f.Ext["version"]), &v); err != nil {
				t.Errorf("version: %v", err)
			}
			return "\n" + string(f.Body)
		}
		for _, want := range []string{"brokerName=a", "brokerClusterName=DefaultCluster", "listenPort=10911", "brokerIP2=10.0.0.10", "haListenPort=10912", "brokerRole=SYNC_MASTER", "brokerId=0", "autoCreateTopicEnable=true", "maxMessageSize=4194304"} {
			if !strings.Contains(lines(), "\n"+want+"\n") {
				t.Errorf("%s is missing in %s", want, lines())
			}
		}
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=false\nmaxMessageSize = 2048\n"))
		p.refused(n, mq.CodeSend, sendExt("new", 0), []byte("x"), mq.TopicNotExist, "new")
		p.refused(n, mq.CodeSend, sendExt(mq.TopicBenchmark, 0), make([]byte, 3000), mq.MessageIllegal, "2048")
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("brokerPermission=4"))
		p.must(n, mq.CodeCreateTopic, ext("topic", "ordered", "defaultTopic", mq.TopicDefault, "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "topicSysFlag", 0, "order", "true"), nil)
		p.refused(n, mq.CodeSend, sendExt("ordered", 0), []byte("x"), mq.NoPermission, "forbidden")
		for body, want := range map[string]int32{
			"storePathRootDir=/x":                  mq.NoPermission,
			"namesrvAddr=10.9.9.9:9876":            mq.NoPermission,
			"brokerName=b":                         mq.NoPermission,
			"listenPort=1":                         mq.NoPermission,
			"dLegerPeers=n0-x:1":                   mq.NoPermission,
			"brokerPermission=6\nunheardOf=1":      mq.NoPermission,
			"filterServerNums=1":                   mq.NoPermission,
			"brokerPermission=6\nmaxMessageSize=x": mq.InvalidParameter,
			"brokerPermission=16":                  mq.InvalidParameter,
			"nonsense":                             mq.InvalidParameter,
			"":                                     mq.InvalidParameter,
		} {
			p.refused(n, mq.CodeUpdateBrokerConfig, nil, []byte(body), want, "")
		}
		if got := lines(); !strings.Contains(got, "\nbrokerPermission=4\n") {
			t.Errorf("a refused change was made: %s", got)
		}
	})
}

// TestConfigurationThatIsShownIsTheOneThatWasGiven, key by key of those that have an effect; what is told to name servers is the same.
func TestConfigurationThatIsShownIsTheOneThatWasGiven(t *testing.T) {
	text, err := os.ReadFile("testdata/brokerconf.txt")
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, works := strings.Cut(strings.TrimSpace(line), "="); works && line[0] != '#' {
			given[key] = value
		}
	}
	for _, key := range []string{"brokerIP1", "listenPort", "brokerName", "namesrvAddr", "dLegerGroup", "dLegerPeers", "dLegerSelfId", "storePathRootDir"} {
		delete(given, key) // the test's group has its own
	}
	setup := func(cfg *Config) {
		for key, value := range given {
			if err := cfg.Set(key, value); err != nil {
				t.Error(err)
			}
		}
	}
	inCluster(t, 1, setup, func(c *cluster) {
		n := c.leader()
		shown := "\n" + string(c.client("10.1.0.1").must(n, mq.CodeGetBrokerConfig, nil, nil).Body)
		for key, value := range given {
			if !strings.Contains(shown, "\n"+key+"="+value+"\n") {
				c.T.Errorf("%s=%s is missing in %s", key, value, shown)
			}
		}
		if at := c.brokers[n].cfg.haAddress(); at != given["brokerIP2"]+":"+given["haListenPort"] {
			c.T.Errorf("name servers are told %s", at)
		}
	})
}

// TestOffsetsGoWithTheirTopic, also those that are not in the log yet: the next topic of the name would be consumed from there.
func TestOffsetsGoWithTheirTopic(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.OffsetEvery = 10 * time.Second }, func(c *cluster) {
		n := c.leader()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		offset := func() (int32, string) {
			f := p.call(n, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "setZeroIfNotFound", "false"), nil)
			return f.Code, f.Ext["offset"]
		}
		for _, written := range []bool{false, true} {
			p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", 1), nil)
			if written {
				time.Sleep(11 * time.Second)
			}
			late := c.brokers[n].meta
			p.must(n, mq.CodeDeleteTopic, ext("topic", "t"), nil)
			late.submit(record{Kind: "offsets", Offsets: map[string]map[int32]int64{"t@g": {0: 1}}}, func(error) {})
			time.Sleep(11 * time.Second)
			p.must(n, mq.CodeSend, sendExt("t", 1), []byte("x"))
			if code, at := offset(); code != mq.QueryNotFound {
				c.T.Errorf("written %v: code %d, offset %s", written, code, at)
			}
		}
	})
}

// TestResetOfOneQueueLeavesTheOthers, also what was committed for them a moment ago.
func TestResetOfOneQueueLeavesTheOthers(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.OffsetEvery = 10 * time.Second }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		for range 5 {
			p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
			p.must(n, mq.CodeSend, sendExt("t", 1), []byte("x"))
		}
		for q := range 2 {
			p.must(n, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", q, "commitOffset", 4), nil)
		}
		p.must(n, mq.CodeResetOffset, ext("topic", "t", "group", "g", "timestamp", 0, "isForce", "true", "queueId", 0, "offset", 1), nil)
		for range 2 {
			for q, want := range []string{"1", "4"} {
				if f := p.must(n, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", q), nil); f.Ext["offset"] != want {
					c.T.Errorf("queue %d: offset %s, want %s", q, f.Ext["offset"], want)
				}
			}
			if f := p.call(n, mq.CodePull, pullExt("g", "t", 0, 4, 0), nil); f.Code != mq.PullOffsetMoved && f.Code != mq.Success {
				c.T.Errorf("code %d %s", f.Code, f.Remark) // the first one is told, and the reset is over
			}
		}
	})
}
