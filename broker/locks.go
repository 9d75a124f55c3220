package broker

import (
	"encoding/hex"
	"strings"
	"time"
	"unicode/utf8"

	"dledger/internal/mq"
)

// Compatibility: LOCK_BATCH_MQ (41), UNLOCK_BATCH_MQ (42). Locks go through the log, so a consumer keeps them when leadership moves; the
// original forgets them and can give a queue to two owners for a minute. onlyThisBroker is ignored: the group has one table. Queues of another broker are not locked;
// the original locks whatever it is asked for.

func (b *Broker) lockRequest(r *request) (q mq.LockRequest, rec *lockRecord, ok bool) {
	if err := mq.Unmarshal(r.body(), &q); err != nil {
		r.malformed(err)
		return q, nil, false
	}
	rec = &lockRecord{Group: inJSON(q.ConsumerGroup), Client: inJSON(q.ClientID)}
	for _, queue := range q.Queues {
		if b.has(queue) {
			rec.Queues = append(rec.Queues, lockQueue{inJSON(queue.Topic), queue.QueueID})
		}
	}
	if rec.Group == "" || rec.Client == "" {
		r.refuse(mq.SystemError, "consumerGroup %q and clientId %q must both be given", rec.Group, rec.Client)
		return q, nil, false
	}
	return q, rec, true
}

// has tells whether a queue that a client names is one of this group's. Locks do not name the broker, so those of another group are neither taken nor confirmed.
func (b *Broker) has(q mq.MessageQueue) bool { return q.BrokerName == "" || q.BrokerName == b.cfg.Name }

// inJSON gives a text by which a client is known in records, which are JSON: itself, or what stands for bytes that are no UTF-8. No two have the same.
func inJSON(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, "\x00") {
		return s
	}
	return "\x00" + hex.EncodeToString([]byte(s))
}

func (b *Broker) lockQueues(r *request) {
	q, rec, ok := b.lockRequest(r)
	if !ok {
		return
	}
	if !b.meta.roomFor(rec) {
		r.refuse(mq.SystemBusy, "[OVERLOAD]%d queues are locked, no more for a while", locksMax)
		return
	}
	b.meta.submit(record{Kind: "lock", Lock: rec}, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		answer := mq.LockAnswer{Queues: []mq.MessageQueue{}}
		for _, queue := range q.Queues {
			if b.has(queue) && b.meta.lockedBy(rec.Group, queueKey{inJSON(queue.Topic), queue.QueueID}) == rec.Client {
				answer.Queues = append(answer.Queues, queue)
			}
		}
		r.json(answer)
	})
}

func (b *Broker) unlockQueues(r *request) {
	_, rec, ok := b.lockRequest(r)
	if !ok {
		return
	}
	b.meta.submit(record{Kind: "unlock", Unlock: rec}, func(err error) {
		if err != nil {
			b.failed(r, err)
			return
		}
		r.ok()
	})
}

// locksMax bounds the locks of all groups.
const locksMax = 1 << 20

// roomFor tells whether so many locks more may be taken. Renewing one needs no room.
func (m *meta) roomFor(rec *lockRecord) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	more := 0
	for _, q := range rec.Queues {
		if _, held := m.state.Locks[rec.Group][queueKey(q)]; !held {
			more++
		}
	}
	return m.state.locks+more <= locksMax
}

// lockedBy gives the client that holds a queue; "" if nobody does.
func (m *meta) lockedBy(group string, q queueKey) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	l, ok := m.state.Locks[group][q]
	if !ok || l.expired(milliseconds(time.Now())) {
		return ""
	}
	return l.client
}

// holdsLocks tells whether a group holds any queue, which those do that consume in order (RebalanceLockManager.isLockAllExpired).
func (m *meta) holdsLocks(group string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	now := milliseconds(time.Now())
	for _, l := range m.state.Locks[inJSON(group)] {
		if !l.expired(now) {
			return true
		}
	}
	return false
}
