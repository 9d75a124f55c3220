package msgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"dledger/internal/mq"
)

// The key index (IndexService and IndexFile in the Java original) finds messages by key. A file DIR/index/NAME, named by the local time of its creation as
// yyyyMMddHHmmssSSS, is a hash table in place:
//
//	offset size field
//	     0    8 store time of the first message in it, ms
//	     8    8 store time of the last one
//	    16    8 physical offset of the first one
//	    24    8 physical offset of the last one
//	    32    4 slots in use
//	    36    4 number of the next item; 1 in an empty file, N in a full one
//	    40  4·S slots: number of the newest item with hash % S = slot; 0 is none
//	40+4·S 20·N items: 0 hash of TOPIC#KEY · 4 physical offset · 12 seconds since the first message · 16 number of the next older item in the slot
const (
	indexHead = 40
	slotSize  = 4
	itemSize  = 20
	slotsPage = 1024 // slots that are read and written together
)

// indexDisorder is by how much (ms) a message may have an earlier store time than one before it in the log: leaders have clocks of their own.
const indexDisorder = 60_000

// item is one key of one message.
type item struct {
	hash int32
	pos  int64
	time int64 // store time, ms
}

// indexHeader is the first 40 bytes of a file.
type indexHeader struct {
	firstTime, lastTime, firstPos, lastPos int64
	used, next                             int32
}

func (h indexHeader) append(b []byte) []byte {
	for _, v := range []int64{h.firstTime, h.lastTime, h.firstPos, h.lastPos} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(h.used))
	return binary.BigEndian.AppendUint32(b, uint32(h.next))
}

func parseIndexHeader(b []byte) indexHeader {
	i64 := func(o int) int64 { return int64(binary.BigEndian.Uint64(b[o:])) }
	return indexHeader{i64(0), i64(8), i64(16), i64(24), int32(binary.BigEndian.Uint32(b[32:])), int32(binary.BigEndian.Uint32(b[36:]))}
}

// indexFile is one file; only the newest one grows.
type indexFile struct {
	stamp int64 // its name
	head  indexHeader
}

// index is all files, and the items that are still in memory alone.
//
//  1. items come in log order; pending are written by write only, once a checkpoint asks for it;
//  2. an item is durable before a slot or an older item names it. So after a crash a slot may name an item at or behind the header's next: what that
//     item names, and so on, leads to those before;
//  3. dispatching again from a checkpoint on writes the same items to the same places.
type index struct {
	dir          string
	slots, items int32 // of a file
	files        *descriptors
	now          func() time.Time

	mu      sync.RWMutex
	list    []indexFile // oldest first; head of the last one is as written
	pending []item
}

func (x *index) name(stamp int64) string { return filepath.Join(x.dir, fmt.Sprintf("%017d", stamp)) }

func (x *index) size() int64 {
	return indexHead + int64(x.slots)*slotSize + int64(x.items)*itemSize
}

// add notes the keys of a message that has just been dispatched, at pos.
func (x *index) add(m *mq.Message, pos int64) {
	if m.TransactionType() == mq.SysRollback {
		return
	}
	var items [16]item
	n := items[:0]
	for key := range m.IndexKeys() {
		n = append(n, item{mq.KeyHash(key), pos, m.StoreTime})
	}
	if len(n) > 0 {
		x.mu.Lock()
		x.pending = append(x.pending, n...)
		x.mu.Unlock()
	}
}

// mark is where the index ends: the newest file and its header. Stamp 0: there is none.
func (x *index) mark() indexFile {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.list) == 0 {
		return indexFile{}
	}
	return x.list[len(x.list)-1]
}

// write writes the first n pending items to the files, durably.
func (x *index) write(n int) error {
	for n > 0 {
		cur := x.mark()
		if cur.stamp == 0 || cur.head.next >= x.items {
			var err error
			if cur, err = x.roll(cur.stamp); err != nil {
				return err
			}
		}
		x.mu.RLock()
		some := x.pending[:min(n, int(x.items-cur.head.next))]
		x.mu.RUnlock()
		head, err := x.writeItems(cur, some)
		if err != nil {
			return fmt.Errorf("write key index: %w", err)
		}
		n -= len(some)
		x.mu.Lock()
		x.list[len(x.list)-1].head = head
		x.pending = x.pending[len(some):]
		if len(x.pending) == 0 {
			x.pending = nil
		}
		x.mu.Unlock()
	}
	return nil
}

