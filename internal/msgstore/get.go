package msgstore

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sort"

	"encoding/binary"

	"dledger"
	"dledger/internal/mq"
)

// Filter chooses messages. Both must say yes; the second is asked only if the first does.
type Filter interface {
	MatchCode(tagsCode int64) bool
	Match(stored []byte) bool
}

// GetStatus says what a Get found.
type GetStatus uint8

// What a Get finds; the remark of a PULL answer names it.
const (
	Found   GetStatus = iota
	NoMatch           // messages are there, none that the filter wants
	NoMessageInQueue
	NoSuchQueue
	OffsetTooSmall
	OffsetOverflowOne // the offset is the queue's end: wait for what comes
	OffsetOverflowBadly
	Removing // the messages were just removed by retention
	OffsetFoundNull
)

var getStatusNames = [...]string{"FOUND", "NO_MATCHED_MESSAGE", "NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE", "OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_ONE",
	"OFFSET_OVERFLOW_BADLY", "MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL"}

// String is the original's name.
func (g GetStatus) String() string { return getStatusNames[g] }

// GetResult is what a Get found.
type GetResult struct {
	Status   GetStatus
	Next     int64    // where to go on
	Min, Max int64    // of the queue: the first offset that is kept, and the one behind the last
	Messages [][]byte // in stored form; the log's memory, not to be written to
	Size     int      // of them all
	Behind   int64    // bytes of log between the last message looked at and the log's end
	Err      error    // with OffsetFoundNull: why it cannot be read for now; dledger.ErrDamaged if it waits for a copy of another member
}

// Code is the response code of a PULL that asked from offset on.
func (r *GetResult) Code(offset int64) int32 {
	switch r.Status {
	case Found:
		return mq.Success
	case NoMatch, Removing:
		return mq.PullRetryImmediately
	case OffsetOverflowOne, OffsetFoundNull:
		return mq.PullNotFound
	case NoSuchQueue, NoMessageInQueue:
		if offset == 0 {
			return mq.PullNotFound
		}
	}
	return mq.PullOffsetMoved
}

// How much of a queue one Get looks at, and how much of the log it reads at once.
const (
	scanUnits  = 800
	windowSize = 256 << 10
)

// Get reads messages of a queue from offset on: at most maxMsgs and maxBytes, but at least one if one is there. A nil filter wants all.
func (s *Store) Get(topic string, queueID int32, offset int64, maxMsgs, maxBytes int, filter Filter) GetResult {
	q := s.queue(topic, queueID)
	lo, hi, err := s.known(q, topic, queueID)
	switch {
	case err != nil:
		return s.unread(q, offset, err)
	case q == nil && hi == 0:
		return GetResult{Status: NoSuchQueue}
	}
	r := GetResult{Min: lo, Max: hi, Next: offset}
	switch {
	case hi == 0:
		r.Status, r.Next = NoMessageInQueue, 0
	case offset < lo:
		r.Status, r.Next = OffsetTooSmall, lo
	case offset == hi:
		r.Status = OffsetOverflowOne
	case offset > hi:
		r.Status, r.Next = OffsetOverflowBadly, hi
	default:
		s.get(q, &r, maxMsgs, maxBytes, filter)
	}
	return r
}

// unread is the result where the queue cannot be read now: the client waits and asks again.
func (s *Store) unread(q *queue, offset int64, err error) GetResult {
	if !errors.Is(err, dledger.ErrClosed) {
		s.logger.Warn("consume queue not read", "topic", q.topic, "queue", q.id, "offset", offset, "error", err)
	}
	return GetResult{Status: OffsetFoundNull, Next: offset, Err: err}
}

