package namesrv

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"dledger/internal/golden"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memListener is a listener in memory, for tests in virtual time.
type memListener struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemListener() *memListener {
	return &memListener{accept: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *memListener) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.accept <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// world is one name server in virtual time.
type world struct {
	t  *testing.T
	l  *memListener
	s  *Server
	me *peer // a client that registers nothing
}

// peer is a broker or a client: one connection.
type peer struct {
	w *world
	c *remoting.Client
}

// run gives f a name server in a bubble of virtual time.
func run(t *testing.T, cfg Config, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newMemListener()
		cfg.Listener = l
		s, err := Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, l: l, s: s}
		w.me = w.peer(mq.Version)
		f(w)
		w.me.close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) peer(version int32) *peer {
	return &peer{w, remoting.NewClient(remoting.ClientConfig{Dial: w.l.dial, Version: version, IdleMax: -1})}
}

// close ends the peer's connection and waits until the server has noticed.
func (p *peer) close() {
	if err := p.c.Close(); err != nil {
		p.w.t.Error(err)
	}
	synctest.Wait()
}

func (p *peer) try(code int32, ext map[string]string, body []byte) *remoting.Frame {
	p.w.t.Helper()
	f, err := p.c.Call(p.w.t.Context(), "namesrv:9876", remoting.Request{Code: code, Ext: ext}, 5*time.Second, body)
	if err != nil {
		p.w.t.Fatalf("request %d: %v", code, err)
	}
	return f
}

// call makes a request that must succeed, and reads its body into v unless that is nil.
func (p *peer) call(code int32, ext map[string]string, body []byte, v any) *remoting.Frame {
	p.w.t.Helper()
	f := p.try(code, ext, body)
	if f.Code != mq.Success {
		p.w.t.Fatalf("request %d: code %d, %s", code, f.Code, f.Remark)
	}
	if v != nil {
		if err := mq.Unmarshal(f.Body, v); err != nil {
			p.w.t.Fatalf("request %d: %v in %s", code, err, f.Body)
		}
	}
	return f
}

// refused makes a request that must be answered with a code and a remark that names the reason.
func (p *peer) refused(code int32, ext map[string]string, body []byte, want int32, remark string) {
	p.w.t.Helper()
	f := p.try(code, ext, body)
	if f.Code != want || !strings.Contains(f.Remark, remark) {
		p.w.t.Errorf("request %d %v: got code %d %q, want %d with %q", code, ext, f.Code, f.Remark, want, remark)
	}
}

// reg is a registration as a test wants it.
type reg struct {
	broker string
	id     int64
	addr   string
	term   int64
	count  int64 // the data version's counter
	topics []string
	more   map[string]string
}

func (r reg) ext(body []byte) map[string]string {
	ext := map[string]string{"brokerName": r.broker, "brokerAddr": r.addr, "clusterName": "c", "haServerAddr": r.addr + "1", "brokerId": mq.Itoa(r.id),
		"bodyCrc32": mq.Itoa(int64(mq.BodyCRC(body)))}
	maps.Copy(ext, r.more)
	return ext
}

func (r reg) body() *mq.RegisterBody {
	b := &mq.RegisterBody{}
	b.Config.DataVersion = mq.DataVersion{Counter: r.count, StateVersion: r.term, Timestamp: 1}
	b.Config.Topics = map[string]mq.TopicConfig{}
	if r.topics == nil {
		r.topics = []string{"T", "U"}
	}
	for _, name := range r.topics {
		b.Config.Topics[name] = mq.NewTopicConfig(name, 4, mq.PermRead|mq.PermWrite)
	}
	return b
}

func (p *peer) register(r reg) *remoting.Frame {
	p.w.t.Helper()
	body := mq.Marshal(r.body())
	return p.call(mq.CodeRegisterBroker, r.ext(body), body, nil)
}

// addrs gives the addresses in the route of a topic as "name/id=addr" words, "" when there is no route.
func (w *world) addrs(topic string) string {
	w.t.Helper()
	f := w.me.try(mq.CodeRoute, map[string]string{"topic": topic}, nil)
	if f.Code == mq.TopicNotExist {
		return ""
	}
	var route mq.TopicRouteData
	if err := mq.Unmarshal(f.Body, &route); err != nil || f.Code != mq.Success {
		w.t.Fatalf("route of %s: code %d, %v", topic, f.Code, err)
	}
	var words []string
	for _, b := range route.BrokerDatas {
		for id := int64(-1); id < 10; id++ {
			if a := b.BrokerAddrs[id]; a != "" {
				words = append(words, fmt.Sprintf("%s/%d=%s", b.BrokerName, id, a))
			}
		}
	}
	return strings.Join(words, " ")
}

func (w *world) want(topic, want string) {
	w.t.Helper()
	if got := w.addrs(topic); got != want {
		w.t.Errorf("route of %s: got %q, want %q", topic, got, want)
	}
}

