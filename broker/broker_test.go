package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

func TestMessagesAreStoredAndFoundAgain(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		f := p.must(n, mq.CodeSend, sendExt("t", 1), []byte("one"))
		if f.Ext["queueId"] != "1" || f.Ext["queueOffset"] != "0" || len(f.Ext["msgId"]) != 32 || f.Ext["transactionId"] == "" || f.Ext["TRACE_ON"] != "true" || f.Ext["MSG_REGION"] != "DefaultRegion" {
			t.Errorf("answer to a send: %v", f.Ext)
		}
		id := f.Ext["msgId"]
		p.must(n, mq.CodeSendV2, ext("a", "p", "b", "t", "c", mq.TopicDefault, "d", 4, "e", 1, "f", 0, "g", 1700000000123, "h", 7, "i", "TAGS\x01x\x02", "j", 0, "m", "false"), []byte("two"))
		var batch []byte
		for i := range 3 {
			batch = mq.AppendBatchItem(batch, mq.BatchItem{Body: fmt.Appendf(nil, "batch %d", i), Properties: fmt.Sprintf("UNIQ_KEY\x01U%d\x02", i)})
		}
		f = p.must(n, mq.CodeSendBatch, ext("a", "p", "b", "t", "c", mq.TopicDefault, "d", 4, "e", 1, "f", 0, "g", 1, "h", 0, "i", "", "m", "true"), batch)
		if f.Ext["queueOffset"] != "2" || strings.Count(f.Ext["msgId"], ",") != 2 {
			t.Errorf("answer to a batch: %v", f.Ext)
		}

		f = p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil)
		got, offsets := bodies(t, f.Body)
		equal(t, "pulled", got, []string{"one", "two", "batch 0", "batch 1", "batch 2"})
		equal(t, "their offsets", offsets, []int64{0, 1, 2, 3, 4})
		if f.Ext["nextBeginOffset"] != "5" || f.Ext["minOffset"] != "0" || f.Ext["maxOffset"] != "5" || f.Ext["suggestWhichBrokerId"] != "0" || f.Remark != "FOUND" {
			t.Errorf("answer to a pull: %v %s", f.Ext, f.Remark)
		}
		f = p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0, "subscription", "x || y"), nil)
		got, _ = bodies(t, f.Body)
		equal(t, "pulled with a tag", got, []string{"two"})

		m, _, err := mq.ParseStored(p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 0, "maxMsgNums", 1), nil).Body)
		if err != nil || m.BornHost.String() != "10.1.0.1:50000" || m.StoreHost.String() != "10.0.0.10:10911" || m.Prop("KEYS") != "k" || m.Prop(mq.PropCluster) != "DefaultCluster" || m.MsgID() != id {
			t.Errorf("stored is %+v, %v", m, err)
		}
		_, offset, err := mq.ParseMsgID(id)
		if err != nil {
			t.Fatal(err)
		}
		if f := p.must(n, mq.CodeViewMessage, ext("offset", offset), nil); !strings.Contains(string(f.Body), "one") {
			t.Errorf("viewed %q", f.Body)
		}
		f = p.must(n, mq.CodeQueryMessage, ext("topic", "t", "key", "k", "maxNum", 10, "beginTimestamp", 0, "endTimestamp", time.Now().Add(time.Hour).UnixMilli()), nil)
		got, _ = bodies(t, f.Body)
		equal(t, "found by key", got, []string{"one"})
		for code, want := range map[int32]string{mq.CodeMaxOffset: "5", mq.CodeMinOffset: "0"} {
			if f := p.must(n, code, ext("topic", "t", "queueId", 1), nil); f.Ext["offset"] != want {
				t.Errorf("request %d: %v, want %s", code, f.Ext, want)
			}
		}
		if f := p.must(n, mq.CodeSearchOffset, ext("topic", "t", "queueId", 1, "timestamp", time.Now().Add(time.Hour).UnixMilli()), nil); f.Ext["offset"] != "5" {
			t.Errorf("searched in the future: %v", f.Ext)
		}
		if route, ok := p.route("t"); !ok || len(route.QueueDatas) != 1 || route.QueueDatas[0].WriteQueueNums != 4 || route.BrokerDatas[0].BrokerAddrs[0] != c.address(n) {
			t.Errorf("the route of a topic made by sending to it: %+v", route)
		}
	})
}

