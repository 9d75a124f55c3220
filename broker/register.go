package broker

import (
	"context"
	"crypto/rand"
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
	topicsTimeout   = 2 * registerTimeout // until name servers know of a topic or had the time to: the registration before comes to its end, too
)

// process tells brokers of this process from others; see mq.FieldProcess.
var process = rand.Text()

// registrar tells the name servers who this replica is and which topics it has.
//
//  1. one goroutine registers, so registrations leave in the order of what they tell;
//  2. id, term, table and version of a registration are of one moment (meta.standing);
//  3. a name server takes topics only with a version that is new to it. So a registration names one topic alone only if that is all that has changed since the
//     last one, which all name servers have taken; all others name the whole table.
type registrar struct {
	b      *Broker
	client *remoting.Client
	wake   chan struct{}
	off    sync.Once
	last   *standing // what all name servers have taken; nil = not known. The registering goroutine alone uses it

	mu      sync.Mutex
	gone    bool     // unregistered: nothing is sent any more
	leaving bool     // this replica will be gone soon: it is no use as a stand-in
	all     bool     // the next registration names all topics, whatever has changed
	waiting []func() // called behind the next registration
}

// standing is who a replica was in a registration, and which state its topics had.
type standing struct {
	id      int64
	version mq.DataVersion
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

// changed makes a registration with all topics come at once.
func (n *registrar) changed() {
	n.mu.Lock()
	n.all = true
	n.mu.Unlock()
	n.kick()
}

func (n *registrar) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run registers at every change and every now and then, and says in between that this replica lives.
func (n *registrar) run(ctx context.Context) {
	defer n.client.Close()
	every, beat := time.NewTicker(n.b.cfg.RegisterEvery), time.NewTicker(n.b.cfg.HeartbeatEvery)
	defer every.Stop()
	defer beat.Stop()
	var retry <-chan time.Time // set while a name server has to be told again; heartbeats do not put it off
	register := func() {
		retry = nil
		if n.register() {
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
			n.changed()
		case <-retry:
			register()
		case <-beat.C:
			n.beat()
		}
	}
}

// id is the broker id that this replica has now: 0 while it leads.
func (n *registrar) id() int64 { return n.idAs(n.b.meta.leads()) }

func (n *registrar) idAs(leads bool) int64 {
	if leads {
		return 0
	}
	return n.b.cfg.followerID()
}

// next is what the next registration tells: who this replica is, and the topics that it names; nil: the name servers know all.
func (n *registrar) next(all bool) (standing, map[string]mq.TopicConfig) {
	changes := n.b.confVersion.Load() // before the settings: a version says not more than it tells
	conf := n.b.conf()
	leads, version, table, newest := n.b.meta.standing()
	counter := version.Counter
	version.Counter += changes // which the permissions of all topics depend on; the sum only grows
	if leads && n.b.mixed() {  // Java brokers say 0, and could not take id 0 from one that has not heard yet that it lost it
		version.StateVersion = 0
	}
	now := standing{n.idAs(leads), version}
	if was := n.last; !all && was != nil {
		topic, there := table[newest.topic]
		one := there && newest.counter == counter && was.version.Counter+1 == version.Counter
		switch {
		case *was == now:
			return now, nil
		case one && leads && was.id == now.id && was.version.StateVersion == version.StateVersion:
			clear(table)
			table[newest.topic] = topic
		}
	}
	for name, t := range table {
		if t.Perm&conf.Permission != t.Perm { // a broker that may not be written to has no topic that may
			t.Perm &= conf.Permission | mq.PermInherit
			table[name] = t
		}
	}
	return now, table
}

// register tells all name servers, and waits for their answers; true: one of them has to be told again.
func (n *registrar) register() (failed bool) {
	n.mu.Lock()
	gone, leaving, all, waiting := n.gone, n.leaving, n.all, n.waiting
	n.all, n.waiting = false, nil
	n.mu.Unlock()
	defer func() {
		for _, done := range waiting {
			n.b.spawn(done)
		}
	}()
	if gone || len(n.b.cfg.NameServers) == 0 {
		return false
	}
	now, table := n.next(all)
	if table == nil {
		return false
	}
	n.last = nil
	body := mq.Marshal(mq.RegisterBody{FilterServers: []string{}, Config: mq.TopicConfigTable{DataVersion: now.version, Topics: table, MappingBody: map[string]string{}, MappingInfo: map[string]string{}}})
	req := remoting.Request{Code: mq.CodeRegisterBroker, Ext: map[string]string{
		"brokerName": n.b.cfg.Name, "brokerAddr": n.b.cfg.address(), "clusterName": n.b.cfg.Cluster, "haServerAddr": n.b.cfg.haAddress(),
		"brokerId": mq.Itoa(now.id), "heartbeatTimeoutMillis": mq.Itoa(n.b.cfg.NotActive.Milliseconds()), "compressed": "false", "bodyCrc32": mq.Itoa(int64(mq.BodyCRC(body))),
	}}
	if !leaving {
		req.Ext[mq.FieldProcess] = process
	}
	answers := make(chan bool, len(n.b.cfg.NameServers))
	for _, server := range n.b.cfg.NameServers {
		err := n.client.Go(server, req, registerTimeout, func(f *remoting.Frame, err error) {
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
	if !failed {
		n.last = &now
	}
	return failed
}

// leave says that this replica should be the stand-in of no leader that lives: clients would use it for as long as it waits for them to go elsewhere.
func (n *registrar) leave() {
	n.mu.Lock()
	n.leaving = true
	n.mu.Unlock()
	n.changed()
}

// topics tells the name servers of topics that are new or changed here; done follows when they know, or had the time to.
func (n *registrar) topics(done func()) {
	n.mu.Lock()
	n.waiting = append(n.waiting, done)
	n.mu.Unlock()
	n.kick()
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