func TestRouteIsTheOriginals(t *testing.T) {
	run(t, Config{}, func(w *world) {
		w.me.refused(mq.CodeRoute, map[string]string{"topic": "TopicTest"}, nil, mq.TopicNotExist, "TopicTest")
		b := w.peer(mq.Version)
		defer b.close()
		body := reg{term: 0}.body()
		c := mq.NewTopicConfig("TopicTest", 8, 6)
		body.Config.Topics = map[string]mq.TopicConfig{"TopicTest": c, "X": c}
		for id, addr := range map[int64]string{0: "10.1.2.3:10911", 2: "10.1.2.4:10911"} {
			raw := mq.Marshal(body)
			r := reg{broker: "broker-a", id: id, addr: addr, more: map[string]string{"clusterName": "DefaultCluster"}}
			b.call(mq.CodeRegisterBroker, r.ext(raw), raw, nil)
		}
		f := w.me.call(mq.CodeRoute, map[string]string{"topic": "TopicTest"}, nil, nil)
		if f.Version != mq.Version {
			t.Errorf("version: got %d, want %d", f.Version, mq.Version)
		}
		if got, want := string(f.Body), goldenBody(t, "topicRouteData_standardJson"); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func goldenBody(t *testing.T, name string) string {
	t.Helper()
	b, err := golden.Read("rocketmq-bodies.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Bodies struct {
			Route   string `json:"topicRouteData_standardJson"`
			Cluster string `json:"clusterInfo"`
			Packed  string `json:"registerBrokerBody_compressedHex"`
		} `json:"bodies"`
	}
	if err := mq.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"topicRouteData_standardJson": file.Bodies.Route, "clusterInfo": file.Bodies.Cluster, "packed": file.Bodies.Packed}[name]
}

func TestBrokerIsGoneWithItsConnection(t *testing.T) {
	run(t, Config{}, func(w *world) {
		a, b := w.peer(mq.Version), w.peer(mq.Version)
		a.register(reg{broker: "a", addr: "h:1"})
		b.register(reg{broker: "b", addr: "h:2"})
		b.register(reg{broker: "b2", addr: "h:2"}) // another group of the same process on the same port
		w.want("T", "a/0=h:1 b/0=h:2 b2/0=h:2")
		b.close()
		w.want("T", "a/0=h:1")
		c := w.peer(mq.Version) // a registers on another connection: the old one no longer stands for it
		c.register(reg{broker: "a", addr: "h:1"})
		a.close()
		w.want("T", "a/0=h:1")
		c.close()
		w.want("T", "")
		var info mq.ClusterInfo
		w.me.call(mq.CodeClusterInfo, nil, nil, &info)
		if len(info.Brokers)+len(info.Clusters) != 0 {
			t.Errorf("something is left: %+v", info)
		}
	})
}

// A broker whose machine is dead closes nothing: only time tells.
func TestSilentBrokerExpires(t *testing.T) {
	run(t, Config{}, func(w *world) {
		quick, slow := w.peer(mq.Version), w.peer(mq.Version)
		defer quick.close()
		defer slow.close()
		quick.register(reg{broker: "quick", addr: "h:1", more: map[string]string{"heartbeatTimeoutMillis": "10000"}})
		slow.register(reg{broker: "slow", addr: "h:2"})
		time.Sleep(9 * time.Second)
		who := map[string]string{"brokerName": "quick", "brokerAddr": "h:1", "clusterName": "c"}
		quick.call(mq.CodeBrokerHeartbeat, who, nil, nil)
		time.Sleep(9 * time.Second)
		who["brokerId"] = "0"
		f := quick.call(mq.CodeQueryDataVersion, who, mq.Marshal(mq.DataVersion{Timestamp: 1}), nil)
		if f.Ext["changed"] != "false" {
			t.Errorf("changed: got %q, want false", f.Ext["changed"])
		}
		time.Sleep(9 * time.Second)
		w.want("T", "quick/0=h:1 slow/0=h:2")
		time.Sleep(3 * time.Second)
		w.want("T", "slow/0=h:2")
		time.Sleep(87 * time.Second)
		w.want("T", "slow/0=h:2") // 117 s
		time.Sleep(5 * time.Second)
		w.want("T", "")
		// An unknown broker may ask, and learns that it must register.
		if f := slow.call(mq.CodeQueryDataVersion, who, mq.Marshal(mq.DataVersion{}), nil); f.Ext["changed"] != "true" || len(f.Body) != 0 {
			t.Errorf("unknown broker: changed=%q, body %s", f.Ext["changed"], f.Body)
		}
	})
}

// Producers find a broker only under id 0.
func TestRouteNeverLacksALeaderWhileReplicasLive(t *testing.T) {
	run(t, Config{}, func(w *world) {
		n := [3]*peer{w.peer(mq.Version), w.peer(mq.Version), w.peer(mq.Version)}
		n[0].register(reg{broker: "b", id: 0, addr: "h:1", term: 4})
		n[1].register(reg{broker: "b", id: 2, addr: "h:2", term: 3})
		n[2].register(reg{broker: "b", id: 3, addr: "h:3", term: 4})
		w.want("T", "b/0=h:1 b/2=h:2 b/3=h:3")
		n[0].close()
		w.want("T", "b/0=h:3 b/2=h:2") // the higher term
		var info mq.ClusterInfo
		w.me.call(mq.CodeClusterInfo, nil, nil, &info)
		if got := info.Brokers["b"].BrokerAddrs; !reflect.DeepEqual(got, map[int64]string{2: "h:2", 3: "h:3"}) {
			t.Errorf("operators see %v", got)
		}
		n[1].register(reg{broker: "b", id: 0, addr: "h:2", term: 5}) // the new leader
		w.want("T", "b/0=h:2 b/3=h:3")
		n[1].close()
		w.want("T", "b/0=h:3")
		n[2].close()
		w.want("T", "")
	})
}

// A Java slave takes no sends; producers had better see that its master is gone.
func TestReplicasThatForwardNothingStandInForNobody(t *testing.T) {
	run(t, Config{}, func(w *world) {
		master, slave := w.peer(mq.Version), w.peer(mq.Version)
		defer slave.close()
		master.register(reg{broker: "b", id: 0, addr: "h:1"})
		slave.register(reg{broker: "b", id: 1, addr: "h:2"})
		master.close()
		w.want("T", "b/1=h:2")
	})
}

// A client that is told of one node for all brokers of a topic has nowhere to go for half a minute when that node dies.
func TestRoutesNameMoreThanOneNodeWhereReplicasPassOn(t *testing.T) {
	for _, k := range []struct {
		name string
		at   func(broker, node int) (addr, process string)
		led  [3]int // by which node each broker is led, at first
		want string // of them
		gone string // when n3 has died, and they are led by n1
	}{
		{"hosts", func(_, n int) (string, string) { return fmt.Sprintf("h%d:1", n), "p" }, [3]int{1, 1, 1},
			"a/0=h2:1 a/2=h1:1 a/3=h3:1 b/0=h3:1 b/2=h2:1 b/3=h1:1 c/0=h1:1 c/2=h2:1 c/3=h3:1", "a/0=h2:1 a/2=h1:1 b/0=h1:1 b/2=h2:1 c/0=h1:1 c/2=h2:1"},
		{"processes of one machine", func(b, n int) (string, string) { return fmt.Sprintf("127.0.0.1:%d%d", b+1, n), fmt.Sprint("p", n) }, [3]int{1, 1, 1},
			"a/0=127.0.0.1:12 a/2=127.0.0.1:11 a/3=127.0.0.1:13 b/0=127.0.0.1:23 b/2=127.0.0.1:22 b/3=127.0.0.1:21 c/0=127.0.0.1:31 c/2=127.0.0.1:32 c/3=127.0.0.1:33",
			"a/0=127.0.0.1:12 a/2=127.0.0.1:11 b/0=127.0.0.1:21 b/2=127.0.0.1:22 c/0=127.0.0.1:31 c/2=127.0.0.1:32"},
		{"one process", func(b, n int) (string, string) { return fmt.Sprintf("localhost:%d%d", b+1, n), "p" }, [3]int{1, 1, 1},
			"a/0=localhost:11 a/2=localhost:12 a/3=localhost:13 b/0=localhost:21 b/2=localhost:22 b/3=localhost:23 c/0=localhost:31 c/2=localhost:32 c/3=localhost:33",
			"a/0=localhost:11 a/2=localhost:12 b/0=localhost:21 b/2=localhost:22 c/0=localhost:31 c/2=localhost:32"},
		{"a node that will be gone soon", func(_, n int) (string, string) { return fmt.Sprintf("h%d:1", n), strings.Repeat("p", n%2) }, [3]int{1, 1, 1},
			"a/0=h3:1 a/2=h2:1 a/3=h1:1 b/0=h1:1 b/2=h2:1 b/3=h3:1 c/0=h1:1 c/2=h2:1 c/3=h3:1", "a/0=h1:1 a/2=h2:1 b/0=h1:1 b/2=h2:1 c/0=h1:1 c/2=h2:1"},
		{"two nodes lead", func(_, n int) (string, string) { return fmt.Sprintf("h%d:1", n), "p" }, [3]int{1, 1, 2},
			"a/0=h1:1 a/2=h2:1 a/3=h3:1 b/0=h1:1 b/2=h2:1 b/3=h3:1 c/0=h2:1 c/2=h1:1 c/3=h3:1", "a/0=h2:1 a/2=h1:1 b/0=h1:1 b/2=h2:1 c/0=h1:1 c/2=h2:1"},
		{"Java brokers", func(_, n int) (string, string) { return fmt.Sprintf("h%d:1", n), "" }, [3]int{1, 1, 1},
			"a/0=h1:1 a/2=h2:1 a/3=h3:1 b/0=h1:1 b/2=h2:1 b/3=h3:1 c/0=h1:1 c/2=h2:1 c/3=h3:1", "a/0=h1:1 a/2=h2:1 b/0=h1:1 b/2=h2:1 c/0=h1:1 c/2=h2:1"},
	} {
		t.Run(k.name, func(t *testing.T) {
			run(t, Config{}, func(w *world) {
				nodes := []*peer{w.peer(mq.Version), w.peer(mq.Version), w.peer(mq.Version)}
				defer nodes[0].close()
				defer nodes[1].close()
				register := func(broker, leader int, term int64, alive ...int) {
					next := int64(2)
					for _, n := range alive {
						addr, process := k.at(broker, n)
						r := reg{broker: string(rune('a' + broker)), id: 0, addr: addr, term: term, topics: []string{"T", "U"}, more: map[string]string{mq.FieldProcess: process}}
						if n != leader {
							r.id = next
							next++
						}
						nodes[n-1].register(r)
					}
				}
				for broker, leader := range k.led {
					register(broker, leader, 5, 1, 2, 3)
				}
				w.want("T", k.want)
				nodes[2].close()
				for broker := range k.led {
					register(broker, 1, 6, 1, 2)
				}
				w.want("T", k.gone)
				var info mq.ClusterInfo
				w.me.call(mq.CodeClusterInfo, nil, nil, &info)
				for broker := range k.led {
					name := string(rune('a' + broker))
					if at, _ := k.at(broker, 1); info.Brokers[name].BrokerAddrs[0] != at {
						t.Errorf("operators see %v", info.Brokers[name].BrokerAddrs)
					}
				}
			})
		})
	}
}

// A name server that has just started hears first of the replicas on its own node. A client that is told of them alone uses nothing else for half a minute.
func TestFreshNameServerWaitsForLeaders(t *testing.T) {
	run(t, Config{}, func(w *world) {
		began := time.Now()
		own, other := w.peer(mq.Version), w.peer(mq.Version)
		defer own.close()
		defer other.close()
		ours := map[string]string{mq.FieldProcess: "p"}
		own.register(reg{broker: "a", id: 2, addr: "h1:1", term: 5, more: ours})
		own.register(reg{broker: "b", id: 2, addr: "h1:2", term: 5, more: ours})
		told := make(chan string)
		go func() { told <- w.addrs("T") }()
		for _, r := range []reg{{broker: "a", id: 0, addr: "h2:1", term: 5, more: ours}, {broker: "b", id: 0, addr: "h3:2", term: 5, more: ours}} {
			time.Sleep(300 * time.Millisecond)
			select {
			case got := <-told:
				t.Fatalf("told after %v: %s", time.Since(began), got)
			default:
			}
			other.register(r)
		}
		if got, took := <-told, time.Since(began); got != "a/0=h2:1 a/2=h1:1 b/0=h3:2 b/2=h1:2" || took > 700*time.Millisecond {
			t.Errorf("told after %v: %s", took, got)
		}
		own.register(reg{broker: "c", id: 2, addr: "h1:3", term: 5, topics: []string{"V", "W"}, more: ours})
		w.want("V", "c/0=h1:3") // whose leader does not come
		if took := time.Since(began); took != settleMax {
			t.Errorf("a leader that does not come is waited for until %v after the start, want %v", took, settleMax)
		}
		own.register(reg{broker: "d", id: 2, addr: "h1:4", term: 5, topics: []string{"X", "Y"}, more: ours})
		w.want("X", "d/0=h1:4")
		if took := time.Since(began); took != settleMax {
			t.Errorf("and later, until %v", took)
		}
	})
}

func TestRoleChanges(t *testing.T) {
	run(t, Config{}, func(w *world) {
		a, b := w.peer(mq.Version), w.peer(mq.Version)
		defer a.close()
		defer b.close()
		if f := a.register(reg{broker: "b", id: 2, addr: "h:1", term: 1}); f.Ext["masterAddr"] != "" {
			t.Errorf("a leader before there is one: %v", f.Ext)
		}
		w.want("T", "b/0=h:1") // one that passes sends on stands in, with its topics, until the leader has registered
		w.want("U", "b/0=h:1")
		a.register(reg{broker: "b", id: 0, addr: "h:1", term: 2, topics: []string{"T", "V"}})
		w.want("T", "b/0=h:1")
		w.want("U", "") // its leader has deleted it
		a.register(reg{broker: "b", id: 0, addr: "h:1", term: 2})
		a.register(reg{broker: "b", id: 2, addr: "h:1", term: 2, topics: []string{"T", "W"}})
		w.want("W", "") // from then on topics count when the leader names them
		a.register(reg{broker: "b", id: 0, addr: "h:1", term: 2})
		f := b.register(reg{broker: "b", id: 3, addr: "h:2", term: 2})
		if f.Ext["masterAddr"] != "h:1" || f.Ext["haServerAddr"] != "h:11" {
			t.Errorf("leader for a follower: got %v", f.Ext)
		}
		b.register(reg{broker: "b", id: 0, addr: "h:2", term: 3})
		w.want("T", "b/0=h:2")
		a.register(reg{broker: "b", id: 0, addr: "h:1", term: 2}) // has not noticed
		w.want("T", "b/0=h:2")
		a.register(reg{broker: "b", id: 2, addr: "h:1", term: 3})
		w.want("T", "b/0=h:2 b/2=h:1")
	})
}

func TestSingleTopicIsAChangeOfAKnownTable(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b := w.peer(mq.Version)
		defer b.close()
		one := reg{broker: "b", addr: "h:1", topics: []string{"V"}, count: 1}
		body := mq.Marshal(one.body())
		b.refused(mq.CodeRegisterBroker, one.ext(body), body, mq.SystemError, "register broker failed")
		var info mq.ClusterInfo
		w.me.call(mq.CodeClusterInfo, nil, nil, &info)
		if len(info.Brokers)+len(info.Clusters) != 0 {
			t.Errorf("a refused broker is known: %+v", info)
		}
		b.register(reg{broker: "b", addr: "h:1"})
		b.register(one)
		w.want("V", "b/0=h:1")
		w.want("T", "b/0=h:1") // not named, not taken away
	})
}

