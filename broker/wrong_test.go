package broker

import (
	"strings"
	"testing"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// The requests that clients and tools of every kind need at a broker (minimal sets of producers, consumers, transactions, mqadmin, dashboards), and what replicas of the
// original ask each other for.
var needed = []int32{
	10, 310, 320, 36, 11, 361, 14, 15, 30, 31, 29, 32, 34, 35, 46, 38, 41, 42, 37, 12, 33, 17, 324, 325,
	18, 21, 351, 215, 25, 26, 28, 200, 201, 207, 352, 225, 202, 203, 204, 328, 208, 317, 222, 223, 300, 343, 345, 303, 305, 307, 309, 314, 315, 321, 323,
	306, 316, 329, 43, 45, 60, 61, 400, 401, 402, 370, 907,
}

// What is left out, see docs/compat.md.
var leftOut = []int32{200050, 200051, 200151, 200053, 200054, 200055, 200052, 200056, 308, 353, 354, 355, 513, 501, 902, 903, 905, 906, 908, 1007, 1008, 2001, 3001, 13, 22, 23, 27, 47, 209, 214, 221, 301, 302, 0, -1, 1 << 30}

// TestEveryRequestIsAnsweredWithoutItsFields: with a reason, and never as unknown; requests that are not served say so. The connection lives on.
func TestEveryRequestIsAnsweredWithoutItsFields(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		served := map[int32]bool{codeTellClients: true, codeRelay: true}
		for _, code := range needed {
			served[code] = true
			for _, body := range []string{"", "{", "[]", "\x00\xff"} {
				f := p.call(n, code, nil, []byte(body))
				if f.Code == mq.NotSupported || f.Code != mq.Success && f.Remark == "" {
					t.Errorf("request %d without fields, body %q: code %d, %q", code, body, f.Code, f.Remark)
				}
			}
		}
		for code := range c.brokers[n].routes {
			if !served[code] {
				t.Errorf("request %d is served, and not in the list of this test", code)
			}
		}
		for _, code := range leftOut {
			if f := p.call(n, code, nil, nil); f.Code != mq.NotSupported || f.Remark == "" {
				t.Errorf("request %d: code %d, %q, want %d", code, f.Code, f.Remark, mq.NotSupported)
			}
		}
		if s := c.brokers[n].server.Stats(); s.Conns != 1 {
			t.Errorf("%d connections, want the one all the time", s.Conns)
		}
	})
}

// Requests that no client should send, or one now and then, are counted as such, and only they: their connections are read from slowly when there are many.
func TestWrongInputIsInVain(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		for _, q := range []struct {
			what string
			code int32
			ext  map[string]string
			body []byte
			want int32
			vain bool
		}{
			{"a send", mq.CodeSend, sendExt("t", 0), []byte("x"), mq.Success, false},
			{"a send to an impossible topic", mq.CodeSend, sendExt("no such topic!", 0), []byte("x"), mq.InvalidParameter, true},
			{"a send without fields", mq.CodeSend, nil, []byte("x"), mq.SystemError, true},
			{"a heartbeat", mq.CodeHeartbeat, nil, heart("a", "g", "t"), mq.Success, true},
			{"a heartbeat that cannot be read", mq.CodeHeartbeat, nil, []byte("{"), mq.SystemError, true},
			{"a pull", mq.CodePull, pullExt("g", "t", 0, 0, 0), nil, mq.Success, false},
			{"a pull at the end", mq.CodePull, pullExt("g", "t", 0, 1, 0), nil, mq.PullNotFound, false},
			{"a pull far beyond it", mq.CodePull, pullExt("g", "t", 0, 999_999, 0), nil, mq.PullOffsetMoved, true},
			{"a pull from a topic that is not", mq.CodePull, pullExt("g", "nowhere", 0, 0, 0), nil, mq.TopicNotExist, true},
			{"an offset", mq.CodeMaxOffset, ext("topic", "t", "queueId", 0), nil, mq.Success, false},
			{"a code of nobody's", 12345, nil, nil, mq.NotSupported, true},
		} {
			stats := func() uint64 { return c.brokers[n].server.Stats().Vain }
			before := stats()
			if f := p.call(n, q.code, q.ext, q.body); f.Code != q.want {
				t.Errorf("%s: code %d, %q, want %d", q.what, f.Code, f.Remark, q.want)
			}
			if got := stats() - before; (got == 1) != q.vain || got > 1 {
				t.Errorf("%s: counts %d times", q.what, got)
			}
		}
	})
}

