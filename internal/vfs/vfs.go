// Package vfs is the file seam: everything the store does to a disk goes through FS and File. It owns no format and no policy.
// OS is the operating system; Mem is a disk in memory that can crash, fail, fill up and flip bits. Both are held to one
// contract test. Start at FS.
//
// What is durable when. WriteAt, WriteVec, Zero, Allocate and Truncate reach the page cache; Datasync or Sync of the file makes
// its bytes and its size durable. OpenFile with O_CREATE, Create, Rename and Remove change a directory; SyncDir of that directory makes the change
// durable. MkdirAll and Replace are durable when they return. After a crash each unsynced piece may be there or not, whole or torn,
// independently of every other.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// FS is a file system. Names are paths; errors wrap os.ErrNotExist, os.ErrExist, syscall.ENOSPC, syscall.EIO where those are the
// cause. All methods may be called from any goroutine.
type FS interface {
	// OpenFile opens name with the flags of package os: O_RDONLY or O_RDWR, with O_CREATE, O_EXCL, O_TRUNC.
	OpenFile(name string, flag int) (File, error)
	// Create makes the file name, which must not exist, with size zero bytes whose space is allocated. The name appears only
	// when the file has its full size; a failed Create leaves nothing behind.
	Create(name string, size int64) (File, error)
	Remove(name string) error
	// Rename replaces newName if it exists. It works for directories too.
	Rename(oldName, newName string) error
	// MkdirAll makes the directory and its missing parents, durably.
	MkdirAll(dir string) error
	// ReadDir gives the names in dir, sorted. A missing directory is os.ErrNotExist.
	ReadDir(dir string) ([]string, error)
	Stat(name string) (Info, error)
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
	// Space tells the size of the partition that holds path and what an unprivileged writer can still use of it.
	Space(path string) (Space, error)
	// Lock takes the directory for this holder until the result is closed; ErrLocked if another one has it. The
	// lock ends with the process.
	Lock(dir string) (io.Closer, error)
	// BootID names the run of the machine: what was written but not synced may be lost when it has changed.
	BootID() string
}

// File is an open file. Reads may run beside each other and beside writes; no method keeps a slice it is given.
type File interface {
	io.ReaderAt
	io.WriterAt
	// WriteVec writes the slices back to back from off on: one system call for up to a thousand of them.
	// It returns the bytes written and, if those are not all, why.
	WriteVec(bufs [][]byte, off int64) (int, error)
	// Allocate reserves space for [off, off+n), growing the file if needed; bytes that exist keep their value, new ones are 0.
	Allocate(off, n int64) error
	// Zero makes the bytes of [off, off+n) zeros, cheaply, and keeps their space; the range must lie within the file.
	Zero(off, n int64) error
	// Prewrite writes zeros to [off, off+n), which holds zeros already and lies within the file, beside the page cache: later writes there
	// find their blocks initialized, so that a Datasync after them has no metadata to write. Where the system
	// cannot do that it does nothing. off and n are multiples of PrewriteUnit.
	Prewrite(off, n int64) error
	Truncate(size int64) error
	// Datasync makes the written bytes and the size durable; Sync the other metadata too.
	Datasync() error
	Sync() error
	Size() (int64, error)
	// NextData gives the first range [lo, hi) from off on that may hold bytes other than 0; lo and hi are the file's size if there is none.
	// Files are created at full size and mostly empty: who looks for zeros need not read them all.
	NextData(off int64) (lo, hi int64, err error)
	Close() error
}

// Info is what Stat tells.
type Info struct {
	Size    int64
	ModTime time.Time
	Dir     bool
}

// Space is the size of a partition in bytes and the free part of it.
type Space struct{ Total, Free int64 }

// Used gives the used share, 0 to 1.
func (s Space) Used() float64 {
	if s.Total <= 0 {
		return 0
	}
	return 1 - float64(s.Free)/float64(s.Total)
}

// ErrLocked: another holder has the directory.
var ErrLocked = errors.New("directory is in use by another process")

// PrewriteUnit is what offset and length of a Prewrite are multiples of.
const PrewriteUnit = 4096

// LockName is the file that Lock creates in the directory.
const LockName = "LOCK"

// ReadFile gives the whole content of name.
func ReadFile(fs FS, name string) ([]byte, error) {
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil // the file was cut meanwhile
	}
	return b[:n], errors.Join(err, f.Close())
}

// Replace makes data the content of name, durably and at once: after a crash name has the old content or the new. It goes through
// name + ".tmp", which a crash may leave behind.
func Replace(fs FS, name string, data []byte) error {
	if err := WriteAside(fs, name, data, true); err != nil {
		return err
	}
	if err := fs.SyncDir(filepath.Dir(name)); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

// WriteAside writes data to name + ".tmp" and renames it to name. With sync the data is durable before the rename; the rename
// itself is left to SyncDir. Without, a crash may leave name empty or torn.
func WriteAside(fs FS, name string, data []byte, sync bool) error {
	return writeBy(fs, name+".tmp", os.O_RDWR|os.O_CREATE|os.O_TRUNC, name, data, sync)
}

// WriteSpare is WriteAside with sync, by way of the file spare instead, which is there and whose space is taken: if that is enough, no other is needed.
func WriteSpare(fs FS, spare, name string, data []byte) error {
	return writeBy(fs, spare, os.O_RDWR, name, data, true)
}

// writeBy writes data to the file via, opened with flag, and renames it to name.
func writeBy(fs FS, via string, flag int, name string, data []byte, sync bool) error {
	f, err := fs.OpenFile(via, flag)
	if err != nil {
		return fmt.Errorf("write %s: %w", via, err)
	}
	_, err = f.WriteAt(data, 0)
	if err == nil && flag&os.O_TRUNC == 0 {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", via, err)
	}
	return fs.Rename(via, name)
}
