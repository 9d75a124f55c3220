package msgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"sync"
)

// A consume queue (ConsumeQueue in the Java original) says where in the log the messages of one queue lie. Its files,
// DIR/consumequeue/TOPIC/QUEUE/NAME, have unitsPerFile units each and are named by the position of their first byte in the queue, 20 digits. A
// unit:
//
//	offset size field
//	     0    8 physical offset of the message
//	     8    4 its size
//	    12    8 tags code: hash of its tag; in the topic of delayed messages the time when it is due (ms)
//
// A queue whose first message is not at the beginning of a file has blank units before it: offset 0, size 2^31-1, code 0. Behind the last unit
// are zeros.
const (
	unitSize     = 20
	unitsPerFile = 300_000
)

// unit is one of them.
type unit struct {
	pos  int64
	size int32
	code int64
}

var blankUnit = unit{size: math.MaxInt32}

func (u unit) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(u.pos))
	b = binary.BigEndian.AppendUint32(b, uint32(u.size))
	return binary.BigEndian.AppendUint64(b, uint64(u.code))
}

func parseUnit(b []byte) unit {
	return unit{pos: int64(binary.BigEndian.Uint64(b)), size: int32(binary.BigEndian.Uint32(b[8:])), code: int64(binary.BigEndian.Uint64(b[12:]))}
}

// message tells units that stand for a message from blanks and from what was never written.
func (u unit) message() bool { return u.pos > 0 && u.size > 0 }

// flushBytes is how much of a queue stays in memory before it is written without waiting for a checkpoint.
const flushBytes = 64 << 10

// queue is one consume queue.
//
//  1. units from written on are in tail, those below in the files; tail's bytes are never changed, so readers keep it without lock;
//  2. files are consecutive, and hold the units from files[0] on;
//  3. only the dispatching goroutine changes anything, except least and leastFor.
type queue struct {
	topic string
	id    int32
	dir   string
	per   int64 // units in a file

	mu       sync.RWMutex
	files    []int64 // the first unit of each file
	written  int64
	end      int64 // the offset behind the last unit
	tail     []byte
	lastPos  int64 // position behind the last message; 0 while there is none
	least    int64 // first unit of the log as it begins at leastFor
	leastFor int64
	begun    int // how often the queue began anew
}

func queueDir(root, topic string, id int32) string {
	return filepath.Join(root, topic, strconv.Itoa(int(id)))
}

func (q *queue) name(first int64) string {
	return filepath.Join(q.dir, fmt.Sprintf("%020d", first*unitSize))
}

// push adds a unit; its offset is end.
func (q *queue) push(u unit) {
	q.mu.Lock()
	q.tail = u.append(q.tail)
	q.end++
	q.lastPos = u.pos + int64(u.size)
	q.mu.Unlock()
}

// view is what a reader needs of a queue at one moment.
type view struct {
	written, end int64
	tail         []byte
}

func (q *queue) view() view {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return view{q.written, q.end, q.tail}
}

// read gives the units from offset on, at most n; fewer where the queue or a file ends.
func (s *Store) read(q *queue, v view, from int64, n int) ([]byte, error) {
	if from >= v.written {
		lo := (from - v.written) * unitSize
		hi := min(lo+int64(n)*unitSize, int64(len(v.tail)))
		return v.tail[lo:hi:hi], nil
	}
	first := from - from%q.per
	n = int(min(int64(n), v.written-from, first+q.per-from))
	b := make([]byte, n*unitSize)
	f, err := s.files.use(q.name(first), 0)
	if err != nil {
		return nil, err
	}
	_, err = f.ReadAt(b, (from-first)*unitSize)
	if err := errors.Join(err, s.files.done(f)); err != nil {
		return nil, fmt.Errorf("read consume queue: %w", err)
	}
	return b, nil
}

func (s *Store) unitAt(q *queue, v view, i int64) (unit, error) {
	b, err := s.read(q, v, i, 1)
	if err != nil {
		return unit{}, err
	}
	return parseUnit(b), nil
}

// bounds gives the offset of the first message that the log still holds, and the one behind the last.
func (s *Store) bounds(q *queue) (lo, hi int64, err error) {
	_, logFirst := s.log.First()
	for {
		q.mu.RLock()
		v, first := view{q.written, q.end, q.tail}, q.firstUnit()
		lo, known, begun := q.least, q.leastFor == logFirst, q.begun
		q.mu.RUnlock()
		if known {
			return lo, v.end, nil
		}
		var failed error
		lo = first + int64(sort.Search(int(v.end-first), func(i int) bool {
			u, err := s.unitAt(q, v, first+int64(i))
			failed = errors.Join(failed, err)
			return u.message() && u.pos >= logFirst
		}))
		if failed == nil && !s.splits(q, v, first, lo, logFirst) {
			err := fmt.Errorf("queue %d of topic %s does not ascend around offset %d", q.id, q.topic, lo)
			s.suspect(suspicion{q: q, unit: lo - 1}, err)
			return 0, 0, err
		}
		if failed == nil {
			q.mu.Lock()
			if q.begun == begun {
				q.least, q.leastFor = lo, logFirst
			}
			q.mu.Unlock()
			return lo, v.end, nil
		}
		if !errors.Is(failed, os.ErrNotExist) {
			if errors.Is(failed, io.EOF) {
				s.suspect(suspicion{q: q, unit: first, all: true}, failed)
			}
			return 0, 0, failed
		}
		q.mu.RLock()
		moved := q.firstUnit() != first // files were removed meanwhile
		q.mu.RUnlock()
		if !moved {
			s.suspect(suspicion{q: q, unit: first, all: true}, failed)
			return 0, 0, failed
		}
	}
}