func TestAbsentTopicsGoWhenConfigured(t *testing.T) {
	run(t, Config{DeleteAbsentTopics: true}, func(w *world) {
		a, b := w.peer(mq.Version), w.peer(mq.Version)
		defer a.close()
		defer b.close()
		a.register(reg{broker: "a", addr: "h:1"})
		b.register(reg{broker: "b", addr: "h:2"})
		a.register(reg{broker: "a", addr: "h:1", topics: []string{"U", "V"}, count: 1})
		w.want("T", "b/0=h:2")
		w.want("U", "a/0=h:1 b/0=h:2")
		a.register(reg{broker: "a", addr: "h:1", topics: []string{"W"}, count: 2}) // one topic is a change, not a table
		w.want("U", "a/0=h:1 b/0=h:2")
	})
}

// The permission that an operator took stays taken until the broker has another state to tell.
func TestWritePermission(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b := w.peer(mq.Version)
		defer b.close()
		perm := func() int32 {
			var route mq.TopicRouteData
			w.me.call(mq.CodeRoute, map[string]string{"topic": "T"}, nil, &route)
			return route.QueueDatas[0].Perm
		}
		b.register(reg{broker: "b", addr: "h:1", count: 1})
		if f := w.me.call(mq.CodeWipeWritePerm, map[string]string{"brokerName": "b"}, nil, nil); f.Ext["wipeTopicCount"] != "2" || perm() != 4 {
			t.Errorf("wiped: %v, perm %d", f.Ext, perm())
		}
		b.register(reg{broker: "b", addr: "h:1", count: 1})
		if perm() != 4 {
			t.Errorf("after the same registration: perm %d, want 4", perm())
		}
		if f := w.me.call(mq.CodeAddWritePerm, map[string]string{"brokerName": "b"}, nil, nil); f.Ext["addTopicCount"] != "2" || perm() != 6 {
			t.Errorf("added: %v, perm %d", f.Ext, perm())
		}
		if f := w.me.call(mq.CodeWipeWritePerm, map[string]string{"brokerName": "x"}, nil, nil); f.Ext["wipeTopicCount"] != "0" {
			t.Errorf("unknown broker: %v", f.Ext)
		}
		w.me.call(mq.CodeWipeWritePerm, map[string]string{"brokerName": "b"}, nil, nil)
		b.register(reg{broker: "b", addr: "h:1", count: 2})
		if perm() != 6 {
			t.Errorf("after a registration of another state: perm %d, want 6", perm())
		}
	})
}

