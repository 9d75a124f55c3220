package broker

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// TestWhatIsSentBackComesAgainOrIsRefused, whatever the group's name: one of 255 bytes is legal, but not the topics that begin with %RETRY% or %DLQ% and go on with it; a Java leader lets
// a group have names that ours refuses.
func TestWhatIsSentBackComesAgainOrIsRefused(t *testing.T) {
	inCluster(t, 1, nil, func(c *cluster) {
		t := c.T
		n := c.leader()
		b := c.brokers[n]
		p := c.client("10.1.0.1")
		_, offset, err := mq.ParseMsgID(p.must(n, mq.CodeSend, sendExt("t", 0), []byte("x")).Ext["msgId"])
		if err != nil {
			t.Fatal(err)
		}
		theirs := mq.DefaultGroup("of.another")
		added := make(chan error, 1)
		b.meta.submit(record{Kind: "groups", Groups: map[string]mq.SubscriptionGroupConfig{theirs.GroupName: theirs}}, func(err error) { added <- err })
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		long := func(n int) string { return strings.Repeat("g", n) }
		for _, k := range []struct {
			group       string
			again, dead bool
		}{{"g", true, true}, {long(248), true, true}, {long(249), false, true}, {long(250), false, true}, {long(251), false, false}, {long(255), false, false}, {"of.another", true, true}} {
			if k.group != "of.another" {
				p.must(n, mq.CodeHeartbeat, nil, heart("a", k.group, "t"))
			}
			for _, way := range []struct {
				level int
				topic string
				taken bool
			}{{1, mq.RetryTopic(k.group), k.again}, {-1, mq.DLQTopic(k.group), k.dead}} {
				waiting := b.store.MaxOffset(mq.TopicSchedule, 0)
				f := p.call(n, mq.CodeSendBack, ext("offset", offset, "group", k.group, "delayLevel", way.level), nil)
				switch {
				case way.taken && f.Code == mq.Success:
					c.Wait("the message in "+way.topic, func() bool { return b.store.MaxOffset(way.topic, 0) == 1 })
					c.same(n, way.topic, 0, []string{"x"})
				case way.taken || f.Code != mq.SystemError || !strings.Contains(f.Remark, k.group) || !strings.Contains(f.Remark, "at most 255"):
					t.Errorf("group of %d bytes, level %d: code %d %q, want that it is taken: %v", len(k.group), way.level, f.Code, f.Remark, way.taken)
				case b.store.MaxOffset(mq.TopicSchedule, 0) != waiting:
					t.Errorf("group of %d bytes, level %d: refused, and stored", len(k.group), way.level)
				}
			}
		}
	})
}

// TestMessageWithLongTopicIsFoundOverIPv6: hosts of 20 bytes, and a topic whose length only the newer stored form can tell, on each of the ways to a message, at each replica. It is sent to
// a follower, which passes it on, and to the leader.
func TestMessageWithLongTopicIsFoundOverIPv6(t *testing.T) {
	inCluster(t, 3, func(cfg *Config) { cfg.IP = "fd00::1" + cfg.Log.ID[1:] }, func(c *cluster) {
		t := c.T
		p := c.client("fd00::99")
		group := strings.Repeat("g", 200-len(mq.RetryPrefix))
		topic := mq.RetryTopic(group)
		leader := c.leader()
		p.must(leader, mq.CodeHeartbeat, nil, heart("a", group, "t"))
		want := []string{}
		for i, at := range []string{c.follower(), leader} {
			body, key := fmt.Sprint("message ", i), fmt.Sprint("k", i)
			f := p.must(at, mq.CodeSend, sendExt(topic, 0, "properties", "KEYS\x01"+key+"\x02"), []byte(body))
			want = append(want, body)
			id := f.Ext["msgId"]
			host, offset, err := mq.ParseMsgID(id)
			if err != nil || len(id) != 56 || host.String() != c.address(leader) {
				t.Fatalf("id %s names %v, %v; want the leader's %s", id, host, err, c.address(leader))
			}
			for _, n := range c.IDs() {
				c.same(n, topic, 0, want)
				found := func(way string, f *remoting.Frame, err error) {
					t.Helper()
					if err != nil || f.Code != mq.Success {
						t.Errorf("%s, %s: %+v, %v", n, way, f, err)
						return
					}
					m, size, err := mq.ParseStored(f.Body)
					if err != nil || size != len(f.Body) || string(m.Body) != body || m.Topic != topic || m.MsgID() != id || m.StoreHost != host ||
						m.BornHost != netip.MustParseAddrPort("[fd00::99]:50000") || m.SysFlag != mq.SysBornHostV6|mq.SysStoreHostV6 {
						t.Errorf("%s, %s: %+v, %v", n, way, m, err)
					}
				}
				query := func(key string, more ...any) *remoting.Frame {
					return p.call(n, mq.CodeQueryMessage, ext(append([]any{"topic", topic, "key", key, "maxNum", 10, "beginTimestamp", 0, "endTimestamp", int64(math.MaxInt64)}, more...)...), nil)
				}
				found("pulled", p.call(n, mq.CodePull, pullExt(group, topic, 0, int64(i), 0), nil), nil)
				found("by id", p.call(n, mq.CodeViewMessage, ext("topic", topic, "offset", offset), nil), nil)
				found("by key", query(key), nil)
				found("by unique key", query(f.Ext["transactionId"], "_UNIQUE_KEY_QUERY", true), nil)
			}
			viewed, err := p.r.Call(t.Context(), host.String(), remoting.Request{Code: mq.CodeViewMessage, Ext: ext("offset", offset)}, time.Minute)
			if err != nil || !strings.Contains(string(viewed.Body), body) {
				t.Errorf("at the host in the id: %+v, %v", viewed, err)
			}
		}
		if route, ok := p.route(topic); !ok || route.BrokerDatas[0].BrokerAddrs[0] != c.address(leader) {
			t.Errorf("the route is %+v", route)
		}
	})
}
