package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// gate passes requests to the leader: to this replica's handlers while it leads, else to the address of the one that does, and holds
// them while there is none.
//
//  1. requests of one connection are passed in the order they came, as long as none has to be repeated;
//  2. a request is repeated only if the leader surely did not take it, or can find out that it did (request.settle), or repeating does no harm;
//  3. one that waited in vain is answered with mq.ServiceNotAvailable, which every stock client retries; but for questions that they do not (request.asksOffset).
type gate struct {
	b *Broker

	mu       sync.Mutex
	leads    bool   // this replica serves as leader
	leader   string // address of another replica that leads, or soon will; "" = unknown
	java     bool   // it is a Java broker: it cannot find out whether it has taken a request before
	held     []*request
	bytes    int  // of held
	draining bool // somebody passes held ones on
	wake     chan struct{}
	away     map[*request]string // passed on and not answered yet → to which leader
}

// Bounds of what is held.
const (
	heldMax      = 20000
	heldBytesMax = 128 << 20
	retryEvery   = 20 * time.Millisecond
)

// here tells whether this replica serves as leader.
func (g *gate) here() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leads
}

// set changes where requests go. Those that a former leader has not answered are not waited for any longer: it may be cut off. The next leader finds out whether
// it took them.
func (g *gate) set(leads bool, leader string, java bool) {
	g.mu.Lock()
	if leads != g.leads || leader != g.leader {
		for _, r := range g.held {
			r.held = true
		}
	}
	g.leads, g.leader, g.java = leads, leader, java
	var late []*request
	if g.open() {
		for r, to := range g.away {
			if to != leader {
				delete(g.away, r)
				r.held = true
				r.lost()
				if time.Now().After(r.due) {
					late = append(late, r)
				} else {
					late = append(late, g.hold(r)...)
				}
			}
		}
	}
	g.mu.Unlock()
	for _, r := range late {
		g.giveUp(r, "its leader was lost")
	}
	g.b.clients.changed()
	g.drain()
}

// open tells whether requests can go anywhere; mu is held.
func (g *gate) open() bool { return g.leads || g.leader != "" }

// submit passes a request on, or holds it.
func (g *gate) submit(r *request) {
	g.mu.Lock()
	if g.open() && len(g.held) == 0 && !g.draining {
		leads, leader, java := g.leads, g.leader, g.java
		g.mu.Unlock()
		g.pass(r, leads, leader, java)
		return
	}
	// Behind others at an open gate it does not wait longer than retryEvery, in the order of all that come here: that is no more than the network may do.
	r.held = r.held || !g.open()
	refused := g.hold(r)
	g.mu.Unlock()
	for _, r := range refused {
		g.giveUp(r, "no leader is there, and too many requests wait for one")
	}
}

// hold keeps a request, or gives it back if there is no room; mu is held.
func (g *gate) hold(r *request) (refused []*request) {
	if len(g.held) >= heldMax || g.bytes+r.size() > heldBytesMax {
		return []*request{r}
	}
	if g.held = append(g.held, r); len(g.held) == 1 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	g.bytes += r.size()
	return nil
}

// size is what a held request counts for.
func (r *request) size() int { return len(r.frame.Body) + 512 }

// pass sends a request where it belongs.
func (g *gate) pass(r *request, leads bool, leader string, java bool) {
	switch {
	case leads:
		g.b.run(r)
	case java && r.settle && r.stores():
		g.giveUp(r, "a Java broker leads now, and cannot tell")
	case r.passed: // by a replica that takes this one for the leader
		r.refuse(mq.ServiceNotAvailable, "this replica does not lead")
	default:
		g.forward(r, leader, java)
	}
}

// drain passes on all that is held, in order, for as long as the gate is open.
func (g *gate) drain() {
	g.mu.Lock()
	if g.draining {
		g.mu.Unlock()
		return
	}
	g.draining = true
	for g.open() && len(g.held) > 0 {
		line := g.held
		g.held, g.bytes = nil, 0
		leads, leader, java := g.leads, g.leader, g.java
		g.mu.Unlock()
		for _, r := range line {
			g.pass(r, leads, leader, java)
		}
		g.mu.Lock()
		if leads == g.leads && leader == g.leader && !slices.ContainsFunc(g.held, func(r *request) bool { return !r.again }) {
			break // what has come back waits for the next try
		}
	}
	g.draining = false
	g.mu.Unlock()
}

// retry puts a request back that could not be carried out, for want of a leader. Those that another replica passed on go back to it.
func (g *gate) retry(r *request, why string) {
	if r.passed || !time.Now().Before(r.due) {
		g.giveUp(r, why)
		return
	}
	r.again, r.held = true, true
	g.mu.Lock()
	refused := g.hold(r)
	g.mu.Unlock()
	for _, r := range refused {
		g.giveUp(r, why)
	}
}

// giveUp answers a request that no leader could be found for.
func (g *gate) giveUp(r *request, why string) {
	if r.settle {
		var ext map[string]string
		if r.passed {
			ext = map[string]string{fieldUndecided: "1"}
		}
		r.answer(mq.SystemError, "undecided, it may yet be stored: "+why, ext)
		return
	}
	r.refuse(mq.ServiceNotAvailable, "%s", why)
}

