package broker

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"dledger/internal/mq"
)

// Compatibility: QUERY_CONSUMER_OFFSET (14), UPDATE_CONSUMER_OFFSET (15), GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), SEARCH_OFFSET_BY_TIMESTAMP (29),
// GET_EARLIEST_MSG_STORETIME (32). An offset is acknowledged when the leader has it in memory, as in the original, and goes into the log with others
// at most Config.OffsetEvery later; the original copies offsets to followers every ten seconds. Asking for the bounds of a queue that is not
// there makes none.

var errNoGroup = errors.New("no such group")

// offsets gathers what consumers commit, until it goes into the log.
//
// What a leader could not write before it was replaced may be old when the next one hears of it: consumers have gone on there. So it counts
// only where it is ahead and the group was not moved meanwhile (state.Moved), and only for a while (lateMax).
type offsets struct {
	b *Broker

	mu      sync.Mutex
	pending map[string]map[int32]int64 // not given to the log yet, or not yet applied
	late    time.Time                  // since when pending is a former leader's; zero = it is not
	term    int64                      // in which this replica last began to lead; what is pending was committed in it
	others  map[*override]struct{}     // on their way
	writing sync.Mutex                 // held by the one who writes
	order   sync.Mutex                 // held while others or pending is looked at and what follows from it is given to the log; before mu
}

// override is a change that takes the place of what consumers have committed for some queues: a reset, a deletion.
type override struct {
	covers func(key string, queue int32) bool
}

// lateMax is how long a former leader tries to pass offsets on. Consumers commit every five seconds.
const lateMax = 10 * time.Second

func (o *offsets) set(key string, queue int32, offset int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pending == nil {
		o.pending = map[string]map[int32]int64{}
	}
	q := o.pending[key]
	if q == nil {
		q = map[int32]int64{}
		o.pending[key] = q
	}
	q[queue] = offset
}

// get gives the offset that was committed last.
func (o *offsets) get(key string, queue int32) (int64, bool) {
	if n, ok := o.committed(key, queue); ok {
		return n, true
	}
	return o.b.meta.offset(key, queue)
}

// committed is get for what is not in the log yet.
func (o *offsets) committed(key string, queue int32) (n int64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, ok = o.pending[key][queue]
	return n, ok
}

// override gives the group a change that takes the place of what is committed for the queues that it covers: what is pending of them goes into the log before it
// or, once it is made, not at all. done as in meta.submit.
func (o *offsets) override(covers func(key string, queue int32) bool, rec func() record, done func(error)) {
	v := &override{covers}
	o.order.Lock()
	defer o.order.Unlock()
	o.mu.Lock()
	if o.others == nil {
		o.others = map[*override]struct{}{}
	}
	o.others[v] = struct{}{}
	o.mu.Unlock()
	o.b.meta.submit(rec(), func(err error) {
		o.mu.Lock()
		delete(o.others, v)
		if err == nil {
			o.forget(covers)
		}
		o.mu.Unlock()
		done(err)
	})
}

// forget drops what is pending of some queues; mu is held.
func (o *offsets) forget(these func(key string, queue int32) bool) {
	for key, queues := range o.pending {
		maps.DeleteFunc(queues, func(q int32, _ int64) bool { return these(key, q) })
		if len(queues) == 0 {
			delete(o.pending, key)
		}
	}
}

// only covers the queues of a table.
func only(table map[string]map[int32]int64) func(key string, queue int32) bool {
	return func(key string, queue int32) bool {
		_, ok := table[key][queue]
		return ok
	}
}

// write gives the log what still is to be written of a record, and waits until it is.
func (o *offsets) write(ctx context.Context, rec *record) error {
	got := make(chan error, 1)
	o.order.Lock()
	o.mu.Lock()
	for key, queues := range rec.Offsets {
		maps.DeleteFunc(queues, func(q int32, _ int64) bool {
			if _, ok := o.pending[key][q]; !ok {
				return true
			}
			for v := range o.others {
				if v.covers(key, q) {
					return true
				}
			}
			return false
		})
		if len(queues) == 0 {
			delete(rec.Offsets, key)
		}
	}
	o.mu.Unlock()
	if len(rec.Offsets) > 0 {
		o.b.meta.submit(*rec, func(err error) { got <- err })
	} else {
		got <- nil
	}
	o.order.Unlock()
	return awaited(ctx, got)
}

// run writes what has gathered, and on a replica that no longer leads passes it on to the one that does.
func (o *offsets) run(ctx context.Context) {
	tick := time.NewTicker(o.b.cfg.OffsetEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			o.flush(ctx)
		}
	}
}

