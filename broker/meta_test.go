package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// TestFloodOfChangesIsCarriedOut: more than the log takes at once, and one among them that it never takes, which harms no other.
func TestFloodOfChangesIsCarriedOut(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		p := c.client("10.1.0.1")
		p.must(n, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		var many strings.Builder
		for i := range 20000 {
			fmt.Fprintf(&many, `,{"groupName":"group%d"}`, i)
		}
		from := time.Now()
		var answers, locked atomic.Int64
		const locks = 12000
		for i := range locks {
			if i == locks/2 {
				if err := p.r.Go(c.address(n), remoting.Request{Code: mq.CodeCreateGroups}, time.Minute, func(f *remoting.Frame, err error) {
					if err != nil || f.Code != mq.InvalidParameter || !strings.Contains(f.Remark, "too large") || time.Since(from) > time.Second {
						c.T.Errorf("a record that is too large: %+v, %v after %v", f, err, time.Since(from))
					}
					answers.Add(1)
				}, []byte(`{"groupConfigList":[`+many.String()[1:]+`]}`)); err != nil {
					c.T.Fatal(err)
				}
			}
			body := fmt.Appendf(nil, `{"clientId":"a","consumerGroup":"g","mqSet":[{"brokerName":"a","queueId":%d,"topic":"t"}]}`, i)
			if err := p.r.Go(c.address(n), remoting.Request{Code: mq.CodeLockQueues}, time.Minute, func(f *remoting.Frame, err error) {
				if err == nil && f.Code == mq.Success && strings.Contains(string(f.Body), "queueId") {
					locked.Add(1)
				} else if err != nil || locked.Load() == 0 {
					c.T.Errorf("lock: %+v, %v", f, err)
				}
				answers.Add(1)
			}, body); err != nil {
				c.T.Fatal(err)
			}
		}
		c.Wait("all answers", func() bool { return answers.Load() == locks+1 })
		if locked.Load() != locks {
			c.T.Errorf("%d of %d locks", locked.Load(), locks)
		}
	})
}

// TestFullCopyIsTheState, in parts that the log has room for.
func TestFullCopyIsTheState(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		b := c.brokers[c.leader()]
		fresh := func() state { return newState(&b.cfg) }
		b.meta.mu.Lock()
		s := &b.meta.state
		for i := range 30000 {
			name := fmt.Sprint("topic", i)
			s.Topics[name] = mq.NewTopicConfig(name, 8, 6)
			s.lock(&lockRecord{Group: "g", Client: "client", Queues: []lockQueue{{name, 1}}}, int64(i+1))
			if i%10 == 0 {
				s.Groups[name] = mq.DefaultGroup(name)
			}
			if i%1000 == 0 {
				s.Offsets[name+"@g"] = map[int32]int64{}
				for q := range int32(20000) {
					s.Offsets[name+"@g"][q] = int64(q)
				}
			}
		}
		b.meta.mu.Unlock()
		copied := fresh()
		recs := b.meta.full()
		for i := range recs {
			text, err := json.Marshal(&recs[i])
			if err != nil {
				c.T.Fatal(err)
			}
			if len(text) > 3<<20 {
				c.T.Errorf("part %d of %d is %d bytes", i, len(recs), len(text))
			}
			var rec record
			if err := json.Unmarshal(text, &rec); err != nil {
				c.T.Fatal(err)
			}
			copied.apply(&rec, int64(i), fresh)
		}
		b.meta.mu.RLock()
		defer b.meta.mu.RUnlock()
		if !reflect.DeepEqual(copied.Topics, s.Topics) || !reflect.DeepEqual(copied.Groups, s.Groups) || !reflect.DeepEqual(copied.Offsets, s.Offsets) || !reflect.DeepEqual(copied.Locks, s.Locks) {
			c.T.Errorf("copied %d topics, %d groups, %d offsets, %d locks", len(copied.Topics), len(copied.Groups), len(copied.Offsets), len(copied.Locks["g"]))
		}
	})
}

