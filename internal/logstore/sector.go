package logstore

import (
	"bytes"
	"fmt"

	"dledger/internal/entry"
)

// A disk that does not read a sector gives it another place once it is written as a whole. A write that covers only a part of it fails: the page cache reads the rest
// first, of a whole page. So what puts bytes right that a disk may not read makes the sectors around their ends readable before.

// lostByte stands in a sector for what the disk did not read of it. It begins no record, and no index record, and unlike zeros it does not look as if nothing had
// ever been written.
const lostByte = 0xff

// reads fills b from byte off on, and tells whether the disk gives it.
func (f *file) reads(b []byte, off int64) bool {
	_, err := f.ReadAt(b, off)
	return err == nil
}

// putRight writes b at off, over what the disk may not read; end and limit are as for makeReadable.
func (f *file) putRight(b []byte, off, end, limit int64) error {
	for _, at := range []int64{off, off + int64(len(b))} {
		if err := f.makeReadable(at, end, limit); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(b, off); err != nil {
		return fmt.Errorf("write %s: %w", f.name, err)
	}
	return nil
}

// makeReadable writes those sectors that the disk does not read in the page in the middle of which at lies, if they lie before limit: while the owner appends that is
// the end of the log. What is in them before end, where something has been written, becomes lostByte, the rest zeros.
func (f *file) makeReadable(at, end, limit int64) error {
	lo := at - at%pageSize
	hi := min(lo+pageSize, limit)
	if at == lo || at >= hi || f.reads(make([]byte, hi-lo), lo) {
		return nil
	}
	for n := lo; n < hi; n += sector {
		m := n // to the page cache, which reads a page as one, all of them are unreadable, and it takes them only at once
		for m < hi && !f.reads(make([]byte, min(sector, f.size-m)), m) {
			m += sector
		}
		if m > limit && limit < f.size {
			m -= sector
		}
		if m = min(m, f.size); m <= n {
			continue
		}
		b := bytes.Repeat([]byte{lostByte}, int(m-n))
		clear(b[min(max(end-n, 0), m-n):])
		if _, err := f.WriteAt(b, n); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
		n = m // which is read
	}
	return nil
}

// putRight is that of a file of list l, beside an owner that appends. The caller holds ioMu, so that nothing is cut meanwhile.
func (s *Store) putRight(l *files, f *file, b []byte, off int64) error {
	s.mu.RLock()
	end := s.last.end
	if l == &s.index {
		end = int64(s.last.index+1) * entry.IndexSize
	}
	s.mu.RUnlock()
	end = min(max(end-f.off, 0), f.size)
	return f.putRight(b, off, end, end)
}
