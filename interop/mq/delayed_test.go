package mq

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"dledger/internal/figure"
	"dledger/interop/mq/cluster"
)

// ends is how many messages there are in the four queues of the topic, -1 if not all ends are known.
func (w *worked) ends() (sum int) {
	for queue := range 4 {
		a, err := cluster.Ask(w.s.ctx, w.c.Nodes[0].Addrs[0], 30, map[string]string{"topic": w.s.topic, "queueId": strconv.Itoa(queue)}, nil)
		n, bad := strconv.Atoi(a.Fields["offset"])
		if err != nil || a.Code != 0 || bad != nil {
			return -1
		}
		sum += n
	}
	return sum
}

// lateMax is how long after it is due a delayed message is in its queue, whatever happens to leaders.
const lateMax = 5 * time.Second

// timerEarlyMax is how long before its time a timer message may be in its queue: as the original's, whose wheel counts seconds, ours are due at the whole second before.
const timerEarlyMax = time.Second

// later is a way in which a message is sent that is to come later.
type later struct {
	name  string
	mark  func(m *primitive.Message, delay time.Duration, level int)
	early time.Duration // how long before its time it may come
}

var laters = []later{
	{"level", func(m *primitive.Message, _ time.Duration, level int) { m.WithDelayTimeLevel(level) }, 0},
	{"timer", func(m *primitive.Message, delay time.Duration, _ int) {
		m.WithProperty("TIMER_DELAY_MS", strconv.FormatInt(delay.Milliseconds(), 10))
	}, timerEarlyMax},
}

// Delayed messages of a stock Go producer, with levels and with a time of their own (timer messages of 5.x), fall due while leaders are killed, hand over, and end. Each that was
// acknowledged is in its queue at least once, never before its time and never more than five seconds after; in the long form it is waited for that a stock consumer has it.
func TestDelayedMessagesComeInTimeOverFailovers(t *testing.T) {
	c := started(t, subject{"ours", oursKind, oursKind})
	s := &scene{script: "late", topic: "late", ctx: within(t, time.Hour), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(s.ctx, s.topic, 4))
	w := &worked{t: t, c: c, s: s, f: newTraffic(), began: time.Now()} // for its ways to lead and to wait

	type sent struct{ due, dueMax time.Time } // due is when it may come, dueMax when it has to, but for lateMax
	var mu sync.Mutex
	all := map[string]sent{}
	got := map[string]time.Time{}
	_, err := s.consumer("_g", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			if _, again := got[string(m.Body)]; !again {
				got[string(m.Body)] = time.Now()
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	must(t, err)
	p, err := s.producer()
	must(t, err)
	sending, stop := context.WithCancel(s.ctx)
	defer stop()
	var wg sync.WaitGroup
	failed := 0
	for sender := range 4 {
		wg.Go(func() {
			way := laters[sender%len(laters)]
			for i := range ticks(sending, 10*time.Millisecond) {
				level := i%3 + 1
				delay := []time.Duration{time.Second, 5 * time.Second, 10 * time.Second}[level-1]
				m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "%s %d of %d", way.name, i, sender))
				way.mark(m, delay, level)
				began := time.Now()
				_, err := p.SendSync(context.Background(), m) // to its end: a send that is cut short tells nothing
				mu.Lock()
				if err != nil {
					failed++
				} else {
					all[string(m.Body)] = sent{began.Add(delay - way.early), time.Now().Add(delay)}
				}
				mu.Unlock()
			}
		})
	}
	more := func(what string) {
		t.Helper()
		mu.Lock()
		want := len(all) + 100
		mu.Unlock()
		w.until("delayed messages that are taken after "+what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(all) >= want
		})
		w.note("delayed messages are taken after %s", what)
	}
	more("the start")
	times := rounds(1, 20)
	for range times {
		n, err := c.Leader(within(t, time.Minute), cluster.BrokerName)
		must(t, err)
		n.Kill()
		must(t, c.Ready(within(t, time.Minute), 1))
		must(t, n.Start())
		more("kill -9 of " + n.ID)

		n, err = c.Leader(within(t, time.Minute), cluster.BrokerName)
		must(t, err)
		to := c.Nodes[(slices.Index(c.Nodes, n)+1)%len(c.Nodes)]
		w.handOver(to)
		more("the hand-over from " + n.ID + " to " + to.ID)
	}
	stop()
	wg.Wait()
	// Those of ten seconds are still on their way. A stock consumer may ask a dead node for up to 30 s.
	var due map[string]time.Time // when a message was in its queue first
	read, copies := 0, 0
	w.until("all delayed messages in their queues", func() bool {
		n := w.ends()
		if n < len(all) || n == read {
			return false
		}
		due = map[string]time.Time{}
		stored := newTraffic().messages(t, s, []string{cluster.BrokerName})
		for _, m := range stored {
			at, body := time.UnixMilli(m.StoreTimestamp), string(m.Body)
			if old, again := due[body]; !again || at.Before(old) {
				due[body] = at
			}
		}
		read, copies = len(stored), len(stored)-len(due)
		for body := range all {
			if due[body].IsZero() {
				return false
			}
		}
		return true
	})
	if os.Getenv("INTEROP_LONG") != "" {
		w.until("a consumer to get all delayed messages", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for body := range all {
				if got[body].IsZero() {
					return false
				}
			}
			return true
		})
	}
	latest, taken := map[string]time.Duration{}, map[string]int{} // by way
	var seen time.Duration
	faults := 0
	for body, want := range all {
		at := due[body]
		way, _, _ := strings.Cut(body, " ")
		taken[way]++
		switch {
		case at.Before(want.due.Truncate(time.Millisecond)):
			t.Errorf("%s is in its queue %v before it is due", body, want.due.Sub(at))
			faults++
		case at.Sub(want.dueMax) > lateMax:
			t.Errorf("%s is in its queue %v after it is due", body, at.Sub(want.dueMax))
			faults++
		}
		if faults == 20 {
			t.Fatal(c.Logs())
		}
		if late, known := latest[way]; !known || at.Sub(want.dueMax) > late {
			latest[way] = at.Sub(want.dueMax)
		}
		if !got[body].IsZero() {
			seen = max(seen, got[body].Sub(want.dueMax))
		}
	}
	figure.Log(t, "counts: %d leaders killed, as many hand-overs; %d delayed messages taken, %d sends failed; %d with levels are in their queues %v after they were due at most, %d with a time of their own %v; %d of them again; "+
		"a consumer has got %d, %v after at most", times, len(all), failed, taken["level"], latest["level"].Round(time.Millisecond), taken["timer"], latest["timer"].Round(time.Millisecond),
		copies, len(got), seen.Round(time.Millisecond))
	for _, way := range laters {
		if taken[way.name] < 50 {
			t.Errorf("%d messages of kind %s only", taken[way.name], way.name)
		}
	}
	if t.Failed() {
		t.Log(c.Logs())
	}
}
