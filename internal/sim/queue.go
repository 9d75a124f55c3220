package sim

import "dledger/internal/raft"

// queue holds what is going to happen, the earliest first and in the order of arrival where instants are equal: a binary heap.
type queue struct {
	heap []event
	seq  uint64
}

type event struct {
	at  raft.Instant
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (q *queue) add(at raft.Instant, do func()) {
	q.seq++
	q.heap = append(q.heap, event{at: at, seq: q.seq, do: do})
	h := q.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// next is the instant of the first event, never if there is none.
func (q *queue) next() raft.Instant {
	if len(q.heap) == 0 {
		return never
	}
	return q.heap[0].at
}

// take removes the first event.
func (q *queue) take() func() {
	h := q.heap
	do := h[0].do
	n := len(h) - 1
	h[0] = h[n]
	h[n] = event{}
	h = h[:n]
	q.heap = h
	for i := 0; ; {
		k := 2*i + 1
		if k >= n {
			return do
		}
		if k+1 < n && h[k+1].before(&h[k]) {
			k++
		}
		if !h[k].before(&h[i]) {
			return do
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
}
