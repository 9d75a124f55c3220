package mq

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"dledger/internal/figure"
	"dledger/interop/mq/cluster"
)

// All three brokers are killed under load and started again. On each of them as leader the queues are whole and without a gap, and the last message that was
// acknowledged in each queue is found by key, by the client's id and by the broker's id.
func TestQueuesAndIndexesComeBackWithAllThree(t *testing.T) {
	c := started(t, subject{"ours", oursKind, oursKind})
	w := &worked{t: t, c: c, f: newTraffic(), began: time.Now()}
	w.s = &scene{script: "again", topic: "again", ctx: within(t, time.Hour), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = w.s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(w.s.ctx, w.s.topic, 4))
	times := rounds(1, 5)
	for round := range times {
		last := w.keyed(fmt.Sprintf("round%d", round))
		var wg sync.WaitGroup
		for _, n := range c.Nodes {
			wg.Go(n.Kill)
		}
		wg.Wait()
		results := last()
		w.note("kill -9 of all three")
		for _, n := range c.Nodes {
			must(t, n.Start())
		}
		must(t, c.Ready(within(t, time.Minute), 1))
		if len(results) != 4 {
			t.Fatalf("messages with keys were acknowledged in %d queues of 4", len(results))
		}
		for _, n := range c.Nodes {
			w.handOver(n)
			stored := w.f.stored(t, w.s, []string{cluster.BrokerName}) // fails where there is a gap
			for _, what := range misplaced(w.f.acked, stored) {
				t.Errorf("%s as leader: %s", n.ID, what)
			}
			for _, r := range results {
				w.found(n, r)
			}
		}
	}
	figure.Log(t, "counts: all three killed %d times, %d messages acknowledged", times, len(w.f.acked))
	w.equal()
}

// keyed sends messages, from four goroutines, whose key is their body, until what it gives is called: that gives the last acknowledged one of each queue, by queue.
func (w *worked) keyed(name string) (end func() map[int]keyedResult) {
	w.t.Helper()
	p, err := w.s.producer(producer.WithRetry(0), producer.WithSendMsgTimeout(3*time.Second))
	must(w.t, err)
	ctx, stop := context.WithCancel(w.s.ctx)
	w.t.Cleanup(stop)
	var mu sync.Mutex
	last := map[int]keyedResult{}
	taken := 0
	var wg sync.WaitGroup
	send := func(sender int) {
		for i := 0; ctx.Err() == nil; i++ {
			body := fmt.Sprintf("%s-%d-%d", name, sender, i)
			r, err := p.SendSync(context.Background(), primitive.NewMessage(w.s.topic, []byte(body)).WithKeys([]string{body}))
			if err != nil {
				time.Sleep(10 * time.Millisecond) // the client may refuse without asking anybody
				continue
			}
			mu.Lock()
			last[r.MessageQueue.QueueId] = keyedResult{r, body}
			w.f.ack(place{r.MessageQueue.BrokerName, r.MessageQueue.QueueId, r.QueueOffset}, told(r, body))
			taken++
			mu.Unlock()
		}
	}
	for sender := range 4 {
		wg.Go(func() { send(sender) })
	}
	w.until("messages with keys", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken >= 100
	})
	return func() map[int]keyedResult {
		stop()
		wg.Wait()
		return last
	}
}

type keyedResult struct {
	*primitive.SendResult
	body string
}

// found asks a node for one message in all ways.
func (w *worked) found(n *cluster.Node, r keyedResult) {
	w.t.Helper()
	id, err := hex.DecodeString(r.OffsetMsgID)
	if err != nil || len(id) != 16 {
		w.t.Fatalf("broker's id %q: %v", r.OffsetMsgID, err)
	}
	position := int64(0)
	for _, b := range id[8:] {
		position = position<<8 | int64(b)
	}
	query := func(key string, unique bool) map[string]string {
		return map[string]string{"topic": w.s.topic, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": strconv.FormatInt(math.MaxInt64, 10),
			"_UNIQUE_KEY_QUERY": strconv.FormatBool(unique)}
	}
	for _, way := range []struct {
		name   string
		code   int
		fields map[string]string
	}{
		{"key", 12, query(r.body, false)},
		{"client's id", 12, query(r.MsgID, true)},
		{"broker's id", 33, map[string]string{"offset": strconv.FormatInt(position, 10)}},
	} {
		a, err := cluster.Ask(w.s.ctx, n.Addrs[0], way.code, way.fields, nil)
		if err != nil || a.Code != 0 {
			w.t.Errorf("%s by %s at %s: code %d %s %v", r.body, way.name, n.ID, a.Code, a.Remark, err)
			continue
		}
		all := primitive.DecodeMessage(a.Body)
		if len(all) != 1 || string(all[0].Body) != r.body || all[0].QueueOffset != r.QueueOffset || int(all[0].Queue.QueueId) != r.MessageQueue.QueueId {
			w.t.Errorf("%s, queue %d offset %d, by %s at %s: %v", r.body, r.MessageQueue.QueueId, r.QueueOffset, way.name, n.ID, all)
		}
	}
}
