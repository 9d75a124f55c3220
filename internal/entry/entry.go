// Package entry owns the byte layout of one log entry and of one index record (DLedgerEntryCoder in the Java original):
// how they are written, read and checked. It knows no file, no term rule and no message; start at Header.
//
// An entry, big-endian (docs/files.md, "Entry"):
//
//	offset size field
//	     0    4 magic     1 normal, 2 no-op, 3 config change; -1 starts a blank record
//	     4    4 size      whole entry, 48 + body length
//	     8    8 index
//	    16    8 term
//	    24    8 pos       byte position given by the leader
//	    32    4 channel   0
//	    36    4 chainCrc  CRC-32C of bytes 0-35 and 40-47; 0 = absent
//	    40    4 bodyCrc   CRC-32C of the body; 0 = absent
//	    44    4 body length
//	    48    n body
//
// An index record (docs/files.md, "Index record"):
//
//	0 magic int32 · 4 pos int64 · 12 size int32 · 16 index int64 · 24 term int64
package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"dledger/internal/raft"
)

const (
	HeaderSize = 48
	IndexSize  = 32
	BlankSize  = 8 // magic and size of a blank record; the rest of it is zeros

	MagicNormal int32 = 1
	MagicNoop   int32 = 2
	MagicConfig int32 = 3
	MagicBlank  int32 = -1

	// MaxSize is the largest entry the original can encode (its buffer is 4 MiB); MaxBody the body in it.
	MaxSize = 4 << 20
	MaxBody = MaxSize - HeaderSize
)

// Header is the fixed part of an entry.
type Header struct {
	Magic    int32
	Size     int32
	Index    raft.Index
	Term     raft.Term
	Pos      int64
	Channel  int32
	ChainCRC uint32
	BodyCRC  uint32
	BodyLen  int32
}

// Errors of Parse and Check. They say what is wrong with the bytes, not where they lay.
var (
	ErrShort  = errors.New("fewer bytes than an entry has")
	ErrHeader = errors.New("bad entry header")
	ErrChain  = errors.New("header checksum differs")
	ErrBody   = errors.New("body checksum differs")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Parse reads the header of the entry at the start of b and checks that its fields fit together; b may go on behind the entry,
// and may end before the entry's body does. It does not look at checksums.
func Parse(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	h := Header{
		Magic:    int32(binary.BigEndian.Uint32(b[0:])),
		Size:     int32(binary.BigEndian.Uint32(b[4:])),
		Index:    raft.Index(binary.BigEndian.Uint64(b[8:])),
		Term:     raft.Term(binary.BigEndian.Uint64(b[16:])),
		Pos:      int64(binary.BigEndian.Uint64(b[24:])),
		Channel:  int32(binary.BigEndian.Uint32(b[32:])),
		ChainCRC: binary.BigEndian.Uint32(b[36:]),
		BodyCRC:  binary.BigEndian.Uint32(b[40:]),
		BodyLen:  int32(binary.BigEndian.Uint32(b[44:])),
	}
	switch {
	case h.Magic < MagicNormal || h.Magic > MagicConfig:
		return h, fmt.Errorf("%w: magic %d", ErrHeader, h.Magic)
	case h.BodyLen < 0 || h.Size != h.BodyLen+HeaderSize:
		return h, fmt.Errorf("%w: size %d with body length %d", ErrHeader, h.Size, h.BodyLen)
	case h.Index < 0 || h.Term < 0:
		return h, fmt.Errorf("%w: index %d, term %d", ErrHeader, h.Index, h.Term)
	}
	return h, nil
}

// PutHeader writes h over the first 48 bytes of b.
func PutHeader(b []byte, h Header) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint32(b[0:], uint32(h.Magic))
	binary.BigEndian.PutUint32(b[4:], uint32(h.Size))
	binary.BigEndian.PutUint64(b[8:], uint64(h.Index))
	binary.BigEndian.PutUint64(b[16:], uint64(h.Term))
	binary.BigEndian.PutUint64(b[24:], uint64(h.Pos))
	binary.BigEndian.PutUint32(b[32:], uint32(h.Channel))
	binary.BigEndian.PutUint32(b[36:], h.ChainCRC)
	binary.BigEndian.PutUint32(b[40:], h.BodyCRC)
	binary.BigEndian.PutUint32(b[44:], uint32(h.BodyLen))
}

