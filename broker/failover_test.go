package broker

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"dledger/dledgertest"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
	"dledger/namesrv"
)

// all gives every message of a queue as a replica has them.
func (c *cluster) all(id, topic string, queue int32) (bodies []string) {
	c.T.Helper()
	b := c.brokers[id]
	for offset := int64(0); offset < b.store.MaxOffset(topic, queue); {
		got := b.store.Get(topic, queue, offset, 100, 1<<20, nil)
		if got.Status == msgstore.OffsetFoundNull {
			return bodies // a replica that has just started does not know yet that the rest is committed
		}
		if len(got.Messages) == 0 {
			c.T.Fatalf("%s has no message at offset %d of %s: %v", id, offset, topic, got.Status)
		}
		for _, m := range got.Messages {
			p, _, err := mq.ParseStored(m)
			if err != nil || p.QueueOffset != offset {
				c.T.Fatalf("%s: at offset %d of %s lies %d, %v", id, offset, topic, p.QueueOffset, err)
			}
			bodies = append(bodies, string(p.Body))
			offset++
		}
	}
	return bodies
}

// same waits until a replica has as many messages as it should, and compares them.
func (c *cluster) same(id, topic string, queue int32, want []string) {
	c.T.Helper()
	c.Wait(id+" to have dispatched everything", func() bool { return len(c.all(id, topic, queue)) >= len(want) })
	equal(c.T, "stored at "+id, c.all(id, topic, queue), want)
}

func TestEveryReplicaTakesRequestsAndHoldsThemWhileNobodyLeads(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		leader := c.leader()
		want := []string{}
		for _, id := range c.IDs() {
			f := p.must(id, mq.CodeSend, sendExt("t", 0), []byte("by "+id))
			if f.Ext["queueOffset"] != strconv.Itoa(len(want)) {
				t.Errorf("%s stored at %v, want %d", id, f.Ext, len(want))
			}
			want = append(want, "by "+id)
		}
		c.kill(leader)
		from := time.Now()
		for _, id := range c.IDs() {
			if id == leader {
				continue
			}
			p.must(id, mq.CodeSend, sendExt("t", 0), []byte("again by "+id))
			want = append(want, "again by "+id)
		}
		if d := time.Since(from); d > 2*time.Second {
			t.Errorf("two sends without a leader took %v", d)
		}
		now := c.leader()
		c.same(now, "t", 0, want)
		if route, ok := p.route("t"); !ok || route.BrokerDatas[0].BrokerAddrs[0] != c.address(now) {
			t.Errorf("the name server says %+v, want %s to lead", route.BrokerDatas, c.address(now))
		}
		c.start(leader)
		c.same(leader, "t", 0, want)
		p.must(now, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil) // makes the group

		for _, id := range c.IDs() {
			if id != now {
				c.kill(id)
			}
		}
		from = time.Now()
		if f := p.call(now, mq.CodeSend, sendExt("t", 0), []byte("alone")); f.Code != mq.SystemError && f.Code != mq.ServiceNotAvailable || f.Ext[fieldUndecided] != "" {
			t.Errorf("without a majority: code %d %s %v", f.Code, f.Remark, f.Ext)
		}
		if f := p.call(now, mq.CodeSend, sendExt("t", 0), []byte("alone")); f.Code != mq.ServiceNotAvailable {
			t.Errorf("without a leader: code %d %s", f.Code, f.Remark)
		}
		if d := time.Since(from); d > 8*time.Second {
			t.Errorf("to refuse two sends took %v", d)
		}
		got, _ := bodies(t, p.must(now, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil).Body)
		equal(t, "pulled from the last replica", got, want)
	})
}

