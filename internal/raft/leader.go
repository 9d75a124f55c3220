package raft

import (
	"cmp"
	"slices"
	"time"
)

// progress is what the leader knows of one follower (EntryDispatcher in the Java original).
//
//  1. entries up to match are stored there and equal ours, durably if the group's acknowledgements are;
//  2. in state appending, everything before next has been sent, and inflight lists what of it is unanswered, oldest first;
//  3. in every other state at most one request is on its way, sent at sentAt.
type progress struct {
	id    ID
	state peerState
	match Index
	next  Index
	// cmp is the entry being compared. In dialect 0.3 the answer does not say in which term the logs part, so the point is searched
	// between equal (known to be equal; -1: none is) and differs (known to differ; -1: none is).
	cmp            Index
	equal, differs Index
	doubt          int  // answers that a log of one entry gives, or a Java 0.4 node's internal error; 0 = the last was none
	sure           bool // dialect 0.3: that differs differs was asked twice
	steps          int  // comparisons since the last restart
	refusals       int  // refusals in a row since an append was taken
	inflight       []request
	waiting        bool
	asked          Index // number of the question that is open, or comes next, or of the appends since the last one; an answer to an earlier one does not count
	sentAt         Instant
	retryAt        Instant // nothing is sent before; 0 = no pause
	pushedAt       Instant // last push of any kind
	commit         Index   // commit index last sent
	heard          Instant // last answer of one that follows, or when this term began
	round          Index   // latest heartbeat round answered
	again          Instant // send the heartbeat of this round once more, to a Java node that had to enter the term first; 0 = no
	repeated       Index   // the last round in which that was done
	ours           bool    // known to be of this implementation
	told           bool    // EventStuck was reported
	declined       Instant // it is not asked to take leadership over before
}

type request struct {
	last Index
	at   Instant
}

// span is a stretch of the log that was just sent to one follower. The next one is mostly sent the same, and shares the runs.
type span struct {
	first, last Index
	runs        []Run
}

type peerState uint8

const (
	comparing  peerState = iota // COMPARE: looking for the last entry both logs hold
	truncating                  // TRUNCATE: what the follower has behind it goes
	resetting                   // the follower's log starts anew where ours begins
	appending                   // APPEND and COMMIT
)

func (s peerState) String() string {
	return [...]string{"compare", "truncate", "reset", "append"}[s]
}

// restart forgets what was under way; the next request compares at last.
func (p *progress) restart(last Index) {
	p.state, p.cmp, p.waiting, p.retryAt, p.doubt, p.steps = comparing, last, false, 0, 0, 0
	p.asked++
	p.equal, p.differs, p.sure = -1, -1, false
	p.inflight = p.inflight[:0]
}

// beat counts heartbeat rounds; an answer carries the number of its round back.
type beat struct {
	round Index
	due   Instant
}

// read is a ReadIndex request that waits for heartbeat round to be answered by a majority.
type read struct {
	ref   uint64
	round Index
}

// idleResend is how long a follower may go without a push: then the commit index is sent once more, as the last one may be lost.
const idleResend = Instant(time.Second)

// A follower that refuses again and again is asked less and less often; so is one that makes a comparison go on and on.
const (
	retryPauseMin = Instant(50 * time.Millisecond)
	retryPauseMax = Instant(time.Second)
	manySteps     = 100
	manyDoubts    = 4
)

// startOver compares from the last entry on, after a pause if this was refused before.
func (c *Core) startOver(p *progress, pause bool) {
	p.restart(c.log.last)
	if pause || p.refusals > 0 {
		p.retryAt = c.now + min(retryPauseMin<<min(p.refusals, 8), retryPauseMax)
	}
	p.refusals++
}

// preferredEvery is how often a leader that is not preferred looks for one that is (DLedgerServer.checkPreferredLeader in the Java
// original), preferredPause how long a member that could not take over is left alone.
const (
	preferredEvery = Instant(time.Second)
	preferredPause = 10 * preferredEvery
)

