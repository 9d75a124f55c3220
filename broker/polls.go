package broker

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/mq"
)

// polls holds pulls until a message arrives that they want, or their time is over (PullRequestHoldService in the Java original).
//
//  1. a held pull is in exactly one of queues and woken, or worked on;
//  2. it is answered by the goroutine of run, never by the store's;
//  3. none is held whose connection has gone.
type polls struct {
	b     *Broker
	count atomic.Int64 // of held ones, so that a message in a queue nobody waits for costs nothing

	mu     sync.Mutex
	queues map[queueKey]map[*pull]struct{}
	times  pullHeap // by when to look next
	woken  []*pull
	wake   chan struct{}
	ended  bool
}

// hold keeps a pull until a message arrives, or for some time; false: there is no room. One of a connection that has gone is dropped.
func (h *polls) hold(p *pull, again time.Duration) bool {
	h.mu.Lock()
	if p.r.session.gone {
		h.mu.Unlock()
		return true
	}
	if h.ended || int(h.count.Load()) >= p.r.b.cfg.PullHeldMax {
		h.mu.Unlock()
		return false
	}
	p.r.again = false // what comes after has nothing to do with an earlier try
	p.look = p.due
	if look := time.Now().Add(again); look.Before(p.look) {
		p.look = look
	}
	q := h.queues[p.key]
	if q == nil {
		if h.queues == nil {
			h.queues = map[queueKey]map[*pull]struct{}{}
		}
		q = map[*pull]struct{}{}
		h.queues[p.key] = q
	}
	q[p] = struct{}{}
	s := p.r.session
	if s.pulls == nil {
		s.pulls = map[*pull]struct{}{}
	}
	s.pulls[p] = struct{}{}
	heap.Push(&h.times, p)
	first := h.times[0] == p
	h.count.Add(1)
	offset := p.offset // from now on others may work on it
	h.mu.Unlock()
	// A message that arrived before count rose has woken nobody.
	if again != unreadAgain && h.b.store.MaxOffset(p.key.Topic, p.key.ID) > offset {
		h.mu.Lock()
		if p.index >= 0 {
			h.release(p)
			h.woken = append(h.woken, p)
		}
		h.mu.Unlock()
		first = true
	}
	if first {
		h.kick()
	}
	return true
}

// release takes a pull out of what is held; mu is held.
func (h *polls) release(p *pull) {
	heap.Remove(&h.times, p.index)
	q := h.queues[p.key]
	delete(q, p)
	if len(q) == 0 {
		delete(h.queues, p.key)
	}
	delete(p.r.session.pulls, p)
	h.count.Add(-1)
	p.began, p.passed = time.Now(), 0
}

// arrived is called by the store for each message that can be read.
func (h *polls) arrived(topic string, queue int32, _, tagsCode int64, _ *mq.Message) {
	if h.count.Load() == 0 {
		return
	}
	h.mu.Lock()
	woke := false
	for p := range h.queues[queueKey{topic, queue}] {
		if p.filter == nil || p.filter.MatchCode(tagsCode) {
			h.release(p)
			h.woken = append(h.woken, p)
			woke = true
		}
	}
	h.mu.Unlock()
	if woke {
		h.kick()
	}
}

func (h *polls) kick() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// drop forgets the pulls of a connection that has gone.
func (h *polls) drop(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.gone = true // one that is being worked on comes back
	for p := range s.pulls {
		h.release(p)
	}
}

// run answers those that have been woken, and those whose time is over.
func (h *polls) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			h.end()
			return
		case <-h.wake:
		case <-timer.C:
		}
		now := time.Now()
		h.mu.Lock()
		line := h.woken
		h.woken = nil
		for len(h.times) > 0 && !h.times[0].look.After(now) {
			p := h.times[0]
			h.release(p)
			line = append(line, p)
		}
		next := time.Hour
		if len(h.times) > 0 {
			next = h.times[0].look.Sub(now)
		}
		timer.Reset(max(next, time.Millisecond))
		h.mu.Unlock()
		h.takeTurns(line)
	}
}

// takeTurns lets each pull of a line look at one stretch of its queue. Those that have to go on do so after those that were woken meanwhile.
func (h *polls) takeTurns(line []*pull) {
	now := time.Now()
	more := slices.DeleteFunc(line, func(p *pull) bool { return !p.find(now.Before(p.due), false) })
	if len(more) == 0 {
		return
	}
	h.mu.Lock()
	more = slices.DeleteFunc(more, func(p *pull) bool { return p.r.session.gone })
	h.woken = append(h.woken, more...)
	h.mu.Unlock()
	h.kick()
}

// end answers all that is held.
func (h *polls) end() {
	h.mu.Lock()
	h.ended = true
	line := h.woken
	for len(h.times) > 0 {
		p := h.times[0]
		h.release(p)
		line = append(line, p)
	}
	h.mu.Unlock()
	for _, p := range line {
		p.work(false)
	}
}

// pullHeap orders pulls by their next look.
type pullHeap []*pull

func (h pullHeap) Len() int           { return len(h) }
func (h pullHeap) Less(i, j int) bool { return h[i].look.Before(h[j].look) }
func (h pullHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *pullHeap) Push(x any) {
	p := x.(*pull)
	p.index = len(*h)
	*h = append(*h, p)
}
func (h *pullHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.index = -1
	return p
}
