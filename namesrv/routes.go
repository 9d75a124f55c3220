package namesrv

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// Bounds of what registrations can make a name server hold. They are far above any cluster in use.
const (
	addressesMax   = 10_000  // brokers, each replica counted
	queueDatasMax  = 500_000 // topics, each broker name counted
	nameLenMax     = 255     // of topics, brokers, clusters and addresses, in bytes
	leaderID       = 0       // the id under which producers look for a broker (MASTER_ID)
	silenceMax     = 24 * time.Hour
	registerFailed = "register broker failed"
)

// routes is what a name server knows (RouteInfoManager in the Java original).
//
//  1. Every address in brokers has an entry in lives, and the other way round, but that a leader of an earlier term which was refused
//     may be in neither.
//  2. A broker name has at least one address, and stands in the set of its cluster.
//  3. A topic has queues on at least one broker name, and only on known ones.
//  4. An address stands under one id of its broker name at most.
type routes struct {
	log         *slog.Logger
	replicasMax int // addressesMax, but in tests
	queuesMax   int // queueDatasMax

	mu       sync.RWMutex
	topics   map[string]map[string]mq.QueueData // topic → broker name
	brokers  map[string]*broker                 // by name
	clusters map[string]map[string]bool         // cluster → broker names
	lives    map[replica]*live
	queues   int // entries in topics, over all of them

	led chan struct{} // closed, and another one in its place, when a broker is unled no more
}

// broker is one broker name: the replicas of one group (BrokerData).
type broker struct {
	mq.BrokerData
	// unled: no leader has registered yet, as after a start of this name server. Until one does, a replica of ours that stands in for it brings its topics
	// along; what the leader does not name is then forgotten.
	unled bool
}

// replica names one address of a broker name. The original goes by cluster and address alone; with the name in it several groups of
// one process may share a port.
type replica struct{ cluster, broker, addr string }

// live is what is known of a replica that was heard of (BrokerLiveInfo).
type live struct {
	id      int64
	version mq.DataVersion
	conn    *remoting.Conn // the one it registered on last
	haAddr  string
	node    string // what ends with it, see nodeOf; "" if it stands in for no leader that lives
	heard   time.Time
	silence time.Duration // it is gone after so long a silence
}

func newRoutes(log *slog.Logger) *routes {
	return &routes{
		log: log, replicasMax: addressesMax, queuesMax: queueDatasMax, topics: map[string]map[string]mq.QueueData{}, brokers: map[string]*broker{},
		clusters: map[string]map[string]bool{}, lives: map[replica]*live{},
		led: make(chan struct{}),
	}
}

// registration is one REGISTER_BROKER.
type registration struct {
	replica
	id           int64
	haAddr       string
	zone         string
	process      string        // of ours on a loopback address: which of them are one
	acting       *bool         // enableActingMaster; nil: the broker does not know it
	silence      time.Duration // how long it may be silent
	deleteAbsent bool
	body         *mq.RegisterBody
	conn         *remoting.Conn
}

// leader is where a follower learns from whom to copy.
type leader struct{ addr, haAddr string }