func (c *Core) becomeLeader() {
	if c.lapsed {
		c.owed = -1 // what everybody lacks is gone
	}
	c.role, c.leader, c.led, c.lapsed = Leader, c.cfg.ID, c.cfg.ID, false
	c.campaign.end()
	if c.transfer.to != "" {
		c.endTransfer(StatusTakeLeadershipFailed) // one of an earlier leadership
	}
	c.termFirst = c.log.last + 1
	c.durableAt = c.now
	for _, p := range c.peers {
		p.restart(c.log.last)
		p.match, p.next, p.round, p.heard, p.commit, p.pushedAt, p.told, p.refusals, p.again = -1, c.log.last+1, 0, c.now, -1, 0, false, 0, 0
	}
	c.preferred = c.now + preferredEvery
	c.settleTaking()
	c.startBeat()
	c.event(Event{Kind: EventRole})
	c.inherit()
	c.advance()
}

// inherit begins the term with a no-op where entries of earlier terms wait, for they are committed only together with one of this
// term. It is tried again with each heartbeat while the disk has no room.
func (c *Core) inherit() {
	if c.commit < c.log.last && c.log.last < c.termFirst && c.cfg.Compat != Compat03 {
		c.own(EffectNoop, 1)
	}
}

// stopLeading refuses the reads that wait for this leader.
func (c *Core) stopLeading() {
	c.transfer.until = c.now + Instant(2*c.cfg.VoteWait+time.Second)
	for _, r := range c.reads {
		c.ready.Confirms = append(c.ready.Confirms, Confirm{Ref: r.ref, Index: -1, Status: StatusNotLeader})
	}
	c.reads = c.reads[:0]
	for _, p := range c.peers {
		p.inflight = p.inflight[:0]
	}
}

func (c *Core) tickLeader() {
	if c.now >= c.beat.due {
		c.startBeat()
		c.inherit()
	}
	for _, p := range c.peers {
		if p.again != 0 && c.now >= p.again {
			c.sendBeat(p)
		}
	}
	switch {
	case c.now >= c.contact()+Instant(c.baseTimeout()):
		c.becomeCandidate() // no majority hears this leader
		return
	case c.stalled():
		c.event(Event{Kind: EventStalled})
		c.giveAway()
		return
	}
	if c.looks() && c.now >= c.preferred {
		c.preferred = c.now + preferredEvery
		c.lookForBetter()
	}
}

func (c *Core) leaderDeadline() Instant {
	d := min(c.beat.due, c.contact()+Instant(c.baseTimeout()))
	if c.durable < c.log.last && len(c.peers) > 0 {
		d = min(d, c.durableAt+c.stallLimit())
	}
	if c.looks() {
		d = min(d, c.preferred)
	}
	for _, p := range c.peers {
		if p.again != 0 {
			d = min(d, p.again)
		}
		switch {
		case p.retryAt > c.now:
			d = min(d, p.retryAt)
		case p.state != appending:
			if p.waiting {
				d = min(d, p.sentAt+Instant(c.cfg.PushTimeout))
			}
		case len(p.inflight) > 0:
			d = min(d, p.inflight[0].at+Instant(c.cfg.PushTimeout))
		case p.commit < c.commit:
			d = min(d, p.pushedAt+Instant(c.cfg.CommitIdle))
		default:
			d = min(d, p.pushedAt+idleResend)
		}
	}
	return d
}

// stallLimit is how long the leader's own sync may take before it is taken for hanging.
func (c *Core) stallLimit() Instant { return 2 * Instant(max(c.baseTimeout(), time.Second)) }

func (c *Core) stalled() bool {
	return len(c.peers) > 0 && c.durable < c.log.last && c.now >= c.durableAt+c.stallLimit()
}

// reached gives how far every member is, and how far a majority is at least: this node is at own, each of the others where of says.
func reached[T cmp.Ordered](c *Core, own T, of func(*progress) T) (every, most T) {
	at := make([]T, 0, 8)
	at = append(at, own)
	for _, p := range c.peers {
		at = append(at, of(p))
	}
	slices.Sort(at)
	return at[0], at[len(at)-c.quorum]
}

