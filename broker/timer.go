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
//  1. every message of the queue below low is dealt with; of those from low to read, the ones in done are, the others are in waiting;
//  2. messages below old may have been dealt with by an earlier leader: the index knows.
type timers struct {
	b       *Broker
	low     int64
	read    int64
	old     int64
	done    map[int64]bool
	waiting timerHeap
	taken   map[string]int64 // keys of messages that are taken back, and when those are due
	unread  int64            // due time of the first that could not be read at the last look; math.MaxInt64 = none
	saved   progress
}

// timerProgress is what stands in the log of it.
type timerProgress struct {
	Low int64 `json:"low"`
}

// timed delivers until ctx ends.
func (b *Broker) timed(ctx context.Context, _ dledger.Term) error {
	t := &timers{b: b, done: map[int64]bool{}, taken: map[string]int64{}, unread: math.MaxInt64, saved: progress{b: b, name: serviceTimer}}
	b.timerInfo.begin()
	defer b.timersWaiting.Store(0)
	var p timerProgress
	if err := t.saved.load(&p); err != nil {
		return err
	}
	t.low, t.read, t.old = p.Low, p.Low, b.store.MaxOffset(mq.TopicTimer, 0)
	for ctx.Err() == nil {
		more, err := t.look()
		behind := errors.Is(err, errUnread)
		if err == nil || behind {
			err = t.deliver(ctx)
		}
		if err != nil {
			return ended(ctx, err)
		}
		b.timersWaiting.Store(int64(len(t.waiting)))
		b.timerInfo.at(t.read, t.delivered(milliseconds(time.Now())))
		t.saved.save(timerProgress{t.low})
		until := time.Now().Add(progressEvery)
		if behind {
			until = time.Now().Add(time.Second)
		}
		if len(t.waiting) > 0 {
			if at := time.UnixMilli(t.waiting[0].act); at.Before(until) {
				until = at
			}
		}
		if !more {
			wait(ctx, b.alarms.timer, until)
		}
	}
	return nil
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
			t.taken[strings.Clone(key)] = due
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
	t.done[offset] = true
	for t.done[t.low] {
		delete(t.done, t.low)
		t.low++
	}
}

// deliver stores what is due in its real topic, and again among the timers what waits for long.
func (t *timers) deliver(ctx context.Context) error {
	t.unread = math.MaxInt64
	for len(t.waiting) > 0 && ctx.Err() == nil {
		now := milliseconds(time.Now())
		var batch []*mq.Message
		var offsets []int64
		for len(t.waiting) > 0 && t.waiting[0].act <= now && len(offsets) < timerBatch {
			w := heap.Pop(&t.waiting).(timer)
			m, err := t.replacement(ctx, w, now)
			if errors.Is(err, errUnread) {
				w.act, t.unread = now+time.Second.Milliseconds(), min(t.unread, w.due)
				heap.Push(&t.waiting, w)
				continue
			}
			if err != nil {
				return err
			}
			if m != nil {
				batch = append(batch, m)
			}
			offsets = append(offsets, w.offset)
		}
		if len(batch) > 0 {
			if err := t.b.keepOrDrop(ctx, batch, "a timer message cannot be stored in its topic; it is dropped"); err != nil {
				return err
			}
		}
		for _, o := range offsets {
			t.finish(o)
		}
		if len(offsets) == 0 {
			break
		}
	}
	now := milliseconds(time.Now())
	for key, due := range t.taken {
		if due+timerPrecision < now && t.read == t.b.store.MaxOffset(mq.TopicTimer, 0) {
			delete(t.taken, key)
		}
	}
	return nil
}

// delivered gives the time before which no message waits any more.
func (t *timers) delivered(now int64) int64 {
	first := t.unread
	if len(t.waiting) > 0 {
		first = min(first, t.waiting[0].due)
	}
	return min(now/timerPrecision*timerPrecision, first-timerPrecision)
}

// replacement is what is stored in place of a message whose time has come; nil: nothing.
func (t *timers) replacement(ctx context.Context, w timer, now int64) (*mq.Message, error) {
	g := t.b.store.Get(mq.TopicTimer, 0, w.offset, 1, 1, nil)
	if g.Status == msgstore.OffsetFoundNull && !t.b.lost(mq.TopicTimer, 0, w.offset, g.Err) {
		return nil, errUnread
	}
	if g.Status != msgstore.Found {
		t.b.log.Error("a timer message cannot be read; it is lost", "offset", w.offset, "due", w.due, "found", g.Status.String())
		return nil, nil
	}
	m, _, err := mq.ParseStored(g.Messages[0])
	if err != nil {
		return nil, err
	}
	deletes := mq.PropHas(m.Properties, mq.PropTimerDelUniqKey)
	if !deletes {
		t.b.timerInfo.count(m.Prop(mq.PropRealTopic), -1)
	}
	if deletes && w.due <= now {
		return nil, nil
	}
	if due, ok := t.taken[m.Prop(mq.PropRealTopic)+"_"+m.Prop(mq.PropUniqKey)]; ok && due == w.due {
		return nil, nil
	}
	real, ok := restored(&m)
	if !ok {
		t.b.log.Error("a timer message names no topic; it is dropped", "offset", w.offset)
		return nil, nil
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
			had, err := t.b.delivered(ctx, topic, m.Prop(mq.PropUniqKey), &m)
			if err != nil || had {
				return nil, err
			}
		}
	}
	return real, nil
}

// tell sets a property that only tells how a message was delayed, if there is room: what was taken once is not refused for its sake.
func tell(m *mq.Message, name, value string) {
	if len(m.Properties)+len(name)+len(value)+2 <= mq.PropertiesMax {
		m.SetProp(name, value)
	}
}
