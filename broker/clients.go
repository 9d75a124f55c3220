package broker

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Compatibility: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46), and towards clients
// NOTIFY_CONSUMER_IDS_CHANGED (40). A heartbeat with a fingerprint (V2) may leave its subscriptions out when they have not changed; the field IS_SUB_CHANGE
// of the answer then asks for them where this replica does not hold them, or has taken others of the group since. The original compares one fingerprint
// a group: it asks two clients for ever whose other groups differ, and never asks after a restart. A follower that is asked for the members of a group
// asks the leader.

// Life of what clients have said.
const (
	clientLife    = 120 * time.Second // without a heartbeat
	emptyLife     = 10 * time.Minute  // of a group's subscriptions after its last member has gone
	clientsLook   = 10 * time.Second
	heartbeatsMax = 1000 // groups in one heartbeat
)

// Bounds of what clients have said, in bytes of memory, by estimate.
const (
	saidMax   = 256 << 20
	saidOne   = 32 << 20 // of one connection
	saidEach  = 400      // of a group, a member or a subscription, beside its texts
	saidPause = time.Second
)

// session is one connection of a client, or of another replica.
type session struct {
	conn *remoting.Conn
	addr netip.AddrPort
	sent atomic.Int64 // when it last sent a message, in ns; 0 = never
	said int          // as clients.said; clients.mu

	pulls map[*pull]struct{} // held ones; polls.mu, as what follows
	gone  bool               // the connection is closed
}

// noteSend remembers that a client uses this replica as the leader (see Broker.drain), and that it produces for its group: not every producer
// sends heartbeats to every replica.
func (b *Broker) noteSend(r *request) {
	group, properties := "producerGroup", "properties"
	switch r.code() {
	case mq.CodeSend:
	case mq.CodeSendV2, mq.CodeSendBatch:
		group, properties = "a", "i"
	case mq.CodeEndTransaction:
		properties = ""
	default:
		return
	}
	r.session.sent.Store(time.Now().UnixNano())
	if name := r.frame.Ext[group]; name != "" && b.clients.produces(r, name, "") {
		b.clients.changed()
	}
	// A message gets its unique key where it arrives first: whoever takes it up again knows it by that.
	if p := r.frame.Ext[properties]; properties != "" && r.frame.Ext != nil && !mq.PropHas(p, mq.PropUniqKey) {
		r.frame.Ext[properties] = mq.PropSet(p, mq.PropUniqKey, b.keys.Next(time.Now()))
	}
}

// member is one client in a group.
type member struct {
	session  *session
	id       string
	language string
	version  int32
	seen     time.Time
	print    int32 // fingerprint of its last heartbeat with subscriptions; 0 = heartbeat V1, or none yet
	changes  int64 // of its group's subscriptions, at that time
}

// consumers is one consumer group as its members describe it (ConsumerGroupInfo in the Java original).
type consumers struct {
	members map[string]*member // by client id
	typ     mq.ConsumeType
	model   mq.MessageModel
	from    mq.ConsumeFrom
	subs    map[string]*subscription // by topic
	changes int64                    // of what subs come to
	empty   time.Time                // since when it has no member
}

// subscription is what a group wants of a topic.
type subscription struct {
	data   mq.SubscriptionData
	filter filter // nil = all
	err    error  // why the expression cannot be understood
}

// clients knows who is connected (ConsumerManager and ProducerManager in the Java original).
type clients struct {
	b *Broker

	mu        sync.RWMutex
	sessions  map[*session]struct{}
	consumers map[string]*consumers
	producers map[string]map[*session]*member
	reports   map[string]*report // what other replicas have told, by their addresses
	said      int                // bytes of what was said: as counted last, and all that came since
	counted   time.Time          // when that was
	wake      chan struct{}
}

func (c *clients) open(b *Broker) {
	c.b = b
	c.reports, c.wake = map[string]*report{}, make(chan struct{}, 1)
	c.sessions, c.consumers, c.producers = map[*session]struct{}{}, map[string]*consumers{}, map[string]map[*session]*member{}
}

func (m *member) address() netip.AddrPort { return m.session.addr }

