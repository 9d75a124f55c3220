package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"sync/atomic"
	"syscall"

	"dledger/internal/vfs"
)

// file is one file of a list. It stays open until it is removed from the list and nobody uses it any more.
type file struct {
	vfs.File
	off      int64 // position of its first byte, also its name
	name     string
	size     int64 // as found; differs from the list's size only during recovery
	readOnly bool
	full     bool         // space for every byte is allocated; owner only
	refs     atomic.Int32 // 1 for the list, 1 for each user
	ahead    ahead
}

// release ends one use; the last one closes the file.
func (f *file) release() error {
	if f.refs.Add(-1) > 0 {
		return nil
	}
	return f.File.Close()
}

// files is a list of equally sized files that make one sequence of bytes (MmapFileList in the Java original), sorted by
// position, without gaps. Store.mu guards list.
type files struct {
	size int64
	dirs []string // where new files may go
	list []*file
	next atomic.Int64 // position of the file wanted next; a preparation of any other one is out of date
}

// fileName gives the name of the file that begins at off.
func fileName(off int64) string { return fmt.Sprintf("%020d", off) }

// base gives the position of the file that holds pos.
func (l *files) base(pos int64) int64 { return pos - pos%l.size }

// find gives the file that holds pos, or nil.
func (l *files) find(pos int64) *file {
	if len(l.list) == 0 || pos < l.list[0].off {
		return nil
	}
	if i := (pos - l.list[0].off) / l.size; i < int64(len(l.list)) {
		if f := l.list[i]; pos >= f.off && pos < f.off+l.size {
			return f
		}
	}
	return nil
}

// reaches tells whether pos lies in one of the files, or in the next one to be made.
func (l *files) reaches(pos int64) bool {
	n := len(l.list)
	return n == 0 || pos >= l.list[0].off && pos < l.list[n-1].off+2*l.size
}

// use finds the file that holds pos for a reader, who releases it.
func (s *Store) use(l *files, pos int64) *file {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := l.find(pos)
	if f != nil {
		f.refs.Add(1)
	}
	return f
}

// done ends a reader's use. Closing a file that was removed cannot lose anything, so an error is only worth a line.
func (s *Store) done(f *file) {
	if err := f.release(); err != nil {
		s.log.Warn("close of a removed file failed", "file", f.name, "error", err)
	}
}

// isFull tells whether err says that there is no space, or no descriptor, for a file, and nothing else: that may pass. Where another error comes beside it nobody knows what
// the disk holds.
func isFull(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(part error) bool { return !isFull(part) })
	case interface{ Unwrap() error }:
		return isFull(e.Unwrap())
	}
	return err == ErrDiskFull || slices.Contains([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE}, err)
}

// obtain gives the file that holds pos with all its space allocated, creating it where it is the next one. Owner only.
func (s *Store) obtain(l *files, pos int64) (*file, error) {
	f, err := s.allocated(l, pos)
	if errors.Is(err, ErrDiskFull) {
		s.refused.Store(true)
	}
	return f, err
}

func (s *Store) allocated(l *files, pos int64) (*file, error) {
	s.mu.RLock()
	f := l.find(pos)
	s.mu.RUnlock()
	if f == nil {
		var err error
		if f, err = s.create(l, l.base(pos)); err != nil {
			return nil, err
		}
	}
	if !f.full {
		// A file of a Java node is sparse: a full disk must show here and not in Flush.
		if err := f.Allocate(0, l.size); err != nil {
			return nil, s.noSpace(l.size, fmt.Errorf("allocate %s: %w", f.name, err))
		}
		f.full = true
	}
	return f, nil
}

// noSpace turns a full disk into ErrDiskFull and remembers how much was missing; any other err is final.
func (s *Store) noSpace(n int64, err error) error {
	if !isFull(err) {
		return s.fail(err)
	}
	s.needed.Store(n)
	return fmt.Errorf("%w: %w", ErrDiskFull, err)
}

// create makes the file at off, durably, and adds it to the list, unless it is there.
func (s *Store) create(l *files, off int64) (*file, error) {
	s.createMu.Lock()
	defer s.createMu.Unlock()
	return s.createLocked(l, off)
}