// register takes a registration, as the original does, in its order:
//
//  1. other ids of the same address are forgotten: a replica changes its id when it changes its role;
//  2. a replica that would take an id from another one with a higher state version is ignored, and forgotten: a leader of an earlier
//     term that has not noticed;
//  3. a single topic is refused from a broker whose id is unknown: it is a change to a table that was never seen;
//  4. topics count when they come from the leader, or from the lowest id where replicas may act as leaders, and only if something has
//     changed since.
func (t *routes) register(r *registration, now time.Time) (leader, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.brokers[r.broker]
	if b != nil && b.Cluster != r.cluster {
		return leader{}, fmt.Errorf("broker name %.80q is in use in cluster %.80q", r.broker, b.Cluster)
	}
	topics := r.body.Config.Topics
	single := len(topics) == 1 && (b == nil || b.BrokerAddrs[r.id] == "")
	if single { // before anything is changed: the original forgets the address's other id, and the broker is gone until it registers in full
		return leader{}, fmt.Errorf("%s: id %d of %s is unknown here, and a single topic is no registration of it", registerFailed, r.id, r.broker)
	}
	for name := range topics {
		if name == "" || len(name) > nameLenMax {
			return leader{}, fmt.Errorf("%s: the topic %.40q has a name of %d bytes", registerFailed, name, len(name))
		}
	}
	if t.lives[r.replica] == nil && len(t.lives) >= t.replicasMax {
		return leader{}, fmt.Errorf("%s: %d brokers are registered", registerFailed, len(t.lives))
	}
	if b == nil {
		b = &broker{BrokerData: mq.BrokerData{BrokerAddrs: map[int64]string{}, BrokerName: r.broker, Cluster: r.cluster}, unled: true}
		t.brokers[r.broker] = b
		if t.clusters[r.cluster] == nil {
			t.clusters[r.cluster] = map[string]bool{}
		}
		t.clusters[r.cluster][r.broker] = true
	}
	b.EnableActingMaster = r.acting != nil && *r.acting
	b.ZoneName = r.zone
	maps.DeleteFunc(b.BrokerAddrs, func(id int64, addr string) bool { return addr == r.addr && id != r.id })
	old := b.BrokerAddrs[r.id]
	if old != "" && old != r.addr {
		was := replica{r.cluster, r.broker, old}
		if l := t.lives[was]; l != nil && l.version.StateVersion > r.body.Config.DataVersion.StateVersion {
			delete(t.lives, r.replica)
			t.log.Warn("broker refused: its state is older than that of the one in its place", "broker", r.broker, "id", r.id, "address", r.addr,
				"state", r.body.Config.DataVersion.StateVersion, "in its place", old, "its state", l.version.StateVersion)
			return leader{}, nil
		}
		delete(t.lives, was)
	}
	b.BrokerAddrs[r.id] = r.addr
	first := old == ""
	lowest := r.acting != nil && r.id != leaderID && r.id == slices.Min(slices.Collect(maps.Keys(b.BrokerAddrs)))
	var err error
	switch {
	case r.id == leaderID || lowest:
		r.deleteAbsent = r.deleteAbsent || b.unled
		err = t.takeTopics(r, first, lowest && b.EnableActingMaster)
		if b.unled {
			b.unled = false
			close(t.led)
			t.led = make(chan struct{})
		}
	case b.unled && r.body.Config.DataVersion.StateVersion > 0:
		err = t.takeTopics(r, first, false)
	}
	before := t.lives[r.replica]
	t.lives[r.replica] = &live{id: r.id, version: r.body.Config.DataVersion, conn: r.conn, haAddr: r.haAddr, node: nodeOf(r.addr, r.process), heard: now, silence: r.silence}
	if before == nil || before.id != r.id {
		t.log.Info("broker registered", "broker", r.broker, "id", r.id, "address", r.addr, "state", r.body.Config.DataVersion.StateVersion, "topics", len(topics))
	}
	if err != nil || r.id == leaderID {
		return leader{}, err
	}
	at := b.BrokerAddrs[leaderID]
	if l := t.lives[replica{r.cluster, r.broker, at}]; at != "" && l != nil {
		return leader{at, l.haAddr}, nil
	}
	return leader{}, nil
}

// takeTopics notes the queues of the topics that a registration names; mu is held.
func (t *routes) takeTopics(r *registration, first, readOnly bool) error {
	table := r.body.Config.Topics
	if r.deleteAbsent && len(table) > 1 {
		for topic := range t.topics {
			if _, stays := table[topic]; !stays {
				t.deleteQueue(topic, r.broker)
			}
		}
	}
	was := t.lives[r.replica]
	changed := first || was == nil || was.version != r.body.Config.DataVersion
	for name, topic := range table {
		have, known := t.topics[name][r.broker]
		if known && !changed {
			continue
		}
		q := mq.QueueData{BrokerName: r.broker, Perm: topic.Perm, ReadQueueNums: topic.ReadQueueNums, WriteQueueNums: topic.WriteQueueNums, TopicSysFlag: topic.TopicSysFlag}
		if readOnly {
			q.Perm &^= mq.PermWrite
		}
		if known && have == q {
			continue
		}
		if !known && t.queues >= t.queuesMax {
			return fmt.Errorf("%s: %d topics of brokers are registered", registerFailed, t.queues)
		}
		t.setQueue(name, q)
	}
	return nil
}

func (t *routes) setQueue(topic string, q mq.QueueData) {
	at := t.topics[topic]
	if at == nil {
		at = map[string]mq.QueueData{}
		t.topics[topic] = at
	}
	if _, known := at[q.BrokerName]; !known {
		t.queues++
	}
	at[q.BrokerName] = q
}

func (t *routes) deleteQueue(topic, broker string) {
	at := t.topics[topic]
	if _, known := at[broker]; !known {
		return
	}
	t.queues--
	if delete(at, broker); len(at) == 0 {
		delete(t.topics, topic)
	}
}

// drop forgets a replica, and everything that only it stood for; mu is held.
func (t *routes) drop(r replica, why string) {
	l := t.lives[r]
	delete(t.lives, r)
	b := t.brokers[r.broker]
	if b == nil || b.Cluster != r.cluster {
		return
	}
	held := len(b.BrokerAddrs)
	maps.DeleteFunc(b.BrokerAddrs, func(_ int64, addr string) bool { return addr == r.addr })
	if l != nil || len(b.BrokerAddrs) < held {
		t.log.Info("broker gone", "broker", r.broker, "address", r.addr, "why", why)
	}
	if len(b.BrokerAddrs) > 0 {
		return
	}
	delete(t.brokers, r.broker)
	if delete(t.clusters[r.cluster], r.broker); len(t.clusters[r.cluster]) == 0 {
		delete(t.clusters, r.cluster)
	}
	for topic := range t.topics {
		t.deleteQueue(topic, r.broker)
	}
}

