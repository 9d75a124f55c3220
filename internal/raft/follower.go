package raft

import "slices"

// onPush handles the requests by which a leader builds this node's log (EntryHandler in the Java original; docs/protocol.md, "What a follower answers").
// Every one of them is taken only from the leader of the present term, and none touches an entry at or below the commit index (R5).
func (c *Core) onPush(m *Message) {
	switch {
	case plantedDeposedPush && m.Type == MsgAppend, plantedDeposedTruncate && m.Type == MsgTruncate:
	case m.Term < c.term:
		c.refuse(m, StatusExpiredTerm)
		return
	case m.Term == c.term && c.leader != "" && c.leader != m.Leader:
		c.refuse(m, StatusInconsistentLeader)
		return
	}
	if planted := plantedDeposedPush || plantedDeposedTruncate; !planted || m.Term >= c.term { // none goes back to an earlier term
		c.follow(m)
	}
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
	case c.matched == noMatch: // a MsgCommit, and a leader that does not know that this log has to be compared
		c.refuse(m, StatusInconsistentState)
	default:
		c.commitTo(m)
		c.reply(m, Message{Term: c.term, XTerm: -1, XIndex: -1})
	}
}

// same is the index up to which this log is known to equal the log of the present term's leader, which holds all that is committed.
func (c *Core) same() Index { return max(c.commit, c.matched) }

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
func (c *Core) grant(m *Message, i Index) { c.grantEnd(m, i, c.log.last) }

// grantEnd is grant, with end for the end of this log.
func (c *Core) grantEnd(m *Message, i, end Index) {
	a := c.answerTo(m, Message{Term: c.term, XTerm: -1, XIndex: -1})
	a.End = end
	if (i <= c.durable || plantedAckBeforeSync) && !c.unsure() {
		c.send(a)
		return
	}
	if len(c.held) >= maxHeld {
		c.refuse(m, StatusPendingFull)
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
		to := min(m.Commit, c.matched)
		if plantedCommitBeyondEnd {
			to = m.Commit
		}
		c.setCommit(to)
		c.caughtUp()
	}
}

// onCompare tells whether this log holds the leader's entry (Index, LogTerm).
//
// Where this log is known to equal the leader's it does not compare but names the end of that part, in every dialect whose answer
// can carry it: so no leader truncates what is committed or was acknowledged to it (faults 1, 2 and 17, and a comparison that
// pushes of the same leader overtake). A 0.3 answer tells only equal or not; there the TRUNCATE that would follow is refused.
func (c *Core) onCompare(m *Message) {
	if c.goal == noMatch {
		c.goal = max(m.Index, m.Commit, m.End)
		if c.claim.by == m.Leader && c.claim.term == c.term {
			c.goal = max(c.goal, c.claim.last)
		}
	}
	switch {
	case m.Index < c.same() && c.cfg.Compat != Compat03:
		c.compareAt(m, c.same(), -1, -1)
	case m.Index > c.log.last:
		c.compareAt(m, c.log.last, -1, -1)
	case c.holds(m.Index, m.LogTerm), plantedPreviousUnchecked:
		c.matched = max(c.matched, m.Index)
		c.commitTo(m)
		if at := c.above(m); at > m.Index {
			c.compareAt(m, at, -1, -1)
			return
		}
		if p := c.progress(m.Leader); c.cfg.Compat == Compat03 && m.Index < c.commit && p != nil && !p.ours {
			// A Java 0.3 leader would have everything behind the match cut, and would ask for it for ever, since what is committed stays. From a
			// follower that ends there it goes on with its next entry; those that are here already are taken for received.
			c.grantEnd(m, m.Index, m.Index)
			return
		}
		c.grant(m, m.Index)
	case m.Index < c.log.first:
		c.compareAt(m, c.log.last, -1, -1)
	default:
		if m.Index <= c.commit {
			c.conflict(m, m.Index)
		}
		c.differs = min(c.differs, m.Index)
		if same := c.same(); c.steers(m) {
			c.compareAt(m, same+(c.differs-same)/2, -1, -1)
			return
		}
		t, _ := c.log.term(m.Index)
		c.compareAt(m, c.log.last, t, max(c.log.runFirst(m.Index), c.commit+1))
	}
}

// conflict reports, once for each leader, that it wants to replace committed entry i.
func (c *Core) conflict(m *Message, i Index) {
	if !c.warned {
		c.warned = true
		c.event(Event{Kind: EventConflict, Peer: m.Leader, Index: i})
	}
}

// holds tells whether entry i of term t is here. The term of the entry before the log may not be known; that entry is committed, so
// the leader's word for it is taken.
func (c *Core) holds(i Index, t Term) bool {
	if p := c.log.prevTerm; i == c.log.first-1 && p <= UnknownTerm && t >= 0 && (p == UnknownTerm || t <= p.Ceiling()) && (len(c.log.runs) == 0 || t <= c.log.runs[0].Term) {
		c.log.prevTerm = t
	}
	return c.log.matches(i, t)
}

// steers tells whether this node leads the leader's search for the point where the logs part. A Java 0.4 leader goes to the first
// entry of the follower's conflicting term, or, on its first leadership, begins with an empty log, and then truncates entries that
// both hold and that may be committed (faults 1 and 2). But it compares wherever an answer without xTerm sends it, so the range
// between what is the same and what differs is halved from here until nothing that matches is cut.
func (c *Core) steers(m *Message) bool {
	p := c.progress(m.Leader)
	return c.cfg.Compat == Compat04 && p != nil && !p.ours
}

