package broker

import (
	"context"
	"errors"
	"maps"
	"strings"
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
//  3. one that waited in vain is answered with mq.ServiceNotAvailable, which every stock client retries.
type gate struct {
	b *Broker

	mu       sync.Mutex
	leads    bool   // this replica serves as leader
	leader   string // address of another replica that leads, or soon will; "" = unknown
	held     []*request
	bytes    int  // of held
	draining bool // somebody passes held ones on
	wake     chan struct{}
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

// set changes where requests go.
func (g *gate) set(leads bool, leader string) {
	g.mu.Lock()
	g.leads, g.leader = leads, leader
	g.mu.Unlock()
	g.b.clients.changed()
	g.drain()
}

// open tells whether requests can go anywhere; mu is held.
func (g *gate) open() bool { return g.leads || g.leader != "" }

// submit passes a request on, or holds it.
func (g *gate) submit(r *request) {
	g.mu.Lock()
	if g.open() && len(g.held) == 0 && !g.draining {
		leads, leader := g.leads, g.leader
		g.mu.Unlock()
		g.pass(r, leads, leader)
		return
	}
	g.hold(r)
	g.mu.Unlock()
}

// hold keeps a request; mu is held.
func (g *gate) hold(r *request) {
	size := len(r.frame.Body) + 512
	if len(g.held) >= heldMax || g.bytes+size > heldBytesMax {
		go r.refuse(mq.ServiceNotAvailable, "no leader, and %d requests wait for one", heldMax)
		return
	}
	if g.held = append(g.held, r); len(g.held) == 1 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
	g.bytes += size
}

// pass sends a request where it belongs.
func (g *gate) pass(r *request, leads bool, leader string) {
	switch {
	case leads:
		g.b.run(r)
	case r.passed: // by a replica that takes this one for the leader
		r.refuse(mq.ServiceNotAvailable, "this replica does not lead")
	default:
		g.forward(r, leader)
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
		leads, leader := g.leads, g.leader
		g.mu.Unlock()
		for _, r := range line {
			g.pass(r, leads, leader)
		}
		g.mu.Lock()
		if !g.leads && leads == g.leads && leader == g.leader {
			break // what has come back meanwhile waits for the next try
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
	g.mu.Lock()
	g.hold(r)
	g.mu.Unlock()
}

// giveUp answers a request that no leader could be found for.
func (g *gate) giveUp(r *request, why string) {
	if r.settle {
		r.answer(mq.SystemError, "undecided, it may yet be stored: "+why, map[string]string{fieldUndecided: "1"})
		return
	}
	r.refuse(mq.ServiceNotAvailable, "%s", why)
}

// run answers what was held too long, and tries the others again; while nothing is held it sleeps.
func (g *gate) run(ctx context.Context) error {
	defer func() { g.expire(time.Now().Add(time.Hour)) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		}
		for held := true; held; {
			select {
			case <-ctx.Done():
				return nil
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
			g.bytes -= len(r.frame.Body) + 512
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
	leader := g.leader
	g.mu.Unlock()
	if leader == "" {
		return false
	}
	ext[fieldFrom] = g.b.host.String()
	return g.b.replicas.Go(leader, remoting.Request{Code: code, Ext: ext}, forwardTimeout, nil, body...) == nil
}

// forwardTimeout bounds how long the leader has for a request that was passed on: as long as an append may wait for its majority.
const forwardTimeout = 3 * time.Second

// forward sends a request to the leader's address and its answer back.
func (g *gate) forward(r *request, leader string) {
	ext := make(map[string]string, len(r.frame.Ext)+2)
	maps.Copy(ext, r.frame.Ext)
	ext[fieldFrom] = r.from.String()
	if r.settle {
		ext[fieldSettle] = "1"
	}
	req := remoting.Request{Code: r.frame.Code, Ext: ext}
	if r.oneWay() {
		if err := g.b.replicas.Go(leader, req, forwardTimeout, nil, r.frame.Body); err != nil {
			g.retry(r, err.Error())
		}
		return
	}
	err := g.b.replicas.Go(leader, req, forwardTimeout, func(f *remoting.Frame, err error) { g.forwarded(r, f, err) }, r.frame.Body)
	if err != nil {
		g.retry(r, err.Error())
	}
}

// javaRejects opens the remark of a Java broker that does not lead.
const javaRejects = "[REJECTREQUEST]"

// forwarded takes the leader's answer.
func (g *gate) forwarded(r *request, f *remoting.Frame, err error) {
	switch {
	case errors.Is(err, remoting.ErrUnreachable) || errors.Is(err, remoting.ErrBusy):
		g.retry(r, err.Error())
	case err != nil:
		r.settle = true
		g.retry(r, err.Error())
	case f.Code == mq.ServiceNotAvailable, f.Code == mq.SystemBusy && strings.HasPrefix(f.Remark, javaRejects): // a Java broker that does not lead
		g.retry(r, f.Remark)
	case f.Ext[fieldUndecided] != "":
		r.settle = true
		g.retry(r, f.Remark)
	default:
		r.answer(f.Code, f.Remark, f.Ext, f.Body)
	}
}