func TestWhatTheGroupKeepsSurvivesItsLeader(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p, a, b := c.client("10.1.0.1"), c.client("10.1.0.2"), c.client("10.1.0.3")
		leader := c.leader()
		p.must(leader, mq.CodeCreateTopic, ext("topic", "made", "defaultTopic", "x", "readQueueNums", 3, "writeQueueNums", 3, "perm", 6, "topicFilterType", "SINGLE_TAG", "order", "true", "attributes", "+message.type=FIFO"), nil)
		for i := range 5 {
			p.must(leader, mq.CodeSend, sendExt("made", 1), fmt.Appendf(nil, "%d", i))
		}
		for _, id := range c.IDs() {
			a.must(id, mq.CodeHeartbeat, nil, heart("a", "g", "made"))
			b.must(id, mq.CodeHeartbeat, nil, heart("b", "g", "made"))
		}
		p.must(leader, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "made", "queueId", 1, "commitOffset", 4), nil)
		follower := c.follower()
		lock := mq.Marshal(mq.LockRequest{ClientID: "a", ConsumerGroup: "g", Queues: []mq.MessageQueue{{BrokerName: "a", QueueID: 0, Topic: "made"}, {BrokerName: "a", QueueID: 1, Topic: "made"}}})
		if f := a.must(follower, mq.CodeLockQueues, nil, lock); string(f.Body) != `{"lockOKMQSet":[{"brokerName":"a","queueId":0,"topic":"made"},{"brokerName":"a","queueId":1,"topic":"made"}]}` {
			t.Errorf("locked %s", f.Body)
		}
		other := mq.Marshal(mq.LockRequest{ClientID: "b", ConsumerGroup: "g", Queues: []mq.MessageQueue{{BrokerName: "a", QueueID: 1, Topic: "made"}, {BrokerName: "a", QueueID: 2, Topic: "made"}}})
		time.Sleep(time.Second)
		for round := range 2 {
			if round == 1 {
				c.kill(leader)
			}
			for _, id := range c.IDs() {
				if c.brokers[id] == nil {
					continue
				}
				if f := p.call(id, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "made", "queueId", 1), nil); f.Code != mq.Success || f.Ext["offset"] != "4" {
					t.Errorf("round %d, offset at %s: %d %s %v", round, id, f.Code, f.Remark, f.Ext)
				}
				if f := b.must(id, mq.CodeLockQueues, nil, other); string(f.Body) != `{"lockOKMQSet":[{"brokerName":"a","queueId":2,"topic":"made"}]}` {
					t.Errorf("round %d, locked by another at %s: %s", round, id, f.Body)
				}
				if f := a.must(id, mq.CodeConsumerList, ext("consumerGroup", "g"), nil); string(f.Body) != `{"consumerIdList":["a","b"]}` {
					t.Errorf("round %d, members at %s: %s", round, id, f.Body)
				}
				topic, ok := c.brokers[id].meta.topicConfig("made")
				if !ok || topic.WriteQueueNums != 3 || !topic.Order || topic.Attributes["message.type"] != "FIFO" {
					t.Errorf("round %d, topic at %s: %+v", round, id, topic)
				}
			}
		}
		now := c.leader()
		a.must(now, mq.CodeUnlockQueues, nil, lock)
		if f := b.must(now, mq.CodeLockQueues, nil, other); string(f.Body) != `{"lockOKMQSet":[{"brokerName":"a","queueId":1,"topic":"made"},{"brokerName":"a","queueId":2,"topic":"made"}]}` {
			t.Errorf("after the owner gave it back: %s", f.Body)
		}
		time.Sleep(lockLife + time.Second)
		if f := a.must(now, mq.CodeLockQueues, nil, lock); string(f.Body) != `{"lockOKMQSet":[{"brokerName":"a","queueId":0,"topic":"made"},{"brokerName":"a","queueId":1,"topic":"made"}]}` {
			t.Errorf("after the lease ended: %s", f.Body)
		}
	})
}

