package msgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"dledger"
	"dledger/internal/mq"
)

// leadership is one term in which this member takes messages. It counts the queues' offsets, from what was in the queues when it began.
type leadership struct {
	s    *Store
	term dledger.Term

	mu       sync.RWMutex
	counters map[string]map[int32]*counter
}

// counter gives the offsets of one queue. Stamps alone use it, on the log's goroutine.
type counter struct {
	topic   string
	id      int32
	started bool
	next    int64
}

// counter gives the one of a queue.
func (l *leadership) counter(topic string, id int32) *counter {
	l.mu.RLock()
	c := l.counters[topic][id]
	l.mu.RUnlock()
	if c != nil {
		return c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.counters[topic][id]; c != nil {
		return c
	}
	topic = strings.Clone(topic) // it may be a part of a request
	c = &counter{topic: topic, id: id}
	if l.counters[topic] == nil {
		l.counters[topic] = map[int32]*counter{}
	}
	l.counters[topic][id] = c
	return c
}

// take gives the next offset (M1). The first time it looks where the queue ends: all messages of former terms are in it, and of this term there
// is none that was not counted here.
func (l *leadership) take(c *counter) int64 {
	if !c.started {
		c.started = true
		if q := l.s.queue(c.topic, c.id); q != nil {
			c.next = q.view().end
		}
		if floor := l.s.cfg.Floor; floor != nil {
			c.next = max(c.next, floor(c.topic, c.id))
		}
	}
	c.next++
	return c.next - 1
}

// put is one Put on its way.
type put struct {
	l        *leadership
	msgs     []*mq.Message
	counters []*counter // nil for a message without a place in a queue
	buf      *[]byte
	done     func(PutResult)

	oneCounter [1]*counter // most hold one message: then these are counters and what encode gives
	oneBody    [1][]byte
}

// buffers holds memory for the stored form of messages on their way to the log, which makes its own copy.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

const bufferMax = 1 << 20 // larger ones are not kept

// Put gives messages to the log: all or none, next to each other, each in the queue that it names, in this order. QueueOffset, PhysicalOffset and StoreTime
// are set by the store, StoreHost where it is not given. It never waits for the group; done is called once, possibly on the log's own goroutine, so it must
// not block. The messages must not be used until then.
func (s *Store) Put(msgs []*mq.Message, done func(PutResult)) { s.put(s.led.Load(), msgs, done) }

// PutIn is Put for one term only: in another one the messages are refused.
func (s *Store) PutIn(term dledger.Term, msgs []*mq.Message, done func(PutResult)) {
	l := s.led.Load()
	if l != nil && l.term != term {
		l = nil
	}
	s.put(l, msgs, done)
}

func (s *Store) put(l *leadership, msgs []*mq.Message, done func(PutResult)) {
	if l == nil {
		done(refused(ErrNotReady))
		return
	}
	p := &put{l: l, msgs: msgs, buf: buffers.Get().(*[]byte), done: done}
	if p.counters = p.oneCounter[:]; len(msgs) != 1 {
		p.counters = make([]*counter, len(msgs))
	}
	bodies, err := p.encode(time.Now().UnixMilli())
	if err != nil {
		p.free()
		done(refused(fmt.Errorf("%w: %w", ErrIllegal, err)))
		return
	}
	s.log.ProposeIn(l.term, bodies, p.stamp, p.finish)
}

func refused(err error) PutResult {
	return PutResult{Status: StatusOf(err), QueueOffset: -1, Err: err}
}

// encode gives the stored form of each message.
func (p *put) encode(now int64) ([][]byte, error) {
	size := 0
	for i, m := range p.msgs {
		if err := CheckTopic(m.Topic); err != nil {
			return nil, err
		}
		m.StoreTime = now
		if !m.StoreHost.IsValid() {
			m.StoreHost = p.l.s.cfg.StoreHost
		}
		m.QueueOffset, m.PhysicalOffset = 0, 0
		if m.InQueue() {
			p.counters[i] = p.l.counter(m.Topic, m.QueueID)
		}
		size += m.StoredSize()
	}
	buf := *p.buf
	if cap(buf) < size {
		buf = make([]byte, 0, size)
	}
	buf = buf[:0]
	bodies := p.oneBody[:]
	if len(p.msgs) != 1 {
		bodies = make([][]byte, len(p.msgs))
	}
	for i, m := range p.msgs {
		n := len(buf)
		var err error
		if buf, err = mq.AppendStored(buf, m); err != nil {
			return nil, err
		}
		bodies[i] = buf[n:len(buf):len(buf)]
	}
	*p.buf = buf
	return bodies, nil
}

func (p *put) free() {
	if cap(*p.buf) <= bufferMax {
		buffers.Put(p.buf)
	}
	p.buf = nil
}

// stamp gives a message its place. It runs only for batches that the log then takes, so no offset is lost.
func (p *put) stamp(i int, _ dledger.Index, pos int64, body []byte) {
	m := p.msgs[i]
	m.PhysicalOffset = pos + headerSize
	if c := p.counters[i]; c != nil {
		m.QueueOffset = p.l.take(c)
	}
	mq.SetStored(body, m.QueueOffset, m.PhysicalOffset)
}

func (p *put) finish(a dledger.Appended, err error) {
	p.free()
	r := PutResult{Status: StatusOf(err), QueueOffset: -1, Err: err}
	if len(a.Pos) > 0 { // it has its place, even if it is not known to be committed
		r.QueueOffset = p.msgs[0].QueueOffset
		r.Pos = make([]int64, len(a.Pos))
		for i, at := range a.Pos {
			r.Pos[i] = at + headerSize
		}
	}
	p.done(r)
}

// promote makes this member ready to lead once an entry of its own term is dispatched: then everything before it is. It puts that entry
// into the log itself. It runs on the goroutine of Run.
func (s *Store) promote() {
	term, leads := s.log.Leading()
	if !leads {
		s.led.Store(nil)
		return
	}
	if l := s.led.Load(); l != nil && l.term == term {
		return
	}
	s.led.Store(nil)
	if s.lastTerm == term {
		s.led.Store(&leadership{s: s, term: term, counters: map[string]map[int32]*counter{}})
		s.logger.Info("ready to take messages", "term", term, "messages", s.at.sum, "queues", s.at.queues)
		s.announce()
		if s.cfg.Promoted != nil {
			s.cfg.Promoted(term)
		}
		return
	}
	if s.recordTerm != term {
		s.recordTerm = term
		s.proposeRecord(term)
	}
}

// proposeRecord puts the message into the log with which a leadership begins. It is marked as rolled back, so it takes no place in a queue: their
// offsets are not known yet.
func (s *Store) proposeRecord(term dledger.Term) {
	m := s.cfg.LeaderRecord(term)
	m.SysFlag = m.SysFlag&^mq.SysTransaction | mq.SysRollback
	m.StoreTime, m.StoreHost = time.Now().UnixMilli(), s.cfg.StoreHost
	if !m.BornHost.IsValid() {
		m.BornTime, m.BornHost = m.StoreTime, m.StoreHost
	}
	body, err := mq.AppendStored(nil, m)
	if err != nil {
		s.logger.Error("the record of a new leader has no stored form", "error", err)
		return
	}
	stamp := func(_ int, _ dledger.Index, pos int64, b []byte) { mq.SetStored(b, 0, pos+headerSize) }
	s.log.ProposeIn(term, [][]byte{body}, stamp, func(_ dledger.Appended, err error) {
		if err == nil || errors.Is(err, dledger.ErrNotLeader) || errors.Is(err, dledger.ErrClosed) {
			return
		}
		if s.recordFailed.Swap(int64(term)) != int64(term) {
			s.logger.Warn("the record of a new leader is not committed; it is tried again", "term", term, "error", err)
		}
		time.AfterFunc(recordWait, func() { // once more, if this member still leads
			select {
			case s.calls <- func() { s.recordTerm = -1 }:
			case <-s.stopped:
			}
		})
	})
}

// Ready tells whether this member leads and may take messages: all that was committed when it was elected is committed in its own term and in the queues.
// Term is the term it is ready in.
func (s *Store) Ready() (term dledger.Term, ok bool) {
	l := s.led.Load()
	if l == nil {
		return -1, false
	}
	now, leads := s.log.Leading()
	return l.term, leads && now == l.term
}

// WaitReady waits until Ready. Errors: ctx's, and ErrClosed.
func (s *Store) WaitReady(ctx context.Context) error {
	for {
		s.watchMu.Lock()
		if s.watch == nil {
			s.watch = make(chan struct{})
		}
		promoted := s.watch
		s.watchMu.Unlock()
		if _, ok := s.Ready(); ok {
			return nil
		}
		select {
		case <-promoted:
		case <-s.stopped:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Store) announce() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	if s.watch != nil {
		close(s.watch)
		s.watch = nil
	}
}

// PutResult tells what became of a Put.
type PutResult struct {
	Status      PutStatus
	QueueOffset int64   // of the first message; -1 if it has none. Those of one queue follow each other
	Pos         []int64 // physical offset of each message
	Err         error   // why Status is not PutOK
}