func TestPullWaitsForAMessageThatItWants(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("first"))
		got := make(chan *remoting.Frame, 1)
		from := time.Now()
		go func() { got <- q.call(n, mq.CodePull, pullExt("g", "t", 0, 1, 15000, "subscription", "wanted"), nil) }()
		time.Sleep(3 * time.Second)
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TAGS\x01other\x02"), []byte("other"))
		time.Sleep(3 * time.Second)
		select {
		case f := <-got:
			t.Fatalf("answered with %d %s before there was anything", f.Code, f.Remark)
		default:
		}
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TAGS\x01wanted\x02"), []byte("wanted"))
		f := <-got
		if b, _ := bodies(t, f.Body); f.Code != mq.Success || len(b) != 1 || b[0] != "wanted" || time.Since(from) > 6100*time.Millisecond {
			t.Errorf("code %d, %q after %v", f.Code, b, time.Since(from))
		}

		from = time.Now()
		f = q.call(n, mq.CodePull, pullExt("g", "t", 0, 3, 15000), nil)
		if f.Code != mq.PullNotFound || f.Ext["nextBeginOffset"] != "3" || time.Since(from) < 15*time.Second || time.Since(from) > 16*time.Second {
			t.Errorf("nothing came: code %d %v after %v", f.Code, f.Ext, time.Since(from))
		}
		if n := c.brokers[n].polls.count.Load(); n != 0 {
			t.Errorf("%d pulls are still held", n)
		}
		go q.r.Call(t.Context(), c.address(n), remoting.Request{Code: mq.CodePull, Ext: pullExt("g", "t", 0, 3, 15000)}, time.Minute)
		c.Wait("a pull to be held", func() bool { return c.brokers[n].polls.count.Load() == 1 })
		q.r.Close()
		c.Wait("the pull to be dropped with its connection", func() bool { return c.brokers[n].polls.count.Load() == 0 })
	})
}

func TestEndsOfAQueueAreAnsweredAsClientsNeed(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		for range 3 {
			p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		}
		for _, k := range []struct {
			name   string
			queue  int
			offset int64
			code   int32
			next   string
		}{
			{"in the middle", 0, 1, mq.Success, "3"},
			{"at the end", 0, 3, mq.PullNotFound, "3"},
			{"behind the end", 0, 9, mq.PullOffsetMoved, "3"},
			{"before the beginning", 0, -1, mq.PullOffsetMoved, "0"},
			{"empty queue", 1, 0, mq.PullNotFound, "0"},
			{"empty queue, behind the end", 1, 5, mq.PullOffsetMoved, "0"},
		} {
			if f := p.call(n, mq.CodePull, pullExt("g", "t", k.queue, k.offset, 0), nil); f.Code != k.code || f.Ext["nextBeginOffset"] != k.next {
				t.Errorf("%s: code %d %v, want %d and %s", k.name, f.Code, f.Ext, k.code, k.next)
			}
		}
	})
}

func TestBadRequestsAreRefusedAndTheConnectionLives(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		long := strings.Repeat("x", 40000)
		for _, k := range []struct {
			name string
			code int32
			ext  map[string]string
			body string
			want int32
			says string
		}{
			{"unknown code", 9999, nil, "", mq.NotSupported, "9999"},
			{"no field", mq.CodeSend, ext("topic", "t"), "x", mq.SystemError, "producerGroup: missing"},
			{"no number", mq.CodeSend, sendExt("t", 0, "queueId", "many"), "x", mq.SystemError, "queueId"},
			{"illegal topic", mq.CodeSend, sendExt("a b", 0), "x", mq.InvalidParameter, "illegal"},
			{"long topic", mq.CodeSend, sendExt(long[:200], 0), "x", mq.InvalidParameter, "longer"},
			{"system topic", mq.CodeSend, sendExt(mq.TopicSchedule, 0), "x", mq.NoPermission, mq.TopicSchedule},
			{"the metadata topic", mq.CodeSend, sendExt(mq.TopicMetadataStem+"a", 0), "x", mq.NoPermission, "forbidden"},
			{"the timers' topic", mq.CodeSend, sendExt(mq.TopicTimer, 0, "properties", "REAL_TOPIC\x01"+mq.TopicMetadataStem+"a\x02REAL_QID\x010\x02TIMER_OUT_MS\x011\x02"), `{"noTopics":["t"]}`, mq.NoPermission, "forbidden"},
			{"illegal group to retry for", mq.CodeSend, sendExt(mq.RetryPrefix+"../a", 0), "x", mq.InvalidParameter, "illegal"},
			{"unknown template", mq.CodeSend, sendExt("new", 0, "defaultTopic", "none"), "x", mq.TopicNotExist, "new"},
			{"queue", mq.CodeSend, sendExt("t", 4), "x", mq.InvalidParameter, "4"},
			{"no body", mq.CodeSend, sendExt("t", 0), "", mq.MessageIllegal, "empty"},
			{"large body", mq.CodeSend, sendExt("t", 0), strings.Repeat("x", 4<<20+1), mq.MessageIllegal, "4194305"},
			{"large properties", mq.CodeSend, sendExt("t", 0, "properties", "a\x01"+long+"\x02"), "x", mq.MessageIllegal, "exceed"},
			{"torn batch", mq.CodeSendBatch, ext("a", "p", "b", "t", "c", "x", "d", 4, "e", 0, "f", 0, "g", 1, "h", 0, "m", "true"), "torn", mq.MessageIllegal, "batch"},
			{"pull of no topic", mq.CodePull, pullExt("g", "none", 0, 0, 0), "", mq.TopicNotExist, "none"},
			{"pull of no queue", mq.CodePull, pullExt("g", "t", 77, 0, 0), "", mq.InvalidParameter, "77"},
			{"bad expression", mq.CodePull, pullExt("g", "t", 0, 0, 0, "expressionType", "SQL92", "subscription", "a >"), "", mq.SubscriptionParseFailed, ""},
			{"no subscription", mq.CodePull, pullExt("g", "t", 0, 0, 0, "sysFlag", 0), "", mq.SubscriptionNotExist, "g"},
			{"heartbeat of nonsense", mq.CodeHeartbeat, nil, "{", mq.SystemError, ""},
			{"nobody in the group", mq.CodeConsumerList, ext("consumerGroup", "nobody"), "", mq.SystemError, "nobody"},
			{"view of nothing", mq.CodeViewMessage, ext("offset", 12345678), "", mq.SystemError, "12345678"},
			{"topic with a bad name", mq.CodeCreateTopic, ext("topic", "a b", "defaultTopic", "x", "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "order", "false"), "", mq.InvalidParameter, "illegal"},
			{"system topic to make", mq.CodeCreateTopic, ext("topic", mq.TopicDefault, "defaultTopic", "x", "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "order", "false"), "", mq.InvalidParameter, "system"},
			{"offset of no topic", mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "none", "queueId", 0, "commitOffset", 1), "", mq.TopicNotExist, "none"},
			{"send back of nothing", mq.CodeSendBack, ext("offset", 77, "group", "g", "delayLevel", 0), "", mq.SystemError, "77"},
			{"send back of no group", mq.CodeSendBack, ext("offset", 0, "group", "none", "delayLevel", 0), "", mq.GroupNotExist, "none"},
		} {
			if f := p.call(n, k.code, k.ext, []byte(k.body)); f.Code != k.want || !strings.Contains(f.Remark, k.says) {
				t.Errorf("%s: code %d %q, want %d and %q", k.name, f.Code, f.Remark, k.want, k.says)
			}
		}
		if s := c.brokers[n].server.Stats(); s.Conns != 1 {
			t.Errorf("%d connections, want the one all the time", s.Conns)
		}
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("still served"))
	})
}

