package broker

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Compatibility: GET_CONSUMER_CONNECTION_LIST (203), GET_PRODUCER_CONNECTION_LIST (204), GET_ALL_PRODUCER_INFO (328), and relayed to clients
// GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223, as 221). The leader lists
// the clients of all replicas. Requests are relayed by the replica that is asked if the client is connected to it, else by the leader; consumers
// connect to all replicas.

// relayTimeout is how long a client has to answer, statusTimeout how long for its offsets.
const (
	relayTimeout  = 10 * time.Second
	statusTimeout = 5 * time.Second
)

// members gives the consumers of a group, in order of their ids.
func (c *clients) members(group string) []member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	g := c.consumers[group]
	if g == nil {
		return nil
	}
	var all []member
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		all = append(all, *g.members[id])
	}
	return all
}

// groupsOf gives the groups that subscribe to a topic, as a set.
func (c *clients) groupsOf(topic string) map[string]bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found := map[string]bool{}
	for name, g := range c.consumers {
		if g.subs[topic] != nil {
			found[name] = true
		}
	}
	return found
}

// topicsOf gives what a group subscribes to, as a set.
func (c *clients) topicsOf(group string) map[string]bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found := map[string]bool{}
	if g := c.consumers[group]; g != nil {
		for topic := range g.subs {
			found[topic] = true
		}
	}
	return found
}

// consumer gives a group as all replicas know it: nil when nobody is online.
func (c *clients) consumer(group string) *reportedGroup {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]reportedPeer{}
	whole := &reportedGroup{}
	add := func(g reportedGroup) {
		if len(g.Members) == 0 {
			return
		}
		if len(all) == 0 {
			whole.Data = g.Data
		}
		for _, m := range g.Members {
			if _, known := all[m.ID]; !known {
				all[m.ID] = m
			}
		}
	}
	if g := c.consumers[group]; g != nil {
		add(g.report(group, time.Now()))
	}
	c.others(func(r *report) { add(r.Consumers[group]) })
	for _, id := range slices.Sorted(maps.Keys(all)) {
		whole.Members = append(whole.Members, all[id])
	}
	if len(all) == 0 {
		return nil
	}
	return whole
}

// allProducers gives the producers of all groups, as all replicas know them. One that has sent a message but not said who it is will do
// so within a second, and is left out.
func (c *clients) allProducers() map[string][]reportedPeer {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]reportedPeer{}
	add := func(group string, p reportedPeer) {
		if p.ID != "" && !slices.ContainsFunc(all[group], func(o reportedPeer) bool { return o.ID == p.ID }) {
			all[group] = append(all[group], p)
		}
	}
	for group, members := range c.producers {
		for _, m := range members {
			add(group, reported(m, now))
		}
	}
	c.others(func(r *report) {
		for group, members := range r.Producers {
			for _, p := range members {
				add(group, p)
			}
		}
	})
	for _, list := range all {
		slices.SortFunc(list, func(x, y reportedPeer) int { return strings.Compare(x.ID, y.ID) })
	}
	return all
}

func connections(members []reportedPeer) []mq.Connection {
	list := make([]mq.Connection, len(members))
	for i, m := range members {
		list[i] = mq.Connection{ClientID: m.ID, ClientAddr: m.Address, Language: m.Language, Version: m.Version}
	}
	return list
}

func (b *Broker) consumerConnections(r *request) {
	f := r.fields()
	name := f.Str("consumerGroup")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if r.toLeader() {
		return
	}
	g := b.clients.consumer(name)
	if g == nil {
		r.refuse(mq.ConsumerNotOnline, "the consumer group[%s] not online", name)
		return
	}
	answer := mq.ConsumerConnection{Connections: connections(g.Members), Subscriptions: map[string]mq.SubscriptionData{},
		ConsumeType: g.Data.ConsumeType, MessageModel: g.Data.MessageModel, ConsumeFromWhere: g.Data.ConsumeFromWhere}
	for _, s := range g.Data.Subscriptions {
		answer.Subscriptions[s.Topic] = s
	}
	r.json(answer)
}

func (b *Broker) producerConnections(r *request) {
	f := r.fields()
	name := f.Str("producerGroup")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	if r.toLeader() {
		return
	}
	members := b.clients.allProducers()[name]
	if len(members) == 0 {
		r.refuse(mq.SystemError, "the producer group[%s] not exist", name)
		return
	}
	r.json(mq.ProducerConnection{Connections: connections(members)})
}

