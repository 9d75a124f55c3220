package raft

import (
	"math/rand"
	"slices"
)

// javaMember is a member that behaves like the original (docs/protocol.md, "Who leads" and "How logs become equal"). As follower and voter it
// enters a higher term a moment after it answered TERM_NOT_READY, answers with little more than 406, counts an entry as stored when it is
// written, truncates without looking at its commit index, and is silent to pushes that reach it as a candidate. As leader it
// searches with COMPARE as its generation does, faults 1 and 2 included, sends entries one by one, and writes no no-op.
//
// It is kinder than the original where that would lose entries by itself: it takes no TRUNCATE of an old term (fault 3), campaigns once
// in a term (faults 6 and 36), is never restarted, commits only entries of its own term (fault 8), and as leader compares at an entry
// that it has; and where a 0.3 leader begins, its log begins anew.
type javaMember struct {
	g       *group
	r       *rand.Rand
	id      ID
	disk    *disk
	role    Role
	leader  ID
	commit  Index
	known   Term // the term it enters in a moment
	heard   Instant
	storm   *bool
	pending map[Index]Message // APPEND requests that wait for the one before

	patience  Instant // of a candidate: its next campaign
	accepted  map[ID]bool
	quorumAt  Instant
	beats     map[ID]bool // who answered the last heartbeat
	beatAt    Instant
	followers map[ID]*dispatcher
	marks     map[ID]Index // of entries of the own term
}

// dispatcher is what a Java leader knows of one follower (EntryDispatcher).
type dispatcher struct {
	state   peerState
	next    Index // writeIndex; in dialect 0.3 the compare index is next-1
	match   Index
	waits   bool
	asked   Index // number of the request that waits: an answer to one that it gave up is dropped by its remoting layer
	sentAt  Instant
	sleep   Instant // after an exception
	pending map[Index]Instant
}

// joinJava makes id a member of the original.
func joinJava(g *group, id ID, r *rand.Rand, storm *bool) *javaMember {
	j := &javaMember{g: g, r: r, id: id, disk: &g.nodes[id].disk, role: Candidate, commit: -1, known: -1, storm: storm, pending: map[Index]Message{}}
	g.nodes[id].java = j
	j.followers = map[ID]*dispatcher{}
	for _, p := range g.ids {
		if p != id {
			j.followers[p] = &dispatcher{next: 0, match: -1, pending: map[Index]Instant{}} // fault 1: where the log ended at the start
		}
	}
	j.idle()
	j.poll()
	return j
}

// idle is its time-out loop.
func (j *javaMember) idle() {
	if j.role == Follower && j.g.now > j.heard+4*Instant(j.g.config.Heartbeat) {
		j.role, j.leader = Candidate, ""
		j.patience = j.g.now
	}
	if j.role == Leader && j.g.now > j.quorumAt+3*Instant(j.g.config.Heartbeat) {
		j.role, j.leader = Candidate, ""
	}
	if j.role == Candidate && j.g.now >= j.patience && j.known <= j.disk.term {
		j.campaign()
	}
	for first, m := range j.pending {
		if first > j.disk.last()+1 { // a gap that stays
			delete(j.pending, first)
			j.answer(&m, Message{Status: StatusInconsistentState})
		}
	}
	j.g.after(Instant(j.g.config.Heartbeat)/2, j.idle)
}

func (j *javaMember) campaign() {
	d := j.disk
	j.patience = j.g.now + Instant(j.g.config.VoteWait) + Instant(j.r.Int63n(int64(j.g.config.MaxVoteInterval)))
	d.term, d.vote = d.term+1, j.id
	j.accepted = map[ID]bool{j.id: true}
	for id := range j.peers() {
		j.ask(id)
	}
}

// peers gives the others, in a fixed order.
func (j *javaMember) peers() func(func(ID, *dispatcher) bool) {
	return func(yield func(ID, *dispatcher) bool) {
		for _, id := range j.g.ids {
			if p := j.followers[id]; p != nil && !yield(id, p) {
				return
			}
		}
	}
}

