package raft

import "testing"

// lead makes the core of a leader with two followers that are caught up.
func lead(tb testing.TB) *Core {
	config := defaults()
	config.ID, config.Members, config.Rand = "n0", []ID{"n0", "n1", "n2"}, func(int64) int64 { return 0 }
	c := New(config, Initial{Last: -1, PrevTerm: -1, Commit: -1, Abstain: -1}, 0)
	now := c.Deadline()
	c.Tick(now)
	answer := func() {
		for k := 0; k < 8; k++ {
			r := c.TakeReady(now)
			var got []Message
			for _, m := range r.Messages {
				a := Message{Type: m.Type.Answer(), From: m.To, To: m.From, Term: m.Term, Asked: m.Asked, Index: m.Index, First: m.First, Last: m.Last, Vote: VoteAccept, End: m.Index, XTerm: -1}
				got = append(got, a)
			}
			c.Done()
			for i := range got {
				c.Step(now, &got[i])
			}
		}
	}
	answer()
	if c.Role() != Leader || c.Peers()[0].State != "append" {
		tb.Fatalf("%s, %v", c.Role(), c.Peers())
	}
	return c
}

// turn is one proposal from acceptance to commit: two pushes, the own sync, two answers.
func turn(c *Core, now Instant, answers []Message) {
	c.Propose(1)
	c.Writes()
	r := c.TakeReady(now)
	k := 0
	for i := range r.Messages {
		if m := &r.Messages[i]; m.Type == MsgAppend {
			answers[k] = Message{Type: MsgAppendAnswer, From: m.To, To: m.From, Term: m.Term, Asked: m.Asked, Index: m.Index, First: m.First, Last: m.Last, XTerm: -1}
			k++
		}
	}
	c.Done()
	c.Durable(c.Last(), c.LastTerm())
	for i := range answers[:k] {
		c.Step(now, &answers[i])
	}
	c.Deadline()
}

// BenchmarkProposeToCommit is the core's whole work for one proposal of a leader with two followers, one at a time.
func BenchmarkProposeToCommit(b *testing.B) {
	c := lead(b)
	now := c.Now()
	answers := make([]Message, 2)
	b.ReportAllocs()
	for b.Loop() {
		now += Instant(1000)
		turn(c, now, answers)
	}
	c.TakeReady(now)
	if c.Commit() != c.Last() {
		b.Fatalf("commit %d, last %d", c.Commit(), c.Last())
	}
}

// BenchmarkFollowerAppend is a follower's work for one push and its sync.
func BenchmarkFollowerAppend(b *testing.B) {
	config := defaults()
	config.ID, config.Members, config.Rand = "n0", []ID{"n0", "n1", "n2"}, func(int64) int64 { return 0 }
	c := New(config, Initial{Last: -1, PrevTerm: -1, Commit: -1, Abstain: -1}, 0)
	runs := []Run{{Term: 1}}
	m := Message{Type: MsgAppend, From: "n1", To: "n0", Leader: "n1", Term: 1, Ref: 1, Runs: runs, Payload: Payload{make([]byte, 16)}}
	m.Index, m.LogTerm, m.Commit = -1, -1, -1
	now := Instant(0)
	b.ReportAllocs()
	for b.Loop() {
		now += Instant(1000)
		m.First = m.Index + 1
		m.Last, runs[0].First = m.First, m.First
		c.Step(now, &m)
		c.Writes()
		c.TakeReady(now)
		c.Done()
		c.Durable(c.Last(), c.LastTerm())
		c.TakeReady(now)
		c.Done()
		m.Index, m.LogTerm, m.Commit = m.Last, 1, m.Last
	}
	if c.Last() != m.Last {
		b.Fatalf("last is %d, want %d", c.Last(), m.Last)
	}
}

// TestTurnAllocatesOneSlice holds the leader to one allocation a turn: the runs that both pushes share.
func TestTurnAllocatesOneSlice(t *testing.T) {
	c := lead(t)
	now := c.Now()
	answers := make([]Message, 2)
	for range 100 {
		turn(c, now, answers)
	}
	if got := testing.AllocsPerRun(200, func() { turn(c, now, answers) }); got > 1 {
		t.Errorf("a turn allocates %v times, want at most once", got)
	}
}
