package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"syscall"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The file ROOT/commit holds what the original's files have no place for. It has four slots of 4 KiB; a slot holds, big-endian, at its
// start:
//
//	offset size field
//	     0    4 "DLGS"
//	     4    2 version, 1
//	     6    1 compat: 0 go, 1 0.4, 2 0.3
//	     7    1 flags: 1 clean stop, 2 cut in progress, 4 reset in progress, 8 headers may hold positions of another node's log,
//	            16 entries count before they are synced (Config.Async), 32 State.Behind, 64 State.New, 128 entries are damaged
//	     8    8 sequence: of the valid slots the one with the highest counts
//	    16    4 CRC-32C of the boot id, as text
//	    20    1 flags: 1 every entry carries checksums
//	    24    8 end of the last full search for damage, in seconds since 1970; 0 = never
//	    32    8 data file size          40    8 index file size
//	    48    8 first index             56    8 its position
//	    64    8 term of the entry before first; -2 unknown
//	    72    8 commit index            80    8 lost: State.TailLost
//	    88    8 term: a lower bound of what currterm holds
//	    96  3×24 index, term, position: the last entry that is flushed; durable; checkpointed (its index record is durable too)
//	   168   24 index, term, position of the last entry to keep, while a cut or a reset is in progress
//	   192    8 position behind that entry
//	   200    4 CRC-32C of bytes 0-199
//
// Slots 0 and 1 take turns and are written without a sync, whenever the commit or the durable index moves. Slots 2 and 3 take turns
// and are synced: checkpoints, and the intent and the end of everything that removes entries. So a power cut may cost the newest
// hints, never an intent.
const (
	sideName    = "commit"
	sideVersion = 1
	slotSize    = 4096
	slotBytes   = 204
	slotCount   = 4
	sideBytes   = slotSize * slotCount
	sideMagic   = 0x444c4753 // "DLGS"
	flagClean   = 1
	flagCut     = 2
	flagReset   = 4
	flagMoved   = 8
	flagAsync   = 16
	flagBehind  = 32
	flagNew     = 64
	flagHurt    = 128
)

