package dledger

import (
	"context"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
	"dledger/internal/wire"
)

// Version of this implementation.
const Version = "0.1.0"

// Status is the state of a member at one moment.
type Status struct {
	Group, ID    string
	Role         string // leader, follower or candidate
	Term         Term
	Leader       string // "" if none is known
	First, Last  Index  // of the log; an empty one has Last = First-1
	Commit       Index
	Durable      Index // the last entry that this member's own sync has covered
	Pending      int   // appends that wait for their acknowledgement
	Abstaining   bool  // the log lost its tail, or the disk is new: no vote and no candidacy until it has caught up
	Transferring bool
	DiskFull     bool              // it takes no more entries until there is space
	Damaged      []Damage          // committed entries that are damaged on this member's disk
	Scrub        Scrub             // the search for damage
	Peers        []PeerStatus      // on the leader: one for each other member
	Refused      map[string]string // by id: members that this one takes for none of its group, and why
	Err          error             // why this member stopped taking part; nil while it does
}

// Damage is a stretch of damaged entries.
type Damage struct {
	First, Last Index
	Bytes       int64
}

// Scrub tells how far the search for damage has come.
type Scrub struct {
	Running     bool
	Done, Total int64     // bytes, while it runs
	Last        time.Time // when the last full pass ended; zero = there was none
}

// PeerState is how the leader works on a member's log.
type PeerState string

const (
	PeerCompare  PeerState = "compare"  // looks for the last entry that both logs hold
	PeerTruncate PeerState = "truncate" // has what differs cut
	PeerReset    PeerState = "reset"    // has the log begin anew where the leader's begins
	PeerAppend   PeerState = "append"   // sends entries as they come
)

// PeerKind is what a member says of itself.
type PeerKind string

const (
	PeerUnknown PeerKind = ""        // not met yet
	PeerGo      PeerKind = "go"      // of this implementation
	PeerJava    PeerKind = "java"    // of the original
	PeerSilent  PeerKind = "silent"  // it does not say
	PeerRefused PeerKind = "refused" // it cannot be a member
)

// PeerStatus is the leader's view of one other member.
type PeerStatus struct {
	ID       string
	State    PeerState
	Kind     PeerKind
	Refused  string // why it is refused
	Match    Index  // it holds the entries up to here
	Inflight int    // unanswered append requests
	Idle     time.Duration
}

// Status asks the loop for its state; it fails only when ctx ends first or the Ledger is closed.
func (l *Ledger) Status(ctx context.Context) (Status, error) {
	s, err := l.loop.Snapshot(ctx)
	if err != nil {
		return Status{}, l.readError(err)
	}
	return l.statusOf(s), nil
}

func (l *Ledger) statusOf(s replica.Snapshot) Status {
	out := Status{Group: l.cfg.Group, ID: l.cfg.ID, Role: s.Role.String(), Term: s.Term, Leader: string(s.Leader), First: s.First, Last: s.Last, Commit: s.Commit,
		Durable: s.Durable, Pending: s.Waiting, Abstaining: s.Abstaining, Transferring: s.Transferring, Err: s.Err}
	for _, d := range l.store.Damaged() {
		out.Damaged = append(out.Damaged, Damage{First: d.First, Last: d.Last, Bytes: d.Bytes})
	}
	out.DiskFull = l.store.Full()
	out.Scrub = Scrub(l.store.Scrubbing())
	out.Refused = l.net.refused()
	for _, p := range s.Peers {
		kind, why := l.net.kindOf(p.ID)
		out.Peers = append(out.Peers, PeerStatus{ID: string(p.ID), State: PeerState(p.State), Kind: kind, Refused: why, Match: p.Match, Inflight: p.Inflight, Idle: time.Duration(s.Now - p.Heard)})
	}
	return out
}

