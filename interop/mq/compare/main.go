// Command compare puts the same load on our brokers and on those of the RocketMQ release in DLedger mode, three replicas each, and on its asynchronous master with one slave,
// with the stock Go client, one after the other on this machine, and prints what it measured beside each other. Absolute numbers of different runs do not compare.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

type plan struct {
	warm, run, heating, idle time.Duration
	backlog                  int
	kills                    int
	parts                    []string // of parts
}

// parts are what can be measured by itself, in the order in which it is: start and idling, sends, a backlog and the way of a message, kills of the leader of one group, and
// `dledger up --nodes 3`.
var parts = []string{"start", "sends", "reads", "kills", "three"}

func (p plan) has(part string) bool { return slices.Contains(p.parts, part) }

// system is one kind of broker.
type system struct {
	name string
	kind cluster.Kind
	heat bool // its code becomes fast only while it runs
}

const (
	oursAsync = "ours async"
	oursGroup = "ours group"
	oursAlone = "ours async alone"
)

// table holds figures by row and system, in the order of their coming.
type table struct {
	rows    []string
	figures map[[2]string]float64
}

func (t *table) add(row, system string, v float64) {
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	t.figures[[2]string{row, system}] = v
}

// derive adds what figures say together: what three replicas cost against one, and ours beside the asynchronous pair, which acknowledges what it may lose.
func (t *table) derive(pair string, ks []int) {
	of := func(name, system string) float64 { return t.figures[[2]string{name, system}] }
	for _, k := range ks {
		row := sendsRow(k)
		if three, one := of(row, oursAsync), of(row, oursAlone); three > 0 && one > 0 {
			t.add(fmt.Sprintf("cost of three replicas against one, %d producers, %%", k), oursAsync, 100*(1-three/one))
		}
		for _, ours := range []string{oursAsync, oursGroup} {
			if v, base := of(row, ours), of(row, pair); v > 0 && base > 0 {
				t.add(fmt.Sprintf("sends/s, times those of the pair, %d producers", k), ours, v/base)
			}
		}
	}
}

func sendsRow(producers int) string { return fmt.Sprintf("sends/s, %d producers", producers) }

func (t *table) print(systems []system) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := systems[len(systems)-1].name
	for _, s := range systems {
		fmt.Fprintf(w, "\t%s\t", s.name)
	}
	fmt.Fprintln(w)
	for _, row := range t.rows {
		fmt.Fprint(w, row)
		for _, s := range systems {
			v, ok := t.figures[[2]string{row, s.name}]
			base := t.figures[[2]string{row, last}]
			switch {
			case !ok:
				fmt.Fprint(w, "\t-\t")
			case s.name == last || base == 0:
				fmt.Fprintf(w, "\t%.4g\t", v)
			default:
				fmt.Fprintf(w, "\t%.4g\t%.2fx", v, v/base)
			}
		}
		fmt.Fprintln(w, "\t")
	}
	w.Flush()
}

