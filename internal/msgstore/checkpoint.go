package msgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"dledger"
	"dledger/internal/vfs"
)

// The file DIR/checkpoint says up to where the files of queues and index are durable. Its beginning is the Java original's (StoreCheckpoint); that ends
// where our two slots begin, of which the one with the higher number counts:
//
//	offset size field
//	     0    8 store time of the last dispatched message, ms, twice for two kinds of flush
//	    16    8 the same for the index
//	    24    8 position behind the last dispatched entry, twice
//	  1024  132 slot 0
//	  2048  132 slot 1
//	  4096      end
//
// A slot:
//
//	  0    8 "DLMSGST1"
//	  8    8 number, from 1 on
//	 16    8 1: nothing was written behind it (the store was closed)
//	 24    8 index of the next entry
//	 32    8 position behind the last dispatched one
//	 40   24 index, term and position of the last dispatched one that holds a message
//	 64    8 number of queues
//	 72    8 sum of the offsets behind their ends
//	 80    8 newest file of the index, -1 while it is being made anew, and
//	 88   40 its header
//	128    4 CRC-32C of all before
const (
	checkpointSize = 4096
	slotMagic      = "DLMSGST1"
	slotLen        = 132
)

var slotAt = [2]int64{1024, 2048}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkpoint is a place in the log, and what the files hold of what lies before it.
type checkpoint struct {
	number int64
	clean  bool
	next   dledger.Index // the entry to go on with
	end    int64         // position behind the one before
	last   place
	queues int64
	sum    int64
	index  indexFile
	time   int64 // ms; not in the slot
}

// place names an entry so that another log's would not be taken for it.
type place struct {
	index dledger.Index
	term  dledger.Term
	pos   int64
}

func (c *checkpoint) append(b []byte) []byte {
	n := len(b)
	be := binary.BigEndian
	b = append(b, slotMagic...)
	clean := uint64(0)
	if c.clean {
		clean = 1
	}
	for _, v := range []uint64{uint64(c.number), clean, uint64(c.next), uint64(c.end), uint64(c.last.index), uint64(c.last.term), uint64(c.last.pos),
		uint64(c.queues), uint64(c.sum), uint64(c.index.stamp)} {
		b = be.AppendUint64(b, v)
	}
	b = c.index.head.append(b)
	return be.AppendUint32(b, crc32.Checksum(b[n:], castagnoli))
}

// parseCheckpoint reads a slot; false if it holds none.
func parseCheckpoint(b []byte) (checkpoint, bool) {
	be := binary.BigEndian
	if len(b) < slotLen || string(b[:8]) != slotMagic || be.Uint32(b[slotLen-4:]) != crc32.Checksum(b[:slotLen-4], castagnoli) {
		return checkpoint{}, false
	}
	v := func(o int) int64 { return int64(be.Uint64(b[o:])) }
	return checkpoint{number: v(8), clean: v(16) == 1, next: dledger.Index(v(24)), end: v(32),
		last:   place{dledger.Index(v(40)), dledger.Term(v(48)), v(56)},
		queues: v(64), sum: v(72), index: indexFile{stamp: v(80), head: parseIndexHeader(b[88:])}}, true
}

func (s *Store) checkpointName() string { return filepath.Join(s.cfg.Dir, "checkpoint") }

// readCheckpoint gives the newest one; false if there is none.
func (s *Store) readCheckpoint() (checkpoint, bool, error) {
	b, err := vfs.ReadFile(s.fs, s.checkpointName())
	if errors.Is(err, os.ErrNotExist) {
		return checkpoint{}, false, nil
	}
	if err != nil {
		return checkpoint{}, false, err
	}
	var best checkpoint
	found := false
	for _, at := range slotAt {
		if int64(len(b)) < at+slotLen {
			continue
		}
		if c, ok := parseCheckpoint(b[at:]); ok && (!found || c.number > best.number) {
			best, found = c, true
		}
	}
	return best, found, nil
}

// writeCheckpoint makes c the newest one, durably.
func (s *Store) writeCheckpoint(c checkpoint) error {
	f, err := s.files.use(s.checkpointName(), checkpointSize)
	if err != nil {
		return err
	}
	be := binary.BigEndian
	var java []byte
	for _, v := range []int64{c.time, c.time, c.time, c.end, c.end} {
		java = be.AppendUint64(java, uint64(v))
	}
	_, err = f.WriteAt(c.append(nil), slotAt[c.number%2])
	if err == nil {
		_, err = f.WriteAt(java, 0)
	}
	if err == nil {
		err = f.Datasync()
	}
	if err == nil && c.number == 1 {
		err = s.fs.SyncDir(s.cfg.Dir)
	}
	if err := errors.Join(err, s.files.done(f)); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// saving is a checkpoint on its way to the disk.
type saving struct {
	c     checkpoint
	files []string
	dirs  []string
	items int  // of the index
	away  bool // it is not whole
	began time.Time
}

// beginCheckpoint hands all that is in memory alone to the operating system, and notes what has to be made durable. It runs on the dispatching
// goroutine; finish, on any.
func (s *Store) beginCheckpoint(clean bool) (*saving, error) {
	for q := range s.unflushed {
		if err := s.flush(q); err != nil {
			return nil, err
		}
		delete(s.unflushed, q)
	}
	s.tailBytes, s.urgent, s.due = 0, false, false
	sv := &saving{c: s.at, began: time.Now()}
	sv.c.clean, sv.c.next = clean, max(s.at.next, s.saved)
	s.at.number++
	sv.c.number = s.at.number
	for name := range s.dirty {
		sv.files = append(sv.files, name)
	}
	for dir := range s.dirtyDirs {
		sv.dirs = append(sv.dirs, dir)
	}
	clear(s.dirty)
	clear(s.dirtyDirs)
	s.index.mu.RLock()
	sv.items, sv.away = len(s.index.pending), s.index.remade
	s.index.mu.RUnlock()
	return sv, nil
}

// finish makes a checkpoint durable: first what it speaks of, then itself.
func (s *Store) finish(sv *saving) error {
	for _, name := range sv.files {
		if err := s.files.sync(name); err != nil {
			return fmt.Errorf("sync %s: %w", name, err)
		}
	}
	for _, dir := range sv.dirs {
		if err := s.fs.SyncDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("sync %s: %w", dir, err)
		}
	}
	if err := s.index.write(sv.items); err != nil {
		return err
	}
	sv.c.index = s.index.mark()
	if sv.away || s.index.away() {
		sv.c.index = indexFile{stamp: -1}
	}
	if err := s.writeCheckpoint(sv.c); err != nil {
		return err
	}
	s.stats.checkpoints.Add(1)
	return nil
}

// again puts back what an unfinished checkpoint was to make durable.
func (s *Store) again(sv *saving) {
	for _, name := range sv.files {
		s.dirty[name] = true
	}
	for _, dir := range sv.dirs {
		s.dirtyDirs[dir] = true
	}
}
