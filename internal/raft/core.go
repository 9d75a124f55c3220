// Package raft owns election and replication of one replicated log: who leads, which entries go where, what is committed.
// It never reads a clock, a file or a socket, starts no goroutine and knows no entry's bytes: inputs go in, one Ready comes
// out, and the same inputs always give the same outputs. Start at Core.
//
// It follows the Java original's rules (DLedgerLeaderElector, MemberState, DLedgerEntryPusher) where nodes of both kinds meet,
// and the Raft paper where the original departs from it. Invariants R1-R9 are those of docs/invariants.md.
package raft

import (
	"fmt"
	"slices"
	"time"
)

// Config is fixed for the life of a Core. All durations are on the caller's clock.
type Config struct {
	ID      ID
	Members []ID // the whole group, this node included; fixed
	Compat  Compat

	Heartbeat       time.Duration // between two heartbeats of a leader
	HeartbeatLeak   int           // a leader or follower gives up after this many intervals of silence
	MinVoteInterval time.Duration // a candidate's pause before its next attempt is drawn from [Min, Max)
	MaxVoteInterval time.Duration
	MinTakeInterval time.Duration // the same while it takes leadership over by a transfer
	MaxTakeInterval time.Duration
	VoteWait        time.Duration // how long a candidate waits for answers before it draws its conclusion
	PushTimeout     time.Duration // an unanswered push is taken for lost after this time
	CommitIdle      time.Duration // a commit index that no push carried is sent alone after this time
	TransferWait    time.Duration // how long a transferee may need to catch up
	TransferLag     Index         // a transferee further behind than this is refused
	MaxInflight     int           // unanswered append requests a follower may have
	MaxEntries      Index         // entries in one append request
	MaxPending      Index         // uncommitted entries of the own term before Propose refuses
	Preferred       []ID          // who should lead, if alive
	NoElection      bool          // never campaign (enableLeaderElector=false)

	Rand func(n int64) int64 // uniform in [0, n); the only source of chance
}

// Initial is what recovery found on disk.
type Initial struct {
	Term     Term
	Vote     ID
	First    Index // of the first entry; Last+1 if there is none
	Last     Index // -1 or First-1 if there is none
	PrevTerm Term  // of entry First-1; -1 for First 0, AtMost or UnknownTerm if not known
	Runs     []Run
	Commit   Index
	// Abstain is the index up to which this node once held the log and no longer does (a lost tail), or -1. What it acknowledged may
	// be missing, so it neither votes nor campaigns until its log reaches that far again, or holds an entry committed in a later
	// term: that term's leader was elected without this node and so by those who have everything.
	Abstain Index
	// Behind tells that others may count on this node for entries, or votes, that it no longer has, and that nobody knows for which. It neither
	// votes nor campaigns until all that a leader had when they met is committed here.
	Behind bool
	// New tells that nothing was found on disk: this is the first start, or the disk was lost. The node abstains until the others
	// have told whether the group has a past (Met); where it has one, the node is Behind. It does not know either in which terms it has voted and
	// acknowledged, so it answers no leader as if it were sure of it before so many have told their terms that none can be higher than all of them.
	New bool
}

// Role of a member in its term.
type Role uint8

const (
	Candidate Role = iota // also the role at start
	Follower
	Leader
)

func (r Role) String() string { return [...]string{"candidate", "follower", "leader"}[r] }

// EffectKind says what an Effect asks for.
type EffectKind uint8

const (
	EffectAppend  EffectKind = iota // store entries First..Last from Payload
	EffectPropose                   // store the next accepted proposal as entries First..Last of Term
	EffectNoop                      // store a no-op entry First of Term
	EffectCut                       // Last becomes the last entry
	EffectReset                     // drop the whole log; the next entry is First, behind one of Term, at byte position Pos
)

// Effect is one change of the log, to be carried out in the order listed.
type Effect struct {
	Kind        EffectKind
	First, Last Index
	Term        Term
	Pos         int64
	Payload     Payload
}

