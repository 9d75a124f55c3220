package entry

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"dledger/internal/raft"
)

// encoded is a sealed entry.
func encoded(h Header, body []byte) []byte {
	h.BodyLen, h.Size = int32(len(body)), int32(HeaderSize+len(body))
	b := append(make([]byte, HeaderSize), body...)
	PutHeader(b, h)
	Seal(b)
	return b
}

func header(t *rapid.T) Header {
	return Header{
		Magic:   rapid.SampledFrom([]int32{MagicNormal, MagicNoop, MagicConfig}).Draw(t, "magic"),
		Index:   raft.Index(rapid.Int64Min(0).Draw(t, "index")),
		Term:    raft.Term(rapid.Int64Min(0).Draw(t, "term")),
		Pos:     rapid.Int64().Draw(t, "pos"),
		Channel: rapid.Int32().Draw(t, "channel"),
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, body := header(t), rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "body")
		b := encoded(h, body)
		got, err := Parse(b)
		if err != nil || Check(b) != nil {
			t.Fatalf("%v, %v", err, Check(b))
		}
		again := bytes.Clone(b)
		PutHeader(again, got)
		if !bytes.Equal(again, b) {
			t.Errorf("got % x, want % x", again[:HeaderSize], b[:HeaderSize])
		}
		r := Record{Magic: h.Magic, Pos: h.Pos, Size: got.Size, Index: h.Index, Term: h.Term}
		var record [IndexSize]byte
		PutRecord(record[:], r)
		if back := ParseRecord(record[:]); back != r {
			t.Errorf("record: got %+v, want %+v", back, r)
		}
	})
}

// Each bit of an entry with checksums is covered by one of them, or by the form of the header.
func TestEveryBitIsCovered(t *testing.T) {
	b := encoded(Header{Magic: MagicNormal, Index: 7, Term: 3, Pos: 4711}, []byte("some body"))
	for bit := range len(b) * 8 {
		flipped := bytes.Clone(b)
		flipped[bit/8] ^= 1 << (bit % 8)
		if _, err := Parse(flipped); err == nil && Check(flipped) == nil {
			t.Errorf("bit %d of byte %d is flipped and nobody notices", bit%8, bit/8)
		}
	}
}

func TestAbsentChecksumsAreNotChecked(t *testing.T) {
	b := encoded(Header{Magic: MagicNormal}, []byte("body"))
	clear(b[36:44])
	if err := Check(b); err != nil {
		t.Errorf("without checksums: %v", err)
	}
	for n := range HeaderSize {
		if _, err := Parse(b[:n]); !errors.Is(err, ErrShort) {
			t.Errorf("%d bytes: %v, want ErrShort", n, err)
		}
		if err := Check(b[:n]); !errors.Is(err, ErrShort) {
			t.Errorf("checksum of %d bytes: %v, want ErrShort", n, err)
		}
	}
}

// An entry lies in one file, at the end of the log or at the start of the next file, and leaves room for a blank behind it.
func TestPlaceKeepsEntriesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.Int64Range(100, 1000).Draw(t, "file")
		end := rapid.Int64Range(0, 5000).Draw(t, "end")
		if file-end%file < BlankSize {
			end += BlankSize // no log ends there: an entry leaves room for a blank
		}
		size := rapid.IntRange(HeaderSize, int(file)-BlankSize).Draw(t, "size")
		pos, blank := Place(end, size, file)
		switch {
		case pos != end+blank:
			t.Errorf("entry at %d, log ends at %d with a blank of %d", pos, end, blank)
		case pos%file+int64(size)+BlankSize > file:
			t.Errorf("entry of %d at %d leaves no room for a blank in files of %d", size, pos, file)
		case blank != 0 && (pos%file != 0 || blank < BlankSize):
			t.Errorf("blank of %d before %d in files of %d", blank, pos, file)
		case blank != 0 && end%file+int64(size)+BlankSize <= file:
			t.Errorf("entry of %d had room at %d in files of %d", size, end, file)
		}
	})
}

// FuzzEntry: what is taken for an entry is written back as it was, and its checksums, if right, are those that Seal computes.
func FuzzEntry(f *testing.F) {
	for _, version := range []string{"0.3.1.2", "0.4.0"} {
		for _, g := range goldenEntries(f, version) {
			f.Add(unhex(f, g.EntryHex))
			f.Add(unhex(f, g.IndexEntryHex))
		}
	}
	f.Add(encoded(Header{Magic: MagicNormal, Index: 1, Term: 1, Pos: 53}, []byte("hello")))
	f.Add(encoded(Header{Magic: MagicNoop}, nil))
	f.Add(make([]byte, IndexSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= IndexSize {
			var again [IndexSize]byte
			PutRecord(again[:], ParseRecord(b))
			if !bytes.Equal(again[:], b[:IndexSize]) {
				t.Errorf("record: got % x, want % x", again, b[:IndexSize])
			}
		}
		h, err := Parse(b)
		if err != nil {
			return
		}
		again := bytes.Clone(b)
		PutHeader(again, h)
		if !bytes.Equal(again, b) {
			t.Errorf("header: got % x, want % x", again[:HeaderSize], b[:HeaderSize])
		}
		if int(h.Size) > len(b) {
			return
		}
		whole := bytes.Clone(b[:h.Size])
		sound := Check(whole) == nil && h.ChainCRC != 0 && h.BodyCRC != 0
		Seal(whole)
		if sound && !bytes.Equal(whole, b[:h.Size]) {
			t.Error("two sets of checksums fit one entry")
		}
		if err := Check(whole); err != nil {
			t.Errorf("sealed, and still %v", err)
		}
	})
}
