package broker

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
)

// TestClientWhoseIDIsNoUTF8GetsItsLocks, and another one does not.
func TestClientWhoseIDIsNoUTF8GetsItsLocks(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		for _, lock := range []struct {
			client, topic string
			got           bool
		}{{"\xff\xfe", "t", true}, {"\xfe\xff", "t", false}, {"\xef\xbf\xbd\xef\xbf\xbd", "t", false}, {"\xff\xfe", "t", true}, {"\xfe\xff", "\xff", true}, {"c", "\xfe", true}} {
			body := fmt.Sprintf(`{"clientId":"%s","consumerGroup":"g","mqSet":[{"brokerName":"a","queueId":0,"topic":"%s"}]}`, lock.client, lock.topic)
			f := p.must(n, mq.CodeLockQueues, nil, []byte(body))
			if got := strings.Contains(string(f.Body), "queueId"); got != lock.got {
				c.T.Errorf("client %q, topic %q: locked %v, want %v", lock.client, lock.topic, got, lock.got)
			}
		}
	})
}

// TestLocksAreOfQueuesOfThisGroup: a queue of another group is neither locked nor confirmed, also where this one has the same queue and the client holds it.
func TestLocksAreOfQueuesOfThisGroup(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		of := func(broker string, id int32) mq.MessageQueue {
			return mq.MessageQueue{BrokerName: broker, Topic: "t", QueueID: id}
		}
		for _, lock := range []struct {
			client    string
			asks, got []mq.MessageQueue
		}{
			{"b", []mq.MessageQueue{of("other", 0)}, nil},
			{"a", []mq.MessageQueue{of("a", 0), of("other", 0), of("", 1)}, []mq.MessageQueue{of("a", 0), of("", 1)}},
			{"a", []mq.MessageQueue{of("other", 0), of("other", 1)}, nil},
		} {
			var a mq.LockAnswer
			if err := mq.Unmarshal(p.must(n, mq.CodeLockQueues, nil, mq.Marshal(mq.LockRequest{ClientID: lock.client, ConsumerGroup: "g", Queues: lock.asks})).Body, &a); err != nil {
				c.T.Fatal(err)
			}
			equal(c.T, lock.client, a.Queues, lock.got)
		}
	})
}

// TestLocksThatNobodyHoldsAreForgotten, whoever took them.
func TestLocksThatNobodyHoldsAreForgotten(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		lock := func(group string, queue int) *mq.LockAnswer {
			body := fmt.Sprintf(`{"clientId":"a","consumerGroup":"%s","mqSet":[{"brokerName":"a","queueId":%d,"topic":"t"}]}`, group, queue)
			var a mq.LockAnswer
			if err := mq.Unmarshal(p.must(n, mq.CodeLockQueues, nil, []byte(body)).Body, &a); err != nil {
				c.T.Fatal(err)
			}
			return &a
		}
		for i := range 50 {
			lock(fmt.Sprint("g", i), i)
		}
		time.Sleep(2 * lockLife)
		p = c.client("10.1.0.2") // the connection was idle for too long
		lock("g", 0)
		m := c.brokers[n].meta
		m.mu.RLock()
		defer m.mu.RUnlock()
		if len(m.state.Locks) != 1 || m.state.locks != 1 || len(m.state.Locks["g"]) != 1 {
			c.T.Errorf("%d locks of %d groups are kept", m.state.locks, len(m.state.Locks))
		}
	})
}

// TestPoisonMessageOfAnOrderedConsumerGoesToItsDeadLetters: clients up to 5.1.3 send one that has been tried often enough with the limit itself, not one more, so while a
// group holds a queue, what it sends to its retry topic is at its end. Once no lock is in force, the limit decides again.
func TestPoisonMessageOfAnOrderedConsumerGoesToItsDeadLetters(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"g","retryQueueNums":1,"retryMaxTimes":16}`))
		p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"other","retryQueueNums":1,"retryMaxTimes":16}`))
		locks := func(code int32, group string) {
			body := `{"clientId":"c","consumerGroup":"` + group + `","mqSet":[{"brokerName":"a","queueId":0,"topic":"t"}]}`
			p.must(n, code, nil, []byte(body))
		}
		again := func(body string, times int) {
			f := p.must(n, mq.CodeSend, sendExt("%RETRY%g", 0, "producerGroup", "CLIENT_INNER_PRODUCER", "reconsumeTimes", times, "maxReconsumeTimes", 16, "properties", "DELAY\x013\x02"), []byte(body))
			pos, err := strconv.ParseInt(f.Ext["msgId"][16:], 16, 64)
			if err != nil {
				c.T.Fatal(err)
			}
			c.Wait("the message in its queue", func() bool { return c.brokers[n].store.DispatchedTo() > pos })
		}
		dead := func(when string, want ...string) {
			c.T.Helper()
			var got []string
			for rest := p.call(n, mq.CodePull, pullExt("r", mq.DLQTopic("g"), 0, 0, 0), nil).Body; len(rest) > 0; {
				m, size, err := mq.ParseStored(rest)
				if err != nil {
					c.T.Fatal(err)
				}
				if level := m.Prop(mq.PropDelay); level != "-1" {
					c.T.Errorf("%s: %s has delay level %q, want the original's -1", when, m.Body, level)
				}
				got, rest = append(got, string(m.Body)), rest[size:]
			}
			equal(c.T, when, got, want)
		}
		again("free", 16)
		dead("nobody holds a queue")
		again("past the limit", 17)
		dead("one more than the limit", "past the limit")
		locks(mq.CodeLockQueues, "other")
		again("other", 16)
		dead("another group holds a queue", "past the limit")
		locks(mq.CodeLockQueues, "g")
		again("held", 16)
		dead("the group holds a queue", "past the limit", "held")
		locks(mq.CodeUnlockQueues, "g")
		again("given back", 16)
		dead("it was given back", "past the limit", "held")
		locks(mq.CodeLockQueues, "g")
		time.Sleep(lockLife + time.Second)
		p = c.client("10.1.0.2") // the connection was idle for too long
		again("expired", 16)
		dead("it has expired", "past the limit", "held")
	})
}
