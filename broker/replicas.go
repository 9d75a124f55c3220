package broker

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Compatibility: two requests between replicas of ours. codeTellClients: a replica that does not lead tells the leader who is connected to it, when the
// leader or something else changes, and every reportEvery. codeRelay: the leader lets it hand a request to one of those clients. In the original a
// client that is connected to another replica does not exist: members of a group that have just reached a new leader would share its queues among
// themselves, and producers get no transaction checks before their next heartbeat.
const (
	codeTellClients int32 = 29001
	codeRelay       int32 = 29002

	fieldCode   = "__dledgerCode" // of the request to hand over
	fieldClient = "__dledgerClient"
	fieldGroup  = "__dledgerGroup" // the client's

	reportEvery = 10 * time.Second
	reportPause = 50 * time.Millisecond // changes that come together are told together
	reportLife  = 3 * reportEvery
	reportsMax  = 64
)

// report is what a replica tells of its clients.
type report struct {
	Address   string                    `json:"address"` // of the replica
	Consumers map[string]reportedGroup  `json:"consumers,omitempty"`
	Producers map[string][]reportedPeer `json:"producers,omitempty"`

	at time.Time
}

type reportedGroup struct {
	Data    mq.ConsumerData `json:"data"`
	Members []reportedPeer  `json:"members"`
}

type reportedPeer struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	Language string `json:"language"`
	Version  int32  `json:"version"`
	Silent   int64  `json:"silentMs"`
}

func reported(m *member, now time.Time) reportedPeer {
	return reportedPeer{m.id, m.address().String(), m.language, m.version, now.Sub(m.seen).Milliseconds()}
}

// changed makes the next report come soon.
func (c *clients) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// tell is the goroutine of a replica that reports its clients to whoever leads.
func (c *clients) tell(ctx context.Context) {
	var warned time.Time
	every := time.NewTicker(reportEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		case <-c.wake:
			select {
			case <-time.After(reportPause):
			case <-ctx.Done():
				return
			}
			select { // what came meanwhile is in this report
			case <-c.wake:
			default:
			}
		}
		if c.b.gate.here() {
			continue
		}
		body, err := json.Marshal(c.report())
		if err != nil {
			panic(fmt.Sprintf("a report of clients cannot be written: %v", err)) // it consists of texts and numbers
		}
		if len(body) >= remoting.FrameMax-1024 {
			if now := time.Now(); now.Sub(warned) > time.Minute {
				warned = now
				c.b.log.Warn("the leader is not told of this replica's clients: there are too many for one report", "bytes", len(body))
			}
			continue
		}
		c.b.gate.tell(codeTellClients, map[string]string{}, body)
	}
}

func (c *clients) report() *report {
	now := time.Now()
	c.mu.RLock()
	defer c.mu.RUnlock()
	r := &report{Address: c.b.cfg.address(), Consumers: map[string]reportedGroup{}, Producers: map[string][]reportedPeer{}}
	for group, g := range c.consumers {
		r.Consumers[group] = g.report(group, now)
	}
	for group, members := range c.producers {
		for _, m := range members {
			r.Producers[group] = append(r.Producers[group], reported(m, now))
		}
	}
	return r
}

// report is a group as others are told of it; clients.mu is held.
func (g *consumers) report(name string, now time.Time) reportedGroup {
	d := reportedGroup{Data: mq.ConsumerData{GroupName: name, ConsumeType: g.typ, MessageModel: g.model, ConsumeFromWhere: g.from}}
	for _, s := range g.subs {
		d.Data.Subscriptions = append(d.Data.Subscriptions, s.data)
	}
	for _, m := range g.members {
		d.Members = append(d.Members, reported(m, now))
	}
	return d
}

// fromMember tells whether a request comes from a member of the group: only members have the log, and this secret is given to nobody else (decision 17).
func (b *Broker) fromMember(f *remoting.Frame) bool {
	secret := *b.meta.pass.Load()
	return secret != "" && subtle.ConstantTimeCompare([]byte(f.Ext[fieldMember]), []byte(secret)) == 1
}

// clientsOwn gives the fields of a request without those that replicas have added.
func clientsOwn(ext map[string]string) map[string]string {
	own := maps.Clone(ext)
	maps.DeleteFunc(own, func(name, _ string) bool { return strings.HasPrefix(name, "__dledger") })
	return own
}

