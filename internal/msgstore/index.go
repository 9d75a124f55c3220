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
//  3. dispatching again from a checkpoint on writes the same items to the same places;
//  4. a file in which something cannot be true is damaged: it and all newer ones are made anew from the log (see remake.go), and until then whoever looks for a
//     message is told that some may be missing.
type index struct {
	dir          string
	slots, items int32 // of a file
	files        *descriptors
	now          func() time.Time
	hurt         func(file string, cause error)           // told of damage; nil: nobody is
	storeTime    func(pos int64) (ms int64, known bool)   // of the message at a physical offset; nil: none is known
	nextKeyed    func(pos int64) (next int64, known bool) // where the first message with keys behind the one at pos is, with -1 the log's first; nil: unknown

	mu      sync.RWMutex
	list    []indexFile // oldest first; head of the last one is as written
	pending []item
	torn    int64 // the oldest file that was found damaged; 0 = none
	remade  bool  // files are being made anew: what is dispatched is left to that
	lost    int   // how often files were dropped to be made anew
}

func (x *index) name(stamp int64) string { return filepath.Join(x.dir, fmt.Sprintf("%017d", stamp)) }

func (x *index) size() int64 {
	return indexHead + int64(x.slots)*slotSize + int64(x.items)*itemSize
}

// add notes the keys of a message that has just been dispatched, at pos.
func (x *index) add(m *mq.Message, pos int64) {
	if !x.away() {
		x.note(m, pos)
	}
}

// note has the keys of a message wait for the next checkpoint, and gives their number.
func (x *index) note(m *mq.Message, pos int64) int {
	if m.TransactionType() == mq.SysRollback {
		return 0
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
	return len(n)
}

// slot is where the items of a hash begin.
func (x *index) slot(hash int32) int32 { return hash % x.slots }

// mark is where the index ends: the newest file and its header. Stamp 0: there is none.
func (x *index) mark() indexFile {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.list) == 0 {
		return indexFile{}
	}
	return x.list[len(x.list)-1]
}