func (s *Store) createLocked(l *files, off int64) (*file, error) {
	if e := s.failure.Load(); e != nil { // the file before this one may not be there
		return nil, *e
	}
	s.mu.RLock()
	f := l.find(off)
	s.mu.RUnlock()
	if f != nil {
		return f, nil
	}
	dir := s.pick(l, off)
	name := filepath.Join(dir, fileName(off))
	vf, err := s.fs.Create(name, l.size)
	if err != nil {
		return nil, s.noSpace(l.size, fmt.Errorf("create %s: %w", name, err))
	}
	if err := s.fs.SyncDir(dir); err != nil {
		err = errors.Join(fmt.Errorf("sync directory %s: %w", dir, err), vf.Close())
		if !isFull(err) { // the next start finds an empty file behind the end, or none
			return nil, s.fail(err)
		}
		if bad := s.fs.Remove(name); bad != nil { // it was not even opened, and the next try makes it again
			return nil, s.fail(errors.Join(err, bad))
		}
		return nil, s.noSpace(l.size, err)
	}
	s.needed.Store(0)
	s.refused.Store(false)
	f = newFile(vf, name, off, l.size)
	f.full = true
	s.mu.Lock()
	l.list = append(l.list, f)
	s.mu.Unlock()
	return f, nil
}

func newFile(vf vfs.File, name string, off, size int64) *file {
	f := &file{File: vf, off: off, name: name, size: size, ahead: newAhead()}
	f.refs.Store(1)
	return f
}

// pick chooses the directory of a new file: file number k goes to the k mod n-th of the directories that have space left
// (MultiPathMmapFileList in the Java original), or of all if none has.
func (s *Store) pick(l *files, off int64) string {
	if len(l.dirs) == 1 {
		return l.dirs[0]
	}
	var roomy []string
	for _, d := range l.dirs {
		if sp, err := s.fs.Space(d); err == nil && sp.Used() <= s.cfg.Retention.ForceRatio {
			roomy = append(roomy, d)
		}
	}
	if len(roomy) == 0 {
		roomy = l.dirs
	}
	return roomy[off/l.size%int64(len(roomy))]
}

// prepare makes the file at off in the background, so that reaching it costs nothing. Owner only.
func (s *Store) prepare(l *files, off int64) {
	if s.cfg.Inline || l.next.Swap(off) == off {
		return
	}
	s.background.Go(func() {
		s.createMu.Lock()
		defer s.createMu.Unlock()
		s.mu.RLock()
		n := len(l.list)
		follows := n > 0 && l.list[n-1].off+l.size == off // else the owner was faster, and the file may even have expired since
		s.mu.RUnlock()
		if l.next.Load() != off || !follows || s.failure.Load() != nil {
			return
		}
		if _, err := s.createLocked(l, off); err != nil {
			s.log.Warn("next file not prepared; free some space", "position", off, "error", err)
		}
	})
}

// dropFrom removes the files that begin at pos or later, newest first, and gives the directories that have to be synced.
// The caller holds createMu, and ioMu unless the files are empty.
func (s *Store) dropFrom(l *files, pos int64) (dirs []string, err error) {
	l.next.Store(-1)
	s.mu.Lock()
	gone := s.detach(l, sort.Search(len(l.list), func(i int) bool { return l.list[i].off >= pos }), len(l.list))
	s.mu.Unlock()
	slices.Reverse(gone)
	return s.unlink(gone)
}

// dropBefore takes the files that end at pos or earlier out of the list and gives them, oldest first, for unlink. The caller holds createMu.
func (s *Store) dropBefore(l *files, pos int64) []*file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.detach(l, 0, sort.Search(len(l.list), func(i int) bool { return l.list[i].off+l.size > pos }))
}

// detach takes files [lo, hi) out of a list, also for Sync, and gives them. The caller holds mu.
func (s *Store) detach(l *files, lo, hi int) []*file {
	gone := slices.Clone(l.list[lo:hi])
	l.list = slices.Delete(l.list, lo, hi)
	s.dirty = without(s.dirty, gone)
	s.dirtyIdx = without(s.dirtyIdx, gone)
	return gone
}

