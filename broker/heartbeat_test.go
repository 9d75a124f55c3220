package broker

import (
	"testing"

	"dledger/internal/mq"
)

// What an answer to a heartbeat says of V2: subscriptions are to be sent with the next one, or not.
func TestHeartbeatsWithoutSubscriptionsKeepThem(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		a, b := c.client("10.1.0.1"), c.client("10.1.0.2")
		beat := func(cl *client, id string, print int32, topics ...string) string {
			t.Helper()
			h := mq.Heartbeat{ClientID: id, Fingerprint: print, WithoutSub: topics == nil}
			d := mq.ConsumerData{GroupName: "g", ConsumeType: mq.ConsumePush, MessageModel: mq.Clustering, ConsumeFromWhere: mq.FromLastOffset}
			for _, topic := range topics {
				d.Subscriptions = append(d.Subscriptions, mq.SubscriptionData{Topic: topic, SubString: "*", SubVersion: 1})
			}
			h.Consumers = append(h.Consumers, d)
			f := cl.must(n, mq.CodeHeartbeat, nil, mq.Marshal(h))
			if f.Ext["IS_SUPPORT_HEART_BEAT_V2"] != "true" {
				t.Errorf("fields of the answer: %v", f.Ext)
			}
			return f.Ext["IS_SUB_CHANGE"]
		}
		subscribed := func(topic string) bool {
			sub, _, _ := c.brokers[n].clients.subscription("g", topic)
			return sub != nil
		}
		for _, k := range []struct {
			name   string
			cl     *client
			id     string
			print  int32
			topics []string
			want   string
		}{
			{"V1", a, "a", 0, []string{"t"}, "true"},
			{"without what was never sent", a, "a", 7, nil, "true"},
			{"the first with a fingerprint", a, "a", 7, []string{"t"}, "false"},
			{"unchanged", a, "a", 7, nil, "false"},
			{"another fingerprint", a, "a", 8, nil, "true"},
			{"a second client, which is new", b, "b", 9, nil, "true"},
			{"it subscribes to the same, and has other groups", b, "b", 9, []string{"t"}, "false"},
			{"which is no news for the first", a, "a", 7, nil, "false"},
			{"it subscribes to more", b, "b", 10, []string{"t", "u"}, "false"},
			{"so the first has to tell again", a, "a", 7, nil, "true"},
		} {
			if got := beat(k.cl, k.id, k.print, k.topics...); got != k.want {
				t.Errorf("%s: IS_SUB_CHANGE %s, want %s", k.name, got, k.want)
			}
			if !subscribed("t") {
				t.Errorf("%s: the subscription is lost", k.name)
			}
		}
		if f := a.call(n, mq.CodePull, pullExt("g", "t", 0, 0, 0, "sysFlag", 0), nil); f.Code != mq.TopicNotExist {
			t.Errorf("a pull by the subscription: code %d, %s", f.Code, f.Remark)
		}
		b.must(n, mq.CodeUnregisterClient, ext("clientID", "b", "consumerGroup", "g"), nil)
		if got := beat(b, "b", 10); got != "true" {
			t.Errorf("a client that had left: IS_SUB_CHANGE %s, want true", got)
		}
	})
}

// TestGroupThatMayNotBeHasNoMembers, whatever heartbeats say, as in the original: they are neither counted nor kept in memory.
func TestGroupThatMayNotBeHasNoMembers(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.AutoCreateGroup = false }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"made"}`))
		for _, id := range c.IDs() {
			c.Wait("the group at "+id, func() bool { _, ok := c.brokers[id].meta.groupConfig("made"); return ok })
			for _, group := range []string{"made", "none"} {
				p.must(id, mq.CodeHeartbeat, nil, heart("a", group, "t"))
			}
		}
		for _, id := range c.IDs() {
			cs := &c.brokers[id].clients
			cs.mu.RLock()
			if len(cs.consumers) != 1 || cs.consumers["made"] == nil || len(cs.producers) != 1 {
				c.T.Errorf("%s has %d groups of consumers and %d of producers, want the one that is there", id, len(cs.consumers), len(cs.producers))
			}
			cs.mu.RUnlock()
		}
		if f := p.call(n, mq.CodeConsumerConnections, ext("consumerGroup", "none"), nil); f.Code != mq.ConsumerNotOnline {
			c.T.Errorf("its members: code %d, %s", f.Code, f.Body)
		}
	})
}