// roll makes the next file.
func (x *index) roll(last int64) (indexFile, error) {
	now := x.now()
	stamp, err := strconv.ParseInt(now.Format("20060102150405")+fmt.Sprintf("%03d", now.Nanosecond()/1e6), 10, 64)
	if err != nil {
		return indexFile{}, err
	}
	f := indexFile{stamp: max(stamp, last+1), head: indexHeader{next: 1}}
	d, err := x.files.use(x.name(f.stamp), x.size())
	if err != nil {
		return f, err
	}
	if err := errors.Join(x.files.done(d), x.files.fs.SyncDir(x.dir)); err != nil {
		return f, err
	}
	x.mu.Lock()
	x.list = append(x.list, f)
	x.mu.Unlock()
	return f, nil
}

// writeItems writes items to the file cur, and gives its header afterwards.
func (x *index) writeItems(cur indexFile, items []item) (head indexHeader, err error) {
	f, err := x.files.use(x.name(cur.stamp), 0)
	if err != nil {
		return head, err
	}
	defer func() { err = errors.Join(err, x.files.done(f)) }()
	head = cur.head
	pages := map[int32][]byte{}
	buf := make([]byte, 0, len(items)*itemSize)
	for _, it := range items {
		slot := it.hash % x.slots
		page := pages[slot/slotsPage]
		if page == nil {
			if page, err = x.readPage(f, slot/slotsPage); err != nil {
				return head, err
			}
			pages[slot/slotsPage] = page
		}
		at := page[slot%slotsPage*slotSize:]
		newest := int32(binary.BigEndian.Uint32(at))
		if newest >= head.next { // from before a crash
			if newest, err = x.before(f, newest, cur.head.next); err != nil {
				return head, err
			}
		}
		if head.next == 1 {
			head.firstTime, head.firstPos = it.time, it.pos
		}
		if newest == 0 {
			head.used++
		}
		buf = binary.BigEndian.AppendUint32(buf, uint32(it.hash))
		buf = binary.BigEndian.AppendUint64(buf, uint64(it.pos))
		buf = binary.BigEndian.AppendUint32(buf, uint32(seconds(it.time-head.firstTime)))
		buf = binary.BigEndian.AppendUint32(buf, uint32(newest))
		binary.BigEndian.PutUint32(at, uint32(head.next))
		head.next++
		head.lastTime, head.lastPos = it.time, it.pos
	}
	if _, err = f.WriteAt(buf, x.itemAt(cur.head.next)); err != nil {
		return head, err
	}
	if err = f.Datasync(); err != nil {
		return head, err
	}
	for n, page := range pages {
		if _, err = f.WriteAt(page, indexHead+int64(n)*slotsPage*slotSize); err != nil {
			return head, err
		}
	}
	if _, err = f.WriteAt(head.append(nil), 0); err != nil {
		return head, err
	}
	return head, f.Datasync()
}

// seconds rounds down and stays within what an item can hold, as the original does.
func seconds(ms int64) int64 { return min(max(ms/1000, 0), 1<<31-1) }

func (x *index) itemAt(n int32) int64 {
	return indexHead + int64(x.slots)*slotSize + int64(n)*itemSize
}

// readPage reads the slots of page n.
func (x *index) readPage(f *descriptor, n int32) ([]byte, error) {
	b := make([]byte, min(slotsPage, x.slots-n*slotsPage)*slotSize)
	_, err := f.ReadAt(b, indexHead+int64(n)*slotsPage*slotSize)
	return b, err
}

// before follows the items from number n on to the first one below limit.
func (x *index) before(f *descriptor, n, limit int32) (int32, error) {
	var b [4]byte
	for n >= limit {
		if _, err := f.ReadAt(b[:], x.itemAt(n)+16); err != nil {
			return 0, err
		}
		next := int32(binary.BigEndian.Uint32(b[:]))
		if next >= n || next < 0 {
			return 0, fmt.Errorf("key index %s: item %d names %d as older", f.name, n, next)
		}
		n = next
	}
	return n, nil
}