// get reads from r.Next on, which lies within the queue.
func (s *Store) get(q *queue, r *GetResult, maxMsgs, maxBytes int, filter Filter) {
	v := q.view()
	last := int64(0) // position behind the last message looked at
	limit := max(scanUnits, maxMsgs)
	var w window
	for looked := 0; r.Next < v.end && looked < limit && len(r.Messages) < maxMsgs; {
		b, err := s.read(q, v, r.Next, limit-looked)
		if err != nil {
			if q.unreadableFile(r.Next, err) {
				s.suspect(suspicion{q: q, unit: r.Next}, err)
			}
			s.getFailed(q, r, err)
			return
		}
		for i := 0; i < len(b) && len(r.Messages) < maxMsgs; i += unitSize {
			u := parseUnit(b[i:])
			if len(r.Messages) > 0 && r.Size+int(u.size) > maxBytes && u != blankUnit {
				looked = limit
				break
			}
			looked++
			if u != blankUnit && (filter == nil || filter.MatchCode(u.code)) {
				more := b[i+unitSize:]
				if filter == nil {
					more = more[:min(len(more), (maxMsgs-len(r.Messages)-1)*unitSize)]
				}
				m, err := s.message(q, r.Next, u, more, &w)
				if err != nil {
					if len(r.Messages) == 0 {
						s.getFailed(q, r, err)
						return
					}
					looked = limit
					break
				}
				if filter == nil || filter.Match(m) {
					r.Messages = append(r.Messages, m)
					r.Size += len(m)
				}
			}
			if u != blankUnit {
				last = u.pos + int64(u.size)
			}
			r.Next++
		}
	}
	r.Status = Found
	if len(r.Messages) == 0 {
		r.Status = NoMatch
	}
	r.Behind = max(s.stats.to.Load()-last, 0)
}

// getFailed says how to go on where a message or a unit cannot be read.
func (s *Store) getFailed(q *queue, r *GetResult, err error) {
	if errors.Is(err, dledger.ErrCompacted) || errors.Is(err, os.ErrNotExist) {
		if lo, hi, err := s.bounds(q); err == nil && lo > r.Next {
			r.Status, r.Next, r.Min, r.Max = Removing, lo, lo, hi
			return
		}
	}
	*r = s.unread(q, r.Next, err)
}

// window is a stretch of the log that was read at once, for messages that are no longer in memory.
type window struct {
	pos int64
	b   []byte
}

// message gives message i of a queue, whose unit is u; more are the units behind it. What is not fresh is checked with the checksums of its entry before the queue is
// blamed for what is wrong with it.
func (s *Store) message(q *queue, i int64, u unit, more []byte, w *window) ([]byte, error) {
	if !u.message() || u.size > dledger.MaxBody {
		return nil, s.damage(q, i, u)
	}
	b, ok := s.log.Fresh(u.pos, int(u.size))
	if !ok {
		var err error
		b, err = s.cold(u, more, w)
		if errors.Is(err, ErrNotFound) || errors.Is(err, dledger.ErrOutOfRange) && s.beyond(u) || errors.Is(err, dledger.ErrCompacted) && s.keeps(q, i) {
			return nil, s.damage(q, i, u)
		}
		if err != nil {
			return nil, err
		}
	}
	be := binary.BigEndian
	if len(b) < mq.OffsetPhysicalOffset || be.Uint32(b) != uint32(u.size) || be.Uint32(b[mq.OffsetQueueID:]) != uint32(q.id) || be.Uint64(b[mq.OffsetQueueOffset:]) != uint64(i) {
		return nil, s.damage(q, i, u)
	}
	return b, nil
}

// cold reads the message of a unit from the log's files, if it is not in the window already.
func (s *Store) cold(u unit, more []byte, w *window) ([]byte, error) {
	pos, size := u.pos-headerSize, headerSize+int64(u.size)
	if pos < w.pos || pos+size > w.pos+int64(len(w.b)) {
		var err error
		if *w, err = s.readWindow(u, more); err != nil {
			return s.body(u.pos, int(u.size)) // one of the others may be what cannot be read
		}
	}
	e := w.b[pos-w.pos:][:size:size]
	if s.log.Whole(pos, e) {
		return e[headerSize:], nil
	}
	return s.body(u.pos, int(u.size))
}

