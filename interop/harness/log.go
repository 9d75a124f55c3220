package harness

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
)

// Entry is one entry found in data files.
type Entry struct {
	Magic int32
	Index int64
	Term  int64
	At    int64 // its byte position in the data files
	Body  []byte
}

// Log is what a data directory holds, read as recovery would read it: up to the first record that does not continue the one
// before. It keeps all bytes in memory.
type Log struct {
	Entries []Entry
	bytes   []byte // all data files back to back, up to the end of the last entry
	begin   int64  // position of bytes[0]
}

const headerSize = 48 // of an entry; body length is its last field

// ReadLog reads the data files below root, the directory that holds `data`. The node need not be stopped, but then the last entries may be torn.
func ReadLog(root string) (*Log, error) {
	files, err := filepath.Glob(filepath.Join(root, "data", "*"))
	if err != nil {
		return nil, fmt.Errorf("list data files: %w", err)
	}
	l := &Log{}
	for i, name := range files { // Glob sorts, and names have equal length
		at, err := strconv.ParseInt(filepath.Base(name), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("data file with a name that is no number: %s", name)
		}
		if i == 0 {
			l.begin = at
		}
		if want := l.begin + int64(len(l.bytes)); at != want {
			return nil, fmt.Errorf("data file %s where %d should start", name, want)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read data file: %w", err)
		}
		l.bytes = append(l.bytes, b...)
	}
	l.bytes = l.bytes[:l.scan()]
	return l, nil
}

// scan fills Entries and gives the number of bytes up to the last one's end.
func (l *Log) scan() (end int) {
	for b := l.bytes; len(b) >= 8; {
		magic, size := int32(binary.BigEndian.Uint32(b)), int(int32(binary.BigEndian.Uint32(b[4:])))
		if size < 8 || size > len(b) {
			return end
		}
		if magic == -1 {
			b = b[size:]
			continue
		}
		if magic < 1 || magic > 3 || size < headerSize || int(binary.BigEndian.Uint32(b[44:])) != size-headerSize {
			return end
		}
		at := len(l.bytes) - len(b)
		e := Entry{Magic: magic, Index: int64(binary.BigEndian.Uint64(b[8:])), Term: int64(binary.BigEndian.Uint64(b[16:])),
			At: l.begin + int64(at), Body: b[headerSize:size]}
		if n := len(l.Entries); n > 0 && (e.Index != l.Entries[n-1].Index+1 || e.Term < l.Entries[n-1].Term) {
			return end
		}
		l.Entries = append(l.Entries, e)
		b = b[size:]
		end = at + size
	}
	return end
}

// End is the index of the last entry, -1 if there is none.
func (l *Log) End() int64 {
	if len(l.Entries) == 0 {
		return -1
	}
	return l.Entries[len(l.Entries)-1].Index
}

// At gives the entry with this index.
func (l *Log) At(index int64) (Entry, bool) {
	if len(l.Entries) == 0 || index < l.Entries[0].Index || index > l.End() {
		return Entry{}, false
	}
	return l.Entries[index-l.Entries[0].Index], true
}

// Same compares the bytes of two logs up to and with the entry at index last; an error tells the first difference.
func (l *Log) Same(other *Log, last int64) error {
	a, ok := l.At(last)
	if !ok {
		return fmt.Errorf("the first log ends at %d, before %d", l.End(), last)
	}
	if l.begin != other.begin {
		return fmt.Errorf("one log begins at position %d, the other at %d", l.begin, other.begin)
	}
	n := min(a.At+headerSize+int64(len(a.Body))-l.begin, int64(len(l.bytes)))
	if int64(len(other.bytes)) >= n && bytes.Equal(l.bytes[:n], other.bytes[:n]) {
		return nil
	}
	for i := range l.Entries {
		e, o := l.Entries[i], Entry{Index: -1}
		if i < len(other.Entries) {
			o = other.Entries[i]
		}
		if e.Index != o.Index || e.Term != o.Term || e.At != o.At || !bytes.Equal(e.Body, o.Body) {
			return fmt.Errorf("entries differ: index %d term %d at %d (%d bytes) and index %d term %d at %d (%d bytes)",
				e.Index, e.Term, e.At, len(e.Body), o.Index, o.Term, o.At, len(o.Body))
		}
	}
	return fmt.Errorf("equal entries, different bytes before position %d (header fields or blanks)", l.begin+n)
}

// EndOf tells the index of the last entry below root from its index files alone, -1 if there is none. It reads little, for logs of
// any size, and may be used on a running node; index records that an unfinished truncation left behind the end deceive it.
func EndOf(root string) (int64, error) {
	const record = 32 // magic 4, pos 8, size 4, index 8, term 8
	files, err := filepath.Glob(filepath.Join(root, "index", "*"))
	if err != nil {
		return -1, fmt.Errorf("list index files: %w", err)
	}
	for i := len(files) - 1; i >= 0; i-- {
		at, err := strconv.ParseInt(filepath.Base(files[i]), 10, 64)
		if err != nil {
			return -1, fmt.Errorf("index file with a name that is no number: %s", files[i])
		}
		end, err := endOfIndexFile(files[i], at/record)
		if err != nil || end >= at/record {
			return end, err
		}
	}
	return -1, nil
}

// endOfIndexFile searches the file whose first record is that of entry first; the answer is first-1 if it holds none.
func endOfIndexFile(name string, first int64) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return -1, fmt.Errorf("open index file: %w", err)
	}
	defer f.Close() // nothing was written
	info, err := f.Stat()
	if err != nil {
		return -1, fmt.Errorf("size of index file: %w", err)
	}
	n := sort.Search(int(info.Size()/32), func(i int) bool {
		var b [32]byte
		if _, e := f.ReadAt(b[:], int64(i)*32); e != nil {
			err = e
		}
		return int32(binary.BigEndian.Uint32(b[12:])) < headerSize || int64(binary.BigEndian.Uint64(b[16:])) != first+int64(i)
	})
	if err != nil {
		return -1, fmt.Errorf("read index file: %w", err)
	}
	return first + int64(n) - 1, nil
}
