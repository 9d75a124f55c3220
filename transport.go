package dledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"dledger/internal/entry"
	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/replica"
	"dledger/internal/wire"
)

const (
	rpcTimeout   = 3 * time.Second        // of every request between members, as in the original
	helloTimeout = 300 * time.Millisecond // a peer that has not said by then who it is, is taken for one of the original, and has twice the time when it is asked again
	helloAgain   = 5 * time.Millisecond   // pause before a peer that says hello itself is dialled again
	helloEvery   = time.Second            // pause before a peer that could not be told is asked again

	frameBytes  = 1 << 20 // of entries in one push; JSON makes a third more of it
	windowBytes = 8 << 20 // of entries that one peer has not answered yet
)

// transport carries the messages of one replica to its peers (DLedgerRpcNettyService in the Java original). It is the replica's Net.
type transport struct {
	self   raft.ID
	group  string
	compat raft.Compat
	node   wire.Node
	client *remoting.Client
	// control has connections of its own, for what elections and leadership live by. A megabyte of entries takes a second on a slow link.
	control *remoting.Client
	store   *logstore.Store
	loop    *replica.Replica
	log     *slog.Logger
	peers   map[raft.ID]*peer
	quota   int64
	lag     int64
	ctx     context.Context
	cancel  context.CancelFunc
	done    sync.WaitGroup
}

// peer is one other member.
//
//  1. pushes leave in the order in which the core asked for them;
//  2. at most windowBytes of entries are unanswered, but for the one frame that exceeds it;
//  3. in compat 0.3 and 0.4 nothing is pushed before kind is known, since the generations misread each other's pushes.
type peer struct {
	t       *transport
	id      raft.ID
	address string
	limit   *rate.Limiter // nil = no quota

	mu       sync.Mutex
	cond     sync.Cond // of mu: something changed that pump waits for
	kind     peerKind
	helloing bool
	helloAt  time.Time
	patience patience       // how long it has to say who it is
	queue    []raft.Message // appends that could not be sent at once
	pumping  bool           // pump is working on a message that is no longer in queue
	unacked  int            // bytes of entries sent and not answered
	epoch    int            // counts lost connections and restarts: window bytes of an earlier one are forgotten
	life     int            // counts lost connections: a handshake of an earlier one is void
	stopped  bool
	mismatch string // why kind is refused, for the log and for status
}

type peerKind uint8

const (
	kindUnknown peerKind = iota
	kindOurs
	kindJava
	kindSilent  // did not say; treated as kindJava, and asked again now and then
	kindRefused // cannot be a member as it is; asked again now and then
)

// public gives k as Status has it.
func (k peerKind) public() PeerKind {
	return [...]PeerKind{PeerUnknown, PeerGo, PeerJava, PeerSilent, PeerRefused}[k]
}

func newTransport(c *Config, peers []Peer, client, control *remoting.Client, store *logstore.Store) *transport {
	t := &transport{self: raft.ID(c.ID), group: c.Group, compat: c.Compat, node: c.node(), client: client, control: control, store: store, log: c.Logger,
		peers: map[raft.ID]*peer{}, quota: c.PushQuota, lag: c.PushThrottle}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	for _, p := range peers {
		if p.ID == c.ID {
			continue
		}
		q := &peer{t: t, id: raft.ID(p.ID), address: p.Address, patience: patience(helloTimeout)}
		q.cond.L = &q.mu
		if c.PushQuota > 0 {
			q.limit = rate.NewLimiter(rate.Limit(c.PushQuota), int(max(c.PushQuota, 2*frameBytes)))
		}
		t.peers[q.id] = q
	}
	return t
}

// start begins work for loop.
func (t *transport) start(loop *replica.Replica) {
	t.loop = loop
	for _, p := range t.peers {
		t.done.Go(p.pump)
	}
	t.greet()
}

