package broker

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
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

// TestPullsTellTheFlagsOfTopicAndGroup, as tools have set them.
func TestPullsTellTheFlagsOfTopicAndGroup(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeCreateTopic, ext("topic", "t", "defaultTopic", mq.TopicDefault, "readQueueNums", 1, "writeQueueNums", 1, "perm", 6, "topicFilterType", "SINGLE_TAG", "topicSysFlag", 2, "order", false), nil)
		p.must(n, mq.CodeCreateGroup, nil, []byte(`{"groupName":"g","groupSysFlag":5}`))
		if f := p.call(n, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil); f.Ext["topicSysFlag"] != "2" || f.Ext["groupSysFlag"] != "5" {
			c.T.Errorf("code %d, %v", f.Code, f.Ext)
		}
	})
}

// backlog stores messages in queue 0 of topic t that nobody has consumed; each has a number as its property.
func (c *cluster) backlog(id string, n int) {
	c.T.Helper()
	c.client("10.1.0.9").must(id, mq.CodeUpdateBrokerConfig, nil, []byte("enablePropertyFilter=true\n"))
	c.client("10.1.0.9").must(id, mq.CodeSend, sendExt("t", 0), []byte("x"))
	b := c.brokers[id]
	for at := 1; at < n; {
		var msgs []*mq.Message
		for ; at < n && len(msgs) < 500; at++ {
			msgs = append(msgs, &mq.Message{Topic: "t", Body: []byte("x"), BornTime: 1, BornHost: b.host, Properties: mq.PropSet("", "number", fmt.Sprint(at))})
		}
		term, _ := b.ledger.Leading()
		if err := b.keepFor(c.T.Context(), term, msgs); err != nil {
			c.T.Fatal(err)
		}
	}
}

// A pull whose filter wants nothing in a long backlog tells its client now and then how far it is: else the client, which waits 30 s, would have it begin anew, and
// the connection's other requests would wait.
func TestPullTellsHowFarItHasPassedOver(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		c.backlog(n, 2*passOverMax+2000)
		p := c.client("10.1.0.1")
		for at, want := range []string{"16000", "32000"} {
			begin := time.Now()
			f := p.call(n, mq.CodePull, pullExt("g", "t", 0, int64(at*passOverMax), 15000, "subscription", "number = '33999'", "expressionType", "SQL92"), nil)
			if f.Code != mq.PullRetryImmediately || f.Ext["nextBeginOffset"] != want || time.Since(begin) > passOverTime {
				c.T.Errorf("pull from %d: code %d, next %s after %v, want %d and %s", at*passOverMax, f.Code, f.Ext["nextBeginOffset"], time.Since(begin), mq.PullRetryImmediately, want)
			}
		}
		f := p.must(n, mq.CodePull, pullExt("g", "t", 0, 2*passOverMax, 15000, "subscription", "number = '33999'", "expressionType", "SQL92"), nil)
		if _, at := bodies(c.T, f.Body); len(at) != 1 || at[0] != 33999 {
			c.T.Errorf("found %v, want 33999", at)
		}
	})
}

// slowFilter wants nothing, and takes its time.
type slowFilter func()

func (slowFilter) MatchCode(int64) bool { return true }
func (s slowFilter) Match([]byte) bool  { s(); return false }

// Pulls that are woken are worked on by one goroutine. One that passes over a backlog that comes slowly from the disk lets the others have their turns, and ends after
// a second whatever is left.
func TestWokenPullsTakeTurns(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		c.backlog(n, 5000)
		b := c.brokers[n]
		p := c.client("10.1.0.1")
		var looked atomic.Int64
		got := make(chan time.Time, 1)
		go func() {
			p.must(n, mq.CodePull, pullExt("g", "t", 1, 0, 15000), nil)
			got <- time.Now()
		}()
		c.Wait("the pull to be held", func() bool { return b.polls.count.Load() == 1 })
		begin := time.Now()
		b.polls.mu.Lock()
		r := &request{b: b, session: b.polls.times[0].r.session, ref: (&remoting.Frame{Header: remoting.Header{Flag: 2}}).Ref()} // one-way: it is not answered
		slow := &pull{r: r, group: "g", key: queueKey{"t", 0}, msgs: 32, bytes: pullBytesMax, index: -1, began: begin, due: begin.Add(time.Minute)}
		slow.filter = slowFilter(func() { looked.Add(1); time.Sleep(500 * time.Microsecond) })
		b.polls.woken = append(b.polls.woken, slow)
		b.polls.mu.Unlock()
		b.polls.kick()
		p.must(n, mq.CodeSend, sendExt("t", 1), []byte("x"))
		if d := (<-got).Sub(begin); d == 0 || d > passOverTime/2 {
			c.T.Errorf("a message came after %v, behind another pull that passes messages over", d)
		}
		time.Sleep(passOverTime) // more than it may take from now on
		if n := looked.Load(); n < 1600 || n > 2400 {
			c.T.Errorf("%d messages were looked at, 2 in a millisecond; want those of a second", n)
		}
	})
}