// splits tells whether units before lo, the first of which is first, lie before the log as far as the two nearest tell: a damaged one may have led the search astray, and
// consumers would pass over what they have not seen.
func (s *Store) splits(q *queue, v view, first, lo, logFirst int64) bool {
	for k := lo - 1; k >= max(first, lo-2); k-- {
		switch u, err := s.unitAt(q, v, k); {
		case err != nil, u == blankUnit: // it tells nothing
			return true
		case u.pos >= logFirst, !u.message():
			return false
		}
	}
	return true
}

// firstUnit is the first unit that is kept. The caller holds mu.
func (q *queue) firstUnit() int64 {
	if len(q.files) > 0 {
		return q.files[0]
	}
	return q.written
}

// flush writes the tail to the files. The names of the files it wrote go to s.dirty.
func (s *Store) flush(q *queue) error {
	tail, at := q.tail, q.written
	for len(tail) > 0 {
		first := at - at%q.per
		n := min(int64(len(tail)), (first+q.per-at)*unitSize)
		if err := s.write(q, first, at, tail[:n]); err != nil {
			return err
		}
		tail, at = tail[n:], at+n/unitSize
	}
	q.mu.Lock()
	q.written = q.end
	q.tail = q.tail[len(q.tail):]
	if cap(q.tail) < unitSize {
		q.tail = nil
	}
	q.mu.Unlock()
	return nil
}

// write writes units to one file, which it makes, with blanks up to there, if it is not the queue's yet.
func (s *Store) write(q *queue, first, at int64, b []byte) error {
	isNew := len(q.files) == 0 || q.files[len(q.files)-1] < first
	if isNew && len(q.files) == 0 {
		if err := s.fs.MkdirAll(q.dir); err != nil {
			return err
		}
	}
	name := q.name(first)
	f, err := s.files.use(name, q.per*unitSize)
	if err != nil {
		return err
	}
	for i := first; isNew && i < at && err == nil; {
		n := min(at-i, int64(len(blanks)/unitSize))
		_, err = f.WriteAt(blanks[:n*unitSize], (i-first)*unitSize)
		i += n
	}
	if err == nil {
		_, err = f.WriteAt(b, (at-first)*unitSize)
	}
	s.dirty[name] = true
	if isNew {
		s.dirtyDirs[q.dir] = true
	}
	if err := errors.Join(err, s.files.done(f)); err != nil {
		return fmt.Errorf("write consume queue: %w", err)
	}
	if isNew {
		q.mu.Lock()
		q.files = append(slices.Clip(q.files), first)
		q.mu.Unlock()
	}
	return nil
}

var blanks = func() []byte {
	var b []byte
	for range 1024 {
		b = blankUnit.append(b)
	}
	return b
}()

// loadQueue finds the files of a queue, and its end such that it holds what lies below limit in the log. Whatever is behind that goes.
//
// The units below limit are durable, and their positions ascend; what was written later may be there in part, in any order, torn. So
// the first unit that is not of a message below limit is the end, unless a torn one looks like one: then the message it names is not
// this queue's, if the log can be asked.
func (s *Store) loadQueue(topic string, id int32, limit int64) (*queue, error) {
	q := s.newQueue(topic, id)
	names, err := s.fs.ReadDir(q.dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		i, err := strconv.ParseInt(n, 10, 64)
		if err != nil || len(n) != 20 || i%(q.per*unitSize) != 0 {
			continue // not ours
		}
		q.files = append(q.files, i/unitSize)
	}
	for i := 1; i < len(q.files); i++ { // what does not continue the first files cannot be below limit
		if q.files[i] != q.files[i-1]+q.per {
			if err := s.dropFiles(q, i); err != nil {
				return nil, err
			}
			break
		}
	}
	for _, first := range q.files { // a crash may have left a file shorter than it has to be
		f, err := s.files.use(q.name(first), q.per*unitSize)
		if err != nil {
			return nil, err
		}
		if err := s.files.done(f); err != nil {
			return nil, err
		}
	}
	if err := s.cut(q, limit); err != nil {
		return nil, err
	}
	return q, nil
}