// A leader dies some time after a follower passed a message on to it; in half of the rounds only the connection breaks. Whether the entry had got through or not, the message is
// acknowledged, and there once, where the answer said.
func TestSendWhoseLeaderIsLostIsStoredOnce(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(20 * time.Millisecond)
		}
		p := c.client("10.1.0.1")
		var want []string
		p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("first"))
		want = append(want, "first")
		for round := range 16 {
			leader, follower := c.leader(), c.follower()
			p.must(follower, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("UNIQ_KEY\x01W%d\x02", round)), []byte("warm"))
			want = append(want, "warm")
			body := fmt.Sprintf("round %d", round)
			got := make(chan *remoting.Frame, 1)
			go func() {
				got <- p.call(follower, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("UNIQ_KEY\x01U%d\x02", round)), []byte(body))
			}()
			time.Sleep(time.Duration(round/2) * 9 * time.Millisecond)
			if round%2 == 0 {
				c.kill(leader)
			} else {
				c.net.reset(c.address(leader))
			}
			f := <-got
			if f.Code != mq.Success || f.Ext["queueOffset"] != strconv.Itoa(len(want)) {
				t.Errorf("%s: code %d %s %v, want offset %d", body, f.Code, f.Remark, f.Ext, len(want))
			}
			want = append(want, body)
			if round%2 == 0 {
				c.start(leader)
				c.leader()
			}
		}
		c.same(c.leader(), "t", 0, want)
	})
}

// The leader is cut off from everybody after a follower has passed a message on to it: no connection ends, and no answer comes.
func TestSendIsTakenFromALeaderThatIsCutOff(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		leader, follower := c.leader(), c.follower()
		p.must(follower, mq.CodeSend, sendExt("t", 0), []byte("first"))
		for i := range 3 { // before, and some time after the message reached it
			got := make(chan *remoting.Frame, 1)
			from := time.Now()
			if i > 0 {
				go func() { got <- p.call(follower, mq.CodeSend, sendExt("t", 0), []byte("cut off")) }()
				time.Sleep(time.Duration(i-1) * 300 * time.Microsecond)
			}
			c.Partition([]string{leader})
			c.net.lose(c.address(leader))
			if i == 0 {
				go func() { got <- p.call(follower, mq.CodeSend, sendExt("t", 0), []byte("cut off")) }()
			}
			f := <-got
			if f.Code != mq.Success || f.Ext["queueOffset"] != strconv.Itoa(i+1) || time.Since(from) > 2500*time.Millisecond {
				t.Errorf("round %d: code %d %s %v after %v", i, f.Code, f.Remark, f.Ext, time.Since(from))
			}
			c.kill(leader)
			c.net.cut[c.address(leader)].Store(false)
			c.Heal()
			c.start(leader)
			leader, follower = c.leader(), c.follower()
			p.must(follower, mq.CodeMaxOffset, ext("topic", "t", "queueId", 0), nil) // their connection is open
		}
		c.same(c.leader(), "t", 0, []string{"first", "cut off", "cut off", "cut off"})
	})
}