// Ready is what the caller must do, in this order: make Term and Vote durable if SaveTerm; carry out Effects and hand them to
// the operating system; send Messages; publish Commit, Role and Leader. Its slices are valid until the next input.
//
// A batch of inputs ends with Writes, then Unwritten or DiskFailed if the disk refused something, then TakeReady, then Done. So
// nothing is sent, and nothing is called committed, before it is written. An effect that finds no space does not end the list:
// appends behind it are skipped, but a Cut or Reset at or before the first lost entry is still carried out and the appends
// behind that are tried again; what is lost in the end is reported with one Unwritten.
//
// Answers that promise durable entries are held back inside the core until Durable covers them, so that every message in
// Messages may go as soon as the effects before it are written.
type Ready struct {
	SaveTerm bool
	Term     Term
	Vote     ID
	Effects  []Effect
	Messages []Message
	Events   []Event
	Confirms []Confirm
	Commit   Index
	Role     Role
	Leader   ID
}

// Confirm is the outcome of a ReadIndex request: with StatusOK, every entry acknowledged before the request is at or below Index,
// and this node was still the leader after the request came. Otherwise it is StatusNotLeader, or StatusPendingFull where too many wait.
type Confirm struct {
	Ref    uint64
	Index  Index
	Status Status
}

// EventKind names something an operator may want to know.
type EventKind uint8

const (
	EventRole        EventKind = iota // role, term or leader changed
	EventCut                          // entries were cut: Index is the new last one
	EventReset                        // the log starts anew behind Index
	EventStuck                        // Peer needs entries before Index that are gone, and cannot be given a log that starts there
	EventConflict                     // Peer's leader wants to replace entry Index, which is committed here; refused
	EventTransfer                     // leadership is being handed to Peer
	EventTermLearned                  // a higher term was learnt from Peer
	EventStalled                      // the disk has not finished a sync for too long; leadership is given up
)

// Event reports what happened; the core logs nothing.
type Event struct {
	Kind  EventKind
	Peer  ID
	Index Index
	Term  Term
	Role  Role
}

// Core is the consensus state of one member of one group (MemberState, DLedgerLeaderElector and DLedgerEntryPusher in the
// Java original). It is not safe for concurrent use: one loop owns it.
//
//  1. term and vote change only together with SaveTerm in the next Ready (R6), but for a failed disk, on which nothing is voted;
//  2. commit never exceeds last, and never falls once a Ready has published it (R7);
//  3. every request given to Step is answered by exactly one message with its Ref (R9).
type Core struct {
	cfg    Config
	quorum int
	log    shape
	now    Instant

	term   Term
	vote   ID
	role   Role
	leader ID
	commit Index
	debts
	// published is the commit index of the last Ready. What it covers is written; what commit covers beyond it may be entries of
	// this batch that the disk has not taken yet.
	published Index
	led       ID // who has been known as leader of the present term, "" = nobody; outlives leader
	claim     claim
	// durable is the last index this node's own sync has covered; in async mode the caller reports it right after the write.
	durable   Index
	durableAt Instant // last time durable moved or had nothing to wait for
	failed    bool    // the disk failed for good: no vote, no campaign, no entry
	full      bool    // the disk has no room for entries
	damaged   bool    // committed entries are damaged, and are being fetched from others
	alone     Instant // since when no leader is known

	// follower
	heard    Instant       // last sign of life of the leader
	patience time.Duration // this follower's own timeout, drawn anew each time it starts to follow
	matched  Index         // entries up to here equal the leader's; noMatch before the first comparison in this leader's term
	differs  Index         // the entry here is known to differ from the leader's; noDifference if none is
	held     []heldAnswer  // answers that wait for durable, by index; none is beyond same()
	warned   bool          // EventConflict was reported of this leader

	// candidate
	campaign campaign

	// leader
	peers     []*progress // all members but this one, in Members order
	sent      span        // of the last append of this TakeReady
	termFirst Index       // last index at the election + 1: where entries of the own term begin
	beat      beat
	reads     []read
	transfer  transfer
	preferred Instant // next look for a better leader

	// transferee
	taking taking

	ready Ready
}

