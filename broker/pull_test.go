package broker

import (
	"sync"
	"testing"

	"dledger/internal/mq"
)

// Pulls that pass messages over are held and woken all the time while messages arrive; the race detector looks on.
func TestPullsAreHeldWhileMessagesArrive(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		p := c.client("10.1.0.9")
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("enablePropertyFilter=true\n"))
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		stop := make(chan struct{})
		var sends, pulls sync.WaitGroup
		for range 3 {
			p := c.client("10.1.0.1")
			sends.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
					}
				}
			})
		}
		for range 16 {
			q := c.client("10.1.0.2")
			pulls.Go(func() {
				for at := int64(1); at < 300; {
					f := q.call(n, mq.CodePull, pullExt("g", "t", 0, at, 3, "subscription", "a = '1'", "expressionType", "SQL92"), nil)
					if f.Code != mq.PullRetryImmediately && f.Code != mq.PullNotFound {
						c.T.Errorf("pull: code %d, %s", f.Code, f.Remark)
						return
					}
					next := int64(mustInt(f.Ext["nextBeginOffset"]))
					if next < at {
						c.T.Errorf("from %d on to %d", at, next)
						return
					}
					at = next
				}
			})
		}
		pulls.Wait()
		close(stop)
		sends.Wait()
	})
}
