package vfs

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// memFile is an open file of a Mem.
type memFile struct {
	m        *Mem
	n        *node
	name     string
	life     int
	readOnly bool
	closed   bool // guarded by m.mu
}

// begin runs the hook and takes the lock, which the caller gives back unless err is set.
func (f *memFile) begin(op string, off, n int64) error {
	if err := f.m.call(Call{Op: op, Name: f.name, Off: off, N: n}); err != nil {
		return &os.PathError{Op: op, Path: f.name, Err: err}
	}
	f.m.mu.Lock()
	var err error
	switch {
	case f.life != f.m.life:
		err = ErrCrashed
	case f.closed:
		err = os.ErrClosed
	case f.readOnly && op != "read" && op != "size" && op != "close":
		err = syscall.EBADF
	case off < 0 || n < 0:
		err = syscall.EINVAL
	default:
		return nil
	}
	f.m.mu.Unlock()
	return &os.PathError{Op: op, Path: f.name, Err: err}
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.begin("read", off, int64(len(p))); err != nil {
		return 0, err
	}
	defer f.m.mu.Unlock()
	if off >= f.n.size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	want := len(p)
	p = p[:min(int64(want), f.n.size-off)]
	for n := 0; n < len(p); {
		at := off + int64(n)
		part := p[n:min(len(p), n+int(pageSize-at%pageSize))]
		if pg := f.n.pages[at/pageSize]; pg != nil && pg.cur != nil {
			copy(part, pg.cur[at%pageSize:])
		} else {
			clear(part)
		}
		n += len(part)
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVec([][]byte{p}, off)
}

func (f *memFile) WriteVec(bufs [][]byte, off int64) (int, error) {
	size := 0
	for _, b := range bufs {
		size += len(b)
	}
	limit := size
	err := f.begin("write", off, int64(size))
	var short *ShortError
	if errors.As(err, &short) {
		limit = min(short.N, size)
		f.m.mu.Lock()
	} else if err != nil {
		return 0, err
	}
	defer f.m.mu.Unlock()
	written := 0
	for _, b := range bufs {
		b = b[:min(len(b), limit-written)]
		n, spaceErr := f.m.write(f.n, b, off+int64(written))
		written += n
		if spaceErr != nil {
			return written, &os.PathError{Op: "write", Path: f.name, Err: spaceErr}
		}
	}
	return written, err
}

func (f *memFile) Allocate(off, n int64) error {
	if err := f.begin("allocate", off, n); err != nil {
		return err
	}
	defer f.m.mu.Unlock()
	if end := off + n; end > f.n.reserved {
		// The bytes before off count as reserved too: a simplification that errs towards a full disk.
		more := end - f.n.reserved
		for i := range f.n.pages {
			if i*pageSize >= f.n.reserved && i*pageSize < end {
				more -= min(pageSize, end-i*pageSize)
			}
		}
		if f.m.capacity > 0 && f.m.used+more > f.m.capacity {
			return &os.PathError{Op: "allocate", Path: f.name, Err: syscall.ENOSPC}
		}
		f.n.reserved = end
		f.n.used += more
		f.m.used += more
	}
	f.n.size = max(f.n.size, off+n)
	return nil
}

func (f *memFile) Zero(off, n int64) error {
	if err := f.begin("zero", off, n); err != nil {
		return err
	}
	defer f.m.mu.Unlock()
	if off+n > f.n.size {
		return &os.PathError{Op: "zero", Path: f.name, Err: syscall.EINVAL}
	}
	f.n.clear(off, off+n)
	f.n.modTime = f.m.clock()
	return nil
}

// Prewrite erases what is there, so that a caller who is wrong about the zeros is found out. It takes no memory.
func (f *memFile) Prewrite(off, n int64) error {
	if off%PrewriteUnit != 0 || n%PrewriteUnit != 0 {
		return &os.PathError{Op: "prewrite", Path: f.name, Err: syscall.EINVAL}
	}
	if err := f.begin("prewrite", off, n); err != nil {
		return err
	}
	defer f.m.mu.Unlock()
	if off+n > f.n.size {
		return &os.PathError{Op: "prewrite", Path: f.name, Err: syscall.EINVAL}
	}
	f.n.clear(off, off+n)
	return nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.begin("truncate", 0, size); err != nil {
		return err
	}
	defer f.m.mu.Unlock()
	f.m.resize(f.n, size)
	return nil
}

func (f *memFile) Datasync() error { return f.sync("datasync") }
func (f *memFile) Sync() error     { return f.sync("sync") }

func (f *memFile) sync(op string) error {
	if err := f.begin(op, 0, 0); err != nil {
		return err
	}
	defer f.m.mu.Unlock()
	for _, i := range f.n.dirty {
		if p := f.n.pages[i]; p != nil {
			p.old, p.dirty = nil, 0
			if p.cur == nil {
				delete(f.n.pages, i)
			}
		}
	}
	f.n.dirty = f.n.dirty[:0]
	f.n.synced = f.n.size
	return nil
}

func (f *memFile) NextData(off int64) (lo, hi int64, err error) {
	if err := f.begin("read", off, 0); err != nil {
		return 0, 0, err
	}
	defer f.m.mu.Unlock()
	for at := off; at < f.n.size; at += pageSize - at%pageSize {
		if pg := f.n.pages[at/pageSize]; pg != nil && pg.cur != nil {
			return at, min(at+pageSize-at%pageSize, f.n.size), nil
		}
	}
	return f.n.size, f.n.size, nil
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.life != f.m.life {
		return 0, &os.PathError{Op: "size", Path: f.name, Err: ErrCrashed}
	}
	return f.n.size, nil
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return &os.PathError{Op: "close", Path: f.name, Err: os.ErrClosed}
	}
	f.closed = true
	return nil
}

