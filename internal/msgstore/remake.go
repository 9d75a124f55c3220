package msgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"dledger"
	"dledger/internal/mq"
)

// ErrIndexDamaged: of the messages with a key some may be missing, as the key index was found damaged and is being made anew.
var ErrIndexDamaged = errors.New("the key index is damaged, it is being made anew")

// errTorn: what a file of the index says cannot be true.
var errTorn = errors.New("key index")

// blame notes that a file of the index is damaged, if that is what err says; false: it does not. A file that is no longer one of the index is not to blame for anything.
func (x *index) blame(stamp int64, err error) bool {
	if !errors.Is(err, errTorn) && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrNotExist) {
		return false
	}
	x.mu.Lock()
	known := slices.ContainsFunc(x.list, func(f indexFile) bool { return f.stamp == stamp })
	first := known && x.torn == 0
	if known && (first || stamp < x.torn) {
		x.torn = stamp
	}
	x.mu.Unlock()
	if first && x.hurt != nil {
		x.hurt(x.name(stamp), err)
	}
	return true
}

// away tells whether files are damaged, or not all made anew yet.
func (x *index) away() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.torn != 0 || x.remade
}

// drop removes the damaged file and all newer ones, and gives the position of the last message that those before it name; -1 if there are none. What is dispatched from
// now on is left to whoever makes them anew.
func (x *index) drop() (after int64, err error) {
	x.mu.Lock()
	k, after := 0, int64(-1)
	for k < len(x.list) && x.list[k].stamp < x.torn {
		after = x.list[k].head.lastPos
		k++
	}
	gone := x.list[k:]
	x.list, x.pending = slices.Clone(x.list[:k]), nil
	x.torn, x.remade = 0, true
	x.lost++
	x.mu.Unlock()
	for _, f := range gone {
		err = errors.Join(err, x.files.remove(x.name(f.stamp)))
	}
	return after, err
}

// remaking makes files of the index anew from the log, a part of it in each turn of Run. The goroutine of Run owns it.
type remaking struct {
	next  dledger.Index // of the log
	items int
}

// indexHurt has Run make the index anew from a file on.
func (s *Store) indexHurt(file string, cause error) {
	s.logger.Warn("the key index is damaged; it is made anew from the log", "file", file, "reason", cause)
	s.wake()
}

// remakeSome does a part of what is due of the index; false: nothing is, or it has to wait. Until all is done checkpoints say that there is no index.
func (s *Store) remakeSome() (more bool, err error) {
	x := &s.index
	if !x.away() || s.saving != nil || s.at.next < s.saved || s.log.Commit()+1 < s.at.next {
		return false, nil // a checkpoint on its way writes to the files, or the log does not tell of all yet that was in them
	}
	x.mu.RLock()
	torn, pending := x.torn != 0, len(x.pending)
	x.mu.RUnlock()
	if torn {
		if s.remaking, err = s.beginRemaking(); err != nil {
			return false, fmt.Errorf("make the key index anew: %w", err)
		}
		return true, nil
	}
	if pending > pendingMax {
		s.due = true // goes on when those are written
		return false, nil
	}
	m := s.remaking
	next, err := s.log.Committed(m.next, func(e dledger.Entry) bool {
		if e.Index >= s.at.next {
			return false
		}
		pos := e.Pos + headerSize
		if msg, n, err := mq.ParseStored(e.Body); err == nil && n == len(e.Body) && msg.PhysicalOffset == pos && isName(msg.Topic) {
			m.items += x.note(&msg, pos)
		}
		return true
	})
	switch {
	case errors.Is(err, dledger.ErrDamaged):
		s.later() // it is being repaired
		return false, nil
	case errors.Is(err, dledger.ErrCompacted):
		m.next, _ = s.log.First()
		return true, nil
	case errors.Is(err, dledger.ErrClosed):
		return false, nil
	case err != nil:
		return false, err
	}
	if m.next = next; next < s.at.next {
		return true, nil
	}
	x.mu.Lock()
	x.remade = false
	x.mu.Unlock()
	s.remaking, s.due = nil, true
	s.stats.remade.Add(1)
	s.logger.Warn("the damaged key index is whole again", "keys", m.items)
	return true, nil
}

// beginRemaking drops what is damaged. The message at the edge is entered again: its keys may lie on both sides.
func (s *Store) beginRemaking() (*remaking, error) {
	after, err := s.index.drop()
	if err != nil {
		return nil, err
	}
	first, _ := s.log.First()
	if after < 0 {
		return &remaking{next: first}, nil
	}
	e, err := s.log.EntryAt(after - headerSize)
	if err != nil { // deleted; or damaged, and then what is entered again does no harm
		return &remaking{next: first}, nil
	}
	return &remaking{next: e.Index}, nil
}