func (b *Broker) allProducers(r *request) {
	if r.toLeader() {
		return
	}
	now := milliseconds(time.Now())
	table := mq.ProducerTable{Data: map[string][]mq.ProducerInfo{}}
	for group, members := range b.clients.allProducers() {
		for _, m := range members {
			table.Data[group] = append(table.Data[group], mq.ProducerInfo{ClientID: m.ID, RemoteIP: m.Address, Language: m.Language, Version: m.Version, LastUpdateTimestamp: now - m.Silent})
		}
	}
	r.json(table)
}

// tellClient sends a client a request that it does not answer.
func (b *Broker) tellClient(m member, code int32, ext map[string]string, body []byte) {
	if err := m.session.conn.Go(remoting.Request{Code: code, Ext: ext}, 0, nil, body); err != nil {
		b.log.Debug("client not told", "client", m.id, "code", code, "error", err)
	}
}

// relay passes a request on to a consumer, and its answer back.
func (b *Broker) relay(r *request, f *mq.Fields, body []byte) {
	group, id := f.Str("consumerGroup"), f.Str("clientId")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	all := b.clients.members(group)
	i := slices.IndexFunc(all, func(m member) bool { return m.id == id })
	switch {
	case i < 0 && r.toLeader():
		return
	case i < 0:
		r.refuse(mq.SystemError, "The Consumer <%s> <%s> not online", group, id)
		return
	case all[i].version < mq.VersionClientRelay:
		r.refuse(mq.SystemError, "The Consumer <%s> Version <%d> too low to finish, please upgrade it to V3_1_8_SNAPSHOT", id, all[i].version)
		return
	}
	ext := clientsOwn(r.frame.Ext)
	ext["brokerName"] = b.cfg.Name
	err := all[i].session.conn.Go(remoting.Request{Code: r.code(), Ext: ext}, relayTimeout, func(a *remoting.Frame, err error) {
		switch {
		case errors.Is(err, remoting.ErrTimeout):
			r.refuse(mq.ConsumeTimeout, "consumer <%s> <%s> Timeout: %v", group, id, err)
		case err != nil:
			r.refuse(mq.SystemError, "invoke consumer <%s> <%s> Exception: %v", group, id, err)
		default:
			r.answer(a.Code, a.Remark, a.Ext, a.Body)
		}
	}, body)
	if err != nil {
		r.refuse(mq.SystemError, "invoke consumer <%s> <%s> Exception: %v", group, id, err)
	}
}

func (b *Broker) consumerRunningInfo(r *request) { b.relay(r, r.fields(), nil) }

// consumeDirectly lets one consumer consume one message, at once and whatever its offset is.
func (b *Broker) consumeDirectly(r *request) {
	f := r.fields()
	id := f.Str("msgId")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	_, pos, err := mq.ParseMsgID(id)
	if err != nil {
		r.malformed(err)
		return
	}
	stored, err := b.storedAt(pos)
	if err != nil {
		if !r.toLeader() {
			r.refuse(mq.SystemError, "can not find message by the offset, %d: %v", pos, err)
		}
		return
	}
	b.relay(r, f, stored)
}

// consumerStatus asks the consumers of a group how far they are in a topic, one or all, and gathers what they say.
func (b *Broker) consumerStatus(r *request) {
	f := r.fields()
	topic, group, only := f.Str("topic"), f.Str("group"), f.StrOr("clientAddr", "")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	all := b.clients.members(group)
	if len(all) == 0 {
		if !r.toLeader() {
			r.refuse(mq.SystemError, "No Any Consumer online in the consumer group: [%s]", group)
		}
		return
	}
	var asked sync.WaitGroup
	var mu sync.Mutex
	status := mq.ConsumerStatus{Consumers: map[string]map[mq.MessageQueue]int64{}}
	for _, m := range all {
		if only != "" && m.id != only {
			continue
		}
		if m.version < mq.VersionClientRelay {
			r.refuse(mq.SystemError, "the client does not support this feature. version=%d", m.version)
			return
		}
		asked.Go(func() {
			a, err := m.session.conn.Call(b.ctx, remoting.Request{Code: mq.CodeConsumerStatus, Ext: map[string]string{"topic": topic, "group": group}}, statusTimeout)
			var of mq.ConsumerStatus
			if err == nil && a.Code == mq.Success {
				err = mq.Unmarshal(a.Body, &of)
			}
			if err != nil || a.Code != mq.Success { // the others may answer
				b.log.Debug("a consumer does not tell its status", "client", m.id, "error", err)
				return
			}
			mu.Lock()
			status.Consumers[m.id] = of.MessageQueues
			mu.Unlock()
		})
	}
	asked.Wait()
	r.json(status)
}
