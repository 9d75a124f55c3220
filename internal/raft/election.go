package raft

import (
	"slices"
	"time"
)

// campaign is one candidate's attempt to win a term: first a pre-vote that raises nobody's term, then the vote itself
// (DLedgerLeaderElector.maintainAsCandidate in the Java original; docs/protocol.md, "Rounds of a candidate").
//
// Unlike the original a candidate never starts a second attempt in a term it has campaigned in: only voters that answered
// TERM_NOT_READY are asked again within the same attempt. A voter whose disk was lost in between could otherwise give a second
// leader to the term (R1).
type campaign struct {
	phase   phase
	round   Index   // number of this attempt; an answer to an earlier one does not count
	next    Instant // when idle: the next attempt
	until   Instant // when running: draw the conclusion at the latest
	revote  Instant // ask those that were not ready once more; 0 = no
	again   Instant // ask those once more that have not answered, or refused a pre-vote
	pause   Instant // between two such questions
	results []VoteResult
	status  []Status
	pre     bool // the running phase is the pre-vote
	led     bool // an answer has named a leader
	outdone int  // votes in a row that were lost to longer logs
	late    int  // attempts in a row that ended before everybody had answered
}

type phase uint8

const (
	idle phase = iota
	asking
)

// end is for when the term has its leader: what was lost before says nothing of the next campaign.
func (k *campaign) end() { k.phase, k.outdone, k.late = idle, 0, 0 }

func (k *campaign) deadline() Instant {
	if k.phase == idle {
		return k.next
	}
	if k.revote != 0 {
		return min(k.revote, k.again, k.until)
	}
	return min(k.again, k.until)
}

// unanswered marks a voter that has not answered yet in campaign.results.
const unanswered VoteResult = 255

// revotePause gives a voter of the original time to take the new term in; its loop runs every 10 ms.
const revotePause = Instant(12 * time.Millisecond)

// baseTimeout is the silence after which a follower may take its leader for dead, and a leader its majority for lost.
func (c *Core) baseTimeout() time.Duration {
	return time.Duration(c.cfg.HeartbeatLeak) * c.cfg.Heartbeat
}

func (c *Core) draw(lo, hi time.Duration) Instant {
	if hi <= lo {
		return Instant(lo)
	}
	return Instant(lo) + Instant(c.cfg.Rand(int64(hi-lo)))
}

func (c *Core) voteInterval() Instant {
	if c.takingLeadership() {
		return c.draw(c.cfg.MinTakeInterval, c.cfg.MaxTakeInterval)
	}
	return c.draw(c.cfg.MinVoteInterval, c.cfg.MaxVoteInterval)
}

// becomeCandidate leaves whatever role this node has, in its present term.
func (c *Core) becomeCandidate() {
	was := c.role
	if was != Candidate {
		c.alone = c.now
	}
	c.role, c.leader = Candidate, ""
	c.dropHeld(noMatch)
	if was == Leader {
		c.stopLeading()
	}
	c.campaign.phase, c.campaign.next = idle, c.now+c.voteInterval()
	c.event(Event{Kind: EventRole})
}

// becomeFollower follows the leader of term t, which is at least the own term. If it has no vote in that term, the leader gets it:
// so it is not forgotten over a restart that the term has its leader, and a member that lost its disk cannot collect a second one.
//
// What is known of that leader's log stays known where this node only missed it for a while: a late copy of its TRUNCATE must not cut
// what was acknowledged to it since, nor a later comparison make a node that is behind believe that it has caught up.
func (c *Core) becomeFollower(t Term, leader ID) {
	was := c.role
	if leader != c.led {
		c.forgetMatch()
	}
	c.role, c.leader, c.warned = Follower, leader, false
	c.dropHeld(noMatch)
	if was == Leader {
		c.stopLeading()
	}
	if t > c.term || c.vote == "" {
		c.setTerm(t, leader)
	}
	if c.lapsed { // it gave up waiting for the election of a leader, and not its debt: now there is one who has all that is left
		c.behind = true
	}
	c.led, c.lapsed = leader, false
	if c.unmet != nil {
		c.unmet, c.behind = nil, true // who has a leader has a past
	}
	switch c.transfer.to {
	case "":
	case leader:
		c.endTransfer(StatusOK)
	default:
		c.endTransfer(StatusTakeLeadershipFailed)
	}
	c.askTerms = c.now
	c.campaign.end()
	c.heard = c.now
	c.patience = c.baseTimeout() + time.Duration(c.draw(0, c.cfg.Heartbeat))
	c.event(Event{Kind: EventRole})
}