// write writes the first n pending items to the files, durably; less if it finds damage.
func (x *index) write(n int) error {
	for n > 0 && !x.away() {
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
		if x.blame(cur.stamp, err) {
			return nil
		}
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
		slot := x.slot(it.hash)
		page := pages[slot/slotsPage]
		if page == nil {
			if page, err = x.readPage(f, slot/slotsPage); err != nil {
				return head, err
			}
			pages[slot/slotsPage] = page
		}
		at := page[slot%slotsPage*slotSize:]
		newest := int32(binary.BigEndian.Uint32(at))
		if newest < 0 || newest >= head.next { // from before a crash
			if newest, err = x.before(f, slot, newest, cur.head.next); err != nil {
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

// before follows the items of a slot from number n on to the first one below limit.
func (x *index) before(f *descriptor, slot, n, limit int32) (int32, error) {
	var b [itemSize]byte
	for n >= limit {
		if n >= x.items {
			return 0, fmt.Errorf("%w: slot %d names item %d of %d", errTorn, slot, n, x.items)
		}
		if _, err := f.ReadAt(b[:], x.itemAt(n)); err != nil {
			return 0, err
		}
		older, err := x.older(slot, n, b[:])
		if err != nil {
			return 0, err
		}
		n = older
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: slot %d names item %d", errTorn, slot, n)
	}
	return n, nil
}

// older gives the number of the item before b in its slot, if b, the item n, can be one of that slot. Numbers fall, so following them ends.
func (x *index) older(slot, n int32, b []byte) (int32, error) {
	hash, older := int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[16:]))
	if hash < 0 || x.slot(hash) != slot || older >= n || older < 0 {
		return 0, fmt.Errorf("%w: item %d of slot %d has hash %d and names item %d as older", errTorn, n, slot, hash, older)
	}
	return older, nil
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
		fits := err == nil && size == x.size()
		if fits {
			fits, err = x.fits(d, &f, stamp == last.stamp)
		}
		if err := errors.Join(err, x.files.done(d)); err != nil {
			return false, err
		}
		if !fits || !x.follows(&f) {
			return false, nil
		}
		x.list = append(x.list, f)
	}
	return last.stamp == 0 || len(x.list) > 0 && x.list[len(x.list)-1].stamp == last.stamp, nil
}

// fits tells whether a file's items are those its header speaks of, and its header is one of that file. That of the newest is known; of the others, which are full, it
// is read here.
func (x *index) fits(d *descriptor, f *indexFile, newest bool) (bool, error) {
	var b [indexHead]byte
	if _, err := d.ReadAt(b[:], 0); err != nil {
		return false, err
	}
	if !newest {
		if f.head = parseIndexHeader(b[:]); f.head.next != x.items {
			return false, nil
		}
	}
	h := f.head
	if h.next < 1 || h.next > x.items {
		return false, nil
	}
	if h.next == 1 {
		return true, nil
	}
	var first, last [itemSize]byte
	if _, err := d.ReadAt(first[:], x.itemAt(1)); err != nil {
		return false, err
	}
	if _, err := d.ReadAt(last[:], x.itemAt(h.next-1)); err != nil {
		return false, err
	}
	i64 := func(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }
	is := func(pos, ms int64) bool {
		if x.storeTime == nil {
			return true
		}
		t, known := x.storeTime(pos)
		return !known || t == ms
	}
	return i64(first[4:]) == h.firstPos && binary.BigEndian.Uint32(first[12:]) == 0 && i64(last[4:]) == h.lastPos &&
		int64(binary.BigEndian.Uint32(last[12:])) == seconds(h.lastTime-h.firstTime) && is(h.firstPos, h.firstTime) && is(h.lastPos, h.lastTime), nil
}

// follows tells whether a file is the next one after those of the list: whether none is missing between them.
func (x *index) follows(f *indexFile) bool {
	if x.nextKeyed == nil || f.head.next == 1 {
		return true
	}
	last := int64(-1)
	if len(x.list) > 0 {
		last = x.list[len(x.list)-1].head.lastPos
	}
	next, known := x.nextKeyed(last)
	return !known || f.head.firstPos <= next
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

// found is an item that may lead to the message that is looked for.
type found struct {
	item
	base int64 // what its time counts from, ms
}

// of tells whether a message that was stored at ms can be the item's.
func (i found) of(ms int64) bool { return seconds(ms-i.base) == seconds(i.time-i.base) }

// find calls f with items of this hash of messages that were stored between begin and end (ms), newest first, until it says false. It may call it with some from other times.
// f fails with errTorn if what the log holds shows that the item cannot be true. ErrIndexDamaged: there may be others.
func (x *index) find(hash int32, begin, end int64, f func(found) (more bool, err error)) error {
	x.mu.RLock()
	pending, list, lost, away := x.pending, slices.Clone(x.list), x.lost, x.torn != 0 || x.remade
	x.mu.RUnlock()
	for _, it := range slices.Backward(pending) {
		if it.hash != hash || it.time < begin || it.time > end {
			continue
		}
		if more, err := f(found{it, it.time}); err != nil || !more {
			return err
		}
	}
	for _, file := range slices.Backward(list) {
		if file.head.next <= 1 || file.head.firstTime > end+indexDisorder {
			continue
		}
		more, err := x.search(file, hash, begin, end, f)
		if x.blame(file.stamp, err) {
			continue
		}
		if err != nil || !more {
			return err
		}
		if file.head.firstTime < begin-indexDisorder {
			break
		}
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if away || x.torn != 0 || x.lost != lost {
		return ErrIndexDamaged
	}
	return nil
}

// search looks into one file; false: f has enough.
func (x *index) search(file indexFile, hash int32, begin, end int64, f func(found) (bool, error)) (more bool, err error) {
	d, err := x.files.use(x.name(file.stamp), 0)
	if err != nil {
		return true, err
	}
	defer func() { err = errors.Join(err, x.files.done(d)) }()
	head, slot := file.head, x.slot(hash)
	var b [3 * itemSize]byte
	if _, err = d.ReadAt(b[:24], 0); err != nil {
		return true, err
	}
	if h := parseIndexHeader(b[:]); h.firstTime != head.firstTime || h.firstPos != head.firstPos {
		return true, fmt.Errorf("%w: its header names position %d as the first one, not %d", errTorn, h.firstPos, head.firstPos)
	}
	if _, err = d.ReadAt(b[:slotSize], indexHead+int64(slot)*slotSize); err != nil {
		return true, err
	}
	n := int32(binary.BigEndian.Uint32(b[:]))
	if n < 0 || n >= head.next { // from before a crash, or written beside us
		if n, err = x.before(d, slot, n, head.next); err != nil {
			return true, err
		}
	}
	for n > 0 {
		lo, hi := max(n-1, 1), min(n+2, head.next) // with those beside it
		near := b[:(hi-lo)*itemSize]
		if _, err = d.ReadAt(near, x.itemAt(lo)); err != nil {
			return true, err
		}
		at := near[(n-lo)*itemSize:]
		older, err := x.older(slot, n, at)
		if err != nil {
			return true, err
		}
		inOrder, likely := neighbours(near, head)
		if !inOrder {
			return true, fmt.Errorf("%w: positions of items %d to %d are not in order", errTorn, lo, hi-1)
		}
		t := head.firstTime + int64(int32(binary.BigEndian.Uint32(at[12:])))*1000
		if int32(binary.BigEndian.Uint32(at)) == hash && (!likely || t+999 >= begin && t <= end) {
			more, err := f(found{item{hash, int64(binary.BigEndian.Uint64(at[4:])), t}, head.firstTime})
			if err != nil || !more {
				return false, err
			}
		}
		n = older
	}
	return true, nil
}

// neighbours tells of items in a row whether their positions are those of a log, and whether their times are likely: those are of several clocks.
func neighbours(b []byte, head indexHeader) (inOrder, likely bool) {
	pos, secs := head.firstPos, int64(0)
	inOrder, likely = true, true
	for ; len(b) >= itemSize; b = b[itemSize:] {
		p, t := int64(binary.BigEndian.Uint64(b[4:])), int64(int32(binary.BigEndian.Uint32(b[12:])))
		inOrder = inOrder && p >= pos && p <= head.lastPos
		likely = likely && t >= max(secs-indexDisorder/1000, 0) && t <= seconds(head.lastTime-head.firstTime)+indexDisorder/1000
		pos, secs = p, t
	}
	return inOrder, likely
}
