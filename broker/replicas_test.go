package broker

import (
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

func TestLeaderKnowsAndReachesClientsOfOtherReplicas(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		leader, follower := c.leader(), c.follower()
		a, b := c.client("10.1.0.1"), c.client("10.1.0.2")
		a.must(leader, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		b.must(follower, mq.CodeHeartbeat, nil, heart("b", "g", "t"))
		members := func(id string) string {
			return string(a.call(id, mq.CodeConsumerList, ext("consumerGroup", "g"), nil).Body)
		}
		c.Wait("the leader to hear of the follower's client", func() bool { return members(leader) == `{"consumerIdList":["a","b"]}` })
		for _, id := range c.IDs() {
			if got := members(id); got != `{"consumerIdList":["a","b"]}` {
				t.Errorf("members at %s: %s", id, got)
			}
		}
		if a.got(mq.CodeNotifyConsumersChanged) == 0 {
			t.Error("the leader's client has not heard of the other")
		}

		p := c.client("10.1.0.3")
		p.must(follower, mq.CodeSend, sendExt("t", 0, "producerGroup", "pg"), []byte("x"))
		l := c.brokers[leader]
		var to peer
		c.Wait("the leader to know the producer", func() (ok bool) {
			to, ok = l.clients.producer("pg", "")
			return ok
		})
		if err := l.askClient(to, remoting.Request{Code: mq.CodeCheckTransaction, Ext: ext("msgId", "M")}, time.Second, nil, []byte("half")); err != nil {
			t.Fatal(err)
		}
		c.Wait("the producer to be asked", func() bool { return p.got(mq.CodeCheckTransaction) == 1 })
		p.mu.Lock()
		if f := p.requests[0]; f.Ext["msgId"] != "M" || len(f.Ext) != 1 || string(f.Body) != "half" {
			t.Errorf("it was asked %v %q", f.Ext, f.Body)
		}
		p.mu.Unlock()

		// The leader that comes next hears of everybody at once, also of those that are not connected to it.
		next := follower
		for _, id := range c.IDs() {
			if id != leader && id != follower {
				next = id
			}
		}
		if err := c.Member(leader).TransferLeadership(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		c.Wait("the transfer", func() bool { return c.brokers[next].Leads() })
		from := time.Now()
		c.Wait("all members at the new leader", func() bool { return members(next) == `{"consumerIdList":["a","b"]}` })
		if d := time.Since(from); d > time.Second {
			t.Errorf("it took %v", d)
		}
		b.r.Close()
		c.Wait("one that has gone to be forgotten", func() bool { return members(next) == `{"consumerIdList":["a"]}` })
	})
}

func TestReplyReachesItsRequesterAtAnyReplica(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		leader, follower := c.leader(), c.follower()
		requester, replier := c.client("10.1.0.1"), c.client("10.1.0.2")
		requester.must(follower, mq.CodeHeartbeat, nil, heart("asker", "g", "t"))
		l := c.brokers[leader]
		c.Wait("the leader to know the requester", func() bool { _, ok := l.clients.producerByID("asker"); return ok })
		topic := mq.ReplyTopic("DefaultCluster")
		fields := sendExt(topic, 0, "properties", "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1\x02")
		f := replier.must(leader, mq.CodeSendReply, fields, []byte("the reply"))
		if f.Ext["queueOffset"] != "0" || len(f.Ext["msgId"]) != 32 {
			t.Errorf("answer %v", f.Ext)
		}
		if requester.got(mq.CodePushReply) != 1 {
			t.Fatal("the requester was not told")
		}
		requester.mu.Lock()
		for _, p := range requester.requests {
			if p.Code == mq.CodePushReply && (string(p.Body) != "the reply" || mq.PropGet(p.Ext["properties"], "CORRELATION_ID") != "c1" || mq.PropGet(p.Ext["properties"], mq.PropPushReplyTime) == "" ||
				p.Ext["bornHost"] != "10.1.0.2:50000") {
				t.Errorf("it was told %v %q", p.Ext, p.Body)
			}
		}
		requester.mu.Unlock()
		c.same(leader, topic, 0, []string{"the reply"})
		fields["properties"] = "REPLY_TO_CLIENT\x01nobody\x02"
		if f := replier.call(leader, mq.CodeSendReply, fields, []byte("x")); f.Code != mq.SystemError || !strings.Contains(f.Remark, "nobody") {
			t.Errorf("a reply to nobody: %d %s", f.Code, f.Remark)
		}
		requester.r.Close() // its replica notices at once
		fields["properties"] = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c2\x02"
		if f := replier.call(leader, mq.CodeSendReply, fields, []byte("late")); f.Code != mq.SystemError || !strings.Contains(f.Remark, "asker") {
			t.Errorf("a reply to one who has gone: %d %s", f.Code, f.Remark)
		}
		c.same(leader, topic, 0, []string{"the reply", "x", "late"})
	})
}
