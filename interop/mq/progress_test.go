package mq

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/interop/harness"
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

// watch asks until the test ends how far the groups of a topic are in each of four queues, for judging repeats by how much progress may go back: the brokers' groups are those
// that each node serves at its addresses, in this order.
func (f *traffic) watch(t *testing.T, c *cluster.Cluster, topic string, brokers []string, backMax time.Duration) {
	t.Helper()
	f.mu.Lock()
	f.repeatMax = backMax + listenMax
	groups := append(slices.Sorted(maps.Keys(f.got)), ordered)
	f.mu.Unlock()
	ctx := within(t, 2*time.Hour)
	var done sync.WaitGroup
	t.Cleanup(done.Wait)
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	done.Go(func() {
		for range ticks(ctx, 300*time.Millisecond) {
			for i, broker := range brokers {
				for _, group := range groups {
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

// known waits until the groups of one consumer were seen to have committed, which clients do every five seconds: before that nothing that comes again would be judged.
func (f *traffic) known(t *testing.T) {
	t.Helper()
	err := harness.Until(within(t, time.Minute), "offsets of all groups", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.unknown()) == 0
	})
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		t.Fatalf("%v: none of %q", err, f.unknown())
	}
}

// unknown are the groups of one consumer of which no broker was seen to know progress. Its caller holds mu.
func (f *traffic) unknown() (groups []string) {
	for _, group := range []string{alone, ordered} {
		known := func(key string) bool {
			c := f.commits[key]
			return strings.HasPrefix(key, group+"/") && c[len(c)-1].offset > 0
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(f.commits)), known) {
			groups = append(groups, group)
		}
	}
	return groups
}

// again notes a repeat, which may be of what the group had not committed, or shortly before. It does not hold the shared group to that: of two consumers one may commit less
// than the other has while both think that a queue is theirs. Its caller holds mu.
func (f *traffic) again(group string, at place) {
	d := f.commits[fmt.Sprintf("%s/%s/%d", group, at.broker, at.queue)].past(at.offset)
	if d == 0 {
		f.uncommitted++
		return
	}
	if group == shared {
		return
	}
	f.overtaken = max(f.overtaken, d)
	if d > f.repeatMax {
		f.fault("group %s got %s again, which brokers had known as committed for %v", group, at, d.Round(time.Millisecond))
	}
}

// How much acknowledged progress may go with a leader. Offsets go into the log every 200 ms, and 0.3 s are seen to go with a leader that dies; one that is cut off takes offsets
// until it has missed the majority for an election's time, 0.8 s: 0.4 s to 0.8 s are seen. The rest is for a machine that does other things.
const (
	diedMax = 1500 * time.Millisecond
	cutMax  = 2500 * time.Millisecond
)

// listenMax is how long a client may take from what an offset was when it asked for it to its listener: a Go client waits as long for the answer. A repeat may come so long
// after what it repeats was known as committed, and as long as progress may go back.
const listenMax = 3 * time.Second

// probe is a consumer that commits rising offsets, one after the other, at a replica of chance, and asks another one before each how far it is:
// what comes back may be less than what was acknowledged only by what the leader had not given to the log when it went.
type probe struct {
	stop   func()
	done   sync.WaitGroup
	enough chan struct{} // closed when as many offsets are committed as make a probe

	max      time.Duration // how much may be lost
	acked    []time.Time   // when offset i was acknowledged; zero = it was not
	last     int           // the highest that was
	falls    int
	lost     time.Duration // the longest stretch of acknowledged offsets that was gone
	refused  int
	reported error
}

// probed starts a probe of the broker group that each node serves at its first address.
func probed(t *testing.T, c *cluster.Cluster, topic string, backMax time.Duration) *probe {
	t.Helper()
	p := &probe{last: -1, max: backMax, enough: make(chan struct{})}
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
	if p.lost > p.max {
		t.Errorf("progress that was acknowledged over %v was lost, %v may be", p.lost, p.max)
	}
}
