package broker

import (
	"strings"
	"testing"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// TestOnlyMembersAreBelieved: what replicas tell each other, a client cannot say, nor can it find out what they know each other by.
func TestOnlyMembersAreBelieved(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		leader, follower := c.leader(), c.follower()
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("first"))
		p.must(leader, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		q.must(follower, mq.CodeSend, sendExt("t", 0, "producerGroup", "pg"), []byte("second"))
		report := []byte(`{"address":"10.1.0.9:1","consumers":{"g":{"data":{},"members":[{"id":"z","address":"10.1.0.9:1"}]}}}`)
		for _, wrong := range []string{"", "x", strings.Repeat("A", 26)} {
			for name, f := range map[string]*remoting.Frame{
				"a send":   p.call(leader, mq.CodeSend, sendExt("t", 0, fieldFrom, "10.9.9.9:1", fieldMember, wrong), []byte("forged")),
				"a pull":   p.call(follower, mq.CodePull, pullExt("g", "t", 0, 0, 0, fieldFrom, "10.9.9.9:1", fieldMember, wrong), nil),
				"a report": p.call(leader, codeTellClients, ext(fieldFrom, "10.9.9.9:1", fieldMember, wrong), report),
				"one more": p.call(leader, codeTellClients, ext(fieldMember, wrong), report),
				"a relay":  p.call(follower, codeRelay, ext(fieldMember, wrong, fieldCode, mq.CodeCheckTransaction, fieldGroup, "pg"), nil),
			} {
				if f.Code != mq.ServiceNotAvailable || !strings.Contains(f.Remark, "members") {
					c.T.Errorf("%s with %q: code %d %s", name, wrong, f.Code, f.Remark)
				}
			}
		}
		if got := string(p.must(leader, mq.CodeConsumerList, ext("consumerGroup", "g"), nil).Body); got != `{"consumerIdList":["a"]}` {
			c.T.Errorf("members %s", got)
		}
		c.same(leader, "t", 0, []string{"first", "second"})
		if n := q.got(mq.CodeCheckTransaction); n != 0 {
			c.T.Errorf("a client was asked %d times", n)
		}

		// The records are nobody's business.
		secret := c.secret()
		for _, id := range c.IDs() {
			b := c.brokers[id]
			if f := p.call(id, mq.CodePull, pullExt("g", b.meta.topic, 0, 0, 0), nil); f.Code != mq.NoPermission {
				c.T.Errorf("%s: a pull of records: code %d %s", id, f.Code, f.Remark)
			}
			if f := p.call(id, mq.CodeQueryMessage, ext("topic", b.meta.topic, "key", "leader", "maxNum", 10, "beginTimestamp", 0, "endTimestamp", int64(1)<<60), nil); f.Code != mq.NoPermission {
				c.T.Errorf("%s: a query for records: code %d %s", id, f.Code, f.Remark)
			}
			shown := 0
			first, _ := b.ledger.First()
			if _, err := b.ledger.Committed(first, func(e dledger.Entry) bool {
				if !strings.Contains(string(e.Body), secret) {
					return true
				}
				shown++
				for _, f := range []*remoting.Frame{
					p.call(id, mq.CodeViewMessage, ext("offset", e.Pos+headerSize), nil),
					p.call(id, mq.CodeSendBack, ext("offset", e.Pos+headerSize, "group", "g", "delayLevel", 1), nil),
				} {
					if f.Code != mq.SystemError || strings.Contains(string(f.Body), secret) {
						c.T.Errorf("%s: code %d %s %q", id, f.Code, f.Remark, f.Body)
					}
				}
				return shown < 2
			}); err != nil {
				c.T.Fatal(err)
			}
			if shown == 0 || secret == "" || *b.meta.pass.Load() != secret {
				c.T.Errorf("%s has %q, found in %d records, want %q", id, *b.meta.pass.Load(), shown, secret)
			}
		}

		// It stays the same for as long as the group lives.
		full := c.brokers[leader].meta.full()
		fresh := func() state { return newState(&c.brokers[leader].cfg) }
		s := fresh()
		for i := range full {
			s.apply(&full[i], int64(i), fresh)
		}
		if s.Secret != secret {
			c.T.Errorf("a full copy has %q", s.Secret)
		}
		c.kill(leader)
		c.leader()
		c.start(leader)
		p.must(leader, mq.CodeSend, sendExt("t", 0), []byte("third")) // is passed on
		if got := c.secret(); got != secret {
			c.T.Errorf("the next leader has %q, want %q", got, secret)
		}
	})
}

// TestRelayedRequestsShowNothingOfTheGroup: what replicas add to a request does not reach clients.
func TestRelayedRequestsShowNothingOfTheGroup(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		leader, follower := c.leader(), c.follower()
		p.must(leader, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		q.must(follower, mq.CodeConsumerRunningInfo, ext("consumerGroup", "g", "clientId", "a"), nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, f := range p.requests {
			for name := range f.Ext {
				if strings.HasPrefix(name, "__") {
					c.T.Errorf("request %d has %s", f.Code, name)
				}
			}
		}
	})
}