// claim is what the last candidate said of its log.
type claim struct {
	by   ID
	term Term
	last Index
}

type heldAnswer struct {
	index Index
	msg   Message
}

const (
	noMatch      Index = -2
	noDifference Index = 1<<63 - 1
)

// maxHeld bounds the held answers. A leader has a thousand pushes on the way at most; more are duplicates, or no leader's.
const maxHeld = 1 << 13

// New makes the core of a member that has just started. Its first campaign is in a term above the stored one (R8).
func New(cfg Config, in Initial, now Instant) *Core {
	c := &Core{cfg: cfg, quorum: len(cfg.Members)/2 + 1, now: now, term: in.Term, vote: in.Vote, commit: in.Commit, published: in.Commit, durable: in.Last, durableAt: now,
		debts: debts{abstain: -1, owed: -1, behind: in.Behind, goal: noMatch}, matched: noMatch, differs: noDifference,
		log: shape{first: in.First, last: in.Last, prevTerm: in.PrevTerm, runs: slices.Clone(in.Runs)}}
	if in.Abstain > in.Last {
		c.abstain, c.owed, c.lostAt = in.Abstain, in.Abstain, in.Term
	}
	c.check(in)
	for _, id := range cfg.Members {
		if id != cfg.ID {
			c.peers = append(c.peers, &progress{id: id, match: -1})
		}
	}
	if len(cfg.Members) == 1 {
		c.behind = false // nobody else counts on anything
	}
	if in.New {
		for _, p := range c.peers {
			c.untold = append(c.untold, p.id)
		}
		c.sureFrom = now
		if len(cfg.Members) > 3 { // see settleTold
			c.sureFrom += 2 * Instant(cfg.VoteWait)
		}
	}
	if in.New && !in.Behind {
		c.unmet = slices.Clone(c.untold)
		c.newUntil = now + newPatience*Instant(c.baseTimeout())
	}
	c.becomeCandidate()
	c.alone = now
	c.campaign.next = now + c.voteInterval()
	if len(cfg.Members) == 1 {
		c.campaign.next = now
	}
	c.ready.Events = c.ready.Events[:0]
	return c
}

func (c *Core) check(in Initial) {
	if !slices.Contains(c.cfg.Members, c.cfg.ID) {
		panic(fmt.Sprintf("raft: %q is not one of the members %v", c.cfg.ID, c.cfg.Members))
	}
	if f := &c.cfg; f.Heartbeat <= 0 || f.HeartbeatLeak <= 0 || f.MinVoteInterval <= 0 || f.MinTakeInterval <= 0 || f.VoteWait <= 0 || f.PushTimeout <= 0 ||
		f.MaxInflight <= 0 || f.MaxEntries <= 0 || f.MaxPending <= 0 {
		panic(fmt.Sprintf("raft: durations and bounds of the configuration must be positive: %+v", *f))
	}
	if in.Commit > in.Last || in.First > in.Last+1 || in.Term < c.log.lastTerm() {
		panic(fmt.Sprintf("raft: R7: recovered state does not fit together: %+v", in))
	}
}

// The caller's questions. All answers are of this moment.

func (c *Core) Term() Term       { return c.term }
func (c *Core) Role() Role       { return c.role }
func (c *Core) Leader() ID       { return c.leader }
func (c *Core) First() Index     { return c.log.first }
func (c *Core) Last() Index      { return c.log.last }
func (c *Core) LastTerm() Term   { return c.log.lastTerm() }
func (c *Core) Commit() Index    { return c.commit }
func (c *Core) DurableTo() Index { return c.durable }
func (c *Core) Now() Instant     { return c.now } // of the last input

// Transferring tells whether the leader is handing leadership over and therefore refuses proposals.
func (c *Core) Transferring() bool { return c.role == Leader && c.transfer.to != "" }

