package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// What the leader's services have in common: they store messages in place of others, each once.
//
// A message that a service stores names the one it stands for: its prepared offset, which in other messages is 0 or that of a half message, is the physical
// offset of that one, its source. Whoever leads next begins where the last record of progress says, which may be some seconds behind, and finds in
// the key index whether a source has been dealt with since (delivered). So a change of leadership neither loses nor repeats a message; only one without unique
// key, which no broker stores, may come twice.

// Names under which services write down how far they are.
const (
	serviceDelay       = "delay"
	serviceTimer       = "timer"
	serviceTransaction = "transaction"
)

// progressEvery is how often a service writes down how far it is.
const progressEvery = 5 * time.Second

// alarms wake services when a message arrives that they care for.
type alarms struct{ delay, timer, half chan struct{} }

func newAlarms() alarms {
	return alarms{make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)}
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// arrived is called by the store for each message that has become readable.
func (b *Broker) arrived(topic string, queue int32, offset, code int64, m *mq.Message) {
	switch topic {
	case mq.TopicSchedule:
		ring(b.alarms.delay)
	case mq.TopicTimer:
		ring(b.alarms.timer)
	case mq.TopicHalf, mq.TopicOpHalf:
		ring(b.alarms.half)
	}
	b.polls.arrived(topic, queue, offset, code, m)
}

// errDropped: the log will never take these messages.
var errDropped = errors.New("the log does not take this message")

// keepFor stores messages for a service that works in term, and returns once they are committed and dispatched here. They are stored in that term or not at
// all: a leader in between may have dealt with what they stand for. errDropped: never. All other errors mean that this leadership is over, or ctx; the messages may
// yet be committed, so nobody but the next leader may try again.
func (b *Broker) keepFor(ctx context.Context, term dledger.Term, msgs []*mq.Message) error {
	for {
		got := make(chan msgstore.PutResult, 1)
		b.store.PutIn(term, msgs, func(r msgstore.PutResult) { got <- r })
		r := <-got
		switch {
		case r.Status == msgstore.PutOK:
			return nil
		case r.Status == msgstore.MessageIllegal:
			return fmt.Errorf("%w: %w", errDropped, r.Err)
		case errors.Is(r.Err, dledger.ErrTimeout):
			return b.barrier(ctx, term) // it is in the log, in front of what comes now
		case r.Status == msgstore.PageCacheBusy, errors.Is(r.Err, dledger.ErrDiskFull), errors.Is(r.Err, dledger.ErrTransferring): // a transfer may fail
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		default:
			return r.Err
		}
	}
}