// heart is a heartbeat of a consumer.
func heart(id, group string, topics ...string) []byte {
	h := mq.Heartbeat{ClientID: id, Producers: []mq.ProducerData{{GroupName: "p"}}}
	d := mq.ConsumerData{GroupName: group, ConsumeType: mq.ConsumePush, MessageModel: mq.Clustering, ConsumeFromWhere: mq.FromLastOffset}
	for _, t := range topics {
		d.Subscriptions = append(d.Subscriptions, mq.SubscriptionData{Topic: t, SubString: "*", SubVersion: 1})
	}
	h.Consumers = append(h.Consumers, d)
	return mq.Marshal(h)
}

func TestMembersOfAGroupHearOfEachOther(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		a, b := c.client("10.1.0.1"), c.client("10.1.0.2")
		members := func() string {
			f := a.call(n, mq.CodeConsumerList, ext("consumerGroup", "g"), nil)
			return string(f.Body)
		}
		a.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		if got := members(); got != `{"consumerIdList":["a"]}` {
			t.Errorf("members %s", got)
		}
		if _, ok := a.route("%RETRY%g"); !ok {
			t.Error("the retry topic has no route")
		}
		b.must(n, mq.CodeHeartbeat, nil, heart("b", "g", "t"))
		c.Wait("the first member to hear of the second", func() bool {
			return a.got(mq.CodeNotifyConsumersChanged) == 2 && b.got(mq.CodeNotifyConsumersChanged) == 1
		})
		if got := members(); got != `{"consumerIdList":["a","b"]}` {
			t.Errorf("members %s", got)
		}
		b.must(n, mq.CodeUnregisterClient, ext("clientID", "b", "consumerGroup", "g"), nil)
		c.Wait("news of a member that left", func() bool { return a.got(mq.CodeNotifyConsumersChanged) == 3 })
		b.must(n, mq.CodeHeartbeat, nil, heart("b", "g", "t"))
		b.r.Close()
		c.Wait("news of a connection that ended", func() bool { return a.got(mq.CodeNotifyConsumersChanged) == 5 })
		if got := members(); got != `{"consumerIdList":["a"]}` {
			t.Errorf("members %s", got)
		}
		time.Sleep(clientLife + 2*clientsLook)
		if f := a.call(n, mq.CodeConsumerList, ext("consumerGroup", "g"), nil); f.Code != mq.SystemError || !strings.Contains(f.Remark, "no consumer for this group") {
			t.Errorf("a silent member: %d %s %s", f.Code, f.Remark, f.Body)
		}
	})
}
