//go:build linux

package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// OS gives the file system of the operating system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o644)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f, fd: int(f.Fd())}, nil
}

// Create uses an unnamed file that is linked when it is complete. File systems without such files get it in two steps, with a
// moment in which the file exists at size 0.
func (fs osFS) Create(name string, size int64) (File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(filepath.Dir(name), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	})
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL {
		return fs.createNamed(name, size)
	}
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := &osFile{f: os.NewFile(uintptr(fd), name), fd: fd}
	if err := f.Allocate(0, size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return nil, errors.Join(&os.PathError{Op: "create", Path: name, Err: err}, f.Close())
	}
	return f, nil
}

func (fs osFS) createNamed(name string, size int64) (File, error) {
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	if err = f.Allocate(0, size); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(name))
	}
	return f, nil
}

func (osFS) Remove(name string) error             { return os.Remove(name) }
func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (fs osFS) MkdirAll(dir string) error {
	if fi, err := os.Stat(dir); err == nil {
		if !fi.IsDir() {
			return &os.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if err := fs.MkdirAll(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return fs.SyncDir(parent)
}

func (osFS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) Stat(name string) (Info, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return Info{Size: fi.Size(), ModTime: fi.ModTime(), Dir: fi.IsDir()}, nil
}

func (osFS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (osFS) Space(path string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return Space{Total: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}, nil
}

func (osFS) Lock(dir string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if err == unix.EWOULDBLOCK {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // unknown: differs from every stored one
	}
	return strings.TrimSpace(string(b))
})

func (osFS) BootID() string { return bootID() }

// osFile uses positioned calls only, so it has no state of its own.
type osFile struct {
	f  *os.File
	fd int

	directOnce sync.Once
	direct     *os.File // the same file beside the page cache, for Prewrite; nil if the file system has no such thing
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }

// iovMax is the kernel's limit of slices for one pwritev.
const iovMax = 1024

func (f *osFile) WriteVec(bufs [][]byte, off int64) (int, error) {
	total := 0
	for len(bufs) > 0 {
		part := bufs[:min(len(bufs), iovMax)]
		want := 0
		for _, b := range part {
			want += len(b)
		}
		n, err := retry(func() (int, error) { return unix.Pwritev(f.fd, part, off+int64(total)) })
		if err != nil {
			return total, f.error("write", err)
		}
		total += n
		bufs = bufs[len(part):]
		if n == want {
			continue
		}
		// A short write: the rest goes slice by slice, which ends with the error that cut it short or succeeds.
		for _, b := range part {
			if n >= len(b) {
				n -= len(b)
				continue
			}
			m, err := f.f.WriteAt(b[n:], off+int64(total))
			n = 0
			total += m
			if err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

func (f *osFile) Allocate(off, n int64) error {
	return f.fallocate(0, off, n)
}

// zeroDirect is the length up to which writing zeros is cheaper than changing extents.
const zeroDirect = 64 << 10

var zeros [zeroDirect]byte

func (f *osFile) Zero(off, n int64) error {
	if n <= 0 {
		return nil
	}
	if n > zeroDirect {
		err := f.fallocate(unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	for n > 0 {
		m, err := f.f.WriteAt(zeros[:min(n, zeroDirect)], off)
		if err != nil {
			return err
		}
		off += int64(m)
		n -= int64(m)
	}
	return nil
}

// directZeros is memory aligned as writes beside the page cache need it.
var directZeros = sync.OnceValue(func() []byte {
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	return b
})

func (f *osFile) Prewrite(off, n int64) error {
	if off%PrewriteUnit != 0 || n%PrewriteUnit != 0 {
		return f.error("prewrite", unix.EINVAL)
	}
	f.directOnce.Do(func() {
		// Not every file system knows O_DIRECT; without it there is nothing to do.
		if d, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(f.fd), os.O_WRONLY|unix.O_DIRECT, 0); err == nil {
			f.direct = d
		}
	})
	zeros := directZeros()
	if f.direct == nil || zeros == nil {
		return nil
	}
	for n > 0 {
		m, err := f.direct.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if errors.Is(err, unix.EINVAL) {
			return nil // this one wants another alignment
		}
		if err != nil {
			return err
		}
		off += int64(m)
		n -= int64(m)
	}
	return nil
}

// fallocate makes the file long enough even where the file system cannot reserve space; other modes fail there.
func (f *osFile) fallocate(mode uint32, off, n int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Fallocate(f.fd, mode, off, n) })
	if err == unix.EOPNOTSUPP && mode == 0 {
		return f.grow(off + n)
	}
	if err != nil {
		return f.error("fallocate", err)
	}
	return nil
}

// grow makes the file at least size bytes long, sparse: the best a file system without fallocate offers.
func (f *osFile) grow(size int64) error {
	if have, err := f.Size(); err != nil || have >= size {
		return err
	}
	return f.f.Truncate(size)
}

func (f *osFile) Truncate(size int64) error { return f.f.Truncate(size) }

func (f *osFile) Datasync() error {
	if _, err := retry(func() (int, error) { return 0, unix.Fdatasync(f.fd) }); err != nil {
		return f.error("fdatasync", err)
	}
	return nil
}

func (f *osFile) Sync() error { return f.f.Sync() }

// NextData moves the descriptor's own offset, which nothing here goes by.
func (f *osFile) NextData(off int64) (lo, hi int64, err error) {
	size, err := f.Size()
	if err != nil {
		return 0, 0, err
	}
	lo, err = unix.Seek(f.fd, off, unix.SEEK_DATA)
	if err == nil {
		hi, err = unix.Seek(f.fd, lo, unix.SEEK_HOLE)
	}
	switch {
	case err == unix.ENXIO:
		return size, size, nil
	case err == unix.EINVAL: // a file system that cannot tell
		return off, max(off, size), nil
	case err != nil:
		return 0, 0, f.error("seek", err)
	}
	return lo, hi, nil
}

func (f *osFile) Size() (int64, error) {
	fi, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f *osFile) Close() error {
	if f.direct != nil {
		return errors.Join(f.direct.Close(), f.f.Close())
	}
	return f.f.Close()
}

func (f *osFile) error(op string, err error) error {
	return &os.PathError{Op: op, Path: f.f.Name(), Err: err}
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