func TestFormsOfRegistration(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b, old := w.peer(mq.Version), w.peer(mq.VersionRegisterBody-1)
		defer b.close()
		defer old.close()
		r := reg{broker: "b", addr: "h:1", more: map[string]string{"compressed": "true"}}
		packed := r.body().EncodeCompressed()
		b.call(mq.CodeRegisterBroker, r.ext(packed), packed, nil)
		w.want("T", "b/0=h:1")

		table := mq.Marshal(reg{}.body().Config)
		before := reg{broker: "old", addr: "h:2"}
		old.call(mq.CodeRegisterBroker, before.ext(table), table, nil)
		w.want("T", "b/0=h:1 old/0=h:2")

		plain := mq.Marshal(r.body())
		bad := reg{broker: "b", addr: "h:1", more: map[string]string{"bodyCrc32": mq.Itoa(int64(crc32.ChecksumIEEE(plain)&math.MaxInt32) ^ 1)}}
		b.refused(mq.CodeRegisterBroker, bad.ext(plain), plain, mq.SystemError, "crc32 not match")
		bad.more = map[string]string{"compressed": "true"}
		b.refused(mq.CodeRegisterBroker, bad.ext(plain), plain, mq.SystemError, "compressed")
		bad.more = nil
		b.refused(mq.CodeRegisterBroker, bad.ext([]byte("{")), []byte("{"), mq.SystemError, "malformed")

		// Without topics a broker is known all the same.
		none := reg{broker: "none", addr: "h:3", more: map[string]string{"bodyCrc32": "0"}}
		b.call(mq.CodeRegisterBroker, none.ext(nil), nil, nil)
		var info mq.ClusterInfo
		w.me.call(mq.CodeClusterInfo, nil, nil, &info)
		if got := info.Brokers["none"].BrokerAddrs[0]; got != "h:3" {
			t.Errorf("broker without topics: got %q", got)
		}
		if got := info.Clusters["c"]; !reflect.DeepEqual(got, []string{"b", "none", "old"}) {
			t.Errorf("cluster: got %v", got)
		}
	})
}