func main() {
	quick := flag.Bool("quick", false, "short periods")
	only := flag.String("only", "", "names of the systems to measure, joined by commas: ours async, ours group, ours async alone, java 5.3.3 pair, java 5.3.3")
	some := flag.String("parts", strings.Join(parts, ","), "what to measure")
	program := flag.String("dledger", "", "our program (default: built from this tree)")
	flag.Parse()
	rlog.SetLogLevel("fatal")
	p := plan{warm: time.Second, run: 5 * time.Second, heating: 30 * time.Second, idle: 5 * time.Second, backlog: 100_000, kills: 5}
	if *quick {
		p = plan{warm: 500 * time.Millisecond, run: 2 * time.Second, heating: 12 * time.Second, idle: 3 * time.Second, backlog: 30_000, kills: 2}
	}
	p.parts = strings.Split(*some, ",")
	for _, part := range p.parts {
		if !slices.Contains(parts, part) {
			fmt.Fprintf(os.Stderr, "compare: -parts: %q is none of %s\n", part, strings.Join(parts, ", "))
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, p, *only, *program); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func compare(ctx context.Context, p plan, only, program string) error {
	work, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) // what is left is only data of this run
	if program == "" {
		program = filepath.Join(work, "dledger")
		if out, err := exec.Command("go", "-C", filepath.Join("..", ".."), "build", "-o", program, "./cmd/dledger").CombinedOutput(); err != nil {
			return fmt.Errorf("build our program (run this in interop/mq): %w\n%s", err, out)
		}
	}
	systems := []system{
		{name: oursAsync, kind: cluster.Kind{Program: program, Lines: []string{"durability=async"}}},
		{name: oursGroup, kind: cluster.Kind{Program: program, Lines: []string{"durability=group"}}},
		{name: oursAlone, kind: cluster.Kind{Program: program, Lines: []string{"durability=async"}, Replicas: 1}},
	}
	pair := "java " + string(stock.Servers) + " pair"
	kit, err := stock.Fetch(ctx, stock.Servers)
	if err != nil {
		fmt.Println("not measured: the release:", err)
	} else {
		kit.BrokerJVM = []string{"-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"}
		systems = append(systems, system{name: pair, kind: cluster.Kind{Kit: kit, Pair: true}, heat: true},
			system{name: "java " + string(kit.Release), kind: cluster.Kind{Kit: kit}, heat: true}) // the last one is what the others are compared with
	}
	if only != "" {
		systems = slices.DeleteFunc(systems, func(s system) bool { return !slices.Contains(strings.Split(only, ","), s.name) })
	}
	if len(systems) == 0 {
		return errors.New("-only leaves nothing to measure")
	}
	t := &table{figures: map[[2]string]float64{}}
	for _, s := range systems {
		if slices.Equal(p.parts, []string{"three"}) {
			break // it starts processes of its own
		}
		m := &measuring{plan: p, system: s, t: t, dir: filepath.Join(work, strings.ReplaceAll(s.name, " ", "-"))}
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := m.all(ctx); err != nil {
			fmt.Printf("%s: %v\n", s.name, err)
		}
		if err := os.RemoveAll(m.dir); err != nil {
			return err
		}
	}
	if first := systems[0]; first.kind.Program != "" && p.has("three") {
		dir := filepath.Join(work, "three")
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = three(ctx, p, t, first.name, program, dir)
		}
		if err != nil {
			fmt.Printf("three groups: %v\n", err)
		}
	}
	t.derive(pair, producers)
	t.print(systems)
	return nil
}

// measuring is one system under measurement.
type measuring struct {
	plan
	system
	t    *table
	dir  string
	c    *cluster.Cluster
	sent int64 // messages to topic that were acknowledged
}

const (
	topic = "compare"
	size  = 1024
)

// producers is how many send at a time.
var producers = []int{1, 16, 64, 256}

func (m *measuring) add(row string, v float64) { m.t.add(row, m.name, v) }

func (m *measuring) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	began := time.Now()
	c, err := cluster.Start(m.dir, m.kind, m.kind)
	if err != nil {
		return err
	}
	defer c.Kill()
	m.c = c
	if m.has("start") {
		if err := m.firstSend(ctx, "start of all processes to the first accepted send, s", began); err != nil {
			return err
		}
	}
	if err := c.Ready(ctx, 1); err != nil {
		return err
	}
	if err := c.CreateTopic(ctx, topic, 8); err != nil {
		return err
	}
	if m.has("start") {
		if err := m.usage(ctx, "broker"); err != nil {
			return err
		}
	}
	send, end, err := m.producer("load", topic)
	if err != nil {
		return err
	}
	defer end()
	if m.heat {
		m.sent += drive(ctx, 64, 0, m.heating, send).sent
	}
	if m.has("sends") {
		if err := m.sends(ctx, send); err != nil {
			return err
		}
	}
	if m.has("reads") {
		for m.sent < int64(m.backlog) && ctx.Err() == nil {
			m.sent += drive(ctx, 64, 0, time.Second, send).sent
		}
		if err := m.consume(ctx, send); err != nil {
			return err
		}
	}
	if !m.has("kills") || m.kind.Replicas == 1 || m.kind.Pair { // of which nobody takes the place of the leader
		return nil
	}
	return errors.Join(m.failover(ctx), m.stuck(ctx, send))
}

