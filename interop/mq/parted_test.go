package mq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

// cut is a way in which links of a leader and two followers fail, or of their clients and name servers.
type cut struct {
	name  string
	apply func(c *cluster.Cluster, leader string, followers []string)
	shows showing
}

// showing is what one waits for before a cut is over.
type showing int

const (
	nothing   showing = iota // but messages that are taken meanwhile
	replaced                 // the followers have chosen another leader
	parted                   // they have, the second name server does not know, and a send on the former leader's side has failed
	forgotten                // the name servers know of no leader; messages are taken meanwhile
	undecided                // a send has failed; messages are taken meanwhile
)

func both(w *harness.Network, a, b string, f harness.Fault) {
	w.Set(a, b, f)
	w.Set(b, a, f)
}

var lost = harness.Fault{Drop: true}

// apart loses what the leader and the others say to each other, at all their ports.
func apart(c *cluster.Cluster, l string, f []string) {
	for _, w := range []*harness.Network{c.Network, c.Ports} {
		both(w, l, f[0], lost)
		both(w, l, f[1], lost)
	}
}

// logCuts are of links between logs, portCuts of others too.
var logCuts = []cut{
	{"the leader's log is cut off", func(c *cluster.Cluster, l string, f []string) {
		both(c.Network, l, f[0], lost)
		both(c.Network, l, f[1], lost)
	}, replaced},
	{"the leader's log hears nobody", func(c *cluster.Cluster, l string, f []string) {
		c.Network.Set(f[0], l, lost)
		c.Network.Set(f[1], l, lost)
	}, replaced},
	{"nobody hears the leader's log", func(c *cluster.Cluster, l string, f []string) {
		c.Network.Set(l, f[0], lost)
		c.Network.Set(l, f[1], lost)
	}, replaced},
	{"what the leader's log says and hears comes when all is over", func(c *cluster.Cluster, l string, f []string) {
		both(c.Network, l, f[0], harness.Fault{Hold: true})
		both(c.Network, l, f[1], harness.Fault{Hold: true})
	}, replaced},
	{"a follower's log is cut off", func(c *cluster.Cluster, l string, f []string) {
		both(c.Network, l, f[0], lost)
		both(c.Network, f[1], f[0], lost)
	}, nothing},
	{"the logs of one follower and the leader do not reach each other", func(c *cluster.Cluster, l string, f []string) {
		both(c.Network, l, f[0], lost)
	}, nothing},
	{"frames between the logs are late", func(c *cluster.Cluster, l string, f []string) {
		both(c.Network, l, f[0], harness.Fault{DelayMax: 100 * time.Millisecond})
		both(c.Network, l, f[1], harness.Fault{DelayMax: 100 * time.Millisecond})
	}, nothing},
	{"all connections between the logs end", func(c *cluster.Cluster, _ string, _ []string) { c.Network.Cut() }, nothing},
}

var portCuts = []cut{
	{"the leader is cut off from the other brokers, and name servers and clients reach all", apart, replaced},
	{"the leader is cut off from the other brokers and the name servers, and clients reach all", func(c *cluster.Cluster, l string, f []string) {
		apart(c, l, f)
		both(c.Ports, l, cluster.Name(0), lost)
		both(c.Ports, l, cluster.Name(1), lost)
	}, replaced},
	{"one name server knows of the new leader alone, the other of the former one, and clients reach all", func(c *cluster.Cluster, l string, f []string) {
		apart(c, l, f)
		both(c.Ports, l, cluster.Name(0), lost)
		both(c.Ports, f[0], cluster.Name(1), lost)
		both(c.Ports, f[1], cluster.Name(1), lost)
	}, replaced},
	{"the leader, a name server and the clients of one side are apart from all others", func(c *cluster.Cluster, l string, f []string) {
		apart(c, l, f)
		for _, with := range []string{l, cluster.Left} {
			both(c.Ports, with, cluster.Name(0), lost)
		}
		for _, with := range []string{f[0], f[1], cluster.Right} {
			both(c.Ports, with, cluster.Name(1), lost)
		}
		both(c.Ports, cluster.Right, l, lost)
		both(c.Ports, cluster.Left, f[0], lost)
		both(c.Ports, cluster.Left, f[1], lost)
	}, parted},
	{"the leader does not reach the name servers", func(c *cluster.Cluster, l string, f []string) {
		both(c.Ports, l, cluster.Name(0), lost)
		both(c.Ports, l, cluster.Name(1), lost)
	}, forgotten},
	{"brokers cannot pass requests on", func(c *cluster.Cluster, l string, f []string) {
		both(c.Ports, l, f[0], lost)
		both(c.Ports, l, f[1], lost)
		both(c.Ports, f[0], f[1], lost)
	}, nothing},
	{"clients of one side reach nobody", func(c *cluster.Cluster, l string, f []string) {
		for _, to := range []string{l, f[0], f[1], cluster.Name(0), cluster.Name(1)} {
			c.Ports.Set(cluster.Left, to, lost)
		}
	}, undecided},
	{"brokers hear the clients of one side, and are not heard", func(c *cluster.Cluster, l string, f []string) {
		for _, from := range []string{l, f[0], f[1]} {
			c.Ports.Set(from, cluster.Left, lost)
		}
	}, undecided},
	{"frames of clients and between brokers are late", func(c *cluster.Cluster, l string, f []string) {
		late := harness.Fault{DelayMax: 100 * time.Millisecond}
		both(c.Ports, l, f[0], late)
		both(c.Ports, l, f[1], late)
		both(c.Ports, l, cluster.Left, late)
		both(c.Ports, l, cluster.Right, late)
	}, nothing},
	{"all connections but those of the logs end", func(c *cluster.Cluster, _ string, _ []string) { c.Ports.Cut() }, nothing},
}

