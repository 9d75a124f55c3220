package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// source is the data files of a log as a scanner reads them; both an open store and an inspected directory are one.
type source struct {
	size  int64 // of each file
	files []sourceFile
}

type sourceFile struct {
	off  int64
	name string
	f    vfs.File
}

// base is where the first file begins, limit where the last one ends.
func (s *source) base() int64 {
	if len(s.files) == 0 {
		return 0
	}
	return s.files[0].off
}

func (s *source) limit() int64 {
	if len(s.files) == 0 {
		return 0
	}
	return s.files[len(s.files)-1].off + s.size
}

// at gives the file that holds pos; pos lies in [base, limit).
func (s *source) at(pos int64) *sourceFile { return &s.files[(pos-s.base())/s.size] }

// holds tells whether byte pos lies in one of the files.
func (s *source) holds(pos int64) bool { return pos >= s.base() && pos < s.limit() }

// read fills b from pos on, within one file. What a short file lacks reads as zeros.
func (s *source) read(b []byte, pos int64) error {
	f := s.at(pos)
	n, err := f.f.ReadAt(b, pos-f.off)
	if err == io.EOF {
		clear(b[n:])
		err = nil
	}
	if err != nil {
		return fmt.Errorf("read %s at byte %d: %w", f.name, pos-f.off, err)
	}
	return nil
}

// damage names the place pos.
func (s *source) damage(pos int64, index raft.Index, cause error) error {
	if len(s.files) == 0 {
		return &DamageError{File: "no data file", Index: index, Err: cause}
	}
	f := s.at(min(pos, s.limit()-1))
	return &DamageError{File: f.name, Offset: pos - f.off, Index: index, Err: cause}
}

// termAt gives the term of the damaged entry that index record r names; a record has no checksum. A header whose own checksum fits knows best, also where it fits
// with the record's term alone; one that is damaged elsewhere confirms the record, or makes its term uncertain: then ok is false. Where no header is left the record
// is all there is.
func (s *source) termAt(r entry.Record) (t raft.Term, ok bool) {
	b := make([]byte, entry.HeaderSize)
	if !s.holds(r.Pos) || !s.holds(r.Pos+entry.HeaderSize-1) || s.at(r.Pos) != s.at(r.Pos+entry.HeaderSize-1) || s.read(b, r.Pos) != nil {
		return r.Term, true
	}
	h, err := entry.Parse(b)
	switch {
	case h.Index != r.Index, h.Magic == 0:
		return r.Term, true
	case err == nil && entry.HeaderSealed(b):
		return h.Term, true
	}
	binary.BigEndian.PutUint64(b[16:], uint64(r.Term))
	return r.Term, h.Term == r.Term || entry.HeaderSealed(b)
}

// zerosFrom tells whether every byte from pos on is 0.
func (s *source) zerosFrom(pos int64) (bool, error) {
	b := make([]byte, max(min(scanBuffer, s.limit()-pos), 0))
	for pos < s.limit() {
		f := s.at(pos)
		lo, hi, err := f.f.NextData(pos - f.off)
		if err != nil {
			return false, fmt.Errorf("look for data in %s: %w", f.name, err)
		}
		if lo >= min(hi, s.size) { // nothing more in this file
			pos = f.off + s.size
			continue
		}
		pos = f.off + lo
		part := b[:min(int64(len(b)), f.off+min(hi, s.size)-pos)]
		if err := s.read(part, pos); err != nil {
			return false, err
		}
		for _, c := range part {
			if c != 0 {
				return false, nil
			}
		}
		pos += int64(len(part))
	}
	return true, nil
}

const scanBuffer = 1 << 20

// Why a scan ended at its position.
var (
	errZeros    = errors.New("no entry: zeros")            // never written, or lost
	errOrder    = errors.New("entry of another log")       // whole, but does not continue: what an older leader left
	errPosition = errors.New("entry of another position")  // whole, but belongs elsewhere
	errBare     = errors.New("entry without checksum")     // whole by its header, which is not enough here
	errDoubt    = errors.New("entry may be torn")          // it has no checksum, and nothing is behind it
	errBlank    = errors.New("bad blank record")           //
	errNoFile   = errors.New("the data files end here")    //
	errRead     = errors.New("data file cannot be read")   // an error of the disk, wrapped
	errUnfit    = errors.New("entry goes beyond its file") //
)

// scanner walks over the entries of a source and checks each: form, checksums, index, term, and position where asked.
type scanner struct {
	src      *source
	pos      int64      // of the next record
	next     raft.Index // expected; -1 takes any
	term     raft.Term  // lower bound
	checkPos bool
	sealed   raft.Index // entries above need checksums; -2 = none does, -1 = all do
	doubted  raft.Index // with doubts: an entry above without checksums, that ends with a zero and has nothing behind it, may be torn, and is not taken
	doubts   bool
	blanks   bool   // blank records are checked too: they fill a file's end or begin, with zeros
	ahead    int    // how much is read at once; 0 = scanBuffer
	buf      []byte // bytes of the files from bufPos on
	bufPos   int64
	bytes    []byte // the entry that step found; good until the next step
	hdr      entry.Header
	at       int64 // where it lies
	err      error // why step gave false
}

