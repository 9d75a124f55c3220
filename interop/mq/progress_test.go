package mq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/interop/mq/cluster"
)

// committed is what brokers were seen to know of a consumer group's progress in one queue: runs of equal answers, in order.
type committed []known

type known struct {
	offset      int64
	first, last time.Time
}

// past tells for how long brokers knew that a group was past a message: until they were seen to have forgotten it, which a later repeat explains, or until now.
func (c committed) past(offset int64) time.Duration {
	i := len(c) - 1
	now := time.Now()
	for i >= 0 && c[i].offset > offset { // what they know now
		i--
	}
	if i >= 0 && slices.ContainsFunc(c[:i], func(k known) bool { return k.offset > offset }) { // and have forgotten before
		for c[i].offset <= offset {
			i--
		}
		now = c[i].last
		for i >= 0 && c[i].offset > offset {
			i--
		}
	}
	if i+1 == len(c) {
		return 0
	}
	return now.Sub(c[i+1].first)
}

// watch asks until the test ends how far the groups of a topic are in each of four queues, for judging repeats: the brokers' groups are those that each
// node serves at its addresses, in this order.
func (f *traffic) watch(t *testing.T, c *cluster.Cluster, topic string, brokers []string) {
	t.Helper()
	ctx := within(t, 2*time.Hour)
	var done sync.WaitGroup
	t.Cleanup(done.Wait)
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	done.Go(func() {
		for range ticks(ctx, 300*time.Millisecond) {
			for i, broker := range brokers {
				for _, group := range []string{"_g", "_ordered"} {
					for queue := range 4 {
						addr := c.Nodes[rand.IntN(len(c.Nodes))].Addrs[i]
						a, err := cluster.Ask(ctx, addr, 14, map[string]string{"topic": topic, "consumerGroup": topic + group, "queueId": strconv.Itoa(queue), "setZeroIfNotFound": "false"}, nil)
						offset, bad := strconv.ParseInt(a.Fields["offset"], 10, 64)
						if err == nil && a.Code == 0 && bad == nil { // else the node is down, or the group has not committed
							f.commit(fmt.Sprintf("%s/%s/%d", group, broker, queue), offset)
						}
					}
				}
			}
		}
	})
}

func (f *traffic) commit(key string, offset int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, now := f.commits[key], time.Now()
	if n := len(c); n > 0 && c[n-1].offset == offset {
		c[n-1].last = now
		return
	}
	f.commits[key] = append(c, known{offset, now, now})
}

// again notes a repeat, which may be of what the group had not committed, or shortly before. It does not hold group _g to that: of two consumers one may commit less than the
// other has while both think that a queue is theirs. Its caller holds mu.
func (f *traffic) again(group string, at place) {
	d := f.commits[fmt.Sprintf("%s/%s/%d", group, at.broker, at.queue)].past(at.offset)
	if d == 0 {
		f.uncommitted++
		return
	}
	if group == "_g" {
		return
	}
	f.overtaken = max(f.overtaken, d)
	if d > repeatMax {
		f.fault("group %s got %s again, which brokers had known as committed for %v", group, at, d.Round(time.Millisecond))
	}
}

// repeatMax is for how long brokers may have known that a group is past a message that it gets again: as long as what was acknowledged may be lost with a leader, and as
// long as a client may take from asking for the offset to its listener.
const repeatMax = 2 * intervalMax

// probe is a consumer that commits rising offsets, one after the other, at a replica of chance, and asks another one before each how far it is:
// what comes back may be less than what was acknowledged only by what the leader had not given to the log when it went.
type probe struct {
	stop   func()
	done   sync.WaitGroup
	enough chan struct{} // closed when as many offsets are committed as make a probe

	acked    []time.Time // when offset i was acknowledged; zero = it was not
	last     int         // the highest that was
	falls    int
	lost     time.Duration // the longest stretch of acknowledged offsets that was gone
	refused  int
	reported error
}

// probed starts a probe of the broker group that each node serves at its first address.
func probed(t *testing.T, c *cluster.Cluster, topic string) *probe {
	t.Helper()
	p := &probe{last: -1, enough: make(chan struct{})}
	ctx, stop := context.WithCancel(within(t, time.Hour))
	p.stop = stop
	t.Cleanup(stop)
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addrs[0])
	}
	group := topic + "_probe"
	a, err := cluster.Ask(ctx, addrs[0], 200, nil, fmt.Appendf(nil, `{"groupName":%q}`, group))
	if err != nil || a.Code != 0 {
		t.Fatalf("new group: %d %s %v", a.Code, a.Remark, err)
	}
	ask := func(code int, more map[string]string) (cluster.Answer, bool) {
		more["topic"], more["consumerGroup"], more["queueId"] = topic, group, "0"
		a, err := cluster.Ask(ctx, addrs[rand.IntN(len(addrs))], code, more, nil)
		if err != nil || a.Code != 0 && a.Code != 22 {
			p.refused++ // a node that is down, or nobody leads
			return a, false
		}
		return a, true
	}
	p.done.Go(func() {
		acked := 0
		for range ticks(ctx, 20*time.Millisecond) {
			before := p.last
			a, ok := ask(14, map[string]string{"setZeroIfNotFound": "false"})
			if !ok {
				continue
			}
			at, err := strconv.Atoi(a.Fields["offset"])
			if a.Code == 22 {
				at, err = -1, nil // all that was committed since the start may be gone
			}
			switch {
			case err != nil || at >= len(p.acked):
				p.reported = fmt.Errorf("offset %q, the highest that was committed is %d", a.Fields["offset"], len(p.acked)-1)
			case at < before:
				p.falls++
				first := at + 1
				for p.acked[first].IsZero() {
					first++
				}
				p.lost = max(p.lost, p.acked[before].Sub(p.acked[first]))
			}
			next := len(p.acked)
			p.acked = append(p.acked, time.Time{})
			if _, ok := ask(15, map[string]string{"commitOffset": strconv.Itoa(next)}); ok {
				p.acked[next], p.last = time.Now(), next
				if acked++; acked == probedMin {
					close(p.enough)
				}
			}
		}
	})
	return p
}

// intervalMax is how much acknowledged progress may go with a leader. Offsets go into the log every 200 ms; a leader that is cut off does not know for a second or
// two; the rest is for a machine that does other things.
const intervalMax = 5 * time.Second

// probedMin is how many offsets a probe commits at least.
const probedMin = 10

func (p *probe) finish(t *testing.T) {
	t.Helper()
	select { // where requests are lost one may take as long as its sender waits
	case <-p.enough:
	case <-within(t, time.Minute).Done():
		t.Errorf("the probe has not committed %d offsets", probedMin)
	}
	p.stop()
	p.done.Wait()
	figure.Log(t, "counts: %d offsets committed, %d requests without an answer meanwhile; progress went back %d times, by what was acknowledged in %v at most",
		p.last+1, p.refused, p.falls, p.lost.Round(time.Millisecond))
	if p.reported != nil {
		t.Error(p.reported)
	}
	if p.lost > intervalMax {
		t.Errorf("progress that was acknowledged over %v was lost", p.lost)
	}
}