// PeerStatus is the leader's view of one other member.
type PeerStatus struct {
	ID       ID
	State    string // compare, truncate, reset, append
	Match    Index  // entries up to here are stored there, durably if the group is
	Next     Index
	Inflight int
	Heard    Instant // last answer, or when its leadership began
}

// Peers is the leader's view of the others; nil unless this node leads.
func (c *Core) Peers() []PeerStatus {
	if c.role != Leader {
		return nil
	}
	out := make([]PeerStatus, 0, len(c.peers))
	for _, p := range c.peers {
		out = append(out, PeerStatus{ID: p.id, State: p.state.String(), Match: p.match, Next: p.next, Inflight: len(p.inflight), Heard: p.heard})
	}
	return out
}

// Step takes in one request or answer from another member, or a client's MsgTransfer. Whatever it holds, Step does not panic. An
// answer must come from the member that the request went to, and while the process that sent the request lives.
func (c *Core) Step(now Instant, m *Message) {
	c.now = now
	if m.Type.IsAnswer() {
		c.answer(m)
		return
	}
	if s := c.admit(m); s != StatusOK {
		c.reply(m, Message{Status: s, Term: c.term, Vote: voteRefusal(s), XTerm: -1, XIndex: -1})
		return
	}
	switch m.Type {
	case MsgPreVote:
		c.reply(m, c.preVote(m))
	case MsgVote:
		c.reply(m, c.castVote(m))
	case MsgHeartbeat:
		c.onHeartbeat(m)
	case MsgTransfer:
		c.onTransfer(m)
	default:
		c.onPush(m)
		c.tickTaking() // a transferee may have what it waits for
	}
}

// admit makes the checks that come before all others: is this a request, is the sender a member, and not this node under its own
// name (docs/protocol.md, "Votes" and "Heartbeats", rules 1 and 2).
func (c *Core) admit(m *Message) Status {
	switch {
	case !m.sane():
		return StatusUnexpectedArgument
	case m.Type == MsgTransfer:
		return StatusOK // has its own, in its own order
	case !slices.Contains(c.cfg.Members, m.Leader):
		return StatusUnknownMember
	case m.Leader == c.cfg.ID:
		return StatusUnexpectedMember
	}
	return StatusOK
}

// No member's term or index comes near these; they keep sums from overflowing, whatever a peer sends.
const (
	maxTerm  Term  = 1 << 60
	maxIndex Index = 1 << 56 // times the 32 bytes of an index record it is still a position
)

// sane tells whether a request is of a known type and its numbers are such as a member may send.
func (m *Message) sane() bool {
	ok := m.Type >= MsgPreVote && m.Type <= MsgTransfer && m.Term <= maxTerm && m.Index >= -1 && m.Index <= maxIndex
	if m.Type == MsgReset {
		t := m.LogTerm.Ceiling()
		return ok && t <= m.Term && (m.Index >= 0) == (t != -1)
	}
	ok = ok && m.LogTerm >= UnknownTerm
	switch m.Type {
	case MsgAppend:
		return ok && m.sound()
	case MsgTruncate:
		return ok && m.LogTerm <= m.Term && (len(m.Runs) == 0 || m.tells())
	}
	return ok
}

// tells whether Runs of a MsgTruncate, which are not empty, cover the entry behind Index, or Index and that, with terms that its leader can have.
func (m *Message) tells() bool {
	n := len(m.Runs)
	first, last := m.Runs[0], m.Runs[n-1]
	anew := first.First == m.Index && first.Term == m.LogTerm
	return first.Term >= 0 && last.Term <= m.Term && (n == 1 && (anew || last.First == m.Index+1) || n == 2 && anew && last.First == m.Index+1 && first.Term < last.Term)
}

