package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Compatibility: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402). Java clients from 5.0 on ask for their
// queues when they are told not to share them among themselves (clientRebalance false). The members of a group are those of all replicas, the queues those of
// all brokers of the topic, as the name servers know them. The mode of every queue is PULL: POP is refused, since no message can be popped here (200050 and
// up are answered mq.NotSupported). In a group with Java brokers 402 is refused, so that those keep what they have.

const modePull = "PULL"

func (b *Broker) queryAssignment(r *request) {
	var q mq.QueryAssignment
	if err := mq.Unmarshal(r.body(), &q); err != nil {
		r.malformed(err)
		return
	}
	if r.toLeader() {
		return
	}
	all, err := b.readableQueues(r.b.ctx, q.Topic)
	if err != nil {
		r.malformed(err) // the client keeps what it has
		return
	}
	mine := all
	if q.Model != mq.Broadcasting && b.conf().ServerBalance && all != nil {
		slices.SortFunc(all, mq.MessageQueue.Compare)
		mine = share(q.Strategy, all, b.clients.consumerIDs(q.Group), q.ClientID)
	}
	var answer mq.Assignments // without a list the client keeps what it has
	if mine != nil {
		list := make([]mq.Assignment, len(mine))
		for i, queue := range mine {
			list[i] = mq.Assignment{Queue: queue, Mode: modePull}
		}
		answer.List = &list
	}
	r.json(answer)
}

// share gives the part of one member (AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle in the Java original). Members and queues are
// in order. nil: nothing can be said; empty: none.
func share(strategy string, all []mq.MessageQueue, members []string, member string) []mq.MessageQueue {
	mine := []mq.MessageQueue{}
	i := slices.Index(members, member)
	switch {
	case len(members) == 0, strategy != "AVG" && strategy != "AVG_BY_CIRCLE":
		return nil
	case i < 0:
		return mine
	}
	if strategy == "AVG_BY_CIRCLE" {
		for ; i < len(all); i += len(members) {
			mine = append(mine, all[i])
		}
		return mine
	}
	each, more := len(all)/len(members), len(all)%len(members) // the first ones get one more
	from := i*each + min(i, more)
	to := from + each
	if i < more {
		to++
	}
	return append(mine, all[from:to]...)
}

// readableQueues gives the queues of a topic on all brokers; nil if nobody has it.
func (b *Broker) readableQueues(ctx context.Context, topic string) ([]mq.MessageQueue, error) {
	var route mq.TopicRouteData
	if len(b.cfg.NameServers) == 0 {
		if t, ok := b.meta.topicConfig(topic); ok {
			route.QueueDatas = []mq.QueueData{{BrokerName: b.cfg.Name, Perm: t.Perm & b.conf().Permission, ReadQueueNums: t.ReadQueueNums}}
		}
	} else {
		known, err := b.names.route(ctx, topic)
		if err != nil {
			return nil, err
		}
		route = known
	}
	if route.QueueDatas == nil {
		return nil, nil
	}
	queues := []mq.MessageQueue{}
	for _, q := range route.QueueDatas {
		if q.Perm&mq.PermRead == 0 {
			continue
		}
		for id := range min(max(q.ReadQueueNums, 0), queuesMax) {
			queues = append(queues, mq.MessageQueue{BrokerName: q.BrokerName, QueueID: id, Topic: topic})
		}
	}
	return queues, nil
}

// route asks the name servers, one after the other, for a topic; without queues: they do not know it.
func (n *registrar) route(ctx context.Context, topic string) (route mq.TopicRouteData, err error) {
	for _, server := range n.b.cfg.NameServers {
		f, failed := n.client.Call(ctx, server, remoting.Request{Code: mq.CodeRoute, Ext: map[string]string{"topic": topic}}, registerTimeout)
		switch {
		case failed != nil:
			err = failed
			continue
		case f.Code == mq.TopicNotExist:
			return mq.TopicRouteData{}, nil
		case f.Code != mq.Success:
			err = fmt.Errorf("name server %s: code %d, %s", server, f.Code, f.Remark)
			continue
		}
		return route, mq.Unmarshal(f.Body, &route)
	}
	return route, err
}

func (b *Broker) setRequestMode(r *request) {
	var m mq.RequestMode
	if err := mq.Unmarshal(r.body(), &m); err != nil {
		r.malformed(err)
		return
	}
	if strings.HasPrefix(m.Topic, mq.RetryPrefix) {
		r.refuse(mq.NoPermission, "retry topic is not allowed to set mode")
		return
	}
	if _, ok := b.meta.topicConfig(m.Topic); !ok {
		r.refuse(mq.TopicNotExist, "topic[%s] not exist", m.Topic)
		return
	}
	if _, ok := b.meta.groupConfig(m.Group); !ok {
		r.refuse(mq.GroupNotExist, "subscription group does not exist")
		return
	}
	if m.Mode != "" && m.Mode != modePull {
		r.refuse(mq.NotSupported, "the mode of topic[%s] and group[%s] stays %s: messages cannot be popped at this broker", m.Topic, m.Group, modePull)
		return
	}
	r.ok() // it is PULL anyway
}

func (b *Broker) allRequestModes(r *request) {
	if b.mixed() {
		r.refuse(mq.NotSupported, "every mode is %s here", modePull)
		return
	}
	r.json(mq.RequestModes{Modes: map[string]map[string]mq.RequestMode{}})
}