// unregister forgets a replica by its address. The id that a broker names plays no role: it may have passed to another one.
func (t *routes) unregister(r replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(r, "it has said so")
}

// dropConn forgets the replicas that registered last on a connection that is no more.
func (t *routes) dropConn(c *remoting.Conn, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, l := range t.lives {
		if l.conn == c {
			t.drop(r, why)
		}
	}
}

// expire forgets the replicas that have been silent for too long, and gives their connections, which are to be closed.
func (t *routes) expire(now time.Time) (conns []*remoting.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, l := range t.lives {
		if silent := now.Sub(l.heard); silent > l.silence {
			t.drop(r, "silent for "+silent.String())
			if l.conn != nil {
				conns = append(conns, l.conn)
			}
		}
	}
	return conns
}

// refresh notes that a replica was heard of, and gives its data version, false when it is not known.
func (t *routes) refresh(r replica, now time.Time) (mq.DataVersion, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[r]
	if l == nil {
		return mq.DataVersion{}, false
	}
	l.heard = now
	return l.version, true
}

// standIn gives the addresses of a broker as clients are to see them. While no replica is registered as leader, the one with the
// highest state version takes its id: a replica of ours passes on what it cannot do itself, so producers need not notice, and the
// highest term is that of the one which knows most about the next leader. Replicas with state version 0 are Java ones that copy from a
// master; they would only refuse, so they stand in for nobody. mu is held.
func (t *routes) standIn(b *broker) map[int64]string {
	addrs := maps.Clone(b.BrokerAddrs)
	if _, led := addrs[leaderID]; led {
		return addrs
	}
	best, most := int64(-1), int64(0)
	for _, id := range slices.Sorted(maps.Keys(addrs)) {
		if l := t.lives[replica{b.Cluster, b.BrokerName, addrs[id]}]; l != nil && l.version.StateVersion > most {
			best, most = id, l.version.StateVersion
		}
	}
	if most > 0 {
		addrs[leaderID] = addrs[best]
		delete(addrs, best)
	}
	return addrs
}

// nodeOf names what a replica ends with: its host, or on one machine, where hosts are alike, its process. It is "" for one that is not of ours or about to go.
func nodeOf(addr, process string) string {
	host, _, err := net.SplitHostPort(addr)
	ip, named := netip.ParseAddr(host)
	if process == "" || err != nil || host == "localhost" || named == nil && ip.IsLoopback() {
		return process
	}
	return host
}

// spread changes a route in which one node leads all brokers, of two or more: a client that has it would have nowhere to go for half a minute if that node
// died. Replicas on other nodes take the ids of some leaders, and those theirs, until nodes are in for equally many brokers. It takes only replicas that have said that they pass
// on what they cannot do (mq.FieldProcess). mu is held.
func (t *routes) spread(brokers []mq.BrokerData) {
	if len(brokers) < 2 {
		return
	}
	lives := func(b *mq.BrokerData, id int64) *live {
		return t.lives[replica{b.Cluster, b.BrokerName, b.BrokerAddrs[id]}]
	}
	only := ""
	for i := range brokers {
		l := lives(&brokers[i], leaderID)
		if l == nil || l.node == "" || i > 0 && l.node != only {
			return
		}
		only = l.node
	}
	in := map[string]int{only: len(brokers)}
	for i := range brokers {
		b := &brokers[i]
		best := int64(-1)
		var node string
		for _, id := range slices.Sorted(maps.Keys(b.BrokerAddrs)) {
			if l := lives(b, id); l != nil && l.node != "" && in[l.node]+1 < in[only] && (best < 0 || in[l.node] < in[node]) {
				best, node = id, l.node
			}
		}
		if best >= 0 {
			b.BrokerAddrs[leaderID], b.BrokerAddrs[best] = b.BrokerAddrs[best], b.BrokerAddrs[leaderID]
			in[only]--
			in[node]++
		}
	}
}

// partial tells whether a broker of a topic has not been heard of as led, though a replica of ours was: its others have not registered yet. What it gives is closed when there
// is news.
func (t *routes) partial(topic string) (news <-chan struct{}, is bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for name := range t.topics[topic] {
		b := t.brokers[name]
		if !b.unled {
			continue
		}
		for _, addr := range b.BrokerAddrs {
			if l := t.lives[replica{b.Cluster, name, addr}]; l != nil && l.node != "" {
				return t.led, true
			}
		}
	}
	return nil, false
}

