package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// Messages with a delay level (property DELAY; ScheduleMessageService in the Java original) wait in the topic SCHEDULE_TOPIC_XXXX, each level in a queue of
// its own, where they are due in the order they came. The leader stores them again in their real topic. The original writes down every ten
// seconds how far it is, and after a failover delivers again what came since; here nothing comes twice (see services.go).

// delayBatch is how many messages of one level are delivered together.
const delayBatch = 64

// parseDelayLevels reads messageDelayLevel: "1s 5s 10m 2h", days as d.
func parseDelayLevels(s string) ([]time.Duration, error) {
	var levels []time.Duration
	for f := range strings.FieldsSeq(s) {
		unit, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[f[len(f)-1]]
		n, err := strconv.ParseInt(f[:len(f)-1], 10, 32)
		if !ok || err != nil || n < 0 {
			return nil, fmt.Errorf("messageDelayLevel: %q is no number with s, m, h or d", f)
		}
		levels = append(levels, time.Duration(n)*unit)
	}
	if len(levels) == 0 {
		return nil, errors.New("messageDelayLevel: no level is given")
	}
	return levels, nil
}

// divertLevel puts a message with a delay level where it waits.
func (b *Broker) divertLevel(m *mq.Message) bool {
	level, err := strconv.Atoi(m.Prop(mq.PropDelay))
	if err != nil || level <= 0 {
		return false
	}
	level = min(level, len(b.levels))
	m.SetProp(mq.PropDelay, mq.Itoa(level))
	standAside(m, mq.TopicSchedule, int32(level-1))
	return true
}

// standAside moves a message to a system topic, and notes in it where it belongs.
func standAside(m *mq.Message, topic string, queue int32) {
	m.SetProp(mq.PropRealTopic, m.Topic)
	m.SetProp(mq.PropRealQueueID, mq.Itoa(m.QueueID))
	m.Topic, m.QueueID = topic, queue
}

// delays is the service while it runs.
type delays struct {
	b       *Broker
	term    dledger.Term
	next    []int64 // offset of the first message of each level that was not delivered
	checked []bool  // what comes now in this level was not delivered by an earlier leader
	saved   progress
}

// delayProgress is what stands in the log of it, and in the original's delayOffset.json.
type delayProgress struct {
	Offsets map[int]int64 `json:"offsets"` // by level, from 1
}

// delayed delivers until ctx ends.
func (b *Broker) delayed(ctx context.Context, term dledger.Term) error {
	d := &delays{b: b, term: term, next: make([]int64, len(b.levels)), checked: make([]bool, len(b.levels)), saved: progress{b: b, name: serviceDelay}}
	var p delayProgress
	if err := d.saved.load(&p); err != nil {
		return err
	}
	for level, offset := range p.Offsets {
		if level >= 1 && level <= len(d.next) {
			d.next[level-1] = offset
		}
	}
	for ctx.Err() == nil {
		until := time.Now().Add(progressEvery)
		for i := range d.next {
			due, err := d.turn(ctx, i)
			if err != nil {
				return ended(ctx, err)
			}
			if due.Before(until) {
				until = due
			}
		}
		d.saved.save(d.progress())
		wait(ctx, b.alarms.delay, until)
	}
	return nil
}

func (d *delays) progress() delayProgress {
	p := delayProgress{Offsets: map[int]int64{}}
	for i, n := range d.next {
		if n > 0 {
			p.Offsets[i+1] = n
		}
	}
	return p
}

// turn delivers what is due in level i, a batch at most, and tells when to look again.
func (d *delays) turn(ctx context.Context, i int) (time.Time, error) {
	now := time.Now()
	later := now.Add(time.Minute)
	g := d.b.store.Get(mq.TopicSchedule, int32(i), d.next[i], delayBatch, 1<<20, nil)
	switch g.Status {
	case msgstore.Found:
	case msgstore.OffsetTooSmall, msgstore.OffsetOverflowBadly, msgstore.Removing:
		d.b.log.Warn("delayed messages are not where they were", "level", i+1, "from", d.next[i], "to", g.Next)
		d.next[i] = g.Next
		return now, nil
	case msgstore.OffsetFoundNull:
		if d.b.lost(mq.TopicSchedule, int32(i), d.next[i], g.Err) {
			d.next[i]++
			return now, nil
		}
		return now.Add(time.Second), nil // it cannot be read now
	default:
		d.checked[i] = true // the queue's end
		return later, nil
	}
	var batch []*mq.Message
	n := int64(0)
	for _, stored := range g.Messages {
		m, _, err := mq.ParseStored(stored)
		if err != nil {
			return now, err
		}
		if due := d.due(i, &m); due.After(now) {
			later = due
			break
		}
		n++
		real, ok := restored(&m)
		if !ok {
			d.b.log.Error("a delayed message names no topic; it is dropped", "level", i+1, "offset", m.QueueOffset)
			continue
		}
		if !d.checked[i] {
			had, err := d.b.delivered(ctx, real.Topic, real.Prop(mq.PropUniqKey), &m)
			if err != nil {
				return now, err
			}
			if had {
				continue
			}
			d.checked[i] = true // they are delivered in order
		}
		batch = append(batch, real)
	}
	if len(batch) > 0 {
		if err := d.b.keepOrDrop(ctx, d.term, batch, "a delayed message cannot be stored in its topic; it is dropped"); err != nil {
			return now, err
		}
	}
	d.next[i] += n
	if n > 0 {
		later = now // there may be more
	}
	return later, nil
}

// due is when a message has waited long enough: by the clock of the leader that stored it, but never longer than its delay from now on.
func (d *delays) due(i int, m *mq.Message) time.Time {
	at := time.UnixMilli(m.StoreTime).Add(d.b.levels[i])
	if limit := time.Now().Add(d.b.levels[i]); at.After(limit) {
		return time.Time{}
	}
	return at
}

// delayOffsets gives the offset of the first message of each level, from 1, that was not delivered, as the log tells; the leader may be some seconds further.
func (b *Broker) delayOffsets() map[int]int64 {
	var p delayProgress
	if raw := b.meta.progress(serviceDelay); raw != nil {
		if err := json.Unmarshal(raw, &p); err != nil {
			b.log.Warn("progress of delayed messages not read", "error", err)
		}
	}
	return p.Offsets
}

// delayTable is the original's delayOffset.json.
func delayTable(version mq.DataVersion, raw json.RawMessage) []byte {
	var p delayProgress
	if raw != nil && json.Unmarshal(raw, &p) != nil {
		p.Offsets = nil // the service says so
	}
	text := append(append([]byte(`{"dataVersion":`), mq.Marshal(version)...), `,"offsetTable":{`...)
	for i, level := range slices.Sorted(maps.Keys(p.Offsets)) {
		if i > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, "%d:%d", level, p.Offsets[level])
	}
	return append(text, "}}"...)
}

// allDelayOffsets answers GET_ALL_DELAY_OFFSET (45).
func (b *Broker) allDelayOffsets(r *request) {
	r.answer(mq.Success, "", nil, delayTable(b.meta.version(tableOffsets), b.meta.progress(serviceDelay)))
}