func (j *javaMember) ask(id ID) {
	j.send(id, Message{Type: MsgVote, Term: j.disk.term, Index: j.disk.last(), LogTerm: j.disk.termOf(j.disk.last())})
}

func (j *javaMember) send(to ID, m Message) {
	m.From, m.To, m.Leader = j.id, to, j.id
	j.g.send(m, 0)
}

// told takes an answer.
func (j *javaMember) told(m *Message) {
	d := j.disk
	if m.Term > d.term && (m.Vote == VoteExpiredTerm || m.Status == StatusExpiredTerm) {
		j.enter(m.Term)
		return
	}
	switch m.Type {
	case MsgVoteAnswer:
		if j.role != Candidate || m.Term != d.term || d.vote != j.id {
			return
		}
		if m.Vote == VoteAccept {
			j.accepted[m.From] = true
		}
		if len(j.accepted) > len(j.g.ids)/2 {
			j.lead()
		}
	case MsgHeartbeatAnswer:
		if j.role == Leader && m.Term == d.term && m.Status == StatusOK {
			if j.beats[m.From] = true; len(j.beats)+1 > len(j.g.ids)/2 {
				j.quorumAt = j.g.now
			}
		}
	default:
		if p := j.followers[m.From]; j.role == Leader && m.Term == d.term && p != nil {
			j.pushAnswered(m.From, p, m)
		}
	}
}

func (j *javaMember) lead() {
	t := j.disk.term
	if was, ok := j.g.facts.leaders[t]; ok && was != j.id {
		j.g.violate("R1: %s and %s (Java) lead term %d", was, j.id, t)
	}
	j.g.facts.leaders[t] = j.id
	j.role, j.leader, j.quorumAt, j.beatAt = Leader, j.id, j.g.now, 0
	j.marks = map[ID]Index{}
	for _, p := range j.peers() {
		if p.state == appending || j.g.config.Compat == Compat03 {
			p.next = j.disk.last() + 1
		}
		p.state, p.waits, p.sleep = comparing, false, 0
		clear(p.pending)
	}
}

func (j *javaMember) propose(k int) (Index, Status) {
	if j.role != Leader {
		return -1, StatusNotLeader
	}
	first := j.disk.last() + 1
	for range k {
		j.g.nodes[j.id].append(j.disk.last()+1, []entry{{j.disk.term, j.g.newID()}})
	}
	j.disk.synced = j.disk.last()
	return first, StatusOK
}

// poll is the loop of its heartbeats and dispatchers.
func (j *javaMember) poll() {
	if j.role == Leader {
		if j.g.now >= j.beatAt {
			j.beatAt, j.beats = j.g.now+Instant(j.g.config.Heartbeat), map[ID]bool{}
			for id := range j.peers() {
				j.send(id, Message{Type: MsgHeartbeat, Term: j.disk.term, Commit: -1})
			}
		}
		for id, p := range j.peers() {
			if j.g.now >= p.sleep {
				j.dispatch(id, p)
			}
		}
	}
	j.g.after(5*ms, j.poll)
}

// push sends a request with the entries lo..hi.
func (j *javaMember) pushTo(id ID, p *dispatcher, m Message, lo, hi Index) {
	if lo <= hi {
		m.Payload = j.disk.payload(lo, hi)
	}
	m.Term, m.Commit = j.disk.term, j.commit
	p.waits, p.sentAt = true, j.g.now
	if m.Type == MsgCompare || m.Type == MsgTruncate {
		p.asked++
		m.Asked = p.asked
	}
	j.send(id, m)
}

// exception is what any surprise is to a dispatcher: back to COMPARE, after a pause.
func (j *javaMember) exception(p *dispatcher) {
	if p.state == appending || p.state == truncating && j.g.config.Compat == Compat03 {
		p.next = j.disk.last() + 1
		clear(p.pending)
	}
	p.state, p.waits, p.sleep = comparing, false, j.g.now+Instant(j.g.config.Heartbeat)
}

