package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/msgstore"
	"dledger/internal/vfs"
)

// allOf reads a topic's queues to their ends: for each body how often it is there, and when the first one was stored.
func (cl *client) allOf(id, topic string, queues int) (count map[string]int, stored map[string]time.Time) {
	cl.c.T.Helper()
	count, stored = map[string]int{}, map[string]time.Time{}
	for q := range queues {
		for at := int64(0); ; {
			f := cl.call(id, mq.CodePull, pullExt("g", topic, q, at, 0), nil)
			if f.Code != mq.Success {
				break
			}
			next, err := strconv.ParseInt(f.Ext["nextBeginOffset"], 10, 64)
			if err != nil {
				cl.c.T.Fatal(err)
			}
			for b := f.Body; len(b) > 0; {
				m, n, err := mq.ParseStored(b)
				if err != nil {
					cl.c.T.Fatal(err)
				}
				if count[string(m.Body)]++; count[string(m.Body)] == 1 {
					stored[string(m.Body)] = time.UnixMilli(m.StoreTime)
				}
				b = b[n:]
			}
			at = next
		}
	}
	return count, stored
}

// upset changes the leader: in turn it is handed over, killed and started again, and cut off for a while.
func (c *cluster) upset(n int) {
	c.T.Helper()
	l := c.leader()
	switch n % 3 {
	case 0:
		ctx, cancel := context.WithTimeout(c.T.Context(), 5*time.Second)
		defer cancel()
		if err := c.Member(l).TransferLeadership(ctx, c.follower()); err != nil {
			c.T.Logf("not handed over: %v", err)
		}
	case 1:
		c.kill(l)
		c.leader()
		c.start(l)
	case 2:
		c.Partition([]string{l})
		time.Sleep(2 * time.Second)
		c.Heal()
	}
	c.leader()
}

// TestDelayedMessagesComeOnceAndInTime (M3), while leaders change: those with a level and those with a time.
func TestDelayedMessagesComeOnceAndInTime(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("now"))
		delays := map[string]time.Duration{"DELAY\x011": time.Second, "DELAY\x012": 5 * time.Second, "DELAY\x013": 10 * time.Second, "DELAY\x014": 30 * time.Second,
			"TIMER_DELAY_MS\x011500": 1500 * time.Millisecond, "TIMER_DELAY_SEC\x0112": 12 * time.Second}
		due := map[string]time.Time{"now": time.Now()}
		n := 0
		send := func() {
			for prop, d := range delays {
				body := fmt.Sprintf("%d after %v", n, d)
				f := p.call(c.leader(), mq.CodeSend, sendExt("t", n%4, "properties", prop+"\x02UNIQ_KEY\x01"+fmt.Sprint("U", n)+"\x02"), []byte(body))
				if f.Code != mq.Success {
					c.T.Fatalf("code %d, %s", f.Code, f.Remark)
				}
				due[body] = time.Now().Add(d)
				n++
			}
			at := time.Now().Add(7300 * time.Millisecond)
			body := fmt.Sprintf("%d at a time", n)
			p.must(c.leader(), mq.CodeSend, sendExt("t", n%4, "properties", "TIMER_DELIVER_MS\x01"+fmt.Sprint(at.UnixMilli())+"\x02"), []byte(body))
			due[body] = at
			n++
		}
		for i := range 9 {
			for range 20 {
				send()
				time.Sleep(100 * time.Millisecond)
			}
			c.upset(i)
		}
		time.Sleep(40 * time.Second)
		for _, id := range c.IDs() {
			count, stored := p.allOf(id, "t", 4)
			if len(count) != len(due) {
				c.T.Errorf("%s: %d messages, want %d", id, len(count), len(due))
			}
			for body, at := range due {
				if late := stored[body].Sub(at); count[body] != 1 || body != "now" && (late < -1100*time.Millisecond || late > 5*time.Second) {
					c.T.Errorf("%s: %q came %d times, first %v after it was due", id, body, count[body], late)
				}
			}
		}
		early := 0
		_, stored := p.allOf(c.leader(), "t", 4)
		for body, at := range due {
			if strings.Contains(body, "after") && stored[body].Before(at.Add(-20*time.Millisecond)) {
				early++
				c.T.Logf("%q %v early", body, at.Sub(stored[body]))
			}
		}
		if early > 0 {
			c.T.Errorf("%d came before they were due", early)
		}
	})
}

