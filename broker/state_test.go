package broker

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// randomRecord gives any record but a full copy.
func randomRecord(r *rand.Rand) record {
	name := func(stem string) string { return fmt.Sprintf("%s%d", stem, r.IntN(20)) }
	queues := func() map[int32]int64 {
		m := map[int32]int64{}
		for range 1 + r.IntN(4) {
			m[r.Int32N(8)] = r.Int64N(1000)
		}
		return m
	}
	rec := record{At: r.Int64N(1 << 40), Term: r.Int64N(5), Absent: r.IntN(3) == 0}
	switch r.IntN(9) {
	case 0:
		rec.Leader = &leaderRecord{ID: name("n"), Address: name("address")}
	case 1:
		t := name("t")
		rec.Topics = map[string]mq.TopicConfig{t: mq.NewTopicConfig(t, r.Int32N(8), 6)}
	case 2:
		rec.NoTopics = []string{name("t")}
	case 3:
		g := name("g")
		rec.Groups = map[string]mq.SubscriptionGroupConfig{g: mq.DefaultGroup(g)}
	case 4:
		rec.NoGroups = []string{name("g")}
	case 5:
		rec.Offsets = map[string]map[int32]int64{offsetKey(name("t"), name("g")): queues()}
	case 6:
		rec.Resets = map[string]map[int32]int64{offsetKey(name("t"), name("g")): queues()}
		if r.IntN(2) == 0 {
			rec.Resets[offsetKey(name("t"), name("g"))] = map[int32]int64{r.Int32N(8): -1}
		}
	case 7:
		l := &lockRecord{Group: name("g"), Client: name("c"), Queues: []lockQueue{{name("t"), r.Int32N(4)}, {name("t"), r.Int32N(4)}}}
		if r.IntN(3) == 0 {
			rec.Unlock = l
		} else {
			rec.Lock = l
		}
	case 8:
		rec.Progress = map[string]json.RawMessage{name("service"): json.RawMessage(fmt.Sprint(r.IntN(100)))}
	}
	return rec
}

// A replica that has all records, one that begins at a full copy, and one that restarts from its file in between, come to the same.
func TestFullCopyAndFileStandForAllRecordsBefore(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	cfg := NewConfig()
	cfg.Name, cfg.Log.FS, cfg.Log.Dir = "a", vfs.NewMem(), "/d"
	fresh := func() state { return newState(&cfg) }
	b := &Broker{cfg: cfg, log: slog.New(slog.DiscardHandler)}
	for round := range 10 {
		all := fresh()
		pos := int64(0)
		apply := func(rec record, to ...*state) {
			pos += 100
			text, err := json.Marshal(&rec)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range to {
				var read record
				if err := json.Unmarshal(text, &read); err != nil {
					t.Fatal(err)
				}
				s.apply(&read, pos, fresh)
			}
		}
		for range 200 {
			apply(randomRecord(r), &all)
		}
		late := fresh()
		m := &meta{b: b, state: all, saved: -1}
		for _, rec := range m.fullOf(&all, nil) {
			apply(rec, &late, &m.state)
		}
		if err := m.save(); err != nil {
			t.Fatal(err)
		}
		again := &meta{b: b, saved: -1}
		if err := again.load(); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			apply(randomRecord(r), &late, &m.state, &again.state)
		}
		for what, s := range map[string]*state{"from a full copy": &late, "from the file": &again.state} {
			if !reflect.DeepEqual(plain(s), plain(&m.state)) {
				t.Fatalf("seed %d, round %d: %s\n%+v\nwant\n%+v", seed, round, what, plain(s), plain(&m.state))
			}
		}
	}
}

// plain is a state without what is the same when it is empty and when it is not there.
func plain(s *state) map[string]any {
	return map[string]any{"pos": s.Pos, "term": s.Term, "full": s.FullPos, "replicas": s.Replicas, "topics": s.Topics, "groups": s.Groups, "offsets": s.Offsets,
		"resets": s.Resets, "locks": s.lockRecordsSorted(), "progress": s.Progress, "versions": s.Versions}
}

func (s *state) lockRecordsSorted() map[string]string {
	out := map[string]string{}
	for group, queues := range s.Locks {
		for q, l := range queues {
			out[fmt.Sprint(group, q)] = fmt.Sprint(l)
		}
	}
	return out
}

