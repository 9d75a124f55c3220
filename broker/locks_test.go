package broker

import (
	"fmt"
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
