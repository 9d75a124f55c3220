package mq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"dledger/internal/figure"
	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// rounds is how often a test does a thing that may be done many times.
func rounds(quick, many int) int {
	if os.Getenv("INTEROP_LONG") != "" {
		return many
	}
	return quick
}

// place is where a message is.
type place struct {
	broker string
	queue  int
	offset int64
}

func (p place) String() string {
	return fmt.Sprintf("%s queue %d offset %d", p.broker, p.queue, p.offset)
}

// message is one as an answer says it, or as it is stored. Two are the same when all of it is.
type message struct {
	body   string
	unique string // the client's id
	pos    int64  // where it lies in the log, which the broker's id says; -1: that id says none
}

func (m message) String() string {
	return fmt.Sprintf("%q (id %s, position %d)", m.body, m.unique, m.pos)
}

// told is what an answer says of a message, kept is one that is stored.
func told(r *primitive.SendResult, body string) message {
	return message{body, r.MsgID, position(r.OffsetMsgID)}
}

func kept(m *primitive.MessageExt) message {
	return message{string(m.Body), m.MsgId, position(m.OffsetMsgId)}
}

// position is that in a broker's id, which names a host, whatever its length, and then the position. The host is who was asked, which need not be who leads.
func position(id string) int64 {
	const digits = 16
	if len(id) <= digits {
		return -1
	}
	pos, err := strconv.ParseInt(id[len(id)-digits:], 16, 64)
	if err != nil {
		return -1
	}
	return pos
}

// misplaced says which acknowledged messages are not what is stored in their place.
func misplaced(acked, stored map[place]message) (wrong []string) {
	for at, want := range acked {
		switch got, is := stored[at]; {
		case !is:
			wrong = append(wrong, fmt.Sprintf("%s was acknowledged to hold %s, it holds nothing", at, want))
		case got != want || want.unique == "" || want.pos < 0:
			wrong = append(wrong, fmt.Sprintf("%s was acknowledged to hold %s, it holds %s", at, want, got))
		}
	}
	return wrong
}

// traffic is what producers were told and consumers have got.
type traffic struct {
	paused sync.RWMutex // locked while producers are to send nothing; they hold it to read during a send

	mu        sync.Mutex
	acked     map[place]message        // as the answers said
	undecided map[string]error         // bodies of sends that failed
	failures  []string                 // the same, in the order in which they failed
	kinds     map[string]string        // of producers, by the name that their bodies begin with
	single    map[string]bool          // bodies of sends that the client does not repeat: they are stored once at most
	held      map[string]bool          // bodies of sends that took long: the client may have repeated them by itself
	got       map[string]map[place]int // by group without order
	bodies    map[string]int
	first     map[place]time.Time
	reach     map[string]int64 // by queue, of the consumer in order: the offset after the highest received
	back      time.Duration    // the oldest first receipt among repeats

	commits     map[string]committed // by group, broker and queue
	repeatMax   time.Duration        // for how long brokers may have known that a group is past a message that it gets again; set by watch
	uncommitted int                  // repeats of what no broker was seen to know as committed
	overtaken   time.Duration        // how long others were known to be, of groups with one consumer
	faults      []string
}

// Groups of consumers, behind the name of their topic.
const (
	shared  = "_g"       // two, without order
	alone   = "_alone"   // one, without order
	ordered = "_ordered" // one, in order
)

// newTraffic is for groups without order; that in order is always there.
func newTraffic(groups ...string) *traffic {
	f := &traffic{commits: map[string]committed{}, acked: map[place]message{}, undecided: map[string]error{}, kinds: map[string]string{}, single: map[string]bool{}, held: map[string]bool{}, got: map[string]map[place]int{},
		bodies: map[string]int{}, first: map[place]time.Time{}, reach: map[string]int64{}}
	for _, group := range groups {
		f.got[group] = map[place]int{}
	}
	return f
}

func (f *traffic) fault(format string, args ...any) {
	if len(f.faults) < 20 {
		f.faults = append(f.faults, fmt.Sprintf(format, args...))
	}
}

// quickSend is what a send that meets no fault stays well below. A send whose first try was stored, and was not answered, waits longer before the client repeats it.
const quickSend = 100 * time.Millisecond