// Replicas whose settings differ, as while they are changed one by one, come to the same state but for topics of the system: by the same records, and by a full copy.
func TestStateDoesNotDependOnSettings(t *testing.T) {
	plain, other := NewConfig(), NewConfig()
	other.TraceTopic, other.TraceTopicName, other.AutoCreateTopic = true, "t0", !plain.AutoCreateTopic
	r := rand.New(rand.NewPCG(1, 2))
	a, b := newState(&plain), newState(&other)
	both := func(recs []record, pos int64) {
		for i := range recs {
			text, err := json.Marshal(recs[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, side := range []struct {
				s   *state
				cfg *Config
			}{{&a, &plain}, {&b, &other}} {
				var rec record
				if err := json.Unmarshal(text, &rec); err != nil {
					t.Fatal(err)
				}
				side.s.apply(&rec, pos+int64(i), func() state { return newState(side.cfg) })
			}
		}
	}
	same := func(when int) {
		t.Helper()
		x, y := a, b
		x.Topics, y.Topics = nil, nil
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("after %d records:\n%+v\n%+v", when, x, y)
		}
	}
	for i := range 3000 {
		rec := randomRecord(r)
		rec.At = int64(i) * 100
		both([]record{rec}, int64(i)*1000)
		same(i + 1)
		if i%50 == 49 {
			m := &meta{}
			both(m.fullOf(&a, a.Floors), int64(i)*1000+1)
			same(i + 1)
		}
	}
}

// TestDefaultsComeOnlyWhereNothingIs: such a record changes nothing that is there. The version of topics moves all the same, as their number may differ between replicas.
func TestDefaultsComeOnlyWhereNothingIs(t *testing.T) {
	cfg := NewConfig()
	cfg.Name = "a"
	fresh := func() state { return newState(&cfg) }
	s := fresh()
	for i, queues := range []int32{4, 8, 16} {
		g := mq.DefaultGroup("g")
		g.RetryQueueNums = queues
		s.apply(&record{Absent: i > 0, Topics: map[string]mq.TopicConfig{"t": mq.NewTopicConfig("t", queues, 6)}, Groups: map[string]mq.SubscriptionGroupConfig{"g": g}}, int64(i), fresh)
	}
	if s.Topics["t"].WriteQueueNums != 4 || s.Groups["g"].RetryQueueNums != 4 || s.Versions[tableTopics].Counter != 3 || s.Versions[tableGroups].Counter != 1 {
		t.Errorf("%+v, %+v, versions %v", s.Topics["t"], s.Groups["g"], s.Versions)
	}
	s.apply(&record{NoTopics: []string{"t"}}, 3, fresh)
	s.apply(&record{Absent: true, Topics: map[string]mq.TopicConfig{"t": mq.NewTopicConfig("t", 2, 6)}}, 4, fresh)
	if s.Topics["t"].WriteQueueNums != 2 {
		t.Errorf("after it was deleted: %+v", s.Topics["t"])
	}
}

// A large table is cut so that each record fits into an entry.
func TestPartsOfAFullCopyFitIntoEntries(t *testing.T) {
	cfg := NewConfig()
	cfg.Name = "a"
	s := newState(&cfg)
	for i := range 3000 {
		queues := map[int32]int64{}
		for q := range int32(100) {
			queues[q] = 1<<50 + int64(q)
		}
		s.Offsets[offsetKey(fmt.Sprintf("%0120d", i), fmt.Sprintf("%0200d", i))] = queues
		name := fmt.Sprintf("%0127d", i)
		s.Topics[name] = mq.NewTopicConfig(name, 8, 6)
	}
	m := &meta{b: &Broker{cfg: cfg, log: slog.New(slog.DiscardHandler)}, state: s}
	for i, rec := range m.fullOf(&s, nil) {
		text, err := json.Marshal(&rec)
		if err != nil || len(text) > 3<<20 {
			t.Errorf("part %d: %d bytes, %v", i, len(text), err)
		}
	}
}

func TestFilesOfAJavaBrokerAreAdopted(t *testing.T) {
	cfg := NewConfig()
	cfg.Name, cfg.Log.FS, cfg.Log.Dir = "a", vfs.NewMem(), "/d"
	dir := filepath.Join(cfg.Log.Dir, "config")
	if err := cfg.Log.FS.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		fileTopics:  `{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{"orders":{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,"writeQueueNums":4}}}`,
		fileGroups:  `{"dataVersion":{"counter":3,"timestamp":1700000000000},"forbiddenTable":{},"subscriptionGroupTable":{"g":{"consumeEnable":true,"groupName":"g","retryMaxTimes":5,"retryQueueNums":1}}}`,
		fileOffsets: `{"dataVersion":{"counter":1},"offsetTable":{"orders@g":{0:5,1:6},"%RETRY%g@g":{0:0}}}`,
	} {
		if err := vfs.Replace(cfg.Log.FS, filepath.Join(dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := openMeta(&Broker{cfg: cfg, log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.state.Topics["orders"]; got.ReadQueueNums != 8 || got.WriteQueueNums != 4 {
		t.Errorf("topic %+v", got)
	}
	if got := m.state.Groups["g"]; got.RetryMaxTimes != 5 || !got.ConsumeEnable {
		t.Errorf("group %+v", got)
	}
	if got, ok := m.offset("orders@g", 1); !ok || got != 6 {
		t.Errorf("offset %d, %v", got, ok)
	}
	if got := m.version(tableTopics); got.Counter != 7 {
		t.Errorf("version %+v", got)
	}
}

// Bounds are kept, each with an answer of its own.
func TestFloodsAreHeldByBounds(t *testing.T) {
	setup := func(cfg *Config) { cfg.PullHeldMax, cfg.ConnsMax = 3, 5 }
	inCluster(t, 1, setup, func(c *cluster) {
		t := c.T
		n := c.leader()
		b := c.brokers[n]
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		answers := make(chan string, 10)
		for range 4 {
			go func() {
				f := p.call(n, mq.CodePull, pullExt("g", "t", 0, 1, 10000), nil)
				answers <- fmt.Sprint(f.Code, " ", f.Remark)
			}()
		}
		if got := <-answers; got != "2 [OVERLOAD]3 pulls are held already, start flow control for a while" {
			t.Errorf("the fourth pull: %s", got)
		}
		for range 3 {
			<-answers
		}
		for i := range 8 { // one has a connection
			c.client(fmt.Sprintf("10.1.0.%d", i+2)).r.Call(t.Context(), c.address(n), remoting.Request{Code: mq.CodeMinOffset, Ext: ext("topic", "t", "queueId", 0)}, time.Second)
		}
		if s := b.server.Stats(); s.Conns != 5 || s.Rejected == 0 {
			t.Errorf("%d connections, %d refused", s.Conns, s.Rejected)
		}
	})
}
