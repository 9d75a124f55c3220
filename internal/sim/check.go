package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"dledger/internal/entry"
	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// checker knows everything that has happened in the group, whoever forgot it since, and holds each turn against it. The ids
// R1 to R9 are those of docs/invariants.md.
type checker struct {
	w         *world
	places    [][]place // by index: every entry that a member has stored there, one for each term
	committed []place   // by index
	leaders   map[raft.Term]raft.ID
	votes     map[ballot]raft.ID
	campaigns map[ballot]int // life of the candidate
	ops       []*op
	acked     raft.Index // highest index that a client knows to be committed; -1 = none
	due       []*op      // acknowledged in this turn, still to be checked
	reads     []reading  // read in this turn

	calledAt []raft.Instant // by index: when an entry was first called committed
	losses   []loss
}

// loss is a moment at which power cuts had taken committed entries from every disk, as only mode async allows: what is behind left may come back or not.
type loss struct {
	at   raft.Instant
	left raft.Index
}

// place is one entry as it was stored first. Wherever the same index and term are stored, it must be the same (R3).
type place struct {
	term, prev raft.Term // its own, and that of the entry before; UnknownTerm where that was not kept
	sum        uint64
	op, piece  int // the proposal it belongs to; -1 for a no-op
	pos        int64
}

type ballot struct {
	node raft.ID
	term raft.Term
}

// reading is an entry that a client was given.
type reading struct {
	n     *node
	index raft.Index
	sum   uint64
}

func newChecker(w *world) *checker {
	return &checker{w: w, leaders: map[raft.Term]raft.ID{}, votes: map[ballot]raft.ID{}, campaigns: map[ballot]int{}, acked: -1}
}

// bodyHead is what each body begins with: the proposal's number and the entry's place in it.
const bodyHead = 8

func (k *checker) find(i raft.Index, t raft.Term) *place {
	if i < 0 || int(i) >= len(k.places) {
		return nil
	}
	at := k.places[i]
	for j := range at {
		if at[j].term == t {
			return &at[j]
		}
	}
	return nil
}

// note takes in entry e of n's log, behind one of term prev.
func (k *checker) note(n *node, e []byte, prev raft.Term) {
	h, err := entry.Parse(e)
	if err == nil {
		err = entry.Check(e)
	}
	if err != nil {
		k.w.violate("%s holds a bad entry %d: %v", n.id, h.Index, err)
		return
	}
	for int(h.Index) >= len(k.places) {
		k.places = append(k.places, nil)
	}
	p := place{term: h.Term, prev: prev, sum: sum(e), op: -1, pos: h.Pos}
	if old := k.find(h.Index, h.Term); old != nil {
		if old.sum != p.sum {
			k.w.violate("R3: %s holds another entry %d of term %d than was written first", n.id, h.Index, h.Term)
		}
		switch {
		case old.prev == raft.UnknownTerm:
			old.prev = prev
		case prev != raft.UnknownTerm && old.prev != prev:
			k.w.violate("R3: %s holds entry %d of term %d behind one of term %d, it was written behind one of term %d", n.id, h.Index, h.Term, prev, old.prev)
		}
		return
	}
	if h.Magic == entry.MagicNormal && h.BodyLen >= bodyHead {
		body := e[entry.HeaderSize:]
		p.op, p.piece = int(binary.BigEndian.Uint32(body)), int(binary.BigEndian.Uint32(body[4:]))
		if p.op >= len(k.ops) {
			k.w.violate("%s holds an entry %d that nobody proposed", n.id, h.Index)
			return
		}
		o := k.ops[p.op]
		switch {
		case o.state == refused:
			k.w.violate("proposal %d was refused, but %s holds it as entry %d of term %d", p.op, n.id, h.Index, h.Term)
		case o.placed && (o.term != h.Term || o.first+raft.Index(p.piece) != h.Index):
			k.w.violate("proposal %d is in the log twice: as entries %d of term %d, and as entry %d of term %d", p.op, o.first, o.term, h.Index, h.Term)
		}
		o.placed, o.term, o.first = true, h.Term, h.Index-raft.Index(p.piece)
	}
	k.places[h.Index] = append(k.places[h.Index], p)
}

