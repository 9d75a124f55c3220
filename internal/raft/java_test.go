package raft

import "math/rand"

// javaMember is a member that behaves like the original where it follows and votes (protocol page sections 5.4, 5.5, 6.4): it enters a
// higher term a moment after it answered TERM_NOT_READY, answers with little more than 406, counts an entry as stored when it is
// written, truncates without looking at its commit index, and is silent to pushes that reach it as a candidate. It never campaigns, and
// unlike the original it takes no TRUNCATE of an old term.
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
}

// joinJava makes id a member of the original.
func joinJava(g *group, id ID, r *rand.Rand, storm *bool) *javaMember {
	j := &javaMember{g: g, r: r, id: id, disk: &g.nodes[id].disk, role: Candidate, commit: -1, known: -1, storm: storm, pending: map[Index]Message{}}
	g.nodes[id].java = j
	j.idle()
	return j
}

// idle is its time-out loop.
func (j *javaMember) idle() {
	if j.role == Follower && j.g.now > j.heard+4*Instant(j.g.config.Heartbeat) {
		j.role, j.leader = Candidate, ""
	}
	for first, m := range j.pending {
		if first > j.disk.last()+1 { // a gap that stays
			delete(j.pending, first)
			j.answer(&m, Message{Status: StatusInconsistentState})
		}
	}
	j.g.after(Instant(j.g.config.Heartbeat), j.idle)
}

func (j *javaMember) answer(q *Message, a Message) {
	a.Type, a.From, a.To, a.Leader = q.Type.Answer(), j.id, q.From, j.leader
	a.Index, a.First, a.Last = q.Index, q.First, q.Last
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
	}
	d.vote = m.Leader
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
			if m.Index <= d.last()+1 && m.Index >= d.first {
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
