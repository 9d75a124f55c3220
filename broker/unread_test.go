package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// reopen starts all replicas again, so that they have nothing in memory, and gives the one that leads.
func (c *cluster) reopen() string {
	c.T.Helper()
	for _, id := range c.IDs() {
		if err := c.brokers[id].Close(); err != nil {
			c.T.Fatal(err)
		}
		delete(c.brokers, id)
	}
	c.Stop(c.IDs()...)
	for _, id := range c.IDs() {
		c.start(id)
	}
	return c.leader()
}

// stain is one damaged byte of a replica's log.
type stain struct {
	c    *cluster
	id   string
	name string
	at   int64
	was  byte
}

// stain flips a bit of a stored message, found by its body: off bytes behind where that begins.
func (c *cluster) stain(id, body string, off int) stain {
	c.T.Helper()
	mem, dir := c.Disk(id).Mem(), "/"+id+"/dledger-"+id+"/data/"
	names, err := mem.ReadDir(dir)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, n := range names {
		b, err := vfs.ReadFile(mem, dir+n)
		if err != nil {
			c.T.Fatal(err)
		}
		if i := bytes.Index(b, []byte(body)); i >= 0 {
			s := stain{c, id, dir + n, int64(i + off), b[i+off]}
			if err := mem.Flip(s.name, s.at, 0x04); err != nil {
				c.T.Fatal(err)
			}
			return s
		}
	}
	c.T.Fatalf("%s has no message %q", id, body)
	panic("unreachable")
}

// gone waits until the byte is as it was.
func (s stain) gone() {
	s.c.T.Helper()
	s.c.Wait("the repair of "+s.id, func() bool {
		st := s.c.Member(s.id).Stats()
		return st.DamagedBytes == 0 && st.Damages == 1 && st.Repaired >= 1
	})
	b, err := vfs.ReadFile(s.c.Disk(s.id).Mem(), s.name)
	if err != nil || b[s.at] != s.was {
		s.c.T.Errorf("byte %d of %s is %#x, want %#x (%v)", s.at, s.name, b[s.at], s.was, err)
	}
}

// seen gives the bodies that a topic's queue 0 shows at a replica, and holds that none is damaged.
func (cl *client) seen(id, topic string, want func(body string) bool) (all []string) {
	cl.c.T.Helper()
	for at := int64(0); ; {
		f := cl.call(id, mq.CodePull, pullExt("g", topic, 0, at, 0), nil)
		got, offsets := bodies(cl.c.T, f.Body)
		for i, b := range got {
			if !want(b) || offsets[i] != at+int64(i) {
				cl.c.T.Fatalf("%s gives %q at %d of topic %s, asked from %d on", id, b, offsets[i], topic, at)
			}
		}
		if all = append(all, got...); f.Code != mq.Success {
			return all
		}
		at += int64(len(got))
	}
}

// Where bits are flipped: in the body, in the header of the message (its queue id), in the header of the entry (its index).
var stained = map[string]int{"body": 3, "queue id": -88 + 15, "index": -88 - 48 + 15}