// contact is the latest instant at which a majority was known to hear this leader.
func (c *Core) contact() Instant {
	_, at := reached(c, c.now, func(p *progress) Instant { return p.heard })
	return at
}

// startBeat sends a heartbeat round.
func (c *Core) startBeat() {
	c.beat.round++
	c.beat.due = c.now + Instant(c.cfg.Heartbeat)
	for _, p := range c.peers {
		c.sendBeat(p)
	}
	c.settleReads()
}

func (c *Core) sendBeat(p *progress) {
	p.again = 0
	c.send(Message{Type: MsgHeartbeat, To: p.id, Leader: c.cfg.ID, Term: c.term, Commit: -1, Index: c.beat.round})
}

func (c *Core) onHeartbeatAnswer(m *Message) {
	p := c.progress(m.From)
	if p == nil {
		return
	}
	if m.Status == StatusExpiredTerm || m.Status == StatusTermNotReady {
		c.learn(m.Term, m.From)
	}
	if c.role != Leader {
		return
	}
	switch {
	case m.Status == StatusTermNotReady && p.repeated < c.beat.round:
		p.again, p.repeated = c.now+revotePause, c.beat.round
	case m.Status == StatusOK:
		p.heard = c.now
		p.round = max(p.round, min(m.Index, c.beat.round))
		c.settleReads()
	case m.Status == StatusInconsistentLeader && m.Term == c.term:
		c.becomeCandidate() // two leaders in one term: neither may stay
	}
}

// maxReads bounds the confirmations that wait for a majority.
const maxReads = 1 << 16

// ReadIndex asks for a confirmation that this node still leads, and for the index up to which a read sees every append that
// was acknowledged before. The outcome comes as a Confirm with ref: by a heartbeat round that starts after the request, or refused
// when this node does not lead (any more) or too many wait.
func (c *Core) ReadIndex(ref uint64) {
	refused := StatusOK
	switch {
	case c.role != Leader:
		refused = StatusNotLeader
	case len(c.reads) >= maxReads:
		refused = StatusPendingFull
	}
	if refused != StatusOK {
		c.ready.Confirms = append(c.ready.Confirms, Confirm{Ref: ref, Index: -1, Status: refused})
		return
	}
	if plantedStaleRead {
		c.ready.Confirms = append(c.ready.Confirms, Confirm{Ref: ref, Index: c.commit})
		return
	}
	c.reads = append(c.reads, read{ref: ref, round: c.beat.round + 1})
	c.settleReads()
}

func (c *Core) settleReads() {
	if len(c.reads) == 0 {
		return
	}
	inherited := c.commit >= c.termFirst-1 // until then an acknowledged entry may not be known as committed here
	round := c.quorumRound()
	c.reads = slices.DeleteFunc(c.reads, func(r read) bool {
		if !inherited || round < r.round {
			return false
		}
		c.ready.Confirms = append(c.ready.Confirms, Confirm{Ref: r.ref, Index: c.commit})
		return true
	})
}

// quorumRound is the latest heartbeat round that a majority, this node included, has answered.
func (c *Core) quorumRound() Index {
	_, round := reached(c, c.beat.round, func(p *progress) Index { return p.round })
	return round
}

// advance commits what the acknowledgements allow: the highest index that a majority holds, if it is of the own term (R4, the
// figure-8 rule); everything before it goes along. What every member holds is committed too, whatever its term: no log without
// it can win an election any more. That is how a group in compat 0.3, which may not write no-ops, gets at what it inherited.
func (c *Core) advance() {
	i, most := reached(c, c.durable, func(p *progress) Index { return p.match })
	if most >= c.termFirst || plantedCommitByCounting {
		i = most
	}
	if i > c.commit {
		c.setCommit(i)
		c.settleReads()
	}
}