func (j *javaMember) dispatch(id ID, p *dispatcher) {
	d := j.disk
	old := j.g.config.Compat == Compat03
	switch {
	case p.state != appending && p.waits:
		if j.g.now > p.sentAt+3*Instant(j.g.config.PushTimeout) {
			j.exception(p)
		}
	case p.state == comparing:
		i := p.next - 1
		switch {
		case d.last() < 0:
		case i > d.last():
			p.next = d.last() + 1 // the original goes on failing at an entry that it has cut from its own log
		case !old && i < d.first-1:
			j.exception(p)
		case old && i < d.first:
			p.state, p.match = truncating, d.first
		case old:
			j.pushTo(id, p, Message{Type: MsgCompare, Index: i, LogTerm: d.termOf(i)}, i, i)
		default:
			j.pushTo(id, p, Message{Type: MsgCompare, Index: i, LogTerm: d.termOf(i)}, 0, -1)
		}
	case p.state == truncating && old:
		j.pushTo(id, p, Message{Type: MsgTruncate, Index: p.match, LogTerm: d.termOf(p.match)}, p.match, p.match)
	case p.state == truncating:
		j.pushTo(id, p, Message{Type: MsgTruncate, Index: p.match, LogTerm: UnknownTerm}, 0, -1)
	default:
		for first, at := range p.pending {
			if first == p.match+1 && j.g.now > at+Instant(j.g.config.PushTimeout) {
				p.next = first // sent again, one by one
				clear(p.pending)
			}
		}
		for p.next <= d.last() && len(p.pending) < 10 {
			i := p.next
			j.pushTo(id, p, Message{Type: MsgAppend, Index: i - 1, LogTerm: UnknownTerm, First: i, Last: i, Runs: []Run{{d.termOf(i), i}}}, i, i)
			p.pending[i] = j.g.now
			p.next++
		}
		if j.g.now > p.sentAt+Instant(j.g.config.PushTimeout) {
			j.pushTo(id, p, Message{Type: MsgCommit}, 0, -1)
		}
	}
}

func (j *javaMember) pushAnswered(id ID, p *dispatcher, m *Message) {
	d := j.disk
	old := j.g.config.Compat == Compat03
	switch {
	case m.Type == MsgAppendAnswer && p.state == appending:
		if m.Status == StatusInconsistentState {
			p.next = d.last() + 1
			clear(p.pending)
			p.state, p.waits = comparing, false
		} else if m.Status == StatusOK { // anything else is left to the resend timer
			delete(p.pending, m.First)
			p.match = max(p.match, m.Last)
			j.count(id, m.Last)
		}
	case m.Type == MsgCompareAnswer && p.state == comparing && p.waits && m.Asked == p.asked:
		p.waits = false
		switch i := m.Index; {
		case m.Status == StatusOK && old && i == m.End:
			p.state, p.match, p.next = appending, i, i+1
		case m.Status == StatusOK:
			p.state, p.match = truncating, i
		case m.Status != StatusInconsistentState:
			j.exception(p)
		case old && (m.End < d.first || m.Begin > d.last() || i < m.Begin || i <= d.first):
			p.state, p.match = truncating, d.first
		case old && i > m.End:
			p.next = m.End + 1
		case old:
			p.next = i
		case m.XTerm != -1:
			p.next = m.XIndex
		default:
			p.next = m.End + 1
		}
	case m.Type == MsgTruncateAnswer && p.state == truncating && p.waits && m.Asked == p.asked:
		p.waits = false
		if m.Status != StatusOK {
			j.exception(p)
			return
		}
		p.state, p.next = appending, p.match+1
		clear(p.pending)
		j.count(id, p.match)
	}
}