func TestTimerMessagesAreTakenBackAndRefused(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		at := time.Now().Add(time.Minute).UnixMilli()
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01A\x02", at)), []byte("taken back"))
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01B\x02", at)), []byte("kept"))
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", fmt.Sprintf("TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01C\x02TIMER_DEL_UNIQKEY\x01t_A\x02", at)), []byte("take back"))
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELIVER_MS\x0112345\x02UNIQ_KEY\x01D\x02"), []byte("past"))
		for _, prop := range []string{"TIMER_DELAY_SEC\x01x", "TIMER_DELAY_SEC\x01300000", "TIMER_DELIVER_MS\x0112345\x02TIMER_DEL_UNIQKEY\x01t_A"} {
			if f := p.call(n, mq.CodeSend, sendExt("t", 0, "properties", prop+"\x02"), []byte("x")); f.Code != mq.MessageIllegal || !strings.Contains(f.Remark, "timer message illegal") {
				c.T.Errorf("%q: code %d, %s", prop, f.Code, f.Remark)
			}
		}
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"past": 1}) {
			c.T.Errorf("at once: %v", count)
		}
		time.Sleep(65 * time.Second)
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"past": 1, "kept": 1}) {
			c.T.Errorf("in the end: %v", count)
		}
	})
}

// TestLongTimerIsStoredAgain, so that retention does not take it, and comes once.
func TestLongTimerIsStoredAgain(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TIMER_DELAY_SEC\x0118000\x02"), []byte("in five hours"))
		time.Sleep(4*time.Hour + 59*time.Minute)
		p = c.client("10.1.0.2") // the connection was idle for too long
		if count, _ := p.allOf(n, "t", 1); len(count) > 0 {
			c.T.Errorf("too early: %v", count)
		}
		if b := c.brokers[n].store.Bounds(mq.TopicTimer, 0); b.Max != 3 {
			c.T.Errorf("stored %d times among the timers, want 3", b.Max)
		}
		time.Sleep(2 * time.Minute)
		p = c.client("10.1.0.3")
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"in five hours": 1}) {
			c.T.Errorf("came: %v", count)
		}
	})
}

// TestTransactionsComeOutExactlySo (M3): of 1,000 half are committed, a quarter is rolled back, a quarter is left open and committed or rolled back when the broker
// asks; some are ended twice. Leaders change meanwhile.
func TestTransactionsComeOutExactlySo(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.TransactionEvery, cfg.TransactionTimeout = 5*time.Second, 2*time.Second }, func(c *cluster) {
		p := c.client("10.1.0.1")
		p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte("first"))
		want := map[string]int{"first": 1}
		commit := map[string]bool{} // of those that are asked about, by unique key
		end := func(id string, ext_ map[string]string) { p.call(id, mq.CodeEndTransaction, ext_, nil) }
		for i := range 1000 {
			if i%125 == 100 {
				c.upset(i / 125)
			}
			id, uniq, body := c.leader(), fmt.Sprint("U", i), fmt.Sprint("m", i)
			if i%5 == 0 {
				id = c.IDs()[i/5%3] // any replica does
			}
			f := p.must(id, mq.CodeSend, sendExt("t", i%4, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01"+uniq+"\x02"), []byte(body))
			_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
			if err != nil || f.Ext["transactionId"] != uniq {
				c.T.Fatal(f.Ext, err)
			}
			e := func(what int64) map[string]string {
				return ext("producerGroup", "p", "tranStateTableOffset", f.Ext["queueOffset"], "commitLogOffset", pos, "commitOrRollback", what, "fromTransactionCheck", "false", "msgId", uniq, "transactionId", uniq)
			}
			switch i % 4 {
			case 0, 1:
				want[body]++
				end(id, e(endCommit))
			case 2:
				end(id, e(endRollback))
			case 3:
				commit[uniq] = i%8 == 3
				if i%8 == 3 {
					want[body]++
				}
				end(id, e(endUnknown))
			}
			if i%7 == 0 && i%4 < 3 {
				end(id, e(map[int]int64{0: endCommit, 1: endCommit, 2: endRollback}[i%4]))
			}
		}
		// The producer answers what it is asked. It is connected to all replicas, but says so to the leader alone.
		answered := 0
		for range 40 {
			l := c.leader()
			p.must(l, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
			time.Sleep(time.Second)
			p.mu.Lock()
			asked := slices.Clone(p.requests)
			p.requests = nil
			p.mu.Unlock()
			for _, f := range asked {
				if f.Code != mq.CodeCheckTransaction {
					continue
				}
				m, _, err := mq.ParseStored(f.Body)
				if err != nil || m.Topic != "t" || m.Prop(mq.PropUniqKey) != f.Ext["msgId"] || m.QueueID != int32(mustInt(f.Ext["msgId"][1:])%4) {
					c.T.Fatalf("asked with %v and %+v, %v", f.Ext, m, err)
				}
				what := endRollback
				if commit[f.Ext["msgId"]] {
					what = endCommit
				}
				answered++
				end(l, ext("producerGroup", "p", "tranStateTableOffset", f.Ext["tranStateTableOffset"], "commitLogOffset", f.Ext["commitLogOffset"], "commitOrRollback", what,
					"fromTransactionCheck", "true", "msgId", f.Ext["msgId"], "transactionId", f.Ext["transactionId"]))
			}
		}
		if answered < len(commit) {
			c.T.Errorf("asked %d times, %d are open", answered, len(commit))
		}
		time.Sleep(time.Second)
		for _, id := range c.IDs() {
			got, _ := p.allOf(id, "t", 4)
			for body, n := range want {
				if got[body] != n {
					c.T.Errorf("%s: %s is there %d times, want %d", id, body, got[body], n)
				}
			}
			for body, n := range got {
				if want[body] == 0 {
					c.T.Errorf("%s: %s is there %d times, want none", id, body, n)
				}
			}
		}
		tx := &c.brokers[c.leader()].transactions
		tx.mu.Lock()
		defer tx.mu.Unlock()
		if len(tx.halves) != 0 || tx.low != 1000 {
			c.T.Errorf("%d are open, all below %d done", len(tx.halves), tx.low)
		}
	})
}

