package broker

import (
	"container/heap"
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Timer messages (properties TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC; TimerMessageStore in the Java original) wait in the topic
// rmq_sys_wheel_timer until TIMER_OUT_MS. The leader keeps their times in memory; the wheel files of the original do not exist. One that waits for
// long is stored again from time to time, so that retention does not take it and a new leader need not read far back. A message with
// TIMER_DEL_UNIQKEY takes another one back that is due at the same time.

const (
	timerPrecision = 1000          // ms; due times are rounded to it as the original does
	timerBatch     = 64            // messages delivered together
	timersMax      = 4_000_000     // that wait
	timerRollAfter = 2 * time.Hour // age after which one that is not due yet is stored again
)

// divertTimer puts a timer message where it waits. Other codes than mq.Success refuse it.
func (b *Broker) divertTimer(m *mq.Message) (code int32, remark string) {
	sec, ms, at := m.Prop(mq.PropTimerDelaySec), m.Prop(mq.PropTimerDelayMs), m.Prop(mq.PropTimerDeliverMs)
	if sec == "" && ms == "" && at == "" || mq.PropHas(m.Properties, mq.PropTimerOutMs) {
		return mq.Success, ""
	}
	if !b.cfg.TimerEnabled {
		return mq.SystemError, "accurate timer message is not enabled, timerWheelEnable=false"
	}
	now := milliseconds(time.Now())
	var due int64
	var err error
	switch {
	case sec != "":
		due, err = strconv.ParseInt(sec, 10, 64)
		due = now + min(due, 1<<40)*1000
	case ms != "":
		due, err = strconv.ParseInt(ms, 10, 64)
		due = now + min(due, 1<<50)
	default:
		due, err = strconv.ParseInt(at, 10, 64)
	}
	del := mq.PropHas(m.Properties, mq.PropTimerDelUniqKey)
	switch {
	case err != nil, due-now > b.conf().TimerMax.Milliseconds(), del && due <= now:
		return mq.MessageIllegal, "timer message illegal, the delay time should not be bigger than the max delay " + mq.Itoa(b.conf().TimerMax.Milliseconds()) +
			"ms; or if set del msg, the delay time should be bigger than the current time"
	case due <= now:
		return mq.Success, ""
	case b.timersWaiting.Load() >= timersMax:
		return mq.SystemError, "timer message is under flow control, max num limit is " + mq.Itoa(timersMax)
	}
	if due%timerPrecision == 0 {
		due -= timerPrecision
	} else {
		due = due / timerPrecision * timerPrecision
	}
	m.SetProp(mq.PropTimerOutMs, mq.Itoa(due))
	standAside(m, mq.TopicTimer, 0)
	return mq.Success, ""
}

// timer is one message that waits.
type timer struct {
	act    int64 // when something is to be done: it is due, or to be stored again
	due    int64 // ms
	offset int64 // in the queue of timers
}

// timerHeap has the next one in front.
type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].act < h[j].act }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

// timers is the service while it runs.
//
//  1. every message of the queue below low is dealt with; of those from low to read, the ones in done are, the others are in waiting
//     or in unread;
//  2. messages below old may have been dealt with by an earlier leader: the index knows;
//  3. before anything is delivered, all that came to the queue until then is read, in particular all that an earlier leader has acknowledged: it may take back what
//     is due;
//  4. one that takes another back is done after all that are due at its time, so the next leader finds it in front of what it takes back.
type timers struct {
	b       *Broker
	term    dledger.Term
	low     int64
	read    int64
	old     int64
	done    map[int64]bool
	waiting timerHeap
	taken   map[taken][]int64 // what is taken back, and the offsets of the messages that say so
	unread  []timer           // whose time has come, and which could not be read
	again   int64             // ms; when that is tried again
	saved   progress
}

// taken names a message that is taken back.
type taken struct {
	key string // its topic and unique key
	due int64
}

// timerProgress is what stands in the log of it.
type timerProgress struct {
	Low int64 `json:"low"`
}