// route gives where a topic is, false when nobody has it.
func (t *routes) route(topic string) (mq.TopicRouteData, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	route := mq.TopicRouteData{FilterServerTable: map[string][]string{}}
	for _, name := range slices.Sorted(maps.Keys(t.topics[topic])) {
		b := t.brokers[name] // rule 3: never nil
		data := b.BrokerData
		data.BrokerAddrs = t.standIn(b)
		route.BrokerDatas = append(route.BrokerDatas, data)
		route.QueueDatas = append(route.QueueDatas, t.topics[topic][name])
	}
	t.spread(route.BrokerDatas)
	return route, len(route.BrokerDatas) > 0
}

// clusterInfo gives all brokers as they have registered, without stand-ins: it is what operators look at.
func (t *routes) clusterInfo() mq.ClusterInfo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	info := mq.ClusterInfo{Brokers: map[string]mq.BrokerData{}, Clusters: map[string][]string{}}
	for name, b := range t.brokers {
		data := b.BrokerData
		data.BrokerAddrs = maps.Clone(data.BrokerAddrs)
		info.Brokers[name] = data
	}
	for name, brokers := range t.clusters {
		info.Clusters[name] = slices.Sorted(maps.Keys(brokers))
	}
	return info
}

func (t *routes) members(cluster, name string) mq.BrokerMembers {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var m mq.BrokerMembers
	m.Group.BrokerName, m.Group.Cluster = name, cluster
	if b := t.brokers[name]; b != nil && b.Cluster == cluster {
		m.Group.BrokerAddrs = maps.Clone(b.BrokerAddrs)
	}
	return m
}

// topicList gives the topics for which keep holds, or all when it is nil.
func (t *routes) topicList(keep func(queues map[string]mq.QueueData) bool) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := []string{}
	for topic, queues := range t.topics {
		if keep == nil || keep(queues) {
			list = append(list, topic)
		}
	}
	slices.Sort(list)
	return list
}

func (t *routes) topicsOfCluster(cluster string) []string {
	return t.topicList(func(queues map[string]mq.QueueData) bool {
		for name := range t.clusters[cluster] {
			if _, ok := queues[name]; ok {
				return true
			}
		}
		return false
	})
}

// systemTopics gives the names of clusters and brokers, which are topics on every broker, and the address of one broker to ask for
// the others.
func (t *routes) systemTopics() mq.TopicList {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := mq.TopicList{Topics: []string{}}
	for _, cluster := range slices.Sorted(maps.Keys(t.clusters)) {
		list.Topics = append(list.Topics, cluster)
		list.Topics = append(list.Topics, slices.Sorted(maps.Keys(t.clusters[cluster]))...)
	}
	for _, name := range slices.Sorted(maps.Keys(t.brokers)) {
		addrs := t.brokers[name].BrokerAddrs
		list.BrokerAddr = addrs[slices.Min(slices.Collect(maps.Keys(addrs)))]
		break
	}
	return list
}

// setPerm changes the permission of all topics on a broker and gives their number. It lasts until the broker registers another state.
func (t *routes) setPerm(name string, change func(perm int32) int32) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, queues := range t.topics {
		if q, ok := queues[name]; ok {
			q.Perm = change(q.Perm)
			queues[name] = q
			n++
		}
	}
	return n
}

// deleteTopic forgets a topic, in one cluster or in all when cluster is "".
func (t *routes) deleteTopic(topic, cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.topics[topic] {
		if cluster == "" || t.clusters[cluster][name] {
			t.deleteQueue(topic, name)
		}
	}
}

// addTopic notes queues of a topic, all of them or, when one is of an unknown broker, none.
func (t *routes) addTopic(topic string, queues []mq.QueueData) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range queues {
		if t.brokers[q.BrokerName] == nil {
			return nil
		}
	}
	if t.queues+len(queues) > t.queuesMax {
		return fmt.Errorf("%d topics of brokers are registered", t.queues)
	}
	for _, q := range queues {
		t.setQueue(topic, q)
	}
	return nil
}

// checkReplica says what is wrong with the names in a registration. Clients take routes apart by commas and quotes, so that one bad
// address would harm all of them.
func checkReplica(r replica) error {
	for _, n := range []struct{ what, text string }{{"clusterName", r.cluster}, {"brokerName", r.broker}, {"brokerAddr", r.addr}} {
		switch {
		case n.text == "":
			return fmt.Errorf("%s: empty", n.what)
		case len(n.text) > nameLenMax:
			return fmt.Errorf("%s: longer than %d bytes", n.what, nameLenMax)
		case strings.ContainsFunc(n.text, func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune(`",{}\`, c) }):
			return fmt.Errorf("%s: %q contains illegal characters", n.what, n.text)
		}
	}
	return nil
}
