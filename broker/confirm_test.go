package broker

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// TestCutOffLeaderMovesNoConsumer (R1 of the log, at the broker): the followers' answers take so long that a leader which they no longer hear still believes them when
// another one serves. What it says then must not be about where queues end, and it must be said in time.
func TestCutOffLeaderMovesNoConsumer(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		old := c.leader()
		p.must(old, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		for i := range 5 {
			p.must(old, mq.CodeSend, sendExt("t", 0), fmt.Appendf(nil, "%d", i))
		}
		p.must(old, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", 3), nil)
		time.Sleep(time.Second)
		var others []string
		for _, id := range c.IDs() {
			if id != old {
				others = append(others, id)
			}
		}
		for d := time.Duration(0); d < 1800*time.Millisecond; d += 100 * time.Millisecond { // little by little, so that it misses none
			for _, id := range others {
				c.Delay(id, old, d)
			}
			time.Sleep(300 * time.Millisecond)
		}
		for _, id := range others {
			c.Cut(old, id)
		}
		var now string
		c.Wait("another leader", func() bool {
			for _, id := range others {
				if c.brokers[id].Leads() {
					now = id
				}
			}
			return now != ""
		})
		for i := range 5 {
			p.must(now, mq.CodeSend, sendExt("t", 0), fmt.Appendf(nil, "%d", i+5))
			p.must(now, mq.CodeSend, sendExt("t", 1), fmt.Appendf(nil, "%d", i))
		}
		p.must(now, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", 8), nil)
		p.must(now, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 1, "commitOffset", 4), nil)
		if !c.brokers[old].Leads() {
			c.T.Fatal("the old leader knows already; nothing is tried")
		}

		queue := func(q int, more ...any) map[string]string {
			return ext(append([]any{"consumerGroup", "g", "topic", "t", "queueId", q}, more...)...)
		}
		var asking sync.WaitGroup
		for _, a := range []struct {
			what  string
			code  int32
			ext   map[string]string
			codes []int32 // that are right beside mq.ServiceNotAvailable
			say   string  // offset that is right with mq.Success
		}{
			{"a pull behind its end", mq.CodePull, pullExt("g", "t", 0, 8, 0), []int32{mq.Success}, ""},
			{"a long pull behind its end", mq.CodePull, pullExt("g", "t", 0, 8, 15000), []int32{mq.Success}, ""},
			{"a pull from a queue it does not know", mq.CodePull, pullExt("g", "t", 1, 2, 0), []int32{mq.Success}, ""},
			{"the end of a queue", mq.CodeMaxOffset, queue(0), []int32{mq.Success}, "10"},
			{"the end of a queue it does not know", mq.CodeMaxOffset, queue(1), []int32{mq.Success}, "5"},
			{"a group's offset", mq.CodeQueryConsumerOffset, queue(0), []int32{mq.Success}, "8"},
			{"a group's offset that it does not know", mq.CodeQueryConsumerOffset, queue(1, "setZeroIfNotFound", "false"), []int32{mq.Success}, "4"},
			{"an offset by time", mq.CodeSearchOffset, queue(0, "timestamp", time.Now().UnixMilli()+1000), []int32{mq.Success}, "10"},
			{"a pull at its end", mq.CodePull, pullExt("g", "t", 0, 5, 0), []int32{mq.Success, mq.PullNotFound}, ""},
		} {
			asking.Go(func() {
				from := time.Now()
				f, err := p.r.Call(c.T.Context(), c.address(old), remoting.Request{Code: a.code, Ext: a.ext}, askOffsetMax)
				took := time.Since(from)
				if err != nil && a.code == mq.CodeQueryConsumerOffset { // it asks again
					return
				}
				if err != nil {
					c.T.Error(err)
					return
				}
				right := f.Code == mq.ServiceNotAvailable
				for _, code := range a.codes {
					right = right || f.Code == code && (a.say == "" || a.say == f.Ext["offset"])
				}
				if !right || took > 2500*time.Millisecond {
					c.T.Errorf("%s: code %d %s %v after %v", a.what, f.Code, f.Remark, f.Ext, took)
				}
			})
		}
		asking.Wait()
	})
}