// count is QuorumAckChecker with the rule that only entries of the own term count.
func (j *javaMember) count(id ID, i Index) {
	d := j.disk
	if d.termOf(i) == d.term {
		j.marks[id] = max(j.marks[id], i)
	}
	marks := []Index{d.last()}
	for id := range j.peers() {
		m, ok := j.marks[id]
		if !ok {
			m = -1
		}
		marks = append(marks, m)
	}
	slices.Sort(marks)
	q := marks[(len(marks)-1)/2]
	if q > j.commit && d.termOf(q) == d.term {
		n := j.g.nodes[j.id]
		have := 0
		for _, id := range j.g.ids {
			if m := j.g.nodes[id]; m.disk.has(q) && m.disk.synced >= q && m.disk.at(q) == d.at(q) || m.disk.abstain >= q {
				have++
			}
		}
		if have <= len(j.g.ids)/2 {
			j.g.violate("%s (Java): R4: entry %d is committed, but durable on %d of %d members only", j.id, q, have, len(j.g.ids))
		}
		n.noteCommit(j.commit, q)
		j.commit, d.commit = q, max(d.commit, q)
	}
}

func (j *javaMember) answer(q *Message, a Message) {
	a.Type, a.From, a.To, a.Leader = q.Type.Answer(), j.id, q.From, j.leader
	a.Asked, a.Index, a.First, a.Last = q.Asked, q.Index, q.First, q.Last
	if q.Type.IsPush() {
		a.Term = q.Term
	}
	if j.g.config.Compat == Compat03 {
		a.Begin, a.End = j.disk.first, j.disk.last()
	}
	if a.XTerm == 0 {
		a.XTerm, a.XIndex = -1, -1
	}
	j.g.send(a, j.g.life(q.From))
}

// enter raises its term a moment later, as the maintainer thread does.
func (j *javaMember) enter(t Term) {
	j.role, j.leader = Candidate, ""
	j.known = max(j.known, t)
	j.g.after(10*ms, func() {
		if j.known > j.disk.term {
			j.disk.term, j.disk.vote = j.known, ""
			j.role, j.leader = Candidate, ""
			j.patience = j.g.now + Instant(j.g.config.MinVoteInterval) + Instant(j.r.Int63n(int64(j.g.config.MaxVoteInterval)))
		}
	})
}

func (j *javaMember) step(m *Message) {
	d := j.disk
	switch m.Type {
	case MsgPreVote: // METADATA, as package dledger asks it
		if v := VoteAlreadyHasLeader; j.leader != "" && j.leader != m.Leader {
			j.answer(m, Message{Vote: v, Term: -1})
			return
		}
		j.answer(m, Message{Vote: VoteAccept, Term: m.Term})
	case MsgVote:
		v := j.vote(m)
		j.answer(m, Message{Vote: v, Term: d.term})
	case MsgHeartbeat:
		switch {
		case m.Term < d.term:
			j.answer(m, Message{Status: StatusExpiredTerm, Term: d.term})
		case m.Term > d.term:
			j.enter(m.Term)
			j.answer(m, Message{Status: StatusTermNotReady, Term: d.term})
		case j.leader != "" && j.leader != m.Leader:
			j.answer(m, Message{Status: StatusInconsistentLeader, Term: d.term})
		default:
			j.role, j.leader, j.heard = Follower, m.Leader, j.g.now
			j.answer(m, Message{Term: m.Term})
		}
	default:
		j.push(m)
	}
}

func (j *javaMember) vote(m *Message) VoteResult {
	d := j.disk
	lastTerm := d.termOf(d.last())
	switch {
	case m.LogTerm < lastTerm:
		return VoteExpiredLedgerTerm
	case m.LogTerm == lastTerm && m.Index < d.last():
		return VoteSmallLedgerEndIndex
	case m.Term < d.term:
		return VoteExpiredTerm
	case m.Term == d.term && d.vote != "" && d.vote != m.Leader && j.leader != "":
		return VoteAlreadyHasLeader
	case m.Term == d.term && d.vote != "" && d.vote != m.Leader:
		return VoteAlreadyVoted
	case m.Term > d.term:
		j.enter(m.Term)
		return VoteTermNotReady
	case j.role == Leader:
		return VoteAlreadyHasLeader
	}
	d.vote = m.Leader
	j.patience = j.g.now + 3*Instant(j.g.config.Heartbeat)
	return VoteAccept
}