// learn enters a higher term seen in a message, whoever wins it. It is done also where the message itself is refused, so that
// no member stays outside the group with a term that the others never reach.
func (c *Core) learn(t Term, from ID) {
	if t <= c.term || t > maxTerm {
		return
	}
	c.setTerm(t, "")
	c.event(Event{Kind: EventTermLearned, Peer: from})
	c.becomeCandidate()
}

func (c *Core) tickFollower() {
	if c.asksTerms() && c.now >= c.askTerms {
		c.askTerms = c.now + Instant(c.cfg.Heartbeat)
		c.settleTold()
		for _, id := range c.untold {
			m := c.ballot(id)
			m.Type, m.Term = MsgPreVote, c.term
			c.send(m)
		}
	}
	if !c.cfg.NoElection && c.now >= c.heard+Instant(c.patience) {
		c.becomeCandidate()
		c.campaign.next = c.now // patience was random already
		if c.full {
			c.campaign.next += Instant(c.cfg.MaxVoteInterval) // others first
		}
		c.tickCandidate()
	}
}

func (c *Core) tickCandidate() {
	k := &c.campaign
	if c.unmet != nil {
		c.settleNew()
	}
	c.settleTold()
	switch {
	case c.cfg.NoElection || c.failed:
		k.phase, k.next = idle, c.now+Instant(c.cfg.MaxVoteInterval)
	case c.damaged && !c.takingLeadership() && k.phase == idle && c.now < c.alone+damagedPatience*Instant(c.baseTimeout()):
		k.next = c.alone + damagedPatience*Instant(c.baseTimeout())
	case c.unmet != nil && k.phase == idle && c.now >= k.next:
		k.next = c.now + Instant(c.cfg.MaxVoteInterval)
	case k.phase == idle && c.now >= k.next:
		c.startCampaign(!c.takingLeadership())
	case k.phase == asking && c.now >= k.until:
		c.conclude()
	case k.phase == asking && k.revote != 0 && c.now >= k.revote:
		k.revote = 0
		for i, r := range k.results {
			if r == VoteTermNotReady {
				k.results[i] = unanswered
				c.askVote(c.peers[i].id)
			}
		}
	case k.phase == asking && c.now >= k.again:
		k.again = c.now + k.pause
		for i, r := range k.results {
			if r == unanswered || k.pre && r != VoteAccept {
				c.askVote(c.peers[i].id)
			}
		}
	}
}

// lateMost and longestWait bound how far the wait for answers grows.
const (
	lateMost    = 7
	longestWait = Instant(10 * time.Second)
)

// stretch doubles a wait for each attempt in a row that ended before everybody had answered: an answer to an attempt that has ended does not count, so a wait that is
// shorter than the way there and back, and what a candidate and a voter need to save a term, would never elect anybody. Who does not answer is asked again meanwhile:
// it may have been away.
func (k *campaign) stretch(d Instant) Instant {
	return max(d, min(d<<min(k.late, lateMost), longestWait))
}

// startCampaign asks everybody, as a pre-vote or for real in a new term.
func (c *Core) startCampaign(pre bool) {
	k := &c.campaign
	k.round++
	k.phase, k.pre, k.revote, k.led = asking, pre, 0, false
	k.results, k.status = k.results[:0], k.status[:0]
	for range c.peers {
		k.results, k.status = append(k.results, unanswered), append(k.status, StatusOK)
	}
	wait := Instant(min(c.cfg.VoteWait, max(c.cfg.Heartbeat/2, 20*time.Millisecond)))
	if !pre {
		t := c.term + 1
		if plantedTermAgain && c.vote == c.cfg.ID {
			t = c.term
		}
		c.setTerm(t, c.cfg.ID)
		wait = c.draw(c.cfg.VoteWait, c.cfg.VoteWait+c.cfg.VoteWait/2)
	}
	k.pause = wait + c.voteInterval()
	k.until, k.again = c.now+k.stretch(wait), c.now+k.pause
	for _, p := range c.peers {
		c.askVote(p.id)
	}
	c.tally()
}

// ballot gives a request for the vote of a member in the present term.
func (c *Core) ballot(id ID) Message {
	m := Message{Type: MsgVote, To: id, Leader: c.cfg.ID, Term: c.term, Index: c.log.last, LogTerm: c.log.lastTerm(), Asked: c.campaign.round}
	if plantedEndTermIsTerm {
		m.LogTerm = c.term
	}
	return m
}