// triesMax is how often a client with default settings sends a message, all told.
const triesMax = 3

// produce sends until ctx ends, one message after the other, with the client's default settings.
func (f *traffic) produce(ctx context.Context, p rocketmq.Producer, topic, name string) {
	for i := range ticks(ctx, 5*time.Millisecond) {
		body := fmt.Sprintf("%s-%d", name, i)
		f.paused.RLock()
		began := time.Now()
		r, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body))) // to its end: a send that is cut short tells nothing
		f.paused.RUnlock()
		f.mu.Lock()
		f.lasted(body, time.Since(began))
		switch {
		case err != nil:
			f.fail(body, err)
		default:
			f.ack(place{r.MessageQueue.BrokerName, r.MessageQueue.QueueId, r.QueueOffset}, told(r, body))
		}
		f.mu.Unlock()
	}
}

// asyncMost is how many asynchronous sends of one producer are on their way at a time.
const asyncMost = 16

// produceAsync sends until ctx ends without waiting for answers, with the client's default settings. The client reports the first failure and repeats nothing.
func (f *traffic) produceAsync(ctx context.Context, p rocketmq.Producer, topic, name string) {
	room := make(chan struct{}, asyncMost)
	for i := range ticks(ctx, 5*time.Millisecond) {
		body := fmt.Sprintf("%s-%d", name, i)
		f.paused.RLock() // until its outcome is noted
		room <- struct{}{}
		answered := func(_ context.Context, r *primitive.SendResult, err error) {
			f.once(body, r, err)
			<-room
			f.paused.RUnlock()
		}
		if err := p.SendAsync(context.Background(), answered, primitive.NewMessage(topic, []byte(body))); err != nil {
			answered(ctx, nil, err) // it was not sent
		}
	}
	for range asyncMost {
		room <- struct{}{} // the last answers
	}
}

// produceInOrder sends until ctx ends, all to the queue of one key, and nothing twice: a client that sends to a queue of its choice, as Java's do with a selector, is told of a
// failure at once.
func (f *traffic) produceInOrder(ctx context.Context, p rocketmq.Producer, topic, name string) {
	for i := range ticks(ctx, 5*time.Millisecond) {
		m := primitive.NewMessage(topic, fmt.Appendf(nil, "%s-%d", name, i))
		m.WithShardingKey(name)
		f.paused.RLock()
		r, err := p.SendSync(context.Background(), m)
		f.once(string(m.Body), r, err)
		f.paused.RUnlock()
	}
}

// once notes the outcome of a send that the client does not repeat.
func (f *traffic) once(body string, r *primitive.SendResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.single[body] = true
	if err != nil {
		f.fail(body, err)
		return
	}
	f.ack(place{r.MessageQueue.BrokerName, r.MessageQueue.QueueId, r.QueueOffset}, told(r, body))
}

// sender is one stock producer: how it is set, and how it sends.
type sender struct {
	name string
	kind string
	run  func(ctx context.Context, p rocketmq.Producer, topic, name string)
	opts []producer.Option
}

const synchronous = "synchronous with default settings"

// repeating sends again what failed, three times, as is the default of a synchronous producer; async and inOrderOnce do not.
func (f *traffic) repeating(name string) sender {
	return sender{name, synchronous, f.produce, nil}
}
func (f *traffic) async(name string) sender {
	return sender{name, "asynchronous", f.produceAsync, nil}
}
func (f *traffic) inOrderOnce(name string) sender {
	return sender{name, "in order, not repeated", f.produceInOrder, []producer.Option{producer.WithRetry(0), producer.WithQueueSelector(producer.NewHashQueueSelector())}}
}

// producers starts stock producers, which send until ctx ends.
func (f *traffic) producers(t *testing.T, ctx context.Context, s *scene, sending *sync.WaitGroup, all ...sender) {
	t.Helper()
	for _, k := range all {
		f.mu.Lock()
		f.kinds[k.name] = k.kind
		f.mu.Unlock()
		p, err := rocketmq.NewProducer(append([]producer.Option{producer.WithNameServer(s.names()), producer.WithGroupName(s.topic + "_producer"),
			producer.WithInstanceName(s.topic + "_" + k.name)}, k.opts...)...)
		must(t, err)
		must(t, p.Start())
		s.ends = append(s.ends, p.Shutdown)
		sending.Go(func() { k.run(ctx, p, s.topic, k.name) })
	}
}