// meta is the content of a slot.
type meta struct {
	seq                 uint64
	compat              raft.Compat
	clean, cut, reset   bool
	moved               bool
	async               bool
	behind, new, hurt   bool
	sealed              bool
	scrubbed            int64
	boot                uint32
	dataSize, indexSize int64
	first               raft.Index
	firstPos            int64
	prevTerm            raft.Term
	commit              raft.Index
	lost                raft.Index
	term                raft.Term
	flushed             mark // end is not stored
	durable             mark
	checkpoint          mark
	keep                mark // with its end
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func bootSum(id string) uint32 { return crc32.Checksum([]byte(id), castagnoli) }

func (m *meta) encode(b []byte) {
	clear(b[:slotBytes])
	be := binary.BigEndian
	be.PutUint32(b, sideMagic)
	be.PutUint16(b[4:], sideVersion)
	b[6] = byte(m.compat)
	for i, on := range []bool{m.clean, m.cut, m.reset, m.moved, m.async, m.behind, m.new, m.hurt} {
		if on {
			b[7] |= 1 << i
		}
	}
	be.PutUint64(b[8:], m.seq)
	be.PutUint32(b[16:], m.boot)
	if m.sealed {
		b[20] = 1
	}
	be.PutUint64(b[24:], uint64(m.scrubbed))
	for i, v := range []int64{m.dataSize, m.indexSize, int64(m.first), m.firstPos, int64(m.prevTerm), int64(m.commit), int64(m.lost), int64(m.term)} {
		be.PutUint64(b[32+8*i:], uint64(v))
	}
	for i, k := range []mark{m.flushed, m.durable, m.checkpoint, m.keep} {
		be.PutUint64(b[96+24*i:], uint64(k.index))
		be.PutUint64(b[104+24*i:], uint64(k.term))
		be.PutUint64(b[112+24*i:], uint64(k.pos))
	}
	be.PutUint64(b[192:], uint64(m.keep.end))
	be.PutUint32(b[200:], crc32.Checksum(b[:200], castagnoli))
}

// decode tells whether b holds a slot of a version we know.
func (m *meta) decode(b []byte) bool {
	be := binary.BigEndian
	if len(b) < slotBytes || be.Uint32(b) != sideMagic || be.Uint16(b[4:]) != sideVersion || be.Uint32(b[200:]) != crc32.Checksum(b[:200], castagnoli) {
		return false
	}
	m.compat = raft.Compat(b[6])
	m.clean, m.cut, m.reset, m.moved = b[7]&flagClean != 0, b[7]&flagCut != 0, b[7]&flagReset != 0, b[7]&flagMoved != 0
	m.async, m.behind, m.new, m.hurt = b[7]&flagAsync != 0, b[7]&flagBehind != 0, b[7]&flagNew != 0, b[7]&flagHurt != 0
	m.seq = be.Uint64(b[8:])
	m.boot = be.Uint32(b[16:])
	n := func(off int) int64 { return int64(be.Uint64(b[off:])) }
	m.sealed, m.scrubbed = b[20]&1 != 0, n(24)
	m.dataSize, m.indexSize = n(32), n(40)
	m.first, m.firstPos, m.prevTerm = raft.Index(n(48)), n(56), raft.Term(n(64))
	m.commit, m.lost, m.term = raft.Index(n(72)), raft.Index(n(80)), raft.Term(n(88))
	for i, k := range []*mark{&m.flushed, &m.durable, &m.checkpoint, &m.keep} {
		*k = mark{index: raft.Index(n(96 + 24*i)), term: raft.Term(n(104 + 24*i)), pos: n(112 + 24*i)}
	}
	m.keep.end = n(192)
	return true
}

// sidecar is the open file ROOT/commit.
type sidecar struct {
	saving ioLock // held over a save, from its write to the end of its sync; taken before mu
	mu     ioLock // guards all below; held over a write of one slot, which the page cache takes, never over a sync
	f      vfs.File
	m      meta
	hints  int    // slots written without sync; their parity is the next slot
	syncs  int    // slots written with sync
	aside  string // the file whose place this one is to take; "" once it has. Of the start alone
	buf    [slotBytes]byte
}

// noted is what a sidecar says.
type noted struct {
	meta         // of the newest valid slot
	slot   int   // where that is
	known  bool  // there is one
	unread error // why the disk does not give a part of the file, or nil. What stood there may have been newer: nobody knows then what was noted last
}

// readSide reads the file at name. One that is missing, holds nothing valid or is not given by the disk is no error.
func readSide(fs vfs.FS, name string) (n noted, err error) {
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return n, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b := make([]byte, sideBytes)
	whole, err := f.ReadAt(b, 0)
	for i := range slotCount {
		slot := b[i*slotSize:][:slotBytes]
		if unreadable(err) { // as a whole; so each slot by itself
			if _, bad := f.ReadAt(slot, int64(i)*slotSize); unreadable(bad) {
				n.unread = fmt.Errorf("read %s at byte %d: %w", name, i*slotSize, bad)
				continue
			} else if bad != nil && bad != io.EOF {
				return n, fmt.Errorf("read %s: %w", name, bad)
			}
		} else if err != nil && err != io.EOF {
			return n, fmt.Errorf("read %s: %w", name, err)
		} else if whole < i*slotSize+slotBytes {
			continue
		}
		var c meta
		if c.decode(slot) && (!n.known || c.seq > n.seq) {
			n.meta, n.slot, n.known = c, i, true
		}
	}
	return n, nil
}

// unreadable tells whether an error of reading in an open file is the disk's word that it does not give back what is there. That is damage of this file alone; where a file or
// a directory cannot be opened (no permission, no descriptor left) nothing is known of what is in it, and it may be well.
func unreadable(err error) bool { return errors.Is(err, syscall.EIO) }

// readSmall gives the content of a file, or why the disk does not give it; err is any other reason.
func readSmall(fs vfs.FS, name string) (text []byte, unread, err error) {
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	text = make([]byte, size)
	n, err := f.ReadAt(text, 0)
	switch {
	case unreadable(err):
		return nil, fmt.Errorf("%s cannot be read: %w", name, err), nil
	case err != nil && err != io.EOF:
		return nil, nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text[:n], nil, nil
}

// openSide opens the file, making it if need be. The slot that counts now is not the next one to be overwritten. Where the disk does not give a part of the file, another
// one takes its place as a whole, and until then it stays as it is: see replace.
func openSide(fs vfs.FS, dir, name string, m meta, slot int, unread bool) (*sidecar, error) {
	aside := ""
	if unread {
		aside, name = name, name+".tmp"
		if err := fs.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("make %s anew: %w", aside, err)
		}
	}
	f, err := fs.OpenFile(name, os.O_RDWR)
	if errors.Is(err, os.ErrNotExist) {
		if f, err = fs.Create(name, sideBytes); err == nil {
			err = fs.SyncDir(dir)
		}
	}
	var size int64
	if err == nil {
		size, err = f.Size()
	}
	if err == nil && size < sideBytes {
		err = f.Allocate(0, sideBytes)
	}
	if err != nil {
		err = fmt.Errorf("open %s: %w", name, err)
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return nil, err
	}
	return &sidecar{saving: newIOLock(), mu: newIOLock(), f: f, m: m, hints: slot, syncs: slot, aside: aside}, nil
}

// replace puts a sidecar that was begun beside another one into its place, durably, once it says all that has to be said.
func (s *sidecar) replace(fs vfs.FS, dir string) error {
	if s.aside == "" {
		return nil
	}
	if err := fs.Rename(s.aside+".tmp", s.aside); err != nil {
		return fmt.Errorf("make %s anew: %w", s.aside, err)
	}
	if err := fs.SyncDir(dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	s.aside = ""
	return nil
}

// note changes the hints and writes them, without a sync. No change is no write.
func (s *sidecar) note(change func(*meta)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.m
	change(&s.m)
	if s.m == before {
		return nil
	}
	s.hints++
	return s.write(s.hints % 2)
}

// save changes the content and makes it durable.
func (s *sidecar) save(change func(*meta)) error {
	end, err := s.begin(change)
	if err != nil {
		return err
	}
	return end()
}

// begin is the first half of save, which changes the content, and gives the other one, which waits for the disk and has to be called. Saves do not overlap: of the two
// slots that they write in turn one is always durable.
func (s *sidecar) begin(change func(*meta)) (end func() error, err error) {
	s.saving.Lock()
	s.mu.Lock()
	change(&s.m)
	s.syncs++
	err = s.write(2 + s.syncs%2)
	s.mu.Unlock()
	if err != nil {
		s.saving.Unlock()
		return nil, err
	}
	return func() error {
		defer s.saving.Unlock()
		return s.sync()
	}, nil
}

func (s *sidecar) sync() error {
	if err := s.f.Datasync(); err != nil {
		return fmt.Errorf("sync %s: %w", sideName, err)
	}
	return nil
}

// write puts the content into a slot. The caller holds mu.
func (s *sidecar) write(slot int) error {
	s.m.seq++
	s.m.encode(s.buf[:])
	if _, err := s.f.WriteAt(s.buf[:], int64(slot)*slotSize); err != nil {
		return fmt.Errorf("write %s: %w", sideName, err)
	}
	return nil
}

// moved tells whether headers may hold positions of another node's log.
func (s *sidecar) moved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.moved
}

func (s *sidecar) close() error { return s.f.Close() }

// holds tells whether a checkpoint of target and commit is saved already.
func (s *sidecar) holds(target mark, commit raft.Index, clean bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &s.m
	return m.checkpoint.index == target.index && m.checkpoint.term == target.term && m.durable.index == target.index &&
		m.commit == commit && m.clean == clean
}