func (c *Core) askVote(id ID) {
	m := c.ballot(id)
	if c.campaign.pre {
		m.Type, m.Term = MsgPreVote, c.term+1
	}
	c.send(m)
}

func (c *Core) onVoteAnswer(m *Message) {
	// A refusal may carry a higher term. An acceptance of a pre-vote names the term that was proposed, an error that of the request.
	if m.Vote != VoteAccept && (m.Vote != VoteUnknown || m.Status == StatusNotReady) {
		c.learn(m.Term, m.From)
	}
	if m.Type == MsgPreVoteAnswer && m.Status == StatusOK && m.Vote != VoteUnknown && m.Term >= 0 && m.Term <= c.term {
		c.untold = slices.DeleteFunc(c.untold, func(id ID) bool { return id == m.From }) // its term is known, and not above the own one
		c.settleTold()
	}
	k := &c.campaign
	if c.role != Candidate || k.phase != asking || m.Asked != k.round || k.pre != (m.Type == MsgPreVoteAnswer) {
		return
	}
	if m.Vote == VoteAccept && !k.pre && m.Term != c.term {
		return // no vote for this term
	}
	for i, p := range c.peers {
		if p.id == m.From {
			k.results[i], k.status[i] = m.Vote, m.Status
			k.led = k.led || m.Leader != "" && m.Leader != c.cfg.ID
			c.tally()
			return
		}
	}
}

// tally acts as soon as the answers decide. The own vote counts as accepted. Those who gave up abstaining are counted only where everybody
// accepts: so of the logs that are left the longest leads.
func (c *Core) tally() {
	k := &c.campaign
	accepted, sound, notReady, open, split := 1, 1, 0, 0, false
	if c.lapsed {
		sound = 0
	}
	for i, r := range k.results {
		switch r {
		case VoteAccept:
			accepted++
			if k.status[i] != StatusNotReady {
				sound++
			}
		case VoteTermNotReady:
			notReady++
		case VoteAlreadyVoted:
			split = true
		case unanswered:
			open++
		}
	}
	if c.Abstaining() {
		if c.missing() && c.hopeless() {
			c.abstain, c.behind, c.untold, c.lapsed = -1, false, nil, true
		}
		if open == 0 {
			c.conclude()
		}
		return
	}
	enough := func(more int) bool { return sound+more >= c.quorum || accepted+more >= len(c.cfg.Members) }
	switch {
	case enough(0) && k.pre:
		c.startCampaign(false)
	case enough(0):
		c.becomeLeader()
	case enough(notReady) && k.revote == 0:
		k.revote = c.now + revotePause // REVOTE_IMMEDIATELY: the same attempt goes on
	case !enough(notReady+open) || open == 0 && notReady == 0:
		c.conclude()
	case split && !k.pre:
		// Two candidates met, and who has not answered is most likely the dead leader: not worth the whole wait.
		k.until = min(k.until, c.now+Instant(c.cfg.MinVoteInterval))
	}
}

// maxOutdone bounds, in MaxVoteInterval, the pause of a candidate that loses vote after vote to a longer log.
const maxOutdone = 4

// conclude ends an attempt that was not won, and sets the next one: the pauses are the original's (docs/protocol.md, "Rounds of a candidate", rows 2 to 7),
// but for "already has leader", where it waits three heartbeat intervals and stretches its failovers.
func (c *Core) conclude() {
	k := &c.campaign
	k.phase = idle
	k.next = c.now + c.voteInterval()
	valid, bigger, open, hasLeader := 1, 0, 0, false
	for _, r := range k.results {
		switch r {
		case unanswered:
			open++
			continue
		case VoteUnknown:
			continue
		case VoteExpiredLedgerTerm, VoteSmallLedgerEndIndex:
			bigger++
		case VoteAlreadyHasLeader:
			hasLeader = true
		}
		valid++
	}
	if k.late++; open == 0 {
		k.late = 0
	}
	switch {
	case hasLeader:
		if !k.pre {
			k.next += Instant(c.cfg.Heartbeat)
		}
	case valid >= c.quorum && valid-bigger < c.quorum:
		pauses := 1 // others are ahead; let them try
		if !k.pre {
			// Mostly a member of the original, which knows no pre-vote, lets it come to this. It takes no term from this vote, and is about
			// to campaign in the very term that this node has just voted in. It gets more and more time to pass it.
			k.outdone = min(k.outdone+1, maxOutdone)
			pauses = k.outdone
		}
		k.next += Instant(pauses) * Instant(c.cfg.MaxVoteInterval)
	}
}