// opened and closed follow the connections of the port.
func (c *clients) opened(conn *remoting.Conn) {
	s := &session{conn: conn, addr: addrPort(conn.RemoteAddr().String())}
	conn.Value = s
	c.mu.Lock()
	c.sessions[s] = struct{}{}
	c.mu.Unlock()
}

func (c *clients) closed(conn *remoting.Conn, _ error) {
	s := conn.Value.(*session)
	c.b.polls.drop(s)
	c.mu.Lock()
	delete(c.sessions, s)
	for group, members := range c.producers {
		delete(members, s)
		if len(members) == 0 {
			delete(c.producers, group)
		}
	}
	var tell []string
	for group, g := range c.consumers {
		if g.remove(func(m *member) bool { return m.session == s }) {
			tell = append(tell, group)
		}
	}
	c.mu.Unlock()
	c.notify(tell...)
	c.changed()
}

// remove takes members out of a group and tells whether there were any.
func (g *consumers) remove(gone func(*member) bool) bool {
	n := len(g.members)
	maps.DeleteFunc(g.members, func(_ string, m *member) bool { return gone(m) })
	if len(g.members) == 0 && n > 0 {
		g.empty = time.Now()
	}
	return len(g.members) != n
}

// addrPort reads an address of the network; one that is none is 0.0.0.0:0.
func addrPort(s string) netip.AddrPort {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// run forgets who has not been heard of for long.
func (c *clients) run(ctx context.Context) {
	tick := time.NewTicker(clientsLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		silent := func(m *member) bool { return now.Sub(m.seen) > clientLife }
		var tell []string
		c.mu.Lock()
		for group, members := range c.producers {
			maps.DeleteFunc(members, func(_ *session, m *member) bool { return silent(m) })
			if len(members) == 0 {
				delete(c.producers, group)
			}
		}
		for group, g := range c.consumers {
			if g.remove(silent) {
				tell = append(tell, group)
			}
			if len(g.members) == 0 && now.Sub(g.empty) > emptyLife {
				delete(c.consumers, group)
			}
		}
		c.count(now)
		c.mu.Unlock()
		c.notify(tell...)
	}
}

// sending tells whether a producer that is still connected has sent something within this time.
func (c *clients) sending(within time.Duration) bool {
	since := time.Now().Add(-within).UnixNano()
	c.mu.RLock()
	defer c.mu.RUnlock()
	for s := range c.sessions {
		if s.sent.Load() > since {
			return true
		}
	}
	return false
}

// notify tells the members of groups that connected to this replica that they have to share the queues anew.
func (c *clients) notify(groups ...string) {
	for _, group := range groups {
		if config, ok := c.b.meta.groupConfig(group); ok && !config.NotifyConsumerIDsChangedEnable {
			continue
		}
		var conns []*remoting.Conn
		c.mu.RLock()
		if g := c.consumers[group]; g != nil && g.model != mq.Broadcasting {
			for _, m := range g.members {
				conns = append(conns, m.session.conn)
			}
		}
		c.mu.RUnlock()
		for _, conn := range conns {
			// One that does not get it finds out at its next look, every 20 s.
			_ = conn.Go(remoting.Request{Code: mq.CodeNotifyConsumersChanged, Ext: map[string]string{"consumerGroup": group}}, 0, nil)
		}
	}
}

func (b *Broker) heartbeat(r *request) {
	var h mq.Heartbeat
	if err := mq.Unmarshal(r.body(), &h); err != nil {
		r.malformed(err)
		return
	}
	if h.ClientID == "" || len(h.Consumers)+len(h.Producers) > heartbeatsMax {
		r.refuse(mq.SystemError, "heartbeat of client %.100q with %d groups: it needs an id, and at most %d groups", h.ClientID, len(h.Consumers)+len(h.Producers), heartbeatsMax)
		return
	}
	if !b.clients.room(r.session, len(r.body())+saidEach*heartbeatParts(&h)) {
		r.refuse(mq.SystemBusy, "[OVERLOAD]heartbeat of client %.100q: no room for more groups and subscriptions", h.ClientID)
		return
	}
	var tell []string
	wanted := h.Fingerprint == 0 // the subscriptions, with the next heartbeat
	for i := range h.Consumers {
		if b.mayBe(h.Consumers[i].GroupName) != nil {
			continue // its pulls are told why
		}
		changed, stale := b.clients.beat(r, &h, &h.Consumers[i])
		if changed {
			tell = append(tell, h.Consumers[i].GroupName)
		}
		wanted = wanted || stale
	}
	ok := func() {
		r.answer(mq.Success, "", map[string]string{"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": boolText(wanted)})
	}
	for _, p := range h.Producers {
		b.clients.produces(r, p.GroupName, h.ClientID)
	}
	b.clients.notify(tell...)
	b.clients.changed()

	// Groups that are new are made by the leader, which gets the same heartbeat; the client is answered once they are there.
	if !b.gate.here() {
		ok()
		return
	}
	var left atomic.Int64
	left.Store(int64(len(h.Consumers)) + 1)
	done := func(error) { // a group that cannot be made is told of where it is used
		if left.Add(-1) == 0 {
			ok()
		}
	}
	for _, g := range h.Consumers {
		b.ensureGroup(g.GroupName, done)
	}
	done(nil)
}

// heartbeatParts counts what a heartbeat leaves in memory.
func heartbeatParts(h *mq.Heartbeat) int {
	n := 2*len(h.Consumers) + 2*len(h.Producers)
	for i := range h.Consumers {
		n += len(h.Consumers[i].Subscriptions)
	}
	return n
}

// room takes so many bytes for what a connection says; false: there are no more. What is said again counts again, until it is counted anew.
func (c *clients) room(s *session, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said+n > saidMax || s.said+n > saidOne {
		if now := time.Now(); now.Sub(c.counted) >= saidPause {
			c.count(now)
		}
	}
	if c.said+n > saidMax || s.said+n > saidOne {
		return false
	}
	c.said += n
	s.said += n
	return true
}

// count finds out how much of what was said is still there; mu is held.
func (c *clients) count(now time.Time) {
	c.said, c.counted = 0, now
	for s := range c.sessions {
		s.said = 0
	}
	add := func(s *session, n int) {
		c.said += n
		if s != nil {
			s.said += n
		}
	}
	for group, g := range c.consumers {
		size := saidEach + len(group)
		for topic, sub := range g.subs {
			size += saidEach + 2*len(topic) + len(sub.data.SubString)
		}
		var first *session // its members have said the same
		for _, m := range g.members {
			if first == nil {
				first = m.session
			}
			add(m.session, saidEach+len(m.id))
		}
		add(first, size)
	}
	for group, members := range c.producers {
		add(nil, saidEach+len(group))
		for s := range members {
			add(s, saidEach)
		}
	}
}

// beat notes a client's part in a consumer group. changed: its members have to hear of it; stale: the client has left its subscriptions out, and has to send
// them.
func (c *clients) beat(r *request, h *mq.Heartbeat, d *mq.ConsumerData) (changed, stale bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.consumers[d.GroupName]
	if g == nil {
		g = &consumers{members: map[string]*member{}, subs: map[string]*subscription{}}
		c.consumers[d.GroupName] = g
	}
	g.typ, g.model, g.from = d.ConsumeType, d.MessageModel, d.ConsumeFromWhere
	m := g.members[h.ClientID]
	if m == nil {
		m = &member{id: h.ClientID}
		g.members[h.ClientID] = m
		changed = true
	}
	m.session, m.language, m.version, m.seen = r.session, r.frame.Language, r.frame.Version, time.Now()
	if h.WithoutSub && h.Fingerprint != 0 {
		return changed, m.print != h.Fingerprint || m.changes != g.changes
	}

	wanted := map[string]bool{}
	for _, d := range d.Subscriptions {
		wanted[d.Topic] = true
		old := g.subs[d.Topic]
		if old != nil && (d.SubVersion < old.data.SubVersion || d.SubVersion == old.data.SubVersion && d.SubString == old.data.SubString) {
			continue
		}
		changed = changed || old == nil
		if old == nil || d.SubString != old.data.SubString || d.ExpressionType != old.data.ExpressionType {
			g.changes++
		}
		g.subs[d.Topic] = c.b.subscribe(d)
	}
	for topic := range g.subs {
		if !wanted[topic] {
			delete(g.subs, topic)
			g.changes++
			changed = true
		}
	}
	m.print, m.changes = h.Fingerprint, g.changes
	return changed, false
}

// produces notes that a client produces for a group; id is "" when it has only sent a message so far. true: that, or more of it, is new.
func (c *clients) produces(r *request, group, id string) (changed bool) {
	if r.passed { // by the replica that the client is connected to
		return false
	}
	c.mu.RLock()
	m := c.producers[group][r.session]
	c.mu.RUnlock()
	if m != nil && id == "" {
		return false
	}
	if m == nil && id == "" && !c.room(r.session, len(group)+2*saidEach) { // one with an id comes from a heartbeat, which has asked
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, open := c.sessions[r.session]; !open {
		return false
	}
	members := c.producers[group]
	if members == nil {
		members = map[*session]*member{}
		c.producers[strings.Clone(group)] = members
	}
	m = members[r.session]
	if m == nil {
		m = &member{session: r.session}
		members[r.session] = m
	}
	if id != "" {
		m.id = id
	}
	m.language, m.version, m.seen = r.frame.Language, r.frame.Version, time.Now()
	return true
}

func (b *Broker) unregisterClient(r *request) {
	f := r.fields()
	id := f.Str("clientID")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	c := &b.clients
	var tell []string
	c.mu.Lock()
	if group := f.StrOr("producerGroup", ""); group != "" {
		delete(c.producers[group], r.session)
		if len(c.producers[group]) == 0 {
			delete(c.producers, group)
		}
	}
	if group := f.StrOr("consumerGroup", ""); group != "" {
		if g := c.consumers[group]; g != nil && g.remove(func(m *member) bool { return m.id == id }) {
			tell = append(tell, group)
		}
	}
	c.mu.Unlock()
	c.notify(tell...)
	c.changed()
	r.ok()
}

// consumerIDs gives the client ids of a group's members, in order; those at other replicas are among them.
func (c *clients) consumerIDs(group string) []string {
	ids := map[string]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.consumers[group]; g != nil {
		for id := range g.members {
			ids[id] = true
		}
	}
	c.others(func(r *report) {
		for _, m := range r.Consumers[group].Members {
			ids[m.ID] = true
		}
	})
	return slices.Sorted(maps.Keys(ids))
}

// subscription gives what a group wants of a topic; group tells whether it is known at all.
func (c *clients) subscription(group, topic string) (sub *subscription, model mq.MessageModel, known bool) {
	c.mu.RLock()
	g := c.consumers[group]
	if g != nil && g.subs[topic] != nil {
		sub, model = g.subs[topic], g.model
	}
	c.mu.RUnlock()
	if sub != nil {
		return sub, model, true
	}
	known = g != nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.others(func(r *report) {
		other, ok := r.Consumers[group]
		known = known || ok
		for _, d := range other.Data.Subscriptions {
			if d.Topic == topic && (sub == nil || d.SubVersion > sub.data.SubVersion) {
				sub, model = c.b.subscribe(d), other.Data.MessageModel
			}
		}
	})
	return sub, model, known
}

func (b *Broker) consumerList(r *request) {
	f := r.fields()
	group := f.Str("consumerGroup")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if r.toLeader() {
		return
	}
	ids := b.clients.consumerIDs(group)
	if len(ids) == 0 {
		r.refuse(mq.SystemError, "no consumer for this group, %s", group)
		return
	}
	r.json(mq.ConsumerList{ConsumerIDs: ids})
}

func (b *Broker) checkClientConfig(r *request) {
	var body mq.CheckClientConfig
	if err := mq.Unmarshal(r.body(), &body); err != nil {
		r.malformed(err)
		return
	}
	if body.Subscription.ExpressionType != mq.ExprSQL {
		r.ok()
		return
	}
	if !b.conf().PropertyFilter {
		r.refuse(mq.SystemError, "The broker does not support consumer to filter message by %s", mq.ExprSQL)
		return
	}
	if s := b.subscribe(body.Subscription); s.err != nil {
		r.refuse(mq.SubscriptionParseFailed, "%v", s.err)
		return
	}
	r.ok()
}
