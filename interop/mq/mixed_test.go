package mq

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// Brokers of a mixed group. The lines are alike where they matter to both; drainMaxMs lets ours stop before all clients have asked for routes anew.
func oursInMixed(t *testing.T) cluster.Kind {
	k := oursKind(t)
	k.Lines = []string{"registerNameServerPeriod=10000", "compat=0.3", "drainMaxMs=500"}
	return k
}

func javaInMixed(t *testing.T) cluster.Kind {
	k := originalKind(t)
	k.Lines = []string{"registerNameServerPeriod=10000"}
	return k
}

// worked is a cluster under the load of stock Go clients.
type worked struct {
	t       *testing.T
	c       *cluster.Cluster
	s       *scene
	f       *traffic
	began   time.Time
	load    context.Context // of the producers
	sending sync.WaitGroup
	stop    context.CancelFunc
	faults  int
}

// work starts producers and consumers.
func work(t *testing.T, c *cluster.Cluster, topic string) *worked {
	t.Helper()
	w := &worked{t: t, c: c, f: newTraffic(shared, alone), began: time.Now()}
	w.s = &scene{script: topic, topic: topic, ctx: within(t, time.Hour), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = w.s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(w.s.ctx, topic, 4))
	w.f.consumers(t, w.s)
	w.load, w.stop = context.WithCancel(w.s.ctx)
	t.Cleanup(w.stop)
	w.f.producers(t, w.load, w.s, &w.sending, w.f.repeating("p0"), w.f.repeating("p1"))
	w.taken("the start")
	for _, n := range c.Nodes {
		w.until("the start of "+n.ID, func() bool { return w.end(n) >= 0 })
	}
	w.level()
	w.note("all brokers are level")
	return w
}

func (w *worked) note(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%5.1f s: %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

func (w *worked) until(what string, ok func() bool) {
	w.t.Helper()
	if err := harness.Until(within(w.t, 3*time.Minute), what, ok); err != nil {
		w.t.Fatalf("%v\n%s", err, w.c.Logs())
	}
}

// taken waits until a message that was sent from now on is acknowledged.
func (w *worked) taken(after string) {
	w.t.Helper()
	since, want := time.Now(), w.f.taken()+10 // some may have been on their way
	w.until("messages that are taken after "+after, func() bool { return w.f.taken() >= want })
	w.note("messages are taken after %s, %.1f s later", after, time.Since(since).Seconds())
}

// leader is the node under id 0.
func (w *worked) leader() *cluster.Node {
	leaders, err := w.c.Leaders(w.s.ctx)
	if err != nil {
		return nil
	}
	return w.c.NodeAt(leaders[cluster.BrokerName])
}

// lead hands leadership to a node, and waits until clients find it there and messages are taken.
func (w *worked) lead(n *cluster.Node) {
	w.t.Helper()
	w.handOver(n)
	w.taken("the hand-over to " + n.ID)
}

// handOver hands leadership to a node, and waits until clients find it there.
func (w *worked) handOver(n *cluster.Node) {
	w.t.Helper()
	var last error
	w.until("leadership of "+n.ID, func() bool {
		if w.leader() == n {
			return true
		}
		_, last = harness.Run(within(w.t, 20*time.Second), program(w.t), "transfer", "-g", cluster.BrokerName, "-p", w.c.Peers, "-t", n.ID)
		return false
	})
	if w.leader() != n {
		w.t.Fatal(last)
	}
}

// end is up to where a node's log is committed.
func (w *worked) end(n *cluster.Node) int64 {
	a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 28, nil, nil)
	if err != nil || a.Code != 0 {
		return -1
	}
	var info struct{ Table map[string]string }
	if json.Unmarshal(a.Body, &info) != nil {
		return -1
	}
	end, err := strconv.ParseInt(info.Table["commitLogMaxOffset"], 10, 64)
	if err != nil {
		return -1
	}
	return end
}

// level waits until all nodes have what the leader has now.
func (w *worked) level() {
	w.t.Helper()
	var want int64 = -1
	w.until("a leader that tells its end", func() bool {
		if n := w.leader(); n != nil {
			want = w.end(n)
		}
		return want >= 0
	})
	for _, n := range w.c.Nodes {
		w.until(fmt.Sprintf("%s to have the log up to %d", n.ID, want), func() bool { return w.end(n) >= want })
	}
}