// castVote answers a VOTE request by the rules of DLedgerLeaderElector.handleVote in their order (docs/protocol.md, "Votes"). Rule 8
// differs: a higher term is entered at once and voted in, where the original only enters it and answers TERM_NOT_READY; its candidates
// understand both. With that, rules 9 and 10 have no case left here: no term is below that of the own last entry, and who takes leadership
// over has voted for itself.
//
// Nobody is voted for in a term that has had a leader, even if it was this candidate: it was restarted, may have lost entries, and
// would write others with the same index and term (fault 6); or the disk of a voter was lost meanwhile (fault 36). ALREADY_VOTED
// sends a Java candidate to the next term.
//
// Who gave up abstaining says so in its acceptance (see tally), as in a pre-vote: that may have been decided by a stand-in, for a member that has just started and does
// abstain (docs/adr/0010). A Java candidate reads past it.
func (c *Core) castVote(m *Message) Message {
	c.learn(m.Term, m.From)
	refuse := func(why VoteResult) Message { return Message{Vote: why, Term: c.term} }
	c.claim = claim{by: m.Leader, term: m.Term, last: m.Index}
	last, lastTerm := c.log.last, c.log.lastTerm()
	switch {
	case c.failed || c.Abstaining():
		return refuse(VoteUnknown)
	case m.LogTerm < lastTerm:
		return refuse(VoteExpiredLedgerTerm)
	case m.LogTerm == lastTerm && m.Index < last:
		return refuse(VoteSmallLedgerEndIndex)
	case m.Term < c.term:
		return refuse(VoteExpiredTerm)
	case c.leader != "" && c.leader != m.Leader:
		return refuse(VoteAlreadyHasLeader)
	case c.vote != "" && c.vote != m.Leader, c.led != "":
		return refuse(VoteAlreadyVoted)
	}
	if c.vote == "" {
		c.setTerm(c.term, m.Leader)
	}
	if c.role == Candidate {
		// Leave the one voted for the time to show itself.
		c.campaign.phase, c.campaign.next = idle, c.now+Instant(c.cfg.Heartbeat)+c.voteInterval()
	}
	a := Message{Vote: VoteAccept, Term: c.term}
	if c.lapsed {
		a.Status = StatusNotReady
	}
	return a
}

// preVote tells whether castVote would accept, and whether this node misses a leader at all. It changes nothing.
func (c *Core) preVote(m *Message) Message {
	a := Message{Term: c.term}
	last, lastTerm := c.log.last, c.log.lastTerm()
	if c.missing() || c.lapsed {
		a.Status = StatusNotReady
	}
	switch {
	case c.failed:
		a.Vote, a.Status = VoteUnknown, StatusDiskError
	case c.Abstaining():
		a.Vote = VoteUnknown
	case m.LogTerm < lastTerm:
		a.Vote = VoteExpiredLedgerTerm
	case m.LogTerm == lastTerm && m.Index < last:
		a.Vote = VoteSmallLedgerEndIndex
	case m.Term < c.term:
		a.Vote = VoteExpiredTerm
	case c.role == Leader, c.role == Follower && c.leader != m.Leader && c.now < c.heard+Instant(c.baseTimeout()):
		a.Vote = VoteAlreadyHasLeader
	case m.Term == c.term && c.vote != "" && c.vote != m.Leader:
		a.Vote = VoteAlreadyVoted
	case c.takingLeadership() && m.LogTerm == lastTerm && last >= m.Index:
		a.Vote = VoteTakingLeadership
	default:
		a.Vote, a.Term = VoteAccept, m.Term
	}
	return a
}

// onHeartbeat follows DLedgerLeaderElector.handleHeartBeat (docs/protocol.md, "Heartbeats"); a higher term is entered and its leader followed at once.
func (c *Core) onHeartbeat(m *Message) {
	switch {
	case m.Term < c.term:
		c.reply(m, Message{Status: StatusExpiredTerm, Term: c.term})
		return
	case m.Term == c.term && c.leader != "" && c.leader != m.Leader:
		c.reply(m, Message{Status: StatusInconsistentLeader, Term: c.term})
		return
	}
	c.follow(m)
	s := StatusOK
	if c.unsure() {
		s = StatusNotReady
	}
	c.reply(m, Message{Status: s, Term: c.term})
}

// follow takes a sign of life of the present term's leader.
func (c *Core) follow(m *Message) {
	if m.Term > c.term || c.role != Follower || c.leader != m.Leader {
		c.becomeFollower(m.Term, m.Leader)
	}
	c.heard = c.now
}