// stored is called when n's log has got a new end.
func (k *checker) stored(n *node) {
	st := n.store
	from := n.flushed.index + 1
	last := n.lastStored()
	for lo := from; lo <= last; {
		p, hi, err := st.Read(lo, last+1, 1<<20)
		if err != nil {
			if !n.disk.excused() && !n.damaged(err) {
				k.w.violate("%s cannot read what it has just stored: %v", n.id, err)
			}
			break
		}
		prev, err := st.Term(lo - 1)
		if err != nil || prev < raft.UnknownTerm {
			prev = raft.UnknownTerm
		}
		var whole []byte
		for _, b := range p {
			if len(whole) > 0 {
				b = append(whole, b...)
				whole = nil
			}
			for len(b) > 0 {
				h, err := entry.Parse(b)
				if err != nil && !errors.Is(err, entry.ErrShort) {
					k.w.violate("%s has stored what is no entry behind %d: %v", n.id, lo-1, err)
					return
				}
				if err != nil || int(h.Size) > len(b) {
					whole = bytes.Clone(b)
					break
				}
				k.note(n, b[:h.Size], prev)
				prev = h.Term
				b = b[h.Size:]
			}
		}
		lo = hi + 1
	}
	t, err := st.Term(last)
	if err != nil {
		t = raft.UnknownTerm
	}
	n.flushed = mark{last, t}
	if n.durable.index > last {
		n.durable = n.flushed
	}
}

// lastStored asks the store for its last entry.
func (n *node) lastStored() raft.Index { return n.store.State().Last }

// cut is called before n makes last its last entry.
func (k *checker) cut(n *node, last raft.Index) {
	if c := n.loop.Commit(); last < c {
		k.w.violate("R5: %s cuts behind %d, but has committed up to %d", n.id, last, c)
	}
	t, err := n.store.Term(last)
	if err != nil {
		t = raft.UnknownTerm
	}
	for _, m := range []*mark{&n.flushed, &n.durable} {
		if m.index > last {
			*m = mark{last, t}
		}
	}
}

// reset is called before n drops its log to continue with entry next.
func (k *checker) reset(n *node, next raft.Index, prev raft.Term) {
	if int(next) > len(k.committed) {
		k.w.violate("R2: %s drops its log up to %d, committed are %d", n.id, next-1, len(k.committed)-1)
		return
	}
	if next == 0 {
		return
	}
	if was := k.committed[next-1].term; prev >= 0 && was != prev || prev < raft.UnknownTerm && was > prev.Ceiling() {
		k.w.violate("R2: %s takes entry %d for one of term %d, committed was one of term %d", n.id, next-1, prev, k.committed[next-1].term)
	}
}

// ended is called when n's life is over.
func (k *checker) ended(n *node, processOnly bool) {
	for _, o := range n.ops {
		if o.state == pending {
			o.state = undecided
			o.client.told(o, raft.StatusInternal, "")
		}
	}
	n.ops = nil
	if !processOnly {
		n.taken = n.flushed
		n.flushed = n.durable // more may be there, but need not
		n.commit = -1
		if k.w.setup.losing {
			n.begins = n.beginning()
			k.lost()
		}
	}
}

// lossWindow is how old a committed entry may be that power cuts take from every disk (docs/operating.md): what was written is synced every 100 ms.
const lossWindow = 120 * ms

// lost is called when a member has lost power in mode async. As long as one of them has a committed entry, nothing may happen to it: members that may have lost something
// do not vote, or only together with all others. What none has any more may be gone, but nothing that is older than the window.
func (k *checker) lost() {
	w := k.w
	k.readings()
	left := raft.Index(-1)
	slow := raft.Instant(0)
	for _, n := range w.nodes {
		if n.paused > 0 || n.failing || !n.up && !n.unpowered {
			n.trouble(w.now)
		}
		slow = max(slow, n.troubled, min(n.hangTill, w.now))
		left = max(left, k.agrees(n))
	}
	if int(left) >= len(k.committed)-1 {
		return
	}
	if at := k.calledAt[left+1]; at < w.now-lossWindow && slow < at {
		w.violate("power cuts have taken entry %d from every disk, which was committed %v ago", left+1, time.Duration(w.now-at))
	}
	w.say(nil, "committed entries behind %d are on no disk any more", left)
	k.losses = append(k.losses, loss{w.now, left})
	w.gone += len(k.committed) - 1 - int(left)
	k.committed, k.calledAt = k.committed[:left+1], k.calledAt[:left+1]
	k.acked = min(k.acked, left)
}

