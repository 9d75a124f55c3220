package raft

import (
	"math"
	"math/rand"
	"testing"
	"time"
)

// FuzzHostileMessages: no sequence of messages makes a core panic, lower its commit index or answer a request other than once,
// whatever a peer writes into them. Bytes choose the type, the fields and what happens between them.
func FuzzHostileMessages(f *testing.F) {
	for seed := range 20 {
		b := make([]byte, 40*(seed+1))
		rand.New(rand.NewSource(int64(seed))).Read(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { abuse(t, b) })
}

// TestHostileMessagesDoNoHarm is the same for random bytes, without the fuzzer.
func TestHostileMessagesDoNoHarm(t *testing.T) {
	seed := time.Now().UnixNano()
	if *seedFlag != 0 {
		seed = *seedFlag
	}
	t.Logf("again: go test ./internal/raft -run Hostile -seed %d", seed)
	r := rand.New(rand.NewSource(seed))
	for range 3000 {
		b := make([]byte, r.Intn(1500))
		r.Read(b)
		abuse(t, b)
	}
}

func abuse(t *testing.T, b []byte) {
	next := func() int {
		if len(b) == 0 {
			return 0
		}
		x := b[0]
		b = b[1:]
		return int(x)
	}
	number := func() int64 {
		switch x := next(); {
		case x < 200:
			return int64(x%16) - 3
		case x < 210:
			return math.MaxInt64 - int64(x-200)
		case x < 220:
			return math.MinInt64 + int64(x-210)
		case x < 240:
			return 1<<60 + int64(x-230)
		default:
			return int64(x) << (x % 56)
		}
	}
	ids := []ID{"n0", "n1", "n2", "", "x9"}
	id := func() ID { return ids[next()%len(ids)] }

	config := defaults()
	config.ID, config.Members, config.Compat = "n0", ids[:3], Compat(next()%3)
	config.Rand = func(n int64) int64 { return n / 2 }
	in := Initial{Last: -1, PrevTerm: -1, Commit: -1, Abstain: -1}
	if next()%2 == 0 {
		in = Initial{Term: 3, First: 2, Last: 9, PrevTerm: 1, Runs: []Run{{1, 2}, {3, 5}}, Commit: 4, Abstain: -1}
	}
	if next()%8 == 0 {
		in.PrevTerm = UnknownTerm
		if in.First == 0 {
			in.First, in.Last, in.Commit = 5, 4, 4
		}
	}
	now := Instant(1)
	c := New(config, in, now)
	var ref uint64
	open := map[uint64]bool{}
	commit := in.Commit
	for len(b) > 0 {
		now += Instant(next()) * ms
		switch k := next(); {
		case k < 20:
			c.Tick(now)
		case k < 30:
			now = max(now, c.Deadline())
			c.Tick(now)
		case k < 40:
			c.Propose(next())
		case k < 45:
			c.Expired(min(Index(next()), c.Commit()+1, c.DurableTo()+1, c.Last()))
		case k < 50:
			c.Connected(id(), next()%2 == 0)
		case k < 57:
			c.ReadIndex(1)
		case k == 57:
			c.DiskFailed(now)
		default:
			m := Message{Type: MsgType(next() % 24), Status: Status(next() % 24), Vote: VoteResult(next() % 14), From: id(), To: "n0", Leader: id(),
				Term: Term(number()), Index: Index(number()), LogTerm: Term(number()), First: Index(number()), Last: Index(number()), Commit: Index(number()),
				Begin: Index(number()), End: Index(number()), XTerm: Term(number()), XIndex: Index(number()), Pos: number(), Transferer: id(), Transferee: id()}
			for range next() % 4 {
				m.Runs = append(m.Runs, Run{Term(number()), Index(number())})
			}
			if next()%2 == 0 {
				m.Payload = Payload{make([]byte, 16)}
			}
			if next()%2 == 0 { // one that is nearly right
				m.Term, m.Leader, m.Index, m.LogTerm = c.Term(), "n1", c.Last(), c.LastTerm()
				m.First, m.Last, m.Runs = m.Index+1, m.Index+2, []Run{{m.Term, m.Index + 1}}
				if m.Type.IsAnswer() {
					m.From, m.Status = ids[1+next()%2], StatusOK
					m.Vote, m.Asked = VoteAccept, []Index{m.Asked, c.campaign.round}[next()%2]
				}
			}
			if !m.Type.IsAnswer() {
				ref++
				m.Ref, open[ref] = ref, true
			}
			c.Step(now, &m)
		}
		if next()%3 == 0 {
			continue
		}
		lost := Index(-1)
		for _, e := range c.Writes().Effects {
			switch {
			case e.Kind == EffectReset, e.Kind == EffectCut && e.Last < lost:
				lost = -1
			case e.Kind != EffectCut && lost < 0 && next()%8 == 0:
				lost = e.First
			}
		}
		if lost >= 0 {
			c.Unwritten(lost)
		}
		r := c.TakeReady(now)
		if r.Commit < commit || r.Commit > c.Last() {
			t.Fatalf("R7: commit index %d after %d, last is %d", r.Commit, commit, c.Last())
		}
		commit = r.Commit
		for _, m := range r.Messages {
			if !m.Type.IsAnswer() {
				continue
			}
			if !open[m.Ref] {
				t.Fatalf("R9: %s answers no open request", m.Type)
			}
			delete(open, m.Ref)
		}
		c.Done()
		sorted(t, c)
		if next()%2 == 0 {
			c.Durable(c.Last(), c.LastTerm())
		}
		if d := c.Deadline(); d <= now && next()%4 == 0 {
			c.Tick(now)
			c.TakeReady(now)
			if d := c.Deadline(); d <= now {
				t.Fatalf("deadline %d is not after %d: %+v", d, now, c)
			}
			answered(open, c)
			c.Done()
		}
	}
}

func answered(open map[uint64]bool, c *Core) {
	for _, m := range c.ready.Messages {
		delete(open, m.Ref)
	}
}

// sorted checks that the shape is one, and that no follower is thought to have what does not exist.
func sorted(t *testing.T, c *Core) {
	s := &c.log
	for _, p := range c.Peers() {
		if p.Match > c.Last() {
			t.Fatalf("%s has %d, the last entry is %d", p.ID, p.Match, c.Last())
		}
	}
	for _, h := range c.held {
		if h.index > c.same() {
			t.Fatalf("an answer waits for %d, known to equal the leader's log is %d", h.index, c.same())
		}
	}
	if s.first > s.last+1 || (s.first > s.last) != (len(s.runs) == 0) {
		t.Fatalf("shape %+v", *s)
	}
	for k, r := range s.runs {
		if k == 0 && r.First != s.first || k > 0 && (r.First <= s.runs[k-1].First || r.Term <= s.runs[k-1].Term) || r.First > s.last || r.Term > c.term {
			t.Fatalf("shape %+v in term %d", *s, c.term)
		}
	}
}

// Indexes beyond what an index file can hold are nobody's.
func TestIndexesBeyondAnyLogAreRefused(t *testing.T) {
	for _, i := range []Index{maxIndex + 1, 1 << 58, 1 << 62, 1<<63 - 1} {
		for _, m := range []Message{
			{Type: MsgReset, Term: 1, Index: i, LogTerm: 1},
			{Type: MsgCompare, Term: 1, Index: i, LogTerm: 1},
			{Type: MsgTruncate, Term: 1, Index: i, LogTerm: 1},
			{Type: MsgAppend, Term: 1, Index: i - 1, LogTerm: 1, First: i, Last: i, Runs: []Run{{1, i}}},
		} {
			if m.sane() {
				t.Errorf("%s at %d is taken", m.Type, i)
			}
		}
	}
}
