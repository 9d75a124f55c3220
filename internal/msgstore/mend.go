package msgstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"dledger"
	"dledger/internal/mq"
)

// suspicion is a place in a queue that was found damaged.
type suspicion struct {
	q    *queue
	unit int64
	all  bool // the queue cannot even be searched: all of it
}

// suspects are the queues that wait to be mended: at most one suspicion for each. After Close the next start builds all queues anew if there are any.
type suspects map[*queue]suspicion

// mending makes units of one queue anew from the log, a part of it in each turn of Run. The goroutine of Run owns it.
type mending struct {
	suspicion
	begun int           // of the queue
	after int64         // the unit that is right, before those that are made anew; they follow it
	next  dledger.Index // of the log
	units []unit        // from after+1 on; the zero unit is one that was not found
	until int64         // the unit behind the last that is made anew; set at the end of the search
}

// damage notes that a unit does not lead to its message, though the log there is whole.
func (s *Store) damage(q *queue, i int64, u unit) error {
	err := fmt.Errorf("message %d of queue %d of topic %s is not at %d, where its consume queue says: %w", i, q.id, q.topic, u.pos, ErrNotFound)
	s.suspect(suspicion{q: q, unit: i}, err)
	return err
}

// suspect has Run look at a queue.
func (s *Store) suspect(x suspicion, cause error) {
	x.q.mu.RLock()
	gone := x.unit < x.q.firstUnit() && !x.all // the queue began anew while it was read
	x.q.mu.RUnlock()
	if gone {
		return
	}
	s.suspectsMu.Lock()
	old, known := s.suspects[x.q]
	if known {
		x.unit, x.all = min(x.unit, old.unit), x.all || old.all
	}
	s.suspects[x.q] = x
	s.suspectsMu.Unlock()
	if !known {
		s.logger.Warn("a consume queue is damaged; it is made anew from the log", "topic", x.q.topic, "queue", x.q.id, "offset", x.unit, "reason", cause)
		s.wake()
	}
}

// unreadableFile tells whether a queue's file is missing or too short, though it is one of the queue's.
func (q *queue) unreadableFile(i int64, err error) bool {
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrNotExist) {
		return false
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return slices.Contains(q.files, i-i%q.per)
}

// hurt tells whether any queue waits to be mended.
func (s *Store) hurt() bool {
	s.suspectsMu.Lock()
	defer s.suspectsMu.Unlock()
	return len(s.suspects) > 0
}

// mendSome does a part of the mending that is due; false: nothing is, or it has to wait.
func (s *Store) mendSome() (more bool, err error) {
	if s.at.next < s.saved || s.log.Commit()+1 < s.at.next {
		return false, nil // the log does not tell of all yet that is in the queues
	}
	if s.mending == nil {
		s.suspectsMu.Lock()
		for _, x := range s.suspects {
			s.mending = &mending{suspicion: x}
			break
		}
		s.suspectsMu.Unlock()
		if s.mending == nil {
			return false, nil
		}
		s.beginMending(s.mending)
	}
	m := s.mending
	m.q.mu.RLock()
	stale := m.q.begun != m.begun
	m.q.mu.RUnlock()
	if stale || s.queue(m.q.topic, m.q.id) != m.q {
		s.mended(m)
		return true, nil
	}
	done, err := s.search(m)
	switch {
	case errors.Is(err, dledger.ErrDamaged):
		s.later() // it is being repaired
		return false, nil
	case errors.Is(err, dledger.ErrCompacted):
		s.mending = nil // from where the log begins now
		return true, nil
	case errors.Is(err, dledger.ErrClosed):
		return false, nil
	case err != nil:
		return false, err
	case !done:
		return true, nil
	}
	switch err := s.rewrite(m); {
	case noSpace(err):
		s.later()
		return false, nil
	case err != nil:
		return false, fmt.Errorf("mend queue %d of topic %s: %w", m.q.id, m.q.topic, err)
	}
	s.mended(m)
	return true, nil
}