func mustInt(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// TestCommittedTransactionIsNeverDropped: one whose message is refused stays open, and is committed when the producer is asked again, or given up where operators
// find it.
func TestCommittedTransactionIsNeverDropped(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = 3*time.Second, 2*time.Second, 2
	}, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n := c.leader()
		b := c.brokers[n]
		p.must(n, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("plain"))
		ends := map[string]map[string]string{} // by unique key
		half := func(key, prop string) {
			f := p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01"+key+"\x02"+prop+"\x02"), []byte(key))
			_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
			if err != nil {
				t.Fatal(err)
			}
			ends[key] = ext("producerGroup", "p", "tranStateTableOffset", f.Ext["queueOffset"], "commitLogOffset", pos, "commitOrRollback", endCommit, "msgId", key, "transactionId", key)
		}
		half("flow control", "TIMER_DELAY_SEC\x0120")
		half("too far ahead", "TIMER_DELAY_SEC\x0130")
		half("no time", "TIMER_DELAY_SEC\x01soon")
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("timerMaxDelaySec=25\n"))
		b.timersWaiting.Store(timersMax)
		for key, want := range map[string]int32{"flow control": mq.SystemError, "too far ahead": mq.MessageIllegal, "no time": mq.MessageIllegal} {
			if f := p.call(n, mq.CodeEndTransaction, ends[key], nil); f.Code != want {
				t.Errorf("%s: code %d, %s; want %d", key, f.Code, f.Remark, want)
			}
		}
		if open := len(b.transactions.open()); open != 3 {
			t.Errorf("%d are open, want all 3", open)
		}
		p.must(n, mq.CodeUpdateBrokerConfig, nil, []byte("timerMaxDelaySec=259200\n"))
		b.timersWaiting.Store(0)
		c.Wait("all to be asked about", func() bool { return p.got(mq.CodeCheckTransaction) >= 3 })
		for key, want := range map[string]int32{"flow control": mq.Success, "too far ahead": mq.Success, "no time": mq.MessageIllegal} {
			if f := p.call(n, mq.CodeEndTransaction, ends[key], nil); f.Code != want {
				t.Errorf("%s, when asked: code %d, %s; want %d", key, f.Code, f.Remark, want)
			}
		}
		time.Sleep(40 * time.Second)
		if count, _ := p.allOf(n, "t", 1); !maps.Equal(count, map[string]int{"plain": 1, "flow control": 1, "too far ahead": 1}) {
			t.Errorf("in the end: %v", count)
		}
		if given := b.store.Bounds(mq.TopicTransCheckMax, 0).Max; given != 1 || len(b.transactions.open()) != 0 {
			t.Errorf("%d are given up, want 1; %d are open", given, len(b.transactions.open()))
		}
	})
}