// TestDamagedMessagesAreServedOnceTheyAreWhole: a bit of a message flips on the disk of the leader, of three. Whichever way it is asked for, the damaged message is never
// given, nor stored anew in another place; the right one is soon, and the disk has it again.
func TestDamagedMessagesAreServedOnceTheyAreWhole(t *testing.T) {
	const body = "the precious message itself"
	plain := func(c *cluster, p *client, props string) *mq.Message {
		f := p.must(c.leader(), mq.CodeSend, sendExt("t", 0, "properties", "KEYS\x01K\x02UNIQ_KEY\x01U\x02"+props), []byte(body))
		_, pos, err := mq.ParseMsgID(f.Ext["msgId"])
		if err != nil {
			c.T.Fatal(err)
		}
		return &mq.Message{PhysicalOffset: pos}
	}
	right := func(b string) bool { return b == body || strings.HasPrefix(b, "filler") }
	comes := func(c *cluster, p *client, l, topic string) string {
		c.T.Helper()
		c.Wait("the message in "+topic, func() bool { return slices.Contains(p.seen(l, topic, right), body) })
		return body
	}
	one := func(c *cluster, f *remoting.Frame) string {
		got, _ := bodies(c.T, f.Body)
		if f.Code != mq.Success || len(got) == 0 {
			c.T.Errorf("code %d, %s, %d messages", f.Code, f.Remark, len(got))
			return ""
		}
		return got[0]
	}
	late := func(c *cluster, p *client, l string, _ *mq.Message) string { // there are 40 others
		return one(c, p.call(l, mq.CodePull, pullExt("g", "t", 0, 40, 50_000), nil))
	}
	for _, k := range []struct {
		name string
		send func(c *cluster, p *client) *mq.Message
		ask  func(c *cluster, p *client, l string, m *mq.Message) (served string)
	}{
		{"pull", func(c *cluster, p *client) *mq.Message { return plain(c, p, "") }, func(c *cluster, p *client, l string, m *mq.Message) string { return comes(c, p, l, "t") }},
		{"held pull", func(c *cluster, p *client) *mq.Message { return plain(c, p, "") }, func(c *cluster, p *client, l string, m *mq.Message) string {
			begin := time.Now()
			got := one(c, p.call(l, mq.CodePull, pullExt("g", "t", 0, 20, 15_000), nil))
			if d := time.Since(begin); d > time.Second {
				c.T.Errorf("answered after %v", d)
			}
			return got
		}},
		{"by id", func(c *cluster, p *client) *mq.Message { return plain(c, p, "") }, func(c *cluster, p *client, l string, m *mq.Message) string {
			return one(c, p.call(l, mq.CodeViewMessage, ext("offset", m.PhysicalOffset), nil))
		}},
		{"by key", func(c *cluster, p *client) *mq.Message { return plain(c, p, "") }, func(c *cluster, p *client, l string, m *mq.Message) string {
			return one(c, p.call(l, mq.CodeQueryMessage, ext("topic", "t", "key", "K", "maxNum", 8, "beginTimestamp", 0, "endTimestamp", int64(1)<<60), nil))
		}},
		{"by time", func(c *cluster, p *client) *mq.Message { return plain(c, p, "") }, func(c *cluster, p *client, l string, m *mq.Message) string {
			f := p.must(l, mq.CodeSearchOffset, ext("topic", "t", "queueId", 0, "timestamp", 1), nil)
			if f.Ext["offset"] != "0" {
				c.T.Errorf("the first message is at %s", f.Ext["offset"])
			}
			p.seen(l, "t", right)
			return body
		}},
		{"send-back", func(c *cluster, p *client) *mq.Message {
			p.must(c.leader(), mq.CodeHeartbeat, nil, heart("a", "g", "t"))
			return plain(c, p, "")
		}, func(c *cluster, p *client, l string, m *mq.Message) string {
			p.must(l, mq.CodeSendBack, ext("offset", m.PhysicalOffset, "group", "g", "delayLevel", -1, "originTopic", "t"), nil)
			return comes(c, p, l, mq.DLQTopic("g"))
		}},
		{"delayed", func(c *cluster, p *client) *mq.Message { return plain(c, p, "DELAY\x014\x02") }, late},
		{"timer", func(c *cluster, p *client) *mq.Message { return plain(c, p, "TIMER_DELAY_SEC\x0130\x02") }, late},
		{"transaction", func(c *cluster, p *client) *mq.Message { return plain(c, p, "TRAN_MSG\x01true\x02PGROUP\x01p\x02") }, func(c *cluster, p *client, l string, m *mq.Message) string {
			p.must(l, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", 0, "commitLogOffset", m.PhysicalOffset, "commitOrRollback", 8, "msgId", "U"), nil)
			return comes(c, p, l, "t")
		}},
		{"question about a transaction", func(c *cluster, p *client) *mq.Message {
			return plain(c, p, "TRAN_MSG\x01true\x02PGROUP\x01p\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02")
		}, func(c *cluster, p *client, l string, m *mq.Message) string {
			p.must(l, mq.CodeHeartbeat, nil, []byte(`{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}`))
			c.Wait("the question", func() bool { return p.got(mq.CodeCheckTransaction) > 0 })
			p.mu.Lock()
			defer p.mu.Unlock()
			got, _ := bodies(c.T, p.requests[len(p.requests)-1].Body)
			return got[0]
		}},
	} {
		for where, off := range stained {
			t.Run(k.name+"/"+where, func(t *testing.T) {
				inCluster(t, 3, func(cfg *Config) { cfg.TransactionEvery = 10 * time.Second }, func(c *cluster) {
					p := c.client("10.1.0.1")
					for i := range 20 {
						p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte(fmt.Sprint("filler ", i)))
					}
					m := k.send(c, p)
					for i := range 20 {
						p.must(c.leader(), mq.CodeSend, sendExt("t", 0), []byte(fmt.Sprint("filler ", 20+i)))
					}
					c.Agree()
					l := c.reopen()
					s := c.stain(l, body, off)
					if got := k.ask(c, c.client("10.1.0.2"), l, m); got != body {
						c.T.Errorf("in the end it is %q", got)
					}
					s.gone()
					if c.leader() != l || !c.brokers[l].Leads() {
						c.T.Errorf("%s leads instead of %s", c.leader(), l)
					}
				})
			})
		}
	}
}