// whole pauses the producers and waits until a Java broker has in its queues what the leader has. It counts on that when it leads: with messages missing in its queues
// it would give their offsets again.
func (w *worked) whole(n *cluster.Node, patience time.Duration) error {
	w.t.Helper()
	w.f.paused.Lock()
	defer w.f.paused.Unlock()
	ends := func(n *cluster.Node) (ends []string) {
		for queue := range 4 {
			a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 30, map[string]string{"topic": w.s.topic, "queueId": strconv.Itoa(queue)}, nil)
			if err != nil || a.Code != 0 {
				return nil
			}
			ends = append(ends, a.Fields["offset"])
		}
		return ends
	}
	var theirs, leaders []string
	err := harness.Until(within(w.t, patience), "queues without a gap", func() bool {
		l := w.leader()
		if l == nil {
			return false
		}
		theirs, leaders = ends(n), ends(l)
		return theirs != nil && slices.Equal(theirs, leaders)
	})
	if err != nil {
		return fmt.Errorf("%w: those of %s end at %v, the leader's at %v", err, n.ID, theirs, leaders)
	}
	w.note("%s has all messages in its queues", n.ID)
	return nil
}

// kill takes a node away under load, and brings it back. A Java broker may never enter what it had not entered when it was killed; then it gets an
// empty directory, as docs/operating.md has it.
func (w *worked) kill(n *cluster.Node) {
	w.t.Helper()
	w.faults++
	java := !w.passes(n)
	n.Kill()
	w.note("kill -9 of %s", n.ID)
	w.taken("kill -9 of " + n.ID)
	must(w.t, n.Start())
	w.until("the return of "+n.ID, func() bool { return w.end(n) >= 0 })
	w.level()
	w.note("%s is level", n.ID)
	if !java {
		return
	}
	if err := w.whole(n, 20*time.Second); err != nil {
		w.note("%v; it begins anew", err)
		n.Kill()
		must(w.t, os.RemoveAll(n.Store()))
		must(w.t, n.Start())
		w.until("the return of "+n.ID, func() bool { return w.end(n) >= 0 })
		w.level()
		must(w.t, w.whole(n, time.Minute))
	}
}

// become stops a node with SIGTERM, as docs/operating.md has it, and starts it as one of another kind.
func (w *worked) become(n *cluster.Node, k cluster.Kind) {
	w.t.Helper()
	w.faults++
	since := time.Now()
	must(w.t, n.Stop(time.Minute))
	w.note("%s has stopped, %.1f s after SIGTERM", n.ID, time.Since(since).Seconds())
	must(w.t, n.Become(k))
	must(w.t, n.Start())
	w.until("the return of "+n.ID, func() bool { return w.end(n) >= 0 })
	w.level()
	w.note("%s is level", n.ID)
	if k.Kit != nil {
		if err := w.whole(n, time.Minute); err != nil {
			w.t.Fatalf("%v\n%s", err, w.c.Logs())
		}
	}
}

// finish ends the load and judges it: everything acknowledged is stored where it was said to be, and received; data files are equal.
func (w *worked) finish() {
	w.t.Helper()
	w.stop()
	w.sending.Wait()
	stored := w.f.stored(w.t, w.s, []string{cluster.BrokerName})
	w.f.received(w.t, stored)
	w.f.judge(w.t, stored, 4*w.faults)
	w.equal()
}

// equal stops all nodes and compares their logs.
func (w *worked) equal() {
	w.t.Helper()
	w.level()
	_ = w.s.close() // a client whose servers are about to go
	w.s.ends = nil
	for _, n := range w.c.Nodes {
		if err := n.Stop(time.Minute); err != nil {
			w.note("stop of %s: %v", n.ID, err)
		}
	}
	for _, n := range w.c.Nodes[1:] {
		out, err := harness.Run(within(w.t, time.Minute), program(w.t), "verify", "--dir", w.c.Nodes[0].Root(), "--against", n.Root())
		if err != nil {
			w.t.Errorf("%v\n%s", err, out)
		}
		w.note("%s", bytes.TrimSpace(out))
	}
	if w.t.Failed() {
		w.t.Log(w.c.Logs())
	}
}

