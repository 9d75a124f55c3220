package entry

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"testing"

	"dledger/internal/golden"
	"dledger/internal/raft"
)

// goldenEntry is an entry with its index record as the classes of the original wrote them.
type goldenEntry struct {
	Magic, Size, Channel int32
	Index, Term, Pos     int64
	ChainCrc, BodyCrc    int32
	BodyHex, EntryHex    string
	IndexEntryHex        string
	IndexFileOffset      int64
}

func goldenEntries(t testing.TB, version string) []goldenEntry {
	t.Helper()
	raw, err := golden.Read("entries-" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Entries []goldenEntry }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Entries) < 5 {
		t.Fatalf("%d entries", len(file.Entries))
	}
	return file.Entries
}

// The entries and index records that the classes of both generations wrote are read with the values they were made of, and written again byte for byte.
func TestEntriesAndRecordsAreThoseOfTheOriginal(t *testing.T) {
	for _, version := range []string{"0.3.1.2", "0.4.0"} {
		t.Run(version, func(t *testing.T) {
			for _, g := range goldenEntries(t, version) {
				whole, body, record := unhex(t, g.EntryHex), unhex(t, g.BodyHex), unhex(t, g.IndexEntryHex)
				want := Header{Magic: g.Magic, Size: g.Size, Index: raft.Index(g.Index), Term: raft.Term(g.Term), Pos: g.Pos, Channel: g.Channel,
					ChainCRC: uint32(g.ChainCrc), BodyCRC: uint32(g.BodyCrc), BodyLen: int32(len(body))}
				got, err := Parse(whole)
				if err != nil || Check(whole) != nil || got != want {
					t.Errorf("entry %d: got %+v, %v, %v, want %+v", g.Index, got, err, Check(whole), want)
				}
				if !bytes.Equal(whole[HeaderSize:], body) {
					t.Errorf("entry %d: body %x, want %x", g.Index, whole[HeaderSize:], body)
				}
				again := append(make([]byte, HeaderSize), body...)
				if PutHeader(again, want); !bytes.Equal(again, whole) {
					t.Errorf("entry %d: written %x, want %x", g.Index, again, whole)
				}
				wantRecord := Record{Magic: g.Magic, Pos: g.Pos, Size: g.Size, Index: raft.Index(g.Index), Term: raft.Term(g.Term)}
				if got := ParseRecord(record); got != wantRecord {
					t.Errorf("record %d: got %+v, want %+v", g.Index, got, wantRecord)
				}
				var back [IndexSize]byte
				if PutRecord(back[:], wantRecord); !bytes.Equal(back[:], record) {
					t.Errorf("record %d: written %x, want %x", g.Index, back, record)
				}
				if at := g.Index * IndexSize; at != g.IndexFileOffset {
					t.Errorf("record %d belongs at %d, want %d", g.Index, at, g.IndexFileOffset)
				}
			}
		})
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
