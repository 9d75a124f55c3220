package mq

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// A live group of stock brokers becomes ours, node by node, under load: the followers first, then the leader, which comes back once more as a stock one, so
// that each kind leads the other. What was acknowledged is in its place and was received, whoever led. While a stock broker can become leader, elections take
// the stock time, and sends of a single group's producer fail meanwhile; they are counted.
//
// A few minutes: INTEROP_LONG=1.
func TestJavaGroupIsMovedNodeByNode(t *testing.T) {
	if os.Getenv("INTEROP_LONG") == "" {
		t.Skip("takes minutes: INTEROP_LONG=1")
	}
	original, ours := originalKind(t), oursKind(t)
	c, err := cluster.Start(scratch(t), ours, original)
	must(t, err)
	t.Cleanup(c.Kill)
	must(t, c.Ready(within(t, 2*time.Minute), 1))
	s := &scene{script: "mixed", topic: "mixed", ctx: within(t, 8*time.Minute), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(s.ctx, s.topic, 4))

	f := newTraffic()
	_, err = s.consumer("_g", consumer.MessageSelector{}, f.listen)
	must(t, err)
	sending, stop := context.WithCancel(s.ctx)
	defer stop()
	var wg sync.WaitGroup
	for i := range 2 {
		p, err := rocketmq.NewProducer(producer.WithNameServer(s.names()), producer.WithGroupName("mixed_producer"),
			producer.WithInstanceName(fmt.Sprintf("mixed_p%d", i)), producer.WithRetry(2))
		must(t, err)
		must(t, p.Start())
		s.ends = append(s.ends, p.Shutdown)
		wg.Go(func() { f.produce(sending, p, s.topic, fmt.Sprintf("p%d", i)) })
	}
	taken := func(what string) {
		t.Helper()
		began, before := time.Now(), f.taken()
		err := harness.Until(within(t, 2*time.Minute), "a message after "+what, func() bool { return f.taken() > before+2 }) // two may have been on their way
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Logs())
		}
		t.Logf("%s: the group takes messages after %v", what, time.Since(began).Round(time.Millisecond))
	}
	leader := func() *cluster.Node {
		t.Helper()
		var n *cluster.Node
		must(t, harness.Until(within(t, time.Minute), "a leader", func() bool {
			leaders, err := c.Leaders(s.ctx)
			if err == nil {
				n = c.NodeAt(leaders[cluster.BrokerName])
			}
			return n != nil
		}))
		return n
	}
	// level waits until a node holds a message that was acknowledged just now. Ours is asked for the message itself, since it would pass a question for the
	// end of a queue on to the leader; a stock follower refuses that while it does not know the group yet, and is asked for the end.
	level := func(n *cluster.Node, stock bool) {
		t.Helper()
		taken("the start of " + n.ID)
		want := f.newest()
		var last cluster.Answer
		err := harness.Until(within(t, time.Minute), n.ID+" to be level", func() bool {
			var err error
			queue := fmt.Sprint(want.queue)
			if stock {
				last, err = cluster.Ask(s.ctx, n.Addrs[0], 30, map[string]string{"topic": s.topic, "queueId": queue}, nil)
				end, bad := strconv.ParseInt(last.Fields["offset"], 10, 64)
				return err == nil && last.Code == 0 && bad == nil && end > want.offset
			}
			last, err = cluster.Ask(s.ctx, n.Addrs[0], 11, map[string]string{"consumerGroup": "mixed_g", "topic": s.topic, "queueId": queue, "queueOffset": fmt.Sprint(want.offset),
				"maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}, nil)
			return err == nil && last.Code == 0
		})
		if err != nil {
			t.Fatalf("%v: %+v\n%s", err, last, c.Logs())
		}
	}
	taken("the start of the stock group")

	for _, n := range c.Nodes {
		level(n, true)
	}
	first := leader()
	moved := 0
	for _, n := range c.Nodes {
		if n == first {
			continue
		}
		must(t, n.Stop(90 * time.Second))
		n.As(ours, "--set", "compat=0.3", "--set", "drainMaxMs=0")
		must(t, n.Start())
		moved++
		level(n, false)
		t.Logf("%s is ours, %d of 3", n.ID, moved)
	}
	must(t, first.Stop(90 * time.Second))
	taken("the stop of the stock leader")
	if n := leader(); n == first {
		t.Errorf("%s has ended and still leads", first.ID)
	}
	must(t, first.Start())
	level(first, true)
	t.Logf("%s follows one of ours", first.ID)
	must(t, first.Stop(90 * time.Second))
	first.As(ours, "--set", "compat=0.3", "--set", "drainMaxMs=0")
	must(t, first.Start())
	level(first, false)
	must(t, leader().Stop(90 * time.Second))
	taken("the stop of a leader of ours")
	stop()
	wg.Wait()

	stored := f.stored(t, s, []string{cluster.BrokerName})
	err = harness.Until(within(t, time.Minute), "the consumer to receive everything", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for at := range stored {
			if f.got[at] == 0 {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
	f.judge(t, stored, 20*moved)
	if t.Failed() {
		t.Log(c.Logs())
	}
}

// newest gives the place of a message that was acknowledged last in its queue.
func (f *traffic) newest() (at place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at.offset = -1
	for p := range f.acked {
		if p.offset > at.offset {
			at = p
		}
	}
	return at
}