// unlink removes files that are no longer in a list, and gives their directories, each once. What lies in a read-only path stays there; the next start leaves it out
// again.
func (s *Store) unlink(gone []*file) (dirs []string, err error) {
	var errs []error
	var left []string
	for _, f := range gone {
		if f.readOnly {
			left = append(left, f.name)
			s.done(f)
			continue
		}
		if err := s.fs.Remove(f.name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		if d := filepath.Dir(f.name); !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
		s.done(f)
	}
	if len(left) > 0 {
		s.log.Info("files of read-only paths are not part of the log; they stay where they are", "files", len(left), "first", left[0])
	}
	return dirs, errors.Join(errs...)
}

// erasable tells whether all of the data files from pos on may be written to and removed.
func (s *Store) erasable(pos int64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, f := range s.data.list {
		if f.readOnly && f.off+s.data.size > pos {
			return fmt.Errorf("%s holds the end of the log, or what has to be erased behind it, but lies in a read-only path; start with the path as one that is written to", f.name)
		}
	}
	return nil
}

// empty tells whether every byte of a file is 0, as of one that was made ahead. What the disk does not give back is not known to be 0.
func (f *file) empty() (bool, error) {
	src := source{size: f.size, files: []sourceFile{{off: f.off, name: f.name, f: f.File}}}
	zeros, err := src.zerosFrom(f.off)
	if unreadable(err) {
		return false, nil
	}
	return zeros, err
}

// untwin gives a sorted list without the files whose position another file has as well, and those. A file that was made ahead in a path that is read-only now has
// such a twin, which holds the entries: what is empty gives way, and else what is read-only. Two files that both may be right are an error.
func untwin(list []*file) (kept, twins []*file, err error) {
	for _, f := range list {
		if len(kept) == 0 || kept[len(kept)-1].off != f.off {
			kept = append(kept, f)
			continue
		}
		o := kept[len(kept)-1]
		oEmpty, err := o.empty()
		if err != nil {
			return nil, nil, err
		}
		fEmpty, err := f.empty()
		switch {
		case err != nil:
			return nil, nil, err
		case oEmpty && !fEmpty, oEmpty == fEmpty && o.readOnly && !f.readOnly:
			kept[len(kept)-1], twins = f, append(twins, o)
		case fEmpty, f.readOnly && !o.readOnly:
			twins = append(twins, f)
		default:
			return nil, nil, fmt.Errorf("%s and %s are the same file", o.name, f.name)
		}
	}
	return kept, twins, nil
}

// without gives list less what is gone, in new memory: a sync may be at work on the old.
func without(list, gone []*file) []*file {
	if len(gone) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(f *file) bool { return slices.Contains(gone, f) })
}

// syncDirs syncs each directory.
func (s *Store) syncDirs(dirs []string) error {
	for _, d := range dirs {
		if err := s.fs.SyncDir(d); err != nil {
			return fmt.Errorf("sync directory %s: %w", d, err)
		}
	}
	return nil
}

// found is a file as a directory lists it.
type found struct {
	off      int64
	name     string
	size     int64
	readOnly bool
}

// listFiles gives the files of directories whose names are positions, sorted, and the names of the others. A position may be there more than once.
func listFiles(fs vfs.FS, dirs, readOnlyDirs []string) (list []found, strange []string, err error) {
	seen := map[string]bool{}
	for i, d := range slices.Concat(dirs, readOnlyDirs) {
		names, err := fs.ReadDir(d)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list %s: %w", d, err)
		}
		for _, n := range names {
			full := filepath.Join(d, n)
			if seen[full] {
				continue
			}
			seen[full] = true
			off, err := strconv.ParseInt(n, 10, 64)
			if err != nil || off < 0 || len(n) != 20 {
				strange = append(strange, full)
				continue
			}
			info, err := fs.Stat(full)
			if err != nil {
				return nil, nil, fmt.Errorf("list %s: %w", d, err)
			}
			list = append(list, found{off: off, name: full, size: info.Size, readOnly: i >= len(dirs) || slices.Contains(readOnlyDirs, d)})
		}
	}
	slices.SortStableFunc(list, func(a, b found) int { return cmp.Compare(a.off, b.off) })
	return list, strange, nil
}