// timed delivers until ctx ends.
func (b *Broker) timed(ctx context.Context, term dledger.Term) error {
	t := &timers{b: b, term: term, done: map[int64]bool{}, taken: map[taken][]int64{}, saved: progress{b: b, name: serviceTimer}}
	b.timerInfo.begin()
	defer b.timersWaiting.Store(0)
	var p timerProgress
	if err := t.saved.load(&p); err != nil {
		return err
	}
	t.low, t.read, t.old = p.Low, p.Low, b.store.MaxOffset(mq.TopicTimer, 0)
	for ctx.Err() == nil {
		err := t.catchUp(ctx)
		behind := errors.Is(err, errUnread)
		if err == nil {
			err = t.deliver(ctx)
		}
		if err != nil && !behind {
			return ended(ctx, err)
		}
		b.timersWaiting.Store(int64(len(t.waiting) + len(t.unread)))
		now := time.Now()
		until := now.Add(progressEvery)
		if behind {
			until = now.Add(unreadAgain)
		} else {
			b.timerInfo.at(t.read, t.delivered(milliseconds(now)), t.first())
			until = t.next(until)
		}
		t.saved.save(timerProgress{t.low})
		wait(ctx, b.alarms.timer, until)
	}
	return nil
}

// catchUp reads what is in the queue now. errUnread: not all of it, for now.
func (t *timers) catchUp(ctx context.Context) error {
	end := t.b.store.MaxOffset(mq.TopicTimer, 0) // not below old
	for more := true; more && t.read != end && ctx.Err() == nil; {
		var err error
		if more, err = t.look(); err != nil {
			return err
		}
	}
	if t.read < end {
		return errUnread
	}
	return nil
}

// next is when something is to be done, at the latest at until.
func (t *timers) next(until time.Time) time.Time {
	if len(t.waiting) > 0 {
		if at := time.UnixMilli(t.waiting[0].act); at.Before(until) {
			until = at
		}
	}
	if at := time.UnixMilli(t.again); len(t.unread) > 0 && at.Before(until) {
		until = at
	}
	return until
}

// look reads what has come to the queue; more: there is more of it. errUnread: but it cannot be read for now.
func (t *timers) look() (more bool, err error) {
	g := t.b.store.Get(mq.TopicTimer, 0, t.read, 512, 8<<20, nil)
	switch g.Status {
	case msgstore.Found:
	case msgstore.OffsetTooSmall, msgstore.OffsetOverflowBadly, msgstore.Removing:
		if g.Next != t.read {
			t.b.log.Warn("timer messages are not where they were", "from", t.read, "to", g.Next)
			t.low, t.read = g.Next, g.Next
			return true, nil
		}
		return false, nil
	case msgstore.OffsetFoundNull:
		if !t.b.lost(mq.TopicTimer, 0, t.read, g.Err) {
			return false, errUnread
		}
		t.finish(t.read)
		t.read++
		return true, nil
	default:
		return false, nil
	}
	for _, stored := range g.Messages {
		m, _, err := mq.ParseStored(stored)
		if err != nil {
			return false, err
		}
		due, err := strconv.ParseInt(m.Prop(mq.PropTimerOutMs), 10, 64)
		if err != nil {
			t.b.log.Error("a timer message has no time; it is dropped", "offset", m.QueueOffset)
			t.finish(m.QueueOffset)
			continue
		}
		due += timerPrecision // the time was rounded down
		if key := m.Prop(mq.PropTimerDelUniqKey); key != "" {
			k := taken{strings.Clone(key), due}
			t.taken[k] = append(t.taken[k], m.QueueOffset)
		} else {
			t.b.timerInfo.count(m.Prop(mq.PropRealTopic), 1)
		}
		heap.Push(&t.waiting, timer{act: min(due, m.StoreTime+timerRollAfter.Milliseconds()), due: due, offset: m.QueueOffset})
	}
	t.read = g.Next
	return true, nil
}

// finish notes that a message is dealt with.
func (t *timers) finish(offset int64) {
	if offset < t.low {
		return
	}
	t.done[offset] = true
	for t.done[t.low] {
		delete(t.done, t.low)
		t.low++
	}
}

