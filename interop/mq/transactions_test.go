package mq

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"dledger/internal/figure"
	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// A thousand transactions of a stock Go producer, half committed, a quarter rolled back, a quarter of which the producer says at first that it
// does not know and later, asked by the broker, commits every other one; meanwhile the leader is killed, and a leader gives its group away. What
// was to be committed is in its queue and received, what was not is not, and no half message is committed twice.
func TestTransactionsComeOutAsDecided(t *testing.T) {
	const count = 1000
	c := started(t, subject{"ours", oursKind, oursKind})
	s := &scene{script: "decided", topic: "decided", ctx: within(t, 8*time.Minute), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(s.ctx, s.topic, 4))
	got := &bodies{}
	_, err := s.consumer("_g", consumer.MessageSelector{}, got.listen)
	must(t, err)
	v := &laterVerdicts{}
	p, err := rocketmq.NewTransactionProducer(v, producer.WithNameServer(s.names()), producer.WithGroupName("decided_producer"), producer.WithInstanceName("decided_p"))
	must(t, err)
	s.ends = append(s.ends, p.Shutdown)
	must(t, p.Start())

	const senders = 8
	var mu sync.Mutex
	wanted := map[string]bool{} // body → whether it is to be received, of the half messages that were taken
	var tries, taken atomic.Int64
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for {
				i := tries.Add(1) - 1
				if taken.Load() >= count || s.ctx.Err() != nil {
					return
				}
				kind := []string{"commit", "commit", "rollback", "unknown"}[i%4]
				body := fmt.Sprintf("%s %d", kind, i)
				_, err := p.SendMessageInTransaction(s.ctx, primitive.NewMessage(s.topic, []byte(body)))
				if err != nil { // the half message may have been taken; then the broker asks, and either outcome is right
					time.Sleep(20 * time.Millisecond) // the client may refuse without asking anybody
					continue
				}
				mu.Lock()
				wanted[body] = kind == "commit" || kind == "unknown" && i%8 == 3
				mu.Unlock()
				taken.Add(1)
			}
		})
	}
	at := func(n int64) {
		t.Helper()
		if err := harness.Until(within(t, 2*time.Minute), fmt.Sprintf("%d transactions", n), func() bool { return taken.Load() >= n }); err != nil {
			t.Fatalf("%v\n%s", err, c.Logs())
		}
	}
	at(count * 3 / 10)
	n, err := c.Leader(s.ctx, cluster.BrokerName)
	must(t, err)
	n.Kill()
	must(t, c.Ready(s.ctx, 1))
	must(t, n.Start())
	at(count * 7 / 10)
	if n, err = c.Leader(s.ctx, cluster.BrokerName); err != nil {
		t.Fatal(err)
	}
	must(t, n.Term())
	wg.Wait()
	missing := func() (n int) {
		got.mu.Lock()
		defer got.mu.Unlock()
		for body, want := range wanted {
			if want && got.count[body] == 0 {
				n++
			}
		}
		return n
	}
	if err := harness.Until(within(t, 2*time.Minute), "all that was committed", func() bool { return missing() == 0 }); err != nil {
		t.Errorf("%v: %d are missing\n%s", err, missing(), c.Logs())
	}
	asked := int(v.asked.Load())
	_ = harness.Until(within(t, 10*time.Second), "what should not come", func() bool { return false }) // the time is what counts
	stored, ofHalf, again := map[string]int{}, map[int64]string{}, 0
	for _, m := range newTraffic().messages(t, s, []string{cluster.BrokerName}) {
		body := string(m.Body)
		if stored[body]++; stored[body] > 1 {
			again++ // its half was: the outcome of a send was lost, and the client sent it once more
		}
		if old, twice := ofHalf[m.PreparedTransactionOffset]; twice {
			t.Errorf("the half message at %d was committed twice, as %s and as %s", m.PreparedTransactionOffset, old, body)
		}
		ofHalf[m.PreparedTransactionOffset] = body
	}
	wrong := 0
	got.mu.Lock()
	defer got.mu.Unlock()
	for body, want := range wanted {
		if n := stored[body]; want != (n > 0) || !want && got.count[body] > 0 {
			if wrong++; wrong < 10 {
				t.Errorf("%s: to be received: %t; it is in its queue %d times and was received %d times", body, want, n, got.count[body])
			}
		}
	}
	figure.Log(t, "counts: a leader killed, another one ended in an orderly way; %d transactions taken of %d tried; the broker asked %d times; %d messages received, %d of them again; %d halves were stored again", len(wanted), tries.Load(), asked, got.total, got.total-len(got.count), again)
}

// laterVerdicts decides by the body, and for some only when it is asked.
type laterVerdicts struct{ asked atomic.Int64 }

func (v *laterVerdicts) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	kind, _, _ := strings.Cut(string(m.Body), " ")
	switch kind {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	default:
		return primitive.UnkonwnState
	}
}

func (v *laterVerdicts) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	v.asked.Add(1)
	var kind string
	var i int
	if _, err := fmt.Sscanf(string(m.Body), "%s %d", &kind, &i); err != nil {
		return primitive.UnkonwnState // it is none of ours
	}
	if kind == "commit" || kind == "unknown" && i%8 == 3 {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}
