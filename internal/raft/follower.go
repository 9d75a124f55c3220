package raft

import "slices"

// onPush handles the requests by which a leader builds this node's log (EntryHandler in the Java original; section 6.4).
// Every one of them is taken only from the leader of the present term, and none touches an entry at or below the commit index (R5).
func (c *Core) onPush(m *Message) {
	switch {
	case m.Term < c.term:
		c.refuse(m, StatusExpiredTerm)
		return
	case m.Term == c.term && c.leader != "" && c.leader != m.Leader:
		c.refuse(m, StatusInconsistentLeader)
		return
	}
	c.follow(m)
	switch {
	case c.failed:
		c.refuse(m, StatusDiskError)
	case m.Type == MsgCompare:
		c.onCompare(m)
	case m.Type == MsgTruncate:
		c.onTruncate(m)
	case m.Type == MsgReset:
		c.onReset(m)
	case m.Type == MsgAppend:
		c.onAppend(m)
	case m.Type == MsgCommit:
		c.commitTo(m)
		c.reply(m, Message{Term: c.term})
	}
}

// refuse answers a push. To Java leaders every refusal that concerns the log is INCONSISTENT_STATE, the one code that makes
// them compare again; the term of the answer tells ours the rest.
func (c *Core) refuse(m *Message, s Status) {
	c.reply(m, Message{Status: s, Term: c.term, XTerm: -1, XIndex: -1})
}

// compareAt refuses a comparison and tells where to look next: at end, or before xIndex, the first entry here of term xTerm.
func (c *Core) compareAt(m *Message, end Index, xTerm Term, xIndex Index) {
	a := c.answerTo(m, Message{Status: StatusInconsistentState, Term: c.term, XTerm: xTerm, XIndex: xIndex})
	a.End = end
	c.send(a)
}

// grant answers a push that entry i concludes, once i is durable here. From then on the leader may count it.
func (c *Core) grant(m *Message, i Index) {
	a := c.answerTo(m, Message{Term: c.term, XTerm: -1, XIndex: -1})
	if i <= c.durable {
		c.send(a)
		return
	}
	at := len(c.held)
	for at > 0 && c.held[at-1].index > i {
		at--
	}
	c.held = slices.Insert(c.held, at, heldAnswer{index: i, msg: a})
}

// commitTo takes the leader's commit index over, as far as this log is known to equal the leader's.
func (c *Core) commitTo(m *Message) {
	if c.matched != noMatch {
		c.setCommit(min(m.Commit, c.matched))
	}
}

// onCompare tells whether this log holds the leader's entry (Index, LogTerm).
//
// Below the commit index it does not compare but names the commit index, in every dialect where the answer can carry that: a
// Java 0.4 leader that starts its search too early (faults 1, 2 and 17) then truncates nothing that is committed. A 0.3 answer
// tells only equal or not; there the TRUNCATE that would follow is refused.
func (c *Core) onCompare(m *Message) {
	switch {
	case m.Index < c.commit && c.cfg.Compat != Compat03:
		c.compareAt(m, c.commit, -1, -1)
	case m.Index > c.log.last:
		c.compareAt(m, c.log.last, -1, -1)
	case c.log.matches(m.Index, m.LogTerm):
		c.matched = max(c.matched, m.Index)
		c.commitTo(m)
		c.grant(m, m.Index)
	case m.Index < c.log.first:
		c.compareAt(m, c.log.last, -1, -1)
	default:
		t, _ := c.log.term(m.Index)
		c.compareAt(m, c.log.last, t, max(c.log.runFirst(m.Index), c.commit+1))
	}
}

// onTruncate makes Index the last entry. In dialect 0.3 the request carries that entry, which is written if it is missing: so a
// 0.3 leader starts a follower's log where its own begins.
func (c *Core) onTruncate(m *Message) {
	keep := m.Index
	switch {
	case c.cfg.Compat == Compat03 && len(m.Payload) > 0 && !c.log.matches(keep, m.LogTerm):
		c.onRestart(m)
		return
	case keep < c.commit:
		c.event(Event{Kind: EventConflict, Peer: m.Leader, Index: keep + 1})
		c.compareAt(m, c.commit, -1, -1)
		return
	case c.cfg.Compat == Compat03 && c.log.matches(keep, m.LogTerm):
		c.matched = max(c.matched, keep)
	case keep > c.matched:
		c.compareAt(m, c.log.last, -1, -1) // not compared in this leader's term
		return
	}
	c.cut(keep)
	c.commitTo(m)
	c.grant(m, keep)
}