// sends measures synchronous sends of some producers, and then of more.
func (m *measuring) sends(ctx context.Context, send func(context.Context) error) error {
	for _, k := range producers {
		leader, others, err := m.cpus(ctx)
		if err != nil {
			return err
		}
		r := drive(ctx, k, m.warm, m.run, send)
		m.sent += r.sent
		if r.failed > 0 {
			fmt.Printf("%s, %d producers: %d sends failed: %v\n", m.name, k, r.failed, r.err)
		}
		m.add(sendsRow(k), r.perSec)
		m.add(fmt.Sprintf("  p50 ms, %d producers", k), ms(r.p50))
		m.add(fmt.Sprintf("  p99 ms, %d producers", k), ms(r.p99))
		if k == 64 {
			led, followed, err := m.cpus(ctx)
			if err != nil {
				return err
			}
			a := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(r.sent) }
			m.add("  CPU of all brokers a message, us", a(led+followed-leader-others))
			m.add("    of the leader", a(led-leader))
			if len(m.c.Nodes) > 1 {
				m.add("    of all others", a(followed-others))
			}
		}
	}
	m.add("memory of a broker under load, MiB", m.memory())
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (m *measuring) cpu() (sum time.Duration) {
	for _, n := range m.c.Nodes {
		if _, cpu, err := harness.Usage(n.Pid()); err == nil { // a node that has just died counts no more
			sum += cpu
		}
	}
	return sum
}

// cpus is what the leader of the only group and all others have used. Under load leadership stays where it is.
func (m *measuring) cpus(ctx context.Context) (leader, others time.Duration, err error) {
	leaders, err := m.c.Leaders(ctx)
	if err != nil {
		return 0, 0, err
	}
	at := m.c.NodeAt(leaders[cluster.BrokerName])
	for _, n := range m.c.Nodes {
		_, cpu, err := harness.Usage(n.Pid())
		if err != nil {
			continue // a node that has just died counts no more
		}
		if n == at {
			leader = cpu
		} else {
			others += cpu
		}
	}
	return leader, others, nil
}

func (m *measuring) memory() float64 {
	var sum float64
	for _, n := range m.c.Nodes {
		if rss, _, err := harness.Usage(n.Pid()); err == nil {
			sum += float64(rss)
		}
	}
	return sum / float64(len(m.c.Nodes)) / (1 << 20)
}

// usage measures what a process takes that has nothing to do.
func (m *measuring) usage(ctx context.Context, process string) error {
	before, began := m.cpu(), time.Now()
	select {
	case <-time.After(m.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	m.add("idle: CPU of a "+process+", % of a core", 100*(m.cpu()-before).Seconds()/time.Since(began).Seconds()/float64(len(m.c.Nodes)))
	m.add("idle: memory of a "+process+", MiB", m.memory())
	return nil
}

func (m *measuring) names() primitive.NamesrvAddr { return strings.Split(m.c.NameServer, ";") }

// firstSend measures how long a producer that is there from the start on tries until a send is accepted, to a topic that nobody has made.
func (m *measuring) firstSend(ctx context.Context, row string, began time.Time) error {
	send, end, err := m.producer("first", "first")
	if err != nil {
		return err
	}
	defer end()
	one, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := harness.Until(one, "an accepted send", func() bool { return send(one) == nil }); err != nil {
		return fmt.Errorf("%w\n%s", err, m.c.Logs())
	}
	m.add(row, time.Since(began).Seconds())
	return nil
}

// producer gives a synchronous send with the client's default settings.
func (m *measuring) producer(group, topic string) (send func(context.Context) error, end func(), err error) {
	p, err := rocketmq.NewProducer(producer.WithNameServer(m.names()), producer.WithGroupName(group), producer.WithInstanceName(m.name+group))
	if err != nil {
		return nil, nil, err
	}
	if err := p.Start(); err != nil {
		return nil, nil, err
	}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte('a' + i%26)
	}
	return func(ctx context.Context) error {
		r, err := p.SendSync(ctx, primitive.NewMessage(topic, body))
		if err == nil && r.Status != primitive.SendOK {
			err = fmt.Errorf("send status %d", r.Status)
		}
		return err
	}, func() { _ = p.Shutdown() }, nil // its answer would change nothing
}

type load struct {
	sent, failed int64
	perSec       float64
	p50, p99     time.Duration
	longest      time.Duration
	err          error
}

// drive keeps k sends under way for warm and run, and measures those of run.
func drive(ctx context.Context, k int, warm, run time.Duration, send func(context.Context) error) load {
	from := time.Now().Add(warm)
	to := from.Add(run)
	took := make([][]time.Duration, k)
	var sent, failed atomic.Int64
	var first atomic.Pointer[error]
	var wait sync.WaitGroup
	for g := range k {
		wait.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if began.After(to) {
					return
				}
				err := send(ctx)
				ended := time.Now()
				if err != nil {
					failed.Add(1)
					first.CompareAndSwap(nil, &err)
					continue
				}
				sent.Add(1)
				if ended.After(from) && !ended.After(to) {
					took[g] = append(took[g], ended.Sub(began))
				}
			}
		})
	}
	wait.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	r := load{sent: sent.Load(), failed: failed.Load(), perSec: float64(len(all)) / run.Seconds()}
	if e := first.Load(); e != nil {
		r.err = *e
	}
	if n := len(all); n > 0 {
		r.p50, r.p99, r.longest = all[n/2], all[n*99/100], all[n-1]
	}
	return r
}

