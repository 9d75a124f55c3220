package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"dledger/broker"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// mqLoad is what `bench mq` is asked for; flag letters are those of the original's benchmark/producer.sh.
type mqLoad struct {
	load
	names, topic string
	producers    int
}

func newBenchMQ() *cobra.Command {
	var o mqLoad
	cmd := &cobra.Command{
		Use:   "mq",
		Short: "Send messages as fast as brokers take them",
		Long: `Runs a number of producers, each of which sends a message and waits for the answer, over all queues of a topic in turn, and measures
how long each takes. A send that a broker refuses for now, or does not answer, is tried again at another queue, as stock producers
do it; what fails after three tries is counted by its outcome and does not end the run. Works with brokers of the original, too.
Messages are random bytes and stay in the topic.`,
		Example: `  dledger bench mq
  dledger bench mq -n "10.0.0.1:9876;10.0.0.2:9876" -t orders -w 256 -s 128 --duration 1m
  dledger bench mq --count 100000 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.count < 0:
				return usage("--count %d: must not be negative", o.count)
			case o.size < 1 || o.size > 4<<20:
				return usage("--size %d: 1 to %d bytes", o.size, 4<<20)
			case o.producers < 1:
				return usage("--producers %d: must be at least 1", o.producers)
			case o.duration <= 0:
				return usage("--duration %v: must be above 0", o.duration)
			case o.timeout <= 0:
				return usage("--timeout %v: must be above 0", o.timeout)
			}
			if err := mq.CheckTopic(o.topic); err != nil {
				return usage("--topic %q: %w", o.topic, err)
			}
			if !cmd.Flags().Changed("namesrv-addr") {
				o.names = cmp.Or(os.Getenv(namesEnv), "127.0.0.1:9876")
			}
			servers, err := broker.ParseNameServers(o.names)
			switch {
			case err != nil:
				return usage("--namesrv-addr: %w", err)
			case len(servers) == 0:
				return usage("--namesrv-addr %q: no name server", o.names)
			}
			return benchMQ(cmd, &o, servers)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.names, "namesrv-addr", "n", "", "name servers, host:port joined by ';' (default NAMESRV_ADDR of the environment, else 127.0.0.1:9876)")
	f.StringVarP(&o.topic, "topic", "t", mq.TopicBenchmark, "topic; one that is not there is made by sending to it, where brokers allow that")
	f.Int64Var(&o.count, "count", 0, "number of messages (default: as many as fit the duration)")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "length of the run, if --count does not end it before")
	f.IntVarP(&o.size, "size", "s", 1024, "bytes of a message's body")
	f.IntVarP(&o.producers, "producers", "w", 64, "sends on the way at the same time")
	f.DurationVar(&o.timeout, "timeout", 3*time.Second, "how long one try may take")
	f.BoolVar(&o.json, "json", false, "print JSON, one object a line")
	return cmd
}

// mqMeasured is what `bench mq` prints.
type mqMeasured struct {
	Messages  int64            `json:"messages"`
	Seconds   float64          `json:"seconds"`
	PerSecond float64          `json:"perSecond"`
	MiBPerSec float64          `json:"mibPerSecond"`
	Size      int              `json:"size"`
	Producers int              `json:"producers"`
	Again     int64            `json:"triedAgain"` // sends that did not succeed at once
	Latency   latencies        `json:"latencyMs"`
	Failed    map[string]int64 `json:"failed,omitempty"`
}

func (m *mqMeasured) text() string {
	text := fmt.Sprintf("%d messages of %d bytes in %.1f s, %d producers: %.0f/s, %.1f MiB/s\nlatency ms: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f\n",
		m.Messages, m.Size, m.Seconds, m.Producers, m.PerSecond, m.MiBPerSec, m.Latency.P50, m.Latency.P90, m.Latency.P99, m.Latency.P999, m.Latency.Max)
	if m.Again > 0 {
		text += fmt.Sprintf("%d tried again\n", m.Again)
	}
	return text + failures(m.Failed)
}

// mqQueue is where a message may go.
type mqQueue struct {
	address, broker string
	id              int32
}

// mqRun is a load of messages under way.
type mqRun struct {
	loadRun
	topic   string
	servers []string
	client  *remoting.Client
	keys    *mq.UniqKeys
	queues  atomic.Pointer[[]mqQueue]
	next    atomic.Uint64
	sent    atomic.Int64
	again   atomic.Int64
}

// routesEvery is how often routes are asked for: producers of stock clients do it every 30 s, but here a run is short.
const routesEvery = 2 * time.Second

func benchMQ(cmd *cobra.Command, o *mqLoad, servers []string) error {
	c := remoting.NewClient(remoting.ClientConfig{Version: mq.Version})
	defer c.Close() //nolint:errcheck // always nil
	o.inflight = o.producers
	r := &mqRun{loadRun: loadRun{load: o.load, what: "messages", failed: make(map[string]int64)}, topic: o.topic, servers: servers, client: c,
		keys: mq.NewUniqKeys(netip.AddrFrom4([4]byte{127, 0, 0, 1}))}
	if err := r.route(cmd.Context()); err != nil {
		return err
	}
	body := make([]byte, o.size)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	all := r.measure(cmd, func(stop context.Context) { r.run(stop, body) })
	m := mqMeasured{Messages: all.Entries, Seconds: all.Seconds, PerSecond: all.PerSecond, MiBPerSec: all.MiBPerSec, Size: all.Size, Producers: o.producers,
		Again: r.again.Load(), Latency: all.Latency, Failed: all.Failed}
	if err := newPrinter(cmd.OutOrStdout(), o.json).print(m, "%s", m.text()); err != nil {
		return err
	}
	if m.Messages == 0 {
		return fmt.Errorf("no message was stored: %v", m.Failed)
	}
	return nil
}

// run sends until stop ends or there are enough.
func (r *mqRun) run(stop context.Context, body []byte) {
	over, end := context.WithCancel(stop)
	var routes, producers sync.WaitGroup
	routes.Go(func() {
		tick := time.NewTicker(routesEvery)
		defer tick.Stop()
		for {
			select {
			case <-over.Done():
				return
			case <-tick.C:
				_ = r.route(over) // the old ones stay in force
			}
		}
	})
	for range r.producers() {
		producers.Go(func() {
			for stop.Err() == nil && (r.count == 0 || r.sent.Add(1) <= r.count) {
				r.send(body)
			}
		})
	}
	producers.Wait()
	end()
	routes.Wait()
}

func (r *mqRun) producers() int { return r.inflight }

// tries is how often a message is sent, at most: as often as stock producers do.
const tries = 3

// send sends one message, and notes what came of it.
func (r *mqRun) send(body []byte) {
	from := time.Now()
	properties := mq.PropSet(mq.PropSet("", mq.PropUniqKey, r.keys.Next(from)), "WAIT", "true")
	why, last := "", ""
	for try := range tries {
		q := r.pick(last)
		last = q.broker
		ext := map[string]string{"a": "dledger_bench", "b": r.topic, "c": mq.TopicDefault, "d": mq.Itoa(newTopicQueues), "e": mq.Itoa(q.id), "f": "0", "g": mq.Itoa(from.UnixMilli()), "h": "0",
			"i": properties, "j": "0", "k": "false", "m": "false", "n": q.broker}
		f, err := r.client.Call(context.Background(), q.address, remoting.Request{Code: mq.CodeSendV2, Ext: ext}, r.timeout, body)
		again := true
		switch {
		case errors.Is(err, remoting.ErrUnreachable):
			why = "not sent"
		case err != nil:
			why = "undecided"
		case f.Code == mq.Success, f.Code == mq.FlushDiskTimeout, f.Code == mq.FlushSlaveTimeout, f.Code == mq.SlaveNotAvailable:
			r.mu.Lock()
			r.acknowledged(time.Since(from))
			r.mu.Unlock()
			return
		default:
			why = fmt.Sprintf("refused %d %.100s", f.Code, f.Remark)
			again = f.Code == mq.ServiceNotAvailable || f.Code == mq.SystemError || f.Code == mq.TopicNotExist
		}
		if !again {
			break
		}
		if try == 0 {
			r.again.Add(1)
		}
	}
	r.mu.Lock()
	r.failed[why]++
	r.mu.Unlock()
}

// pick gives the next queue, of another broker than the one that has just failed if there is one.
func (r *mqRun) pick(not string) mqQueue {
	queues := *r.queues.Load()
	for range len(queues) {
		if q := queues[r.next.Add(1)%uint64(len(queues))]; q.broker != not {
			return q
		}
	}
	return queues[r.next.Add(1)%uint64(len(queues))]
}

// route asks the name servers where the topic can be sent to; for a topic that is not there, where it can be made.
func (r *mqRun) route(ctx context.Context) error {
	var failed []string
	for _, server := range r.servers {
		for _, topic := range []string{r.topic, mq.TopicDefault} {
			f, err := r.client.Call(ctx, server, remoting.Request{Code: mq.CodeRoute, Ext: map[string]string{"topic": topic}}, r.timeout)
			if err == nil && f.Code == mq.TopicNotExist && topic == r.topic {
				continue
			}
			var d mq.TopicRouteData
			switch {
			case err != nil:
			case f.Code != mq.Success:
				err = fmt.Errorf("code %d, %s", f.Code, f.Remark)
			default:
				err = mq.Unmarshal(f.Body, &d)
			}
			queuesMax := int32(1 << 16)
			if topic != r.topic {
				queuesMax = newTopicQueues
			}
			if queues := writable(&d, queuesMax); len(queues) > 0 {
				r.queues.Store(&queues)
				return nil
			}
			if err == nil {
				err = fmt.Errorf("no broker that can be written to has topic %s", topic)
			}
			failed = append(failed, fmt.Sprintf("%s: %v", server, err))
			break
		}
	}
	return fmt.Errorf("no route for topic %s: %s", r.topic, strings.Join(failed, ", "))
}

// newTopicQueues is how many queues a topic gets on each broker that is made by sending to it.
const newTopicQueues = 4

func writable(d *mq.TopicRouteData, queuesMax int32) (queues []mqQueue) {
	for _, b := range d.BrokerDatas {
		for _, q := range d.QueueDatas {
			if q.BrokerName != b.BrokerName || q.Perm&mq.PermWrite == 0 || b.BrokerAddrs[0] == "" {
				continue
			}
			for id := range min(q.WriteQueueNums, queuesMax) {
				queues = append(queues, mqQueue{b.BrokerAddrs[0], b.BrokerName, id})
			}
		}
	}
	return queues
}