// lasted notes how long a send took whose client may repeat it. Its caller holds mu.
func (f *traffic) lasted(body string, d time.Duration) {
	if d > quickSend {
		f.held[body] = true
	}
}

// fail notes a send that failed. Its caller holds mu.
func (f *traffic) fail(body string, err error) {
	f.undecided[body] = err
	f.failures = append(f.failures, body+": "+err.Error())
}

// ack, take and next note what an answer said, what a consumer without order got, and one in order. Their callers hold mu.
func (f *traffic) ack(at place, m message) {
	if old, twice := f.acked[at]; twice {
		f.fault("%s was given to %s and to %s", at, old, m)
	}
	f.acked[at] = m
}

func (f *traffic) take(group string, at place, body string) {
	if f.got[group][at]++; f.got[group][at] > 1 {
		f.again(group, at)
	}
	f.bodies[body]++
}

// next is of the consumer in order: within a queue nothing is left out, and what is repeated was received a short while ago.
func (f *traffic) next(at place) {
	queue := fmt.Sprintf("%s/%d", at.broker, at.queue)
	switch reach := f.reach[queue]; {
	case at.offset > reach:
		f.fault("consumer in order got %s after offset %d", at, reach-1)
		f.reach[queue] = at.offset + 1
	case at.offset == reach:
		f.reach[queue]++
		f.first[at] = time.Now()
	default:
		f.back = max(f.back, time.Since(f.first[at]))
		f.again(ordered, at)
	}
}

func placeOf(m *primitive.MessageExt) place {
	return place{m.Queue.BrokerName, m.Queue.QueueId, m.QueueOffset}
}

// listen is a consumer without order.
func (f *traffic) listen(group string) listener {
	return func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, m := range messages {
			f.take(group, placeOf(m), string(m.Body))
		}
		return consumer.ConsumeSuccess, nil
	}
}

// consumers starts two that share a group, one without order that has its group for itself, and one in order.
func (f *traffic) consumers(t *testing.T, s *scene) {
	t.Helper()
	for _, group := range []string{shared, shared, alone} {
		_, err := s.consumer(group, consumer.MessageSelector{}, f.listen(group))
		must(t, err)
	}
	_, err := s.consumer(ordered, consumer.MessageSelector{}, f.inOrder, consumer.WithConsumerOrder(true))
	must(t, err)
}

// inOrder is the consumer in order.
func (f *traffic) inOrder(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range messages {
		f.next(placeOf(m))
	}
	return consumer.ConsumeSuccess, nil
}

// taken is how many sends were acknowledged.
func (f *traffic) taken() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.acked)
}

// settled is how many sends have failed once those on their way have ended: what fails from then on has begun later.
func (f *traffic) settled() int {
	f.paused.Lock()
	defer f.paused.Unlock()
	return f.failed()
}

func (f *traffic) failed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.failures)
}

// failedBy is how many sends of each kind of producer have failed. Its caller holds mu.
func (f *traffic) failedBy() map[string]int {
	failed := map[string]int{}
	for _, kind := range f.kinds {
		failed[kind] = 0
	}
	for body := range f.undecided {
		name, _, _ := strings.Cut(body, "-")
		failed[f.kinds[name]]++
	}
	return failed
}

// newest are the sends that failed last, some of n.
func (f *traffic) newest(n int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.failures[len(f.failures)-n:]
	return last[:min(n, 5)]
}