// run answers what was held too long, and tries the others again; while nothing is held it sleeps.
func (g *gate) run(ctx context.Context) {
	defer func() { g.expire(time.Now().Add(time.Hour)) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		for held := true; held; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryEvery):
			}
			g.expire(time.Now())
			g.drain()
			g.mu.Lock()
			held = len(g.held) > 0
			g.mu.Unlock()
		}
	}
}

func (g *gate) expire(now time.Time) {
	g.mu.Lock()
	var late []*request
	kept := g.held[:0]
	for _, r := range g.held {
		if r.due.Before(now) {
			late = append(late, r)
			g.bytes -= r.size()
		} else {
			kept = append(kept, r)
		}
	}
	clear(g.held[len(kept):])
	g.held = kept
	g.mu.Unlock()
	for _, r := range late {
		g.giveUp(r, "no leader is there to carry it out")
	}
}

// tell sends the leader a one-way request of this replica's own; false: there is none now, or it is here.
func (g *gate) tell(code int32, ext map[string]string, body ...[]byte) bool {
	g.mu.Lock()
	leader, java := g.leader, g.java
	g.mu.Unlock()
	if leader == "" || java && code == codeTellClients {
		return false
	}
	ext[fieldFrom] = g.b.host.String()
	if !java {
		ext[fieldMember] = *g.b.meta.pass.Load()
	}
	return g.b.replicas.Go(leader, remoting.Request{Code: code, Ext: ext}, forwardTimeout, nil, body...) == nil
}

// forwardTimeout bounds how long the leader has for a request that was passed on: as long as an append may wait for its majority.
const forwardTimeout = 3 * time.Second

// patience is how long the leader has for this request: one that the leader holds, or has to ask a client or the name servers for, takes longer.
func (r *request) patience() time.Duration {
	if r.isPull() {
		ms := r.fields().Int64Or("suspendTimeoutMillis", 0)
		return forwardTimeout + time.Duration(min(max(ms, 0), suspendMax.Milliseconds()))*time.Millisecond
	}
	switch r.code() {
	case mq.CodeConsumerRunningInfo, mq.CodeConsumeDirectly, mq.CodeGetConsumerStatus:
		return forwardTimeout + relayTimeout
	case mq.CodeSendReply, mq.CodeSendReplyV2:
		return forwardTimeout + replyTimeout
	}
	return forwardTimeout + topicsTimeout
}

func (r *request) isPull() bool { return r.code() == mq.CodePull || r.code() == mq.CodeLitePull }

// lost notes that there is no answer of the leader that the request was passed to. Pulls do no harm when they are repeated, and may have been held there for long;
// nor do questions for an offset.
func (r *request) lost() {
	if r.asksOffset() {
		return
	}
	if !r.isPull() {
		r.settle = true
		return
	}
	if r.due = time.Now().Add(r.b.cfg.ForwardWait); r.due.After(r.last) {
		r.due = r.last
	}
}

// forward sends a request to the leader's address and its answer back.
func (g *gate) forward(r *request, leader string, java bool) {
	ext := make(map[string]string, len(r.frame.Ext)+3)
	maps.Copy(ext, r.frame.Ext)
	ext[fieldFrom] = r.from.String()
	if !java {
		ext[fieldMember] = *g.b.meta.pass.Load()
	}
	if r.settle {
		ext[fieldSettle] = mq.Itoa(r.after)
	}
	if r.isPull() {
		if flag := r.fields().Int32Or("sysFlag", 0); (r.committed || r.held) && flag&pullCommits != 0 {
			ext["sysFlag"] = mq.Itoa(flag &^ pullCommits)
		}
		r.committed = true // one that this leader does not hear of is committed again by the consumer, every five seconds
	}
	if term, late := r.lateOffset(); late {
		ext[fieldLate] = mq.Itoa(term)
	}
	req := remoting.Request{Code: r.frame.Code, Ext: ext}
	if r.last.IsZero() {
		r.last = time.Now().Add(r.patience())
	}
	if r.oneWay() {
		if err := g.b.replicas.Go(leader, req, forwardTimeout, nil, r.frame.Body); err != nil {
			g.retry(r, err.Error())
		}
		return
	}
	g.mu.Lock()
	if g.away == nil {
		g.away = map[*request]string{}
	}
	g.away[r] = leader
	g.mu.Unlock()
	err := g.b.replicas.Go(leader, req, r.patience(), func(f *remoting.Frame, err error) {
		if g.back(r, leader) {
			g.forwarded(r, f, err, java)
		}
	}, r.frame.Body)
	if err != nil && g.back(r, leader) {
		g.retry(r, err.Error())
	}
}

// back takes a request off what is away; false: it was given to another leader meanwhile, whose answer counts.
func (g *gate) back(r *request, leader string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.away[r] != leader {
		return false
	}
	delete(g.away, r)
	return true
}

// forwarded takes the leader's answer.
func (g *gate) forwarded(r *request, f *remoting.Frame, err error, java bool) {
	switch {
	case errors.Is(err, remoting.ErrUnreachable) || errors.Is(err, remoting.ErrBusy):
		g.retry(r, err.Error())
	case err != nil:
		r.lost()
		g.retry(r, err.Error())
	case f.Code == mq.ServiceNotAvailable, java && f.Code == mq.SystemBusy: // the original's word for everything that passes, lost leadership too
		g.retry(r, f.Remark)
	case f.Ext[fieldUndecided] != "":
		r.settle = true
		g.retry(r, f.Remark)
	default:
		r.answer(f.Code, f.Remark, f.Ext, f.Body)
	}
}