func (j *javaMember) push(m *Message) {
	d := j.disk
	refuse := Message{Status: StatusInconsistentState}
	switch {
	case j.role != Follower && m.Type == MsgAppend:
		return // fault 35
	case j.role != Follower:
		j.answer(m, Message{Status: StatusNotFollower})
		return
	case m.Type == MsgCompare && j.g.config.Compat == Compat03: // of whatever term: 0.3 compares entries alone
	case m.Term != d.term || m.Leader != j.leader:
		j.answer(m, refuse)
		return
	}
	j.heard = max(j.heard, j.g.now-Instant(j.g.config.Heartbeat))
	if m.Type == MsgCompare || m.Type == MsgTruncate {
		clear(j.pending)
	}
	switch m.Type {
	case MsgCompare:
		switch {
		case *j.storm && j.g.config.Compat == Compat04 && j.r.Intn(20) == 0: // an internal error (fault 17)
		case m.Index == -1 && j.g.config.Compat == Compat04, d.has(m.Index) && d.termOf(m.Index) == m.LogTerm:
			refuse.Status = StatusOK
		case j.g.config.Compat == Compat03:
		case m.Index > d.last():
			refuse.End = d.last()
		default:
			refuse.XTerm, refuse.XIndex = d.termOf(m.Index), m.Index
			for d.has(refuse.XIndex-1) && d.termOf(refuse.XIndex-1) == refuse.XTerm {
				refuse.XIndex--
			}
		}
		j.answer(m, refuse)
	case MsgTruncate:
		if j.g.config.Compat == Compat03 && !(d.has(m.Index) && d.termOf(m.Index) == m.LogTerm) {
			if m.Index <= j.commit+1 && m.Index >= d.first { // else the entries before it may be others than the leader had
				j.cut(m.Index - 1)
			} else {
				*d = disk{term: d.term, vote: d.vote, first: m.Index, prev: UnknownTerm, synced: m.Index - 1, commit: d.commit, abstain: -1}
			}
			j.g.nodes[j.id].append(m.Index, unpack(m.Payload))
		}
		if m.Index > d.last() {
			j.answer(m, refuse)
			return
		}
		j.cut(m.Index)
		j.commitTo(m)
		j.answer(m, Message{})
	case MsgCommit:
		j.commitTo(m)
		j.answer(m, Message{})
	case MsgAppend:
		j.pending[m.First] = *m
		for {
			next, ok := j.pending[d.last()+1]
			if !ok {
				break
			}
			delete(j.pending, next.First)
			j.g.nodes[j.id].append(next.First, unpack(next.Payload))
			d.synced = d.last()
			j.commitTo(&next)
			j.answer(&next, Message{})
		}
		if m.First <= d.last() && m.Last <= d.last() {
			if _, waits := j.pending[m.First]; waits { // sent again
				delete(j.pending, m.First)
				for k, e := range unpack(m.Payload) {
					if d.at(m.First+Index(k)) != e {
						j.answer(m, refuse)
						return
					}
				}
				j.answer(m, Message{})
			}
		}
	}
}

func (j *javaMember) commitTo(m *Message) {
	d := j.disk
	d.synced = d.last()
	if i := min(m.Commit, d.last()); i > j.commit {
		j.commit = i
		d.commit = max(d.commit, i)
		for k := d.first; k <= i; k++ {
			if k < Index(len(j.g.facts.committed)) && j.g.facts.committed[k] != d.at(k) {
				j.g.violate("%s (Java): R2: entry %d is committed as %v, was %v", j.id, k, d.at(k), j.g.facts.committed[k])
				return
			}
		}
	}
}

// cut truncates without a look at the commit index; what it takes must not be committed, for the leader would have to be wrong.
func (j *javaMember) cut(last Index) {
	d := j.disk
	for i := last + 1; i <= d.last(); i++ {
		if i < Index(len(j.g.facts.committed)) && j.g.facts.committed[i] == d.at(i) {
			j.g.violate("%s (Java): R2: its leader cuts entry %d, which is committed", j.id, i)
			return
		}
	}
	d.entries = d.entries[:last-d.first+1]
	d.synced = min(d.synced, last)
}
