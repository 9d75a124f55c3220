package namesrv

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

func registerIn(t *routes, broker string, id int64, addr string, term int64, conn *remoting.Conn, now time.Time, topics ...string) error {
	r := reg{broker: broker, term: term, topics: topics}
	_, err := t.register(&registration{replica: replica{"c", broker, addr}, id: id, silence: 10 * time.Second, body: r.body(), conn: conn}, now)
	return err
}

// What registrations can make it hold ends somewhere, with an answer that says so; who is known already goes on.
func TestRoutesHaveBounds(t *testing.T) {
	r := newRoutes(slog.New(slog.DiscardHandler))
	r.replicasMax, r.queuesMax = 3, 7
	now := time.Now()
	for i := range 3 {
		if err := registerIn(r, fmt.Sprint("b", i), 0, fmt.Sprint("h:", i), 1, nil, now, "T", "U"); err != nil {
			t.Fatal(err)
		}
	}
	if err := registerIn(r, "b3", 0, "h:3", 1, nil, now, "T", "U"); err == nil || !strings.Contains(err.Error(), "3 brokers") {
		t.Errorf("a replica too many: %v", err)
	}
	if err := registerIn(r, "b2", 0, "h:2", 2, nil, now, "T", "U"); err != nil {
		t.Errorf("a replica that is known: %v", err)
	}
	if err := registerIn(r, "b2", 0, "h:2", 3, nil, now, "T", "U", "V", "W"); err == nil || !strings.Contains(err.Error(), "7 topics") {
		t.Errorf("topics too many: %v", err)
	}
	if err := r.addTopic("X", []mq.QueueData{{BrokerName: "b0"}}); err == nil {
		t.Error("a topic too many without registration")
	}
	r.unregister(replica{"c", "b2", "h:2"})
	if err := registerIn(r, "b3", 0, "h:3", 1, nil, now, "T", "U", "V"); err != nil {
		t.Errorf("room was given back, but: %v", err)
	}
}

// check holds routes to the sentences above the type.
func (t *routes) check(fail func(format string, args ...any)) {
	at := map[replica]bool{}
	for name, b := range t.brokers {
		if len(b.BrokerAddrs) == 0 || !t.clusters[b.Cluster][name] {
			fail("2: broker %s: addresses %v, clusters %v", name, b.BrokerAddrs, t.clusters)
		}
		for id, addr := range b.BrokerAddrs {
			r := replica{b.Cluster, name, addr}
			if at[r] {
				fail("4: %v stands twice", r)
			}
			at[r] = true
			if l := t.lives[r]; l == nil || l.id != id {
				fail("1: %v is %d and %+v", r, id, l)
			}
		}
	}
	for r := range t.lives {
		if !at[r] {
			fail("1: %v lives but has no id", r)
		}
	}
	names, queues := 0, 0
	for cluster, brokers := range t.clusters {
		names += len(brokers)
		if len(brokers) == 0 {
			fail("cluster %s is empty", cluster)
		}
	}
	if names != len(t.brokers) {
		fail("clusters %v, brokers %v", t.clusters, t.brokers)
	}
	for topic, on := range t.topics {
		queues += len(on)
		if len(on) == 0 {
			fail("3: topic %s has no queues", topic)
		}
		for name := range on {
			if t.brokers[name] == nil {
				fail("3: topic %s is on %s, which is unknown", topic, name)
			}
		}
		route, ok := t.route(topic)
		if !ok || len(route.BrokerDatas) != len(on) {
			fail("route of %s: %+v", topic, route)
		}
		for _, b := range route.BrokerDatas {
			some := false // replica of ours among them
			for _, addr := range t.brokers[b.BrokerName].BrokerAddrs {
				some = some || t.lives[replica{b.Cluster, b.BrokerName, addr}].version.StateVersion > 0
			}
			if some && b.BrokerAddrs[leaderID] == "" {
				fail("route of %s lacks a leader: %v", topic, b.BrokerAddrs)
			}
		}
	}
	if queues != t.queues {
		fail("%d queues are counted, %d are there", t.queues, queues)
	}
}

// Whatever happens in whatever order, the tables agree with each other.
func TestRoutesAgreeWithThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRoutes(slog.New(slog.DiscardHandler))
		r.replicasMax, r.queuesMax = 5, 9
		conns := []*remoting.Conn{{}, {}, {}}
		now := time.Unix(0, 0)
		name := rapid.SampledFrom([]string{"a", "b", "d"})
		addr := rapid.SampledFrom([]string{"h:1", "h:2", "h:3", "h:4"})
		topics := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"T", "U", "V", "W"}), 0, 4, rapid.ID[string])
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				reg := reg{term: rapid.Int64Range(0, 3).Draw(t, "term"), topics: topics.Draw(t, "topics")}
				one := &registration{replica: replica{rapid.SampledFrom([]string{"c", "d"}).Draw(t, "cluster"), name.Draw(t, "broker"), addr.Draw(t, "addr")},
					id: rapid.Int64Range(0, 2).Draw(t, "id"), silence: 10 * time.Second, body: reg.body(), conn: rapid.SampledFrom(conns).Draw(t, "conn"),
					deleteAbsent: rapid.Bool().Draw(t, "deleteAbsent")}
				if rapid.Bool().Draw(t, "knows acting") {
					acting := rapid.Bool().Draw(t, "acting")
					one.acting = &acting
				}
				_, err := r.register(one, now) // a refusal is as good as an acceptance here
				if err != nil && err.Error() == "" {
					t.Fatal("refused without a word")
				}
			},
			"unregister": func(t *rapid.T) { r.unregister(replica{"c", name.Draw(t, "broker"), addr.Draw(t, "addr")}) },
			"lose":       func(t *rapid.T) { r.dropConn(rapid.SampledFrom(conns).Draw(t, "conn"), "test") },
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, 8).Draw(t, "seconds")) * time.Second)
				r.expire(now)
			},
			"refresh": func(t *rapid.T) { r.refresh(replica{"c", name.Draw(t, "broker"), addr.Draw(t, "addr")}, now) },
			"delete":  func(t *rapid.T) { r.deleteTopic(rapid.SampledFrom([]string{"T", "U"}).Draw(t, "topic"), "") },
			"add": func(t *rapid.T) {
				if err := r.addTopic("N", []mq.QueueData{{BrokerName: name.Draw(t, "broker")}}); err != nil && r.queues < 9 {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) { r.check(t.Fatalf) },
		})
	})
}
