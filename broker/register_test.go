package broker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// oldNames is a name server that takes topics as that of 4.9.8: all that a leader's registration names, but none, not even new ones, if its version is not new.
type oldNames struct {
	mu     sync.Mutex
	from   string // the leader's address in the last registration
	last   mq.DataVersion
	topics map[string]mq.TopicConfig
	alone  int // registrations that named one topic

	process map[string]string // by address, what its last registration says
}

const oldNamesAddress = "10.0.0.8:9876"

func (o *oldNames) open(c *cluster) {
	c.T.Helper()
	o.topics, o.process = map[string]mq.TopicConfig{}, map[string]string{}
	l, err := c.net.listen(oldNamesAddress)
	if err != nil {
		c.T.Fatal(err)
	}
	s := remoting.NewServer(remoting.ServerConfig{Handler: remoting.HandlerFunc(o.handle)})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	c.T.Cleanup(func() {
		_ = s.Close()
		<-served
	})
}

func (o *oldNames) handle(conn *remoting.Conn, f *remoting.Frame) {
	var body mq.RegisterBody
	if f.Code == mq.CodeRegisterBroker {
		o.mu.Lock()
		o.process[f.Ext["brokerAddr"]] = f.Ext[mq.FieldProcess]
		o.mu.Unlock()
	}
	if f.Code == mq.CodeRegisterBroker && f.Ext["brokerId"] == "0" && mq.Unmarshal(f.Body, &body) == nil {
		o.mu.Lock()
		if from := f.Ext["brokerAddr"]; from != o.from || body.Config.DataVersion != o.last {
			o.from, o.last = from, body.Config.DataVersion
			maps.Copy(o.topics, body.Config.Topics)
		}
		if len(body.Config.Topics) == 1 {
			o.alone++
		}
		o.mu.Unlock()
	}
	_ = conn.Reply(f.Ref(), remoting.Answer{})
}

func (o *oldNames) queues(topic string) int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.topics[topic].WriteQueueNums
}

// TestTopicsMadeTogetherReachTheNameServers, and those that are changed together: the records of all of them are one batch, so the table has one version behind
// them, under which a name server takes topics once.
func TestTopicsMadeTogetherReachTheNameServers(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.NameServers = append(cfg.NameServers, oldNamesAddress) }, func(c *cluster) {
		t := c.T
		var old oldNames
		old.open(c)
		p := c.client("10.1.0.1")
		n := c.leader()
		create := func(topic string, queues int) {
			p.must(n, mq.CodeCreateTopic, ext("topic", topic, "defaultTopic", mq.TopicDefault, "readQueueNums", queues, "writeQueueNums", queues, "perm", 6,
				"topicFilterType", mq.FilterSingleTag, "topicSysFlag", 0, "order", false), nil)
		}
		create("alone", 4)
		old.mu.Lock()
		before := old.alone
		old.mu.Unlock()
		create("alone", 8)
		old.mu.Lock()
		if old.alone != before+1 {
			t.Errorf("%d registrations name the one topic that was changed, want 1", old.alone-before)
		}
		old.mu.Unlock()
		for queues := 4; queues <= 16; queues *= 2 {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() { create(fmt.Sprint("t", i), queues) })
			}
			wg.Wait()
			for i := range 8 {
				topic := fmt.Sprint("t", i)
				if route, _ := p.route(topic); len(route.QueueDatas) != 1 || route.QueueDatas[0].WriteQueueNums != int32(queues) {
					t.Errorf("%s with %d queues: the name server has %+v", topic, queues, route.QueueDatas)
				}
				if got := old.queues(topic); got != int32(queues) {
					t.Errorf("%s with %d queues: the old name server has %d", topic, queues, got)
				}
			}
		}
	})
}

// TestReplicaThatIsStoppedStandsInForNobody: it says so while it still waits for its clients to go elsewhere, who would otherwise be sent back to it.
func TestReplicaThatIsStoppedStandsInForNobody(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.NameServers = append(cfg.NameServers, oldNamesAddress) }, func(c *cluster) {
		var old oldNames
		old.open(c)
		n := c.leader()
		c.client("10.1.0.1").must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		fit := func(id string) bool {
			old.mu.Lock()
			defer old.mu.Unlock()
			return old.process[c.address(id)] == process
		}
		all := func() bool { return !slices.ContainsFunc(c.IDs(), func(id string) bool { return !fit(id) }) }
		c.Wait("all to be fit as stand-ins", all)
		ended := c.shutdown(n)
		c.Wait("the one that is stopped to say that it is not", func() bool { return !fit(n) })
		select {
		case <-ended:
			c.T.Error("it has ended, and said so too late")
		default:
		}
		<-ended
	})
}

// TestPermissionOfABrokerReachesTheNameServers, although no topic has changed.
func TestPermissionOfABrokerReachesTheNameServers(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		for _, perm := range []int32{mq.PermRead, mq.PermRead | mq.PermWrite} {
			p.must(n, mq.CodeUpdateBrokerConfig, nil, fmt.Appendf(nil, "brokerPermission=%d\n", perm))
			c.Wait("the name server to know", func() bool {
				route, _ := p.route("t")
				return len(route.QueueDatas) == 1 && route.QueueDatas[0].Perm == perm
			})
		}
	})
}

// TestNobodyRegistersAsTheLeaderOfAnothersTerm: one that has applied the first record of the next leader, but does not know yet that it leads no more.
func TestNobodyRegistersAsTheLeaderOfAnothersTerm(t *testing.T) {
	cfg := NewConfig()
	cfg.Name = "a"
	cfg.Log.ID, cfg.Log.Peers = "n1", "n0-10.0.0.1:1;n1-10.0.0.2:1"
	b := &Broker{cfg: cfg}
	b.names.b, b.meta = b, &meta{b: b, state: newState(&b.cfg)}
	for _, k := range []struct {
		leading, record int64
		leads           bool
		term            int64
	}{
		{0, 5, false, 5},
		{5, 4, true, 5},
		{5, 5, true, 5},
		{5, 6, false, 6},
	} {
		b.meta.leading, b.meta.state.Term = k.leading, k.record
		now, _ := b.names.next(true)
		if leads := now.id == 0; leads != k.leads || now.version.StateVersion != k.term {
			t.Errorf("leader of term %d, record of term %d: id %d, term %d", k.leading, k.record, now.id, now.version.StateVersion)
		}
	}
}
