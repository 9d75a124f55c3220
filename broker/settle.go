package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// settler finds out whether sends whose outcome was lost are in the log. The leader asks it: it has everything that was committed before
// it, and an entry that it does not have from an earlier term will never be. What the same leader may still have on its way is waited for with a record
// behind it (barrier).
type settler struct {
	line line[func(error)] // for a barrier
}

// settle stores messages only if they are not there yet. Messages of the same unique key and topic are the same if their bodies are, where they go when they wait,
// and they were stored after the request came (request.after): an application may send one twice on purpose. Of a batch a lost leader may have left the first
// messages alone; then the others follow them.
func (b *Broker) settle(r *request, msgs []*mq.Message, uniq string, k kept) {
	term, _ := b.store.Ready() // what is not there is stored in this term or not at all: a leader in between may have been asked, too
	b.settler.barrier(b, func(err error) {
		if err == nil {
			err = b.leadsIn(term)
		}
		if err != nil {
			b.failed(r, err)
			return
		}
		b.spawn(func() {
			if uniq == "" {
				uniq = msgs[0].Prop(mq.PropUniqKey)
			}
			var found []mq.Message
			if err := r.patiently(func() (err error) {
				found, err = b.lookUp(msgs, uniq, r.after)
				return err
			}); err != nil {
				b.failed(r, err)
				return
			}
			r.settle = false
			put := func(msgs []*mq.Message, done func(msgstore.PutResult)) {
				b.store.PutIn(term, msgs, func(res msgstore.PutResult) {
					r.settle = over(res.Err) // the next leader has to look again
					done(res)
				})
			}
			switch len(found) {
			case 0:
				b.putBy(put, r, msgs, k)
			case len(msgs):
				k.sent(found[0].QueueID, found[0].QueueOffset, b.idsOf(found))
			default:
				rest := msgs[len(found):]
				for _, m := range rest {
					m.QueueID = found[0].QueueID // the request may leave it to each attempt
				}
				b.putBy(put, r, rest, kept{func(_ int32, _ int64, ids string) {
					k.sent(found[0].QueueID, found[0].QueueOffset, b.idsOf(found)+","+ids)
				}, k.failed})
			}
		})
	})
}

// barrier calls done when everything that was given to the log before is either committed and dispatched or never will be.
func (s *settler) barrier(b *Broker, done func(error)) {
	s.line.join(b, done, func(line []func(error)) {
		ctx, cancel := context.WithTimeout(b.ctx, forwardTimeout)
		err := b.meta.write(ctx, record{Kind: "barrier"})
		cancel()
		for _, done := range line {
			done(err)
		}
	})
}

// lookUp finds stored copies of messages by their unique keys, from position after on: of the first ones, as many as are there. An error says that it cannot be told.
func (b *Broker) lookUp(msgs []*mq.Message, uniq string, after int64) (found []mq.Message, err error) {
	used := map[int64]bool{} // by physical offset
	for _, m := range msgs {
		key := m.Prop(mq.PropUniqKey)
		if key == "" {
			key = uniq
		}
		res, err := b.store.Query(m.Topic, key, queryMax, 0, milliseconds(time.Now().Add(time.Hour)))
		if errors.Is(err, dledger.ErrDamaged) && !b.ledger.Mends() {
			err = nil // nobody can tell whether it was that one
		}
		if err != nil {
			return nil, fmt.Errorf("look up key %s: %w", key, err)
		}
		ok := false
		for _, stored := range slices.Backward(res.Messages) { // the oldest first
			have, _, err := mq.ParseStored(stored)
			if err == nil && have.PhysicalOffset >= after && !used[have.PhysicalOffset] && have.Topic == m.Topic && have.Prop(mq.PropRealTopic) == m.Prop(mq.PropRealTopic) &&
				have.Prop(mq.PropUniqKey) == key && have.ReconsumeTimes == m.ReconsumeTimes && string(have.Body) == string(m.Body) {
				found, ok = append(found, have), true
				used[have.PhysicalOffset] = true
				break
			}
		}
		if !ok {
			break
		}
	}
	return found, nil
}

func (b *Broker) idsOf(msgs []mq.Message) string {
	ids := make([]string, len(msgs))
	for i := range msgs {
		ids[i] = msgs[i].MsgID()
	}
	return strings.Join(ids, ",")
}
