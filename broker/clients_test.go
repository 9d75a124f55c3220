package broker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
)

// TestWhatClientsSayIsBounded: one connection takes no room from others, and groups that are only named are not made without end.
func TestWhatClientsSayIsBounded(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		n := c.leader()
		b := c.brokers[n]
		long := strings.Repeat("a || ", 1<<19/5)
		said := 0
		for i := range 100 {
			body := mq.Marshal(mq.Heartbeat{ClientID: "a", Consumers: []mq.ConsumerData{{GroupName: fmt.Sprint("group", i), ConsumeType: "CONSUME_PASSIVELY", MessageModel: "CLUSTERING",
				ConsumeFromWhere: "CONSUME_FROM_LAST_OFFSET", Subscriptions: []mq.SubscriptionData{{Topic: "t", SubString: long, ExpressionType: "TAG"}}}}})
			f := p.call(n, mq.CodeHeartbeat, nil, body)
			if f.Code == mq.SystemBusy && strings.Contains(f.Remark, "OVERLOAD") {
				break
			}
			if f.Code != mq.Success {
				c.T.Fatalf("code %d %s", f.Code, f.Remark)
			}
			said += len(body)
		}
		if said < saidOne*9/10 || said > saidOne {
			c.T.Errorf("%d bytes were taken, want about %d", said, saidOne)
		}
		q.must(n, mq.CodeHeartbeat, nil, heart("b", "g", "t"))
		time.Sleep(2 * time.Second)
		q.must(n, mq.CodeHeartbeat, nil, heart("b", "g", "t"))

		b.clients.mu.Lock()
		var s *session
		for one := range b.clients.sessions {
			if one.addr.Addr().String() == "10.1.0.2" {
				s = one
			}
		}
		b.clients.mu.Unlock()
		for i := range saidOne / saidEach {
			b.clients.produces(&request{b: b, session: s}, fmt.Sprint("p", i), "")
		}
		b.clients.mu.Lock()
		if n := len(b.clients.producers); n < 1000 || n*saidEach > saidOne {
			c.T.Errorf("one connection produces for %d groups", n)
		}
		b.clients.mu.Unlock()

		secret := c.secret()
		for i := range reportsMax + 10 {
			body, err := json.Marshal(report{Address: fmt.Sprintf("10.2.0.%d:1", i)})
			if err != nil {
				c.T.Fatal(err)
			}
			f := p.call(n, codeTellClients, ext(fieldFrom, "10.2.0.1:1", fieldMember, secret), body)
			if i < reportsMax && f.Code != mq.Success || i >= reportsMax && f.Code != mq.SystemBusy {
				c.T.Errorf("report %d: code %d %s", i, f.Code, f.Remark)
			}
		}

		p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		b.meta.mu.Lock()
		for i := range groupsMax {
			name := fmt.Sprint("many", i)
			b.meta.state.Groups[name] = mq.DefaultGroup(name)
		}
		b.meta.mu.Unlock()
		if f := p.call(n, mq.CodePull, pullExt("one-more", "t", 0, 0, 0), nil); f.Code != mq.GroupNotExist {
			c.T.Errorf("a group more than there may be: code %d %s", f.Code, f.Remark)
		}
		p.must(n, mq.CodePull, pullExt("many7", "t", 0, 0, 0), nil)
	})
}