// Seal computes both checksums of the whole entry b and writes them into it.
func Seal(b []byte) {
	binary.BigEndian.PutUint32(b[40:], crc32.Checksum(b[HeaderSize:], castagnoli))
	binary.BigEndian.PutUint32(b[36:], chain(b))
}

// Check compares the checksums that the whole entry b carries with its bytes. An absent one (0) is not checked.
func Check(b []byte) error {
	if len(b) < HeaderSize {
		return ErrShort
	}
	if c := binary.BigEndian.Uint32(b[36:]); c != 0 && c != chain(b) {
		return ErrChain
	}
	if c := binary.BigEndian.Uint32(b[40:]); c != 0 && c != crc32.Checksum(b[HeaderSize:], castagnoli) {
		return ErrBody
	}
	return nil
}

// Sealed tells whether the whole entry b carries both checksums and they fit: what Seal writes is so, also where one of them comes out as 0.
func Sealed(b []byte) bool {
	return HeaderSealed(b) && binary.BigEndian.Uint32(b[40:]) == crc32.Checksum(b[HeaderSize:], castagnoli)
}

// HeaderSealed tells whether the header at the start of b carries its checksum and it fits; the body does not matter, nor whether it is there.
func HeaderSealed(b []byte) bool {
	return len(b) >= HeaderSize && binary.BigEndian.Uint32(b[36:]) == chain(b)
}

func chain(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:36], castagnoli), castagnoli, b[40:HeaderSize])
}

// Record is one record of an index file. Pos is the entry's real position in this node's data files, which in a group with
// Java 0.4 leaders may differ from the Pos in the entry's header.
type Record struct {
	Magic int32
	Pos   int64
	Size  int32
	Index raft.Index
	Term  raft.Term
}

// PutRecord writes r over the first 32 bytes of b.
func PutRecord(b []byte, r Record) {
	_ = b[IndexSize-1]
	binary.BigEndian.PutUint32(b[0:], uint32(r.Magic))
	binary.BigEndian.PutUint64(b[4:], uint64(r.Pos))
	binary.BigEndian.PutUint32(b[12:], uint32(r.Size))
	binary.BigEndian.PutUint64(b[16:], uint64(r.Index))
	binary.BigEndian.PutUint64(b[24:], uint64(r.Term))
}

// ParseRecord reads the record at the start of b; it checks nothing.
func ParseRecord(b []byte) Record {
	_ = b[IndexSize-1]
	return Record{
		Magic: int32(binary.BigEndian.Uint32(b[0:])),
		Pos:   int64(binary.BigEndian.Uint64(b[4:])),
		Size:  int32(binary.BigEndian.Uint32(b[12:])),
		Index: raft.Index(binary.BigEndian.Uint64(b[16:])),
		Term:  raft.Term(binary.BigEndian.Uint64(b[24:])),
	}
}

// Place gives the position of an entry of size bytes in a log that ends at end, in files of fileSize bytes, and the length of
// the blank record that fills the rest of the file before it (0 = none). At least 8 bytes stay free behind an entry, so that
// the blank always fits (docs/files.md, "Entry").
func Place(end int64, size int, fileSize int64) (pos, blank int64) {
	left := fileSize - end%fileSize
	if int64(size)+BlankSize <= left {
		return end, 0
	}
	if left == fileSize { // at a file's first byte: there is nothing to blank, the entry is too large for any file
		return end, 0
	}
	return end + left, left
}