// beginMending finds the nearest unit before the damaged one that leads to its message; the search begins there, or with the log.
func (s *Store) beginMending(m *mending) {
	v := m.q.view()
	m.q.mu.RLock()
	m.begun, m.after = m.q.begun, m.q.firstUnit()-1
	m.q.mu.RUnlock()
	m.next, _ = s.log.First()
	for step := int64(1); !m.all && m.unit-step > m.after; step *= 2 {
		k := m.unit - step
		u, err := s.unitAt(m.q, v, k)
		if err != nil || !u.message() || u.size > dledger.MaxBody {
			continue
		}
		e, err := s.log.EntryAt(u.pos - headerSize)
		if err != nil {
			continue
		}
		if msg, err := parsed(e.Body, u.pos); err == nil && msg.Topic == m.q.topic && msg.QueueID == m.q.id && msg.QueueOffset == k {
			m.after, m.next = k, e.Index+1
			return
		}
	}
}

// search looks for the queue's messages in the next part of the log; done once it has come to one behind the damage whose unit is right, or to the end.
func (s *Store) search(m *mending) (done bool, err error) {
	v := m.q.view()
	m.until = v.written
	if m.next >= s.at.next || m.after+1 >= m.until {
		return true, nil
	}
	var failed error
	next, err := s.log.Committed(m.next, func(e dledger.Entry) bool {
		if e.Index >= s.at.next {
			done = true
			return false
		}
		msg, n, err := mq.ParseStored(e.Body)
		if err != nil || msg.QueueID != m.q.id || msg.Topic != m.q.topic || !msg.InQueue() || msg.QueueOffset <= m.after || n != len(e.Body) || msg.PhysicalOffset != e.Pos+headerSize {
			return true
		}
		k := msg.QueueOffset
		if k >= m.until {
			done = true
			return false
		}
		u := unit{msg.PhysicalOffset, int32(n), s.tagsCode(&msg)}
		if k > m.unit && !m.all {
			have, err := s.unitAt(m.q, v, k)
			if err != nil && !m.q.unreadableFile(k, err) {
				failed = err
				return false
			}
			if err == nil && have == u {
				m.until, done = k, true
				return false
			}
		}
		at := int(k - m.after - 1)
		m.units = append(m.units, make([]unit, max(at+1-len(m.units), 0))...)
		if m.units[at] == (unit{}) { // the first one counts, as when it was dispatched
			m.units[at] = u
		}
		return true
	})
	if err := errors.Join(err, failed); err != nil {
		return false, err
	}
	done = done || next == m.next
	m.next = next
	return done, nil
}

// rewrite writes the units that differ. One whose message the log has no more stays if it says so itself; otherwise a blank takes its place.
func (s *Store) rewrite(m *mending) error {
	q, v := m.q, m.q.view()
	_, logFirst := s.log.First()
	changed := 0
	q.mu.RLock()
	first := q.firstUnit() // some may have expired meanwhile
	q.mu.RUnlock()
	for k := max(m.after+1, first); k < m.until; k++ {
		u := unit{}
		if i := k - m.after - 1; i < int64(len(m.units)) {
			u = m.units[i]
		}
		have, err := s.unitAt(q, v, k)
		if err != nil && !q.unreadableFile(k, err) {
			return err
		}
		if u == (unit{}) {
			if u = blankUnit; err == nil && have.message() && have.pos < logFirst && k != m.unit {
				u = have
			}
		}
		if err == nil && have == u {
			continue
		}
		if err := s.write(q, k-k%q.per, k, u.append(nil)); err != nil {
			return err
		}
		changed++
	}
	s.dirtyDirs[q.dir] = true // a file may have been missing
	q.mu.Lock()
	q.least, q.leastFor = 0, -1
	q.mu.Unlock()
	s.stats.mended.Add(int64(changed))
	s.logger.Warn("a damaged consume queue is whole again", "topic", q.topic, "queue", q.id, "from", m.after+1, "to", m.until-1, "changed", changed)
	return nil
}

// mended ends a mending. What was found damaged meanwhile before its place, or makes all of the queue suspect, is another one.
func (s *Store) mended(m *mending) {
	s.mending = nil
	s.urgent = true
	s.suspectsMu.Lock()
	defer s.suspectsMu.Unlock()
	if x := s.suspects[m.q]; x == m.suspicion {
		delete(s.suspects, m.q)
	}
}