// beginning gives the first entry of the log that a power cut has left on n's disk. Retention moves it in one durable step, which may be on the disk though nothing that
// was written since the last sync of the entries is.
func (n *node) beginning() raft.Index {
	in, err := logstore.Inspect(n.disk.mem, dir)
	if err != nil {
		return 0 // nothing to go by: no log yet, or a damaged one
	}
	first := in.Info().First
	if err := in.Close(); err != nil {
		n.w.violate("%s: the disk does not close what was read: %v", n.id, err)
	}
	return first
}

// agrees gives how far n certainly holds what is committed. What lies before the beginning of its log was committed, and counts as held.
func (k *checker) agrees(n *node) raft.Index {
	i := min(n.flushed.index, raft.Index(len(k.committed))-1)
	if n.begins > i+1 {
		return min(n.begins, raft.Index(len(k.committed))) - 1
	}
	if n.store == nil || i < 0 {
		return -1
	}
	if n.flushed.index == i && n.flushed.term == k.committed[i].term {
		return i
	}
	for t := n.flushed.term; i >= 0 && k.committed[i].term > t; i-- {
	}
	for ; i >= 0; i-- {
		if t, err := n.store.Term(i); err == nil && t == k.committed[i].term || errors.Is(err, logstore.ErrCompacted) {
			return i
		}
	}
	return -1
}

// still gives what of entries up to i was left by power cuts since an instant.
func (k *checker) still(i raft.Index, since raft.Instant) raft.Index {
	for _, l := range k.losses {
		if l.at >= since {
			i = min(i, l.left)
		}
	}
	return i
}

// recovered is called when n has opened its log again.
func (k *checker) recovered(n *node, st *logstore.State) {
	w := k.w
	if st.Term < n.savedTerm || st.Term == n.savedTerm && st.Vote != n.savedVote && n.savedVote != "" {
		w.violate("R6: %s has voted for %q in term %d, and comes back with %q in term %d", n.id, n.savedVote, n.savedTerm, st.Vote, st.Term)
		return
	}
	n.savedTerm, n.savedVote = st.Term, st.Vote
	if st.Commit > st.Last {
		w.violate("R7: %s comes back with commit index %d and last entry %d", n.id, st.Commit, st.Last)
		return
	}
	missed := n.durable.index // what it must know that it has lost
	if w.setup.async && n.flushed.index > n.rotTo {
		missed = n.flushed.index // others had not synced that when bits flipped
	}
	if n.rotten && (st.TailLost > st.Last && st.TailLost >= missed || st.Last >= missed) {
		// It was cut before the damage, and knows what it has to get back of what others count on.
		n.commit = min(n.commit, st.Commit)
		if t, err := n.store.Term(st.Last); st.Last < n.flushed.index {
			if err != nil {
				t = raft.UnknownTerm
			}
			n.flushed = mark{st.Last, t}
		}
	}
	if st.Commit < n.commit {
		w.violate("R7: the commit index of %s falls from %d to %d, though only its process ended", n.id, n.commit, st.Commit)
		return
	}
	if want := n.flushed; st.Last < want.index {
		w.violate("%s has lost entries that were on its disk: %d to %d", n.id, st.Last+1, want.index)
		return
	} else if t, err := n.store.Term(want.index); err == nil && want.index >= st.First && t != want.term {
		w.violate("%s comes back with term %d at entry %d, term %d was on its disk", n.id, t, want.index, want.term)
		return
	}
	n.flushed = mark{max(st.First-1, min(n.flushed.index, st.Last)-64), 0}
	k.stored(n)
	n.durable, n.begins = n.flushed, 0 // recovery syncs what it finds
	n.commit = max(st.First-1, min(st.Commit, n.commit)-64)
	k.commits(n, st.Commit)
}