// TestDamagedQueueEndsNoBroker: a bit flips in a consume queue file of the leader. It serves the other queues all the time, and this one once it is made anew.
func TestDamagedQueueEndsNoBroker(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		p := c.client("10.1.0.1")
		for i := range 60 {
			p.must(c.leader(), mq.CodeSend, sendExt("t", i%2), fmt.Append(nil, "message ", i))
		}
		c.Agree()
		l := c.reopen()
		name := "/" + l + "/broker/consumequeue/t/0/00000000000000000000"
		before, err := vfs.ReadFile(c.Disk(l).Mem(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{4, 10*20 + 7, 20*20 + 10} { // positions, and a size that leads beyond the log
			if err := c.Disk(l).Mem().Flip(name, at, 0x10); err != nil {
				t.Fatal(err)
			}
		}
		p = c.client("10.1.0.2")
		c.Wait("all messages", func() bool {
			if n := len(p.seen(l, "t", func(b string) bool { return strings.HasPrefix(b, "message ") })); n == 30 {
				return true
			}
			if got, _ := bodies(t, p.must(l, mq.CodePull, pullExt("g", "t", 1, 0, 0), nil).Body); len(got) != 30 {
				t.Fatalf("the other queue gives %d messages", len(got))
			}
			return false
		})
		if after, err := vfs.ReadFile(c.Disk(l).Mem(), name); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the file is another one (%v)", err)
		}
		if !c.brokers[l].Leads() {
			t.Errorf("%s leads instead of %s", c.leader(), l)
		}
		var info struct{ Table map[string]string }
		if err := json.Unmarshal(p.must(l, mq.CodeRuntimeInfo, nil, nil).Body, &info); err != nil {
			t.Fatal(err)
		}
		if got := info.Table["consumeQueueUnitsMended"]; got != "3" {
			t.Errorf("%s units are said to be mended, want 3", got)
		}
		p.must(l, mq.CodeSend, sendExt("t", 0), []byte("message and another"))
		c.Agree()
	})
}