// replicate sends a follower what it may be sent now.
func (c *Core) replicate(p *progress) {
	if c.now < p.retryAt {
		return
	}
	p.retryAt = 0
	if p.state != appending {
		if p.waiting && c.now < p.sentAt+Instant(c.cfg.PushTimeout) {
			return
		}
		c.probe(p)
		return
	}
	if len(p.inflight) > 0 && c.now >= p.inflight[0].at+Instant(c.cfg.PushTimeout) {
		p.restart(c.log.last)
		c.probe(p)
		return
	}
	for p.state == appending && p.next <= c.log.last && c.room(p) {
		c.sendAppend(p)
	}
	if p.state == appending && len(p.inflight) == 0 && (p.commit < c.commit && c.now >= p.pushedAt+Instant(c.cfg.CommitIdle) || c.now >= p.pushedAt+idleResend) {
		c.push(p, Message{Type: MsgCommit})
	}
}

// fewInflight and manyEntries shape the pipeline: a follower that has not answered a few requests yet gets the next one only
// once it is worth a frame of its own. It keeps latency low at light load and frames large at heavy load.
const (
	fewInflight = 2
	manyEntries = 64
)

func (c *Core) room(p *progress) bool {
	n := len(p.inflight)
	return n < fewInflight || n < c.cfg.MaxInflight && c.log.last-p.next+1 >= manyEntries
}

func (c *Core) sendAppend(p *progress) {
	if p.next < c.log.first {
		p.restart(c.log.last) // retention overtook this follower
		c.probe(p)
		return
	}
	last := min(c.log.last, p.next+c.cfg.MaxEntries-1)
	if c.sent.first != p.next || c.sent.last != last || c.sent.runs == nil {
		c.sent = span{p.next, last, c.log.slice(p.next, last)}
	}
	m := Message{Type: MsgAppend, Index: p.next - 1, First: p.next, Last: last, Runs: c.sent.runs}
	m.LogTerm, _ = c.log.term(p.next - 1)
	c.push(p, m)
	p.inflight = append(p.inflight, request{last: last, at: c.now})
	p.next = last + 1
}

// probe sends the one request of a state that is not appending.
func (c *Core) probe(p *progress) {
	if c.log.first > c.log.last && c.cfg.Compat == Compat03 {
		return // its requests carry an entry, and there is none
	}
	if c.cfg.Compat == Compat03 && p.state != resetting && p.cmp < c.log.first {
		p.restart(c.log.last) // the entry is not there any more, or never was
	}
	if p.state == truncating && p.cmp < c.log.first-1 {
		p.restart(c.log.last) // retention has passed it, and with it the entry behind
	}
	if p.state == comparing {
		if _, ok := c.log.term(p.cmp); !ok {
			c.startReset(p, c.log.first)
		}
	}
	m := Message{Index: p.cmp}
	switch ours := p.ours || c.cfg.Compat == CompatGo; {
	case c.now < p.retryAt:
		return
	case p.state == comparing:
		m.Type, m.End = MsgCompare, -1
		if ours {
			m.End = c.log.last
		}
	case p.state == truncating:
		m.Type = MsgTruncate
		if ours {
			m.Runs = c.behindEntry(p.cmp)
		}
	case c.cfg.Compat == Compat03: // a 0.3 node is reset by a TRUNCATE to an entry it lacks (docs/protocol.md, "What a leader sends")
		p.cmp = max(p.cmp, c.log.first)
		m.Type, m.Index = MsgTruncate, p.cmp
		if ours {
			m.Runs = c.withEntry(p.cmp)
		}
	case c.log.first > c.log.last:
		return // nothing to send yet
	default:
		p.cmp = c.log.first - 1
		m.Type, m.Index = MsgReset, p.cmp
	}
	m.LogTerm, _ = c.log.term(m.Index)
	if m.Type == MsgReset {
		m.First = c.log.first
		if m.LogTerm == UnknownTerm {
			m.LogTerm = AtMost(c.log.runs[0].Term)
		}
	}
	p.waiting, p.sentAt = true, c.now
	c.push(p, m)
}