// commit says how far a group is in queue 0 of a topic.
func (w *worked) commit(n *cluster.Node, topic, group string, offset int) {
	w.t.Helper()
	g, err := cluster.Ask(w.s.ctx, n.Addrs[0], 200, nil, fmt.Appendf(nil, `{"groupName":%q}`, group)) // the original makes none for an offset
	if err != nil || g.Code != 0 {
		w.t.Fatalf("%s answers %d %s to a new group: %v", n.ID, g.Code, g.Remark, err)
	}
	a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 15, map[string]string{"topic": topic, "consumerGroup": group, "queueId": "0", "commitOffset": strconv.Itoa(offset)}, nil)
	if err != nil || a.Code != 0 {
		w.t.Fatalf("%s answers %d %s to a consumer offset: %v", n.ID, a.Code, a.Remark, err)
	}
}

// progress gives what commit has said, "" if the node does not know.
func (w *worked) progress(n *cluster.Node, topic, group string) string {
	a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 14, map[string]string{"topic": topic, "consumerGroup": group, "queueId": "0", "setZeroIfNotFound": "false"}, nil)
	if err != nil || a.Code != 0 {
		return ""
	}
	return a.Fields["offset"]
}

// copied waits until the files of a node of ours show what the Java leader was told.
func (w *worked) copied(n *cluster.Node, topic, group string) {
	w.t.Helper()
	w.until("the offset of "+group+" at "+n.ID, func() bool {
		text, err := os.ReadFile(filepath.Join(n.Store(), "config", "consumerOffset.json"))
		return err == nil && bytes.Contains(text, []byte(topic+"@"+group))
	})
}

// passes tells whether a node is one of ours, which passes requests on to the leader; a Java one answers from what it has.
func (w *worked) passes(n *cluster.Node) bool {
	a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 26, nil, nil)
	return err == nil && bytes.Contains(a.Body, []byte("compat="))
}

// handed checks what is not in the log while a Java broker leads: topics, groups and offsets reach it from a leader of ours, and go with the leadership from
// it to one of ours.
func (w *worked) handed(ours, java *cluster.Node, name string) {
	w.t.Helper()
	w.lead(ours)
	mine := name + "_ours"
	must(w.t, w.c.CreateTopicAt(w.s.ctx, ours.Addrs[0], mine, 2))
	w.commit(ours, mine, "probe", 7)
	w.lead(java)
	w.until("the Java leader to know what ours knew", func() bool { return w.progress(java, mine, "probe") == "7" })
	theirs := name + "_java"
	must(w.t, w.c.CreateTopicAt(w.s.ctx, java.Addrs[0], theirs, 3))
	w.commit(java, theirs, "probe", 8)
	for _, n := range w.c.Nodes {
		if n != java && w.passes(n) {
			if got := w.progress(n, theirs, "probe"); got != "8" {
				w.t.Errorf("offset by way of %s: %q, want 8", n.ID, got)
			}
		}
	}
	w.copied(ours, theirs, "probe")
}

// checkHanded asks a leader of ours for what handed left with the Java leader before it.
func (w *worked) checkHanded(name string) {
	w.t.Helper()
	n := w.leader()
	for topic, want := range map[string]string{name + "_ours": "7", name + "_java": "8"} {
		if got := w.progress(n, topic, "probe"); got != want {
			w.t.Errorf("offset in %s at %s: %q, want %s", topic, n.ID, got, want)
		}
		a, err := cluster.Ask(w.s.ctx, n.Addrs[0], 351, map[string]string{"topic": topic}, nil)
		if err != nil || a.Code != 0 || !strings.Contains(string(a.Body), topic) {
			w.t.Errorf("%s at %s: %d %s %s %v", topic, n.ID, a.Code, a.Remark, a.Body, err)
		}
	}
}