// TestTimerMessageIsNotRefusedForWhatIsToldOfItsDelay: its properties have no room left, and it was taken.
func TestTimerMessageIsNotRefusedForWhatIsToldOfItsDelay(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n := c.leader()
		topic := strings.Repeat("t", 100)
		full := "" // grows until the log takes no more
		for step := 16 << 10; step > 0; step /= 2 {
			m := &mq.Message{Topic: topic}
			m.Properties, _ = c.brokers[n].stamped("TIMER_DELAY_SEC\x0110000\x02UNIQ_KEY\x01U\x02a\x01" + full + strings.Repeat("x", step) + "\x02")
			if c.brokers[n].divert(m); len(m.Properties) <= mq.PropertiesMax {
				full += strings.Repeat("x", step)
			}
		}
		p.must(n, mq.CodeSend, sendExt(topic, 0, "properties", "TIMER_DELAY_SEC\x0110000\x02UNIQ_KEY\x01U\x02a\x01"+full+"\x02"), []byte("full"))
		time.Sleep(10010 * time.Second)
		p = c.client("10.1.0.2") // the connection was idle for too long
		if count, _ := p.allOf(n, topic, 1); !maps.Equal(count, map[string]int{"full": 1}) {
			t.Errorf("came: %v", count)
		}
		if b := c.brokers[n].store.Bounds(mq.TopicTimer, 0); b.Max != 2 {
			t.Errorf("stored %d times among the timers, want 2", b.Max)
		}
	})
}

// TestUndecidedTransactionIsGivenUp after it was asked about often enough.
func TestUndecidedTransactionIsGivenUp(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) { cfg.TransactionEvery, cfg.TransactionChecks = time.Second, 3 }, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		f := p.must(n, mq.CodeSend, sendExt("t", 0, "bornTimestamp", 1, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x014\x02"), []byte("x"))
		_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
		if err != nil {
			c.T.Fatal(err)
		}
		for name, k := range map[string]struct {
			fields map[string]string
			code   int32
		}{
			"another group":   {ext("producerGroup", "q", "tranStateTableOffset", 0, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", ""), mq.SystemError},
			"another offset":  {ext("producerGroup", "p", "tranStateTableOffset", 1, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", ""), mq.SystemError},
			"no such message": {ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", pos+1, "commitOrRollback", 8, "msgId", ""), mq.SystemError},
			"too late":        {ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", ""), mq.IllegalOperation}, // born in 1970
			"a field missing": {ext("producerGroup", "p"), mq.SystemError},
		} {
			if f := p.call(n, mq.CodeEndTransaction, k.fields, nil); f.Code != k.code {
				c.T.Errorf("%s: code %d, %s; want %d", name, f.Code, f.Remark, k.code)
			}
		}
		time.Sleep(20 * time.Second)
		if got := p.got(mq.CodeCheckTransaction); got != 3 {
			c.T.Errorf("asked %d times, want 3", got)
		}
		if b := c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0); b.Max != 1 {
			c.T.Errorf("%d are given up, want 1", b.Max)
		}
	})
}

// TestServicesStoreNothingInALaterTerm: one that has not noticed yet that another replica has led in between, which may have dealt with the same message.
func TestServicesStoreNothingInALaterTerm(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		n, other := c.leader(), c.follower()
		b := c.brokers[n]
		f := p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"), []byte("half"))
		_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
		if err != nil {
			t.Fatal(err)
		}
		term, ok := b.store.Ready()
		if !ok {
			t.Fatal("the leader is not ready")
		}
		for _, to := range []string{other, n} {
			if err := c.Member(c.leader()).TransferLeadership(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			c.Wait("it to lead", func() bool { return c.brokers[to].Leads() })
		}
		m := func() []*mq.Message { return []*mq.Message{{Topic: "t", Body: []byte("x"), BornHost: b.host}} }
		if err := b.keepFor(t.Context(), term, m()); !over(err) {
			t.Errorf("a message of term %d: %v", term, err)
		}
		if err := b.barrier(t.Context(), term); !over(err) {
			t.Errorf("a barrier of term %d: %v", term, err)
		}
		half, err := b.messageAt(pos)
		if err != nil {
			t.Fatal(err)
		}
		b.transactions.mu.Lock()
		now := b.transactions.term
		b.transactions.term = term // as before it was told
		b.transactions.mu.Unlock()
		if err := b.transactions.end(t.Context(), &half, true); !over(err) {
			t.Errorf("a commit of term %d: %v", term, err)
		}
		if max := b.store.Bounds("t", 0).Max; max != 0 {
			t.Errorf("%d messages are stored", max)
		}
		b.transactions.mu.Lock()
		b.transactions.term = now
		b.transactions.mu.Unlock()
		if err := b.transactions.end(t.Context(), &half, true); err != nil {
			t.Errorf("a commit of term %d: %v", now, err)
		}
		if err := b.keepFor(t.Context(), now, m()); err != nil {
			t.Errorf("a message of term %d: %v", now, err)
		}
		c.Wait("both to be in the queue", func() bool { return b.store.Bounds("t", 0).Max >= 2 })
		if max := b.store.Bounds("t", 0).Max; max != 2 {
			t.Errorf("%d messages are stored, want 2", max)
		}
	})
}

// TestServicesGoOnAfterATransferThatFailed: what becomes due meanwhile is delivered by the leader that stays.
func TestServicesGoOnAfterATransferThatFailed(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n, other := c.leader(), c.follower()
		for i := range 10 {
			p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "DELAY\x011\x02UNIQ_KEY\x01"+fmt.Sprint("U", i)+"\x02"), fmt.Append(nil, i))
			time.Sleep(100 * time.Millisecond)
		}
		c.Partition([]string{other})
		if err := c.Member(n).TransferLeadership(c.T.Context(), other); err == nil {
			c.T.Fatal("leadership went to a member that is cut off")
		}
		time.Sleep(5 * time.Second)
		if !c.brokers[n].Leads() {
			c.T.Fatal("the leader has changed")
		}
		if count, _ := p.allOf(n, "t", 1); len(count) != 10 {
			c.T.Errorf("%d of 10 came", len(count))
		}
	})
}