// backlogMax is how long a consumer may take for the backlog.
const backlogMax = 4 * time.Minute

// consume measures a push consumer on a backlog, and then how long a message takes from send to receipt.
func (m *measuring) consume(ctx context.Context, send func(context.Context) error) error {
	var got atomic.Int64
	done := make(chan struct{})
	var once sync.Once
	var began time.Time
	cpu := m.cpu()
	start := func(group string, from consumer.ConsumeFromWhere, f func(*primitive.MessageExt)) (rocketmq.PushConsumer, error) {
		c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(m.names()), consumer.WithGroupName(group), consumer.WithConsumeFromWhere(from),
			consumer.WithInstance(m.name+group))
		if err != nil {
			return nil, err
		}
		err = c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, msg := range all {
				f(msg)
			}
			return consumer.ConsumeSuccess, nil
		})
		if err == nil {
			err = c.Start()
		}
		return c, err
	}
	var first atomic.Int64
	c, err := start("backlog", consumer.ConsumeFromFirstOffset, func(*primitive.MessageExt) {
		if first.CompareAndSwap(0, time.Now().UnixNano()) {
			cpu = m.cpu()
		}
		if got.Add(1) == int64(m.backlog) {
			once.Do(func() { close(done) })
		}
	})
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	limit := time.After(backlogMax)
	select {
	case <-done:
		began = time.Unix(0, first.Load())
		m.add("messages/s from a backlog", float64(m.backlog)/time.Since(began).Seconds())
		m.add("  CPU of all brokers a message, us, reading", float64((m.cpu()-cpu).Microseconds())/float64(got.Load()))
	case <-limit:
		fmt.Printf("%s: %d of %d messages of the backlog came within %v\n", m.name, got.Load(), m.backlog, backlogMax)
	case <-ctx.Done():
	}
	if err := c.Shutdown(); err != nil {
		return err
	}
	var mu sync.Mutex
	var took []time.Duration
	c, err = start("latency", consumer.ConsumeFromLastOffset, func(msg *primitive.MessageExt) {
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(time.UnixMilli(msg.BornTimestamp)))
	})
	if err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	have := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(took)
	}
	one, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	// A new group may begin with the backlog, see QUERY_CONSUMER_OFFSET; the clock runs once it has come to the end.
	err = harness.Until(one, "a consumer at the end of the topic", func() bool {
		if send(one) != nil {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		return len(took) > 100 && slices.Max(took[len(took)-8:]) < 200*time.Millisecond
	})
	if err == nil {
		mu.Lock()
		took = nil
		mu.Unlock()
		for range 500 {
			if err = errors.Join(err, send(one)); err != nil {
				break
			}
			<-time.After(2 * time.Millisecond)
		}
		err = errors.Join(err, harness.Until(one, "500 messages", func() bool { return have() >= 500 }))
	}
	if err != nil {
		fmt.Printf("%s: latency: %v\n", m.name, err)
	} else {
		mu.Lock()
		slices.Sort(took)
		m.add("from send to receipt, p50 ms", ms(took[len(took)/2])) // the client stamps whole milliseconds
		m.add("from send to receipt, p99 ms", ms(took[len(took)*99/100]))
		mu.Unlock()
	}
	return c.Shutdown()
}