// peek gives n bytes at pos, within one file, reading ahead.
func (sc *scanner) peek(pos int64, n int) ([]byte, error) {
	if pos >= sc.bufPos && pos+int64(n) <= sc.bufPos+int64(len(sc.buf)) {
		return sc.buf[pos-sc.bufPos:][:n:n], nil
	}
	left := sc.src.at(pos).off + sc.src.size - pos
	ahead := int64(scanBuffer)
	if sc.ahead > 0 {
		ahead = int64(sc.ahead)
	}
	want := int(min(max(int64(n), ahead), left))
	if cap(sc.buf) < want {
		sc.buf = make([]byte, want)
	}
	sc.bufPos = pos
	err := error(nil)
	for _, size := range []int{want, n} { // what cannot be read may lie behind what is asked for
		sc.buf = sc.buf[:size]
		if err = sc.src.read(sc.buf, pos); err == nil {
			return sc.buf[:n:n], nil
		}
	}
	sc.buf = sc.buf[:0]
	return nil, fmt.Errorf("%w: %w", errRead, err)
}

// step moves to the next entry. False: there is none, and err says why; pos is where it should have been.
func (sc *scanner) step() bool {
	for sc.err == nil {
		if sc.pos >= sc.src.limit() || len(sc.src.files) == 0 {
			sc.err = errNoFile
			return false
		}
		left := sc.src.at(sc.pos).off + sc.src.size - sc.pos
		if left < entry.BlankSize {
			sc.pos += left // no record fits: as if the file were full
			continue
		}
		head, err := sc.peek(sc.pos, int(min(left, entry.HeaderSize)))
		if err != nil {
			sc.err = err
			return false
		}
		magic := int32(binary.BigEndian.Uint32(head))
		size := int64(int32(binary.BigEndian.Uint32(head[4:])))
		switch {
		case magic == entry.MagicBlank:
			if size < entry.BlankSize || size > left {
				sc.err = fmt.Errorf("%w: size %d with %d bytes left", errBlank, size, left)
				return false
			}
			if sc.err = sc.blank(size, left); sc.err != nil {
				return false
			}
			sc.pos += size
			continue
		case magic == 0 && size == 0:
			sc.err = errZeros
			return false
		case left < entry.HeaderSize || size > left:
			sc.err = fmt.Errorf("%w: magic %d, size %d with %d bytes left", errUnfit, magic, size, left)
			return false
		}
		sc.err = sc.entry(head)
		return sc.err == nil
	}
	return false
}

// nothingAt tells whether no record has been begun at pos, or at the begin of the next file if none fits there.
func (sc *scanner) nothingAt(pos int64) (bool, error) {
	if off := pos % sc.src.size; off > 0 && sc.src.size-off < entry.BlankSize {
		pos += sc.src.size - off
	}
	if !sc.src.holds(pos) {
		return true, nil
	}
	b, err := sc.peek(pos, entry.BlankSize)
	return err == nil && binary.BigEndian.Uint64(b) == 0, err
}

// blank checks a blank record of size bytes with left bytes to the file's end, where that is asked for.
func (sc *scanner) blank(size, left int64) error {
	if !sc.blanks {
		return nil
	}
	if size < left && left < sc.src.size {
		return fmt.Errorf("%w: size %d with %d bytes left", errBlank, size, left)
	}
	for off := int64(entry.BlankSize); off < size; {
		b, err := sc.peek(sc.pos+off, int(min(size-off, scanBuffer)))
		if err != nil {
			return err
		}
		for i, c := range b {
			if c != 0 {
				return fmt.Errorf("%w: byte %d of it is not 0", errBlank, off+int64(i))
			}
		}
		off += int64(len(b))
	}
	return nil
}

// entry checks the entry whose header is head.
func (sc *scanner) entry(head []byte) error {
	h, err := entry.Parse(head)
	if err != nil {
		return err
	}
	e, err := sc.peek(sc.pos, int(h.Size))
	if err != nil {
		return err
	}
	bare := sc.sealed > -2 && h.Index > sc.sealed && !entry.Sealed(e)
	if err := entry.Check(e); err != nil {
		return err
	}
	switch {
	case sc.next >= 0 && h.Index != sc.next || h.Term < sc.term:
		return fmt.Errorf("%w: index %d of term %d behind term %d", errOrder, h.Index, h.Term, sc.term)
	case sc.checkPos && h.Pos != sc.pos:
		return fmt.Errorf("%w: header says %d", errPosition, h.Pos)
	case bare, plantedBareNoop && sc.sealed > -2 && h.Index > sc.sealed && h.BodyCRC == 0:
		return errBare
	case sc.doubts && h.Index > sc.doubted && e[len(e)-1] == 0 && !entry.Sealed(e):
		if last, err := sc.nothingAt(sc.pos + int64(h.Size)); err != nil {
			return err
		} else if last {
			return errDoubt
		}
		if e, err = sc.peek(sc.pos, int(h.Size)); err != nil { // it may have lain in the buffer's old bytes
			return err
		}
	}
	sc.bytes, sc.hdr, sc.at = e, h, sc.pos
	sc.pos += int64(h.Size)
	sc.next, sc.term = h.Index+1, h.Term
	return nil
}