// One address with a comma in it would break the Go client's reading of a route, for everybody.
func TestRegistrationsThatWouldHarmClientsAreRefused(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b := w.peer(mq.Version)
		defer b.close()
		body := mq.Marshal(reg{}.body())
		for _, r := range []reg{
			{broker: "b", addr: "h:1,x"}, {broker: "b", addr: `h"`}, {broker: "b", addr: ""}, {broker: "", addr: "h:1"}, {broker: "b\n", addr: "h:1"},
			{broker: strings.Repeat("b", 256), addr: "h:1"}, {broker: "b", addr: "h:1", more: map[string]string{"clusterName": "{}"}},
		} {
			f := b.try(mq.CodeRegisterBroker, r.ext(body), body)
			if f.Code != mq.SystemError || f.Remark == "" {
				t.Errorf("%+v: got code %d %q", r, f.Code, f.Remark)
			}
		}
		long := reg{broker: "b", addr: "h:1", topics: []string{strings.Repeat("t", 256), "T"}}
		body = mq.Marshal(long.body())
		b.refused(mq.CodeRegisterBroker, long.ext(body), body, mq.SystemError, "name of 256 bytes")
		b.register(reg{broker: "b", addr: "h:1"})
		other := reg{broker: "b", addr: "h:2", more: map[string]string{"clusterName": "d"}}
		body = mq.Marshal(other.body())
		b.refused(mq.CodeRegisterBroker, other.ext(body), body, mq.SystemError, "in use")
		w.want("T", "b/0=h:1")
	})
}

