package broker

import (
	"fmt"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
)

// TestMessageThatIsSentAgainOnPurposeIsStoredAgain: the same message, unique key and body, whose second send loses its leader before that has seen it.
func TestMessageThatIsSentAgainOnPurposeIsStoredAgain(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		leader, follower := c.leader(), c.follower()
		send := sendExt("t", 0, "properties", "UNIQ_KEY\x01U\x02")
		p.must(follower, mq.CodeSend, send, []byte("same"))
		c.same(follower, "t", 0, []string{"same"})
		got := make(chan *remoting.Frame, 1)
		c.Partition([]string{leader})
		c.net.lose(c.address(leader))
		go func() { got <- p.call(follower, mq.CodeSend, send, []byte("same")) }()
		if f := <-got; f.Code != mq.Success || f.Ext["queueOffset"] != "1" {
			c.T.Errorf("code %d %s %v", f.Code, f.Remark, f.Ext)
		}
		c.same(follower, "t", 0, []string{"same", "same"})
	})
}

// TestRestOfABatchFollowsWhatIsThere: a lost leader has left none, some or all messages of a batch, two of which are the same.
func TestRestOfABatchFollowsWhatIsThere(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		b := c.brokers[n]
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("first"))
		want := []string{"first"}
		for left := range 5 {
			var batch []byte
			var there []*mq.Message
			for i := range 4 {
				key, body := fmt.Sprintf("U%d-%d", left, i), fmt.Sprintf("%d of %d", i, left)
				if i == 2 { // as the one before
					key, body = fmt.Sprintf("U%d-1", left), fmt.Sprintf("1 of %d", left)
				}
				props := mq.PropSet("", mq.PropUniqKey, key)
				batch = mq.AppendBatchItem(batch, mq.BatchItem{Body: []byte(body), Properties: props})
				if i < left {
					there = append(there, &mq.Message{Topic: "t", Body: []byte(body), Properties: props, BornHost: b.host})
				}
				want = append(want, body)
			}
			after := b.store.DispatchedTo()
			if left > 0 {
				stored := make(chan msgstore.PutResult, 1)
				b.store.Put(there, func(r msgstore.PutResult) { stored <- r })
				if r := <-stored; r.Status != msgstore.PutOK {
					c.T.Fatal(r.Status, r.Err)
				}
				time.Sleep(time.Second)
			}
			r := ext("a", "p", "b", "t", "c", mq.TopicDefault, "d", 4, "e", -1, "f", 0, "g", 1, "h", 0, "i", "", "m", "true", fieldFrom, "10.1.0.9:1", fieldMember, c.secret(), fieldSettle, after)
			if left == 0 {
				r["e"] = "0"
			}
			f := p.must(n, mq.CodeSendBatch, r, batch)
			if len(f.Ext["msgId"]) != 4*32+3 || f.Ext["queueId"] != "0" || f.Ext["queueOffset"] != fmt.Sprint(4*left+1) {
				c.T.Errorf("%d were there: %v", left, f.Ext)
			}
			c.same(n, "t", 0, want)
		}
	})
}

// TestSendBackOfAMessageWithoutUniqueKeyIsFoundAgain: brokers of ours give each message one, a Java leader need not.
func TestSendBackOfAMessageWithoutUniqueKeyIsFoundAgain(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		b := c.brokers[n]
		p.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		stored := make(chan msgstore.PutResult, 1)
		b.store.Put([]*mq.Message{{Topic: "t", Body: []byte("x"), BornHost: b.host}}, func(r msgstore.PutResult) { stored <- r })
		r := <-stored
		if r.Status != msgstore.PutOK {
			c.T.Fatal(r.Status, r.Err)
		}
		back := ext("offset", r.Pos[0], "group", "g", "delayLevel", 18, "maxReconsumeTimes", 16)
		for range 2 {
			p.must(n, mq.CodeSendBack, back, nil)
			time.Sleep(time.Second)
			back[fieldFrom], back[fieldMember], back[fieldSettle] = "10.1.0.9:1", c.secret(), fmt.Sprint(r.Pos[0])
		}
		c.same(n, mq.TopicSchedule, 17, []string{"x"})
	})
}
