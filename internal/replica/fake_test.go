package replica

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/internal/entry"
	"dledger/internal/raft"
)

// world is a replica driven by hand, with a log and a network that write down what is asked of them, in one trace.
type world struct {
	t     *testing.T
	r     *Replica
	log   *fakeLog
	now   raft.Instant
	trace []string
	sent  []raft.Message
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// Send implements Net.
func (w *world) Send(m *raft.Message) {
	w.note("send %v to %s", m.Type, m.To)
	w.sent = append(w.sent, *m)
	for i := m.First; m.Type == raft.MsgAppend && i <= m.Last; i++ {
		if i > w.log.flushed {
			w.t.Errorf("entry %d is sent before it is written", i)
		}
	}
}

// fakeLog is a log in memory.
//
//  1. entries up to flushed are written, those behind are staged;
//  2. it holds at most room entries and fails with ErrDiskFull beyond, staging nothing of the batch.
type fakeLog struct {
	w       *world
	entries []stored
	flushed raft.Index
	room    int
	full    bool

	saveErr, appendErr, flushErr, truncateErr, commitErr error
}

type stored struct {
	term  raft.Term
	magic int32
	body  string
}

func (l *fakeLog) last() raft.Index { return raft.Index(len(l.entries)) - 1 }

func (l *fakeLog) Append(first raft.Index, term raft.Term, magic int32, bodies [][]byte, stamp Stamp) error {
	if first != l.last()+1 {
		l.w.t.Errorf("append at %d, the log ends at %d", first, l.last())
	}
	switch {
	case l.appendErr != nil:
		return l.appendErr
	case len(l.entries)+len(bodies) > l.room:
		l.w.note("no room for %d", first)
		return fmt.Errorf("fake: %w", ErrDiskFull)
	}
	for i, b := range bodies {
		b = slices.Clone(b)
		if stamp != nil {
			stamp(i, first+raft.Index(i), 100*int64(first+raft.Index(i)), b)
		}
		l.entries = append(l.entries, stored{term, magic, string(b)})
	}
	l.w.note("append %d..%d", first, l.last())
	return nil
}

// AppendEncoded takes payloads as pushOf makes them: one piece an entry, "term".
func (l *fakeLog) AppendEncoded(from raft.Index, p raft.Payload) error {
	for _, piece := range p {
		h, err := entry.Parse(piece)
		if err != nil {
			l.w.t.Error(err)
		}
		if h.Index < from {
			continue
		}
		if h.Index != l.last()+1 {
			l.w.t.Errorf("entry %d is appended, the log ends at %d", h.Index, l.last())
		}
		if len(l.entries) >= l.room {
			l.w.note("no room for %d", h.Index)
			l.entries = l.entries[:from] // all or nothing
			return fmt.Errorf("fake: %w", ErrDiskFull)
		}
		l.entries = append(l.entries, stored{h.Term, h.Magic, string(piece[entry.HeaderSize:])})
	}
	l.w.note("append %d..%d", from, l.last())
	return nil
}

func (l *fakeLog) Flush() error {
	if l.flushErr != nil {
		return l.flushErr
	}
	if l.flushed != l.last() {
		l.w.note("flush to %d", l.last())
	}
	l.flushed = l.last()
	return nil
}

func (l *fakeLog) Truncate(last raft.Index) error {
	if l.truncateErr != nil {
		return l.truncateErr
	}
	l.w.note("truncate to %d", last)
	l.entries = l.entries[:last+1]
	l.flushed = last
	return nil
}

func (l *fakeLog) Reset(raft.Index, int64, raft.Term) error {
	l.w.t.Error("no test here resets a log")
	return nil
}

func (l *fakeLog) CanBegin(int64) bool { return true }

func (l *fakeLog) Sync() error { return nil }

func (l *fakeLog) SaveTerm(t raft.Term, v raft.ID) error {
	if l.saveErr != nil {
		return l.saveErr
	}
	l.w.note("save term %d vote %q", t, v)
	return nil
}

func (l *fakeLog) SetCommit(i raft.Index) error {
	if i > l.flushed {
		l.w.t.Errorf("R7: commit %d, the log ends at %d", i, l.flushed)
	}
	l.w.note("commit %d", i)
	return l.commitErr
}

func (l *fakeLog) Full() bool { return l.full }

func (l *fakeLog) Joined() error { return nil }

func (l *fakeLog) Hurt() bool { return false }

const (
	heartbeat = 200 * time.Millisecond
	ackWait   = 2500 * time.Millisecond
)

// start makes member n0 of a group of n.
func start(t *testing.T, n int, change ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, now: 1}
	w.log = &fakeLog{w: w, flushed: -1, room: 1 << 20}
	var members []raft.ID
	for i := range n {
		members = append(members, raft.ID(fmt.Sprintf("n%d", i)))
	}
	cfg := Config{
		Core: raft.Config{ID: "n0", Members: members, Heartbeat: heartbeat, HeartbeatLeak: 3, MinVoteInterval: 50 * time.Millisecond, MaxVoteInterval: 250 * time.Millisecond,
			MinTakeInterval: 30 * time.Millisecond, MaxTakeInterval: 100 * time.Millisecond, VoteWait: 500 * time.Millisecond, PushTimeout: time.Second,
			CommitIdle: 20 * time.Millisecond, TransferWait: time.Second, TransferLag: 1000, MaxInflight: 1000, MaxEntries: 2048, MaxPending: 10_000,
			Rand: func(n int64) int64 { return n / 2 }},
		Initial: raft.Initial{Last: -1, PrevTerm: -1, Commit: -1, Abstain: -1},
		Log:     w.log, Net: w, AckWait: ackWait, PendingBytes: 1 << 20, UncommittedBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&cfg)
	}
	w.r = New(cfg, w.now)
	return w
}