func TestUnregisterGoesByAddress(t *testing.T) {
	run(t, Config{}, func(w *world) {
		a, b := w.peer(mq.Version), w.peer(mq.Version)
		defer a.close()
		defer b.close()
		a.register(reg{broker: "b", id: 0, addr: "h:1", term: 1})
		b.register(reg{broker: "b", id: 0, addr: "h:2", term: 2})
		// The old leader stops and names the id that it had: the new one stays.
		a.call(mq.CodeUnregisterBroker, map[string]string{"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}, nil, nil)
		w.want("T", "b/0=h:2")
		b.call(mq.CodeUnregisterBroker, map[string]string{"brokerName": "b", "brokerAddr": "h:2", "clusterName": "c", "brokerId": "7"}, nil, nil)
		w.want("T", "")
	})
}

func TestLists(t *testing.T) {
	run(t, Config{}, func(w *world) {
		a, b := w.peer(mq.Version), w.peer(mq.Version)
		defer a.close()
		defer b.close()
		a.register(reg{broker: "a", addr: "h:1"})
		unit := reg{broker: "b", addr: "h:2", topics: []string{"V", "W", "X"}, more: map[string]string{"clusterName": "d"}}
		body := unit.body()
		for name, flag := range map[string]int32{"V": flagUnit, "W": flagUnitSub, "X": flagUnit | flagUnitSub} {
			c := body.Config.Topics[name]
			c.TopicSysFlag = flag
			body.Config.Topics[name] = c
		}
		raw := mq.Marshal(body)
		b.call(mq.CodeRegisterBroker, unit.ext(raw), raw, nil)
		list := func(code int32, ext map[string]string) string {
			var l mq.TopicList
			w.me.call(code, ext, nil, &l)
			return strings.TrimSpace(strings.Join(l.Topics, " ") + " " + l.BrokerAddr)
		}
		for _, c := range []struct {
			code int32
			ext  map[string]string
			want string
		}{
			{mq.CodeAllTopics, nil, "T U V W X"},
			{mq.CodeTopicsByCluster, map[string]string{"cluster": "c"}, "T U"},
			{mq.CodeTopicsByCluster, map[string]string{"cluster": "x"}, ""},
			{mq.CodeSystemTopics, nil, "c a d b h:1"},
			{mq.CodeUnitTopics, nil, "V X"},
			{mq.CodeUnitSubTopics, nil, "W X"},
			{mq.CodeUnitSubOnlyTopics, nil, "W"},
		} {
			if got := list(c.code, c.ext); got != c.want {
				t.Errorf("request %d: got %q, want %q", c.code, got, c.want)
			}
		}
		var m mq.BrokerMembers
		w.me.call(mq.CodeBrokerMembers, map[string]string{"clusterName": "c", "brokerName": "a"}, nil, &m)
		if m.Group.BrokerName != "a" || m.Group.BrokerAddrs[0] != "h:1" {
			t.Errorf("members: got %+v", m)
		}
		w.me.call(mq.CodeUpdateNamesrvConfig, nil, []byte("enableAllTopicList=false\nenableTopicList=false\n"), nil)
		for _, code := range []int32{mq.CodeAllTopics, mq.CodeSystemTopics, mq.CodeUnitTopics} {
			w.me.refused(code, nil, nil, mq.SystemError, "disable")
		}
	})
}

func TestTopicsWithoutABroker(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b := w.peer(mq.Version)
		defer b.close()
		b.register(reg{broker: "b", addr: "h:1"})
		put := func(brokers ...string) {
			var route mq.TopicRouteData
			for _, name := range brokers {
				route.QueueDatas = append(route.QueueDatas, mq.QueueData{BrokerName: name, Perm: 6, ReadQueueNums: 2, WriteQueueNums: 2})
			}
			w.me.call(mq.CodeRegisterTopicRoute, map[string]string{"topic": "N"}, mq.Marshal(route), nil)
		}
		put("b", "unknown")
		w.want("N", "")
		put("b")
		w.want("N", "b/0=h:1")
		w.me.call(mq.CodeDeleteTopicRoute, map[string]string{"topic": "N", "clusterName": "x"}, nil, nil)
		w.want("N", "b/0=h:1")
		w.me.call(mq.CodeDeleteTopicRoute, map[string]string{"topic": "N", "clusterName": "c"}, nil, nil)
		w.want("N", "")
		w.me.call(mq.CodeDeleteTopicRoute, map[string]string{"topic": "T"}, nil, nil)
		w.want("T", "")
		w.want("U", "b/0=h:1")
	})
}

func TestWaitsForBrokersWhenConfigured(t *testing.T) {
	run(t, Config{WaitForService: 45 * time.Second}, func(w *world) {
		b := w.peer(mq.Version)
		defer b.close()
		b.register(reg{broker: "b", addr: "h:1"})
		time.Sleep(44 * time.Second)
		w.me.refused(mq.CodeRoute, map[string]string{"topic": "T"}, nil, mq.SystemError, "not ready")
		time.Sleep(2 * time.Second)
		w.want("T", "b/0=h:1")
	})
}

func TestKeyValueConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "kvConfig.json")
	kv := func(key string) map[string]string {
		return map[string]string{"namespace": orderNamespace, "key": key, "value": "b:4"}
	}
	run(t, Config{KVFile: file}, func(w *world) {
		w.me.refused(mq.CodeGetKV, kv("T"), nil, mq.QueryNotFound, "T")
		w.me.refused(mq.CodeListKV, kv(""), nil, mq.QueryNotFound, orderNamespace)
		w.me.call(mq.CodeDeleteKV, kv("T"), nil, nil)
		w.me.call(mq.CodePutKV, kv("T"), nil, nil)
		w.me.call(mq.CodePutKV, kv("U"), nil, nil)
		w.me.call(mq.CodeDeleteKV, kv("U"), nil, nil)
		if f := w.me.call(mq.CodeGetKV, kv("T"), nil, nil); f.Ext["value"] != "b:4" {
			t.Errorf("value: got %v", f.Ext)
		}
	})
	if b, err := os.ReadFile(file); err != nil || string(b) != `{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"}}}` {
		t.Errorf("file: %s, %v", b, err)
	}
	if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
		t.Errorf("files left behind: %v, %v", files, err)
	}
	run(t, Config{KVFile: file, OrderMessages: true}, func(w *world) {
		var table mq.KVTable
		w.me.call(mq.CodeListKV, kv(""), nil, &table)
		if !maps.Equal(table.Table, map[string]string{"T": "b:4"}) {
			t.Errorf("after a restart: got %v", table)
		}
		b := w.peer(mq.Version)
		defer b.close()
		table = mq.KVTable{}
		if err := mq.Unmarshal(b.register(reg{broker: "b", addr: "h:1"}).Body, &table); err != nil || table.Table["T"] != "b:4" {
			t.Errorf("order configuration for a broker: %v, %v", table, err)
		}
		var route mq.TopicRouteData
		w.me.call(mq.CodeRoute, map[string]string{"topic": "T"}, nil, &route)
		if route.OrderTopicConf != "b:4" {
			t.Errorf("order configuration in the route: got %q", route.OrderTopicConf)
		}
		w.me.call(mq.CodeUpdateNamesrvConfig, nil, []byte("returnOrderTopicConfigToBroker = false"), nil)
		if f := b.register(reg{broker: "b", addr: "h:1"}); len(f.Body) != 0 {
			t.Errorf("order configuration that is to be kept: %s", f.Body)
		}
	})
}

// What cannot be kept is not said to be kept.
func TestKeyValueConfigurationThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kv")
	if err := os.WriteFile(file, []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Config{Listener: newMemListener(), KVFile: file}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a garbled file: got %v, want an error that names it", err)
	}
	ext := map[string]string{"namespace": "n", "key": "k", "value": "v"}
	run(t, Config{KVFile: filepath.Join(t.TempDir(), "d", "kv")}, func(w *world) {
		w.s.kv.file = filepath.Join(file, "below", "kv") // a path through a file
		w.me.refused(mq.CodePutKV, ext, nil, mq.SystemError, "key-value configuration")
		w.me.refused(mq.CodeGetKV, ext, nil, mq.QueryNotFound, "")
	})
}

func TestKeyValueConfigurationHasBounds(t *testing.T) {
	kv, err := openKV(vfs.OS(), "")
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("v", kvBytesMax/2)
	if err := kv.change("n", "a", &big); err != nil {
		t.Fatal(err)
	}
	if err := kv.change("n", "b", &big); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("got %v, want that it is full", err)
	}
	if _, ok := kv.get("n", "b"); ok {
		t.Error("refused, but there")
	}
	small := "v"
	if err := kv.change("n", "a", &small); err != nil { // replacing gives its room back
		t.Fatal(err)
	}
	if err := kv.change("n", "b", &big); err != nil {
		t.Error(err)
	}
}

func TestConfiguration(t *testing.T) {
	run(t, Config{}, func(w *world) {
		lines := func() string { return string(w.me.call(mq.CodeGetNamesrvConfig, nil, nil, nil).Body) }
		if got := lines(); !strings.Contains(got, "listenPort=9876\n") || !strings.Contains(got, "orderMessageEnable=false\n") {
			t.Errorf("got %q", got)
		}
		w.me.call(mq.CodeUpdateNamesrvConfig, nil, []byte("# comment\norderMessageEnable=true\nneedWaitForService=true\nwaitSecondsForService=7\n"), nil)
		if got := lines(); !strings.Contains(got, "orderMessageEnable=true\n") || !strings.Contains(got, "waitSecondsForService=7\n") {
			t.Errorf("after a change: got %q", got)
		}
		for body, want := range map[string]int32{
			"kvConfigPath=/etc/passwd":                          mq.NoPermission,
			"configStorePath=/x":                                mq.NoPermission,
			"rocketmqHome=/x":                                   mq.NoPermission,
			"orderMessageEnable=false\nlistenPort=1":            mq.NoPermission,
			"unheardOf=1":                                       mq.NoPermission,
			"orderMessageEnable=perhaps":                        mq.InvalidParameter,
			"needWaitForService=true\nwaitSecondsForService=-1": mq.InvalidParameter,
			"nonsense": mq.InvalidParameter,
			"":         mq.InvalidParameter,
		} {
			w.me.refused(mq.CodeUpdateNamesrvConfig, nil, []byte(body), want, "")
		}
		if got := lines(); !strings.Contains(got, "orderMessageEnable=true\n") {
			t.Errorf("a refused change was made: got %q", got)
		}
	})
}