func TestHandOverLosesNoSend(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		const senders, each = 6, 60
		c.client("10.1.0.9").must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("x"))
		var sending sync.WaitGroup
		for s := range senders {
			p := c.client(fmt.Sprintf("10.1.0.%d", s+1))
			id := c.IDs()[s%3]
			sending.Go(func() {
				for i := range each {
					if f := p.call(id, mq.CodeSend, sendExt("t", s%4), fmt.Appendf(nil, "%d/%d", s, i)); f.Code != mq.Success {
						t.Errorf("sender %d, message %d: code %d %s", s, i, f.Code, f.Remark)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			from, to := c.leader(), c.follower()
			if err := c.Member(from).TransferLeadership(t.Context(), to); err != nil {
				t.Errorf("from %s to %s: %v", from, to, err)
			}
		}
		sending.Wait()
		now := c.leader()
		c.Wait("everything to be dispatched", func() bool {
			n := 0
			for q := range int32(4) {
				n += len(c.all(now, "t", q))
			}
			return n >= senders*each+1
		})
		next := map[string]int{}
		for q := range int32(4) {
			for _, body := range c.all(now, "t", q) {
				var s, i int
				if n, _ := fmt.Sscanf(body, "%d/%d", &s, &i); n < 2 {
					continue
				}
				key := fmt.Sprint(s)
				if next[key] != i {
					t.Fatalf("sender %d: message %d where %d should be", s, i, next[key])
				}
				next[key]++
			}
		}
		for s := range senders {
			if next[fmt.Sprint(s)] != each {
				t.Errorf("sender %d: %d messages, want %d", s, next[fmt.Sprint(s)], each)
			}
		}
	})
}

// TestShutdownServesUntilClientsKnowTheNewLeader: also while it knows of no leader for the moment, as between the end of a leadership and the first word
// of the successor. It does not wait where nobody will lead.
func TestShutdownServesUntilClientsKnowTheNewLeader(t *testing.T) {
	inClusterOf(t, dledgertest.Setup{Delay: 40 * time.Millisecond}, 3, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		ended := c.shutdown(n)
		var last time.Time
		for i := range 16 { // a client that asks for routes again after a quarter of a minute
			if i%2 == 1 {
				from := c.leader()
				for _, to := range c.IDs() {
					if to == n || to == from {
						continue
					}
					if err := c.Member(from).TransferLeadership(t.Context(), to); err != nil {
						t.Errorf("from %s to %s: %v", from, to, err)
					}
				}
			}
			last = time.Now()
			p.must(n, mq.CodeSend, sendExt("t", 0), fmt.Appendf(nil, "%d", i))
			time.Sleep(time.Second)
		}
		if at := <-ended; at.Sub(last) < drainQuiet || at.Sub(last) > drainQuiet+5*time.Second {
			t.Errorf("the replica ended %v after the last send, want %v", at.Sub(last), drainQuiet)
		}
	})
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		c.client("10.1.0.1").must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		for _, id := range c.IDs() {
			if id != n {
				c.kill(id)
			}
		}
		began := time.Now()
		if at := <-c.shutdown(n); at.Sub(began) > 10*time.Second {
			t.Errorf("the last replica ended after %v", at.Sub(began))
		}
	})
}

// A client has asked who leads, and comes when leadership is handed over already. A leader nobody comes to, and a replica that has not led, end soon.
func TestShutdownWaitsForAClientThatHasJustHeardOfTheLeader(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		ended := c.shutdown(n)
		time.Sleep(700 * time.Millisecond)
		if c.leader() == n {
			t.Fatal("leadership is not handed over")
		}
		c.client("10.1.0.1").must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		began := time.Now()
		if at := <-ended; at.Sub(began) < drainQuiet {
			t.Errorf("the replica ended %v after a send", at.Sub(began))
		}
	})
	for _, leads := range []bool{true, false} {
		inCluster(t, 3, nil, func(c *cluster) {
			n := c.leader()
			if !leads {
				n = c.follower()
			}
			began := time.Now()
			if took := (<-c.shutdown(n)).Sub(began); took > 4*time.Second || leads && took < drainLeast {
				c.T.Errorf("a replica without clients, leading %t, ended after %v", leads, took)
			}
		})
	}
}

// shutdown ends a replica whose group lives on, and gives the time at which it has ended.
func (c *cluster) shutdown(id string) <-chan time.Time {
	ended := make(chan time.Time, 1)
	go func() {
		if err := c.brokers[id].Shutdown(c.T.Context()); err != nil {
			c.T.Error(err)
		}
		ended <- time.Now()
	}()
	return ended
}