// body reads the message of size bytes at pos. ErrNotFound: none begins there. Any other error but ErrCompacted says that it cannot be read for now: ErrDamaged that another
// member is asked for it, ErrOutOfRange that it is not known to be committed.
func (s *Store) body(pos int64, size int) ([]byte, error) {
	b, err := s.log.ReadAt(pos-headerSize, headerSize+size)
	if err == nil && s.log.Whole(pos-headerSize, b) {
		return b[headerSize:], nil
	}
	e, err := s.log.EntryAt(pos - headerSize)
	if errors.Is(err, dledger.ErrOutOfRange) {
		end, failed := s.log.CommittedEnd()
		if failed == nil && pos+int64(size) <= end {
			return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(e.Body) != size {
		return nil, ErrNotFound
	}
	return e.Body, nil
}

// beyond tells whether a unit leads behind all that is committed, and all that was when the checkpoint was made.
func (s *Store) beyond(u unit) bool {
	end, err := s.log.CommittedEnd()
	return err == nil && u.pos+int64(u.size) > max(end, s.stats.to.Load())
}

// keeps tells whether message i of a queue is not one that retention has taken.
func (s *Store) keeps(q *queue, i int64) bool {
	lo, _, err := s.bounds(q)
	return err == nil && lo <= i
}

// readWindow reads the message of a unit, and those of the next ones as long as most of what is read is wanted.
func (s *Store) readWindow(u unit, more []byte) (window, error) {
	end, wanted := u.pos+int64(u.size), int64(u.size)
	for i := 0; i+unitSize <= len(more); i += unitSize {
		next := parseUnit(more[i:])
		to := next.pos + int64(next.size)
		wanted += int64(next.size)
		if !next.message() || next.pos < end || to-u.pos > windowSize || 2*wanted < to-u.pos {
			break
		}
		end = to
	}
	pos := u.pos - headerSize
	b, err := s.log.ReadAt(pos, int(end-pos))
	return window{pos, b}, err
}

// Bounds are those of a queue.
type Bounds struct{ Min, Max int64 }

// Bounds gives those of one queue; 0 and 0 for one that is not there.
func (s *Store) Bounds(topic string, queueID int32) Bounds {
	q := s.queue(topic, queueID)
	lo, hi, err := s.known(q, topic, queueID)
	if err != nil {
		s.unread(q, 0, err)
		v := q.view()
		return Bounds{v.end, v.end}
	}
	return Bounds{lo, hi}
}

// MinOffset is the first offset of a queue that is kept; 0 for a queue that is not there.
func (s *Store) MinOffset(topic string, queueID int32) int64 { return s.Bounds(topic, queueID).Min }

// MaxOffset is the offset behind the last message of a queue; 0 for a queue that is not there.
func (s *Store) MaxOffset(topic string, queueID int32) int64 { return s.Bounds(topic, queueID).Max }

// known is bounds, also for a queue (nil: not here) that has come further than this member has seen: all of it has gone.
func (s *Store) known(q *queue, topic string, queueID int32) (lo, hi int64, err error) {
	if q != nil {
		if lo, hi, err = s.bounds(q); err != nil || lo < hi {
			return lo, hi, err
		}
	}
	if floor := s.floor(topic, queueID); floor > hi {
		lo, hi = floor, floor
	}
	return lo, hi, nil
}

// Queues gives the queues of a topic that hold or held messages.
func (s *Store) Queues(topic string) map[int32]Bounds {
	s.queues.RLock()
	ids := make([]int32, 0, len(s.queues.of[topic]))
	for id := range s.queues.of[topic] {
		ids = append(ids, id)
	}
	s.queues.RUnlock()
	all := make(map[int32]Bounds, len(ids))
	for _, id := range ids {
		all[id] = s.Bounds(topic, id)
	}
	return all
}

// Topics gives the topics that hold or held messages.
func (s *Store) Topics() []string {
	s.queues.RLock()
	defer s.queues.RUnlock()
	all := make([]string, 0, len(s.queues.of))
	for t := range s.queues.of {
		all = append(all, t)
	}
	return all
}

// OffsetByTime finds the first message of a queue that was stored at ts (ms) or later, its end if there is none; or with upper the last that was stored
// then or earlier, its beginning if there is none. Where messages cannot be read for now it may find an earlier one, never a later.
func (s *Store) OffsetByTime(topic string, queueID int32, ts int64, upper bool) int64 {
	q := s.queue(topic, queueID)
	if q == nil {
		return 0
	}
	lo, hi, err := s.bounds(q)
	if err != nil {
		s.unread(q, 0, err)
		return q.view().end
	}
	v := q.view()
	n := sort.Search(int(hi-lo), func(i int) bool {
		t := s.timeFrom(q, v, lo+int64(i))
		return t > ts || t == ts && !upper
	})
	if upper {
		return lo + max(int64(n)-1, 0)
	}
	return lo + int64(n)
}

// timeFrom is storeTime of message i, or where that cannot be read for now, of one of the next.
func (s *Store) timeFrom(q *queue, v view, i int64) int64 {
	for k := i; k < min(i+8, v.end); k++ {
		if t, err := s.storeTime(q, v, k); err == nil {
			return t
		}
	}
	return math.MaxInt64
}

// storeTime is when message i of a queue was stored; -1 if there is none.
func (s *Store) storeTime(q *queue, v view, i int64) (int64, error) {
	u, err := s.unitAt(q, v, i)
	if err != nil || u == blankUnit {
		return -1, err
	}
	b, err := s.message(q, i, u, nil, new(window))
	if err != nil {
		return -1, err
	}
	m, err := parsed(b, u.pos)
	if err != nil {
		return -1, nil
	}
	return m.StoreTime, nil
}

// StoreTime is when the message at offset of a queue was stored (ms); -1 if there is none, or it cannot be read for now.
func (s *Store) StoreTime(topic string, queueID int32, offset int64) int64 {
	q := s.queue(topic, queueID)
	if q == nil {
		return -1
	}
	v := q.view()
	if lo, hi, err := s.bounds(q); err != nil || offset < lo || offset >= min(hi, v.end) {
		return -1
	}
	t, err := s.storeTime(q, v, offset)
	if err != nil {
		return -1
	}
	return t
}

// EarliestTime is when the first kept message of a queue was stored (ms); -1 if there is none.
func (s *Store) EarliestTime(topic string, queueID int32) int64 {
	return s.StoreTime(topic, queueID, s.MinOffset(topic, queueID))
}

// EarliestLogTime is when the first message of the whole log was stored (ms); -1 if there is none.
func (s *Store) EarliestLogTime() int64 {
	t := int64(-1)
	for i, _ := s.log.First(); t < 0; {
		next, err := s.log.Committed(i, func(e dledger.Entry) bool {
			if m, _, err := mq.ParseStored(e.Body); err == nil {
				t = m.StoreTime
			}
			return t < 0
		})
		if err != nil || next == i {
			break
		}
		i = next
	}
	return t
}

// messageAt reads the message of size bytes at pos; see body.
func (s *Store) messageAt(pos int64, size int) (mq.Message, error) {
	b, err := s.body(pos, size)
	if err != nil {
		return mq.Message{}, err
	}
	return parsed(b, pos)
}

// parsed is the message that the entry body at pos holds. ErrNotFound: it holds none.
func parsed(b []byte, pos int64) (mq.Message, error) {
	m, n, err := mq.ParseStored(b)
	if err != nil || n != len(b) || m.PhysicalOffset != pos {
		return m, ErrNotFound
	}
	return m, nil
}

// MessageAt gives the committed message at a physical offset, in stored form. ErrNotFound: none begins there, or it is no longer kept. Other errors say that it
// cannot be read for now.
func (s *Store) MessageAt(pos int64) ([]byte, error) {
	e, err := s.log.EntryAt(pos - headerSize)
	if errors.Is(err, dledger.ErrOutOfRange) || errors.Is(err, dledger.ErrCompacted) {
		return nil, ErrNotFound
	}
	if err == nil {
		_, err = parsed(e.Body, pos)
	}
	return e.Body, err
}

// QueryResult is what a Query found.
type QueryResult struct {
	Messages [][]byte // in stored form, newest first
	LastTime int64    // store time (ms) and physical offset of the newest message in the index
	LastPos  int64
}

// Query finds messages of a topic by a key or unique key that were stored between begin and end (ms), at most max. With an error some may be missing: there is
// one that cannot be read for now, or the index is damaged (ErrIndexDamaged).
func (s *Store) Query(topic, key string, max int, begin, end int64) (QueryResult, error) {
	r := QueryResult{LastTime: s.stats.time.Load(), LastPos: s.stats.to.Load()}
	end = min(end, math.MaxInt64/2) // tools ask for everything up to the end of time, which must not run over
	seen := map[int64]bool{}
	var unread error
	err := s.index.find(mq.KeyHash(mq.IndexKey(topic, key)), begin, end, func(i found) (more bool, err error) {
		if seen[i.pos] {
			return true, nil
		}
		seen[i.pos] = true
		var m mq.Message
		b, err := s.MessageAt(i.pos)
		if err == nil {
			m, _, err = mq.ParseStored(b)
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			unread = fmt.Errorf("message at %d: %w", i.pos, err)
			return true, nil
		}
		if torn := s.leadsTo(i, &m, err); torn != nil {
			return false, torn
		}
		if err == nil && m.StoreTime >= begin && m.StoreTime <= end && hasKey(&m, topic, key) {
			r.Messages = append(r.Messages, b)
		}
		return len(r.Messages) < max, nil
	})
	return r, errors.Join(err, unread)
}

// hasKey tells messages with this key from those whose key only has the same hash.
func hasKey(m *mq.Message, topic, key string) bool {
	if m.Topic != topic {
		return false
	}
	for k := range m.IndexKeys() {
		if k == mq.IndexKey(topic, key) {
			return true
		}
	}
	return false
}
