package broker

import (
	"context"
	"strings"
	"sync"
	"time"

	"dledger/internal/mq"
)

// settler finds out whether sends whose outcome was lost are in the log. The leader asks it: it has everything that was committed before
// it, and an entry that it does not have from an earlier term will never be. What the same leader may still have on its way is waited for with a record
// behind it (barrier).
type settler struct {
	mu      sync.Mutex
	waiting []func(error) // for the next barrier
	running bool
}

// settle stores a message only if it is not there yet. Messages of the same unique key and topic are the same if their bodies are, and where they go when they wait.
func (b *Broker) settle(r *request, msgs []*mq.Message, uniq string, k kept) {
	b.settler.barrier(b, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		b.spawn(func() {
			if uniq == "" {
				uniq = msgs[0].Prop(mq.PropUniqKey)
			}
			if found, ok := b.lookUp(msgs, uniq); ok {
				k.sent(found[0].QueueID, found[0].QueueOffset, b.idsOf(found))
				return
			}
			r.settle = false
			b.putNow(r, msgs, k)
		})
	})
}

// barrier calls done when everything that was given to the log before is either committed and dispatched or never will be.
func (s *settler) barrier(b *Broker, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, done)
	if s.running {
		return
	}
	s.running = true
	b.spawn(func() {
		for {
			s.mu.Lock()
			line := s.waiting
			s.waiting = nil
			s.running = len(line) > 0
			s.mu.Unlock()
			if len(line) == 0 {
				return
			}
			ctx, cancel := context.WithTimeout(b.ctx, forwardTimeout)
			err := b.meta.write(ctx, record{Kind: "barrier"})
			cancel()
			for _, done := range line {
				done(err)
			}
		}
	})
}

// lookUp finds stored copies of all messages by their unique keys; false unless each has one.
func (b *Broker) lookUp(msgs []*mq.Message, uniq string) ([]mq.Message, bool) {
	var found []mq.Message
	for _, m := range msgs {
		key := m.Prop(mq.PropUniqKey)
		if key == "" {
			key = uniq
		}
		res, err := b.store.Query(m.Topic, key, 32, 0, milliseconds(time.Now().Add(time.Hour)))
		if err != nil {
			b.log.Warn("a message whose outcome was lost cannot be looked up, it may be stored twice", "key", key, "error", err)
			return nil, false
		}
		ok := false
		for _, stored := range res.Messages {
			have, _, err := mq.ParseStored(stored)
			if err == nil && have.Topic == m.Topic && have.Prop(mq.PropRealTopic) == m.Prop(mq.PropRealTopic) && have.Prop(mq.PropUniqKey) == key && have.ReconsumeTimes == m.ReconsumeTimes && string(have.Body) == string(m.Body) {
				found, ok = append(found, have), true
				break
			}
		}
		if !ok {
			return nil, false
		}
	}
	return found, true
}

func (b *Broker) idsOf(msgs []mq.Message) string {
	ids := make([]string, len(msgs))
	for i := range msgs {
		ids[i] = msgs[i].MsgID()
	}
	return strings.Join(ids, ",")
}
