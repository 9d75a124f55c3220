package broker

import (
	"context"
	"sync"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Compatibility, towards name servers: REGISTER_BROKER (103), UNREGISTER_BROKER (104), BROKER_HEARTBEAT (904). Every registration carries the
// term of the leadership as stateVersion, so that a leader that has been replaced without knowing it cannot take id 0 back; the original sends 0, and so does our leader in compat 0.3. It goes to all name servers
// at once, as soon as the role changes, and waits for no one longer than registerTimeout.

const (
	registerTimeout = time.Second
	topicsTimeout   = 3 * time.Second
)

// registrar tells the name servers who this replica is and which topics it has.
type registrar struct {
	b      *Broker
	client *remoting.Client
	wake   chan struct{}
	off    sync.Once

	mu   sync.Mutex
	gone bool // unregistered: nothing is sent any more
}

func (n *registrar) open(b *Broker) {
	n.b, n.wake = b, make(chan struct{}, 1)
	n.client = remoting.NewClient(remoting.ClientConfig{Dial: b.cfg.Dial, Version: mq.Version, DialTimeout: registerTimeout, IdleMax: -1,
		PauseMin: 50 * time.Millisecond, PauseMax: time.Second, State: n.connected})
}

// connected tells a name server again what it lost with the connection.
func (n *registrar) connected(_ string, up bool) {
	if !up {
		n.changed()
	}
}

// changed makes the next registration come at once.
func (n *registrar) changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run registers at every change and every now and then, and says in between that this replica lives.
func (n *registrar) run(ctx context.Context) {
	defer n.client.Close()
	every, beat := time.NewTicker(max(n.b.cfg.RegisterEvery, time.Second)), time.NewTicker(max(n.b.cfg.HeartbeatEvery, 100*time.Millisecond))
	defer every.Stop()
	defer beat.Stop()
	var retry <-chan time.Time // set while a name server has to be told again; heartbeats do not put it off
	register := func() {
		retry = nil
		if n.register(nil, registerTimeout) {
			retry = time.After(registerTimeout)
		}
	}
	register()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			register()
		case <-every.C:
			register()
		case <-retry:
			register()
		case <-beat.C:
			n.beat()
		}
	}
}

// id is the broker id that this replica has now: 0 while it leads.
func (n *registrar) id() int64 {
	if n.b.gate.here() {
		return 0
	}
	return n.b.cfg.followerID()
}

// register tells all name servers, and waits for their answers; true: one of them has to be told again. only names the topics that have changed; nil = all.
func (n *registrar) register(only []mq.TopicConfig, timeout time.Duration) (failed bool) {
	n.mu.Lock()
	gone := n.gone
	n.mu.Unlock()
	if gone || len(n.b.cfg.NameServers) == 0 {
		return false
	}
	id := n.id()
	table := n.b.meta.topics()
	if only != nil {
		clear(table)
		for _, t := range only {
			table[t.TopicName] = t
		}
	}
	for name, t := range table {
		if t.Perm&n.b.conf().Permission != t.Perm { // a broker that may not be written to has no topic that may
			t.Perm &= n.b.conf().Permission | mq.PermInherit
			table[name] = t
		}
	}
	body := mq.Marshal(mq.RegisterBody{FilterServers: []string{}, Config: mq.TopicConfigTable{DataVersion: n.version(), Topics: table, MappingBody: map[string]string{}, MappingInfo: map[string]string{}}})
	req := remoting.Request{Code: mq.CodeRegisterBroker, Ext: map[string]string{
		"brokerName": n.b.cfg.Name, "brokerAddr": n.b.cfg.address(), "clusterName": n.b.cfg.Cluster, "haServerAddr": n.b.cfg.haAddress(),
		"brokerId": mq.Itoa(id), "heartbeatTimeoutMillis": mq.Itoa(n.b.cfg.NotActive.Milliseconds()), "compressed": "false", "bodyCrc32": mq.Itoa(int64(mq.BodyCRC(body))),
	}}
	answers := make(chan bool, len(n.b.cfg.NameServers))
	for _, server := range n.b.cfg.NameServers {
		err := n.client.Go(server, req, timeout, func(f *remoting.Frame, err error) {
			switch {
			case err != nil:
				n.b.log.Debug("registration failed", "server", server, "error", err)
			case f.Code != mq.Success:
				n.b.log.Warn("registration refused", "server", server, "code", f.Code, "remark", f.Remark)
			}
			answers <- err != nil || f.Code != mq.Success
		}, body)
		if err != nil {
			answers <- true
		}
	}
	for range n.b.cfg.NameServers {
		failed = <-answers || failed
	}
	return failed
}

// version is the state of the topic table, in this term. In a group with Java brokers the leader leaves the term out: they say 0, and could not take id 0
// from one that has not heard yet that it lost it.
func (n *registrar) version() mq.DataVersion {
	v := n.b.meta.version(tableTopics)
	if n.b.mixed() && n.b.gate.here() {
		v.StateVersion = 0
	}
	return v
}

// topics tells the name servers of new or changed topics; done follows when they know, or had the time to.
func (n *registrar) topics(topics []mq.TopicConfig, done func()) {
	n.b.spawn(func() {
		if len(topics) == 1 {
			n.register(topics, topicsTimeout)
		} else {
			n.register(nil, topicsTimeout)
		}
		done()
	})
}

// beat tells the name servers that this replica lives.
func (n *registrar) beat() {
	req := remoting.Request{Code: mq.CodeBrokerHeartbeat, Ext: map[string]string{"brokerName": n.b.cfg.Name, "brokerAddr": n.b.cfg.address(),
		"clusterName": n.b.cfg.Cluster, "brokerId": mq.Itoa(n.id()), "heartbeatTimeoutMillis": mq.Itoa(n.b.cfg.NotActive.Milliseconds())}}
	for _, server := range n.b.cfg.NameServers {
		_ = n.client.Go(server, req, registerTimeout, nil) // the registration says what is wrong
	}
}

// unregister takes this replica out of all routes; the first call counts.
func (n *registrar) unregister(ctx context.Context) {
	n.off.Do(func() {
		n.mu.Lock()
		n.gone = true
		n.mu.Unlock()
		var asked sync.WaitGroup
		for _, server := range n.b.cfg.NameServers {
			asked.Go(func() {
				req := remoting.Request{Code: mq.CodeUnregisterBroker, Ext: map[string]string{"brokerName": n.b.cfg.Name, "brokerAddr": n.b.cfg.address(),
					"clusterName": n.b.cfg.Cluster, "brokerId": mq.Itoa(n.id())}}
				if _, err := n.client.Call(ctx, server, req, registerTimeout); err != nil {
					n.b.log.Debug("not unregistered, the name server finds out by itself", "server", server, "error", err)
				}
			})
		}
		asked.Wait()
	})
}