func (o *offsets) flush(ctx context.Context) {
	o.writing.Lock()
	defer o.writing.Unlock()
	o.mu.Lock()
	batch := make(map[string]map[int32]int64, len(o.pending))
	for key, queues := range o.pending {
		batch[key] = maps.Clone(queues)
	}
	o.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	if o.b.gate.here() {
		var recs []*record
		part := func() *record {
			recs = append(recs, &record{Kind: "offsets"})
			return recs[len(recs)-1]
		}
		chunk(batch, perQueue, part, func(r *record, t map[string]map[int32]int64) { r.Offsets = t })
		for _, rec := range recs {
			if o.write(ctx, rec) != nil {
				return // they stay, and are written or passed on next time
			}
		}
	} else if !o.passOn(batch) && !o.tooLate() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, queues := range batch {
		now := o.pending[key]
		for q, n := range queues {
			if now[q] == n {
				delete(now, q)
			}
		}
		if len(now) == 0 {
			delete(o.pending, key)
		}
	}
	if len(o.pending) == 0 {
		o.late = time.Time{}
	}
}

// tooLate tells whether what is pending has been a former leader's for too long.
func (o *offsets) tooLate() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.late.IsZero() {
		o.late = time.Now()
	}
	return time.Since(o.late) > lateMax
}

// lead begins a leadership: what is pending from a former one counts where it is ahead of the log.
func (o *offsets) lead(term int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.late.IsZero() && time.Since(o.late) > lateMax {
		clear(o.pending)
	}
	o.late = time.Time{}
	o.forget(func(key string, q int32) bool { return o.b.meta.outdated(key, q, o.pending[key][q], o.term) })
	o.term = term
}

// passOn gives offsets to the leader, as consumers do; false: there is none now.
func (o *offsets) passOn(batch map[string]map[int32]int64) bool {
	if _, isJava := o.b.leaderAddress(o.b.ledger.Leader()); isJava {
		return !o.b.java.behind() // these are among what it is told first
	}
	o.mu.Lock()
	term := o.term
	o.mu.Unlock()
	for key, queues := range batch {
		topic, group := splitOffsetKey(key)
		for q, n := range queues {
			if !o.b.gate.tell(mq.CodeUpdateConsumerOffset, map[string]string{"consumerGroup": group, "topic": topic, "queueId": mq.Itoa(q), "commitOffset": mq.Itoa(n), fieldLate: mq.Itoa(term)}) {
				return false
			}
		}
	}
	return true
}

// commitOffset notes a consumer's progress, here or at the leader.
func (b *Broker) commitOffset(group, topic string, queue int32, offset int64) {
	if !b.gate.here() {
		b.gate.tell(mq.CodeUpdateConsumerOffset, map[string]string{"consumerGroup": group, "topic": topic, "queueId": mq.Itoa(queue), "commitOffset": mq.Itoa(offset)})
		return
	}
	key := offsetKey(topic, group)
	if _, reset := b.meta.reset(key, queue); !reset {
		b.offsets.set(key, queue, offset)
	}
}

func (b *Broker) updateOffset(r *request) {
	f := r.fields()
	group, topic, queue, offset := f.Str("consumerGroup"), f.Str("topic"), f.Int32("queueId"), f.Int64("commitOffset")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	t, ok := b.meta.topicConfig(topic)
	if !ok {
		r.refuse(mq.TopicNotExist, "Topic %s not exist!", topic)
		return
	}
	if queue < 0 || queue >= max(t.ReadQueueNums, t.WriteQueueNums) {
		r.refuse(mq.SystemError, "queueId[%d] is illegal, topic:[%s] has %d queues", queue, topic, max(t.ReadQueueNums, t.WriteQueueNums))
		return
	}
	b.withGroup(r, group, func() {
		key := offsetKey(topic, group)
		if _, reset := b.meta.reset(key, queue); reset {
			r.answer(mq.Success, "Offset has been previously reset", nil)
			return
		}
		if term, late := r.lateOffset(); late {
			at, _ := b.offsets.get(key, queue)
			if at != offset && b.outdated(key, queue, offset, term) {
				r.refuse(mq.SystemError, "group [%s] may have been set to another offset than %d while this was on its way: it is at %d; ask again if it is still meant", group, offset, at)
				return
			}
		}
		b.offsets.set(key, queue, offset)
		r.ok()
	})
}

// lateOffset tells whether this offset may be older than what the leader has: one that a former leader could not write, or one that was held or had to be repeated, while
// its client went on at another replica or an operator moved the group. What moved the group behind the term is younger. In the term it is older for a former leader, which made
// the move itself; for what was held nobody knows, so that names the term before.
func (r *request) lateOffset() (term int64, late bool) {
	if r.code() != mq.CodeUpdateConsumerOffset {
		return 0, false
	}
	if since, ok := r.frame.Ext[fieldLate]; ok {
		term, _ = strconv.ParseInt(since, 10, 64) // else 0: what counts since any term
		return term, true
	}
	return max(r.since-1, 0), r.held
}

// outdated tells whether a late offset says nothing any more, or perhaps nothing: the group is ahead, or was moved since the term.
func (b *Broker) outdated(key string, queue int32, offset, term int64) bool {
	if at, ok := b.offsets.committed(key, queue); ok { // here, since
		if written, ok := b.meta.offset(key, queue); at >= offset || ok && at < written {
			return true
		}
	}
	return b.meta.outdated(key, queue, offset, term)
}