// TestServiceThatMeetsAnErrorIsRunAgain, with growing pauses, and does what came meanwhile; the operator sees that it does not run.
func TestServiceThatMeetsAnErrorIsRunAgain(t *testing.T) {
	for name, k := range map[string]struct{ progress, properties string }{
		"delayed messages": {serviceDelay, "DELAY\x011\x02UNIQ_KEY\x01U\x02"},
		"timer messages":   {serviceTimer, "TIMER_DELAY_SEC\x012\x02UNIQ_KEY\x01U\x02"},
		"transactions":     {serviceTransaction, "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 1, nil, func(c *cluster) {
				p := c.client("10.1.0.1")
				n := c.leader()
				write := func(text string) {
					b := c.brokers[n]
					if err := b.meta.write(c.T.Context(), record{Kind: "progress", Progress: map[string]json.RawMessage{k.progress: json.RawMessage(text)}}); err != nil {
						c.T.Fatal(err)
					}
				}
				write(`"nonsense"`)
				c.kill(n)
				c.start(n)
				c.leader()
				f := p.must(n, mq.CodeSend, sendExt("t", 0, "properties", k.properties), []byte("x"))
				time.Sleep(3 * time.Minute)
				p = c.client("10.1.0.2") // the connection was idle for too long
				var info mq.KVTable
				p.json(n, mq.CodeRuntimeInfo, nil, nil, &info)
				tries, err := strconv.Atoi(info.Table["leaderServiceErrors"])
				if err != nil || tries < 8 || tries > 14 || !strings.Contains(info.Table["leaderServicesFailing"], name+": progress of "+k.progress) {
					c.T.Errorf("told: %q errors, failing %q", info.Table["leaderServiceErrors"], info.Table["leaderServicesFailing"])
				}
				if count, _ := p.allOf(n, "t", 1); len(count) != 0 {
					c.T.Fatalf("it came, and the service does not run: %v", count)
				}
				write(`{}`)
				b := c.brokers[n]
				c.Wait("the service to run", func() bool { _, failing := b.failing.Load(name); return !failing })
				if k.progress == serviceTransaction {
					_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
					if err != nil {
						c.T.Fatal(err)
					}
					p.must(n, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", "U"), nil)
				}
				c.Wait("the message", func() bool { count, _ := p.allOf(n, "t", 1); return count["x"] == 1 })
			})
		})
	}
}