// commits holds what n calls committed against what was committed before.
func (k *checker) commits(n *node, to raft.Index) {
	w := k.w
	known := len(k.committed)
	first := n.store.State().First
	for i := max(n.commit+1, first); i <= to; i++ {
		t, err := n.store.Term(i)
		if err != nil {
			w.violate("R7: %s calls entry %d committed, and does not hold it: %v", n.id, i, err)
			return
		}
		p := k.find(i, t)
		if p == nil {
			w.violate("%s calls entry %d of term %d committed, which nobody has stored", n.id, i, t)
			return
		}
		switch {
		case int(i) < len(k.committed):
			if c := &k.committed[i]; c.term != p.term {
				w.violate("R2: entry %d was committed as one of term %d, for %s it is one of term %d", i, c.term, n.id, p.term)
				return
			}
			continue
		case int(i) > len(k.committed):
			w.violate("%s calls entry %d committed, and nobody knows of one before it", n.id, i)
			return
		}
		k.committed = append(k.committed, *p)
		k.calledAt = append(k.calledAt, w.now)
		if p.op >= 0 {
			if o := k.ops[p.op]; i <= k.still(o.floor, o.at) {
				w.violate("proposal %d became entry %d, but was made after %d had been acknowledged", p.op, i, o.floor)
			}
		}
	}
	if n.up && len(k.committed) > known {
		k.majority(n, to)
	}
	n.commit = max(n.commit, to)
}

// majority checks that entry i, which n is the first to call committed, is where it has to be (R4).
func (k *checker) majority(n *node, i raft.Index) {
	t := k.committed[i].term
	have := 0
	for _, m := range k.w.nodes {
		at := m.durable
		if k.w.setup.async {
			at = m.flushed
		}
		if k.w.setup.losing && m.taken.index >= i && m.taken.term >= t {
			have++ // it had it when it said so
			continue
		}
		if m.store == nil || at.index < i {
			continue
		}
		if mt, err := m.store.Term(i); err == nil && mt == t || errors.Is(err, logstore.ErrCompacted) {
			have++
		}
	}
	if have <= len(k.w.nodes)/2 {
		k.w.violate("R4: %s calls entry %d of term %d committed, which is on %d of %d disks", n.id, i, t, have, len(k.w.nodes))
	}
	if v := n.loop.View(); v.Role == raft.Leader && t != v.Term && have < len(k.w.nodes) {
		k.w.violate("R4: %s leads term %d and commits entry %d of term %d by counting", n.id, v.Term, i, t)
	}
}

// turned is called after each turn of n.
func (k *checker) turned(n *node) {
	w := k.w
	v := n.loop.View()
	if v.Role == raft.Leader {
		if other, ok := k.leaders[v.Term]; !ok {
			k.leaders[v.Term] = n.id
			w.say(n, "leads term %d", v.Term)
		} else if other != n.id {
			w.violate("R1: %s and %s lead term %d", other, n.id, v.Term)
			return
		}
	}
	c := n.loop.Commit()
	switch {
	case c < n.commit:
		w.violate("R7: the commit index of %s falls from %d to %d", n.id, n.commit, c)
		return
	case c > n.flushed.index && c > n.lastStored(): // the former alone where a reset has failed
		w.violate("R7: %s has commit index %d and last entry %d", n.id, c, n.flushed.index)
		return
	case c > n.commit:
		k.commits(n, c)
	}
	for _, o := range k.due {
		k.acknowledged(o)
	}
	k.due = k.due[:0]
	k.readings()
}

// readings checks what was given to readers.
func (k *checker) readings() {
	for _, r := range k.reads {
		if int(r.index) >= len(k.committed) || k.committed[r.index].sum != r.sum {
			k.w.violate("%s gave a reader another entry %d than was committed", r.n.id, r.index)
		}
	}
	k.reads = k.reads[:0]
}