// greet asks every peer that has not said who it is. It is known then by the time it matters: in an election.
func (t *transport) greet() {
	for _, p := range t.peers {
		p.mu.Lock()
		if p.kind == kindUnknown || (p.kind == kindSilent || p.kind == kindRefused) && time.Since(p.helloAt) > helloEvery {
			p.hello()
		}
		p.mu.Unlock()
	}
}

// met tells that a peer has said hello: where it could not be reached before, it can be now.
func (t *transport) met(id raft.ID) {
	p := t.peers[id]
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kind == kindUnknown && !p.helloing && time.Since(p.helloAt) > helloAgain {
		p.t.client.Retry(p.address)
		p.t.control.Retry(p.address)
		p.hello()
	}
}

// close stops all goroutines; nothing is sent afterwards.
func (t *transport) close() {
	t.cancel()
	for _, p := range t.peers {
		p.mu.Lock()
		p.stopped = true
		p.cond.Broadcast()
		p.mu.Unlock()
	}
	t.done.Wait()
}

// Send implements replica.Net. It runs on the loop and never waits.
func (t *transport) Send(m *raft.Message) {
	p := t.peers[m.To]
	p.mu.Lock()
	kind := p.kind
	if kind == kindUnknown {
		p.hello()
	}
	p.mu.Unlock()
	switch {
	case kind == kindRefused:
	case m.Type == raft.MsgPreVote && kind != kindOurs:
		p.preVote(m, kind)
	case m.Type.IsPush() || m.Type == raft.MsgReset:
		if kind != kindUnknown {
			p.push(m)
		}
	default:
		p.request(m, 0)
	}
}

// state is the hook of the shared client: the connection to this peer came up or went down.
func (p *peer) state(up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !up {
		p.epoch++
		p.life++
		p.queue, p.unacked = nil, 0
		p.kind, p.helloing = kindUnknown, false
		p.cond.Broadcast()
		return
	}
	p.hello()
}

// hello asks the peer who it is, unless that is under way. The caller holds mu.
func (p *peer) hello() {
	if p.helloing || p.stopped {
		return
	}
	p.helloing, p.helloAt = true, time.Now()
	h := wire.EncodeJSON(&wire.Hello{Group: p.t.group, RemoteID: p.id, LocalID: p.t.self, Node: p.t.node})
	life, asked := p.life, p.helloAt
	err := p.t.client.Go(p.address, remoting.Request{Code: wire.CodeHello}, time.Duration(p.patience), func(f *remoting.Frame, err error) {
		if err != nil {
			p.toldNothing(life, err)
			return
		}
		p.said(asked)
		var a wire.HelloResponse
		switch err := wire.DecodeJSONAnswer(f.Code, f.Body, &a); {
		case err == nil:
			why := p.t.judge(&a)
			p.told(life, kindOurs, why)
			if why == "" && a.Code == wire.ResultOK {
				p.t.loop.Met(p.id, a.Past)
			}
		case errors.Is(err, wire.ErrUnsupported):
			p.probe(life)
		default:
			p.toldNothing(life, err)
		}
	}, h)
	if err != nil {
		p.helloing = false // not sent; the next message tries again
	}
}

// probe learns the generation of a Java peer.
func (p *peer) probe(life int) {
	body := wire.AppendSnapshotProbe(nil, p.t.group, p.id, p.t.self)
	asked := time.Now()
	err := p.t.client.Go(p.address, remoting.Request{Code: wire.CodeInstallSnapshot}, p.helloPatience(), func(f *remoting.Frame, err error) {
		if err != nil {
			p.toldNothing(life, err)
			return
		}
		p.said(asked)
		got, err := wire.SnapshotDialect(f.Code, f.Body)
		switch {
		case err != nil:
			p.toldNothing(life, err)
		case p.t.compat == raft.CompatGo:
			p.told(life, kindJava, fmt.Sprintf("it is a Java DLedger %s node, and this group is set to compat: go; set compat: %s on all members of ours", got, got))
		case got != p.t.compat:
			p.told(life, kindJava, fmt.Sprintf("it is a Java DLedger %s node, and this group is set to compat: %s; set compat: %s on all members of ours", got, p.t.compat, got))
		default:
			p.told(life, kindJava, "")
		}
	}, body)
	if err != nil {
		p.toldNothing(life, err)
	}
}