// TestTransactionBeingEndedIsNotEndedAgainByTheServiceThatWasRunAgain: its end is still on its way into the log, which the service does not see there.
func TestTransactionBeingEndedIsNotEndedAgainByTheServiceThatWasRunAgain(t *testing.T) {
	var fail context.CancelFunc
	before := services
	defer func() { services = before }()
	services = slices.Clone(services)
	run := services[2].run
	services[2].run = func(b *Broker, ctx context.Context, term dledger.Term) error {
		mine, cancel := context.WithCancel(ctx)
		defer cancel()
		fail = cancel
		if err := run(b, mine, term); err != nil || ctx.Err() != nil {
			return err
		}
		return errors.New("a fault")
	}
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		b := c.brokers[n]
		f := p.must(n, mq.CodeSend, sendExt("t", 0, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"), []byte("x"))
		_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
		if err != nil {
			c.T.Fatal(err)
		}
		m, err := b.messageAt(pos)
		if err != nil {
			c.T.Fatal(err)
		}
		t := &b.transactions
		c.Wait("the half", func() bool { return len(t.open()) == 1 })
		state := func() chan struct{} {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.ready
		}
		h, err := t.hold(c.T.Context(), state(), &m)
		if h == nil || err != nil {
			c.T.Fatal(h, err)
		}
		fail()
		c.Wait("the service to be stopped", func() bool { return b.failures.Load() == 1 })
		time.Sleep(serviceAgainMax)
		if state() != nil {
			c.T.Error("it goes on although a transaction is being ended")
		}
		if err := t.still(h, nil); err != nil {
			c.T.Fatal(err)
		}
		p = c.client("10.1.0.2") // the connection was idle for too long
		p.must(n, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", "U"), nil)
		c.Wait("the message", func() bool { count, _ := p.allOf(n, "t", 1); return count["x"] == 1 })
	})
}

// TestTransactionsGoOnAfterAFullDisk that kept one from being given up.
func TestTransactionsGoOnAfterAFullDisk(t *testing.T) {
	inCluster(t, 1, func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = time.Second, time.Second, 1
	}, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"), []byte("half"))
		c.Disk(n).SetFree(0)
		c.Wait("the disk to be full", func() bool { return p.call(n, mq.CodeSend, sendExt("t", 0), make([]byte, 1<<20)).Code != mq.Success })
		time.Sleep(10 * time.Second)
		if given := c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0).Max; given != 0 {
			c.T.Fatalf("%d are given up on a full disk", given)
		}
		c.Disk(n).SetFree(-1)
		c.Wait("it to be given up", func() bool { return c.brokers[n].store.Bounds(mq.TopicTransCheckMax, 0).Max == 1 })
	})
}

// TestProducerOfAnotherReplicaIsAsked: the one that is connected to a replica which led before.
func TestProducerOfAnotherReplicaIsAsked(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.TransactionEvery, cfg.TransactionTimeout = 2*time.Second, time.Second }, func(c *cluster) {
		p := c.client("10.1.0.1")
		old := c.leader()
		p.must(old, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		if err := c.Member(old).TransferLeadership(c.T.Context(), c.follower()); err != nil {
			c.T.Fatal(err)
		}
		c.Wait("another leader", func() bool { return c.leader() != old })
		p.must(old, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"), []byte("x"))
		c.Wait("a question", func() bool { return p.got(mq.CodeCheckTransaction) > 0 })
	})
}