// turn does one turn a microsecond later.
func (w *world) turn() (deadline raft.Instant) {
	w.now += raft.Instant(time.Microsecond)
	deadline, _ = w.r.Turn(w.now)
	return deadline
}

// turnAt does one turn at the next deadline.
func (w *world) turnAt(t raft.Instant) raft.Instant {
	w.now = max(t, w.now)
	d, _ := w.r.Turn(w.now)
	return d
}

// sync does a sync if one is wanted, and the turn after it.
func (w *world) sync() bool {
	if !w.r.NeedSync() {
		return false
	}
	w.note("sync")
	w.r.SyncDone(w.log.Sync())
	w.turn()
	return true
}

// take gives the messages sent since the last call.
func (w *world) take() []raft.Message {
	m := w.sent
	w.sent = nil
	return m
}

// answer delivers an answer to the last message of a type that went to a peer.
func (w *world) answer(from raft.ID, typ raft.MsgType, change func(*raft.Message)) {
	w.t.Helper()
	for _, m := range slices.Backward(w.sent) {
		if m.Type == typ && m.To == from {
			a := m
			a.Type, a.From, a.To, a.XTerm, a.XIndex = typ.Answer(), from, "n0", -1, -1
			if change != nil {
				change(&a)
			}
			w.r.Deliver(a, nil)
			return
		}
	}
	w.t.Fatalf("nothing of type %v went to %s", typ, from)
}

// lead makes this member leader of term 1, followed by peers whose logs are empty.
func (w *world) lead() {
	w.t.Helper()
	w.turnAt(w.turn())
	if len(w.r.cfg.Core.Members) > 1 {
		accept := func(a *raft.Message) { a.Vote = raft.VoteAccept }
		w.answer("n1", raft.MsgPreVote, accept)
		w.turn()
		w.answer("n1", raft.MsgVote, accept)
		w.turn()
		for _, id := range w.r.cfg.Core.Members[1:] {
			w.answer(id, raft.MsgCompare, func(a *raft.Message) { a.End = -1 })
		}
		w.turn()
	}
	if v := w.r.View(); v.Role != raft.Leader || v.Term != 1 {
		w.t.Fatalf("n0 is %v of term %d, want leader of term 1", v.Role, v.Term)
	}
}

// propose hands a proposal in and gives where its outcome will be.
func (w *world) propose(bodies ...string) *outcome {
	o := &outcome{}
	var b [][]byte
	for _, s := range bodies {
		b = append(b, []byte(s))
	}
	o.p = NewProposal(b, nil, func(*Proposal) { o.times++ })
	w.r.Propose(o.p)
	return o
}

// outcome counts how often a proposal was finished.
type outcome struct {
	p     *Proposal
	times int
}

func (o *outcome) is(t *testing.T, what string, s raft.Status) {
	t.Helper()
	if o.times != 1 || o.p.Status != s {
		t.Errorf("%s: finished %d times, the last with %v; want once with %v", what, o.times, o.p.Status, s)
	}
}

func (o *outcome) open(t *testing.T, what string) {
	t.Helper()
	if o.times != 0 {
		t.Errorf("%s: finished with %v, want that it waits", what, o.p.Status)
	}
}

// replies counts the answers to requests.
type replies struct {
	t    *testing.T
	w    *world
	got  map[int][]raft.Message
	next int
}

func (w *world) replies() *replies { return &replies{t: w.t, w: w, got: map[int][]raft.Message{}} }

// deliver hands a request in and gives its number.
func (r *replies) deliver(m raft.Message) int {
	k := r.next
	r.next++
	r.w.r.Deliver(m, func(a *raft.Message) {
		r.w.note("answer %v %v", m.Type, a.Status)
		r.got[k] = append(r.got[k], *a)
	})
	return k
}

// check demands exactly one answer to each request so far.
func (r *replies) check() {
	r.t.Helper()
	for k := range r.next {
		if n := len(r.got[k]); n != 1 {
			r.t.Errorf("R9: request %d was answered %d times", k, n)
		}
	}
}

// push makes an append request of a leader, entries first..last of the term, behind an entry of term prev.
func push(leader raft.ID, term raft.Term, first, last raft.Index, of, prev raft.Term) raft.Message {
	m := raft.Message{Type: raft.MsgAppend, From: leader, To: "n0", Leader: leader, Term: term, First: first, Last: last, Index: first - 1, LogTerm: prev, Commit: -1,
		Runs: []raft.Run{{Term: of, First: first}}}
	for i := first; i <= last; i++ {
		b := make([]byte, entry.HeaderSize, entry.HeaderSize+8)
		b = fmt.Appendf(b, "%d.%d", of, i)
		entry.PutHeader(b, entry.Header{Magic: entry.MagicNormal, Size: int32(len(b)), Index: i, Term: of, BodyLen: int32(len(b) - entry.HeaderSize)})
		m.Payload = append(m.Payload, b)
	}
	return m
}

// compare asks whether the log holds entry i of a term.
func compare(leader raft.ID, term raft.Term, i raft.Index, of raft.Term) raft.Message {
	return raft.Message{Type: raft.MsgCompare, From: leader, To: "n0", Leader: leader, Term: term, Index: i, LogTerm: of, Commit: -1}
}

// after tells whether each step comes behind the one before it in the trace.
func (w *world) after(steps ...string) {
	w.t.Helper()
	from := 0
	for _, s := range steps {
		k := slices.IndexFunc(w.trace[from:], func(l string) bool { return strings.HasPrefix(l, s) })
		if k < 0 {
			w.t.Errorf("%q does not come in its place of %q:\n%s", s, steps, strings.Join(w.trace, "\n"))
			return
		}
		from += k + 1
	}
}