func TestRestartFindsWhatWasThere(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean %v", clean), func(t *testing.T) {
			inCluster(t, 1, nil, func(c *cluster) {
				t := c.T
				p := c.client("10.1.0.1")
				p.must(c.leader(), mq.CodeSend, sendExt("t", 2), []byte("one"))
				p.must("n0", mq.CodePull, pullExt("g", "t", 2, 0, 0), nil)
				for i := range int64(3) {
					p.must("n0", mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 2, "commitOffset", i+1), nil)
					if i < 2 {
						time.Sleep(7 * time.Second) // the files are written in between
					}
				}
				time.Sleep(time.Second)
				if clean {
					if err := c.brokers["n0"].Close(); err != nil {
						t.Fatal(err)
					}
					delete(c.brokers, "n0")
					c.Stop("n0")
				} else {
					c.kill("n0")
				}
				c.start("n0")
				c.leader()
				if f := p.must("n0", mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 2), nil); f.Ext["offset"] != "3" {
					t.Errorf("consumer offset %v", f.Ext)
				}
				if f := p.must("n0", mq.CodeSend, sendExt("t", 2), []byte("two")); f.Ext["queueOffset"] != "1" {
					t.Errorf("the next message is at %v", f.Ext)
				}
				c.same("n0", "t", 2, []string{"one", "two"})
			})
		})
	}
}

// A name server that was away is told everything within moments of its return, by brokers that have nothing new to say: their heartbeats,
// which are as frequent as the tries, do not put those off.
func TestNameServerThatReturnsIsToldAtOnce(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		c.leader()
		for range 3 {
			if err := c.names.Close(); err != nil {
				c.T.Fatal(err)
			}
			time.Sleep(7*time.Second + 300*time.Millisecond) // of virtual time
			l, err := c.net.listen(testNames)
			if err != nil {
				c.T.Fatal(err)
			}
			if c.names, err = namesrv.Listen(namesrv.Config{Listener: l}); err != nil {
				c.T.Fatal(err)
			}
			back := time.Now()
			cl := c.client("10.0.9.9")
			c.Wait("registrations of all", func() bool {
				f, err := cl.r.Call(c.T.Context(), testNames, remoting.Request{Code: mq.CodeClusterInfo}, time.Second)
				return err == nil && bytes.Count(f.Body, []byte(":10911")) == 3
			})
			if d := time.Since(back); d > 3*time.Second {
				c.T.Errorf("registered %v after the name server was back", d)
			}
		}
	})
}

// TestOffsetsOfAFormerLeaderDoNotGoBack: what it took before it was cut off reaches the next leader late, or it leads again itself; consumers
// have gone on meanwhile.
func TestOffsetsOfAFormerLeaderDoNotGoBack(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		old := c.leader()
		for range 30 {
			p.must(old, mq.CodeSend, sendExt("t", 0), []byte("x"))
		}
		commit := func(id string, queue, n int) {
			c.T.Helper()
			p.must(id, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", queue, "commitOffset", n), nil)
		}
		committed := func(id string, queue int) string {
			c.T.Helper()
			return p.must(id, mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", queue), nil).Ext["offset"]
		}
		commit(old, 0, 1)
		commit(old, 1, 1)
		for _, again := range []bool{false, true} {
			c.Partition([]string{old})
			commit(old, 0, 10)
			commit(old, 1, 10)
			c.Wait("another leader", func() bool { return !c.brokers[old].Leads() })
			now := c.leader()
			commit(now, 0, 20)
			time.Sleep(time.Second)
			if again {
				b := c.brokers[now]
				c.net.die(c.address(now)) // nothing can be passed on to it
				c.Heal()
				c.Wait("the follower to be fit", func() bool { return b.ledger.TransferLeadership(c.T.Context(), old) == nil })
				c.Wait("the old leader to lead again", c.brokers[old].Leads)
				now = old
			} else {
				c.Heal()
				c.Wait("the old leader to follow", func() bool { return c.brokers[old].ledger.Leader() == now })
			}
			time.Sleep(time.Second)
			if n := committed(now, 0); n != "20" {
				c.T.Errorf("led again %v: the offset is %s, want 20", again, n)
			}
			if n := committed(now, 1); n != "10" {
				c.T.Errorf("led again %v: an offset that nobody overtook is %s, want 10", again, n)
			}
			commit(now, 0, 5) // a consumer may go back
			time.Sleep(time.Second)
			if n := committed(now, 0); n != "5" {
				c.T.Errorf("the offset is %s, want 5", n)
			}
			old = now
		}
	})
}

