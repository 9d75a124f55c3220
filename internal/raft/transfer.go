package raft

import (
	"slices"
	"time"
)

// transfer is the leader's side of a hand-over (docs/protocol.md, "Handing leadership over"). While it runs, proposals are refused. It
// outlives the leadership: a client is answered when it is known who leads next, or when until has passed.
type transfer struct {
	to      ID     // "" = none runs
	ref     uint64 // the client's request; 0 when the leader moves leadership by itself
	request Message
	until   Instant // while this node leads: when the transferee's VOTE is overdue; later: when waiting for an outcome ends
}

// taking is the transferee's side: it waits to hold what the leader has, then campaigns in the next term without a pre-vote.
type taking struct {
	ref     uint64
	request Message
	until   Instant
	term    Term // the term to win; -1 while it still catches up
}

// takingLeadership tells whether this node is campaigning at the leader's request.
func (c *Core) takingLeadership() bool { return c.taking.ref != 0 && c.taking.term == c.term }

// onTransfer serves the request of a client at the leader, and of the leader at the transferee.
func (c *Core) onTransfer(m *Message) {
	switch {
	case m.Transferer == c.cfg.ID && m.Transferee == c.cfg.ID && c.role == Leader:
		c.reply(m, Message{Status: StatusOK, Term: c.term})
	case m.Transferer == c.cfg.ID:
		if s := c.startTransfer(*m, m.Ref); s != StatusOK {
			c.reply(m, Message{Status: s, Term: c.term})
		}
	case m.Transferee == c.cfg.ID:
		c.take(m)
	default:
		c.reply(m, Message{Status: StatusUnexpectedArgument, Term: c.term})
	}
}

// startTransfer checks in the original's order: member, term, role, lag, and that no other hand-over runs. A request without a
// term (-1) means the present one.
func (c *Core) startTransfer(m Message, ref uint64) Status {
	p := c.progress(m.Transferee)
	switch {
	case p == nil:
		return StatusUnknownMember
	case m.Term >= 0 && m.Term != c.term:
		return StatusInconsistentTerm
	case c.role != Leader:
		return StatusNotLeader
	case c.log.last-p.match >= c.cfg.TransferLag:
		return StatusFallBehind
	case c.transfer.to != "":
		return StatusTransferring
	}
	c.transfer = transfer{to: m.Transferee, ref: ref, request: m, until: c.now + Instant(c.cfg.TransferWait+c.cfg.VoteWait/4)}
	c.event(Event{Kind: EventTransfer, Peer: m.Transferee})
	c.send(Message{Type: MsgTransfer, To: m.Transferee, Leader: c.cfg.ID, Term: c.term, Index: c.log.last,
		Transferer: c.cfg.ID, Transferee: m.Transferee})
	return StatusOK
}

// onTransferAnswer hears from the transferee how it went. If it won, this node has learnt of the new term already, or does now.
func (c *Core) onTransferAnswer(m *Message) {
	if c.transfer.to == "" || c.transfer.to != m.From {
		return
	}
	if m.Status == StatusOK {
		c.learn(m.Term, m.From)
	}
	c.endTransfer(m.Status)
}

// endTransfer answers the client and lets proposals in again. A transferee that could not take over is not tried again at once:
// the group would refuse proposals for most of the time. A leader without room for entries refuses them anyway, and only asking tells which
// member has room again.
func (c *Core) endTransfer(s Status) {
	k := c.transfer
	c.transfer = transfer{}
	if k.ref != 0 {
		c.reply(&k.request, Message{Status: s, Term: c.term})
	} else if p := c.progress(k.to); s != StatusOK && p != nil {
		p.declined = c.now + preferredPause
		if c.full {
			p.declined = c.now + preferredEvery
		}
	}
}

// take checks what a transferee must: that the sender leads, the terms are equal, and no other transfer is being taken.
func (c *Core) take(m *Message) {
	s := StatusOK
	switch {
	case c.leader != m.Transferer:
		s = StatusInconsistentLeader
	case m.Term != c.term:
		s = StatusInconsistentTerm
	case c.taking.ref != 0, c.failed, c.unfit(), c.Abstaining(), c.cfg.NoElection:
		s = StatusTakeLeadershipFailed
	}
	if s != StatusOK {
		c.reply(m, Message{Status: s, Term: c.term})
		return
	}
	c.taking = taking{ref: m.Ref, request: *m, until: c.now + Instant(c.cfg.TransferWait), term: -1}
	c.tickTaking()
}

// tickTaking moves a transferee on: wait, campaign, answer when its role has settled.
func (c *Core) tickTaking() {
	t := &c.taking
	switch {
	case t.ref == 0:
	case t.term < 0 && c.term != t.request.Term:
		c.settleTaking() // the term moved on meanwhile
	case t.term < 0 && c.log.last >= t.request.Index:
		t.term, t.until = c.term+1, c.now+Instant(2*c.cfg.VoteWait+time.Second)
		c.becomeCandidate()
		c.startCampaign(false)
	case c.now >= t.until, t.term >= 0 && (c.term > t.term || c.role == Follower):
		c.settleTaking()
	}
}

// settleTaking answers the leader that asked this node to take over.
func (c *Core) settleTaking() {
	t := &c.taking
	if t.ref == 0 {
		return
	}
	s := StatusTakeLeadershipFailed
	switch {
	case c.role == Leader && c.term == t.term:
		s = StatusOK
	case c.term > t.request.Term+1:
		s = StatusExpiredTerm
	}
	c.reply(&t.request, Message{Status: s, Term: c.term})
	*t = taking{}
}

// looks tells whether this leader has a reason to look for a better one: members are preferred, or its disk is full or damaged.
func (c *Core) looks() bool { return len(c.peers) > 0 && (c.unfit() || len(c.cfg.Preferred) > 0) }

// lookForBetter hands leadership to the preferred member that is alive and lags least, or to any such member when
// this one has no room for entries, or has damaged ones.
func (c *Core) lookForBetter() {
	if c.transfer.to != "" || !c.unfit() && slices.Contains(c.cfg.Preferred, c.cfg.ID) {
		return
	}
	best := (*progress)(nil)
	for _, p := range c.peers {
		ready := c.now-p.heard < Instant(2*c.cfg.Heartbeat) && c.now >= p.declined && c.log.last-p.match < c.cfg.TransferLag
		if ready && (c.unfit() || slices.Contains(c.cfg.Preferred, p.id)) && (best == nil || p.match > best.match) {
			best = p
		}
	}
	if best != nil {
		c.startTransfer(Message{Transferee: best.id, Term: c.term}, 0)
	}
}

// giveAway ends a leadership that this node can no longer exercise: to the follower that is furthest, or to whoever wins.
func (c *Core) giveAway() {
	best := (*progress)(nil)
	for _, p := range c.peers {
		if c.now-p.heard < Instant(2*c.cfg.Heartbeat) && (best == nil || p.match > best.match) {
			best = p
		}
	}
	if best != nil {
		// The request goes out; this node does not wait for the outcome.
		c.send(Message{Type: MsgTransfer, To: best.id, Leader: c.cfg.ID, Term: c.term, Index: best.match, Transferer: c.cfg.ID, Transferee: best.id})
	}
	c.becomeCandidate()
	c.campaign.next = c.now + Instant(c.baseTimeout()) + c.voteInterval()
}