// cut makes the last message below limit the queue's last. A queue without one did not exist then; it goes.
func (s *Store) cut(q *queue, limit int64) error {
	q.written = math.MaxInt64
	v := q.view()
	var failed error
	below := func(i int64) bool {
		u, err := s.unitAt(q, v, i)
		failed = errors.Join(failed, err)
		return u == blankUnit || u.message() && u.pos < limit
	}
	end, last := int64(0), unit{}
	for k := len(q.files) - 1; k >= 0 && end == 0; k-- {
		first := q.files[k]
		if !below(first) {
			continue
		}
		end = first + int64(sort.Search(int(q.per), func(i int) bool { return !below(first + int64(i)) }))
		for failed == nil && end > 0 {
			if end, last, failed = s.lastMessage(q, v, end); s.isMessage(q, last, end-1) {
				break
			}
			end--
		}
	}
	if failed != nil {
		return failed
	}
	q.written, q.end, q.lastPos = end, end, last.pos+int64(last.size)
	if err := s.dropFiles(q, sort.Search(len(q.files), func(k int) bool { return q.files[k] >= end })); err != nil {
		return err
	}
	if n := len(q.files); n > 0 {
		return s.clear(q, q.files[n-1], end)
	}
	return nil
}

// lastMessage passes over blanks before end: it gives the offset behind the last message before end, and its unit; 0 if there is none.
func (s *Store) lastMessage(q *queue, v view, end int64) (int64, unit, error) {
	const step = 1024
	for end > q.files[0] {
		first := (end - 1) - (end-1)%q.per
		lo := max(end-step, first)
		b, err := s.read(q, v, lo, int(end-lo))
		if err != nil {
			return 0, unit{}, err
		}
		for ; end > lo; end-- {
			if u := parseUnit(b[(end-1-lo)*unitSize:]); u.message() && u != blankUnit {
				return end, u, nil
			}
		}
	}
	return 0, unit{}, nil
}

// clear makes the file zeros from unit from on.
func (s *Store) clear(q *queue, first, from int64) error {
	f, err := s.files.use(q.name(first), q.per*unitSize)
	if err != nil {
		return err
	}
	lo, _, err := f.NextData((from - first) * unitSize)
	if err == nil && lo < q.per*unitSize {
		if err = f.Truncate((from - first) * unitSize); err == nil {
			err = f.Truncate(q.per * unitSize)
		}
		s.dirty[q.name(first)] = true
	}
	return errors.Join(err, s.files.done(f))
}

// isMessage tells whether the log has this queue's message i where u says; true where it cannot be asked.
func (s *Store) isMessage(q *queue, u unit, i int64) bool {
	if i < 0 || s.trusted {
		return true
	}
	m, err := s.messageAt(u.pos, int(u.size))
	if err != nil {
		return !errors.Is(err, ErrNotFound)
	}
	return m.Topic == q.topic && m.QueueID == q.id && m.QueueOffset == i
}

// dropFiles removes the files from number k on.
func (s *Store) dropFiles(q *queue, k int) error {
	for _, first := range q.files[k:] {
		if err := s.files.remove(q.name(first)); err != nil {
			return err
		}
		delete(s.dirty, q.name(first))
		s.dirtyDirs[q.dir] = true
	}
	q.mu.Lock()
	q.files = q.files[:k:k]
	q.mu.Unlock()
	return nil
}

// expire removes the files that hold nothing at or behind logFirst; the last one stays, it knows where the queue ends.
func (s *Store) expire(q *queue, logFirst int64) error {
	v := q.view()
	k := 0
	for k+1 < len(q.files) {
		u, err := s.unitAt(q, v, q.files[k+1])
		if err != nil {
			return err
		}
		if u.pos > logFirst {
			break
		}
		k++
	}
	if k == 0 {
		return nil
	}
	gone := q.files[:k]
	q.mu.Lock()
	q.files = slices.Clone(q.files[k:])
	q.mu.Unlock()
	for _, first := range gone {
		if err := s.files.remove(q.name(first)); err != nil {
			return err
		}
		delete(s.dirty, q.name(first))
	}
	s.dirtyDirs[q.dir] = true
	return nil
}

// restart makes the queue begin anew at offset, with nothing before it.
func (s *Store) restart(q *queue, offset int64) error {
	s.urgent = s.urgent || len(q.files) > 0
	if err := s.dropFiles(q, 0); err != nil {
		return err
	}
	q.mu.Lock()
	q.written, q.end, q.tail = offset, offset, nil
	q.least, q.leastFor = 0, -1
	q.begun++
	q.mu.Unlock()
	return nil
}

func (s *Store) newQueue(topic string, id int32) *queue {
	return &queue{topic: topic, id: id, dir: queueDir(s.queueRoot, topic, id), per: int64(s.cfg.QueueFileUnits), leastFor: -1}
}