// shown waits for what a cut shows; the leader was l, and so many sends had failed.
func (w *worked) shown(s showing, l *cluster.Node, failed int) {
	w.t.Helper()
	leader := func(i int) *cluster.Node { return w.c.LeaderAt(w.s.ctx, i, cluster.BrokerName) }
	switch s {
	case replaced, parted:
		w.until("another leader than "+l.ID, func() bool { n := leader(0); return n != nil && n != l })
	case forgotten:
		w.until("name servers that have forgotten "+l.ID, func() bool { return leader(0) == nil && leader(1) == nil })
	}
	if s == parted || s == undecided {
		w.until("a send that fails", func() bool { return w.f.failed() > failed })
	}
	if n := leader(1); s == parted && n != nil && n != l {
		w.t.Errorf("the name server that is cut off with %s has heard that %s leads", l.ID, n.ID)
	}
}

// The links between three brokers, two name servers and clients on two sides fail in every way, in an order of chance, leadership is handed over, and the name servers are
// restarted, while stock clients work, in the long form a Java one beside those in Go: nothing acknowledged is lost or out of order, and committed offsets do not go back.
func TestNothingIsLostBehindPartitions(t *testing.T) {
	c, err := cluster.StartApart(scratch(t), oursKind(t), oursKind(t))
	must(t, err)
	t.Cleanup(func() {
		c.Kill()
		if err := errors.Join(c.Network.Close(), c.Ports.Close()); err != nil {
			t.Error(err)
		}
	})
	must(t, c.Ready(within(t, time.Minute), 1))
	w := work(t, c, "parted")
	w.f.producers(t, w.load, w.s, &w.sending, w.f.async("async"), w.f.inOrderOnce("order"))
	var java *javaLoad
	if os.Getenv("INTEROP_LONG") != "" {
		java = w.java(fetched(t, stock.Servers), "parted_")
	}
	w.f.watch(t, c, "parted", []string{cluster.BrokerName}, cutMax)
	w.f.known(t)
	w.note("the groups have committed")
	p := probed(t, c, "parted", cutMax)
	seed := rand.Uint64()
	if text := os.Getenv("CUTS_SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("order of faults: CUTS_SEED=%d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	kinds := [][]cut{logCuts, portCuts} // in turn
	for i, k := range kinds {
		k = slices.Clone(k)
		kinds[i] = k
		chance.Shuffle(len(k), func(i, j int) { k[i], k[j] = k[j], k[i] })
	}
	times, restarts := rounds(2, 40), 0
	for i := range times {
		var l *cluster.Node
		w.until("a leader", func() bool { l = w.leader(); return l != nil })
		followers := []string{}
		for _, n := range c.Nodes {
			if n != l {
				followers = append(followers, n.ID)
			}
		}
		chance.Shuffle(2, func(i, j int) { followers[i], followers[j] = followers[j], followers[i] })
		of := kinds[i%len(kinds)]
		kind := of[i/len(kinds)%len(of)]
		w.faults++
		failed := w.f.failed()
		kind.apply(c, l.ID, followers)
		w.note("%d: %s; %s led", i, kind.name, l.ID)
		w.shown(kind.shows, l, failed)
		if kind.shows != replaced && kind.shows != parted || os.Getenv("INTEROP_LONG") != "" { // clients that reach nobody but the former leader ask for routes again after 30 s at most
			w.taken("the beginning of the partition")
		}
		c.Network.Heal()
		c.Ports.Heal()
		w.level()
		w.taken("the end of the partition")

		to := c.Nodes[chance.IntN(3)]
		for to == w.leader() {
			to = c.Nodes[chance.IntN(3)]
		}
		failed = w.f.settled()
		w.lead(to)
		if now := w.f.failed(); now > failed {
			t.Errorf("%d sends failed while leadership went to %s: %v", now-failed, to.ID, w.f.newest(now-failed))
		}
		if i%4 == 0 {
			restarts++
			must(t, c.RestartNames())
			must(t, c.Ready(within(t, time.Minute), 1))
			w.taken("the restart of the name server")
		}
	}
	figure.Log(t, "counts: %d partitions, as many hand-overs, the name servers killed %d times", times, restarts)
	p.finish(t)
	if java != nil {
		java.finish(w)
	}
	w.finish()
}

// javaLoad is script `load` of Stock.java at work, with a topic and a record of its own.
type javaLoad struct {
	traffic *traffic
	topic   string
	proc    *harness.Process
	home    string
	sent    chan struct{} // closed when it sends no more
	ready   chan struct{} // closed at the first acknowledgement
}

func (w *worked) java(kit *stock.Kit, prefix string) *javaLoad {
	w.t.Helper()
	j := &javaLoad{traffic: newTraffic(alone), topic: prefix + "load", home: filepath.Join(w.c.Dir, prefix+"client"), sent: make(chan struct{}), ready: make(chan struct{})}
	must(w.t, os.MkdirAll(j.home, 0o755))
	must(w.t, w.c.CreateTopic(w.s.ctx, j.topic, 4))
	j.traffic.kinds["j"] = "synchronous, in Java"
	j.traffic.watch(w.t, w.c, j.topic, []string{cluster.BrokerName}, cutMax)
	first := true
	argv := kit.Client(j.home, w.c.Sides[0], prefix, "load")
	var err error
	j.proc, err = harness.Start(argv, w.c.Dir, filepath.Join(w.c.Dir, prefix+"client.log"), func(line []byte) {
		_, text, ok := strings.Cut(string(line), "\t")
		if !ok {
			return // what the client prints of its own
		}
		if strings.HasPrefix(text, "acked") && first {
			first = false
			close(j.ready)
		}
		if text == "sent all" {
			close(j.sent)
			return
		}
		j.traffic.hear(text)
	})
	must(w.t, err)
	w.t.Cleanup(j.proc.Kill)
	w.until("the Java client", func() bool {
		select {
		case <-j.ready:
			return true
		default:
			return false
		}
	})
	j.traffic.known(w.t)
	w.note("the Java client works")
	return j
}

// hear takes one line of script `load`: what happened, and for all but failures broker, queue, offset and body, and then the ids of what was acknowledged and how many
// milliseconds its send took.
func (f *traffic) hear(text string) {
	var what, broker, body string
	var queue int
	var offset int64
	if reason, ok := strings.CutPrefix(text, "failed "); ok {
		body, reason, _ = strings.Cut(reason, " ")
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fail(body, errors.New(reason))
		return
	}
	if _, err := fmt.Sscanf(text, "%s %s %d %d %s", &what, &broker, &queue, &offset, &body); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fault("the Java client says %q", text)
		return
	}
	at := place{broker, queue, offset}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch what {
	case "acked":
		more := strings.Fields(text)[5:]
		if len(more) != 3 {
			f.fault("the Java client says %q", text)
			return
		}
		ms, err := strconv.Atoi(more[2])
		if err != nil {
			f.fault("the Java client says %q", text)
			return
		}
		f.ack(at, message{body, more[0], position(more[1])})
		f.lasted(body, time.Duration(ms)*time.Millisecond)
	case "got":
		f.take(alone, at, body)
	case "ordered":
		f.next(at)
	default:
		f.fault("the Java client says %q", text)
	}
}

// finish ends the sending and judges what the Java client has seen.
func (j *javaLoad) finish(w *worked) {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(j.home, "stop"), nil, 0o644))
	w.until("the Java producer's end", func() bool {
		select {
		case <-j.sent:
			return true
		default:
			return false
		}
	})
	s := *w.s
	s.topic = j.topic
	s.ends = nil
	defer func() { _ = s.close() }() // its servers are there; what it says of its end is of no interest
	stored := j.traffic.stored(w.t, &s, []string{cluster.BrokerName})
	j.traffic.received(w.t, stored)
	w.note("the Java client:")
	j.traffic.judge(w.t, stored, 4*w.faults)
	j.proc.Kill()
}