// page gives page i, making an empty one where there is none.
func (n *node) page(i int64) *page {
	p := n.pages[i]
	if p == nil {
		p = &page{}
		n.pages[i] = p
	}
	return p
}

// touch notes that bytes [lo, hi) of page i are about to change, and keeps the page's synced content.
func (n *node) touch(i int64, p *page, lo, hi int64) {
	if p.dirty == 0 {
		n.dirty = append(n.dirty, i)
		if p.cur != nil {
			p.old = new([pageSize]byte)
			*p.old = *p.cur
		}
	}
	for b := lo / BlockSize; b <= (hi-1)/BlockSize; b++ {
		p.dirty |= 1 << b
	}
}

// write copies b to off; it stops where the disk is full. The caller holds mu.
func (m *Mem) write(n *node, b []byte, off int64) (written int, err error) {
	for written < len(b) {
		at := off + int64(written)
		i, in := at/pageSize, at%pageSize
		part := b[written:min(len(b), written+int(pageSize-in))]
		p := n.pages[i]
		if p == nil || p.cur == nil {
			if i*pageSize >= n.reserved {
				if m.capacity > 0 && m.used+pageSize > m.capacity {
					return written, syscall.ENOSPC
				}
				m.used += pageSize
				n.used += pageSize
			}
			p = n.page(i)
		}
		n.touch(i, p, in, in+int64(len(part)))
		if p.cur == nil {
			p.cur = new([pageSize]byte)
		}
		copy(p.cur[in:], part)
		written += len(part)
		n.size = max(n.size, at+int64(len(part)))
	}
	n.modTime = m.clock()
	return written, nil
}

// clear makes the bytes of [lo, hi) zeros where pages hold them; space stays taken.
func (n *node) clear(lo, hi int64) {
	for i, p := range n.pages {
		from, to := max(lo, i*pageSize), min(hi, (i+1)*pageSize)
		if from >= to || p.cur == nil {
			continue
		}
		from, to = from-i*pageSize, to-i*pageSize
		n.touch(i, p, from, to)
		clear(p.cur[from:to])
	}
}

// resize cuts or extends a file, sparsely. The caller holds mu.
func (m *Mem) resize(n *node, size int64) {
	if size < n.size {
		n.clear(size, n.size)
		for i, p := range n.pages {
			if i*pageSize >= size && p.cur != nil {
				p.cur = nil
				if i*pageSize >= n.reserved {
					n.used -= pageSize
					m.used -= pageSize
				}
			}
		}
		if over := n.reserved - size; over > 0 {
			n.reserved = size
			n.used -= over
			m.used -= over
		}
	}
	n.size = size
	n.modTime = m.clock()
}