// acknowledged checks a proposal whose client was told that it is committed (R4).
func (k *checker) acknowledged(o *op) {
	last := o.p.Last()
	if int(last) >= len(k.committed) {
		k.w.violate("R4: proposal %d is acknowledged as entries %d to %d, committed are %d", o.no, o.p.First, last, len(k.committed)-1)
		return
	}
	for j, pos := range o.p.Pos() {
		p := &k.committed[o.p.First+raft.Index(j)]
		if p.op != o.no || p.piece != j || p.term != o.p.Term || p.pos != pos {
			k.w.violate("R4: proposal %d is acknowledged as entry %d of term %d at %d; there is piece %d of proposal %d, term %d, at %d",
				o.no, o.p.First+raft.Index(j), o.p.Term, pos, p.piece, p.op, p.term, p.pos)
			return
		}
	}
	k.acked = max(k.acked, last)
}

// sends checks a request before it leaves n.
func (k *checker) sends(n *node, m *raft.Message) {
	if m.Type != raft.MsgVote && m.Type != raft.MsgPreVote {
		return
	}
	w := k.w
	told := n.flushed.term < raft.UnknownTerm && m.LogTerm >= 0 && m.LogTerm < n.flushed.term.Ceiling() // by a leader; the disk does not know it
	if m.Index != n.flushed.index || m.LogTerm != n.flushed.term.Ceiling() && m.LogTerm != raft.UnknownTerm && !told {
		w.violate("R6: %s asks for votes with entry %d of term %d as its last, stored is entry %d of term %d", n.id, m.Index, m.LogTerm, n.flushed.index, n.flushed.term)
	}
	if m.Type == raft.MsgPreVote {
		return
	}
	b := ballot{n.id, m.Term}
	if life, ok := k.campaigns[b]; ok && life != n.life {
		w.violate("R8: %s campaigns in term %d, in which it campaigned before its restart", n.id, m.Term)
	}
	k.campaigns[b] = n.life
	k.voted(n, b, n.id)
}

// answers checks an answer of n before it leaves.
func (k *checker) answers(n *node, m, a *raft.Message) {
	if (m.Type.IsPush() || m.Type == raft.MsgReset) && a.Status == raft.StatusOK && a.Term > m.Term {
		k.w.violate("R5: %s obeys %s in %s of term %d, and knows of term %d", n.id, m.From, m.Type, m.Term, a.Term)
	}
	if m.Type == raft.MsgVote && a.Vote == raft.VoteAccept {
		k.voted(n, ballot{n.id, m.Term}, m.Leader)
		// Where this turn has changed the log as well, nobody outside knows which came first; nor what a leader has told of an unknown term.
		t := n.flushed
		if t == n.began && t.term > raft.UnknownTerm && (m.LogTerm < t.term || m.LogTerm == t.term && m.Index < t.index) {
			k.w.violate("R6: %s votes for %s, whose log ends at entry %d of term %d, its own at entry %d of term %d", n.id, m.Leader, m.Index, m.LogTerm, t.index, t.term)
		}
	}
}

// voted checks that a vote that is about to be seen by others is on disk, and the only one of its term.
func (k *checker) voted(n *node, b ballot, whom raft.ID) {
	// With a later term on disk nothing is left to vote for in this one.
	if n.savedTerm < b.term || n.savedTerm == b.term && n.savedVote != whom {
		k.w.violate("R6: %s votes for %s in term %d; on its disk is %q in term %d", n.id, whom, b.term, n.savedVote, n.savedTerm)
	}
	if other, ok := k.votes[b]; ok && other != whom {
		k.w.violate("R6: %s votes for %s in term %d, and has voted for %s", n.id, whom, b.term, other)
	}
	k.votes[b] = whom
}

// forget is called when n loses its disk: what it did before binds nobody any more.
func (k *checker) forget(n *node) {
	for b := range k.votes {
		if b.node == n.id {
			delete(k.votes, b)
		}
	}
	for b := range k.campaigns {
		if b.node == n.id {
			delete(k.campaigns, b)
		}
	}
	n.flushed, n.durable, n.begins, n.savedTerm, n.savedVote, n.commit = none, none, 0, -1, "", -1
}

