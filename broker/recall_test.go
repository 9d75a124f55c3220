package broker

import (
	"container/heap"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"dledger/internal/golden"
	"dledger/internal/mq"
)

func TestTimerMessagesAreRecalledByTheirHandle(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n := c.leader()
		at := time.Now().Add(time.Minute).UnixMilli()
		send := func(key string) string {
			f := p.must(n, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01%s\x02", at, key)), []byte("body "+key))
			if f.Ext["recallHandle"] == "" {
				t.Errorf("fields of the answer: %v", f.Ext)
			}
			return f.Ext["recallHandle"]
		}
		handle, kept := send("A"), send("B")
		if raw, err := base64.URLEncoding.DecodeString(handle); err != nil || string(raw) != fmt.Sprintf("v1 t a %d A", (at-1)/1000*1000+1) {
			t.Errorf("handle %q %q, %v", handle, raw, err)
		}
		if f := p.must(n, mq.CodeSend, sendExt("t", 0), []byte("at once")); f.Ext["recallHandle"] != "" {
			t.Errorf("an ordinary message has a handle: %v", f.Ext)
		}
		if f := p.call(n, mq.CodeRecallMessage, ext("topic", "t", "recallHandle", handle), nil); f.Code != mq.NoPermission {
			t.Errorf("not enabled: code %d, %s", f.Code, f.Remark)
		}
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("recallMessageEnable=true\n"))
		p.must(n, mq.CodeSend, sendExt("u", 0), []byte("makes the topic"))
		of := func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }
		for _, k := range []struct {
			name, topic, handle string
			want                int32
		}{
			{"unknown topic", "none", handle, mq.TopicNotExist},
			{"another topic", "u", handle, mq.IllegalOperation},
			{"no Base64", "t", "?", mq.IllegalOperation},
			{"another version", "t", of("v2 t a 1 A"), mq.IllegalOperation},
			{"too short", "t", of("v1 t a 1"), mq.IllegalOperation},
			{"another broker", "t", of(fmt.Sprintf("v1 t b %d A", at)), mq.IllegalOperation},
			{"over", "t", of("v1 t a 1000 A"), mq.IllegalOperation},
			{"far ahead", "t", of(fmt.Sprintf("v1 t a %d A", at+(100*24*time.Hour).Milliseconds())), mq.IllegalOperation},
			{"no time", "t", of("v1 t a soon A"), mq.IllegalOperation},
		} {
			if f := p.call(n, mq.CodeRecallMessage, ext("topic", k.topic, "recallHandle", k.handle), nil); f.Code != k.want || f.Ext["MSG_REGION"] == "" {
				t.Errorf("%s: code %d, %s %v, want %d", k.name, f.Code, f.Remark, f.Ext, k.want)
			}
		}
		if f := p.call(n, mq.CodeRecallMessage, ext("topic", "t"), nil); f.Code != mq.SystemError {
			t.Errorf("no handle: code %d", f.Code)
		}
		if f := p.must(n, mq.CodeRecallMessage, ext("producerGroup", "p", "topic", "t", "recallHandle", handle), nil); f.Ext["msgId"] != "A" {
			t.Errorf("answer %v", f.Ext)
		}
		p.must(n, mq.CodeRecallMessage, ext("topic", "t", "recallHandle", handle), nil) // again
		time.Sleep(65 * time.Second)
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"at once": 1, "body B": 1}) {
			t.Errorf("in the end: %v", count)
		}
		if f := p.call(n, mq.CodeRecallMessage, ext("topic", "t", "recallHandle", kept), nil); f.Code != mq.IllegalOperation {
			t.Errorf("delivered already: code %d", f.Code)
		}
	})
}

// timerKey sends a timer message that has this unique key for its body, and gives its handle.
func (cl *client) timerKey(id, key string, at time.Time) string {
	cl.c.T.Helper()
	return cl.must(id, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01%s\x02", at.UnixMilli(), key)), []byte(key)).Ext["recallHandle"]
}

// TestRecallHoldsForTheNextLeader, which has to read far to find it, and begins when what it takes back is due.
func TestRecallHoldsForTheNextLeader(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.Recall = true }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		at := time.Now().Add(20 * time.Second).Truncate(time.Second)
		handle := p.timerKey(n, "A", at)
		for i := range 1100 {
			p.timerKey(n, fmt.Sprint("O", i), at.Add(time.Minute))
		}
		p.must(n, mq.CodeRecallMessage, ext("producerGroup", "p", "topic", "t", "recallHandle", handle), nil)
		if left := time.Until(at); left < 2*time.Second {
			c.T.Fatalf("recalled only %v before it is due", left)
		}
		time.Sleep(time.Until(at) - 50*time.Millisecond)
		c.kill(n)
		now := c.leader()
		if time.Now().Before(at) {
			c.T.Fatal("the next one leads before it is due")
		}
		time.Sleep(5 * time.Second)
		if count, _ := p.allOf(now, "t", 1); len(count) != 0 {
			c.T.Errorf("delivered: %v", count)
		}
		time.Sleep(65 * time.Second)
		p = c.client("10.1.0.2") // the connection was idle for too long
		if count, _ := p.allOf(now, "t", 1); len(count) != 1100 || count["A"] != 0 {
			c.T.Errorf("in the end %d, want 1100; of the recalled one %d", len(count), count["A"])
		}
	})
}