// keepOrDrop is keepFor for messages that may be stored one by one: it passes over those that the log will never take, and says so in the log.
func (b *Broker) keepOrDrop(ctx context.Context, term dledger.Term, batch []*mq.Message, dropped string) error {
	err := b.keepFor(ctx, term, batch)
	if !errors.Is(err, errDropped) {
		return err
	}
	for _, m := range batch {
		if err := b.keepFor(ctx, term, []*mq.Message{m}); errors.Is(err, errDropped) {
			b.log.Error(dropped, "topic", m.Topic, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// barrier returns when all that this leader has given to the log in term is committed and dispatched. With an error that is not known.
func (b *Broker) barrier(ctx context.Context, term dledger.Term) error {
	for {
		err := b.meta.write(ctx, record{Kind: "barrier"})
		if err == nil {
			return b.leadsIn(term)
		}
		if ctx.Err() != nil || errors.Is(err, dledger.ErrNotLeader) || errors.Is(err, dledger.ErrClosed) {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// leadsIn tells whether this replica leads in term, and has since that began.
func (b *Broker) leadsIn(term dledger.Term) error {
	if now, ok := b.store.Ready(); !ok || now != term {
		return errNotServing
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended gives err to the operator, unless it only says that this leadership is over; then it waits for the end to be known here too.
func ended(ctx context.Context, err error) error {
	if over(err) {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// over tells errors that say that this leadership is over.
func over(err error) bool {
	return errors.Is(err, dledger.ErrNotLeader) || errors.Is(err, dledger.ErrLeadershipLost) || errors.Is(err, dledger.ErrClosed) ||
		errors.Is(err, msgstore.ErrNotReady) || errors.Is(err, dledger.ErrFailed)
}

// delivered (M3) tells whether a message of topic is stored that stands for source. One that a Java leader delivered names no source, but is the same
// otherwise.
func (b *Broker) delivered(ctx context.Context, topic, uniq string, source *mq.Message) (bool, error) {
	if uniq == "" {
		return false, nil
	}
	const clocks = time.Hour // by which those of two leaders may differ
	var res msgstore.QueryResult
	err := b.whole(ctx, func() (err error) { // it may be the one that is damaged
		res, err = b.store.Query(topic, uniq, 64, source.StoreTime-clocks.Milliseconds(), milliseconds(time.Now().Add(clocks)))
		return err
	})
	if err != nil && !errors.Is(err, dledger.ErrDamaged) {
		return false, err
	}
	for _, stored := range res.Messages {
		m, _, err := mq.ParseStored(stored)
		if err != nil {
			continue
		}
		java := m.PreparedOffset == 0 && m.PhysicalOffset > source.PhysicalOffset && m.ReconsumeTimes == source.ReconsumeTimes && bytes.Equal(m.Body, source.Body) &&
			(mq.PropHas(m.Properties, mq.PropRealTopic) || mq.PropHas(m.Properties, mq.PropTimerOutMs))
		if m.PreparedOffset == source.PhysicalOffset || java {
			return true, nil
		}
	}
	return false, nil
}

// restored is the message that one of a system topic stands for, with its real topic and queue; false if it names none. Its
// other properties stay: consumers see how it was delayed, as with the original.
func restored(m *mq.Message) (*mq.Message, bool) {
	topic := m.Prop(mq.PropRealTopic)
	var queue int32
	if _, err := fmt.Sscan(m.Prop(mq.PropRealQueueID), &queue); err != nil || msgstore.CheckTopic(topic) != nil || mq.IsNoSendTopic(topic) { // a Java leader may have let a group have any name
		return nil, false
	}
	real := *m
	real.Topic, real.QueueID = topic, queue
	real.PreparedOffset = m.PhysicalOffset
	return &real, true
}

// progress writes down how far a service is, if that has changed and some time has passed.
type progress struct {
	b    *Broker
	name string
	last string
	at   time.Time
}

func (p *progress) load(v any) error {
	raw := p.b.meta.progress(p.name)
	if raw == nil {
		return nil
	}
	p.last = string(raw)
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("progress of %s: %w", p.name, err)
	}
	return nil
}

func (p *progress) save(v any) {
	now := time.Now()
	if now.Sub(p.at) < progressEvery {
		return
	}
	p.at = now
	raw, err := json.Marshal(v)
	if err != nil {
		p.b.log.Error("progress cannot be written", "service", p.name, "error", err)
		return
	}
	if string(raw) == p.last {
		return
	}
	p.last = string(raw)
	p.b.meta.submit(record{Kind: "progress", Progress: map[string]json.RawMessage{p.name: raw}}, func(err error) {
		if err != nil && !errors.Is(err, dledger.ErrNotLeader) && !errors.Is(err, dledger.ErrClosed) {
			p.b.log.Warn("progress not written; after a change of leadership more has to be looked up", "service", p.name, "error", err)
		}
	})
}

// wait sleeps until something arrives, the time comes, or at the latest when progress is due.
func wait(ctx context.Context, alarm <-chan struct{}, until time.Time) {
	t := time.NewTimer(min(max(time.Until(until), 0), progressEvery))
	defer t.Stop()
	select {
	case <-alarm:
	case <-t.C:
	case <-ctx.Done():
	}
}