func (p *peer) helloPatience() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.patience)
}

// said notes that the peer has answered what it was asked at that moment.
func (p *peer) said(asked time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patience.answered(time.Since(asked))
}

// patience is how long a peer is waited for when it is asked who it is. It doubles when no answer comes, up to rpcTimeout, and follows what an answer took: a link or a
// machine that was slow once makes no Java node wait for ever after.
type patience time.Duration

func (p *patience) missed() { *p = min(2**p, patience(rpcTimeout)) }

func (p *patience) answered(took time.Duration) {
	*p = patience(max(helloTimeout, min(2*took, rpcTimeout)))
}

// judge tells why a node of ours cannot be in the same group; "" if it can.
func (t *transport) judge(a *wire.HelloResponse) string {
	switch {
	case a.Code == wire.ResultUnknownGroup:
		return fmt.Sprintf("it is not in group %q", t.group)
	case a.Code == wire.ResultUnknownMember:
		return "there is another member at its address"
	case a.Compat != "" && a.Compat != t.node.Compat:
		return fmt.Sprintf("it is set to compat: %s, this member to compat: %s; they must be alike", a.Compat, t.node.Compat)
	case a.DataFileSize != 0 && a.DataFileSize != t.node.DataFileSize && t.compat != raft.Compat04:
		return fmt.Sprintf("its mappedFileSizeForEntryData is %d, this member's is %d; they must be alike", a.DataFileSize, t.node.DataFileSize)
	}
	return ""
}

// told takes the outcome of the handshake of connection life. why is set when the peer cannot be a member of this group.
func (p *peer) told(life int, kind peerKind, why string) {
	p.mu.Lock()
	if life != p.life || p.stopped {
		p.mu.Unlock()
		return
	}
	p.helloing = false
	if why != "" {
		kind = kindRefused
		if p.mismatch != why {
			p.t.log.Error("peer refused", "peer", p.id, "address", p.address, "reason", why)
		}
	}
	same := p.kind == kind
	p.kind, p.mismatch = kind, why
	p.mu.Unlock()
	if !same {
		p.t.loop.Connected(p.id, kind == kindOurs)
	}
}

// toldNothing: the peer did not say who it is. In a group with Java nodes it may be one that answers only what it knows. One that cannot be reached
// is none of those: it would count as willing in every pre-vote, and a member that is cut off raise its term for as long as it is.
func (p *peer) toldNothing(life int, err error) {
	if errors.Is(err, remoting.ErrTimeout) {
		p.mu.Lock()
		p.patience.missed()
		p.mu.Unlock()
	}
	if p.t.compat != raft.CompatGo && errors.Is(err, remoting.ErrTimeout) && !errors.Is(err, remoting.ErrConnecting) {
		p.told(life, kindSilent, "")
		return
	}
	p.mu.Lock()
	if life == p.life {
		p.helloing = false
	}
	p.mu.Unlock()
}

// preVote serves a pre-vote to a peer that is not known to be ours: for a node of the original it would be a vote. In compat go it
// waits for the handshake. Otherwise a Java node is asked for its leader instead, and one that answers no question, though
// connected, is passed over, as the original would: its vote decides.
func (p *peer) preVote(m *raft.Message, kind peerKind) {
	switch {
	case p.t.compat == raft.CompatGo:
		p.failed(m)
	case kind == kindSilent:
		p.t.loop.Deliver(raft.Message{Type: raft.MsgPreVoteAnswer, From: p.id, To: p.t.self, Vote: raft.VoteAccept, Term: m.Term, Asked: m.Asked}, nil)
	default:
		p.askMetadata(m)
	}
}