// load finds the files, of which last was the newest at the checkpoint, and removes newer ones. ok is false if the index is not what the checkpoint says.
func (x *index) load(last indexFile) (ok bool, err error) {
	if err := x.files.fs.MkdirAll(x.dir); err != nil {
		return false, err
	}
	names, err := x.files.fs.ReadDir(x.dir)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		stamp, err := strconv.ParseInt(n, 10, 64)
		if err != nil || len(n) != 17 {
			continue // not ours
		}
		if stamp > last.stamp {
			if err := x.files.remove(filepath.Join(x.dir, n)); err != nil {
				return false, err
			}
			continue
		}
		f := indexFile{stamp: stamp, head: last.head}
		d, err := x.files.use(x.name(stamp), 0)
		if err != nil {
			return false, err
		}
		size, err := d.Size()
		if err == nil && size == x.size() && stamp != last.stamp {
			b := make([]byte, indexHead)
			_, err = d.ReadAt(b, 0)
			f.head = parseIndexHeader(b)
		}
		if err := errors.Join(err, x.files.done(d)); err != nil {
			return false, err
		}
		if size != x.size() || f.head.next > x.items {
			return false, nil
		}
		x.list = append(x.list, f)
	}
	return last.stamp == 0 || len(x.list) > 0 && x.list[len(x.list)-1].stamp == last.stamp, nil
}

// clear removes all files.
func (x *index) clear() error {
	x.mu.Lock()
	list := x.list
	x.list, x.pending = nil, nil
	x.mu.Unlock()
	for _, f := range list {
		if err := x.files.remove(x.name(f.stamp)); err != nil {
			return err
		}
	}
	return nil
}

// expire removes files that name only messages before logFirst, but the newest one.
func (x *index) expire(logFirst int64) error {
	x.mu.Lock()
	k := 0
	for k+1 < len(x.list) && x.list[k].head.lastPos < logFirst {
		k++
	}
	gone := x.list[:k]
	x.list = slices.Clone(x.list[k:])
	x.mu.Unlock()
	for _, f := range gone {
		if err := x.files.remove(x.name(f.stamp)); err != nil {
			return err
		}
	}
	return nil
}

// find calls f with the physical offsets of messages with a key of this hash, stored between begin and end (ms), newest first, until it says false.
func (x *index) find(hash int32, begin, end int64, f func(pos int64) bool) error {
	x.mu.RLock()
	pending, list := x.pending, slices.Clone(x.list)
	x.mu.RUnlock()
	for _, it := range slices.Backward(pending) {
		if it.hash == hash && it.time >= begin && it.time <= end && !f(it.pos) {
			return nil
		}
	}
	for _, file := range slices.Backward(list) {
		if file.head.next <= 1 || file.head.firstTime > end+indexDisorder {
			continue
		}
		more, err := x.search(file, hash, begin, end, f)
		if err != nil || !more {
			return err
		}
		if file.head.firstTime < begin-indexDisorder {
			return nil
		}
	}
	return nil
}

// search looks into one file; false: f has enough.
func (x *index) search(file indexFile, hash int32, begin, end int64, f func(pos int64) bool) (more bool, err error) {
	d, err := x.files.use(x.name(file.stamp), 0)
	if err != nil {
		return true, err
	}
	defer func() { err = errors.Join(err, x.files.done(d)) }()
	var b [itemSize]byte
	if _, err = d.ReadAt(b[:slotSize], indexHead+int64(hash%x.slots)*slotSize); err != nil {
		return true, err
	}
	n := int32(binary.BigEndian.Uint32(b[:]))
	if n >= file.head.next { // from before a crash, or written beside us
		if n, err = x.before(d, n, file.head.next); err != nil {
			return true, err
		}
	}
	for n > 0 {
		if _, err = d.ReadAt(b[:], x.itemAt(n)); err != nil {
			return true, err
		}
		t := file.head.firstTime + int64(int32(binary.BigEndian.Uint32(b[12:])))*1000
		if int32(binary.BigEndian.Uint32(b[:])) == hash && t+999 >= begin && t <= end {
			if !f(int64(binary.BigEndian.Uint64(b[4:]))) {
				return false, nil
			}
		}
		next := int32(binary.BigEndian.Uint32(b[16:]))
		if next >= n || next < 0 {
			return true, fmt.Errorf("key index %s: item %d names %d as older", d.name, n, next)
		}
		n = next
	}
	return true, nil
}