// above gives an entry behind the matching m.Index that a steered leader has and should compare first; m.Index or less if there is
// none. A leader has what it calls committed, and what it said to have when it asked for votes in this term.
func (c *Core) above(m *Message) Index {
	switch {
	case !c.steers(m):
		return m.Index
	case c.differs < noDifference:
		return m.Index + (c.differs-m.Index)/2
	case c.claim.by == m.Leader && c.claim.term == c.term:
		return min(max(m.Commit, c.claim.last), c.log.last)
	}
	return min(m.Commit, c.log.last)
}

// onTruncate makes Index the last entry. In dialect 0.3 the request carries that entry, which is written if it is missing: so a
// 0.3 leader starts a follower's log where its own begins.
//
// A leader of ours tells the term of its entry behind Index, and nothing is cut where ours is of that term: entries of one index and term
// are equal (R3). It has drawn its conclusion from a late answer then, and what it wants to have cut may have been acknowledged to it.
func (c *Core) onTruncate(m *Message) {
	keep := m.Index
	told := len(m.Runs) > 0
	anew := told && m.Runs[0].First == keep
	switch {
	case told && (keep < c.log.last && c.log.matches(keep+1, m.Runs[len(m.Runs)-1].Term) || c.cfg.Compat == Compat03 && !anew && !c.log.matches(keep, m.LogTerm)):
		c.compareAt(m, c.log.last, -1, -1)
		return
	case c.cfg.Compat == Compat03 && len(m.Payload) > 0 && !c.log.matches(keep, m.LogTerm):
		c.onRestart(m)
		return
	case keep < c.same():
		if keep < c.commit {
			c.conflict(m, keep+1)
		}
		c.compareAt(m, c.same(), -1, -1)
		return
	case c.cfg.Compat == Compat03 && c.log.matches(keep, m.LogTerm):
		c.matched = keep
	case keep > c.matched && !plantedDeposedTruncate:
		c.compareAt(m, c.log.last, -1, -1) // not compared in this leader's term
		return
	}
	c.cut(keep)
	c.commitTo(m)
	c.grant(m, keep)
}

// cut removes the entries behind keep, which is at or above the commit index (R5) and everything known to equal the leader's log;
// so no held answer speaks of them.
func (c *Core) cut(keep Index) {
	if keep >= c.log.last {
		return
	}
	c.log.cut(keep)
	c.durable = min(c.durable, keep)
	c.differs = noDifference
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectCut, Last: keep, First: keep + 1})
	c.event(Event{Kind: EventCut, Index: keep})
}

// onRestart starts the log at an entry of a 0.3 leader that this log lacks: the first that the leader still has.
func (c *Core) onRestart(m *Message) {
	i, same := m.Index, c.same()
	prev, _ := c.log.term(same)
	switch {
	case i < 0 || m.LogTerm < 0 || i-1 == same && m.LogTerm < prev:
		c.refuse(m, StatusUnexpectedArgument)
		return
	case i <= same:
		c.conflict(m, i)
		c.refuse(m, StatusInconsistentState)
		return
	case i-1 == same:
		c.cut(same)
	default:
		c.restartBehind(i-1, AtMost(m.LogTerm), m.Pos)
	}
	c.log.extend(i, m.LogTerm)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectAppend, First: i, Last: i, Payload: m.Payload})
	c.matched = i
	c.commitTo(m)
	c.grant(m, i)
}

// restartBehind drops the whole log; entries up to i were deleted at the leader, so they are committed.
func (c *Core) restartBehind(i Index, t Term, pos int64) {
	c.log.reset(i, t)
	c.dropHeld(noMatch)
	c.durable, c.matched, c.differs = i, i, noDifference
	c.commit = max(c.commit, i)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: EffectReset, First: i + 1, Last: i, Term: t, Pos: pos})
	c.event(Event{Kind: EventReset, Index: i})
}

// onReset starts the log behind entry (Index, LogTerm), the last that the leader has deleted.
func (c *Core) onReset(m *Message) {
	switch {
	case m.Index <= c.same(): // nothing is missing
	case c.holds(m.Index, m.LogTerm):
		c.matched = m.Index
	default:
		c.restartBehind(m.Index, m.LogTerm, m.Pos)
	}
	c.commitTo(m)
	c.grant(m, m.Index)
}

// onAppend stores the entries of a push that continue what is known to equal the leader's log. Those that are here already are
// skipped, however the range was split when it was sent before.
func (c *Core) onAppend(m *Message) {
	known := m.First-1 <= c.matched || plantedPreviousUnchecked || plantedDeposedPush && m.Term < c.term
	if m.LogTerm != UnknownTerm && c.log.matches(m.First-1, m.LogTerm) {
		known = true
	}
	if c.behind && c.goal == noMatch {
		known = false // the comparison tells how far this log has to reach
	}
	if !known || m.First > c.log.last+1 || m.First < c.log.first {
		c.refuse(m, StatusInconsistentState)
		return
	}
	if t, ok := c.log.term(m.First - 1); ok && m.Runs[0].Term < t {
		c.refuse(m, StatusUnexpectedArgument)
		return
	}
	have := min(m.Last, c.log.last)
	if d := c.firstDifference(m, have); d >= 0 {
		if d <= c.commit {
			c.conflict(m, d)
		}
		c.matched, c.differs = max(c.matched, d-1), d
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
