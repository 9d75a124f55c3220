package broker

import (
	"fmt"
	"strings"
	"testing"

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
