package logstore

import "sync/atomic"

// Blocks of a preallocated file are unwritten extents to the file system. The first write to each changes that, and the sync after
// it has to write that change too, which doubles what a sync of 16 KiB to 256 KiB takes (figures in docs/files.md). So zeros are written a
// little ahead of the log, in the background and beside the page cache, where they do not get into a sync of the log.

// ahead is how far a data file was written with zeros in advance.
//
//  1. bytes of the file from pos on may be overwritten with zeros at any moment, those before pos never;
//  2. the owner moves pos beyond the end of a write before it writes, and waits for a write of zeros under way if it has to.
type ahead struct {
	mu      ioLock       // held over one write of zeros, and to change pos
	pos     atomic.Int64 // within the file, a multiple of aheadStep
	written atomic.Int64 // end of the owner's last write
	gap     int64        // how far the owner moves pos beyond its write; guarded by mu
	running atomic.Bool  // a goroutine "ahead" works on this file
}

const (
	aheadStep   = 1 << 20
	aheadGapMax = 64 << 20
	// DefaultPrewrite is how far zeros are written ahead of the log.
	DefaultPrewrite int64 = 32 << 20
)

func newAhead() ahead { return ahead{mu: newIOLock(), gap: aheadStep} }

// claim makes [.., end) the owner's. A log that is faster than the zeros doubles the distance each time, up to aheadGapMax, so that
// they stay out of the way of a log that needs the whole disk.
func (a *ahead) claim(end int64) {
	a.written.Store(end)
	if end <= a.pos.Load() {
		return
	}
	a.mu.Lock()
	a.pos.Store((end + a.gap + aheadStep - 1) / aheadStep * aheadStep)
	a.gap = min(2*a.gap, aheadGapMax)
	a.mu.Unlock()
}

// rewind starts over behind end, where the owner has just erased the rest of the file.
func (a *ahead) rewind(end int64) {
	a.mu.Lock()
	a.written.Store(end)
	a.pos.Store((end + 2*aheadStep - 1) / aheadStep * aheadStep)
	a.mu.Unlock()
}

// pageSize is what the page cache reads before a write that covers only part of it, if there is something to read.
const pageSize = 4096

var pagePadding [pageSize]byte

// claim makes the place of a write the owner's, and gives what to write there: the write goes on with zeros to the end of its last page, which
// otherwise the page cache would read from the disk first where zeros were written ahead.
func (s *Store) claim(w *write) [][]byte {
	if s.cfg.Inline || s.cfg.Prewrite < 0 {
		return w.bufs
	}
	bufs := w.bufs
	end := w.off + w.size()
	if rest := -end & (pageSize - 1); rest > 0 && end+rest <= s.data.size {
		bufs = append(bufs, pagePadding[:rest])
		end += rest
	}
	w.f.ahead.claim(end)
	return bufs
}

// prewrite sees to it that zeros are ahead of the last write to f. Owner only.
func (s *Store) prewrite(f *file) {
	a := &f.ahead
	limit := s.data.size / aheadStep * aheadStep
	target := min(a.written.Load()+s.cfg.Prewrite, limit)
	if s.cfg.Inline || s.cfg.Prewrite < 0 || a.pos.Load()+4*aheadStep > target || !a.running.CompareAndSwap(false, true) {
		return
	}
	f.refs.Add(1)
	s.background.Go(func() {
		defer s.done(f)
		defer a.running.Store(false)
		for !s.stopping.Load() && s.failure.Load() == nil {
			a.mu.Lock()
			pos := a.pos.Load()
			done := pos >= min(a.written.Load()+s.cfg.Prewrite, limit)
			if !done {
				if err := f.Prewrite(pos, aheadStep); err != nil {
					// Nothing that counts was written. If the disk is ill, the owner's writes will tell.
					s.log.Warn("zeros not written ahead of the log", "file", f.name, "error", err)
					pos = s.data.size
				}
				a.pos.Store(pos + aheadStep)
			}
			a.mu.Unlock()
			if done {
				return
			}
		}
	})
}