// TestRecallHoldsWhileManyAreDelivered: it comes while those that are due before are.
func TestRecallHoldsWhileManyAreDelivered(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.Recall = true }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		at := time.Now().Add(20 * time.Second).Truncate(time.Second)
		for i := range 2000 {
			p.timerKey(n, fmt.Sprint("O", i), at)
		}
		handle := p.timerKey(n, "A", at.Add(2*time.Second))
		time.Sleep(time.Until(at) - 100*time.Millisecond)
		c.Disk(n).SetSyncTime(200 * time.Millisecond)
		time.Sleep(time.Second)
		p.must(n, mq.CodeRecallMessage, ext("producerGroup", "p", "topic", "t", "recallHandle", handle), nil)
		if b := c.brokers[n].store.Bounds("t", 0); b.Max == 0 || b.Max == 2000 {
			c.T.Fatalf("%d are delivered", b.Max)
		}
		time.Sleep(20 * time.Second)
		if count, _ := p.allOf(n, "t", 1); len(count) != 2000 || count["A"] != 0 {
			c.T.Errorf("in the end %d, want 2000; of the recalled one %d", len(count), count["A"])
		}
	})
}

// TestRecallHoldsForAMessageThatCannotBeRead when its time comes: what takes it back is not forgotten before, and not done for the next leader either.
func TestRecallHoldsForAMessageThatCannotBeRead(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.Recall = true }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		b := c.brokers[n]
		at := time.Now().Add(20 * time.Second)
		handle := p.timerKey(n, "A", at)
		p.must(n, mq.CodeRecallMessage, ext("producerGroup", "p", "topic", "t", "recallHandle", handle), nil)
		term, _ := b.store.Ready()
		s := &timers{b: b, term: term, done: map[int64]bool{}, taken: map[taken][]int64{}} // beside the one that works
		c.Wait("both to be read", func() bool {
			if err := s.catchUp(c.T.Context()); err != nil {
				c.T.Fatal(err)
			}
			return len(s.waiting) == 2
		})
		first := heap.Pop(&s.waiting).(timer)
		if first.offset != 0 {
			c.T.Fatalf("first comes %+v", first)
		}
		s.unread, s.again = []timer{first}, at.Add(time.Minute).UnixMilli()
		deliver := func(after time.Duration, low int64, left int) {
			c.T.Helper()
			time.Sleep(time.Until(at.Add(after)))
			if err := s.deliver(c.T.Context()); err != nil {
				c.T.Fatal(err)
			}
			if s.low != low || len(s.taken) != left {
				c.T.Errorf("after %v all below %d are done, %d are to be taken back; want %d and %d", after, s.low, len(s.taken), low, left)
			}
		}
		deliver(2*time.Second, 0, 1)
		deliver(30*time.Second, 0, 1)
		deliver(61*time.Second, 2, 0)
		if max := b.store.Bounds("t", 0).Max; max != 0 {
			c.T.Errorf("%d are delivered", max)
		}
	})
}

func TestRecallHandleIsThatOfTheOriginal(t *testing.T) {
	var file struct{ Bodies map[string]json.RawMessage }
	text, err := golden.Read("rocketmq-bodies.json")
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	var want string
	if err == nil {
		err = json.Unmarshal(file.Bodies["recallHandleV1"], &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &mq.Message{Topic: mq.TopicTimer}
	m.SetProp(mq.PropRealTopic, "TopicTest")
	m.SetProp(mq.PropTimerOutMs, "1700000059999")
	b := &Broker{cfg: Config{Name: "broker-a"}}
	if got := b.recallHandle(m, "7F0000010000266474A3000000010000"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTimersAreTold as a Java follower asks: everything due before lastReadTimeMs is delivered, and the queue was read up to masterTimerQueueOffset.
func TestTimersAreTold(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n := c.follower() // passes it on
		point := func() (delivered time.Time, read int64) {
			b := p.must(n, mq.CodeTimerCheckPoint, nil, nil).Body
			if len(b) != 56 {
				t.Fatalf("%d bytes, want 56", len(b))
			}
			num := func(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) }
			if num(8) != 0 || num(16) != num(24) || num(32) < 1 || num(48) < 1 {
				t.Errorf("check point %x", b)
			}
			return time.UnixMilli(num(0)), num(24)
		}
		counts := func() map[string]timerCount {
			var m struct {
				Version mq.DataVersion        `json:"dataVersion"`
				Counts  map[string]timerCount `json:"timingCount"`
			}
			if err := mq.Unmarshal(p.must(n, mq.CodeTimerMetrics, nil, nil).Body, &m); err != nil {
				t.Fatal(err)
			}
			return m.Counts
		}
		c.Wait("the service to have looked", func() bool { return p.call(n, mq.CodeTimerCheckPoint, nil, nil).Code == mq.Success })
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELAY_SEC\x0120\x02"), []byte("soon"))
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELAY_SEC\x01600\x02"), []byte("later"))
		p.must(n, mq.CodeSend, sendExt("u", 0, "properties", "TIMER_DELAY_SEC\x01600\x02"), []byte("later"))
		time.Sleep(10 * time.Second)
		if delivered, read := point(); read != 3 || time.Since(delivered) > 7*time.Second || time.Since(delivered) < 0 {
			t.Errorf("delivered before %v ago, read %d", time.Since(delivered), read)
		}
		if got := counts(); len(got) != 2 || got["t"].Count != 2 || got["u"].Count != 1 || got["u"].At == 0 {
			t.Errorf("waiting: %v", got)
		}
		time.Sleep(15 * time.Second)
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"soon": 1}) {
			t.Errorf("after 25 s: %v", count)
		}
		if got := counts(); got["t"].Count != 1 {
			t.Errorf("waiting after one has come: %v", got)
		}
		// A new leader knows them, too.
		c.upset(1)
		c.Wait("the new leader to have read", func() bool { return counts()["t"].Count == 1 && counts()["u"].Count == 1 })
		if delivered, read := point(); read < 3 || time.Since(delivered) < 0 {
			t.Errorf("after a change: delivered before %v ago, read %d", time.Since(delivered), read)
		}
	})
}
