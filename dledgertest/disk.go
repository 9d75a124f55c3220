package dledgertest

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"dledger/internal/vfs"
)

// Loss says what a power failure takes of what was written and not synced.
type Loss uint8

const (
	LoseSome    Loss = iota // a random part of it, some blocks torn in the middle
	LoseAll                 // all of it
	LoseNothing             // nothing: only the process died, the machine runs on
)

func (l Loss) keep(seed uint64) vfs.Keep {
	switch l {
	case LoseSome:
		return vfs.KeepRandom(seed)
	case LoseAll:
		return vfs.KeepNone
	case LoseNothing:
		return nil
	}
	panic(fmt.Sprintf("dledgertest: unknown Loss %d", l))
}

// Calls are kinds of calls to a disk.
type Calls uint8

const (
	Syncs    Calls = 1 << iota // of files
	DirSyncs                   // of directories
	Writes                     // and all else that changes files and directories, but for syncs
)

// callsOf gives the kind of a call; 0 is one that changes nothing.
func callsOf(op string) Calls {
	switch op {
	case "read", "open", "stat", "readdir", "mkdir": // a directory that is there already is no change
		return 0
	case "datasync", "sync":
		return Syncs
	case "syncdir":
		return DirSyncs
	}
	return Writes
}

// Disk is the disk of one member. It outlives the member's crashes; Wipe replaces it by an empty one.
type Disk struct {
	mem *vfs.Mem

	mu       sync.Mutex
	syncTime time.Duration
	dirTime  time.Duration // of a sync of a directory
	failSync error         // for the next sync; nil = none
	fail     error         // for everything that would change the disk; nil = nothing
	hangs    Calls         // what waits for hanging
	hanging  chan struct{} // closed when that goes on; nil = it does
}

func newDisk(syncTime time.Duration) *Disk {
	d := &Disk{mem: vfs.NewMem(), syncTime: syncTime}
	d.mem.SetHook(d.hook)
	return d
}

// hook sees every call of the member.
func (d *Disk) hook(c vfs.Call) error {
	kind := callsOf(c.Op)
	if kind == 0 {
		return nil
	}
	d.mu.Lock()
	err := d.fail
	var took time.Duration
	switch {
	case err != nil:
	case kind == Syncs:
		took = d.syncTime
		err, d.failSync = d.failSync, nil
	case kind == DirSyncs:
		took = d.dirTime
	}
	hanging := d.hanging
	if d.fail != nil || d.hangs&kind == 0 {
		hanging = nil
	}
	d.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
	if took > 0 {
		time.Sleep(took)
	}
	return err
}

// SetSyncTime makes every sync of a file take this long, and every one of a directory, which take no time before.
func (d *Disk) SetSyncTime(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncTime, d.dirTime = t, t
}

// FailSync makes the next sync of a file fail with an I/O error.
func (d *Disk) FailSync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failSync = syscall.EIO
}

// Fail makes every call that would change the disk fail with err from now on, as a disk does that has become read-only (EROFS) or is dead (EIO);
// what is on it can still be read. Fail(nil) ends that.
func (d *Disk) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

// Hang makes syncs of files that begin from now on wait until Resume, as a disk does that is about to die. Writes go to the page cache meanwhile.
func (d *Disk) Hang() { d.HangIn(Syncs) }

// HangIn makes all calls of these kinds that begin from now on wait until Resume. Writes wait where the page cache is full of what the disk does not take.
func (d *Disk) HangIn(calls Calls) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangs |= calls
	if d.hanging == nil {
		d.hanging = make(chan struct{})
	}
}

// Resume ends Hang and HangIn.
func (d *Disk) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hanging != nil {
		close(d.hanging)
		d.hanging, d.hangs = nil, 0
	}
}

// SetFree leaves room for this many bytes more; the disk grows to its usual size again with SetFree(-1).
func (d *Disk) SetFree(n int64) {
	if n < 0 {
		d.mem.SetCapacity(0)
		return
	}
	d.mem.SetCapacity(d.mem.Used() + n)
}

// SetUsed makes the disk say that this share of it is used, whatever it holds; a negative share ends that. Retention and the refusal of
// appends on a disk that is nearly full go by it.
func (d *Disk) SetUsed(share float64) {
	if share < 0 {
		d.mem.SetSpace(nil)
		return
	}
	const total = 1 << 40
	d.mem.SetSpace(&vfs.Space{Total: total, Free: int64((1 - share) * total)})
}

// Mem is a file system in memory that tells what is written and what is synced apart.
type Mem = vfs.Mem

// Mem gives the file system itself: to look at files, to damage them, to keep others beside the log.
func (d *Disk) Mem() *Mem { return d.mem }