// Groups of our brokers and the original's under load: leadership goes from one kind to the other and back, nodes are killed, and nothing that was
// acknowledged is lost, neither messages nor what a leader of either kind keeps beside them.
func TestMixedBrokersServeStockClients(t *testing.T) {
	mixes := [][]bool{{false, false, true}}
	if os.Getenv("INTEROP_LONG") != "" {
		mixes = append(mixes, []bool{false, true, true})
	}
	for _, mix := range mixes {
		var kinds []cluster.Kind
		name := ""
		for _, isJava := range mix {
			if isJava {
				kinds, name = append(kinds, javaInMixed(t)), name+"java "
			} else {
				kinds, name = append(kinds, oursInMixed(t)), name+"ours "
			}
		}
		for _, names := range mixedNames(t) {
			t.Run(name+"and "+names.name, func(t *testing.T) {
				c, err := cluster.StartMixed(scratch(t), names.kind, kinds...)
				must(t, err)
				t.Cleanup(c.Kill)
				must(t, c.Ready(within(t, 2*time.Minute), 1))
				w := work(t, c, "mixed")
				ours, java := c.Nodes[0], c.Nodes[2]
				w.handed(ours, java, "first")
				w.kill(java) // it leads
				if len(mix) == 3 && !mix[1] {
					w.checkHanded("first")
				}
				w.lead(ours)
				w.kill(ours) // now one of ours leads
				if os.Getenv("INTEROP_LONG") != "" {
					for i := range 2 {
						w.handed(ours, java, fmt.Sprintf("round%d", i))
						w.lead(ours)
						w.checkHanded(fmt.Sprintf("round%d", i))
						for _, n := range c.Nodes {
							w.kill(n)
						}
					}
				}
				w.finish()
			})
		}
	}
}

// Our brokers register with a name server of the original: stock clients send and receive by its routes, and it follows leadership, in the long form also by a kill (clients then
// ask the dead node for up to half a minute).
func TestOurBrokersServeByANameServerOfTheOriginal(t *testing.T) {
	c := started(t, subject{"our brokers", originalKind, oursKind})
	w := work(t, c, "theirs")
	first := w.leader()
	for _, n := range c.Nodes {
		w.lead(n)
	}
	w.lead(first)
	if os.Getenv("INTEROP_LONG") != "" {
		w.kill(first)
		w.until("another leader than "+first.ID, func() bool { n := w.leader(); return n != nil && n != first })
	}
	w.finish()
}

type namesKind struct {
	name string
	kind cluster.Kind
}

// mixedNames are the name servers of this run.
func mixedNames(t *testing.T) []namesKind {
	all := []namesKind{{"our name server", oursKind(t)}}
	if os.Getenv("INTEROP_LONG") != "" {
		all = append(all, namesKind{"the original's name server", originalKind(t)})
	}
	return all
}

// The way from the original to ours that docs/operating.md describes, under load: each Java broker is stopped and its directory taken over by ours with compat
// 0.3; when no Java broker is left, all are restarted with compat go. In the long form the group goes back to Java before that.
func TestBrokerGroupMovesFromOriginalToOurs(t *testing.T) {
	theirs, ours := javaInMixed(t), oursInMixed(t)
	c, err := cluster.StartMixed(scratch(t), oursKind(t), theirs, theirs, theirs)
	must(t, err)
	t.Cleanup(c.Kill)
	must(t, c.Ready(within(t, 2*time.Minute), 1))
	w := work(t, c, "moving")
	must(t, c.CreateTopicAt(w.s.ctx, w.leader().Addrs[0], "kept", 5))
	w.commit(w.leader(), "kept", "probe", 9)
	kept := func() {
		t.Helper()
		if got := w.progress(w.leader(), "kept", "probe"); got != "9" {
			t.Errorf("the offset that was committed before the move is %q, want 9", got)
		}
	}
	// move takes the followers first, then hands leadership to one that has been moved.
	move := func(to cluster.Kind) {
		t.Helper()
		first := w.leader()
		var moved *cluster.Node
		for _, n := range append(slices.DeleteFunc(slices.Clone(c.Nodes), func(n *cluster.Node) bool { return n == first }), first) {
			if w.leader() == n {
				w.lead(moved)
			}
			w.become(n, to)
			moved = n
		}
		w.taken("the move of all")
		kept()
	}
	move(ours)
	if os.Getenv("INTEROP_LONG") != "" {
		move(theirs)
		move(ours)
	}
	for _, n := range c.Nodes {
		must(t, n.Stop(time.Minute))
		w.faults++
	}
	alone := ours
	alone.Lines = []string{"compat=go", "drainMaxMs=500"}
	for _, n := range c.Nodes {
		must(t, n.Become(alone))
		must(t, n.Start())
	}
	must(t, c.Ready(within(t, time.Minute), 1))
	w.taken("the restart with compat go")
	kept()
	w.finish()
}
