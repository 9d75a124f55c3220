package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// misdirectMost is how long a member is watched for a block that is not synced yet.
const misdirectMost = 300 * ms

// misdirect takes a member's power a moment from now, and one block of its data files that was not synced lands at another place of its file then: on
// entries that were synced long ago, or behind the end of the log. What it lands on is damage like that of rot, with the same bounds. The checkpoint made first bounds
// it further: what lies behind the last note of a sync cannot be told from a torn end.
func (w *world) misdirect(r *rand.Rand, n *node) string {
	wait := raft.Instant(between(r, time.Millisecond, 60*time.Millisecond))
	kept, what := keep(r)
	choice, down := r.Uint64(), span(r)
	if !w.mayMisdirect(n) {
		return ""
	}
	noted := n.flushed
	_, err := n.store.Sync()
	if err == nil {
		err = n.store.Checkpoint()
	}
	switch {
	case n.disk.off:
		n.afterCut()
		return ""
	case err != nil:
		return "" // its disk fails; the loop learns it with its next sync
	}
	n.durable = noted
	until := w.now + wait + misdirectMost
	var wrong func()
	wrong = func() {
		if t, err := n.store.Term(noted.index); w.calm || !w.mayMisdirect(n) || n.flushed.index < noted.index || err != nil || t != noted.term {
			return
		}
		switch done := n.powerGoes(noted.index, kept, choice); {
		case done:
			n.startIn(down)
		case w.now < until:
			n.after(ms, wrong)
		}
	}
	n.after(wait, wrong)
	return fmt.Sprintf("power of %s goes in %v and misdirects a block; of what was not synced stays: %s", n.id, time.Duration(wait), what)
}

// mayMisdirect tells whether a good copy of each committed entry is on members that are well.
func (w *world) mayMisdirect(n *node) bool {
	last := raft.Index(len(w.check.committed)) - 1
	if last < 0 || !n.up || n.failing || n.disk.excused() || n.disk.fail != "" || n.wanting() || n.flushed.index < 0 || !w.heldBeside(n, last) {
		return false
	}
	return !slices.ContainsFunc(w.nodes, func(m *node) bool { return m != n && m.wanting() })
}

// spot is a block of a file.
type spot struct {
	name  string
	block int64
}

// powerGoes cuts the power and lets one block land elsewhere; entries up to noted may be hit. False: there is no such block now.
func (n *node) powerGoes(noted raft.Index, kept vfs.Keep, choice uint64) bool {
	if n.flushed == n.durable {
		return false
	}
	from, to, content, err := n.astray(noted, choice)
	if err != nil {
		n.w.violate("%s: what a crash would misdirect cannot be told: %v", n.id, err)
		return true
	}
	if from == to {
		return false
	}
	n.down(func(name string, block int64) int {
		if (spot{name, block}) == from {
			return 0
		}
		return kept(name, block)
	})
	hit, err := n.land(to, content)
	if err != nil {
		n.w.say(n, "the file that a block was to land in is gone: %v", err)
		return true
	}
	n.w.say(n, "block %d of %s has landed at block %d; bytes changed: %d", from.block, from.name, to.block, hit)
	if hit > 0 {
		n.w.struck[misdirected]++
		n.rots(noted)
	}
	return true
}

// astray chooses a block that was not synced, and where it lands; from == to: there is none.
func (n *node) astray(noted raft.Index, choice uint64) (from, to spot, content []byte, err error) {
	var dirty []spot
	n.disk.mem.Fork(func(name string, block int64) int {
		if block >= 0 && strings.HasPrefix(name, dir+"/data/") {
			dirty = append(dirty, spot{name, block})
		}
		return 0
	})
	if len(dirty) == 0 {
		return from, to, nil, nil
	}
	slices.SortFunc(dirty, func(a, b spot) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.block, b.block)) })
	from = dirty[choice%uint64(len(dirty))]
	base, err := strconv.ParseInt(path.Base(from.name), 10, 64)
	if err != nil {
		return from, to, nil, err
	}
	safe, size, err := n.store.Pos(noted)
	if err != nil {
		return from, to, nil, err
	}
	safe += int64(size)
	end, size, err := n.store.Pos(n.flushed.index)
	if err != nil {
		return from, to, nil, err
	}
	end += int64(size)
	var places []spot
	for b := range n.w.setup.dataSize / vfs.BlockSize {
		if at := base + b*vfs.BlockSize; b != from.block && (at+vfs.BlockSize <= safe || at >= end) {
			places = append(places, spot{from.name, b})
		}
	}
	if len(places) == 0 {
		return from, from, nil, nil
	}
	content, err = n.disk.block(from)
	return from, places[choice>>32%uint64(len(places))], content, err
}

// block reads a block.
func (d *disk) block(s spot) ([]byte, error) {
	f, err := d.mem.OpenFile(s.name, 0)
	if err != nil {
		return nil, err
	}
	b := make([]byte, vfs.BlockSize)
	_, err = f.ReadAt(b, s.block*vfs.BlockSize)
	return b, errors.Join(err, f.Close())
}

// land puts a block's content on the disk, and tells how many bytes that changes.
func (n *node) land(at spot, content []byte) (changed int, err error) {
	old, err := n.disk.block(at)
	if err != nil {
		return 0, err
	}
	for i := range old {
		if d := old[i] ^ content[i]; d != 0 {
			changed++
			if err := n.disk.mem.Flip(at.name, at.block*vfs.BlockSize+int64(i), d); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}