// Leaders are killed, nodes ended in an orderly way, and leadership is handed over, while stock Go producers and consumers work with their default settings. What was
// acknowledged is in its queue at the offset that the answer said, under its ids, and was received; queues have no gaps; the consumer in order left nothing
// out, and it and one without order that has its group for itself got again only what they had not committed; committed offsets go back by no more than a leader had not given
// to the log; what came twice is counted.
func TestNothingIsLostWhileLeadersDie(t *testing.T) {
	c, err := cluster.Up(within(t, time.Minute), scratch(t), program(t))
	must(t, err)
	t.Cleanup(c.Kill)
	must(t, c.Ready(within(t, time.Minute), 3))
	s := &scene{script: "loss", topic: "loss", ctx: within(t, time.Hour), cluster: c, seen: &seen{}}
	t.Cleanup(func() { _ = s.close() }) // some of what it ends may have lost its servers
	must(t, c.CreateTopic(s.ctx, s.topic, 4))
	leaders, err := c.Leaders(s.ctx)
	must(t, err)
	brokers := slices.Sorted(maps.Keys(leaders))

	f := newTraffic(shared, alone)
	f.consumers(t, s)
	f.watch(t, c, s.topic, brokers, diedMax)
	progress := probed(t, c, s.topic, diedMax)
	sending, stop := context.WithCancel(s.ctx)
	defer stop()
	var wg sync.WaitGroup
	f.producers(t, sending, s, &wg, f.repeating("p0"), f.repeating("p1"), f.repeating("p2"), f.async("async"), f.inOrderOnce("order"))
	// more waits for sends. Those to a broker whose leader was another node may have to wait for the client's next look at the name server, 30 s.
	more := func(what string) {
		t.Helper()
		want := f.taken() + 200
		if err := harness.Until(within(t, time.Minute), "messages after "+what, func() bool { return f.taken() >= want }); err != nil {
			t.Fatalf("%v\n%s", err, c.Logs())
		}
	}
	more("the start")
	f.known(t)
	faults := rounds(2, 20)
	for i := range faults {
		n, err := c.Leader(within(t, time.Minute), brokers[i%len(brokers)])
		must(t, err)
		what, began := fmt.Sprintf("kill -9 of %s, leader of %s", n.ID, brokers[i%len(brokers)]), time.Now()
		n.Kill()
		must(t, c.Ready(within(t, time.Minute), 3))
		t.Logf("%d: %s: all groups are led again after %v", i, what, time.Since(began).Round(time.Millisecond))
		more(what)
		must(t, n.Start())
		must(t, c.Serves(within(t, time.Minute), n))
		must(t, c.Ready(within(t, time.Minute), 3))
		more("the return of " + n.ID)

		failed := f.settled()
		more("the pause that takes") // so that who has been told of a leader meanwhile uses it: it waits for those who do
		n, err = c.Leader(within(t, time.Minute), brokers[i%len(brokers)])
		must(t, err)
		must(t, n.Term()) // it hands its groups over, and passes requests on until clients have found the new leaders
		more("SIGTERM of " + n.ID)
		if i == faults-1 { // once to the very end, when no client uses it any more
			since := time.Now()
			must(t, harness.Until(within(t, 2*time.Minute), "the end of "+n.ID, func() bool { return !n.Running() }))
			t.Logf("%s ended %.1f s after clients were served elsewhere", n.ID, time.Since(since).Seconds())
			more("the end of " + n.ID)
		}
		if now := f.failed(); now > failed {
			t.Errorf("%d sends failed while %s gave leadership away: %v", now-failed, n.ID, f.newest(now-failed))
		}
		must(t, n.Stop(15*time.Second)) // a second time: at once, please
		must(t, c.Ready(within(t, time.Minute), 3))
		more("the end of " + n.ID)
		must(t, n.Start())
		must(t, c.Serves(within(t, time.Minute), n))
		must(t, c.Ready(within(t, time.Minute), 3))

		broker := brokers[i%len(brokers)]
		failed = f.settled()
		var to *cluster.Node
		err = harness.Until(within(t, time.Minute), "a hand-over of "+broker, func() bool { // it may be on its way to the preferred node meanwhile
			if n, err = c.Leader(within(t, time.Minute), broker); err != nil {
				return false
			}
			to = c.Nodes[(slices.Index(c.Nodes, n)+1)%len(c.Nodes)]
			_, err = harness.Run(within(t, 20*time.Second), program(t), "transfer", "-g", broker, "-p", c.Peers, "-t", to.ID)
			return err == nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Logs())
		}
		more("the hand-over of " + broker + " to " + to.ID)
		if now := f.failed(); now > failed {
			t.Errorf("%d sends failed while %s was handed to %s: %v", now-failed, broker, to.ID, f.newest(now-failed))
		}
	}
	figure.Log(t, "counts: %d leaders killed, as many ended in an orderly way, as many hand-overs", faults)
	progress.finish(t)
	stop()
	wg.Wait()
	must(t, c.Routed(within(t, time.Minute), s.topic, len(brokers)))
	stored := f.stored(t, s, brokers)
	f.received(t, stored)
	f.judge(t, stored, 2*faults*4)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch n, played := f.failedBy()[synchronous]; {
	case !played:
		t.Error("no synchronous producer was at work")
	case n > 0:
		t.Errorf("%d sends of synchronous producers with default settings failed, by whom the client sends again: %v", n, f.failures[:min(len(f.failures), 5)])
	}
}

