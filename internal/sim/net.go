package sim

import (
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// link is the way from one member to another: what the network does to it, and the sender's end of the connection
// (the peer of package dledger's transport).
type link struct {
	from, to *node

	cut    bool
	cutBy  *blow
	noise  noise
	lastAt raft.Instant // arrival of the last message that kept the order

	life     int  // counts lost connections: an answer to a request of an earlier one is not delivered
	known    bool // the handshake is done
	greeting bool
	epoch    int            // counts lost connections and new beginnings of the core: what was unanswered is forgotten
	queue    []raft.Message // appends that could not go at once
	pumping  bool
	unacked  int          // bytes of entries that were not answered
	late     raft.Instant // much of what is sent comes once more within so long; 0 = nothing does
	lateBy   *blow
	misplace int // so many appends are going to name positions of other files

	misplaceBy *blow
}

// noise is how badly a link works.
type noise struct {
	drop, repeat, overtake, slow float64 // chances for each message
	slowMax                      time.Duration
	by                           *blow
}

const (
	rpcTimeout  = raft.Instant(3 * time.Second)
	diskRead    = 3 * ms // longest wait of a pump for the disk
	connectMost = 30 * ms
)

// call is one request on its way, and back.
type call struct {
	req  raft.Message // as the core sent it, without its entries
	link *link
	life int // of the link
	from int // life of the sender
	to   int // life of the receiver that took it in

	size, epoch int
	closed      bool // the sender knows how it ended; a later answer is a duplicate
	answered    bool // the receiver has answered
	at          raft.Instant
}

// nodeNet is the replica's Net: it does what the transport of package dledger does.
type nodeNet node

// Send takes a request from the loop.
func (t *nodeNet) Send(m *raft.Message) {
	n := (*node)(t)
	w := n.w
	w.check.sends(n, m)
	l := w.link(n.id, m.To)
	if !l.known {
		w.greet(l)
	}
	ours := !w.setup.strangers
	switch {
	case m.Type == raft.MsgPreVote && (!l.known || !ours):
		if w.setup.compat == raft.CompatGo {
			w.fail(&call{req: *m, link: l})
			return
		}
		w.askLeader(l, *m)
	case m.Type.IsPush() || m.Type == raft.MsgReset:
		if l.known {
			l.push(*m)
		}
	default:
		l.request(*m, 0)
	}
}

// push sends a request that builds the peer's log. Entries in memory go at once; the rest waits for the pump.
func (l *link) push(m raft.Message) {
	switch m.Type {
	case raft.MsgAppend:
		if len(l.queue) == 0 && !l.pumping && l.unacked < l.from.w.setup.window {
			l.pushCached(m)
			return
		}
		l.queue = append(l.queue, m)
		l.pump()
	case raft.MsgCommit:
		l.request(m, 0)
	default: // the core starts over with this peer
		l.queue = nil
		l.epoch++
		l.unacked = 0
		if l.complete(&m) {
			l.request(m, 0)
		}
	}
}

func (l *link) pushCached(m raft.Message) {
	w := l.from.w
	for {
		payload, last, ok := l.from.store.ReadCached(m.First, m.Last+1, w.setup.frame)
		if !ok {
			break
		}
		l.pushPart(m, last, payload)
		if last == m.Last {
			return
		}
		skip(&m, last)
		if l.unacked >= w.setup.window {
			break
		}
	}
	l.queue = append([]raft.Message{m}, l.queue...)
	l.pump()
}

// pump reads the next queued append from disk, a frame at a time, while the window has room.
func (l *link) pump() {
	if l.pumping || len(l.queue) == 0 || l.unacked >= l.from.w.setup.window {
		return
	}
	l.pumping = true
	epoch, n := l.epoch, l.from
	life := n.life
	n.w.after(1+raft.Instant(n.w.chance.Int64N(int64(diskRead))), func() {
		l.pumping = false
		if !n.up || n.life != life {
			return
		}
		if l.epoch != epoch || len(l.queue) == 0 {
			l.pump()
			return
		}
		m := l.queue[0]
		payload, last, err := n.store.Read(m.First, m.Last+1, n.w.setup.frame)
		if n.disk.off {
			n.afterCut()
			return
		}
		if err != nil { // the log has moved on, or the disk fails
			l.queue = l.queue[1:]
			n.unreadable(m.First, err)
			l.pump()
			return
		}
		if l.queue = l.queue[1:]; last < m.Last {
			rest := m
			skip(&rest, last)
			l.queue = append([]raft.Message{rest}, l.queue...)
		}
		l.pushPart(m, last, payload)
		l.pump()
	})
}

// pushPart sends the entries of m up to last, copied: what a member gets is no memory of the sender.
func (l *link) pushPart(m raft.Message, last raft.Index, p raft.Payload) {
	m.Last = last
	for k := range m.Runs {
		if m.Runs[k].First > last {
			m.Runs = m.Runs[:k]
			break
		}
	}
	flat := make([]byte, 0, p.Size())
	for _, b := range p {
		flat = append(flat, b...)
	}
	if l.misplace > 0 {
		l.misplace--
		l.misplaceBy.falls()
		move(flat)
	}
	m.Payload = raft.Payload{flat}
	l.request(m, len(flat))
}

// move makes whole entries say that they lie elsewhere, as those of a leader do whose files are laid out in another way.
func move(b []byte) {
	for len(b) > 0 {
		h, err := entry.Parse(b)
		if err != nil {
			return // the receiver finds out
		}
		h.Pos += 8
		entry.PutHeader(b, h)
		entry.Seal(b[:h.Size])
		b = b[h.Size:]
	}
}

// skip makes m begin behind entry last.
func skip(m *raft.Message, last raft.Index) {
	k := len(m.Runs) - 1
	for m.Runs[k].First > last {
		k--
	}
	rest := []raft.Run{{Term: m.Runs[k].Term, First: last + 1}}
	if k+1 < len(m.Runs) && m.Runs[k+1].First == last+1 {
		rest = nil
	}
	m.Index, m.LogTerm, m.First = last, m.Runs[k].Term, last+1
	m.Runs = append(rest, m.Runs[k+1:]...)
}

// complete adds the position of a reset, and the entry that a comparison of dialect 0.3 carries.
func (l *link) complete(m *raft.Message) bool {
	var err error
	switch {
	case m.Type == raft.MsgReset:
		m.Pos, _, err = l.from.store.Pos(m.First)
	case l.from.w.setup.compat == raft.Compat03:
		if m.Index < 0 {
			return false
		}
		var p raft.Payload
		if p, _, err = l.from.store.Read(m.Index, m.Index+1, 1); err == nil {
			m.Payload = raft.Payload{append([]byte(nil), p[0]...)}
			for _, b := range p[1:] {
				m.Payload[0] = append(m.Payload[0], b...)
			}
		} else {
			l.from.unreadable(m.Index, err)
		}
	}
	return err == nil
}

// request sends m on its way.
func (l *link) request(m raft.Message, size int) {
	w := l.from.w
	c := &call{req: m, link: l, life: l.life, from: l.from.life, size: size, epoch: l.epoch, at: w.now}
	c.req.Payload = nil
	l.unacked += size
	switch m.Type {
	case raft.MsgVote, raft.MsgPreVote, raft.MsgTransfer:
		limit := rpcTimeout
		if m.Type == raft.MsgTransfer {
			limit *= 3
		}
		w.after(limit, func() { w.fail(c) })
	}
	asRead := carried(w.setup.compat, m)
	sent := 0
	w.carry(l, func(at raft.Instant) {
		sent++
		w.queue.add(at, func() { w.arrive(c, asRead) })
	})
	if sent == 0 && size > 0 {
		w.after(rpcTimeout, func() { w.settle(c) })
	}
	if by := l.lateBy; l.late > 0 && (m.Type.IsPush() || m.Type == raft.MsgReset || m.Type == raft.MsgVote) && w.stray.IntN(2) == 0 {
		w.after(raft.Instant(w.stray.Int64N(int64(l.late))), func() {
			if c.link.life == c.life && !c.link.cut && c.link.to.up {
				by.falls()
			}
			w.arrive(c, asRead)
		})
	}
}

// carry decides the fate of a message on l and calls arrive for each copy of it that comes through.
func (w *world) carry(l *link, arrive func(at raft.Instant)) {
	r, k := w.chance, &l.noise
	if l.cut {
		l.cutBy.falls()
		return
	}
	if k.drop > 0 && r.Float64() < k.drop {
		k.by.falls()
		return
	}
	d := raft.Instant(20_000 + r.Int64N(int64(w.setup.latency)))
	if k.slow > 0 && r.Float64() < k.slow {
		d += raft.Instant(r.Int64N(int64(k.slowMax)))
		k.by.falls()
	}
	at := w.now + d
	if k.overtake == 0 || r.Float64() >= k.overtake {
		at = max(at, l.lastAt+1)
		l.lastAt = at
	} else if at < l.lastAt {
		k.by.falls()
	}
	arrive(at)
	if k.repeat > 0 && r.Float64() < k.repeat {
		k.by.falls()
		arrive(at + raft.Instant(r.Int64N(int64(300*time.Millisecond))))
	}
}

// arrive hands a request to its receiver.
func (w *world) arrive(c *call, m raft.Message) {
	to := c.link.to
	if c.link.life != c.life || c.link.cut {
		if c.link.cut {
			c.link.cutBy.falls()
		}
		w.fail(c)
		return
	}
	if !to.up {
		w.fail(c) // connection refused
		return
	}
	if w.tracing() {
		w.say(to, "< %s", describe(&m))
	}
	if m.Type == raft.MsgAppend && !announced(w.setup.compat, &m) {
		w.answer(c, to, &raft.Message{Type: m.Type.Answer(), Status: raft.StatusUnexpectedArgument, Term: m.Term, Begin: -1, End: -1, XTerm: -1, XIndex: -1})
		return
	}
	life, once := to.life, false
	c.to, c.answered = life, false
	to.open = append(to.open, c)
	to.loop.Deliver(m, func(a *raft.Message) {
		if once {
			w.violate("R9: %s answers %s of %s twice", to.id, m.Type, m.From)
		}
		once, c.answered = true, true
		if !to.disk.off {
			w.check.answers(to, &m, a)
			w.answer(c, to, a)
		}
	})
	to.poke()
}

// answer sends a on its way back.
func (w *world) answer(c *call, to *node, a *raft.Message) {
	b := answered(w.setup.compat, &c.req, a)
	back := w.link(to.id, c.link.from.id)
	sent := 0
	w.carry(back, func(at raft.Instant) {
		sent++
		w.queue.add(at, func() {
			from := c.link.from
			w.settle(c)
			if c.link.life != c.life || !from.up || from.life != c.from || back.cut {
				return
			}
			c.closed = true
			if w.tracing() {
				w.say(from, "< %s", describe(&b))
			}
			from.loop.Deliver(b, nil)
			from.poke()
		})
	})
	if sent == 0 && c.size > 0 {
		w.after(rpcTimeout, func() { w.settle(c) })
	}
}

// settle gives the bytes of a request back to the window.
func (w *world) settle(c *call) {
	if l := c.link; c.size > 0 && c.epoch == l.epoch {
		l.unacked -= c.size
		l.pump()
	}
	c.size = 0
}

// fail tells the sender that a voter, or a successor, cannot be reached. Every other request is repeated by the core's own timers.
func (w *world) fail(c *call) {
	w.settle(c)
	n, m := c.link.from, &c.req
	if c.closed || !n.up || c.from != 0 && n.life != c.from {
		return
	}
	c.closed = true
	switch m.Type {
	case raft.MsgVote, raft.MsgPreVote, raft.MsgTransfer:
		n.loop.Deliver(raft.Message{Type: m.Type.Answer(), From: c.link.to.id, To: n.id, Vote: raft.VoteUnknown, Status: raft.StatusInternal, Term: -1, Asked: m.Asked}, nil)
		n.poke()
	}
}

// askLeader stands in for a pre-vote towards a member that is not known to be ours: one that knows no leader would vote.
func (w *world) askLeader(l *link, m raft.Message) {
	n := l.from
	n.after(raft.Instant(w.chance.Int64N(2*int64(w.setup.latency))), func() {
		a := raft.Message{Type: raft.MsgPreVoteAnswer, From: l.to.id, To: n.id, Vote: raft.VoteAccept, Term: m.Term, Asked: m.Asked}
		switch back := w.link(l.to.id, n.id); {
		case l.cut || back.cut || !l.to.up:
			a.Vote = raft.VoteUnknown
		default:
			if v := l.to.loop.View(); v.Leader != "" && v.Leader != n.id {
				a.Vote, a.Term = raft.VoteAlreadyHasLeader, -1
			}
		}
		n.loop.Deliver(a, nil)
		n.poke()
	})
}

// greet makes the handshake of a connection, if the peer can be reached.
func (w *world) greet(l *link) {
	if l.greeting {
		return
	}
	l.greeting = true
	n := l.from
	life := n.life
	w.after(1+raft.Instant(w.chance.Int64N(int64(connectMost))), func() {
		l.greeting = false
		if l.known || !n.up || n.life != life || !l.to.up || l.cut || w.link(l.to.id, n.id).cut {
			return
		}
		l.known = true
		n.loop.Connected(l.to.id, !w.setup.strangers)
		n.loop.Met(l.to.id, l.to.loop.View().Term > 0 || l.to.store.State().Last >= 0)
		n.poke()
	})
}

// lost breaks all connections of a member that went down.
func (w *world) lost(n *node) {
	for _, m := range w.nodes {
		if m != n {
			w.disconnect(n, m)
		}
	}
}

// disconnect breaks the connections between two members; what was on its way is lost.
func (w *world) disconnect(a, b *node) {
	for _, l := range []*link{w.link(a.id, b.id), w.link(b.id, a.id)} {
		l.life++
		l.epoch++
		l.known, l.queue, l.unacked = false, nil, 0
	}
}

// reconnect lets two members find each other again.
func (w *world) reconnect(a, b *node) {
	for _, l := range []*link{w.link(a.id, b.id), w.link(b.id, a.id)} {
		if l.from.up {
			w.greet(l)
		}
	}
}

// carried gives a request as its receiver reads it: what a dialect does not say is missing.
func carried(c raft.Compat, m raft.Message) raft.Message {
	m.Asked = 0
	switch m.Type {
	case raft.MsgHeartbeat:
		m.Index = 0
		if c != raft.CompatGo {
			m.Commit = -1
		}
	case raft.MsgAppend:
		if c != raft.CompatGo {
			m.LogTerm = raft.UnknownTerm
		}
	case raft.MsgTruncate:
		if c == raft.Compat04 {
			m.LogTerm = raft.UnknownTerm
		}
	}
	return m
}

// announced reads the entries of an append as package wire does: in compat go they must be those that the message announces, and
// in the others they alone say what it holds. False: the request is refused before the core sees it.
func announced(c raft.Compat, m *raft.Message) bool {
	var runs []raft.Run
	next := raft.Index(-1)
	for b := m.Payload[0]; len(b) > 0; {
		h, err := entry.Parse(b)
		if err != nil || int(h.Size) > len(b) || next >= 0 && h.Index != next {
			return false
		}
		switch n := len(runs); {
		case n == 0 || h.Term > runs[n-1].Term:
			runs = append(runs, raft.Run{Term: h.Term, First: h.Index})
		case h.Term < runs[n-1].Term:
			return false
		}
		next = h.Index + 1
		b = b[h.Size:]
	}
	if len(runs) == 0 {
		return false
	}
	if c != raft.CompatGo {
		m.First, m.Last, m.Runs, m.Index = runs[0].First, next-1, runs, runs[0].First-1
		return true
	}
	if m.First != runs[0].First || m.Last != next-1 || len(runs) != len(m.Runs) {
		return false
	}
	for k := range runs {
		if runs[k] != m.Runs[k] {
			return false
		}
	}
	return true
}

// answered gives an answer as the sender of the request reads it.
func answered(c raft.Compat, req, a *raft.Message) raft.Message {
	b := raft.Message{Type: req.Type.Answer(), From: req.To, To: req.From, Asked: req.Asked, Index: req.Index, First: req.First, Last: req.Last, Status: a.Status, Term: a.Term}
	switch req.Type {
	case raft.MsgVote, raft.MsgPreVote:
		b.Vote = a.Vote
	case raft.MsgHeartbeat:
		if a.Status == raft.StatusOK {
			b.Term = req.Term
		}
	case raft.MsgTransfer:
		b.Leader = a.Leader
	default:
		b.Begin, b.End, b.XTerm, b.XIndex, b.Leader = a.Begin, a.End, a.XTerm, a.XIndex, a.Leader
		if c == raft.CompatGo {
			break
		}
		b.Leader = ""
		if a.Status != raft.StatusExpiredTerm {
			b.Term = req.Term
		}
		if c == raft.Compat03 || req.Type != raft.MsgCompare || a.Status != raft.StatusInconsistentState {
			b.XTerm, b.XIndex = -1, -1
		}
	}
	return b
}
