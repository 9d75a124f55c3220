package broker

import (
	"testing"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// commitExt and askExt are the fields of a commit and of a question for an offset, of group g in queue 0 of topic t.
func commitExt(offset int) map[string]string {
	return ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", offset)
}

func askExt() map[string]string { return ext("consumerGroup", "g", "topic", "t", "queueId", 0) }

// A pull may be held for half a minute, and its consumer commits newer offsets meanwhile. Whichever leader gets the pull next, and wherever it is held, the offset in it
// counts when it comes and not again.
func TestHeldPullCommitsOnce(t *testing.T) {
	for _, at := range []string{"at a follower that passes it on", "at the replica that leads next", "at a follower that does not know the group"} {
		t.Run(at, func(t *testing.T) {
			inCluster(t, 3, nil, func(c *cluster) {
				p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
				leader, follower := c.leader(), c.follower()
				next := follower
				for _, id := range c.IDs() {
					if id != leader && id != follower && at != "at the replica that leads next" {
						next = id
					}
				}
				for range 30 {
					p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
				}
				for _, id := range c.IDs() {
					if id != follower { // which passes on what it does not know the subscription for
						q.must(id, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
					}
				}
				flag := pullSuspends | pullCommits
				if at == "at a follower that passes it on" {
					flag |= pullHasSub
					c.Wait("the messages here", func() bool { return c.brokers[follower].store.MaxOffset("t", 0) == 30 })
				}
				got := make(chan *remoting.Frame, 1)
				go func() {
					got <- q.call(follower, mq.CodePull, pullExt("g", "t", 0, 30, 15000, "sysFlag", flag, "commitOffset", 10), nil)
				}()
				c.Wait("the pull's offset", func() bool { n, _ := c.brokers[leader].offsets.get("t@g", 0); return n == 10 })
				p.must(follower, mq.CodeUpdateConsumerOffset, commitExt(30), nil)
				c.Wait("the newer offset everywhere", func() bool {
					for _, b := range c.brokers {
						if n, _ := b.meta.offset("t@g", 0); n != 30 {
							return false
						}
					}
					return true
				})
				if err := c.Member(leader).TransferLeadership(c.T.Context(), next); err != nil {
					c.T.Fatal(err)
				}
				c.Wait("the next leader", c.brokers[next].Leads)
				<-got // by then every replica has had it that will
				if n := p.must(next, mq.CodeQueryConsumerOffset, askExt(), nil).Ext["offset"]; n != "30" {
					c.T.Errorf("after a hand-over while the pull was held the offset is %s, want 30", n)
				}
			})
		})
	}
}