// askMetadata stands in for a pre-vote towards a node of the original: one that knows no leader would vote.
func (p *peer) askMetadata(m *raft.Message) {
	req := *m
	body := (&wire.MetadataRequest{Base: wire.ClientBase(p.t.group, p.id)}).AppendTo(nil)
	answer := func(v raft.VoteResult) {
		p.t.loop.Deliver(raft.Message{Type: raft.MsgPreVoteAnswer, From: p.id, To: p.t.self, Vote: v, Term: req.Term, Asked: req.Asked}, nil)
	}
	err := p.t.client.Go(p.address, remoting.Request{Code: wire.CodeMetadata}, rpcTimeout, func(f *remoting.Frame, err error) {
		var a wire.MetadataResponse
		switch {
		case err != nil || a.Decode(f.Code, f.Body) != nil || a.Code != wire.ResultOK:
			answer(raft.VoteUnknown)
		case a.LeaderID != "" && a.LeaderID != p.t.self:
			p.t.loop.Deliver(raft.Message{Type: raft.MsgPreVoteAnswer, From: p.id, To: p.t.self, Vote: raft.VoteAlreadyHasLeader, Term: -1, Asked: req.Asked}, nil)
		default:
			answer(raft.VoteAccept)
		}
	}, body)
	if err != nil {
		answer(raft.VoteUnknown)
	}
}

// request sends m and delivers its answer. size is what it adds to the window; it is given back with the answer.
func (p *peer) request(m *raft.Message, size int) {
	req := *m
	code, pieces, err := wire.EncodeRequest(p.t.compat, p.t.group, &req)
	if err != nil {
		p.t.log.Error("message cannot be encoded", "type", m.Type.String(), "error", err)
		return
	}
	p.mu.Lock()
	p.unacked += size
	epoch := p.epoch
	p.mu.Unlock()
	req.Payload = nil // the answer does not need it
	done := func(f *remoting.Frame, err error) {
		p.answered(epoch, size)
		if err != nil {
			p.failed(&req)
			return
		}
		a, err := wire.DecodeAnswer(p.t.compat, &req, f.Code, f.Body)
		if err != nil {
			p.failed(&req)
			return
		}
		a.From, a.To = p.id, p.t.self
		if a.Type == raft.MsgTransferAnswer && a.Status == raft.StatusUnknownMember {
			a.Status = raft.StatusTakeLeadershipFailed // it is closing; only this member tells who belongs to the group
		}
		p.t.loop.Deliver(a, nil)
	}
	client := p.t.client
	if !m.Type.IsPush() && m.Type != raft.MsgReset {
		client = p.t.control
	}
	if err := client.Go(p.address, remoting.Request{Code: code}, p.timeout(&req), done, pieces...); err != nil {
		p.answered(epoch, size)
		p.failed(&req)
	}
}

// timeout is longer for a hand-over, whose answer comes once the transferee's role has settled.
func (p *peer) timeout(m *raft.Message) time.Duration {
	if m.Type == raft.MsgTransfer {
		return 3 * rpcTimeout
	}
	return rpcTimeout
}

// failed tells a candidate that a voter, or a leader that its successor, cannot be reached. Every other request is repeated by the
// core's own timers.
func (p *peer) failed(m *raft.Message) {
	switch m.Type {
	case raft.MsgVote, raft.MsgPreVote, raft.MsgTransfer:
		p.t.loop.Deliver(raft.Message{Type: m.Type.Answer(), From: p.id, To: p.t.self, Vote: raft.VoteUnknown, Status: raft.StatusInternal, Term: -1, Asked: m.Asked}, nil)
	}
}

func (p *peer) answered(epoch, size int) {
	if size == 0 {
		return
	}
	p.mu.Lock()
	if epoch == p.epoch {
		p.unacked -= size
		p.cond.Signal()
	}
	p.mu.Unlock()
}

