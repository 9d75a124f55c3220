package vfs

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// BlockSize is the unit of Mem that reaches the disk whole or torn, independently of its neighbours.
const BlockSize = 512

// What a Keep decides about besides a file's blocks.
const (
	MetaSize int64 = -1 - iota // the file's size
	MetaName                   // a creation, renaming or removal; the name is the new one, or the removed one
)

// Keep decides the fate of one unsynced piece at a crash: a block of a file (numbered from 0), MetaSize or MetaName. It gives the
// number of the block's first bytes that reached the disk; the rest keeps its last synced content. For MetaSize and MetaName
// every number but 0 means that the change reached the disk.
type Keep func(name string, block int64) int

// KeepNone loses whatever was not synced.
func KeepNone(string, int64) int { return 0 }

// KeepAll loses nothing, by luck.
func KeepAll(string, int64) int { return BlockSize }

// KeepRandom keeps a random part: two pieces of five are lost, two kept, one is torn. The choice depends on seed and piece alone.
func KeepRandom(seed uint64) Keep {
	return func(name string, block int64) int {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d/%s/%d", seed, name, block)
		x := h.Sum64()
		x ^= x >> 29
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 32
		switch x % 5 {
		case 0, 1:
			return 0
		case 2, 3:
			return BlockSize
		}
		return int(x/5%(BlockSize/8)) * 8
	}
}

// ErrCrashed: the file was opened before the last crash of its Mem.
var ErrCrashed = errors.New("the machine crashed")

// Call is one call to a Mem as its hook sees it.
type Call struct {
	Op string // open, create, remove, rename, mkdir, readdir, stat, syncdir, read, write, allocate, zero,
	// prewrite, truncate, datasync, sync
	Name    string
	NewName string // rename
	Off     int64  // read, write, allocate, zero, prewrite
	N       int64  // as Off; the new size of create and truncate
}

// String gives the call as one line of a trace: `write data/00 off=0 n=53`.
func (c Call) String() string {
	switch c.Op {
	case "read", "write", "allocate", "zero", "prewrite":
		return fmt.Sprintf("%s %s off=%d n=%d", c.Op, c.Name, c.Off, c.N)
	case "create", "truncate":
		return fmt.Sprintf("%s %s size=%d", c.Op, c.Name, c.N)
	case "rename":
		return fmt.Sprintf("rename %s %s", c.Name, c.NewName)
	}
	return c.Op + " " + c.Name
}

// Hook sees each call before it happens, on the caller's goroutine and without a lock: it may block to delay or hang the call, trace it, or
// Fork the disk. An error it returns fails the call, which then has no effect, but for a *ShortError.
type Hook func(Call) error

// ShortError, returned by a hook for a write, lets the first N bytes through and fails with Err.
type ShortError struct {
	N   int
	Err error
}

func (e *ShortError) Error() string { return fmt.Sprintf("short write of %d bytes: %v", e.N, e.Err) }
func (e *ShortError) Unwrap() error { return e.Err }

// FailNth gives a hook that fails the n-th call of kind op (from 1) with err, and no other.
func FailNth(op string, n int, err error) Hook {
	var mu sync.Mutex
	return func(c Call) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Op == op {
			if n--; n == 0 {
				return err
			}
		}
		return nil
	}
}

// Mem is a disk in memory. It is sparse: a file takes memory where it was written, in pages of 4 KiB.
//
//  1. now is what programs see; disk is what a crash that keeps nothing leaves of the names;
//  2. ops are the changes that lead from disk to now, oldest first;
//  3. a page that was written since its file's last sync holds its content of then in old.
type Mem struct {
	mu       sync.Mutex // guards all below, and the nodes
	now      map[string]*node
	disk     map[string]*node
	ops      []nameOp
	locks    map[string]*memLock
	boot     int // counts crashes
	life     int // counts crashes and kills; a handle of an older life is dead
	hook     Hook
	clock    func() time.Time
	capacity int64 // bytes; 0 = no limit
	used     int64 // bytes allocated to files that have a name
	space    *Space
}

type nameOp struct {
	name, oldName string // oldName is set for a rename
	node          *node  // nil for a removal
}

type node struct {
	dir          bool
	size, synced int64
	pages        map[int64]*page
	dirty        []int64 // numbers of the pages that have a dirty block
	reserved     int64   // bytes [0, reserved) are allocated even where no page is
	used         int64
	modTime      time.Time
}