// behindEntry tells what stands behind entry i for as long as this term lasts: what is there, or what this leader will write.
func (c *Core) behindEntry(i Index) []Run {
	if t, ok := c.log.term(i + 1); ok {
		return []Run{{Term: t, First: i + 1}}
	}
	return []Run{{Term: c.term, First: i + 1}}
}

// withEntry is behindEntry together with entry i, with which a log that lacks it starts anew.
func (c *Core) withEntry(i Index) []Run {
	t, _ := c.log.term(i)
	behind := c.behindEntry(i)
	if behind[0].Term == t {
		return []Run{{Term: t, First: i}}
	}
	return []Run{{Term: t, First: i}, behind[0]}
}

// startReset makes the follower's log begin at entry at, where its kind can do that.
func (c *Core) startReset(p *progress, at Index) {
	switch {
	case c.cfg.Compat == Compat04 && !p.ours:
		if !p.told {
			p.told = true
			c.event(Event{Kind: EventStuck, Peer: p.id, Index: c.log.first})
		}
		p.restart(c.log.last)
		p.retryAt = c.now + Instant(c.cfg.Heartbeat)
	case at > c.log.last:
		p.restart(c.log.last)
		p.retryAt = c.now + Instant(c.cfg.Heartbeat) // until there is an entry to begin with
	default:
		p.state, p.cmp = resetting, at
	}
}

func (c *Core) push(p *progress, m Message) {
	m.To, m.Leader, m.Term, m.Commit = p.id, c.cfg.ID, c.term, c.commit
	m.Asked = p.asked // the same where a question is only put once more
	p.pushedAt, p.commit = c.now, c.commit
	c.send(m)
}

func (c *Core) onPushAnswer(m *Message) {
	p := c.progress(m.From)
	if p == nil {
		return
	}
	if m.Status == StatusExpiredTerm {
		c.learn(m.Term, m.From)
	}
	if c.role != Leader {
		return
	}
	if m.Term != c.term {
		return // it speaks of an earlier leadership, and of entries that may be gone
	}
	p.heard = c.now
	if m.Asked != p.asked {
		return // from before the last comparison: a truncation may have come between, or the loss of a disk
	}
	switch m.Type {
	case MsgAppendAnswer:
		c.onAppendAnswer(p, m)
	case MsgCommitAnswer:
		if m.Status == StatusInconsistentState && p.state == appending && len(p.inflight) == 0 {
			c.startOver(p, false) // it started anew and was not seen to
		}
	default:
		if p.state == appending || !p.waiting || m.Index != p.cmp || m.Type == MsgCompareAnswer != (p.state == comparing) {
			return
		}
		p.waiting = false
		p.asked++
		if m.Type == MsgCompareAnswer {
			c.onCompareAnswer(p, m)
		} else {
			c.onTruncateAnswer(p, m)
		}
	}
}

// onAppendAnswer counts what the follower has stored. An answer may cover a part of what was sent as one request.
func (c *Core) onAppendAnswer(p *progress, m *Message) {
	switch {
	case p.state != appending:
		return
	case m.Status != StatusOK:
		c.startOver(p, m.Status != StatusInconsistentState) // else: not a follower yet, its disk is full, …
		return
	case m.Last >= p.next || len(p.inflight) == 0:
		return
	}
	p.refusals = 0
	k := 0
	for k < len(p.inflight) && p.inflight[k].last <= m.Last {
		k++
	}
	p.inflight = slices.Delete(p.inflight, 0, k)
	if len(p.inflight) > 0 {
		p.inflight[0].at = c.now // it had to wait for what is answered now, or a part of it is answered
	}
	if m.Last > p.match {
		p.match = m.Last
		c.advance()
	}
}