func (l *Ledger) statusResponse(s Status) *wire.StatusResponse {
	a := &wire.StatusResponse{Code: wire.ResultOK, Group: s.Group, ID: raft.ID(s.ID), Role: s.Role, Term: s.Term, LeaderID: raft.ID(s.Leader), First: s.First, Last: s.Last,
		Durable: s.Durable, Commit: s.Commit, Applied: s.Commit, Pending: s.Pending, UptimeMs: time.Since(l.started).Milliseconds(), Peers: l.addresses(), Node: l.cfg.node(),
		Durability: l.cfg.Durability.String(), Abstains: s.Abstaining, DiskFull: s.DiskFull}
	for _, d := range s.Damaged {
		a.Damaged = append(a.Damaged, wire.Damage{First: d.First, Last: d.Last, Bytes: d.Bytes})
	}
	a.Repaired = l.store.Stats().Repaired
	if s.Scrub.Running {
		a.ScrubDone, a.ScrubTotal = s.Scrub.Done, s.Scrub.Total
	}
	if !s.Scrub.Last.IsZero() {
		a.ScrubbedMs = s.Scrub.Last.UnixMilli()
	}
	for _, p := range s.Peers {
		a.Progress = append(a.Progress, wire.Progress{ID: raft.ID(p.ID), State: string(p.State), Match: p.Match, IdleMs: p.Idle.Milliseconds(), Kind: string(p.Kind), Refused: p.Refused})
	}
	for id, why := range s.Refused {
		if a.Refused == nil {
			a.Refused = make(map[raft.ID]string)
		}
		a.Refused[raft.ID(id)] = why
	}
	if s.Err != nil {
		a.Error = s.Err.Error()
	}
	return a
}

// Stats are counts since Open; those that say "now" are of the present moment. A program feeds them to whatever metrics library it uses.
type Stats struct {
	Turns         int64 // rounds of the loop; each works on all that has arrived
	Proposed      int64 // entries accepted as leader
	Committed     int64 // by how much the commit index has risen
	Elections     int64 // times this member became leader
	Cuts          int64 // times a suffix that the leader did not have was cut
	Syncs         int64
	SyncTime      time.Duration // of all together
	SyncMax       time.Duration // of the slowest
	Writes        int64         // hand-overs to the operating system
	BytesWritten  int64
	CacheReads    int64 // reads of entries that were in memory
	DiskReads     int64 // and that were not
	DataFiles     int64 // now
	ExpiredFiles  int64 // data files that retention deleted
	Damages       int64 // damaged stretches found
	DamagedBytes  int64 // now
	Repaired      int64 // entries repaired with what other members had
	Mended        int64 // index and blank records repaired with what is around them
	ScrubbedBytes int64 // searched for damage
	ScrubPasses   int64 // searches of the whole log
	Entries       int64 // in the log now
	CacheBytes    int64 // of entries in memory now
	Uptime        time.Duration
}

// Stats gives the running counts.
func (l *Ledger) Stats() Stats {
	c, s, st := l.loop.Counters(), l.store.Stats(), l.store.State()
	return Stats{Turns: c.Turns.Load(), Proposed: c.Proposed.Load(), Committed: c.Committed.Load(), Elections: c.Elections.Load(), Cuts: c.Cuts.Load(),
		Syncs: s.Syncs, SyncTime: s.SyncTime, SyncMax: time.Duration(c.SyncMaxNanos.Load()), Writes: s.Appends, BytesWritten: s.Bytes, CacheReads: s.CacheReads, DiskReads: s.DiskReads,
		DataFiles: int64(s.DataFiles), ExpiredFiles: s.Expired, Damages: s.Damages, DamagedBytes: damagedBytes(l.store.Damaged()), Repaired: s.Repaired, Mended: s.Mended, ScrubbedBytes: s.Scrubbed, ScrubPasses: s.ScrubPasses,
		Entries: int64(st.Last - st.First + 1), CacheBytes: s.CacheBytes, Uptime: time.Since(l.started)}
}

func damagedBytes(list []logstore.Damage) (n int64) {
	for _, d := range list {
		n += d.Bytes
	}
	return n
}

// addresses gives id → host:port of all members.
func (l *Ledger) addresses() map[string]string {
	m := make(map[string]string, len(l.peers))
	for _, p := range l.peers {
		m[p.ID] = p.Address
	}
	return m
}

// past tells whether this member knows that its group has one.
func (l *Ledger) past() bool { return l.loop.View().Term > 0 || l.store.State().Last >= 0 }

// node is what this member says of itself in a handshake.
func (c *Config) node() wire.Node {
	return wire.Node{Product: wire.Product, Version: Version, Compat: c.Compat.String(), DataFileSize: c.DataFileSize}
}