// TestUndecidedChangesAreKnownAsSuch, in every form in which they come: a full copy of the metadata may not be made of a state that they are still to change, and a request is not
// carried out again without a look.
func TestUndecidedChangesAreKnownAsSuch(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		b := c.brokers[c.leader()]
		ended, cancel := context.WithCancel(c.T.Context())
		cancel()
		late, cancel := context.WithDeadline(c.T.Context(), time.Now())
		defer cancel()
		never := make(chan error)
		failed := fmt.Errorf("%w; %w", dledger.ErrFailed, dledger.ErrUndecided) // as the log says it
		for _, k := range []struct {
			name string
			err  error
			want bool
		}{
			{"no majority in time", dledger.ErrTimeout, true},
			{"leadership lost", dledger.ErrLeadershipLost, true},
			{"disk failed", failed, true},
			{"given up by who waited", awaited(ended, never), true},
			{"not waited for any longer", awaited(late, never), true},
			{"the broker ends before the log has said", b.meta.put(ended, b.term.Load(), []*mq.Message{b.meta.message(&record{Kind: "barrier"})}), true},
			{"wrapped", fmt.Errorf("topic t: %w", dledger.ErrTimeout), true},
			{"not the leader", errNotServing, false},
			{"too much waits", errChangesFull, false},
			{"closed", dledger.ErrClosed, false},
			{"too large", dledger.ErrTooLarge, false},
		} {
			if got := errors.Is(k.err, dledger.ErrUndecided); got != k.want {
				c.T.Errorf("%s: %v: undecided %v, want %v", k.name, k.err, got, k.want)
			}
		}
		for err, want := range map[error]bool{dledger.ErrLeadershipLost: true, failed: true, dledger.ErrNotLeader: false} {
			r := &request{b: b, due: time.Now().Add(time.Hour)}
			b.gate.mu.Lock()
			b.gate.leads = false // it is held, then
			b.gate.mu.Unlock()
			b.putBy(func(_ []*mq.Message, done func(msgstore.PutResult)) {
				done(msgstore.PutResult{Status: msgstore.StatusOf(err), Err: err})
			}, r, nil, kept{nil, func(code int32, remark string) {
				c.T.Errorf("%v: answered %d, %s", err, code, remark)
			}})
			b.gate.mu.Lock()
			if b.gate.leads = true; len(b.gate.held) != 1 || r.settle != want {
				c.T.Errorf("a send that ended with %q: %d held, looked up before it is stored again %v, want %v", err, len(b.gate.held), r.settle, want)
			}
			b.gate.held, b.gate.bytes = nil, 0
			b.gate.mu.Unlock()
		}
	})
}

// TestFullCopyDoesNotUndoWhatIsUndecided: a change that was not confirmed in time is in front of the copy, which was made of the state without it.
func TestFullCopyDoesNotUndoWhatIsUndecided(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		n := c.leader()
		b := c.brokers[n]
		time.Sleep(3 * time.Second)
		for _, id := range c.IDs() {
			if id != n {
				c.Disk(id).SetSyncTime(8 * time.Second)
			}
		}
		term := b.term.Load()
		err := b.meta.write(c.T.Context(), record{Kind: "topics", Topics: map[string]mq.TopicConfig{"new": mq.NewTopicConfig("new", 1, 6)}})
		if !errors.Is(err, dledger.ErrUndecided) || b.term.Load() != term {
			c.T.Fatalf("the change is not undecided within one leadership: %v", err)
		}
		b.meta.mu.Lock()
		b.meta.state.FullPos = -1
		b.meta.mu.Unlock()
		time.Sleep(30 * time.Second)
		for _, id := range c.IDs() {
			c.Disk(id).SetSyncTime(time.Millisecond)
		}
		for _, id := range c.IDs() {
			m := c.brokers[id].meta
			c.Wait("the full copy at "+id, func() bool {
				m.mu.RLock()
				defer m.mu.RUnlock()
				return m.state.FullPos > 0
			})
			if _, ok := m.topicConfig("new"); !ok {
				c.T.Errorf("%s forgot the topic", id)
			}
		}
	})
}

// TestSavedStateIsNotInTheMiddleOfAFullCopy: a replica that is new, and starts again while the copy comes, has to get all of it.
func TestSavedStateIsNotInTheMiddleOfAFullCopy(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.SnapshotEvery = time.Hour }, func(c *cluster) {
		b := c.brokers[c.leader()]
		c.client("10.1.0.1").must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("x"))
		recs := b.meta.full()
		if len(recs) < 2 {
			c.T.Fatalf("%d parts", len(recs))
		}
		fresh := func() state { return newState(&b.cfg) }
		for parts := range recs {
			m := &meta{b: b, topic: b.meta.topic, saved: -1}
			m.state = fresh()
			m.state.apply(&record{Kind: "barrier"}, 100, fresh)
			for i := range recs[:parts] {
				m.state.apply(&recs[i], int64(200+100*i), fresh)
			}
			if err := m.save(); err != nil {
				c.T.Fatal(err)
			}
			again := &meta{b: b, topic: b.meta.topic, saved: -1}
			again.state = fresh()
			if err := again.load(); err != nil {
				c.T.Fatal(err)
			}
			for i := range recs {
				if pos := int64(200 + 100*i); pos > again.state.Pos {
					again.state.apply(&recs[i], pos, fresh)
				}
			}
			if _, ok := again.topicConfig("t"); !ok {
				c.T.Errorf("saved behind %d of %d parts at %d: the rest tells of no topic", parts, len(recs), again.state.Pos)
			}
		}
	})
}