// TestPullThatIsPassedOnWaitsAtTheLeader: for as long as its client wants, also over a change of leadership. A replica that only is taken for the leader does not say
// where a queue ends.
func TestPullThatIsPassedOnWaitsAtTheLeader(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		leader, follower := c.leader(), c.follower()
		p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("x"))
		q.must(leader, mq.CodeHeartbeat, nil, heart("a", "g", "t")) // the follower does not know what the group wants
		pull := func(offset int64) *remoting.Frame {
			return q.call(follower, mq.CodePull, pullExt("g", "t", 0, offset, 15000, "sysFlag", pullSuspends), nil)
		}
		from := time.Now()
		if f := pull(1); f.Code != mq.PullNotFound || time.Since(from) < 15*time.Second {
			c.T.Errorf("code %d %s after %v", f.Code, f.Remark, time.Since(from))
		}
		for _, offset := range []int64{1, 7} {
			f := q.call(follower, mq.CodePull, pullExt("g", "t", 1, offset, 0, fieldFrom, "10.1.0.9:1", fieldMember, c.secret()), nil)
			if f.Code != mq.ServiceNotAvailable {
				c.T.Errorf("passed to a replica that does not lead: code %d %s %v", f.Code, f.Remark, f.Ext)
			}
		}

		got := make(chan *remoting.Frame, 1)
		go func() { got <- pull(1) }()
		time.Sleep(5 * time.Second)
		var next string
		for _, id := range c.IDs() {
			if id != leader && id != follower {
				next = id
			}
		}
		c.kill(leader)
		c.Wait("a leader", func() bool { l := c.leader(); return l == next || l == follower })
		for _, id := range []string{next, follower} {
			p.must(id, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		}
		p.must(next, mq.CodeSend, sendExt("t", 0), []byte("y"))
		if f := <-got; f.Code != mq.Success && f.Code != mq.SubscriptionNotExist {
			c.T.Errorf("code %d %s", f.Code, f.Remark)
		}
	})
}

// TestSendBackWhoseLeaderIsLostIsStoredOnce, for each of two groups that could not consume the same message.
func TestSendBackWhoseLeaderIsLostIsStoredOnce(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(20 * time.Millisecond)
		}
		p := c.client("10.1.0.1")
		const rounds = 12
		for _, group := range []string{"g1", "g2"} {
			p.must(c.leader(), mq.CodeHeartbeat, nil, heart("a", group, "t"))
		}
		for round := range rounds {
			leader, follower := c.leader(), c.follower()
			f := p.must(follower, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("UNIQ_KEY\x01U%d\x02", round)), fmt.Appendf(nil, "%d", round))
			_, offset, err := mq.ParseMsgID(f.Ext["msgId"])
			if err != nil {
				c.T.Fatal(err)
			}
			back := func(group string) *remoting.Frame {
				return p.call(follower, mq.CodeSendBack, ext("offset", offset, "group", group, "delayLevel", 18, "maxReconsumeTimes", 16), nil)
			}
			if f := back("g1"); f.Code != mq.Success {
				c.T.Errorf("code %d %s", f.Code, f.Remark)
			}
			got := make(chan *remoting.Frame, 1)
			go func() { got <- back("g2") }()
			time.Sleep(time.Duration(round/2) * 9 * time.Millisecond)
			if round%2 == 0 {
				c.kill(leader)
			} else {
				c.net.reset(c.address(leader))
			}
			if f := <-got; f.Code != mq.Success {
				c.T.Errorf("round %d: code %d %s", round, f.Code, f.Remark)
			}
			if round%2 == 0 {
				c.start(leader)
				c.leader()
			}
		}
		var want []string
		for round := range rounds {
			want = append(want, strconv.Itoa(round), strconv.Itoa(round))
		}
		c.same(c.leader(), mq.TopicSchedule, 17, want)
	})
}