// push sends a request that builds the peer's log. Entries that are in memory go at once, from the loop; what has to be read from
// disk, or has to wait for the window or the quota, goes through pump. So do comparisons of dialect 0.3, which carry an entry.
func (p *peer) push(m *raft.Message) {
	switch m.Type {
	case raft.MsgAppend:
		p.mu.Lock()
		direct := len(p.queue) == 0 && !p.pumping && p.unacked < windowBytes
		if !direct {
			p.queue = append(p.queue, *m)
			p.cond.Signal()
		}
		p.mu.Unlock()
		if direct {
			p.pushCached(*m)
		}
	case raft.MsgCommit:
		p.request(m, 0)
	default: // the core starts over with this peer
		p.mu.Lock()
		p.queue = nil
		p.epoch++
		p.unacked = 0
		reads := p.t.compat == raft.Compat03 || m.Type == raft.MsgReset
		if reads {
			p.queue = append(p.queue, *m)
		}
		p.cond.Signal()
		p.mu.Unlock()
		if !reads {
			p.request(m, 0)
		}
	}
}

// pushCached sends the entries of m that are in memory and need not wait, and leaves the rest to pump.
func (p *peer) pushCached(m raft.Message) {
	for {
		payload, last, ok := p.t.store.ReadCached(m.First, m.Last+1, frameBytes)
		if !ok || p.far(last) { // which asks no disk: only the loop takes entries out of memory
			break
		}
		part := cutAppend(&m, last)
		part.Payload = payload
		p.request(&part, payload.Size())
		if last == m.Last {
			return
		}
		skipAppend(&m, last)
		p.mu.Lock()
		full := p.unacked >= windowBytes
		p.mu.Unlock()
		if full {
			break
		}
	}
	p.mu.Lock()
	p.queue = append([]raft.Message{m}, p.queue...)
	p.cond.Signal()
	p.mu.Unlock()
}

// unreadable takes note that entry i could not be read for a follower. Where it is not committed nobody else may have it, and a leader that cannot give it to anyone
// commits nothing any more: that is a failed disk, on which nobody should lead. A start then finds out how far the log is whole.
func (t *transport) unreadable(i raft.Index, follower raft.ID, err error) {
	if errors.Is(err, logstore.ErrCompacted) || errors.Is(err, logstore.ErrOutOfRange) || errors.Is(err, logstore.ErrClosed) {
		return // the log has moved on
	}
	t.log.Error("entries cannot be read for a follower", "follower", follower, "first", i, "error", err)
	if i > t.store.State().Commit {
		t.loop.Fail(fmt.Errorf("an entry that is not committed cannot be read: %w", err))
	}
}

// complete adds what a message of dialect 0.3 carries beyond the core's fields, and the position of a reset. False means that the
// log has moved on meanwhile; the core will notice.
func (p *peer) complete(m *raft.Message) bool {
	var err error
	switch {
	case m.Type == raft.MsgReset:
		m.Pos, _, err = p.t.store.Pos(m.First)
	case p.t.compat == raft.Compat03 && m.Index >= 0 && (m.Type == raft.MsgCompare || m.Type == raft.MsgTruncate):
		if m.Payload, _, err = p.t.store.Read(m.Index, m.Index+1, 1); err != nil {
			p.t.unreadable(m.Index, p.id, err)
		}
	}
	return err == nil
}

// cutAppend gives the part of m up to entry last, without payload.
func cutAppend(m *raft.Message, last raft.Index) raft.Message {
	part := *m
	part.Last = last
	for k := range part.Runs {
		if part.Runs[k].First > last {
			part.Runs = part.Runs[:k]
			break
		}
	}
	return part
}

// skipAppend makes m begin behind entry last.
func skipAppend(m *raft.Message, last raft.Index) {
	k := len(m.Runs) - 1
	for m.Runs[k].First > last {
		k--
	}
	m.Index, m.LogTerm, m.First = last, m.Runs[k].Term, last+1
	if k+1 < len(m.Runs) && m.Runs[k+1].First == last+1 {
		m.Runs = m.Runs[k+1:]
		return
	}
	rest := append([]raft.Run{{Term: m.Runs[k].Term, First: last + 1}}, m.Runs[k+1:]...)
	m.Runs = rest
}

