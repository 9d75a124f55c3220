package broker

import (
	"context"
	"errors"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
)

// What is damaged on the disk of one replica, its log fetches from another one. Until then nobody here gets it: a pull waits as if nothing had arrived
// yet, other requests wait as long as one may be held, and services wait for as long as they run. Where no other replica has it, services pass it over, and say so.

// errUnread: a message cannot be read for now.
var errUnread = errors.New("not readable for now")

// unreadable tells errors of what cannot be read for now from those of what is not there.
func unreadable(err error) bool {
	return err != nil && !errors.Is(err, msgstore.ErrNotFound) && !errors.Is(err, dledger.ErrClosed)
}

// patiently calls read again while it finds something unreadable, as long as the request may be held. Its handler must be one that may wait.
func (r *request) patiently(read func() error) error {
	for {
		err := read()
		if !unreadable(err) || time.Now().After(r.due) || pause(r.b.ctx, unreadAgain) != nil {
			return err
		}
	}
}

// unread answers a request for what cannot be read for now.
func (r *request) unread(err error) {
	r.refuse(mq.SystemBusy, "[DAMAGED]it cannot be read for now, try again: %v", err)
}

// later takes the request up again in a moment, with whoever leads then, as long as it may be held.
func (b *Broker) later(r *request, err error) {
	if time.Now().After(r.due) {
		r.unread(err)
		return
	}
	if b.waiting.Add(1) > waitersMax {
		b.waiting.Add(-1)
		r.unread(err)
		return
	}
	b.spawn(func() {
		defer b.waiting.Add(-1)
		if pause(b.ctx, unreadAgain) != nil {
			return // the connection goes as well
		}
		r.again = true
		b.gate.submit(r)
	})
}

// whole calls read again while what it wants is damaged and may come from another replica, or the index is made anew.
func (b *Broker) whole(ctx context.Context, read func() error) error {
	for {
		err := read()
		if !errors.Is(err, msgstore.ErrIndexDamaged) && (!errors.Is(err, dledger.ErrDamaged) || !b.ledger.Mends()) {
			return err
		}
		if err := pause(ctx, unreadAgain); err != nil {
			return err
		}
	}
}

// lost tells whether a service has to go on without a message of a queue, as no replica has it.
func (b *Broker) lost(topic string, queue int32, offset int64, err error) bool {
	if !errors.Is(err, dledger.ErrDamaged) || b.ledger.Mends() {
		return false
	}
	b.log.Error("a message is damaged and there is no other replica to have it from; it is passed over", "topic", topic, "queue", queue, "offset", offset, "error", err)
	return true
}