// TestCertificatesThatAreNotCheckedAreWarnedOf: test mode is on unless it is switched off, and checks none.
func TestCertificatesThatAreNotCheckedAreWarnedOf(t *testing.T) {
	for test, want := range map[string]bool{"true": true, "false": false} {
		cfg, _, err := FromProperties(map[string]string{"tls.server.authClient": "true", "tls.test.mode.enable": test, "tls.server.mode": "disabled"})
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		cfg.Address, cfg.Logger = "127.0.0.1:0", slog.New(slog.NewTextHandler(&log, nil))
		s, err := Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(log.String(), "tls.server.authClient"); got != want {
			t.Errorf("test mode %s: warned %v, want %v: %s", test, got, want, log.String())
		}
	}
}

func TestFromProperties(t *testing.T) {
	cfg, warnings, err := FromProperties(map[string]string{
		"listenPort": "9877", "bindAddress": "127.0.0.1", "kvConfigPath": "/d/kv.json", "enableTopicList": "false", "scanNotActiveBrokerInterval": "5000",
		"needWaitForService": "true", "waitSecondsForService": "3", "serverWorkerThreads": "8", "supportActingMaster": "true", "zzz": "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Address != "127.0.0.1:9877" || cfg.KVFile != "/d/kv.json" || !cfg.HideTopicLists || cfg.HideAllTopics || cfg.ScanInterval != 5*time.Second || cfg.WaitForService != 3*time.Second {
		t.Errorf("got %+v", cfg)
	}
	if want := []string{"serverWorkerThreads", "supportActingMaster", "zzz"}; !reflect.DeepEqual(warnings, want) {
		t.Errorf("warnings: got %v, want %v", warnings, want)
	}
	for k, v := range map[string]string{"listenPort": "70000", "enableTopicList": "x", "scanNotActiveBrokerInterval": "0", "needWaitForService": "2"} {
		if _, _, err := FromProperties(map[string]string{k: v}); err == nil || !strings.Contains(err.Error(), k) {
			t.Errorf("%s=%s: got %v, want an error that names the key", k, v, err)
		}
	}
}

// Every request without one of its required fields is answered with 1 and the field's name; the connection stays.
func TestMissingFields(t *testing.T) {
	run(t, Config{}, func(w *world) {
		b := []string{"brokerName", "brokerAddr", "clusterName", "brokerId"}
		for code, fields := range map[int32][]string{
			mq.CodeRoute: {"topic"}, mq.CodeRegisterBroker: append(b, "haServerAddr"), mq.CodeUnregisterBroker: b, mq.CodeQueryDataVersion: b,
			mq.CodeBrokerHeartbeat: b[:3], mq.CodeBrokerMembers: {"clusterName", "brokerName"}, mq.CodeTopicsByCluster: {"cluster"},
			mq.CodePutKV: {"namespace", "key", "value"}, mq.CodeGetKV: {"namespace", "key"}, mq.CodeDeleteKV: {"namespace", "key"}, mq.CodeListKV: {"namespace"},
			mq.CodeWipeWritePerm: {"brokerName"}, mq.CodeAddWritePerm: {"brokerName"}, mq.CodeDeleteTopicRoute: {"topic"}, mq.CodeRegisterTopicRoute: {"topic"},
		} {
			for _, missing := range fields {
				ext := map[string]string{"surplus": "x"}
				for _, f := range fields {
					ext[f] = "1"
				}
				delete(ext, missing)
				w.me.refused(code, ext, nil, mq.SystemError, missing+": missing")
			}
		}
		w.me.refused(mq.CodeUnregisterBroker, map[string]string{"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "x"}, nil, mq.SystemError, `brokerId: "x" is no number`)
		for _, body := range []string{"", "{", "[]"} {
			w.me.refused(mq.CodeQueryDataVersion, map[string]string{"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "0"}, []byte(body), mq.SystemError, "malformed")
			w.me.refused(mq.CodeRegisterTopicRoute, map[string]string{"topic": "t"}, []byte(body), mq.SystemError, "malformed")
		}
		for _, code := range []int32{0, 1, 10, 34, 1001, 1005, 50000, -5} {
			w.me.refused(code, nil, nil, mq.NotSupported, "not supported")
		}
	})
}

func TestListenOnARealPort(t *testing.T) {
	s, err := Listen(Config{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Config{Address: s.Addr().String()}); err == nil {
		t.Error("two servers on one port")
	}
	c := remoting.NewClient(remoting.ClientConfig{Version: mq.Version})
	f, err := c.Call(t.Context(), s.Addr().String(), remoting.Request{Code: mq.CodeAllTopics}, 5*time.Second)
	if err != nil || string(f.Body) != `{"topicList":[]}` {
		t.Errorf("got %v, %v", f, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// Clients ask for routes as often as they like. What brokers and tools ask now and then, and what nobody should ask, is counted: connections on which there is much of it are read from slowly.
func TestOnlyRoutesAreAskedForWithoutEnd(t *testing.T) {
	run(t, Config{}, func(w *world) {
		for code, vain := range map[int32]uint64{mq.CodeRoute: 0, mq.CodeQueryDataVersion: 1, mq.CodeBrokerHeartbeat: 1, mq.CodeClusterInfo: 1, 12345: 1} {
			before := w.s.net.Stats().Vain
			w.me.try(code, map[string]string{"topic": "t"}, nil)
			if got := w.s.net.Stats().Vain - before; got != vain {
				t.Errorf("request %d counts %d times, want %d", code, got, vain)
			}
		}
	})
}