// Codes are those of the original in the same situation, but where docs/compat.md says otherwise.
func TestWrongInputsGetTheCodesOfTheOriginal(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		topicExt := func(name string, more ...any) map[string]string {
			return ext(append([]any{"topic", name, "defaultTopic", mq.TopicDefault, "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "topicSysFlag", 0, "order", false}, more...)...)
		}
		topic := func(name string, perm int, order string) {
			p.must(n, mq.CodeCreateTopic, ext("topic", name, "defaultTopic", mq.TopicDefault, "readQueueNums", 4, "writeQueueNums", 4, "perm", perm, "topicFilterType", "SINGLE_TAG", "topicSysFlag", 0, "order", order), nil)
		}
		topic("t", 6, "false")
		topic("read", 4, "false")
		topic("write", 2, "false")
		topic("order", 6, "true")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		for _, body := range []string{`{"groupName":"off","consumeEnable":false}`, `{"groupName":"alone","consumeBroadcastEnable":false}`} {
			p.must(n, mq.CodeCreateGroup, nil, []byte(body))
		}
		p.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		alone := mq.Heartbeat{ClientID: "b", Consumers: []mq.ConsumerData{{GroupName: "alone", ConsumeType: mq.ConsumePush, MessageModel: mq.Broadcasting, ConsumeFromWhere: mq.FromLastOffset,
			Subscriptions: []mq.SubscriptionData{{Topic: "t", SubString: "*", SubVersion: 1}}}}}
		p.must(n, mq.CodeHeartbeat, nil, mq.Marshal(alone))
		sql := mq.Heartbeat{ClientID: "c", Consumers: []mq.ConsumerData{{GroupName: "sql", ConsumeType: mq.ConsumePush, MessageModel: mq.Clustering, ConsumeFromWhere: mq.FromLastOffset,
			Subscriptions: []mq.SubscriptionData{{Topic: "t", SubString: "a = 1", ExpressionType: mq.ExprSQL, SubVersion: 1}}}}}
		p.must(n, mq.CodeHeartbeat, nil, mq.Marshal(sql))
		set := func(line string) func() {
			return func() { p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte(line)) }
		}
		registered := []any{"sysFlag", 0, "subscription", ""}
		for _, k := range []struct {
			name      string
			before    func()
			code      int32
			ext       map[string]string
			body      string
			want      int32
			forbidden string
		}{
			{"send to a topic that is read only: routes keep producers away", nil, mq.CodeSend, sendExt("read", 0), "x", mq.Success, ""},
			{"send to any queue", nil, mq.CodeSend, sendExt("t", -1), "x", mq.Success, ""},
			{"send to a queue too far", nil, mq.CodeSend, sendExt("t", 4), "x", mq.InvalidParameter, ""},
			{"a reply to a queue too far", nil, mq.CodeSendReply, sendExt(mq.ReplyTopic("DefaultCluster"), 1, "properties", "REPLY_TO_CLIENT\x01a\x02"), "x", mq.InvalidParameter, ""},
			{"a reply to the last queue there may be", nil, mq.CodeSendReplyV2, ext("a", "p", "b", mq.ReplyTopic("DefaultCluster"), "c", "TBW102", "d", 4, "e", 1<<31-1, "f", 0, "g", 1, "h", 0, "i", "REPLY_TO_CLIENT\x01a\x02"), "x", mq.InvalidParameter, ""},
			{"a reply to another topic", nil, mq.CodeSendReply, sendExt("t", 0, "properties", "REPLY_TO_CLIENT\x01a\x02"), "x", mq.InvalidParameter, ""},
			{"a reply to any queue, of one whom nobody waits for", nil, mq.CodeSendReply, sendExt(mq.ReplyTopic("DefaultCluster"), -1), "x", mq.SystemError, ""},
			{"send with a truth that is none: it is no batch", nil, mq.CodeSend, sendExt("t", 0, "batch", "maybe"), "x", mq.Success, ""},
			{"send with a number too large", nil, mq.CodeSend, sendExt("t", 0, "bornTimestamp", "99999999999999999999"), "x", mq.SystemError, ""},
			{"send with a number that is none", nil, mq.CodeSend, sendExt("t", 0, "sysFlag", "0x1"), "x", mq.SystemError, ""},
			{"send with properties that are none", nil, mq.CodeSend, sendExt("t", 0, "properties", "\x01\x02\x01\x01\x02\x02x"), "x", mq.Success, ""},
			{"send with fields that nobody knows", nil, mq.CodeSend, sendExt("t", 0, "x", "y", "\x00", "\xff"), "x", mq.Success, ""},
			{"pull of a topic that is written only", nil, mq.CodePull, pullExt("g", "write", 0, 0, 0), "", mq.NoPermission, "3"},
			{"pull of a group that may not", nil, mq.CodePull, pullExt("off", "t", 0, 0, 0), "", mq.NoPermission, "2"},
			{"pull of a broadcasting group that may not be one", nil, mq.CodePull, pullExt("alone", "t", 0, 0, 0, registered...), "", mq.NoPermission, "4"},
			{"pull of a negative queue", nil, mq.CodePull, pullExt("g", "t", -1, 0, 0), "", mq.InvalidParameter, ""},
			{"pull of a queue too far", nil, mq.CodePull, pullExt("g", "t", 4, 0, 0), "", mq.InvalidParameter, ""},
			{"pull by the heartbeat's subscription", nil, mq.CodePull, pullExt("g", "t", 0, 0, 0, registered...), "", mq.Success, ""},
			{"pull by a newer one", nil, mq.CodePull, pullExt("g", "t", 0, 0, 0, append([]any{"subVersion", 2}, registered...)...), "", mq.SubscriptionNotLatest, ""},
			{"pull of a topic that is not subscribed", nil, mq.CodePull, pullExt("g", "read", 0, 0, 0, registered...), "", mq.SubscriptionNotExist, ""},
			{"SQL92 with an error", nil, mq.CodePull, pullExt("g", "t", 0, 0, 0, "expressionType", "SQL92", "subscription", "a = = 1"), "", mq.SubscriptionParseFailed, ""},
			{"an offset that was never committed", nil, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 3, "setZeroIfNotFound", "false"), "", mq.QueryNotFound, ""},
			{"an offset of no group, where those are made by themselves", nil, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "new", "topic", "t", "queueId", 0, "commitOffset", 1), "", mq.Success, ""},
			{"an offset of no group, where they are not", set("autoCreateSubscriptionGroup=false"), mq.CodeUpdateConsumerOffset, ext("consumerGroup", "none", "topic", "t", "queueId", 0, "commitOffset", 1), "", mq.GroupNotExist, ""},
			{"an offset of no topic", nil, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "none", "queueId", 0, "commitOffset", 1), "", mq.TopicNotExist, ""},
			{"a key that nobody has", nil, mq.CodeQueryMessage, ext("topic", "t", "key", "none", "maxNum", 1, "beginTimestamp", 0, "endTimestamp", 1), "", mq.QueryNotFound, ""},
			{"locks of nonsense", nil, mq.CodeLockQueues, nil, "x", mq.SystemError, ""},
			{"state of no topic", nil, mq.CodeTopicStats, ext("topic", "none"), "", mq.TopicNotExist, ""},
			{"members of no group", nil, mq.CodeConsumerConnections, ext("consumerGroup", "none"), "", mq.ConsumerNotOnline, ""},
			{"producers of no group", nil, mq.CodeProducerConnections, ext("producerGroup", "none"), "", mq.SystemError, ""},
			{"counts of nothing", nil, mq.CodeViewStats, ext("statsName", "TOPIC_PUT_NUMS", "statsKey", "none"), "", mq.SystemError, ""},
			{"to delete a topic of the system", nil, mq.CodeDeleteTopic, ext("topic", mq.TopicSchedule), "", mq.InvalidParameter, ""},
			{"to delete a topic without a name", nil, mq.CodeDeleteTopic, ext("topic", " "), "", mq.InvalidParameter, ""},
			{"to make a topic with a name too long", nil, mq.CodeCreateTopic, ext("topic", strings.Repeat("x", 128), "defaultTopic", "x", "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "order", "false"), "", mq.InvalidParameter, ""},
			{"a topic for messages of every type", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+message.type=MIXED"), "", mq.InvalidParameter, ""},
			{"an attribute that there is none of", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+colour=red"), "", mq.SystemError, ""},
			{"a value that an attribute has not", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+message.type=BIG"), "", mq.SystemError, ""},
			{"a number that is none", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+reserve.time=long"), "", mq.SystemError, ""},
			{"attributes of a new topic", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+message.type=FIFO,+queue.type=SimpleCQ,+reserve.time=-1"), "", mq.Success, ""},
			{"the same ones again", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+message.type=FIFO,+queue.type=SimpleCQ"), "", mq.Success, ""},
			{"one that stays as it was made", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+queue.type=BatchCQ"), "", mq.SystemError, ""},
			{"one that may change", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+message.type=DELAY"), "", mq.Success, ""},
			{"to take one away that is not there", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "-cleanup.policy"), "", mq.SystemError, ""},
			{"nothing but a sign", nil, mq.CodeCreateTopic, topicExt("new", "attributes", "+"), "", mq.InvalidParameter, ""},
			{"several topics, one for messages of every type", nil, mq.CodeCreateTopics, nil, `{"topicConfigList":[{"topicName":"t9","readQueueNums":1,"writeQueueNums":1,"perm":6,"attributes":{"+message.type":"MIXED"}}]}`, mq.InvalidParameter, ""},
			{"a path to be set", nil, mq.CodeUpdateBrokerConfig, nil, "storePathRootDir=/tmp", mq.NoPermission, ""},
			{"SQL92 where it is switched off", set("enablePropertyFilter=false"), mq.CodePull, pullExt("g", "t", 0, 0, 0, "expressionType", "SQL92", "subscription", "a = 1"), "", mq.SystemError, ""},
			{"SQL92 of a heartbeat where it is switched off", nil, mq.CodePull, pullExt("sql", "t", 0, 0, 0, registered...), "", mq.SystemError, ""},
			{"and where it is switched on again", set("enablePropertyFilter=true"), mq.CodePull, pullExt("sql", "t", 0, 0, 0, registered...), "", mq.PullRetryImmediately, ""},
			{"an order topic at a broker that is read only", set("brokerPermission=4"), mq.CodeSend, sendExt("order", 0), "x", mq.NoPermission, ""},
			{"another one: routes keep producers away", nil, mq.CodeSend, sendExt("t", 0), "x", mq.Success, ""},
			{"pull at a broker that is written only", set("brokerPermission=2"), mq.CodePull, pullExt("g", "t", 0, 0, 0), "", mq.NoPermission, "1"},
		} {
			if k.before != nil {
				k.before()
			}
			f := p.call(n, k.code, k.ext, []byte(k.body))
			if f.Code != k.want || f.Code != mq.Success && f.Remark == "" || f.Ext["forbiddenType"] != k.forbidden {
				t.Errorf("%s: code %d %q %v, want %d", k.name, f.Code, f.Remark, f.Ext, k.want)
			}
		}
		if s := c.brokers[n].server.Stats(); s.Conns != 1 {
			t.Errorf("%d connections, want the one all the time", s.Conns)
		}
		one, err := p.r.Call(t.Context(), c.address(n), remoting.Request{Code: mq.CodeMinOffset, Ext: ext("topic", "t", "queueId", 0)}, forwardTimeout)
		if err != nil || one.Code != mq.Success {
			t.Errorf("afterwards: %+v, %v", one, err)
		}
	})
}
