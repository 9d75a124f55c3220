package broker

import (
	"context"
	"encoding/json"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Groups that hold Java brokers, too (compat 0.3). A Java leader writes no leader record, so its address comes from the name servers; and what it keeps
// beside messages it keeps to itself, so it is copied from it with the requests of the original's own followers: GET_ALL_TOPIC_CONFIG (21),
// GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), GET_ALL_CONSUMER_OFFSET (43), GET_ALL_DELAY_OFFSET (45). When this replica leads, it writes the copy into the log.
// Java followers copy from us with the same requests.
const (
	lookEvery    = 300 * time.Millisecond // for the address of a leader that is not known
	copyEvery    = 3 * time.Second
	mixedTimeout = 2 * time.Second
)

// mixed tells whether the group may hold Java brokers.
func (b *Broker) mixed() bool { return b.cfg.Log.Compat != dledger.CompatGo }

// leaderAddress gives the address of the log's leader, as far as this replica knows it; "" if not. java: it has not written a leader record, so it may be a
// Java broker, and registered is what the name servers say of it.
func (b *Broker) leaderAddress(leader, registered string) (address string, java bool) {
	if leader == "" || leader == b.cfg.Log.ID {
		return "", false
	}
	if b.mixed() && b.meta.lastLeader() != leader {
		if registered == b.cfg.address() {
			return "", true
		}
		return registered, true
	}
	return b.meta.addressOf(leader), false
}

// leader asks the name servers who is registered as leader; "" if none says so.
func (n *registrar) leader(ctx context.Context) string {
	for _, server := range n.b.cfg.NameServers {
		f, err := n.client.Call(ctx, server, remoting.Request{Code: mq.CodeClusterInfo}, registerTimeout)
		var info mq.ClusterInfo
		if err != nil || f.Code != mq.Success || mq.Unmarshal(f.Body, &info) != nil {
			continue
		}
		if address := info.Brokers[n.b.cfg.Name].BrokerAddrs[0]; address != "" {
			return address
		}
	}
	return ""
}

// foreign is what a Java leader keeps beside messages.
type foreign struct {
	topics  mq.TopicConfigTable
	groups  mq.SubscriptionGroupTable
	offsets mq.ConsumerOffsetTable
	delays  mq.DelayOffsetTable
}

// copyForeign copies it, at once and then again and again, until ctx ends.
func (b *Broker) copyForeign(ctx context.Context, leader string) {
	for {
		var f foreign
		complete := true
		for code, to := range map[int32]any{mq.CodeAllTopicConfig: &f.topics, mq.CodeAllGroupConfig: &f.groups, mq.CodeAllConsumerOffset: &f.offsets, mq.CodeAllDelayOffset: &f.delays} {
			a, err := b.replicas.Call(ctx, leader, remoting.Request{Code: code}, mixedTimeout)
			if err == nil && a.Code == mq.Success && len(a.Body) > 0 {
				err = mq.Unmarshal(a.Body, to)
			}
			if err != nil || a.Code != mq.Success {
				complete = false
			}
		}
		if complete {
			b.copied.Store(&f)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(copyEvery):
		}
	}
}

// record gives what is copied as a record.
func (f *foreign) record() record {
	rec := record{Kind: "copied", Topics: f.topics.Topics, Groups: f.groups.Groups, Offsets: f.offsets.Offsets}
	if len(f.delays.Offsets) > 0 {
		p := delayProgress{Offsets: map[int]int64{}}
		for level, offset := range f.delays.Offsets {
			p.Offsets[int(level)] = offset
		}
		text, err := json.Marshal(&p)
		if err == nil {
			rec.Progress = map[string]json.RawMessage{serviceDelay: text}
		}
	}
	return rec
}