// received waits until the consumers have got everything that is stored.
func (f *traffic) received(t *testing.T, stored map[place]message) {
	t.Helper()
	err := harness.Until(within(t, 90*time.Second), "consumers to receive everything", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for at := range stored {
			if f.reach[fmt.Sprintf("%s/%d", at.broker, at.queue)] <= at.offset {
				return false
			}
			for _, got := range f.got {
				if got[at] == 0 {
					return false
				}
			}
		}
		return true
	})
	if err != nil {
		t.Error(err)
	}
}

// stored gives all that is in the queues.
func (f *traffic) stored(t *testing.T, s *scene, brokers []string) map[place]message {
	t.Helper()
	all := map[place]message{}
	for at, m := range f.messages(t, s, brokers) {
		all[at] = kept(m)
	}
	return all
}

// messages reads all queues from their first offset, by a pull consumer, and fails where an offset is missing.
func (f *traffic) messages(t *testing.T, s *scene, brokers []string) map[place]*primitive.MessageExt {
	t.Helper()
	s.consumers++
	judge := fmt.Sprintf("%s_judge%d", s.topic, s.consumers)
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(s.names()), consumer.WithGroupName(judge), consumer.WithInstance(judge))
	must(t, err)
	must(t, c.Subscribe(s.topic, consumer.MessageSelector{}))
	must(t, c.Start())
	s.ends = append(s.ends, c.Shutdown)
	all := map[place]*primitive.MessageExt{}
	for _, b := range brokers {
		for queue := range 4 {
			q := &primitive.MessageQueue{Topic: s.topic, BrokerName: b, QueueId: queue}
			for next, end := int64(0), int64(1); next < end; {
				ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
				r, err := c.PullFrom(ctx, q, next, 32)
				cancel()
				if err != nil {
					t.Fatalf("pull of %s queue %d at %d: %v", b, queue, next, err)
				}
				end = r.MaxOffset
				for _, m := range r.GetMessageExts() {
					if m.QueueOffset != next {
						t.Fatalf("%s queue %d: offset %d follows %d", b, queue, m.QueueOffset, next-1)
					}
					all[place{b, queue, next}] = m
					next++
				}
				if len(r.GetMessageExts()) == 0 && r.NextBeginOffset < end {
					t.Fatalf("%s queue %d of [%d, %d): status %d at %d", b, queue, r.MinOffset, r.MaxOffset, r.Status, next)
				}
				if len(r.GetMessageExts()) == 0 {
					break
				}
			}
		}
	}
	return all
}

var addresses = regexp.MustCompile(`[0-9.]+:[0-9]+`)