// pump sends what could not go at once: it reads from disk, keeps to the window and to the quota. It is one goroutine for a peer.
func (p *peer) pump() {
	for {
		p.mu.Lock()
		p.pumping = false
		for !p.stopped && (len(p.queue) == 0 || p.unacked >= windowBytes) {
			p.cond.Wait()
		}
		if p.stopped {
			p.mu.Unlock()
			return
		}
		m := p.queue[0]
		p.queue = p.queue[1:]
		p.pumping = true
		epoch := p.epoch
		p.mu.Unlock()
		p.pumpOne(m, epoch)
	}
}

func (p *peer) pumpOne(m raft.Message, epoch int) {
	if m.Type != raft.MsgAppend {
		if p.complete(&m) && !p.stale(epoch) {
			p.request(&m, 0)
		}
		return
	}
	for {
		payload, last, err := p.t.store.Read(m.First, m.Last+1, p.frame())
		if err != nil {
			p.t.unreadable(m.First, p.id, err)
			return
		}
		if !written(payload, m.Runs) {
			return // this member leads no more, and its log was cut and went on otherwise meanwhile
		}
		size := payload.Size()
		if !p.pace(last, size) {
			return
		}
		p.mu.Lock()
		for !p.stopped && p.epoch == epoch && p.unacked >= windowBytes {
			p.cond.Wait()
		}
		p.mu.Unlock()
		if p.stale(epoch) {
			return
		}
		part := cutAppend(&m, last)
		part.Payload = payload
		p.request(&part, size)
		if last == m.Last {
			return
		}
		skipAppend(&m, last)
	}
}

// stale tells whether the core has started over with this peer, or the connection has, since epoch.
func (p *peer) stale(epoch int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped || p.epoch != epoch
}

// written tells whether the entries of p are of the terms that runs names. Requests in JSON do not say what the core meant to send, so nobody else would notice.
func written(p raft.Payload, runs []raft.Run) bool {
	k := 0
	for b := range entries(p) {
		h, err := entry.Parse(b)
		if err != nil {
			return false
		}
		for k+1 < len(runs) && runs[k+1].First <= h.Index {
			k++
		}
		if h.Term != runs[k].Term {
			return false
		}
	}
	return true
}

// frame bounds the entries of a request: a quarter of a second's quota, so that what waits for its turn is not taken for lost meanwhile.
func (p *peer) frame() int {
	if p.limit == nil {
		return frameBytes
	}
	return int(min(frameBytes, max(int64(p.limit.Limit())/4, 1)))
}

// pace keeps a follower that is far behind to its quota (peerPushQuota; docs/protocol.md, "What a leader sends"). False means that the transport is closing.
func (p *peer) pace(last raft.Index, size int) bool {
	return !p.far(last) || p.limit.WaitN(p.t.ctx, min(size, p.limit.Burst())) == nil
}

// far tells whether the quota applies to a follower that gets entries up to last now.
func (p *peer) far(last raft.Index) bool {
	if p.limit == nil {
		return false
	}
	n, err := p.t.store.ToEnd(last)
	return err != nil || n >= p.t.lag
}

// kindOf tells of what kind a peer is, and why it is refused.
func (t *transport) kindOf(id raft.ID) (kind PeerKind, why string) {
	p := t.peers[id]
	if p == nil {
		return "", ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kind.public(), p.mismatch
}

// refused gives the peers that cannot be members, and why; nil if all can be.
func (t *transport) refused() map[string]string {
	var all map[string]string
	for id, p := range t.peers {
		p.mu.Lock()
		why := p.mismatch
		p.mu.Unlock()
		if why == "" {
			continue
		}
		if all == nil {
			all = make(map[string]string)
		}
		all[string(id)] = why
	}
	return all
}
