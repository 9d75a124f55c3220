package broker

import (
	"strings"
	"testing"

	"dledger/internal/mq"
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
