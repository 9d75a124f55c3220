package msgstore

import (
	"container/list"
	"errors"
	"fmt"
	"os"

	"dledger/internal/vfs"
)

// descriptorsMax bounds the open files of queues: there may be many thousand queues.
const descriptorsMax = 256

// ioLock is a mutex that is held over I/O. It is made of a channel so that on virtual time (testing/synctest) those who wait for it count as waiting.
type ioLock chan struct{}

func newIOLock() ioLock  { return make(ioLock, 1) }
func (l ioLock) Lock()   { l <- struct{}{} }
func (l ioLock) Unlock() { <-l }

// descriptors keeps the files that were used last open, and the others closed.
//
//  1. a file in use is not closed, however many there are;
//  2. names of files are not used for other files, other than by remove.
type descriptors struct {
	fs   vfs.FS
	lock ioLock // held while a file is opened or removed; guards all below
	open map[string]*descriptor
	idle list.List // of *descriptor, the one used last in front
}

type descriptor struct {
	vfs.File
	name string
	uses int
	gone bool // to be closed with the last use
	at   *list.Element
}

func newDescriptors(fs vfs.FS) *descriptors {
	return &descriptors{fs: fs, lock: newIOLock(), open: map[string]*descriptor{}}
}

// use gives the file, open; done must follow. With size above 0 the file is made, empty but of that size, if it is missing.
func (d *descriptors) use(name string, size int64) (*descriptor, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if f := d.open[name]; f != nil {
		if f.at != nil {
			d.idle.Remove(f.at)
			f.at = nil
		}
		f.uses++
		return f, nil
	}
	flag := os.O_RDWR
	if size > 0 {
		flag |= os.O_CREATE
	}
	file, err := d.fs.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	if size > 0 {
		has, err := file.Size()
		if err == nil && has != size {
			err = file.Truncate(size) // sparse: it costs what is written
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make %s: %w", name, err), file.Close())
		}
	}
	f := &descriptor{File: file, name: name, uses: 1}
	d.open[name] = f
	return f, d.trim()
}

func (d *descriptors) done(f *descriptor) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	f.uses--
	if f.uses > 0 {
		return nil
	}
	if f.gone {
		return f.Close()
	}
	f.at = d.idle.PushFront(f)
	return d.trim()
}

// trim closes what was not used for longest.
func (d *descriptors) trim() error {
	var errs []error
	for d.idle.Len() > 0 && len(d.open) > descriptorsMax {
		f := d.idle.Remove(d.idle.Back()).(*descriptor)
		delete(d.open, f.name)
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// remove deletes the file; who uses it may go on.
func (d *descriptors) remove(name string) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	var err error
	if f := d.open[name]; f != nil {
		delete(d.open, name)
		if f.uses > 0 {
			f.gone = true
		} else {
			d.idle.Remove(f.at)
			err = f.Close()
		}
	}
	if e := d.fs.Remove(name); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// sync makes a file durable.
func (d *descriptors) sync(name string) error {
	f, err := d.use(name, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed since
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Datasync(), d.done(f))
}

// close closes all files; nobody uses one any more.
func (d *descriptors) close() error {
	d.lock.Lock()
	defer d.lock.Unlock()
	var errs []error
	for name, f := range d.open {
		delete(d.open, name)
		errs = append(errs, f.Close())
	}
	d.idle.Init()
	return errors.Join(errs...)
}