// TestDamagedIndexEndsNoBroker: bits flip in the key index of the leader, in its header and in the number of an item. It serves all the time, finds every message by its
// key once the index is made anew, and says so to tools.
func TestDamagedIndexEndsNoBroker(t *testing.T) {
	const firstItem = 40 + 4*5_000_000 + 20
	for _, at := range []int64{3, firstItem + 4 + 6, firstItem + 21*20 + 16} {
		t.Run(fmt.Sprint("byte ", at), func(t *testing.T) {
			inCluster(t, 3, nil, func(c *cluster) {
				t := c.T
				p := c.client("10.1.0.1")
				for i := range 60 {
					p.must(c.leader(), mq.CodeSend, sendExt("t", i%2, "properties", fmt.Sprintf("KEYS\x01k%d\x02UNIQ_KEY\x01U%d\x02", i, i)), fmt.Append(nil, "message ", i))
				}
				c.Agree()
				l := c.reopen()
				dir := "/" + l + "/broker/index/"
				files, err := c.Disk(l).Mem().ReadDir(dir)
				if err != nil || len(files) != 1 {
					t.Fatal(files, err)
				}
				if err := c.Disk(l).Mem().Flip(dir+files[0], at, 0x10); err != nil {
					t.Fatal(err)
				}
				p = c.client("10.1.0.2")
				for i := range 60 {
					c.Wait("every message by its key", func() bool {
						f := p.call(l, mq.CodeQueryMessage, ext("topic", "t", "key", fmt.Sprint("k", i), "maxNum", 10, "beginTimestamp", 0, "endTimestamp", int64(1)<<60), nil)
						got, _ := bodies(t, f.Body)
						if f.Code == mq.Success && !slices.Equal(got, []string{fmt.Sprint("message ", i)}) || f.Code == mq.QueryNotFound {
							t.Fatalf("key %d: code %d, %s, %q", i, f.Code, f.Remark, got)
						}
						return f.Code == mq.Success
					})
				}
				p.must(l, mq.CodeSend, sendExt("t", 0), []byte("and another"))
				c.Agree()
				if !c.brokers[l].Leads() {
					t.Errorf("%s leads instead of %s", c.leader(), l)
				}
				var info struct{ Table map[string]string }
				if err := json.Unmarshal(p.must(l, mq.CodeRuntimeInfo, nil, nil).Body, &info); err != nil {
					t.Fatal(err)
				}
				if damaged, times := info.Table["keyIndexDamaged"], info.Table["keyIndexRemade"]; damaged != "false" || times != "1" {
					t.Errorf("the index is said to be damaged: %q, and made anew %q times", damaged, times)
				}
			})
		})
	}
}

// TestServicesGoOnWithoutWhatNobodyHas: a broker that is alone passes over a damaged delayed message, timer, and half; those behind them are delivered.
func TestServicesGoOnWithoutWhatNobodyHas(t *testing.T) {
	for name, props := range map[string]string{"delayed": "DELAY\x014\x02", "timer": "TIMER_DELAY_SEC\x0130\x02", "transaction": "TRAN_MSG\x01true\x02PGROUP\x01p\x02"} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 1, nil, func(c *cluster) {
				p := c.client("10.1.0.1")
				var pos int64
				for _, body := range []string{"precious and lost", "whole"} {
					f := p.must(c.leader(), mq.CodeSend, sendExt("t", 0, "properties", "UNIQ_KEY\x01"+body+"\x02"+props), []byte("body "+body))
					var err error
					if _, pos, err = mq.ParseMsgID(f.Ext["msgId"]); err != nil {
						c.T.Fatal(err)
					}
				}
				l := c.reopen()
				c.stain(l, "body precious and lost", 3)
				p = c.client("10.1.0.2")
				if name == "transaction" {
					p.must(l, mq.CodeEndTransaction, ext("producerGroup", "p", "tranStateTableOffset", 1, "commitLogOffset", pos, "commitOrRollback", 8, "msgId", "whole"), nil)
				}
				c.Wait("the whole one", func() bool {
					time.Sleep(time.Second)
					return slices.Contains(p.seen(l, "t", func(b string) bool { return b == "body whole" }), "body whole")
				})
			})
		})
	}
}