// cut removes the entries behind keep, which is at or above the commit index (R5).
func (c *Core) cut(keep Index) {
	if keep >= c.log.last {
		return
	}
	c.dropHeld(keep)
	c.log.cut(keep)
	c.durable = min(c.durable, keep)
	c.matched = min(c.matched, keep)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectCut, Last: keep, First: keep + 1})
	c.event(Event{Kind: EventCut, Index: keep})
}

// onRestart starts the log at an entry of a 0.3 leader that this log lacks: the first that the leader still has.
func (c *Core) onRestart(m *Message) {
	i := m.Index
	if i <= c.commit {
		c.event(Event{Kind: EventConflict, Peer: m.Leader, Index: i})
		c.refuse(m, StatusInconsistentState)
		return
	}
	prev := UnknownTerm
	switch {
	case i == 0:
		prev = -1
	case i-1 <= c.log.last && (i-1 == c.commit || i-1 <= c.matched):
		c.cut(i - 1) // what is committed or compared equals the leader's
		c.store(m)
		return
	}
	if i == 0 && c.log.first == 0 {
		c.cut(-1)
		c.store(m)
		return
	}
	c.restartBehind(i-1, prev, -1)
	c.store(m)
}

// store appends the one entry that a 0.3 TRUNCATE carries.
func (c *Core) store(m *Message) {
	c.log.extend(m.Index, m.LogTerm)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectAppend, First: m.Index, Last: m.Index, Payload: m.Payload})
	c.matched = m.Index
	c.caughtUp()
	c.commitTo(m)
	c.grant(m, m.Index)
}

// restartBehind drops the whole log; entries up to i were deleted at the leader, so they are committed.
func (c *Core) restartBehind(i Index, t Term, pos int64) {
	c.dropHeld(-1)
	c.log.reset(i, t)
	c.durable, c.matched = i, i
	c.commit = max(c.commit, i)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectReset, First: i + 1, Last: i, Term: t, Pos: pos})
	c.event(Event{Kind: EventReset, Index: i})
}

// onReset starts the log behind entry (Index, LogTerm), the last that the leader has deleted.
func (c *Core) onReset(m *Message) {
	switch {
	case c.log.matches(m.Index, m.LogTerm):
		c.matched = max(c.matched, m.Index) // nothing is missing
	case m.Index < c.commit:
		c.event(Event{Kind: EventConflict, Peer: m.Leader, Index: m.Index})
		c.compareAt(m, c.commit, -1, -1)
		return
	default:
		c.restartBehind(m.Index, m.LogTerm, m.Pos)
	}
	c.commitTo(m)
	c.grant(m, m.Index)
}

// onAppend stores the entries of a push that continue what is known to equal the leader's log. Those that are here already are
// skipped, however the range was split when it was sent before.
func (c *Core) onAppend(m *Message) {
	known := m.First-1 <= c.matched
	if m.LogTerm != UnknownTerm && c.log.matches(m.First-1, m.LogTerm) {
		known = true
	}
	if !known || m.First > c.log.last+1 || m.First < c.log.first {
		c.refuse(m, StatusInconsistentState)
		return
	}
	have := min(m.Last, c.log.last)
	if d := c.firstDifference(m, have); d >= 0 {
		if d <= c.commit {
			c.event(Event{Kind: EventConflict, Peer: m.Leader, Index: d})
		}
		c.matched = max(c.matched, d-1)
		c.refuse(m, StatusInconsistentState)
		return
	}
	if m.Last > have {
		for k, r := range m.Runs {
			hi := m.Last
			if k+1 < len(m.Runs) {
				hi = m.Runs[k+1].First - 1
			}
			if hi > c.log.last {
				c.log.extend(hi, r.Term)
			}
		}
		c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectAppend, First: have + 1, Last: m.Last, Payload: m.Payload})
		c.caughtUp()
	}
	c.matched = max(c.matched, m.Last)
	c.commitTo(m)
	c.grant(m, m.Last)
}

// firstDifference gives the first index in m.First..hi whose term here is not the one m names; -1 if there is none.
func (c *Core) firstDifference(m *Message, hi Index) Index {
	for k, r := range m.Runs {
		lo, end := r.First, m.Last
		if k+1 < len(m.Runs) {
			end = m.Runs[k+1].First - 1
		}
		for i := lo; i <= min(end, hi); {
			at := c.log.run(i)
			if c.log.runs[at].Term != r.Term {
				return i
			}
			if at+1 == len(c.log.runs) {
				break
			}
			i = c.log.runs[at+1].First
		}
	}
	return -1
}

// caughtUp ends the abstention of a node that holds again what it had lost.
func (c *Core) caughtUp() {
	if c.abstain >= 0 && c.log.last >= c.abstain {
		c.abstain = -1
	}
}