// checking counts the slots in use of one file of the index after the other, a part in each turn of Run: a block of zeros among them looks like keys that nobody has.
// The goroutine of Run owns it.
type checking struct {
	left []int64 // stamps of the files to come, the one that is counted first
	next int32   // of its header, when the count began
	page int32
	used int32
}

const checkPages = 64 // of slots, in one turn

// beginChecking has Run count the slots of all files.
func (s *Store) beginChecking() {
	s.checking = &checking{}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, f := range s.index.list {
		s.checking.left = append(s.checking.left, f.stamp)
	}
}

// checkSome does a part of a count; false: there is none, or it has to wait for a checkpoint, which writes to the newest file.
func (s *Store) checkSome() (more bool, err error) {
	c, x := s.checking, &s.index
	if c == nil || s.saving != nil {
		return false, nil
	}
	if len(c.left) == 0 || x.away() { // what is made anew needs no count
		s.checking = nil
		return false, nil
	}
	x.mu.RLock()
	i := slices.IndexFunc(x.list, func(f indexFile) bool { return f.stamp == c.left[0] })
	var f indexFile
	if i >= 0 {
		f = x.list[i]
	}
	x.mu.RUnlock()
	if i < 0 { // expired
		*c = checking{left: c.left[1:]}
		return true, nil
	}
	if c.next != f.head.next {
		c.next, c.page, c.used = f.head.next, 0, 0
	}
	done, err := x.countSome(f, c)
	if err == nil && done && c.used != f.head.used {
		err = fmt.Errorf("%w: %d of its slots are in use, not %d", errTorn, c.used, f.head.used)
	}
	if err != nil && !x.blame(f.stamp, err) {
		return false, fmt.Errorf("check the key index: %w", err)
	}
	if done || err != nil {
		*c = checking{left: c.left[1:]}
	}
	return true, nil
}

// countSome counts the slots of some pages; done after the last.
func (x *index) countSome(f indexFile, c *checking) (done bool, err error) {
	d, err := x.files.use(x.name(f.stamp), 0)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, x.files.done(d)) }()
	pages := (x.slots + slotsPage - 1) / slotsPage
	for end := min(c.page+checkPages, pages); c.page < end; c.page++ {
		b, err := x.readPage(d, c.page)
		if err != nil {
			return false, err
		}
		for slot := c.page * slotsPage; len(b) > 0; slot, b = slot+1, b[slotSize:] {
			n := int32(binary.BigEndian.Uint32(b))
			if n < 0 || n >= f.head.next { // from before a crash
				if n, err = x.before(d, slot, n, f.head.next); err != nil {
					return false, err
				}
			}
			if n > 0 {
				c.used++
			}
		}
	}
	return c.page == pages, nil
}

// storeTimeAt gives the store time of the message at a physical offset, if it can be read.
func (s *Store) storeTimeAt(pos int64) (ms int64, known bool) {
	b, err := s.MessageAt(pos)
	if err != nil {
		return 0, false
	}
	m, _, err := mq.ParseStored(b)
	return m.StoreTime, err == nil
}

// nextKeyed gives the position of the first message with keys behind the one at pos, with -1 the log's first, if it is near.
func (s *Store) nextKeyed(pos int64) (next int64, known bool) {
	i, begin := s.log.First()
	if pos >= begin {
		e, err := s.log.EntryAt(pos - headerSize)
		if err != nil {
			return 0, false
		}
		i = e.Index + 1
	}
	_, err := s.log.Committed(i, func(e dledger.Entry) bool {
		at := e.Pos + headerSize
		if m, n, err := mq.ParseStored(e.Body); err == nil && n == len(e.Body) && m.PhysicalOffset == at && isName(m.Topic) && m.TransactionType() != mq.SysRollback {
			for range m.IndexKeys() {
				next, known = at, true
				return false
			}
		}
		return true
	})
	return next, known && err == nil
}

// leadsTo judges an item by the log: errTorn if no message begins where it says, or one that has no such key or was stored at another time.
func (s *Store) leadsTo(i found, m *mq.Message, err error) error {
	switch {
	case err == nil:
		for key := range m.IndexKeys() {
			if mq.KeyHash(key) == i.hash && i.of(m.StoreTime) {
				return nil
			}
		}
	case errors.Is(err, ErrNotFound):
		if _, first := s.log.First(); i.pos < first || s.isBehind(i.pos-headerSize) {
			return nil // it is no longer kept, or not known to be committed yet
		}
	default:
		return nil
	}
	return fmt.Errorf("%w: no message of its key and time is at %d", errTorn, i.pos)
}