// deliver stores what is due in its real topic, and again among the timers what waits for long; a batch at most, as the queue is looked at before the next.
func (t *timers) deliver(ctx context.Context) error {
	now := milliseconds(time.Now())
	if len(t.unread) > 0 && t.again <= now {
		for _, w := range t.unread {
			heap.Push(&t.waiting, w)
		}
		t.unread = nil
	}
	var batch []*mq.Message
	var offsets []int64
	for n := 0; len(t.waiting) > 0 && t.waiting[0].act <= now && n < timerBatch; n++ {
		w := heap.Pop(&t.waiting).(timer)
		m, done, err := t.replacement(ctx, w, now)
		if errors.Is(err, errUnread) {
			t.unread, t.again = append(t.unread, w), now+unreadAgain.Milliseconds()
			continue
		}
		if err != nil {
			return err
		}
		if m != nil {
			batch = append(batch, m)
		}
		if done {
			offsets = append(offsets, w.offset)
		}
	}
	if len(batch) > 0 {
		if err := t.b.keepOrDrop(ctx, t.term, batch, "a timer message cannot be stored in its topic; it is dropped"); err != nil {
			return err
		}
	}
	for _, o := range offsets {
		t.finish(o)
	}
	if len(t.waiting) > 0 && t.waiting[0].act <= now {
		return nil // there is more
	}
	for k, offsets := range t.taken {
		if k.due < min(now, t.firstUnread()) {
			for _, o := range offsets {
				t.finish(o)
			}
			delete(t.taken, k)
		}
	}
	return nil
}

// firstUnread is the earliest due time of those in unread; math.MaxInt64 = there is none.
func (t *timers) firstUnread() int64 {
	first := int64(math.MaxInt64)
	for _, w := range t.unread {
		first = min(first, w.due)
	}
	return first
}

// delivered gives the time before which no message waits any more.
func (t *timers) delivered(now int64) int64 {
	return min(now/timerPrecision*timerPrecision, t.first()-timerPrecision)
}

// first is when the first that waits is due; math.MaxInt64 if none does.
func (t *timers) first() int64 {
	first := t.firstUnread()
	if len(t.waiting) > 0 {
		first = min(first, t.waiting[0].due)
	}
	return first
}

// replacement is what is stored in place of a message whose time has come; nil: nothing. Then done tells whether that was all: it is not for one that takes another
// back.
func (t *timers) replacement(ctx context.Context, w timer, now int64) (m *mq.Message, done bool, err error) {
	g := t.b.store.Get(mq.TopicTimer, 0, w.offset, 1, 1, nil)
	if g.Status == msgstore.OffsetFoundNull && !t.b.lost(mq.TopicTimer, 0, w.offset, g.Err) {
		return nil, false, errUnread
	}
	if g.Status != msgstore.Found {
		t.b.log.Error("a timer message cannot be read; it is lost", "offset", w.offset, "due", w.due, "found", g.Status.String())
		return nil, true, nil
	}
	stored, _, err := mq.ParseStored(g.Messages[0])
	if err != nil {
		return nil, false, err
	}
	m = &stored
	deletes := mq.PropHas(m.Properties, mq.PropTimerDelUniqKey)
	if !deletes {
		t.b.timerInfo.count(m.Prop(mq.PropRealTopic), -1)
	}
	if deletes && w.due <= now {
		return nil, false, nil
	}
	if _, ok := t.taken[taken{m.Prop(mq.PropRealTopic) + "_" + m.Prop(mq.PropUniqKey), w.due}]; ok && !deletes {
		return nil, true, nil
	}
	real, ok := restored(m)
	if !ok {
		t.b.log.Error("a timer message names no topic; it is dropped", "offset", w.offset)
		return nil, true, nil
	}
	if w.due > now { // once more
		rolls, err := strconv.Atoi(m.Prop(mq.PropTimerRollTimes))
		if err != nil {
			rolls = 0
		}
		real.Topic, real.QueueID = mq.TopicTimer, 0
		tell(real, mq.PropTimerRollTimes, mq.Itoa(rolls+1))
	} else {
		real.DelProp(mq.PropRealTopic, mq.PropRealQueueID) // consumers see how it was delayed; PropTimerOutMs says that it was
		tell(real, mq.PropTimerDequeueMs, mq.Itoa(now))
	}
	if w.offset < t.old {
		for _, topic := range []string{real.Topic, mq.TopicTimer} {
			had, err := t.b.delivered(ctx, topic, m.Prop(mq.PropUniqKey), m)
			if err != nil || had {
				return nil, had, err
			}
		}
	}
	return real, true, nil
}

// tell sets a property that only tells how a message was delayed, if there is room: what was taken once is not refused for its sake.
func tell(m *mq.Message, name, value string) {
	if len(m.Properties)+len(name)+len(value)+2 <= mq.PropertiesMax {
		m.SetProp(name, value)
	}
}