func (f *traffic) judge(t *testing.T, stored map[place]message, most int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.faults {
		t.Error(fault)
	}
	wrong, lost := misplaced(f.acked, stored), 0
	for _, what := range wrong[:min(len(wrong), 10)] {
		t.Error(what)
	}
	for at, m := range f.acked {
		if f.bodies[m.body] == 0 {
			if lost++; lost < 10 {
				t.Errorf("%s, acknowledged at %s, was not received", m, at)
			}
		}
	}
	twice, unexplained := f.copies(stored)
	for _, what := range unexplained[:min(len(unexplained), 10)] {
		t.Error(what)
	}
	f.inSequence(t, stored)
	var again []string
	for _, group := range slices.Sorted(maps.Keys(f.got)) {
		repeats := 0
		for _, n := range f.got[group] {
			repeats += n - 1
		}
		again = append(again, fmt.Sprintf("%d in group %s", repeats, group))
	}
	figure.Log(t, "counts: %d acknowledged, %d sends failed, %d took so long that their client may have repeated them, %d stored; %d stored twice after a repeated send; received again without order: %s; the consumer in order got again what it had got %v before; %d repeats were of what no broker knew to be committed, others, in groups of one consumer, were of what had been known so for %v at most",
		len(f.acked), len(f.undecided), len(f.held), len(stored), twice, strings.Join(again, ", "), f.back.Round(time.Millisecond), f.uncommitted, f.overtaken.Round(time.Millisecond))
	if len(wrong)+lost > 0 {
		t.Errorf("%d acknowledged messages are not what the answers said where they said, %d were not received", len(wrong), lost)
	}
	if twice > most {
		t.Errorf("%d messages are stored twice; the sends on the way at each fault explain %d at most", twice, most)
	}
	failed := f.failedBy()
	for _, kind := range slices.Sorted(maps.Keys(failed)) {
		figure.Log(t, "counts: %d sends failed of producers that are %s", failed[kind], kind)
	}
	reasons := map[string]int{}
	for _, err := range f.undecided {
		reasons[addresses.ReplaceAllString(err.Error(), "ADDR")]++
	}
	for reason, n := range reasons {
		t.Logf("%d sends failed with: %s", n, reason)
	}
}

// copies counts what is stored more than once, and tells what no repeated send explains: only a send that failed, or took so long that its client may have repeated it, is
// stored again, and by no client more often than it tries.
func (f *traffic) copies(stored map[place]message) (twice int, unexplained []string) {
	copies := map[string]int{}
	for at, m := range stored {
		copies[m.body]++
		if strings.TrimSpace(m.body) == "" {
			unexplained = append(unexplained, fmt.Sprintf("%s holds an empty message", at))
		}
	}
	for body, n := range copies {
		if n == 1 {
			continue
		}
		twice += n - 1
		if _, undecided := f.undecided[body]; f.single[body] || !undecided && !f.held[body] {
			unexplained = append(unexplained, fmt.Sprintf("%s is stored %d times, and was sent once", body, n))
		} else if n > triesMax {
			unexplained = append(unexplained, fmt.Sprintf("%s is stored %d times, and was sent %d times at most", body, n, triesMax))
		}
	}
	return twice, unexplained
}

// inSequence fails where messages of the producer in order follow later ones in their queue. Its queue is one, unless the client saw a route with fewer.
func (f *traffic) inSequence(t *testing.T, stored map[place]message) {
	t.Helper()
	last := map[string]int{} // by queue
	places := slices.SortedFunc(maps.Keys(stored), func(a, b place) int { return int(a.offset - b.offset) })
	for _, at := range places {
		digits, ok := strings.CutPrefix(stored[at].body, "order-")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(digits)
		queue := fmt.Sprintf("%s/%d", at.broker, at.queue)
		if before, known := last[queue]; err != nil || known && n <= before {
			t.Errorf("%s holds message %s of the producer in order, after number %d", at, stored[at], before)
		}
		last[queue] = n
	}
}

// One stock producer with default settings, and with routes of any age, sends while leaders are killed one after the other: no send fails, and none takes much longer than the
// client's own limit.
func TestSendsGoOnWhileALeaderIsKilled(t *testing.T) {
	c, err := cluster.Up(within(t, time.Minute), scratch(t), program(t))
	must(t, err)
	t.Cleanup(c.Kill)
	longest, failed := kills(t, c, 3, rounds(3, 20))
	report(t, "ours, three groups", longest, failed)
	if len(failed) > 0 {
		t.Errorf("%d sends failed, the first: %v", len(failed), failed[0])
	}
	// A send that is on its way to the node is not told that the connection has ended: the client waits for its limit, 3 s, and sends again.
	if m := slices.Max(longest); m > 4*time.Second {
		t.Errorf("the longest send took %v", m)
	}
	if t.Failed() {
		t.Log(c.Logs())
	}
	if os.Getenv("INTEROP_ORIGINAL") == "" {
		return
	}
	c.Kill()
	o, err := cluster.Start(scratch(t), originalKind(t), originalKind(t))
	must(t, err)
	t.Cleanup(o.Kill)
	longest, failed = kills(t, o, 1, rounds(2, 5))
	report(t, "original, one group", longest, failed)
}

