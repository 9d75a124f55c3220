package broker

import (
	"maps"
	"testing"
	"time"

	"dledger/internal/mq"
)

func TestGivenUpTransactionIsOpenedAgain(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = time.Second, time.Second, 2
	}, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		other := p.must(n, mq.CodeSend, sendExt("t", 0), []byte("other")).Ext["msgId"]
		p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02"), []byte("x"))
		c.Wait("the transaction to be given up", func() bool { return c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0).Max == 1 })
		m, _, err := mq.ParseStored(c.brokers[n].store.Get(mq.TopicTransCheckMax, 0, 0, 1, 1, nil).Messages[0])
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]map[string]string{
			"no id": ext("topic", "t"), "an id that is none": ext("msgId", "x"), "an ordinary message": ext("msgId", other),
			"no message": ext("msgId", mq.OffsetMsgID(c.brokers[n].host, 1<<40)),
		} {
			if f := p.call(n, mq.CodeResumeCheckHalf, f, nil); f.Code != mq.SystemError || f.Remark == "" {
				t.Errorf("%s: code %d, %q", name, f.Code, f.Remark)
			}
		}
		asked := p.got(mq.CodeCheckTransaction)
		p.must(n, mq.CodeResumeCheckHalf, ext("topic", "t", "msgId", m.MsgID()), nil)
		p.must(n, mq.CodeResumeCheckHalf, ext("topic", "t", "msgId", m.MsgID()), nil) // it is open already
		if b := c.brokers[n].store.Bounds(mq.TopicHalf, 0); b.Max != 2 {
			t.Errorf("%d halves, want the first and the one again", b.Max)
		}
		c.Wait("another question", func() bool { return p.got(mq.CodeCheckTransaction) > asked })
		p.mu.Lock()
		q := p.requests[len(p.requests)-1]
		p.mu.Unlock()
		p.must(n, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", q.Ext["tranStateTableOffset"], "commitLogOffset", q.Ext["commitLogOffset"],
			"commitOrRollback", 8, "fromTransactionCheck", "true", "msgId", "K"), nil)
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"other": 1, "x": 1}) {
			t.Errorf("in the end: %v", count)
		}
	})
}

// TestTransactionIsGivenUpOnceTheDiskHasRoom: while there is none for the topic that it goes to, the leader goes on to look after transactions.
func TestTransactionIsGivenUpOnceTheDiskHasRoom(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = time.Second, time.Second, 2
	}, func(c *cluster) {
		n := c.leader()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", 4, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02"), []byte("half"))
		c.Disk(n).SetFree(0)
		c.Disk(n).SetUsed(0.99)
		time.Sleep(10 * time.Second) // of virtual time: it is asked about, and would be given up
		if max := c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0).Max; max != 0 {
			c.T.Fatalf("%d transactions given up on a full disk", max)
		}
		c.Disk(n).SetUsed(-1)
		c.Disk(n).SetFree(-1)
		c.Wait("the transaction to be given up", func() bool { return c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0).Max == 1 })
	})
}

// TestFailedHandOverStopsNoService: what a leader cannot store while it tries to hand leadership over, it stores when that has failed.
func TestFailedHandOverStopsNoService(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		n, f := c.leader(), c.follower()
		b := c.brokers[n]
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("first"))
		c.Partition([]string{f})
		for range 10 { // it has to lack something
			p.must(n, mq.CodeSend, sendExt("t", 1), []byte("more"))
		}
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "DELAY\x011\x02"), []byte("delayed"))
		time.Sleep(500 * time.Millisecond) // of virtual time: half of the delay
		if err := b.ledger.TransferLeadership(c.T.Context(), f); err == nil || !b.Leads() {
			c.T.Fatalf("handed over to a replica that is cut off: %v", err)
		}
		c.Wait("the delayed message", func() bool { return b.store.MaxOffset("t", 0) == 2 })
		if c.leader() != n {
			c.T.Error("another replica leads")
		}
	})
}