// told takes another replica's report.
func (b *Broker) told(r *request) {
	rep := &report{at: time.Now()}
	if err := json.Unmarshal(r.body(), rep); err != nil || rep.Address == "" {
		r.malformed(errors.Join(err, errors.New("not a report")))
		return
	}
	c := &b.clients
	var news []string
	c.mu.Lock()
	c.others(func(*report) {}) // forgets those of replicas that have gone
	old := c.reports[rep.Address]
	if old == nil && len(c.reports) >= reportsMax {
		c.mu.Unlock()
		r.refuse(mq.SystemBusy, "[OVERLOAD]%d replicas report already", reportsMax)
		return
	}
	c.reports[rep.Address] = rep
	for group, g := range rep.Consumers {
		var before []reportedPeer
		if old != nil {
			before = old.Consumers[group].Members
		}
		if !sameIDs(before, g.Members) {
			news = append(news, group)
		}
	}
	c.mu.Unlock()
	c.notify(news...)
	if b.gate.here() {
		for group := range rep.Consumers {
			b.ensureGroup(group, func(error) {}) // one that cannot be made is told of where it is used
		}
	}
	r.ok()
}

func sameIDs(a, b []reportedPeer) bool {
	ids := func(list []reportedPeer) map[string]bool {
		m := map[string]bool{}
		for _, p := range list {
			m[p.ID] = true
		}
		return m
	}
	return maps.Equal(ids(a), ids(b))
}

// others calls f for each report that still counts; c.mu is held.
func (c *clients) others(f func(*report)) {
	for address, r := range c.reports {
		if time.Since(r.at) > reportLife || address == c.b.cfg.address() {
			delete(c.reports, address)
			continue
		}
		f(r)
	}
}

// peer is a client that can be asked something: connected here, or to another replica.
type peer struct {
	session *session // nil: at another replica
	via     string
	group   string
	id      string
	addr    netip.AddrPort
}

// producer gives a client that produces for a group, those connected here first. id "" = any.
func (c *clients) producer(group, id string) (peer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s, m := range c.producers[group] {
		if id == "" || m.id == id {
			return peer{session: s, group: group, id: m.id, addr: s.addr}, true
		}
	}
	found, ok := peer{}, false
	c.others(func(r *report) {
		for _, p := range r.Producers[group] {
			if !ok && (id == "" || p.ID == id) {
				found, ok = peer{via: r.Address, group: group, id: p.ID, addr: addrPort(p.Address)}, true
			}
		}
	})
	return found, ok
}

// producerByID gives the client with this id that produces for any group.
func (c *clients) producerByID(id string) (peer, bool) {
	c.mu.Lock()
	groups := map[string]bool{}
	for group := range c.producers {
		groups[group] = true
	}
	c.others(func(r *report) {
		for group := range r.Producers {
			groups[group] = true
		}
	})
	c.mu.Unlock()
	for group := range groups {
		if p, ok := c.producer(group, id); ok {
			return p, true
		}
	}
	return peer{}, false
}

// askClient sends a client a request. With done nil it is one-way; else done gets the answer, see remoting.Conn.Go.
func (b *Broker) askClient(p peer, req remoting.Request, timeout time.Duration, done func(*remoting.Frame, error), body ...[]byte) error {
	if p.session != nil {
		return p.session.conn.Go(req, timeout, done, body...)
	}
	ext := maps.Clone(req.Ext)
	if ext == nil {
		ext = map[string]string{}
	}
	ext[fieldFrom], ext[fieldMember], ext[fieldCode], ext[fieldGroup], ext[fieldClient] = b.host.String(), *b.meta.pass.Load(), mq.Itoa(req.Code), p.group, p.id
	return b.replicas.Go(p.via, remoting.Request{Code: codeRelay, Ext: ext}, timeout, done, body...)
}

// handOn hands a request of the leader to a client of this replica, and its answer back.
func (b *Broker) handOn(r *request) {
	f := r.fields()
	code, group, id := f.Int32(fieldCode), f.Str(fieldGroup), f.StrOr(fieldClient, "")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	p, ok := b.clients.producer(group, id)
	if !ok || p.session == nil {
		r.refuse(mq.SystemError, "client %q of group %s is not connected here", id, group)
		return
	}
	ext := clientsOwn(r.frame.Ext)
	var done func(*remoting.Frame, error)
	if !r.oneWay() {
		done = func(a *remoting.Frame, err error) {
			if err != nil {
				r.malformed(err)
				return
			}
			r.answer(a.Code, a.Remark, a.Ext, a.Body)
		}
	}
	if err := p.session.conn.Go(remoting.Request{Code: code, Ext: ext}, forwardTimeout, done, r.body()); err != nil {
		r.malformed(err)
	}
}
