package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
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