const pageSize = 4096

// page is 4 KiB of a file; a nil content stands for zeros.
type page struct {
	cur, old *[pageSize]byte
	dirty    uint8 // one bit a block: differs, or may differ, from old
}

// NewMem gives an empty disk that knows the root and the current directory.
func NewMem() *Mem {
	m := &Mem{now: map[string]*node{}, disk: map[string]*node{}, locks: map[string]*memLock{}, clock: time.Now}
	for _, d := range []string{"/", "."} {
		n := &node{dir: true}
		m.now[d], m.disk[d] = n, n
	}
	return m
}

// SetHook makes h see every call from now on; nil ends that.
func (m *Mem) SetHook(h Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = h
}

// SetClock makes now the source of modification times.
func (m *Mem) SetClock(now func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock = now
}

// SetCapacity limits the disk to n bytes: what would take more fails with ENOSPC. 0 lifts the limit.
func (m *Mem) SetCapacity(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = n
}

// SetSpace makes Space answer s whatever is stored; nil ends that.
func (m *Mem) SetSpace(s *Space) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space = s
}

// Used gives the bytes allocated to files.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Flip inverts the bits of mask in the byte at off of name, on the disk and in the page cache.
func (m *Mem) Flip(name string, off int64, mask byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("flip", name)
	if err != nil {
		return err
	}
	if off < 0 || off >= n.size {
		return &os.PathError{Op: "flip", Path: name, Err: io.EOF}
	}
	p := n.page(off / pageSize)
	if p.cur == nil {
		p.cur = new([pageSize]byte)
	}
	p.cur[off%pageSize] ^= mask
	if p.old != nil {
		p.old[off%pageSize] ^= mask
	}
	return nil
}

// Crash takes the power away and gives it back: keep decides what of the unsynced survives. A nil keep ends only the process: nothing is lost, and
// nothing becomes durable by it. Either way open files are dead and locks are free.
func (m *Mem) Crash(keep Keep) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locks = map[string]*memLock{}
	m.life++
	if keep != nil {
		m.restart(m.survivors(keep))
	}
}

// restart makes names the whole content of the disk, as after a power cut.
func (m *Mem) restart(names map[string]*node) {
	m.now, m.disk, m.ops = names, maps.Clone(names), nil
	m.boot++
	m.used = 0
	for _, n := range names {
		m.used += n.used
	}
}

// Fork gives another disk as this one would be after a Crash now, with no hook; this one goes on.
func (m *Mem) Fork(keep Keep) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &Mem{locks: map[string]*memLock{}, boot: m.boot, clock: m.clock, capacity: m.capacity, space: m.space}
	if keep != nil {
		f.restart(m.survivors(keep))
		return f
	}
	// Nodes are shared between now, disk and ops, and have to be so in the copy.
	copies := map[*node]*node{}
	clone := func(n *node) *node {
		if n == nil {
			return nil
		}
		if copies[n] == nil {
			copies[n] = n.clone()
		}
		return copies[n]
	}
	f.now, f.disk, f.used = maps.Clone(m.now), maps.Clone(m.disk), m.used
	for _, names := range []map[string]*node{f.now, f.disk} {
		for name, n := range names {
			names[name] = clone(n)
		}
	}
	for _, op := range m.ops {
		f.ops = append(f.ops, nameOp{name: op.name, oldName: op.oldName, node: clone(op.node)})
	}
	return f
}

// clone copies a file with what of it is unsynced.
func (n *node) clone() *node {
	c := *n
	c.dirty = slices.Clone(n.dirty)
	c.pages = make(map[int64]*page, len(n.pages))
	for i, p := range n.pages {
		q := &page{dirty: p.dirty}
		if p.cur != nil {
			q.cur = new([pageSize]byte)
			*q.cur = *p.cur
		}
		if p.old != nil {
			q.old = new([pageSize]byte)
			*q.old = *p.old
		}
		c.pages[i] = q
	}
	return &c
}

// survivors gives the names and copies of the files that keep leaves. The caller holds mu.
func (m *Mem) survivors(keep Keep) map[string]*node {
	names := maps.Clone(m.disk)
	for _, op := range m.ops {
		if keep(op.name, MetaName) != 0 {
			op.apply(names)
		}
	}
	for name, n := range names {
		names[name] = n.survivor(name, keep)
	}
	return names
}