// TestOpenThatFailsLeavesNothing: no goroutine, no port and no lock; the cluster looks.
func TestOpenThatFailsLeavesNothing(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		b := c.brokers[n]
		if err := b.Close(); err != nil {
			c.T.Fatal(err)
		}
		name := filepath.Join(b.configDir(), fileState)
		good, err := vfs.ReadFile(b.meta.fs(), name)
		if err != nil {
			c.T.Fatal(err)
		}
		if err := vfs.Replace(b.meta.fs(), name, []byte("{")); err != nil {
			c.T.Fatal(err)
		}
		if _, err := Open(b.cfg); err == nil || !strings.Contains(err.Error(), fileState) {
			c.T.Fatalf("opened: %v", err)
		}
		if err := vfs.Replace(b.meta.fs(), name, good); err != nil {
			c.T.Fatal(err)
		}
		c.open(n)
	})
}

// TestTheLogNeverWaitsForTheFiles: what asks for floors is the log's own goroutine, and records are applied by the one that dispatches; a large state takes long to
// write.
func TestTheLogNeverWaitsForTheFiles(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.SnapshotEvery = time.Hour }, func(c *cluster) {
		m := c.brokers[c.leader()].meta
		c.client("10.1.0.1").must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("x"))
		fresh := func() state { return newState(&m.b.cfg) }
		rec := record{Floors: map[string]map[int32]int64{"t": {0: 7}}, Offsets: map[string]map[int32]int64{"t@g": {0: 1}}}
		body, err := json.Marshal(rec)
		if err != nil {
			c.T.Fatal(err)
		}
		if err := m.apply(1<<40, &mq.Message{Topic: m.topic, Body: body}); err != nil {
			c.T.Fatal(err)
		}
		s, _, news := m.snapshot()
		if !news {
			c.T.Fatal("the files have the state already")
		}
		m.mu.Lock() // by somebody else
		if n := m.floor("t", 0); n != 7 {
			c.T.Errorf("floor %d, want 7", n)
		}
		m.state.apply(&record{Offsets: map[string]map[int32]int64{"t@g": {0: 2}}, NoTopics: []string{"t"}, Progress: map[string]json.RawMessage{"delay": []byte("{}")},
			Lock: &lockRecord{Group: "g", Client: "a", Queues: []lockQueue{{"t", 0}}}, Groups: map[string]mq.SubscriptionGroupConfig{"g": mq.DefaultGroup("g")}}, 1<<40+1, fresh)
		names, texts, err := s.files()
		m.mu.Unlock()
		if err != nil {
			c.T.Fatal(err)
		}
		again := &meta{state: fresh()}
		if err := json.Unmarshal(texts[len(names)-1], &again.state); err != nil {
			c.T.Fatal(err)
		}
		if len(again.state.LockList) > 0 {
			c.T.Errorf("locks %v", again.state.LockList)
		}
		if _, ok := again.state.Topics["t"]; !ok || again.state.Pos != 1<<40 || again.state.Offsets["t@g"][0] != 1 || again.state.Floors["t"][0] != 7 {
			c.T.Errorf("the files hold %+v", again.state)
		}
	})
}

// TestFullCopyComesAlsoWhileChangesNeverEnd: retention would take the records that it stands for.
func TestFullCopyComesAlsoWhileChangesNeverEnd(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		m := c.brokers[c.leader()].meta
		at := func() int64 {
			m.mu.RLock()
			defer m.mu.RUnlock()
			return m.state.FullPos
		}
		c.Wait("the first copy", func() bool { return at() >= 0 })
		first := at()
		c.Disk(c.leader()).SetSyncTime(time.Millisecond)
		var changes atomic.Int64
		var on func(error)
		on = func(error) {
			if changes.Add(1) < 10000 && at() == first {
				m.submit(record{Kind: "barrier"}, on)
			}
		}
		m.mu.Lock()
		m.state.Taken = true // a copy is due
		m.mu.Unlock()
		on(nil)
		c.Wait("a copy, or the end of changes", func() bool { return at() != first })
		if n := changes.Load(); n >= 10000 {
			c.T.Errorf("the copy came after %d changes", n)
		}
	})
}