// The same where one node leads all groups: routes name others, which pass sends on, for a client has nowhere else to go before it asks for routes again.
func TestSendsGoOnWhileTheLeaderOfAllGroupsIsKilled(t *testing.T) {
	c, err := cluster.Up(within(t, time.Minute), scratch(t), program(t), "preferredLeaderId=n1")
	must(t, err)
	t.Cleanup(c.Kill)
	must(t, c.Ready(within(t, time.Minute), 3))
	leaders, err := c.Leaders(t.Context())
	must(t, err)
	ctx := within(t, time.Minute)
	must(t, harness.Until(ctx, "one node to lead all groups", func() bool {
		for broker := range leaders {
			for i := range c.Nodes { // each has a name server
				if n := c.LeaderAt(ctx, i, broker); n == nil || n.ID != "n1" {
					return false
				}
			}
		}
		return true
	}))
	longest, failed := kills(t, c, 3, rounds(2, 10))
	report(t, "ours, three groups led by one node", longest, failed)
	if len(failed) > 0 {
		t.Errorf("%d sends failed, the first: %v\n%s", len(failed), failed[0], c.Logs())
	}
}

func report(t *testing.T, what string, longest []time.Duration, failed []error) {
	t.Helper()
	d := slices.Sorted(slices.Values(longest))
	figure.Log(t, "counts: %s: longest send after kill -9 of a leader: min %v, median %v, max %v over %d kills; %d sends failed", what, d[0].Round(time.Millisecond),
		d[len(d)/2].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond), len(d), len(failed))
}

// kills kills the leader of one group after the other under one producer, whose routes may be older than what has happened in the last half minute, and gives the longest send of
// each time and the sends that failed. A send that failed counts from its beginning to the first after it that did not. Between kills it waits until all nodes serve and all
// groups are led, by whomever.
func kills(t *testing.T, c *cluster.Cluster, groups, times int) (longest []time.Duration, failed []error) {
	t.Helper()
	must(t, c.Ready(within(t, 2*time.Minute), groups))
	s := &scene{script: "kills", topic: "kills", ctx: within(t, 15*time.Minute), cluster: c, seen: &seen{}}
	defer func() { _ = s.close() }() // its servers may be gone
	must(t, c.CreateTopic(s.ctx, s.topic, 4))
	leaders, err := c.Leaders(s.ctx)
	must(t, err)
	brokers := slices.Sorted(maps.Keys(leaders))
	p, err := rocketmq.NewProducer(producer.WithNameServer(s.names()), producer.WithGroupName("kills_producer"), producer.WithInstanceName("kills"),
		producer.WithRetry(2)) // the default in Java; Go's client sends once more
	must(t, err)
	s.ends = append(s.ends, p.Shutdown)
	must(t, p.Start())
	for i := range times {
		n, err := c.Leader(s.ctx, brokers[i%len(brokers)])
		must(t, err)
		killed := make(chan time.Time, 1)
		kill := time.AfterFunc(300*time.Millisecond, func() {
			n.Kill()
			killed <- time.Now()
		})
		var max time.Duration
		var since time.Time // of the first failure in a row
		quiet := time.Time{}
		for quiet.IsZero() || time.Now().Before(quiet) || !since.IsZero() {
			began := time.Now()
			if !since.IsZero() {
				began = since
			}
			_, err := p.SendSync(s.ctx, primitive.NewMessage(s.topic, fmt.Appendf(nil, "%d", i)))
			if err != nil {
				if s.ctx.Err() != nil {
					kill.Stop()
					t.Fatal(errors.Join(s.ctx.Err(), err))
				}
				failed, since = append(failed, err), began
				time.Sleep(10 * time.Millisecond) // the client may refuse without asking anybody
				continue
			}
			since = time.Time{}
			if d := time.Since(began); d > max {
				max = d
			}
			select {
			case at := <-killed:
				quiet = at.Add(5 * time.Second)
			default:
			}
		}
		longest = append(longest, max)
		must(t, n.Start())
		must(t, c.Serves(within(t, 2*time.Minute), n))
		must(t, c.Ready(within(t, 2*time.Minute), groups))
	}
	return longest, failed
}