func (op nameOp) apply(names map[string]*node) {
	switch {
	case op.node == nil:
		delete(names, op.name)
	case op.oldName == "":
		names[op.name] = op.node
	default:
		moveTree(names, op.oldName, op.name, op.node)
	}
}

// moveTree renames a file, or a directory with what is in it.
func moveTree(names map[string]*node, oldName, newName string, n *node) {
	delete(names, oldName)
	names[newName] = n
	if !n.dir {
		return
	}
	for name, child := range maps.Clone(names) {
		if rest, ok := strings.CutPrefix(name, oldName+"/"); ok {
			delete(names, name)
			names[newName+"/"+rest] = child
		}
	}
}

func (n *node) survivor(name string, keep Keep) *node {
	s := &node{dir: n.dir, size: n.size, reserved: n.reserved, used: n.used, modTime: n.modTime}
	if n.size != n.synced && keep(name, MetaSize) == 0 {
		s.size = n.synced
	}
	s.synced = s.size
	s.pages = make(map[int64]*page, len(n.pages))
	for i, p := range n.pages {
		if c := p.survivor(name, i, keep); c != nil {
			s.pages[i] = &page{cur: c}
		}
	}
	s.clear(s.size, s.size+pageSize) // what lies behind the end within its page
	for i := range s.pages {
		if i*pageSize >= s.size {
			delete(s.pages, i)
		}
	}
	s.dirty = nil
	for _, p := range s.pages {
		p.old, p.dirty = nil, 0
	}
	return s
}

func (p *page) survivor(name string, number int64, keep Keep) *[pageSize]byte {
	var c *[pageSize]byte
	if p.cur != nil {
		c = new([pageSize]byte)
		*c = *p.cur
	}
	for d := p.dirty; d != 0; d &= d - 1 {
		b := bits.TrailingZeros8(d)
		kept := min(keep(name, number*(pageSize/BlockSize)+int64(b)), BlockSize)
		if kept == BlockSize {
			continue
		}
		if c == nil {
			c = new([pageSize]byte)
		}
		lost := c[b*BlockSize+kept : (b+1)*BlockSize]
		if p.old == nil {
			clear(lost)
		} else {
			copy(lost, p.old[b*BlockSize+kept:])
		}
	}
	return c
}

// call runs the hook.
func (m *Mem) call(c Call) error {
	m.mu.Lock()
	h := m.hook
	m.mu.Unlock()
	if h == nil {
		return nil
	}
	return h(c)
}

// find gives the node of a name. The caller holds mu.
func (m *Mem) find(op, name string) (*node, error) {
	if n := m.now[filepath.Clean(name)]; n != nil {
		return n, nil
	}
	return nil, &os.PathError{Op: op, Path: name, Err: os.ErrNotExist}
}

func (m *Mem) OpenFile(name string, flag int) (File, error) {
	if err := m.call(Call{Op: "open", Name: name}); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("open", name)
	switch {
	case err != nil && flag&os.O_CREATE == 0:
		return nil, err
	case err != nil:
		if n, err = m.link(name); err != nil {
			return nil, err
		}
	case flag&os.O_EXCL != 0:
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrExist}
	case n.dir:
		return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	if flag&os.O_TRUNC != 0 {
		m.resize(n, 0)
	}
	return &memFile{m: m, n: n, name: name, life: m.life, readOnly: flag&(os.O_WRONLY|os.O_RDWR) == 0}, nil
}

// link gives name a new empty file. The caller holds mu.
func (m *Mem) link(name string) (*node, error) {
	clean := filepath.Clean(name)
	if _, err := m.find("open", filepath.Dir(clean)); err != nil {
		return nil, err
	}
	n := &node{pages: map[int64]*page{}, modTime: m.clock()}
	m.change(nameOp{name: clean, node: n})
	return n, nil
}

// change does op now and notes it as unsynced. The caller holds mu.
func (m *Mem) change(op nameOp) {
	if old := m.now[op.name]; old != nil {
		m.used -= old.used
	}
	op.apply(m.now)
	m.ops = append(m.ops, op)
}

