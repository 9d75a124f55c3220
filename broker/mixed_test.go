package broker

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

func TestStateTakesWhatAJavaLeaderTells(t *testing.T) {
	topics := func(names ...string) map[string]mq.TopicConfig {
		m := map[string]mq.TopicConfig{}
		for _, n := range names {
			m[n] = mq.NewTopicConfig(n, 4, 6)
		}
		return m
	}
	offsets := func(pairs ...any) map[string]map[int32]int64 {
		m := map[string]map[int32]int64{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = map[int32]int64{0: int64(pairs[i+1].(int))}
		}
		return m
	}
	for _, c := range []struct {
		name         string
		have         tables
		tells, told  tables
		changes      bool
		want, absent string // "topic t", "t@g 5"
	}{
		{"what is new", tables{}, tables{Topics: topics("t"), Offsets: offsets("t@g", 5)}, tables{}, true, "topic t, t@g 5", ""},
		{"the same", tables{Topics: topics("t"), Offsets: offsets("t@g", 5)}, tables{Topics: topics("t"), Offsets: offsets("t@g", 5)}, tables{}, false, "topic t, t@g 5", ""},
		{"a smaller offset of one that begins to lead", tables{Offsets: offsets("t@g", 5)}, tables{Offsets: offsets("t@g", 3)}, tables{}, false, "t@g 5", ""},
		{"a topic that one that begins to lead does not know", tables{Topics: topics("t")}, tables{}, tables{}, false, "topic t", ""},
		{"an offset that it lowers", tables{Offsets: offsets("t@g", 5)}, tables{Offsets: offsets("t@g", 3)}, tables{Offsets: offsets("t@g", 5)}, true, "t@g 3", ""},
		{"what it deletes", tables{Topics: topics("t", "u"), Offsets: offsets("t@g", 5)}, tables{Topics: topics("u")}, tables{Topics: topics("t", "u"), Offsets: offsets("t@g", 5)}, true,
			"topic u", "topic t, t@g"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := NewConfig()
			cfg.Name = "a"
			s := newState(&cfg)
			s.take(&c.have, nil, 1)
			s.Taken = false
			if got := s.take(&c.tells, &c.told, 2); got != c.changes || s.Taken != c.changes {
				t.Errorf("changes something: %v, want %v", got, c.changes)
			}
			holds := func(what string) bool {
				if name, ok := strings.CutPrefix(what, "topic "); ok {
					_, known := s.Topics[name]
					return known
				}
				key, n, exact := strings.Cut(what, " ")
				got, known := s.Offsets[key][0]
				return known && (!exact || n == fmt.Sprint(got))
			}
			for what := range strings.SplitSeq(c.want, ", ") {
				if !holds(what) {
					t.Errorf("%s is missing: %v", what, s.Offsets)
				}
			}
			for what := range strings.SplitSeq(c.absent, ", ") {
				if what != "" && holds(what) {
					t.Errorf("%s is there", what)
				}
			}
			if _, known := s.Topics[mq.TopicSchedule]; !known {
				t.Error("a topic of the system is gone")
			}
		})
	}
}

// The files of a Java broker are taken over when it has written them after ours: also what it kept back in the time of records that are in the log.
func TestWhatAJavaBrokerLeavesIsTakenOver(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		leader := c.leader()
		p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("one"))
		p.must(leader, mq.CodePull, pullExt("g", "t", 0, 0, 0), nil)
		commit := func(offset int) {
			p.must(c.leader(), mq.CodeUpdateConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0, "commitOffset", offset), nil)
			time.Sleep(time.Second) // until it is in the log
		}
		offset := func() string {
			return p.must(c.leader(), mq.CodeQueryConsumerOffset, ext("consumerGroup", "g", "topic", "t", "queueId", 0), nil).Ext["offset"]
		}
		commit(1)
		// All stop; a Java group has the directories, and goes further than what the records tell.
		for _, id := range c.IDs() {
			if err := c.brokers[id].Close(); err != nil {
				t.Fatal(err)
			}
			delete(c.brokers, id)
			c.Stop(id)
			fs, dir := c.Disk(id).Mem(), "/"+id+"/broker/config/"
			own, err := vfs.ReadFile(fs, dir+fileOffsets)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(own), ownMark) || !strings.Contains(string(own), `"t@g":{"0":1}`) {
				t.Errorf("our own file: %s", own)
			}
			if err := vfs.Replace(fs, dir+fileOffsets, []byte(`{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1},"offsetTable":{"t@g":{0:7}}}`)); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range c.IDs() {
			c.Start(id)
		}
		for _, id := range c.IDs() {
			c.open(id)
		}
		if got := offset(); got != "7" {
			t.Errorf("offset %s, want the Java broker's 7", got)
		}
		// What comes then is newer than the files, on all replicas.
		commit(8)
		for _, id := range c.IDs() {
			b := c.brokers[id]
			c.Wait("the offset at "+id, func() bool { n, _ := b.meta.offset("t@g", 0); return n == 8 })
			if b.meta.waitsFor() {
				t.Errorf("%s would take the files once more", id)
			}
		}
	})
}

// stranger stands for a Java broker: it answers at the address of a member of the log that has no broker of ours.
type stranger struct {
	mu   sync.Mutex
	told []string // of what it was told: topics, groups, offsets
	busy int      // how many sends it refuses

	offsets string // that it was told, as they go into the table
}

