package mq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

// cut is a way in which the links between the logs of a leader and two followers fail.
type cut struct {
	name   string
	others bool // the leader cannot go on: the followers choose another
	apply  func(w *harness.Network, leader string, followers []string)
}

func both(w *harness.Network, a, b string, f harness.Fault) {
	w.Set(a, b, f)
	w.Set(b, a, f)
}

var cuts = []cut{
	{"the leader is cut off", true, func(w *harness.Network, l string, f []string) {
		both(w, l, f[0], harness.Fault{Drop: true})
		both(w, l, f[1], harness.Fault{Drop: true})
	}},
	{"the leader hears nobody", true, func(w *harness.Network, l string, f []string) {
		w.Set(f[0], l, harness.Fault{Drop: true})
		w.Set(f[1], l, harness.Fault{Drop: true})
	}},
	{"nobody hears the leader", true, func(w *harness.Network, l string, f []string) {
		w.Set(l, f[0], harness.Fault{Drop: true})
		w.Set(l, f[1], harness.Fault{Drop: true})
	}},
	{"what the leader says and hears comes when all is over", true, func(w *harness.Network, l string, f []string) {
		both(w, l, f[0], harness.Fault{Hold: true})
		both(w, l, f[1], harness.Fault{Hold: true})
	}},
	{"a follower is cut off", false, func(w *harness.Network, l string, f []string) {
		both(w, l, f[0], harness.Fault{Drop: true})
		both(w, f[1], f[0], harness.Fault{Drop: true})
	}},
	{"one follower and the leader do not reach each other", false, func(w *harness.Network, l string, f []string) {
		both(w, l, f[0], harness.Fault{Drop: true})
	}},
	{"frames are late", false, func(w *harness.Network, l string, f []string) {
		both(w, l, f[0], harness.Fault{DelayMax: 100 * time.Millisecond})
		both(w, l, f[1], harness.Fault{DelayMax: 100 * time.Millisecond})
	}},
	{"all connections between the logs end", false, func(w *harness.Network, _ string, _ []string) { w.Cut() }},
}

// The links between three brokers fail in every way, in an order of chance, leadership is handed over, and the name server restarted, while stock clients work, in the long form
// a Java one beside those in Go: nothing acknowledged is lost or out of order, and committed offsets do not go back.
func TestNothingIsLostBehindPartitions(t *testing.T) {
	c, err := cluster.StartApart(scratch(t), oursKind(t), oursKind(t))
	must(t, err)
	t.Cleanup(func() {
		c.Kill()
		if err := c.Network.Close(); err != nil {
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
	w.f.watch(t, c, "parted", []string{cluster.BrokerName})
	p := probed(t, c, "parted")
	seed := rand.Uint64()
	if text := os.Getenv("CUTS_SEED"); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("order of faults: CUTS_SEED=%d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	order := chance.Perm(len(cuts))
	times, restarts := rounds(1, 20), 0
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
		kind := cuts[order[i%len(cuts)]]
		w.faults++
		kind.apply(c.Network, l.ID, followers)
		w.note("%d: %s; %s led", i, kind.name, l.ID)
		if kind.others {
			w.until("another leader than "+l.ID, func() bool { n := w.leader(); return n != nil && n != l })
		}
		if !kind.others || os.Getenv("INTEROP_LONG") != "" { // clients that reach nobody but the former leader ask for routes again after 30 s at most
			w.taken("the beginning of the partition")
		}
		c.Network.Heal()
		w.level()
		w.taken("the end of the partition")

		to := c.Nodes[chance.IntN(3)]
		for to == w.leader() {
			to = c.Nodes[chance.IntN(3)]
		}
		failed := w.f.settled()
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
	figure.Log(t, "counts: %d partitions, as many hand-overs, the name server killed %d times", times, restarts)
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
	j := &javaLoad{traffic: newTraffic(), topic: prefix + "load", home: filepath.Join(w.c.Dir, prefix+"client"), sent: make(chan struct{}), ready: make(chan struct{})}
	must(w.t, os.MkdirAll(j.home, 0o755))
	must(w.t, w.c.CreateTopic(w.s.ctx, j.topic, 4))
	j.traffic.watch(w.t, w.c, j.topic, []string{cluster.BrokerName})
	first := true
	argv := kit.Client(j.home, w.c.NameServer, prefix, "load")
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
	w.note("the Java client works")
	return j
}

// hear takes one line of script `load`: what happened, and for all but failures broker, queue, offset and body, and then the ids of what was acknowledged.
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
		ids := strings.Fields(text)[5:]
		if len(ids) != 2 {
			f.fault("the Java client says %q", text)
			return
		}
		f.ack(at, message{body, ids[0], position(ids[1])})
		f.held[body] = true // how long it took is not told
	case "got":
		f.take(at, body)
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