// drained checks that a loop that was asked to end has answered everything (R9).
func (k *checker) drained(n *node) {
	for _, c := range n.open {
		if !c.answered && c.to == n.life {
			k.w.violate("R9: %s ends without having answered %s of %s", n.id, c.req.Type, c.req.From)
		}
	}
	for _, o := range n.ops {
		if o.state == pending {
			k.w.violate("R9: %s ends without having answered proposal %d", n.id, o.no)
		}
	}
	for _, q := range n.reads {
		if !q.answered {
			k.w.violate("R9: %s ends without having answered a read of %v", n.id, time.Duration(q.at))
		}
	}
}

// longest is how long a request or a proposal may go without an answer at a member that has no trouble.
const longest = 12_000 * ms

// audit looks for what was not answered in time (R9). It runs now and then.
func (k *checker) audit() {
	w := k.w
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		if n.paused > 0 {
			n.trouble(w.now)
		}
		rest := n.open[:0]
		for _, c := range n.open {
			if c.answered || c.to != n.life {
				continue
			}
			if since := max(c.at, n.troubled); w.now-since > longest {
				w.violate("R9: %s has not answered %s of %s", n.id, c.req.Type, c.req.From)
			}
			rest = append(rest, c)
		}
		clear(n.open[len(rest):])
		n.open = rest
		left := n.ops[:0]
		for _, o := range n.ops {
			if o.state != pending {
				continue
			}
			if since := max(o.at, n.troubled); w.now-since > 2*raft.Instant(w.setup.ackWait)+1000*ms {
				w.violate("R9: %s has not answered proposal %d", n.id, o.no)
			}
			left = append(left, o)
		}
		clear(n.ops[len(left):])
		n.ops = left
		reads := n.reads[:0]
		for _, q := range n.reads {
			if q.answered {
				continue
			}
			// In dialect 0.3, which has no no-op, a read waits until something is appended.
			if since := max(q.at, n.troubled); w.setup.compat != raft.Compat03 && w.now-since > longest {
				w.violate("R9: %s has not answered a read of %v", n.id, time.Duration(q.at))
			}
			reads = append(reads, q)
		}
		clear(n.reads[len(reads):])
		n.reads = reads
	}
}

// whole checks one member's directory on its disk, from the first entry that it keeps to the last that is committed: every record
// and checksum, and each entry against what was committed.
func (k *checker) whole(n *node) error {
	in, err := logstore.Inspect(n.disk.mem, dir)
	if err != nil {
		return err
	}
	defer in.Close()
	rep, err := in.Verify()
	if err != nil {
		return err
	}
	if len(rep.Problems) > 0 {
		return fmt.Errorf("%d problems, first: %w", len(rep.Problems), rep.Problems[0])
	}
	next := n.store.State().First
	for it, err := range in.Entries(next) {
		if err != nil {
			return err
		}
		if int(next) >= len(k.committed) {
			break
		}
		if it.Index != next || sum(it.Bytes) != k.committed[next].sum {
			return fmt.Errorf("entry %d is not the one that was committed", next)
		}
		next++
	}
	if int(next) != len(k.committed) {
		return fmt.Errorf("log ends at %d, committed are %d", next-1, len(k.committed)-1)
	}
	return nil
}

// alike checks that the data files of two members are the same bytes from where both begin to the last committed entry.
func (k *checker) alike(a, b *node) error {
	begin := int64(0)
	end := int64(-1)
	for _, n := range []*node{a, b} {
		st := n.store.State()
		pos, _, err := n.store.Pos(st.First)
		if err != nil {
			return err
		}
		begin = max(begin, pos)
		if end >= 0 && st.End != end {
			return fmt.Errorf("log of %s ends at byte %d, that of %s at %d", a.id, end, b.id, st.End)
		}
		end = st.End
	}
	size := k.w.setup.dataSize
	for base := begin - begin%size; base < end; base += size {
		name := fmt.Sprintf("%s/data/%020d", dir, base)
		x, err := vfs.ReadFile(a.disk.mem, name)
		if err != nil {
			return err
		}
		y, err := vfs.ReadFile(b.disk.mem, name)
		if err != nil {
			return err
		}
		lo, hi := max(begin-base, 0), min(end-base, size)
		if !bytes.Equal(x[lo:hi], y[lo:hi]) {
			return fmt.Errorf("%s of %s and %s differ between bytes %d and %d", name, a.id, b.id, lo, hi)
		}
	}
	return nil
}