func (s *stranger) handle(c *remoting.Conn, f *remoting.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := remoting.Answer{}
	body := ""
	switch f.Code {
	case mq.CodeGetBrokerConfig:
		body = "brokerRole=SYNC_MASTER\ndLegerSelfId=n2\n"
	case mq.CodeAllTopicConfig:
		body = `{"dataVersion":{"counter":1},"topicConfigTable":{"theirs":{"topicName":"theirs","readQueueNums":3,"writeQueueNums":3,"perm":6}}}`
	case mq.CodeAllGroupConfig:
		body = `{"dataVersion":{"counter":1},"subscriptionGroupTable":{"jg":{"groupName":"jg"}}}`
	case mq.CodeAllConsumerOffset:
		body = `{"offsetTable":{"theirs@jg":{0:8}` + s.offsets + `}}`
	case mq.CodeAllDelayOffset:
		body = `{"offsetTable":{1:4}}`
	case mq.CodeCreateTopic:
		s.told = append(s.told, "topic "+f.Ext["topic"])
	case mq.CodeCreateGroup:
		s.told = append(s.told, "a group")
	case mq.CodeUpdateConsumerOffset:
		s.offsets += fmt.Sprintf(`,"%s@%s":{%s:%s}`, f.Ext["topic"], f.Ext["consumerGroup"], f.Ext["queueId"], f.Ext["commitOffset"])
		s.told = append(s.told, f.Ext["topic"]+"@"+f.Ext["consumerGroup"]+" "+f.Ext["commitOffset"])
	case mq.CodeSend:
		if s.busy--; s.busy >= 0 {
			a.Code, a.Remark = mq.SystemBusy, "[REJECTREQUEST]system busy, start flow control for a while"
			break
		}
		a.Ext = map[string]string{"msgId": "M", "queueId": "0", "queueOffset": "5"}
	default:
		a.Code = mq.NotSupported
	}
	_ = c.Reply(f.Ref(), a, []byte(body)) // the connection has gone
}

// A member without a broker of ours leads: it is found by way of the name server, told what it lacks, copied from, and given requests; what it kept is
// everybody's under the next leader of ours.
func TestReplicasFollowAJavaLeader(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.Log.Compat = dledger.Compat03 }, func(c *cluster) {
		t := c.T
		if c.leader() == "n2" {
			if err := c.Member("n2").TransferLeadership(t.Context(), "n0"); err != nil {
				t.Fatal(err)
			}
			c.Wait("the transfer", func() bool { return c.brokers["n0"].Leads() })
		}
		if err := c.brokers["n2"].Close(); err != nil {
			t.Fatal(err)
		}
		delete(c.brokers, "n2")
		c.Stop("n2")
		c.Start("n2")
		java := &stranger{busy: 2}
		l, err := c.net.listen(c.address("n2"))
		if err != nil {
			t.Fatal(err)
		}
		server := remoting.NewServer(remoting.ServerConfig{Handler: remoting.HandlerFunc(java.handle)})
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		defer func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
			<-served
		}()
		p := c.client("10.1.0.1")
		body := mq.Marshal(mq.RegisterBody{FilterServers: []string{}, Config: mq.TopicConfigTable{Topics: map[string]mq.TopicConfig{}, MappingBody: map[string]string{}, MappingInfo: map[string]string{}}})
		if f, err := p.r.Call(t.Context(), testNames, remoting.Request{Code: mq.CodeRegisterBroker, Ext: ext("brokerName", "a", "brokerAddr", c.address("n2"), "clusterName", "DefaultCluster",
			"haServerAddr", c.address("n2"), "brokerId", 3)}, time.Second, body); err != nil || f.Code != mq.Success {
			t.Fatal(f, err)
		}
		leader := c.leader()
		p.must(leader, mq.CodeSend, sendExt("ours", 0), []byte("one"))
		p.must(leader, mq.CodeUpdateConsumerOffset, ext("consumerGroup", "og", "topic", "ours", "queueId", 0, "commitOffset", 1), nil)
		c.Wait("n2 to take leadership", func() bool { return c.Member(leader).TransferLeadership(t.Context(), "n2") == nil }) // its start may not be over
		f := p.must(c.IDs()[0], mq.CodeSend, sendExt("ours", 0), []byte("two"))
		if f.Ext["queueOffset"] != "5" {
			t.Errorf("answer %v, want the Java leader's", f.Ext)
		}
		has := func(what string) bool {
			java.mu.Lock()
			defer java.mu.Unlock()
			return strings.Contains(strings.Join(java.told, ", ")+",", what+",")
		}
		for _, what := range []string{"topic ours", "a group", "ours@og 1"} {
			c.Wait("the Java leader to be told of "+what, func() bool { return has(what) })
		}
		for id, b := range c.brokers {
			c.Wait("a copy at "+id, func() bool { n, _ := b.meta.offset("theirs@jg", 0); return n == 8 })
			if got := b.delayOffsets()[1]; got != 4 {
				t.Errorf("delay offset at %s: %d, want 4", id, got)
			}
		}
		if err := c.Member("n2").TransferLeadership(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
		c.Wait("one of ours to lead again", func() bool { return c.brokers["n1"].Leads() })
		for id, b := range c.brokers {
			c.Wait("a full copy at "+id, func() bool {
				b.meta.mu.RLock()
				defer b.meta.mu.RUnlock()
				return !b.meta.state.Taken && b.meta.state.Term > 1
			})
			for name, queues := range map[string]int32{"theirs": 3, "ours": 4} {
				if got, ok := b.meta.topicConfig(name); !ok || got.ReadQueueNums != queues {
					t.Errorf("topic %s at %s: %+v", name, id, got)
				}
			}
			if n, _ := b.meta.offset("ours@og", 0); n != 1 {
				t.Errorf("offset at %s: %d, want 1", id, n)
			}
		}
		if f := p.must("n0", mq.CodeSend, sendExt("ours", 0), []byte("three")); f.Ext["queueOffset"] != "1" {
			t.Errorf("answer %v, want that of the leader of ours", f.Ext)
		}
	})
}
