package mq

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// What TestNothingIsLostBehindPartitions cuts is cut, and nothing else: requests that one broker passes to another, those of the clients of one side, answers to these, and
// what a broker tells one name server. Clients of a side are told of brokers where that side reaches them.
func TestLinksOfBrokersApartAreCut(t *testing.T) {
	c, err := cluster.StartApart(scratch(t), oursKind(t), oursKind(t))
	must(t, err)
	t.Cleanup(func() {
		c.Kill()
		must(t, c.Network.Close())
		must(t, c.Ports.Close())
	})
	must(t, c.Ready(within(t, time.Minute), 1))
	must(t, c.CreateTopic(within(t, time.Minute), "links", 1))
	ctx := within(t, 2*time.Minute)
	expect := func(what string, err error, works bool) {
		t.Helper()
		if (err == nil) != works {
			t.Errorf("%s: %v, want that it works: %v", what, err, works)
		}
	}
	leads := func() *cluster.Node { return c.LeaderAt(ctx, 0, cluster.BrokerName) }
	passed := func(by *cluster.Node) error { // a request that only the leader can carry out
		return c.CreateTopicAt(ctx, by.Addrs[0], "links_"+by.ID, 1)
	}
	must(t, harness.Until(ctx, "a leader that stays for a while", func() bool {
		l := leads()
		if l == nil {
			return false
		}
		var f []*cluster.Node
		for _, n := range c.Nodes {
			if n != l {
				f = append(f, n)
			}
		}
		both(c.Ports, f[0].ID, l.ID, lost)
		cut, other := passed(f[0]), passed(f[1])
		c.Ports.Heal()
		healed := passed(f[0])
		if leads() != l { // on a busy machine
			return false
		}
		expect("passed on where the link is cut", cut, false)
		expect("passed on by the other follower", other, true)
		expect("passed on afterwards", healed, true)
		return true
	}))

	n := c.Nodes[1]
	port := n.Addrs[0][strings.IndexByte(n.Addrs[0], ':'):]
	var sides []string // where n is as each side sees it
	for i, names := range c.Sides {
		ip, _, _ := strings.Cut(names, ":")
		route, err := cluster.Ask(ctx, strings.Split(names, ";")[0], 105, map[string]string{"topic": "links"}, nil)
		must(t, err)
		for _, addr := range regexp.MustCompile(`127\.\d+\.\d+\.\d+:\d+`).FindAllString(string(route.Body), -1) {
			if !strings.HasPrefix(addr, ip+":") {
				t.Errorf("side %d, which reaches name servers at %s, is told of %s", i, names, addr)
			}
			if strings.HasSuffix(addr, port) {
				sides = append(sides, addr)
			}
		}
	}
	if len(sides) != 2 || sides[0] == sides[1] {
		t.Fatalf("the addresses of %s are %v, want one for each side", n.ID, sides)
	}
	asked := func(addr string) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := cluster.Ask(ctx, addr, 28, nil, nil)
		return err
	}
	for _, d := range [][2]string{{cluster.Left, n.ID}, {n.ID, cluster.Left}} {
		c.Ports.Set(d[0], d[1], lost)
		expect("a client of a side that is cut off", asked(sides[0]), false)
		expect("one of the other side", asked(sides[1]), true)
		c.Ports.Heal()
		expect("one of the side afterwards", asked(sides[0]), true)
	}

	knows := func(i int) bool {
		a, err := cluster.Ask(ctx, strings.Split(c.NameServer, ";")[i], 106, nil, nil)
		must(t, err)
		return bytes.Contains(a.Body, []byte(port))
	}
	both(c.Ports, n.ID, cluster.Name(1), lost)
	must(t, harness.Until(ctx, fmt.Sprintf("the name server that %s does not reach to forget it", n.ID), func() bool { return !knows(1) }))
	if !knows(0) {
		t.Error("the name server that it reaches has forgotten it, too")
	}
	c.Ports.Heal()
	must(t, harness.Until(ctx, n.ID+" to register again", func() bool { return knows(1) }))
}