// sound tells whether Runs of a MsgAppend cover First..Last as Run demands, with terms that its leader can have.
func (m *Message) sound() bool {
	if m.First < 0 || m.First > m.Last || m.Last > maxIndex || m.Index != m.First-1 || len(m.Runs) == 0 || m.Runs[0].First != m.First {
		return false
	}
	for k, r := range m.Runs {
		if r.Term < 0 || r.Term > m.Term || r.First > m.Last || k > 0 && (r.First <= m.Runs[k-1].First || r.Term <= m.Runs[k-1].Term) {
			return false
		}
	}
	return m.LogTerm <= m.Runs[0].Term
}

func voteRefusal(s Status) VoteResult {
	switch s {
	case StatusUnknownMember:
		return VoteUnknownLeader
	case StatusUnexpectedMember:
		return VoteUnexpectedLeader
	}
	return VoteUnknown
}

func (c *Core) answer(m *Message) {
	switch m.Type {
	case MsgPreVoteAnswer, MsgVoteAnswer:
		c.onVoteAnswer(m)
	case MsgHeartbeatAnswer:
		c.onHeartbeatAnswer(m)
	case MsgTransferAnswer:
		c.onTransferAnswer(m)
	default:
		c.onPushAnswer(m)
	}
}

// Tick tells the core the time. It need not be called before the instant that Deadline names.
func (c *Core) Tick(now Instant) {
	c.now = now
	switch c.role {
	case Leader:
		c.tickLeader()
	case Follower:
		c.tickFollower()
	case Candidate:
		c.tickCandidate()
	}
	c.tickTaking()
	if c.transfer.to != "" && now >= c.transfer.until {
		c.endTransfer(StatusTakeLeadershipFailed)
	}
}

// Deadline is the instant of the next thing that happens by itself.
func (c *Core) Deadline() Instant {
	d := Instant(1<<63 - 1)
	switch c.role {
	case Leader:
		d = c.leaderDeadline()
	case Follower:
		if !c.cfg.NoElection {
			d = c.heard + Instant(c.patience)
		}
		if c.asksTerms() {
			d = min(d, c.askTerms)
		}
	case Candidate:
		d = c.campaign.deadline()
	}
	if c.taking.ref != 0 {
		d = min(d, c.taking.until)
	}
	if c.transfer.to != "" {
		d = min(d, c.transfer.until)
	}
	return d
}

// Propose takes n new entries into the log if this node may accept them, and gives the index of the first. The caller stores
// the EffectPropose that follows comes up. Refusals: StatusNotLeader, StatusTransferring, StatusPendingFull, StatusUnexpectedArgument.
func (c *Core) Propose(n int) (first Index, s Status) {
	switch {
	case n <= 0:
		return -1, StatusUnexpectedArgument
	case c.role != Leader:
		return -1, StatusNotLeader
	case c.transfer.to != "":
		return -1, StatusTransferring
	case c.log.last-max(c.commit, c.termFirst-1) >= c.cfg.MaxPending:
		return -1, StatusPendingFull
	}
	return c.own(EffectPropose, n), StatusOK
}

// own adds n entries of this leader's term.
func (c *Core) own(k EffectKind, n int) Index {
	first := c.log.last + 1
	if c.durable == c.log.last {
		c.durableAt = c.now
	}
	c.log.extend(c.log.last+Index(n), c.term)
	c.ready.Effects = append(c.ready.Effects, Effect{Kind: k, First: first, Last: c.log.last, Term: c.term})
	return first
}

// Durable tells that this node's entries up to i, the last of them of term t, are on its own disk. A report about an entry
// that has since been cut is recognised by its term and ignored (R3); but one whose sync began before a cut must not be given for
// an entry of the same index and term that was stored again after it.
func (c *Core) Durable(i Index, t Term) {
	if i <= c.durable || !c.log.matches(i, t) {
		return
	}
	c.durable, c.durableAt = i, c.now
	c.release()
	c.caughtUp()
	if c.role == Leader {
		c.advance()
	}
}