// withGroup goes on with a request once its group is there; one that cannot be made is refused.
func (b *Broker) withGroup(r *request, group string, then func()) {
	if _, ok := b.meta.groupConfig(group); ok {
		then()
		return
	}
	if r.toLeader() {
		return
	}
	b.ensureGroup(group, func(err error) {
		switch {
		case errors.Is(err, errNoGroup):
			r.refuse(mq.GroupNotExist, "subscription group [%s] does not exist, %v", group, err)
		case err != nil:
			b.failed(r, err)
		default:
			then()
		}
	})
}

// offsetQuery are the fields of a question for an offset.
type offsetQuery struct {
	group, topic string
	queue        int32
	zero         bool // what was never committed may be 0
	err          error
}

func readOffsetQuery(r *request) (q offsetQuery) {
	f := r.fields()
	q.group, q.topic, q.queue, q.zero = f.Str("consumerGroup"), f.Str("topic"), f.Int32("queueId"), f.BoolOr("setZeroIfNotFound", true)
	q.err = f.Err()
	return q
}

func (b *Broker) queryOffset(r *request) {
	q := readOffsetQuery(r)
	if q.err != nil {
		r.malformed(q.err)
		return
	}
	b.surely(r, func() { b.tellOffset(r, q) })
}

// tellOffset says how far a group is in a queue.
func (b *Broker) tellOffset(r *request, q offsetQuery) {
	key := offsetKey(q.topic, q.group)
	if n, ok := b.meta.reset(key, q.queue); ok {
		r.offset("offset", n)
		return
	}
	if n, ok := b.offsets.get(key, q.queue); ok {
		r.offset("offset", n)
		return
	}
	if q.zero {
		small, err := b.smallQueue(q.topic, q.queue)
		if unreadable(err) && b.ledger.Mends() { // where nobody has it, it decides nothing
			b.later(r, err)
			return
		}
		if small {
			r.offset("offset", 0)
			return
		}
	}
	r.refuse(mq.QueryNotFound, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
}

// smallQueueMax is the part of the log that a queue may lie in to count as small: what a broker of the original keeps in memory.
const smallQueueMax = 1 << 30

// smallQueue tells whether a group that never committed anything begins at 0 whatever it asked for: nothing was ever deleted from the queue, and all
// of it is recent.
func (b *Broker) smallQueue(topic string, queue int32) (bool, error) {
	if b.store.MinOffset(topic, queue) > 0 {
		return false, nil
	}
	if b.store.MaxOffset(topic, queue) == 0 {
		return true, nil
	}
	got := b.store.Get(topic, queue, 0, 1, 1, nil)
	return len(got.Messages) > 0 && got.Behind <= smallQueueMax, got.Err
}

// queueOf reads the fields that name a queue. A topic that this replica does not know may be new: the leader knows.
func (b *Broker) queueOf(r *request, f *mq.Fields) (topic string, queue int32, ok bool) {
	topic, queue = f.Str("topic"), f.Int32("queueId")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return "", 0, false
	}
	if _, known := b.meta.topicConfig(topic); !known && r.toLeader() {
		return "", 0, false
	}
	return topic, queue, true
}

// maxOffset answers at the leader alone: a follower's queue may be behind what the client was already told.
func (b *Broker) maxOffset(r *request) {
	if topic, queue, ok := b.queueOf(r, r.fields()); ok {
		b.surely(r, func() { r.offset("offset", b.store.MaxOffset(topic, queue)) })
	}
}

// minOffset: where there is something, it is where this replica's log begins. That there was never anything, only the leader knows.
func (b *Broker) minOffset(r *request) {
	if topic, queue, ok := b.queueOf(r, r.fields()); ok {
		answer := func() { r.offset("offset", b.store.MinOffset(topic, queue)) }
		if b.store.MaxOffset(topic, queue) > 0 {
			answer()
			return
		}
		b.fromLeader(r, answer)
	}
}

// searchOffset: that nothing is so young, only the leader knows.
func (b *Broker) searchOffset(r *request) {
	f := r.fields()
	ts := f.Int64("timestamp")
	boundary := f.StrOr("boundaryType", "lower")
	upper := boundary == "upper" || boundary == "UPPER"
	if topic, queue, ok := b.queueOf(r, f); ok {
		search := func() int64 { return b.store.OffsetByTime(topic, queue, ts, upper) }
		newest := b.store.MaxOffset(topic, queue)
		if upper {
			newest--
		}
		n := search()
		if n < newest {
			r.offset("offset", n)
			return
		}
		b.fromLeader(r, func() { r.offset("offset", search()) })
	}
}

// fromLeader calls answer where and when what it says is sure: here, or at the leader.
func (b *Broker) fromLeader(r *request, answer func()) {
	if !r.toLeader() {
		b.surely(r, answer)
	}
}

func (b *Broker) earliestTime(r *request) {
	if topic, queue, ok := b.queueOf(r, r.fields()); ok {
		r.offset("timestamp", b.store.EarliestTime(topic, queue))
	}
}