func (m *Mem) Create(name string, size int64) (File, error) {
	if err := m.call(Call{Op: "create", Name: name, N: size}); err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find("create", name); err == nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: os.ErrExist}
	}
	if m.capacity > 0 && m.used+size > m.capacity {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	n, err := m.link(name)
	if err != nil {
		return nil, err
	}
	n.size, n.synced, n.reserved, n.used = size, size, size, size
	m.used += size
	return &memFile{m: m, n: n, name: name, life: m.life}, nil
}

func (m *Mem) Remove(name string) error {
	if err := m.call(Call{Op: "remove", Name: name}); err != nil {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("remove", name)
	if err != nil {
		return err
	}
	clean := filepath.Clean(name)
	if n.dir && len(m.children(clean)) > 0 {
		return &os.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	m.change(nameOp{name: clean})
	return nil
}

func (m *Mem) Rename(oldName, newName string) error {
	if err := m.call(Call{Op: "rename", Name: oldName, NewName: newName}); err != nil {
		return &os.PathError{Op: "rename", Path: newName, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("rename", oldName)
	if err != nil {
		return err
	}
	if _, err := m.find("rename", filepath.Dir(newName)); err != nil {
		return err
	}
	m.change(nameOp{name: filepath.Clean(newName), oldName: filepath.Clean(oldName), node: n})
	return nil
}

func (m *Mem) MkdirAll(dir string) error {
	if err := m.call(Call{Op: "mkdir", Name: dir}); err != nil {
		return &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if n := m.now[d]; n != nil {
			if !n.dir {
				return &os.PathError{Op: "mkdir", Path: d, Err: syscall.ENOTDIR}
			}
			return nil
		}
		n := &node{dir: true, modTime: m.clock()}
		m.now[d], m.disk[d] = n, n
	}
}

// children gives the names in a directory. The caller holds mu.
func (m *Mem) children(dir string) (names []string) {
	for name := range m.now {
		if name != dir && filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names
}

func (m *Mem) ReadDir(dir string) ([]string, error) {
	if err := m.call(Call{Op: "readdir", Name: dir}); err != nil {
		return nil, &os.PathError{Op: "readdir", Path: dir, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("readdir", dir)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, &os.PathError{Op: "readdir", Path: dir, Err: syscall.ENOTDIR}
	}
	return m.children(filepath.Clean(dir)), nil
}

func (m *Mem) Stat(name string) (Info, error) {
	if err := m.call(Call{Op: "stat", Name: name}); err != nil {
		return Info{}, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("stat", name)
	if err != nil {
		return Info{}, err
	}
	return Info{Size: n.size, ModTime: n.modTime, Dir: n.dir}, nil
}

func (m *Mem) SyncDir(dir string) error {
	if err := m.call(Call{Op: "syncdir", Name: dir}); err != nil {
		return &os.PathError{Op: "syncdir", Path: dir, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find("syncdir", dir); err != nil {
		return err
	}
	clean := filepath.Clean(dir)
	rest := m.ops[:0]
	for _, op := range m.ops {
		if filepath.Dir(op.name) == clean || op.oldName != "" && filepath.Dir(op.oldName) == clean {
			op.apply(m.disk)
		} else {
			rest = append(rest, op)
		}
	}
	clear(m.ops[len(rest):])
	m.ops = rest
	return nil
}

func (m *Mem) Space(path string) (Space, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find("statfs", path); err != nil {
		return Space{}, err
	}
	switch {
	case m.space != nil:
		return *m.space, nil
	case m.capacity > 0:
		return Space{Total: m.capacity, Free: max(m.capacity-m.used, 0)}, nil
	}
	const vast = 1 << 50
	return Space{Total: vast, Free: vast - m.used}, nil
}

type memLock struct {
	m   *Mem
	dir string
}

func (m *Mem) Lock(dir string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.find("lock", dir); err != nil {
		return nil, err
	}
	clean := filepath.Clean(dir)
	if m.locks[clean] != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, ErrLocked)
	}
	name := filepath.Join(clean, LockName)
	if m.now[name] == nil {
		if _, err := m.link(name); err != nil {
			return nil, err
		}
	}
	l := &memLock{m: m, dir: clean}
	m.locks[clean] = l
	return l, nil
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.locks[l.dir] == l {
		delete(l.m.locks, l.dir)
	}
	return nil
}

func (m *Mem) BootID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("mem-boot-%d", m.boot)
}
