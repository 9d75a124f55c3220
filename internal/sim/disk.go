package sim

import (
	"errors"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"

	"dledger/internal/vfs"
)

// errPower: the member's power is gone; what it still does in this turn happens to nobody.
var errPower = errors.New("power cut")

// disk is a member's disk and what is wrong with it.
type disk struct {
	mem    *vfs.Mem
	chance *rand.Rand // of the member; for where a write is torn
	off    bool       // the power is gone since some call
	cutIn  int        // the power goes with the call of this number from now on; 0 = it stays
	fail   string     // the next call of this kind fails with EIO; "" = none
	failed bool       // a call failed with EIO in this life
	full   bool       // there is little room
	looks  bool       // it says that much of it is used
	syncs  int        // syncs since the count was last taken

	bad map[spot]bool // blocks that are not read until they are rewritten

	// What is to be counted when what is above strikes.
	cutBy, failBy, fullBy, badBy *blow
}

func newDisk(chance *rand.Rand) *disk {
	d := &disk{mem: vfs.NewMem(), chance: chance, bad: map[spot]bool{}}
	d.mem.SetHook(d.hook)
	return d
}

// hook sees every call of the member to its disk.
func (d *disk) hook(c vfs.Call) error {
	if d.off {
		return errPower
	}
	if d.cutIn > 0 {
		if d.cutIn--; d.cutIn == 0 {
			d.off = true
			d.cutBy.falls()
			if c.Op == "write" {
				return &vfs.ShortError{N: d.chance.IntN(int(c.N) + 1), Err: errPower}
			}
			return errPower
		}
	}
	if len(d.bad) > 0 && d.sick(c) {
		d.badBy.falls()
		return syscall.EIO
	}
	if c.Op == d.fail {
		d.fail, d.failed = "", true
		d.failBy.falls()
		if c.Op == "write" {
			return &vfs.ShortError{N: d.chance.IntN(int(c.N) + 1), Err: syscall.EIO}
		}
		return syscall.EIO
	}
	if c.Op == "datasync" || c.Op == "sync" || c.Op == "syncdir" {
		d.syncs++
	}
	return nil
}

// sick tells whether a call touches a block that cannot be read, and fails: a read, or a write of a part of it, since the rest has to be read then. What writes the
// whole of it makes it well.
func (d *disk) sick(c vfs.Call) bool {
	well := func(s spot) bool {
		end := (s.block + 1) * vfs.BlockSize
		if info, err := d.mem.Stat(s.name); err == nil {
			end = min(end, info.Size)
		}
		return c.Off <= s.block*vfs.BlockSize && c.Off+c.N >= end
	}
	switch c.Op {
	case "create", "remove":
		maps.DeleteFunc(d.bad, func(s spot, _ bool) bool { return s.name == c.Name })
	case "read", "write", "zero", "prewrite":
		var hit []spot
		for b := c.Off / vfs.BlockSize; b*vfs.BlockSize < c.Off+c.N; b++ {
			if s := (spot{c.Name, b}); d.bad[s] {
				hit = append(hit, s)
			}
		}
		if len(hit) > 0 && c.Op == "read" {
			return true
		}
		if slices.ContainsFunc(hit, func(s spot) bool { return !well(s) }) {
			d.failed = true
			return true
		}
		for _, s := range hit {
			delete(d.bad, s)
		}
	}
	return false
}

// excused tells whether the disk may be the reason for a failure.
func (d *disk) excused() bool { return d.off || d.failed || d.full || d.cutIn > 0 }

// limit leaves room for n bytes more; a negative n ends that.
func (d *disk) limit(n int64) {
	if d.full = n >= 0; d.full {
		d.mem.SetCapacity(d.mem.Used() + n)
		return
	}
	d.mem.SetCapacity(0)
}

// looksUsed makes the disk say that this share of it is used; a negative share ends that.
func (d *disk) looksUsed(share float64) {
	if d.looks = share >= 0; !d.looks {
		d.mem.SetSpace(nil)
		return
	}
	const total = 1 << 40
	d.mem.SetSpace(&vfs.Space{Total: total, Free: int64((1 - share) * total)})
}

// keep draws what a power cut leaves of what was not synced: nothing, all, or a part of which some blocks are torn.
func keep(r *rand.Rand) (vfs.Keep, string) {
	switch r.IntN(5) {
	case 0:
		return vfs.KeepNone, "nothing"
	case 1:
		return vfs.KeepAll, "all"
	case 2:
		share := uint64(r.IntN(100))
		salt := r.Uint64()
		return func(name string, block int64) int {
			if mix(salt, name, block)%100 < share {
				return vfs.BlockSize
			}
			return 0
		}, "whole blocks"
	}
	return vfs.KeepRandom(r.Uint64()), "parts of blocks"
}

// mix is a hash that is the same in every process.
func mix(salt uint64, name string, block int64) uint64 {
	h := salt ^ uint64(block)*0x9e3779b97f4a7c15
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return h ^ h>>32
}

var sumSeed = maphash.MakeSeed()

// sum stands for the bytes of an entry, within this process.
func sum(b []byte) uint64 { return maphash.Bytes(sumSeed, b) }