// release sends the answers that durable now covers.
func (c *Core) release() {
	if c.unsure() {
		return
	}
	k := 0
	for k < len(c.held) && c.held[k].index <= c.durable {
		c.send(c.held[k].msg)
		k++
	}
	c.held = slices.Delete(c.held, 0, k)
}

// dropHeld answers what waits for entries beyond i with a refusal: they are not stored, or the leader that waits is deposed.
func (c *Core) dropHeld(i Index) {
	k := 0
	for k < len(c.held) && c.held[k].index <= i {
		k++
	}
	for _, h := range c.held[k:] {
		h.msg.Status, h.msg.End = StatusInconsistentState, c.log.last
		c.send(h.msg)
	}
	clear(c.held[k:])
	c.held = c.held[:k]
}

// Unwritten tells, between Writes and TakeReady, that the entries from i on could not be stored for lack of space. They are taken
// back out of the log as if they had never been accepted: no other node has seen them, since nothing is sent before it is written.
func (c *Core) Unwritten(i Index) {
	if i > c.log.last {
		return
	}
	if i <= c.durable || i <= c.published {
		panic(fmt.Sprintf("raft: R7: entry %d is called unwritten, durable is %d and commit %d", i, c.durable, c.published))
	}
	c.log.cut(i - 1)
	c.commit = min(c.commit, i-1)
	c.matched, c.differs = min(c.matched, i-1), noDifference
	for _, p := range c.peers {
		p.next, p.cmp = min(p.next, i), min(p.cmp, i-1)
	}
	for k := range c.ready.Messages { // what this batch has said of them already
		m := &c.ready.Messages[k]
		switch {
		case m.Type.IsAnswer():
			m.End = min(m.End, i-1)
		case m.Index >= i && m.Type != MsgHeartbeat:
			m.Index, m.LogTerm = i-1, c.log.lastTerm()
		}
	}
	c.dropHeld(i - 1)
}

// Full tells whether the disk has room for entries. While it has none a leader tries to hand leadership to a member that has, and a
// follower takes none over.
func (c *Core) Full(full bool) {
	if full && !c.full {
		c.preferred = c.now + preferredEvery
	}
	c.full = full
}

// Damaged tells whether committed entries of this node are damaged. It votes and follows as ever, for what it once held others hold as well; but as
// leader it could not give those entries to whoever lacks them. So it hands leadership to a member that takes it, and while there is none it
// stands for election only once nobody else has become leader for some time.
func (c *Core) Damaged(damaged bool) {
	damaged = damaged && len(c.peers) > 0
	if damaged && !c.damaged {
		c.preferred = c.now + preferredEvery
	}
	c.damaged = damaged
}

// unfit tells that any other member would be the better leader.
func (c *Core) unfit() bool { return c.full || c.damaged }

// damagedPatience is how many election time-outs a damaged node leaves to the others.
const damagedPatience = 5

// Expired tells that retention deleted the entries before first.
func (c *Core) Expired(first Index) { c.log.expire(first) }

// Retire tells that this node will end soon: from now on it does not campaign and takes no leadership that is handed to it, so that a leader which
// prefers it does not hand back what it has just given away. It goes on leading, voting and storing.
func (c *Core) Retire() {
	c.cfg.NoElection = true
	if c.role == Follower && c.taking.ref != 0 {
		c.settleTaking()
	}
}

// DiskFailed tells that a write or a sync failed for good. A leader gives its leadership away; the node neither votes nor
// campaigns nor stores anything until it is started again. Messages of the same batch that speak of what was not written are the
// caller's to hold back.
func (c *Core) DiskFailed(now Instant) {
	if c.now = now; c.failed {
		return
	}
	c.failed = true
	keep := c.durable
	if c.unsure() {
		keep = noMatch // it asks for terms no more
	}
	c.dropHeld(keep)
	switch c.role {
	case Leader:
		c.giveAway()
	case Candidate:
		c.campaign.phase = idle
	}
	c.settleTaking()
}