// onCompareAnswer narrows down where the logs part, or found it.
func (c *Core) onCompareAnswer(p *progress, m *Message) {
	if p.steps++; p.steps > manySteps {
		p.retryAt = c.now + retryPauseMin
	}
	switch {
	case m.Status == StatusOK && p.doubt == 0, plantedWipedIsWhole && m.Status == StatusInconsistentState && m.End < 0:
		c.onMatch(p, m)
	case m.Status != StatusInconsistentState:
		c.startOver(p, true) // not now; or it has an entry behind what it called its end (see below)
	case m.XTerm >= 0:
		// The Raft jump: our own last entry of that term or an earlier one, else right before the follower's first of it.
		p.match, p.doubt = min(p.match, p.cmp-1), 0
		p.cmp = min(c.log.lastOf(m.XTerm, p.cmp-1), p.cmp-1)
		if t, ok := c.log.term(p.cmp); ok && t < m.XTerm {
			p.cmp = min(p.cmp, m.XIndex-1)
		}
		p.cmp = max(p.cmp, -1)
	case c.cfg.Compat == Compat03:
		p.match = min(p.match, max(m.End, -1)) // it may have lost what it had; it counts for what it has now
		c.search(p, m)
	case m.End == 0 && p.cmp > 0 && p.doubt < manyDoubts && c.cfg.Compat == Compat04 && !p.ours:
		// A log of one entry, or a Java node's internal error, which it answers just so (fault 17). Only the former always lacks entry 1.
		if p.doubt++; p.doubt > 1 {
			p.retryAt = c.now + retryPauseMin
		}
		p.cmp = 1
	case m.End != p.cmp && m.End <= c.log.last:
		// It is shorter, or this search went too low, into what the follower knows to be equal.
		p.cmp, p.doubt = max(m.End, -1), 0
		p.match = min(p.match, p.cmp)
	default:
		c.startOver(p, true)
	}
}

// search is the 0.3 dialect's way to the point where the logs part: its answers say only whether an entry is equal, so the range
// between the follower's begin and the entry known to differ is halved.
func (c *Core) search(p *progress, m *Message) {
	end := max(m.End, -1)
	if p.differs = min(p.cmp, end+1); p.equal >= p.differs {
		p.equal = -1 // the follower lost it
	}
	begin := max(c.log.first, m.Begin)
	switch {
	case p.differs <= begin:
		c.startReset(p, begin)
	case p.equal == p.differs-1 && (p.sure || end < p.differs):
		p.cmp, p.state = p.equal, truncating
	case p.equal == p.differs-1:
		p.cmp, p.sure = p.differs, true // a node that was not ready for it refuses just so
	case end < p.cmp:
		p.cmp = end // most often it is just shorter
	default:
		lo := max(p.equal+1, begin)
		p.cmp = lo + (p.differs-lo)/2
	}
}

// onMatch continues behind an entry that both logs hold.
func (c *Core) onMatch(p *progress, m *Message) {
	switch p.equal = p.cmp; {
	case p.cmp < p.match:
		p.cmp = p.match // entries that came to be known as stored meanwhile must not be cut
		return
	case p.differs >= 0 && p.equal >= p.differs:
		c.startOver(p, true) // it did not differ after all
		return
	case p.differs >= 0 && p.equal+1 < p.differs:
		p.cmp = p.equal + 1 + (p.differs-p.equal-1)/2
		return
	case p.differs >= 0 && !p.sure && m.End >= p.differs:
		p.cmp, p.sure = p.differs, true // ask once more before anything is cut
		return
	}
	if p.cmp > p.match {
		p.match = p.cmp
		c.advance()
	}
	p.next = p.cmp + 1
	p.inflight = p.inflight[:0]
	p.state = truncating
	if m.End == p.cmp && (p.ours || c.cfg.Compat != Compat04) { // a Java 0.4 node does not say where its log ends
		p.state = appending
	}
}

func (c *Core) onTruncateAnswer(p *progress, m *Message) {
	if m.Status != StatusOK {
		c.startOver(p, m.Status != StatusInconsistentState)
		return
	}
	if m.Index > p.match {
		p.match = m.Index
		c.advance()
	}
	p.state, p.next = appending, m.Index+1
	p.inflight = p.inflight[:0]
}