// TestConfirmationsShareARound, and pulls that find something or wait have none.
func TestConfirmationsShareARound(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		p.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		time.Sleep(time.Second)
		b := c.brokers[n]
		before := b.confirmer.rounds.Load()
		p.must(n, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil)
		if f := p.call(n, mq.CodePull, pullExt("g", "t", 0, 1, 100), nil); f.Code != mq.PullNotFound {
			c.T.Errorf("at the end: code %d %s", f.Code, f.Remark)
		}
		if n := b.confirmer.rounds.Load() - before; n != 0 {
			c.T.Errorf("%d rounds for pulls that move nobody", n)
		}
		const many = 1000
		var left sync.WaitGroup
		left.Add(many)
		for range many {
			err := p.r.Go(c.address(n), remoting.Request{Code: mq.CodeMaxOffset, Ext: ext("topic", "t", "queueId", 0)}, time.Minute, func(f *remoting.Frame, err error) {
				if err != nil || f.Code != mq.Success || f.Ext["offset"] != "1" {
					c.T.Errorf("%+v, %v", f, err)
				}
				left.Done()
			})
			if err != nil {
				c.T.Fatal(err)
			}
		}
		left.Wait()
		if n := b.confirmer.rounds.Load() - before; n < 1 || n > many/4 {
			c.T.Errorf("%d rounds for %d questions", n, many)
		}
	})
}

// TestPullThatIsWokenWhileItsConnectionClosesIsNotHeldAgain: it is in nobody's hands but the one's that looks for messages when the connection goes.
func TestPullThatIsWokenWhileItsConnectionClosesIsNotHeldAgain(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		b := c.brokers[n]
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		err := q.r.Go(c.address(n), remoting.Request{Code: mq.CodePull, Ext: pullExt("g", "t", 0, 1, 60000)}, 2*time.Minute, func(*remoting.Frame, error) {})
		if err != nil {
			c.T.Fatal(err)
		}
		c.Wait("a pull to be held", func() bool { return b.polls.count.Load() == 1 })
		b.polls.mu.Lock()
		held := b.polls.times[0]
		b.polls.release(held)
		b.polls.mu.Unlock()
		q.r.Close()
		c.Wait("the connection to be forgotten", func() bool {
			b.clients.mu.Lock()
			defer b.clients.mu.Unlock()
			_, open := b.clients.sessions[held.r.session]
			return !open
		})
		held.work(true)
		if n := b.polls.count.Load(); n != 0 || len(b.polls.queues) != 0 || len(held.r.session.pulls) != 0 {
			c.T.Errorf("%d pulls are held", n)
		}
	})
}

// TestReplicaWhoseLogBeginsLaterTakesNothingFromConsumers: others may still have what it has no more.
func TestReplicaWhoseLogBeginsLaterTakesNothingFromConsumers(t *testing.T) {
	eager := dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.ForceClean = true }}
	inClusterOf(t, eager, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		leader, follower := c.leader(), c.follower()
		body := make([]byte, 1<<20)
		const n = 30
		for range n {
			p.must(leader, mq.CodeSend, sendExt("t", 0), body)
		}
		p.must(leader, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil) // makes the group
		store := c.brokers[follower].store
		c.Disk(follower).SetUsed(0.87)
		c.Wait("the follower's log to begin later", func() bool { return store.MinOffset("t", 0) > 0 && store.MaxOffset("t", 0) == n })
		c.Disk(follower).SetUsed(-1)
		if f := p.call(follower, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil); f.Code != mq.Success || f.Ext["nextBeginOffset"] != "1" {
			c.T.Errorf("code %d %s %v", f.Code, f.Remark, f.Ext)
		}
	})
}