// Connected tells that the connection to a peer was made anew (or broke): what was in flight may be lost. ours tells whether the
// peer is known to be of this implementation.
func (c *Core) Connected(id ID, ours bool) {
	for _, p := range c.peers {
		if p.id != id {
			continue
		}
		p.ours, p.refusals = ours, 0
		if c.asksTerms() {
			c.askTerms = c.now // what was asked before did not arrive
		}
		if c.role == Leader {
			p.restart(c.log.last)
		}
	}
}

// Writes gives what the inputs so far have to put on disk: SaveTerm with Term and Vote, and Effects. The caller carries it out
// before TakeReady, so that it can still report with Unwritten what the disk had no room for. The other fields are not final.
func (c *Core) Writes() *Ready {
	c.ready.Term, c.ready.Vote = c.term, c.vote
	return &c.ready
}

// Matches tells whether the log holds an entry i of term t.
func (c *Core) Matches(i Index, t Term) bool { return c.log.matches(i, t) }

// TakeReady ends a batch of inputs: the leader fills its followers' pipes, and everything to be done is handed out.
func (c *Core) TakeReady(now Instant) *Ready {
	c.now = now
	if c.role == Leader {
		if n := len(c.reads); n > 0 && c.reads[n-1].round > c.beat.round {
			c.startBeat()
		}
		c.sent = span{}
		for _, p := range c.peers {
			c.replicate(p)
		}
	}
	c.published = c.commit
	r := &c.ready
	r.Term, r.Vote, r.Commit, r.Role, r.Leader = c.term, c.vote, c.commit, c.role, c.leader
	return r
}

// Done tells that all of the last Ready is carried out.
func (c *Core) Done() {
	r := &c.ready
	clear(r.Effects)
	clear(r.Messages)
	r.SaveTerm, r.Effects, r.Messages, r.Events, r.Confirms = false, r.Effects[:0], r.Messages[:0], r.Events[:0], r.Confirms[:0]
}

func (c *Core) send(m Message) {
	m.From = c.cfg.ID
	c.ready.Messages = append(c.ready.Messages, m)
}

// reply completes and sends the answer to m.
func (c *Core) reply(m *Message, a Message) { c.send(c.answerTo(m, a)) }

// answerTo fills in what every answer to m has.
func (c *Core) answerTo(m *Message, a Message) Message {
	a.Type, a.From, a.To, a.Ref, a.Leader = m.Type.Answer(), c.cfg.ID, m.From, m.Ref, c.leader
	a.Asked, a.Index, a.First, a.Last, a.Begin, a.End = m.Asked, m.Index, m.First, m.Last, c.log.first, c.log.last
	return a
}

func (c *Core) event(e Event) {
	e.Term, e.Role = c.term, c.role
	c.ready.Events = append(c.ready.Events, e)
}

// setCommit raises the commit index to i, never above the last entry (R7).
func (c *Core) setCommit(i Index) {
	if !plantedCommitBeyondEnd {
		i = min(i, c.log.last)
	}
	c.commit = max(c.commit, i)
}

// setTerm enters term t with vote v; it is durable before any message of the same Ready leaves (R6). On a failed disk the term is
// only remembered: no vote is given there, and a term without a vote may be entered again after the next start.
func (c *Core) setTerm(t Term, v ID) {
	if t < c.term {
		panic(fmt.Sprintf("raft: R1: term falls from %d to %d", c.term, t))
	}
	if t > c.term {
		c.led = ""
		c.forgetMatch()
	}
	if !c.failed && !(plantedVoteNotStored && t == c.term) {
		c.ready.SaveTerm = true
	}
	c.term, c.vote = t, v
}

// forgetMatch forgets what is known of a leader's log, which is another one in each term.
func (c *Core) forgetMatch() { c.matched, c.differs, c.goal = noMatch, noDifference, noMatch }

func (c *Core) progress(id ID) *progress {
	for _, p := range c.peers {
		if p.id == id {
			return p
		}
	}
	return nil
}
