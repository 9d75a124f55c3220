package broker

import (
	"fmt"
	"slices"
	"testing"

	"dledger/internal/mq"
)

func TestQueuesAreSharedByTheMembersOfAGroup(t *testing.T) {
	inCluster(t, 3, nil, func(c *cluster) {
		t := c.T
		l, f := c.leader(), c.follower()
		p, q := c.client("10.1.0.1"), c.client("10.1.0.2")
		p.must(l, mq.CodeSend, sendExt("t", 0), []byte("x"))
		ask := func(id, client, topic, strategy string, model mq.MessageModel) (queues []int32, told bool) {
			t.Helper()
			body := mq.Marshal(mq.QueryAssignment{ClientID: client, Group: "g", Model: model, Strategy: strategy, Topic: topic})
			var a mq.Assignments
			if err := mq.Unmarshal(p.must(id, mq.CodeQueryAssignment, nil, body).Body, &a); err != nil {
				t.Fatal(err)
			}
			if a.List == nil {
				return nil, false
			}
			for _, x := range *a.List {
				if x.Mode != "PULL" || x.Queue.BrokerName != "a" || x.Queue.Topic != topic {
					t.Errorf("assigned: %+v", x)
				}
				queues = append(queues, x.Queue.QueueID)
			}
			return queues, true
		}
		if _, told := ask(l, "a", "t", "AVG", mq.Clustering); told {
			t.Error("a group without members was given queues")
		}
		p.must(l, mq.CodeHeartbeat, nil, heart("a", "g", "t"))
		q.must(f, mq.CodeHeartbeat, nil, heart("b", "g", "t")) // known to the follower alone, until that has told
		c.Wait("both members", func() bool { return len(c.brokers[l].clients.consumerIDs("g")) == 2 })
		for _, k := range []struct {
			at, client, topic, strategy string
			model                       mq.MessageModel
			want                        []int32
			told                        bool
		}{
			{l, "a", "t", "AVG", mq.Clustering, []int32{0, 1}, true},
			{l, "b", "t", "AVG", mq.Clustering, []int32{2, 3}, true},
			{f, "b", "t", "AVG", mq.Clustering, []int32{2, 3}, true},
			{f, "b", "t", "AVG_BY_CIRCLE", mq.Clustering, []int32{1, 3}, true},
			{l, "b", "t", "AVG", mq.Broadcasting, []int32{0, 1, 2, 3}, true},
			{l, "stranger", "t", "AVG", mq.Clustering, nil, true},
			{l, "a", "t", "MACHINE_ROOM", mq.Clustering, nil, false},
			{l, "a", "none", "AVG", mq.Clustering, nil, false},
		} {
			if got, told := ask(k.at, k.client, k.topic, k.strategy, k.model); told != k.told || !slices.Equal(got, k.want) {
				t.Errorf("%+v: %v %v", k, got, told)
			}
		}
		if f := p.call(l, mq.CodeQueryAssignment, nil, []byte("{")); f.Code != mq.SystemError {
			t.Errorf("nonsense: code %d", f.Code)
		}
		for _, k := range []struct {
			topic, group, mode string
			want               int32
		}{
			{"t", "g", "PULL", mq.Success}, {"t", "g", "POP", mq.NotSupported}, {"none", "g", "PULL", mq.TopicNotExist}, {"t", "none", "PULL", mq.GroupNotExist},
			{mq.RetryTopic("g"), "g", "PULL", mq.NoPermission},
		} {
			if f := p.call(l, mq.CodeSetRequestMode, nil, mq.Marshal(mq.RequestMode{Topic: k.topic, Group: k.group, Mode: k.mode})); f.Code != k.want {
				t.Errorf("%+v: code %d, %s", k, f.Code, f.Remark)
			}
		}
		if f := p.must(f, mq.CodeAllRequestMode, nil, nil); string(f.Body) != `{"messageRequestModeMap":{}}` {
			t.Errorf("modes %s", f.Body)
		}
	})
}

// Shares of all members together are all queues, each once, and as even as can be.
func TestSharesCoverAllQueues(t *testing.T) {
	for _, strategy := range []string{"AVG", "AVG_BY_CIRCLE"} {
		for n := range 12 {
			for members := 1; members < 7; members++ {
				var all, got []mq.MessageQueue
				for i := range n {
					all = append(all, mq.MessageQueue{Topic: "t", BrokerName: "a", QueueID: int32(i)})
				}
				var ids []string
				for i := range members {
					ids = append(ids, fmt.Sprint(i))
				}
				last := n + 1
				for _, id := range ids {
					part := share(strategy, all, ids, id)
					if len(part) > last || len(part) < n/members || len(part) > n/members+1 {
						t.Errorf("%s: member %s of %d gets %d of %d queues", strategy, id, members, len(part), n)
					}
					last = len(part)
					got = append(got, part...)
				}
				slices.SortFunc(got, mq.MessageQueue.Compare)
				if !slices.Equal(got, all) {
					t.Errorf("%s: %d members get %v of %d queues", strategy, members, got, n)
				}
			}
		}
	}
}
