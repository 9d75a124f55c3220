package sim

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
)

// client makes proposals and reads, one after the other, and believes what it is told about who leads.
type client struct {
	w      *world
	no     int
	chance *rand.Rand
	target *node
	busy   int // proposals that are not answered
}

// op is one proposal and what its client knows of it.
type op struct {
	no     int
	client *client
	p      *replica.Proposal
	node   *node
	at     raft.Instant
	floor  raft.Index // highest index acknowledged to anybody before it was made: it must get a higher one
	state  state
	calm   bool // made when the liveness phase had begun

	// Where its entries are, once a member has stored one of them.
	placed bool
	term   raft.Term
	first  raft.Index
}

type state uint8

const (
	pending state = iota
	acknowledged
	refused   // it is not in the log, and never will be
	undecided // it may be in the log, now or later
)

// mostBusy bounds the unanswered proposals of a client.
const mostBusy = 8

// act makes the client's next request, and the one after it after a pause.
func (c *client) act() {
	w := c.w
	if w.quiet {
		return
	}
	w.after(raft.Instant(c.chance.ExpFloat64()*float64(w.setup.pause)), c.act)
	if c.target == nil || !c.target.up || c.chance.IntN(50) == 0 {
		c.target = w.nodes[c.chance.IntN(len(w.nodes))]
	}
	n := c.target
	if !n.up {
		c.target = nil
		return
	}
	switch k := c.chance.IntN(20); {
	case k < 14:
		if c.busy < mostBusy {
			c.propose(n)
		}
	case k < 17:
		c.read(n)
	default:
		c.glance(w.nodes[c.chance.IntN(len(w.nodes))])
	}
}

func (c *client) propose(n *node) {
	w := c.w
	k := w.check
	o := &op{no: len(k.ops), client: c, node: n, at: w.now, floor: k.acked, calm: w.calm}
	k.ops = append(k.ops, o)
	bodies := make([][]byte, 1+c.chance.IntN(3))
	for i := range bodies {
		size := bodyHead + c.chance.IntN(w.setup.bodyMax)
		if c.chance.IntN(200) == 0 {
			size = int(w.setup.dataSize) // no file has room for it
		}
		b := make([]byte, size)
		binary.BigEndian.PutUint32(b, uint32(o.no))
		binary.BigEndian.PutUint32(b[4:], uint32(i))
		for j := bodyHead; j < len(b); j++ {
			b[j] = byte(j)
		}
		bodies[i] = b
	}
	c.busy++
	life := n.life
	o.p = replica.NewProposal(bodies, nil, func(p *replica.Proposal) {
		if o.state != pending {
			if n.life == life && n.up {
				w.violate("R9: %s answers proposal %d twice", n.id, o.no)
			}
			return
		}
		if n.disk.off {
			return // it tells nobody any more
		}
		c.told(o, p.Status, p.Leader)
	})
	n.ops = append(n.ops, o)
	n.loop.Propose(o.p)
	n.poke()
}

// told takes the outcome of a proposal, in the words of package dledger.
func (c *client) told(o *op, s raft.Status, leader raft.ID) {
	w := c.w
	c.busy--
	switch s {
	case raft.StatusOK:
		o.state = acknowledged
		w.check.due = append(w.check.due, o)
		if o.calm {
			w.written++
		}
	case raft.StatusWaitAckTimeout, raft.StatusTermChanged, raft.StatusInternal:
		o.state = undecided
	case raft.StatusDiskError:
		o.state = undecided
		if o.p.First < 0 {
			o.state = refused
		}
	default:
		o.state = refused
		if o.placed {
			w.violate("proposal %d is refused (%v), but it is entry %d of term %d", o.no, s, o.first, o.term)
		}
	}
	if w.tracing() {
		w.say(o.node, "proposal %d: %v, entries %d to %d of term %d", o.no, s, o.p.First, o.p.Last(), o.p.Term)
	}
	if s != raft.StatusOK && s != raft.StatusPendingFull {
		c.target = nil
		if leader != "" {
			c.target = w.byID(leader)
		}
	}
}

// read makes a confirmed read: it must see everything that anybody knew to be committed when it began.
func (c *client) read(n *node) {
	w := c.w
	floor, life := w.check.acked, n.life
	q := &question{at: w.now}
	n.reads = append(n.reads, q)
	n.loop.Confirm(func(i raft.Index, s raft.Status) {
		if q.answered {
			w.violate("R9: %s answers a read twice", n.id)
			return
		}
		q.answered = true
		if s != raft.StatusOK || n.disk.off || n.life != life {
			return
		}
		w.confirmed++
		if floor := w.check.still(floor, q.at); i < floor {
			w.violate("%s confirms a read up to %d, but %d was acknowledged before", n.id, i, floor)
			return
		}
		if i > n.loop.Commit() {
			w.violate("%s confirms a read up to %d, and has committed up to %d", n.id, i, n.loop.Commit())
			return
		}
		c.look(n, i)
	})
	n.poke()
}

// glance reads what a member calls committed, without asking others.
func (c *client) glance(n *node) {
	if !n.up {
		return
	}
	i := n.loop.Commit()
	c.look(n, i)
	if i > 0 {
		c.look(n, raft.Index(c.chance.Int64N(int64(i))))
	}
}

// question is a read that waits for its confirmation.
type question struct {
	at       raft.Instant
	answered bool
}

// look reads entry i, which n calls committed.
func (c *client) look(n *node, i raft.Index) {
	if i < 0 {
		return
	}
	p, _, err := n.store.Read(i, i+1, 0)
	switch {
	case errors.Is(err, logstore.ErrCompacted):
	case err != nil && (n.disk.excused() || n.damaged(err)):
	case err != nil:
		c.w.violate("%s cannot read entry %d, which it calls committed: %v", n.id, i, err)
	default:
		b := p[0]
		for _, more := range p[1:] {
			b = append(b[:len(b):len(b)], more...)
		}
		c.w.check.reads = append(c.w.check.reads, reading{n: n, index: i, sum: sum(b)})
	}
}

// think is the pause before a client begins, so that they do not move in step.
func (c *client) think() raft.Instant {
	return raft.Instant(c.chance.Int64N(int64(100 * time.Millisecond)))
}