// TestServicesGoOnWhereAJavaBrokerWas: its delayOffset.json and consumerOffset.json say how far delays and transactions are.
func TestServicesGoOnWhereAJavaBrokerWas(t *testing.T) {
	files := map[string]string{
		"delayOffset.json":    `{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{1:2}}`,
		"consumerOffset.json": `{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:1},"RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:0}}}`,
	}
	setup := func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout = time.Second, time.Second
		dir := cfg.Log.Dir + "/config"
		if err := cfg.Log.FS.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := vfs.Replace(cfg.Log.FS, dir+"/"+name, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
	}
	inCluster(t, 1, setup, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		p.must(n, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
		if f := p.must(n, mq.CodeAllDelayOffset, nil, nil); !strings.Contains(string(f.Body), `"offsetTable":{1:2}`) {
			c.T.Errorf("delay offsets %s", f.Body)
		}
		for range 2 {
			p.must(n, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"), []byte("half"))
		}
		time.Sleep(8 * time.Second)
		p.mu.Lock()
		for _, f := range p.requests {
			if f.Code == mq.CodeCheckTransaction && f.Ext["tranStateTableOffset"] != "1" {
				c.T.Errorf("asked about half %s, want 1 alone", f.Ext["tranStateTableOffset"])
			}
		}
		p.mu.Unlock()
		if p.got(mq.CodeCheckTransaction) == 0 {
			c.T.Error("never asked")
		}
	})
}

// TestReplicaThatCannotDispatchLeaves: its queues cannot be written, so another one leads; what is no record in the metadata topic harms nobody.
func TestReplicaThatCannotDispatchLeaves(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		bad := c.leader()
		got := make(chan msgstore.PutResult, 1)
		b := c.brokers[bad]
		b.store.Put([]*mq.Message{{Topic: b.meta.topic, Body: []byte("no record"), BornHost: b.host}}, func(r msgstore.PutResult) { got <- r })
		if r := <-got; r.Status != msgstore.PutOK {
			c.T.Fatal(r)
		}
		p.must(bad, mq.CodeSend, sendExt("t", 0), []byte("x"))
		c.Disk(bad).Mem().SetHook(func(call vfs.Call) error {
			if call.Op == "write" && strings.Contains(call.Name, "consumequeue") {
				return syscall.EIO
			}
			return nil
		})
		other := c.IDs()[0]
		if other == bad {
			other = c.IDs()[1]
		}
		for i := range 40 {
			p.must(other, mq.CodeSend, sendExt("t", 0), fmt.Append(nil, i))
			time.Sleep(500 * time.Millisecond)
		}
		if l := c.leader(); l == bad {
			c.T.Errorf("%s still leads", l)
		}
		delete(c.brokers, bad)
		if count, _ := p.allOf(other, "t", 1); len(count) != 41 {
			c.T.Errorf("%d messages, want 41", len(count))
		}
	})
}

// TestFullCopyTellsHowFarQueuesHaveCome: a replica that sees only it knows their next offsets, but not those of topics that are gone.
func TestFullCopyTellsHowFarQueuesHaveCome(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p := c.client("10.1.0.1")
		n := c.leader()
		for i := range 5 {
			p.must(n, mq.CodeSend, sendExt("t", i%2), []byte("x"))
			p.must(n, mq.CodeSend, sendExt("gone", 0), []byte("x"))
		}
		b := c.brokers[n]
		c.Wait("the messages to be in their queues", func() bool { return b.store.Stats().Behind == 0 })
		fresh := func() state { return newState(&b.cfg) }
		s := fresh()
		recs := b.meta.full()
		for i := range recs {
			s.apply(&recs[i], int64(i), fresh)
		}
		if s.Floors["t"][0] != 3 || s.Floors["t"][1] != 2 || s.Floors["gone"][0] != 5 {
			c.T.Errorf("floors %v", s.Floors)
		}
		s.apply(&record{NoTopics: []string{"gone"}}, int64(len(recs)), fresh)
		if len(s.Floors["gone"]) > 0 {
			c.T.Errorf("floors of a deleted topic: %v", s.Floors["gone"])
		}
	})
}

// TestQuestionsAboutATransactionAreCountedOverChangesOfLeadership, so that one that nobody decides is given up in the end.
func TestQuestionsAboutATransactionAreCountedOverChangesOfLeadership(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) {
		cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = 7*time.Second, 2*time.Second, 4
	}, func(c *cluster) {
		p := c.client("10.1.0.1")
		p.must(c.leader(), mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02"), []byte("half"))
		var times []string
		beat := func() {
			for _, id := range c.IDs() {
				if c.brokers[id] != nil {
					p.must(id, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
				}
			}
			time.Sleep(time.Second)
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, f := range p.requests {
				if f.Code != mq.CodeCheckTransaction {
					continue
				}
				m, _, err := mq.ParseStored(f.Body)
				if err != nil {
					c.T.Fatal(err)
				}
				times = append(times, strings.Clone(m.Prop(mq.PropCheckTimes)))
			}
			p.requests = nil
		}
		for range 20 {
			beat()
		}
		old := c.leader()
		c.kill(old)
		c.leader()
		c.start(old)
		for range 60 {
			beat()
		}
		equal(c.T, "the questions' numbers", times, []string{"1", "2", "3", "4"})
		if n := c.brokers[c.leader()].store.MaxOffset(mq.TopicTransCheckMax, 0); n != 1 {
			c.T.Errorf("%d transactions are given up, want 1", n)
		}
	})
}

