package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// damaged tells whether err comes of bits that have flipped on this member's disk.
func (n *node) damaged(err error) bool { return n.rotten && errors.As(err, new(*logstore.DamageError)) }

// wanting tells whether the member may lack, or not be able to read, what others count on it for.
func (n *node) wanting() bool {
	return n.behind || n.rotten || n.store != nil && n.store.State().TailLost >= 0
}

// rotMost bounds the bits that flip at once.
const rotMost = 4

// rot flips bits in the data or index files of one member. One good copy of each committed entry has to remain, and nobody keeps a list of who has which: so
// it is always the same member until everything there is known to be whole again, and all others have to be without damage. Until then its power stays, since a power
// cut may take the notes of the last syncs, and damage behind what is noted cannot be told from a torn end. In mode async the same holds of what no sync has covered, though
// only the process ends; so there damage comes while all others have synced everything that the member has.
func (w *world) rot(r *rand.Rand, n *node) string {
	name, end := w.perishable(r, n)
	if end == 0 {
		return ""
	}
	what := fmt.Sprintf("bits flip on the disk of %s, in %s:", n.id, name)
	at := r.Int64N(end)
	for range 1 + r.IntN(rotMost) {
		if err := n.disk.mem.Flip(name, at, 1<<r.IntN(8)); err != nil {
			return ""
		}
		what += fmt.Sprintf(" %d", at)
		at = (at + 1 + r.Int64N(100)) % end
	}
	n.rots(n.flushed.index)
	return what
}

// deaden makes a few neighbouring blocks of a data or index file of one member unreadable until they are rewritten, with the bounds of rot.
func (w *world) deaden(r *rand.Rand, n *node) string {
	name, end := w.perishable(r, n)
	if end == 0 {
		return ""
	}
	lo := r.Int64N(end) / vfs.BlockSize
	hi := lo + pick[int64](r, 1, 1, 1, 2, 8)
	for b := lo; b < hi; b++ {
		n.disk.bad[spot{name, b}] = true
	}
	n.disk.badBy = w.blow(badSector)
	n.rots(n.flushed.index)
	return fmt.Sprintf("blocks %d to %d of %s on the disk of %s are not read any more", lo, hi-1, name, n.id)
}

// rots notes that entries up to last may be damaged.
func (n *node) rots(last raft.Index) {
	n.rotten, n.passes, n.rotTo = true, 0, max(n.rotTo, last)
}

// perishable chooses a file of n in which something may be damaged, and tells where the bytes in it end; 0: nothing may be damaged now.
func (w *world) perishable(r *rand.Rand, n *node) (name string, end int64) {
	last := raft.Index(len(w.check.committed)) - 1
	for _, m := range w.nodes {
		if m != n && m.wanting() {
			return "", 0
		}
	}
	if last < 0 || !n.up && n.unpowered || n.disk.cutIn > 0 || n.disk.off || n.behind || n.flushed.index < 0 || !w.heldBeside(n, last) {
		return "", 0
	}
	if w.setup.async {
		w.syncAll() // else there is rarely such a moment
	}
	if w.setup.async && (n.flushed.index > last || slices.ContainsFunc(w.nodes, func(m *node) bool { return m != n && (!w.holds(m, n, last) || m.disk.cutIn > 0) })) {
		return "", 0
	}
	sub := pick(r, "data", "data", "index")
	names, err := n.disk.mem.ReadDir(dir + "/" + sub)
	if err != nil || len(names) == 0 {
		return "", 0 // its power is gone
	}
	name = dir + "/" + sub + "/" + names[r.IntN(len(names))]
	b, err := vfs.ReadFile(n.disk.mem, name)
	if err != nil {
		return "", 0
	}
	// Most of a file may be empty, so where the bytes are is looked for.
	return name, int64(len(bytes.TrimRight(b, "\x00")))
}

// syncAll lets the background sync of mode async come now, wherever it can.
func (w *world) syncAll() {
	for _, m := range w.nodes {
		if m.up && m.paused == 0 && w.now >= m.hangTill && !m.failing && !m.disk.excused() && m.disk.fail == "" && m.flushed != m.durable {
			if err := m.sync(); err != nil {
				w.violate("%s: a sync fails on a sound disk: %v", m.id, err)
			}
		}
	}
}

// heldBeside tells whether everything that is committed is on the disk of another member than n.
func (w *world) heldBeside(n *node, last raft.Index) bool {
	return slices.ContainsFunc(w.nodes, func(m *node) bool { return m != n && w.holds(m, n, last) })
}

// holds tells whether m has synced everything that n holds of what is committed.
func (w *world) holds(m, n *node, last raft.Index) bool {
	if m.store == nil || m.durable.index < last || m.store.State().First > n.store.State().First {
		return false
	}
	t, err := m.store.Term(last)
	return err == nil && t == w.check.committed[last].term
}

// unreadable does what package dledger does where an entry cannot be given to a follower: if it is not committed, the disk has failed.
func (n *node) unreadable(i raft.Index, err error) {
	if n.damaged(err) && i > n.loop.Commit() {
		n.loop.Fail(err)
		n.poke()
	}
}

// scrub looks for damage, a piece at a time.
func (n *node) scrub() {
	if n.passes >= 2 && !n.w.calm {
		return
	}
	size := int64(16 << 10)
	if n.w.calm {
		size = 1 << 20
	}
	_, done, err := n.store.Scrub(size)
	switch {
	case n.disk.off:
		n.afterCut()
		return
	case err != nil && !n.disk.excused() && !n.damaged(err):
		n.w.violate("%s: search for damage: %v", n.id, err)
		return
	case err != nil:
		n.w.say(n, "search for damage: %v", err)
	case done && !n.store.Hurt() && min(n.loop.Commit(), n.durable.index) >= min(n.rotTo, n.flushed.index):
		if n.passes++; n.passes >= 2 && n.rotten { // the first of them may have begun before the bits flipped
			n.w.say(n, "is whole again")
			n.rotten = false
		}
	}
	if n.store.Hurt() {
		n.mend()
	}
}

// mend fetches the first damaged entries from another member, as package dledger does.
func (n *node) mend() {
	w := n.w
	d := n.store.Damaged()[0]
	m := w.other(n.chance, n)
	if !m.up || w.link(n.id, m.id).cut || w.link(m.id, n.id).cut || m.loop.Commit() < d.First {
		return
	}
	p, _, err := m.store.Read(d.First, min(d.Last, m.loop.Commit())+1, w.setup.frame)
	if m.disk.off {
		m.afterCut()
		return
	}
	if err != nil {
		w.say(n, "gets nothing of entries %d to %d from %s: %v", d.First, d.Last, m.id, err)
		return
	}
	flat := slices.Concat(p...)
	n.after(1+raft.Instant(n.chance.Int64N(int64(w.setup.latency)*2)), func() {
		if n.paused > 0 || w.now < n.hangTill {
			return
		}
		last, err := n.store.Repair(raft.Payload{flat})
		switch {
		case n.disk.off:
			n.afterCut()
		case errors.Is(err, logstore.ErrFailed):
			n.loop.Fail(err)
			n.poke()
		case err == nil:
			w.say(n, "has repaired entries %d to %d with what %s has", d.First, last, m.id)
			w.repaired++
			if n.store.Hurt() {
				n.mend()
			}
		case !errors.Is(err, logstore.ErrOrder): // it was repaired, or cut, meanwhile
			w.violate("%s does not take what %s has of entries %d to %d: %v", n.id, m.id, d.First, d.Last, err)
		}
	})
}
