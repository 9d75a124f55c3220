package raft

import "slices"

// debts is what others may count on this node for and that it does not hold, or not know: after a lost tail, a lost disk, or at the first start. A node that owes
// something neither votes nor campaigns (Abstaining).
//
//  1. abstain and owed say up to where the log reached once; behind, that nobody knows up to where; unmet, that it is not known whether there
//     is anything to know. Each ends by its own rule: see caughtUp, Met, settleNew;
//  2. while untold is not nil and behind is set, nothing that this node says counts for a leader (unsure): it may have helped to depose it;
//  3. lapsed ends abstain and behind where no leader can be elected otherwise (hopeless), but not owed: what the group goes on without is known to be
//     lost only once there is a leader;
//  4. goal belongs to the leader of the present term, like matched.
type debts struct {
	abstain Index // see Initial.Abstain; -1 when this node votes
	lostAt  Term  // the term found at the start, where something was lost
	owed    Index // as abstain, but giving up (lapsed) does not end it; see Joined

	behind bool  // see Initial.Behind
	goal   Index // where behind: what has to be committed here to have caught up with this leader; noMatch until it has compared

	unmet    []ID    // see Initial.New: those that have not told yet whether the group has a past; nil where that is known
	newUntil Instant // where unmet: waiting for the last of them ends

	untold   []ID    // see Initial.New: those that have not told their term yet; nil once enough have, see settleTold
	askTerms Instant // where untold and following: the next question for terms
	sureFrom Instant // where untold: what they tell is not enough before

	lapsed bool // too many members abstained to elect a leader, so none does any more; said in answers to pre-votes until there is a leader
}

// Abstaining tells whether this node neither votes nor campaigns until it has caught up: it lost its tail, or all that it knew, or the term of its last
// entry is not known, so that it cannot tell which log is older.
func (c *Core) Abstaining() bool { return c.missing() || c.log.lastTerm() == UnknownTerm }

// missing tells whether others may count on this node for something that it does not have.
func (c *Core) missing() bool { return c.abstain >= 0 || c.behind || c.unmet != nil }

// Joined tells that nothing is left of what Initial.Abstain, Initial.Behind and Initial.New say, and that a power cut now would not bring it back.
func (c *Core) Joined() bool { return !c.behind && c.unmet == nil && !c.lapsed && c.owed < 0 }

// newPatience is how many election time-outs a node without any past waits for the last of the others.
const newPatience = 5

// Met tells what another member says of itself: whether it has a past, an entry or a term. A node that found an empty disk where
// the group has one has lost its disk, or has never been heard of; nobody knows which, and so it is behind.
func (c *Core) Met(id ID, past bool) {
	if c.unmet == nil {
		return
	}
	c.unmet = slices.DeleteFunc(c.unmet, func(x ID) bool { return x == id })
	if past {
		c.unmet, c.behind = nil, true
	}
	c.settleNew()
}

// settleNew ends the wait of a new member once all others have no past either, or a majority and the rest does not say.
func (c *Core) settleNew() {
	if n := len(c.unmet); n == 0 || c.now >= c.newUntil && len(c.cfg.Members)-n >= c.quorum {
		c.unmet = nil
	}
}

// unsure tells that this node's disk was lost, and with it the knowledge of the terms in which it voted and acknowledged: the leader it follows may have been
// deposed with its help. Nothing it says must count for that leader.
func (c *Core) unsure() bool { return c.untold != nil && c.behind }

// asksTerms tells whether it is of use to ask the others for their terms.
func (c *Core) asksTerms() bool { return c.unsure() && !c.failed }

// settleTold ends the time of asking for terms. Whoever was elected by this node, or had entries acknowledged by it, has been so by a majority; once so many of
// the others have told that every majority has one of them in it, a leader of the present term is not deposed as far as this node had a hand in it (the recovery
// protocol of Viewstamped Replication Revisited, section 4.3, asks as many). In a group of three those are all. In a larger one a vote that this node gave just before
// it lost its disk may still be waiting for another, of a member that has told already; so it waits as long as a candidate does.
func (c *Core) settleTold() {
	if c.untold == nil || c.now < c.sureFrom || len(c.peers)-len(c.untold) <= len(c.cfg.Members)-c.quorum {
		return
	}
	c.untold = nil
	c.release()
	c.caughtUp()
}

// caughtUp ends the abstention of a node that holds again what it had lost (see Initial.Abstain and Initial.Behind). A leader that this
// node helped to elect, or has acknowledged entries to, has all that anybody counts on this node for; a later one was elected without it.
//
// What is committed may be on the others' disks alone, and what has come in this turn may find no room here (Unwritten). So it waits for its own sync, too: after
// that nothing takes it any more.
func (c *Core) caughtUp() {
	kept := min(c.commit, c.durable)
	if c.behind && c.untold == nil && c.goal != noMatch && kept >= c.goal {
		c.behind, c.owed = false, -1
	}
	t, ok := c.log.term(kept)
	later := ok && t > c.lostAt
	if c.owed >= 0 && (c.durable >= c.owed || later) {
		c.owed = -1
	}
	if c.abstain >= 0 && (c.durable >= c.abstain || later) {
		c.abstain = -1
	}
}

// hopeless tells this abstaining candidate that waiting helps nobody: every member has answered, none knows a leader, and those that did not
// lose their tail, or do not know that they did, are too few to elect one.
func (c *Core) hopeless() bool {
	k := &c.campaign
	if k.led {
		return false
	}
	abstained := 1
	for i, r := range k.results {
		switch {
		case k.status[i] == StatusNotReady:
			abstained++
		case r == unanswered || r == VoteUnknown || r == VoteAlreadyHasLeader:
			return false
		}
	}
	return len(c.cfg.Members)-abstained < c.quorum
}