// TestDemotedLeaderDoesWithoutItsServices: one that hands over, or that is cut off from the others and not from its clients, asks no producer any more and puts nothing into
// its log from the moment it does not lead; that is at once, or when it has missed the majority for an election's time. Whoever leads goes on: it asks, and delivers
// in time, once. So does the former leader when it leads again.
func TestDemotedLeaderDoesWithoutItsServices(t *testing.T) {
	for _, how := range []string{"hands over", "is cut off"} {
		t.Run(how, func(t *testing.T) {
			inCluster(t, 3, func(cfg *Config) {
				cfg.TransactionEvery, cfg.TransactionTimeout, cfg.TransactionChecks = 200*time.Millisecond, time.Second, 1000
			}, func(c *cluster) {
				t := c.T
				producers := map[string]*client{} // one at each replica, which asks those that are connected there before others
				beat := func() {
					for id, p := range producers {
						p.must(id, mq.CodeHeartbeat, nil, fmt.Appendf(nil, `{"clientID":"at %s","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`, id))
					}
				}
				for i, id := range c.IDs() {
					producers[id] = c.client(fmt.Sprint("10.1.0.", i))
				}
				old := c.leader()
				beat()
				p := producers[old]
				p.must(old, mq.CodeSend, sendExt("t", 0, "sysFlag", mq.SysPrepared, "properties", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01half\x02"), []byte("half"))
				due := map[string]time.Time{}
				delayed := func(id string) { // some that are due while nobody leads, and later
					for _, prop := range []string{"DELAY\x011", "DELAY\x012", "TIMER_DELAY_MS\x01300", "TIMER_DELAY_MS\x011500", "TIMER_DELAY_MS\x018000"} {
						body := fmt.Sprint("delayed ", len(due))
						p.must(id, mq.CodeSend, sendExt("t", 0, "properties", prop+"\x02UNIQ_KEY\x01"+body+"\x02"), []byte(body))
						due[body] = time.Now().Add(map[string]time.Duration{"DELAY\x011": time.Second, "DELAY\x012": 5 * time.Second, "TIMER_DELAY_MS\x01300": 300 * time.Millisecond,
							"TIMER_DELAY_MS\x011500": 1500 * time.Millisecond, "TIMER_DELAY_MS\x018000": 8 * time.Second}[prop])
					}
				}
				asked := func(id string) int { return producers[id].got(mq.CodeCheckTransaction) }
				c.Wait("questions of the leader", func() bool { return asked(old) > 3 })
				delayed(old)

				from := time.Now()
				if how == "hands over" {
					if err := c.Member(old).TransferLeadership(t.Context(), c.follower()); err != nil {
						t.Fatal(err)
					}
				} else {
					c.Partition([]string{old})
				}
				c.Wait("the end of its leadership", func() bool { return !c.brokers[old].Leads() })
				if took := time.Since(from); took > 2*time.Second {
					t.Errorf("it served as leader for %v more", took)
				}
				before, last := asked(old), c.last(old)
				c.Wait("another leader's question", func() bool { return asked(c.leader()) > 0 && c.leader() != old })
				time.Sleep(12 * time.Second)
				if n := asked(old) - before; n > 0 {
					t.Errorf("it asked %d times after it had led", n)
				}
				if n := c.last(old); how == "is cut off" && n > last {
					t.Errorf("it put entries %d to %d into its log after it had led", last+1, n)
				}
				c.Heal()
				c.Agree()
				time.Sleep(5 * time.Second)
				if n := asked(old) - before; n > 0 {
					t.Errorf("it asked %d times as a follower", n)
				}

				beat()
				c.Wait("the former leader to lead again", func() bool {
					return c.Member(c.leader()).TransferLeadership(t.Context(), old) == nil || c.leader() == old
				})
				c.Wait("its questions", func() bool { return asked(old) > before })
				delayed(c.leader())
				time.Sleep(12 * time.Second)
				for _, id := range c.IDs() {
					count, stored := p.allOf(id, "t", 4)
					for body, at := range due {
						if late := stored[body].Sub(at); count[body] != 1 || late < -1100*time.Millisecond || late > 5*time.Second {
							t.Errorf("%s: %q came %d times, first %v after it was due", id, body, count[body], late)
						}
					}
				}
			})
		})
	}
}

// last is the index of the last entry in a replica's log.
func (c *cluster) last(id string) dledger.Index {
	c.T.Helper()
	s, err := c.Member(id).Status(c.T.Context())
	if err != nil {
		c.T.Fatal(err)
	}
	return s.Last
}