// failover kills the leader of the only group, and measures how long the name server goes on without a living one.
func (m *measuring) failover(ctx context.Context) error {
	var routes []time.Duration
	for range m.kills {
		leaders, err := m.c.Leaders(ctx)
		if err != nil {
			return err
		}
		old := leaders[cluster.BrokerName]
		n := m.c.NodeAt(old)
		if n == nil {
			return fmt.Errorf("the name server names %q as leader", old)
		}
		killed := time.Now()
		n.Kill()
		one, cancel := context.WithTimeout(ctx, time.Minute)
		err = harness.Until(one, "a new leader at the name server", func() bool {
			now, err := m.c.Leaders(one)
			return err == nil && now[cluster.BrokerName] != "" && now[cluster.BrokerName] != old
		})
		cancel()
		if err != nil {
			return err
		}
		routes = append(routes, time.Since(killed))
		if err := n.Start(); err != nil {
			return err
		}
		if err := m.c.Ready(ctx, 1); err != nil {
			return err
		}
	}
	slices.Sort(routes)
	m.add("new leader in the name server, median s", routes[len(routes)/2].Seconds())
	m.add("new leader in the name server, worst s", routes[len(routes)-1].Seconds())
	return nil
}

// stuck kills the leader of the only group and measures how long a running producer, with the client's defaults, sends nothing: it asks for routes every
// 30 s, so that is nothing a broker can shorten, but see three groups.
func (m *measuring) stuck(ctx context.Context, send func(context.Context) error) error {
	one, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := harness.Until(one, "a send before the kill", func() bool { return send(one) == nil }); err != nil { // it may not have heard of the last leader yet
		return err
	}
	n, err := m.c.Leader(one, cluster.BrokerName)
	if err != nil {
		return err
	}
	n.Kill()
	killed := time.Now()
	if err := harness.Until(one, "a send", func() bool { return send(one) == nil }); err != nil {
		return err
	}
	m.add("kill -9 to the next send of a running producer, one group, s", time.Since(killed).Seconds())
	return n.Start()
}

// three measures the processes of `dledger up --nodes 3`, each with a name server and a replica of each of three groups, and kills them under one synchronous producer with the
// client's defaults.
func three(ctx context.Context, p plan, t *table, system, program, dir string) error {
	began := time.Now()
	c, err := cluster.Up(ctx, dir, program, "durability=async")
	if err != nil {
		return err
	}
	defer c.Kill()
	m := &measuring{plan: p, c: c, t: t}
	m.name = system
	if err := m.firstSend(ctx, "start of `up --nodes 3` to the first accepted send, s", began); err != nil {
		return err
	}
	if err := c.Ready(ctx, 3); err != nil {
		return err
	}
	if err := c.CreateTopic(ctx, topic, 4); err != nil {
		return err
	}
	if err := m.usage(ctx, "process of `up --nodes 3`"); err != nil {
		return err
	}
	send, end, err := m.producer("three", topic)
	if err != nil {
		return err
	}
	defer end()
	var longest []time.Duration
	failed := int64(0)
	for i := range p.kills {
		one, cancel := context.WithTimeout(ctx, time.Minute)
		result := make(chan load, 1)
		go func() { result <- drive(one, 1, 0, 6*time.Second, send) }()
		<-time.After(500 * time.Millisecond)
		n := c.Nodes[i%len(c.Nodes)]
		n.Kill()
		r := <-result
		cancel()
		longest = append(longest, r.longest)
		failed += r.failed
		if err := n.Start(); err != nil {
			return err
		}
		if err := c.Ready(ctx, 3); err != nil {
			return err
		}
	}
	slices.Sort(longest)
	m.add("kill -9 with three groups: failed sends", float64(failed))
	m.add("  longest send, median s", longest[len(longest)/2].Seconds())
	m.add("  longest send, worst s", longest[len(longest)-1].Seconds())
	return nil
}
