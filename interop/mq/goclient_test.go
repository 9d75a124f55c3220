package mq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
)

// goScripts are what the stock Go client does, by name. Topic scene.topic exists with four queues.
var goScripts = map[string]func(*scene) error{
	"go-produce":     goProduce,
	"go-push":        goPush,
	"go-broadcast":   goBroadcast,
	"go-orderly":     goOrderly,
	"go-filter":      goFilter,
	"go-retry":       goRetry,
	"go-delay":       goDelay,
	"go-transaction": goTransaction,
	"go-pull":        goPull,
	"go-admin":       goAdmin,
}

// scene is one script at work. Its end ends, last first, what the script started.
type scene struct {
	script, topic string
	ctx           context.Context
	cluster       *cluster.Cluster
	seen          *seen
	ends          []func() error
	consumers     int
	clients       int // that have been given name servers
}

func (s *scene) say(format string, args ...any) { s.seen.say(s.script, format, args...) }

// names are the name servers for one more client, which is on each side of the cluster in turn.
func (s *scene) names() primitive.NamesrvAddr {
	s.clients++
	return strings.Split(s.cluster.Sides[s.clients%len(s.cluster.Sides)], ";")
}

// await waits until ok holds and writes it down if that takes too long.
func (s *scene) await(what string, d time.Duration, ok func() bool) {
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	if harness.Until(ctx, what, ok) != nil {
		s.say("not within %v: %s", d, what)
	}
}

func (s *scene) close() error {
	var all error
	for _, end := range slices.Backward(s.ends) {
		all = errors.Join(all, end())
	}
	return all
}

// runGo runs scripts side by side and returns when all have ended.
func runGo(t *testing.T, c *cluster.Cluster, saw *seen, scripts []string) {
	t.Helper()
	var wg sync.WaitGroup
	for _, name := range scripts {
		s := &scene{script: name, topic: name, ctx: within(t, 3*time.Minute), cluster: c, seen: saw}
		must(t, c.CreateTopic(s.ctx, s.topic, 4))
		wg.Go(func() {
			if err := goScripts[name](s); err != nil {
				s.say("failed: %v", err)
			}
			if err := s.close(); err != nil {
				s.say("failed at the end: %v", err)
			}
		})
	}
	wg.Wait()
}

func (s *scene) producer(opts ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(s.names()),
		producer.WithGroupName(s.topic + "_producer"),
		producer.WithInstanceName(s.topic + "_p" + strconv.Itoa(len(s.ends))),
		producer.WithSendMsgTimeout(10 * time.Second),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	s.ends = append(s.ends, p.Shutdown)
	return p, p.Start()
}

// manual is a producer whose messages go where their Queue says.
func (s *scene) manual() (rocketmq.Producer, []*primitive.MessageQueue, error) {
	p, err := s.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return nil, nil, err
	}
	leaders, err := s.cluster.Leaders(s.ctx)
	var queues []*primitive.MessageQueue
	for _, name := range slices.Sorted(maps.Keys(leaders)) {
		for i := range 4 {
			queues = append(queues, &primitive.MessageQueue{Topic: s.topic, BrokerName: name, QueueId: i})
		}
	}
	return p, queues, err
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (s *scene) consumer(group string, sel consumer.MessageSelector, l listener, opts ...consumer.Option) (rocketmq.PushConsumer, error) {
	s.consumers++
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(s.names()),
		consumer.WithGroupName(s.topic + group),
		consumer.WithInstance(s.topic + group + strconv.Itoa(s.consumers)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	if err := c.Subscribe(s.topic, sel, l); err != nil {
		return nil, err
	}
	s.ends = append(s.ends, c.Shutdown)
	return c, c.Start()
}

// bodies are those of messages received, by any goroutine.
type bodies struct {
	mu    sync.Mutex
	count map[string]int
	total int
}

func (b *bodies) add(body string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == nil {
		b.count = map[string]int{}
	}
	b.count[body]++
	b.total++
}

func (b *bodies) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.count)
}

func (b *bodies) repeats() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total - len(b.count)
}

func (b *bodies) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return "[" + strings.Join(slices.Sorted(maps.Keys(b.count)), ", ") + "]"
}

func (b *bodies) listen(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	for _, m := range messages {
		b.add(string(m.Body))
	}
	return consumer.ConsumeSuccess, nil
}

// fill gives each queue n messages named queue-number.
func (s *scene) fill(n int) error {
	p, queues, err := s.manual()
	if err != nil {
		return err
	}
	for _, q := range queues {
		for i := range n {
			m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "%d-%d", q.QueueId, i))
			m.Queue = q
			if _, err := p.SendSync(s.ctx, m); err != nil {
				return fmt.Errorf("fill %v: %w", q, err)
			}
		}
	}
	return nil
}

// places are the offsets of results by queue.
func places(results []*primitive.SendResult) string {
	at := map[int][]int64{}
	for _, r := range results {
		at[r.MessageQueue.QueueId] = append(at[r.MessageQueue.QueueId], r.QueueOffset)
	}
	var out []string
	for _, q := range slices.Sorted(maps.Keys(at)) {
		slices.Sort(at[q])
		out = append(out, fmt.Sprintf("%d=%v", q, at[q]))
	}
	return strings.Join(out, " ")
}

func goProduce(s *scene) error {
	p, queues, err := s.manual()
	if err != nil {
		return err
	}
	message := func(q int, format string, args ...any) *primitive.Message {
		m := primitive.NewMessage(s.topic, fmt.Appendf(nil, format, args...))
		m.Queue = queues[q]
		return m
	}
	var all []*primitive.SendResult
	for i := range 8 {
		m := message(i%4, "sync %d", i).WithTag("tag").WithKeys([]string{"key" + strconv.Itoa(i)})
		m.WithProperty("colour", "red")
		r, err := p.SendSync(s.ctx, m)
		if err != nil {
			return err
		}
		if r.Status != primitive.SendOK || len(r.MsgID) != 32 || len(r.OffsetMsgID) != 32 {
			s.say("sync %d: status %d, ids %q %q", i, r.Status, r.MsgID, r.OffsetMsgID)
		}
		all = append(all, r)
	}
	s.say("sync %s, region %s, trace %t", places(all), all[0].RegionID, all[0].TraceOn)
	var mu sync.Mutex
	var some []*primitive.SendResult
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		err := p.SendAsync(s.ctx, func(_ context.Context, r *primitive.SendResult, err error) {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.say("async: %v", err)
				return
			}
			some = append(some, r)
		}, message(i%4, "async %d", i))
		if err != nil {
			return err
		}
	}
	wg.Wait()
	s.say("async %s", places(some))
	for i := range 4 {
		if err := p.SendOneWay(s.ctx, message(i, "one-way %d", i)); err != nil {
			return err
		}
	}
	var batch []*primitive.Message
	for i := range 5 {
		batch = append(batch, message(2, "batch %d", i))
	}
	r, err := p.SendSync(s.ctx, batch...)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(r.MsgID, ",")
	s.say("batch: status %d, queue %d, %d ids of %d digits, %d offset ids", r.Status, r.MessageQueue.QueueId, len(strings.Split(r.MsgID, ",")), len(first),
		len(strings.Split(r.OffsetMsgID, ",")))
	hashed, err := s.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return err
	}
	some = nil
	for i := range 6 {
		m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "ordered %d", i))
		m.WithShardingKey("one key")
		r, err := hashed.SendSync(s.ctx, m)
		if err != nil {
			return err
		}
		some = append(some, r)
	}
	slices.SortFunc(some, func(a, b *primitive.SendResult) int { return int(a.QueueOffset - b.QueueOffset) })
	run := true
	for i, r := range some {
		run = run && r.MessageQueue.QueueId == some[0].MessageQueue.QueueId && r.QueueOffset == some[0].QueueOffset+int64(i)
	}
	s.say("ordered: one queue, offsets in a row: %t", run)
	long := message(3, "%s", strings.Repeat("0123456789", 2000)) // the client compresses it
	if _, err = p.SendSync(s.ctx, long); err != nil {
		return err
	}
	got := &bodies{}
	if _, err := s.consumer("_g", consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			if string(m.Body) == "sync 3" {
				s.say("sync 3: tag %s keys %s colour %s queue %d offset %d times %d ids %t %t", m.GetTags(), m.GetKeys(), m.GetProperty("colour"), m.Queue.QueueId,
					m.QueueOffset, m.ReconsumeTimes, m.MsgId == all[3].MsgID, m.OffsetMsgId == all[3].OffsetMsgID)
				s.say("its properties %s", properties(m))
			}
			if len(m.Body) > 1000 {
				m.Body = fmt.Appendf(nil, "long %d", len(m.Body))
			}
		}
		return got.listen(ctx, messages...)
	}); err != nil {
		return err
	}
	s.await("all messages", 40*time.Second, func() bool { return got.len() == 8+8+4+5+6+1 })
	s.say("got %s, repeats %d", got, got.repeats())
	return nil
}

func properties(m *primitive.MessageExt) string {
	var names []string
	for name := range m.GetProperties() {
		names = append(names, name)
	}
	slices.Sort(names)
	return "[" + strings.Join(names, ", ") + "]"
}

func goPush(s *scene) error {
	got := &bodies{}
	for range 2 {
		if _, err := s.consumer("_g", consumer.MessageSelector{}, got.listen); err != nil {
			return err
		}
	}
	if err := s.fill(10); err != nil {
		return err
	}
	s.await("40 messages", 40*time.Second, func() bool { return got.len() == 40 })
	s.say("got %s", got)
	if n := got.repeats(); n > 20 {
		s.say("%d repeats", n) // some may come while queues change hands
	}
	return nil
}

func goBroadcast(s *scene) error {
	var got [2]bodies
	for i := range got {
		if _, err := s.consumer("_g", consumer.MessageSelector{}, got[i].listen, consumer.WithConsumerModel(consumer.BroadCasting)); err != nil {
			return err
		}
	}
	if err := s.fill(3); err != nil {
		return err
	}
	s.await("12 messages each", 40*time.Second, func() bool { return got[0].len() == 12 && got[1].len() == 12 })
	for i := range got {
		s.say("got %s, repeats %d", &got[i], got[i].repeats())
	}
	return nil
}

func goOrderly(s *scene) error {
	if err := s.fill(6); err != nil {
		return err
	}
	var mu sync.Mutex
	got := map[int][]string{}
	n, refused := 0, 0
	_, err := s.consumer("_g", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			if string(m.Body) == "1-3" && refused < 2 {
				refused++
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			got[m.Queue.QueueId] = append(got[m.Queue.QueueId], string(m.Body))
			n++
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true), consumer.WithSuspendCurrentQueueTimeMillis(50*time.Millisecond))
	if err != nil {
		return err
	}
	s.await("24 messages", 60*time.Second, func() bool { mu.Lock(); defer mu.Unlock(); return n >= 24 })
	mu.Lock()
	defer mu.Unlock()
	s.say("refused %d times", refused)
	for _, q := range slices.Sorted(maps.Keys(got)) {
		s.say("queue %d: %s", q, strings.Join(got[q], " "))
	}
	return nil
}

func goFilter(s *scene) error {
	p, err := s.producer()
	if err != nil {
		return err
	}
	for i := range 12 {
		m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "m%d", i)).WithTag(string(rune('A' + i%4)))
		m.WithProperty("n", strconv.Itoa(i))
		m.WithProperty("colour", map[bool]string{true: "red", false: "blue"}[i%3 == 0])
		if _, err := p.SendSync(s.ctx, m); err != nil {
			return err
		}
	}
	selectors := []struct {
		name  string
		want  int
		kind  consumer.ExpressionType
		words string
	}{
		{"tag", 6, consumer.TAG, "A || C"},
		{"between", 2, consumer.SQL92, "n BETWEEN 3 AND 8 AND colour = 'red'"},
		{"in", 4, consumer.SQL92, "TAGS IN ('B', 'D') AND n > 4"},
		{"null", 3, consumer.SQL92, "nosuch IS NULL AND colour <> 'red' AND NOT (n >= 5)"},
		{"or", 5, consumer.SQL92, "(n < 2 OR n > 9) OR (colour = 'red' AND n = 6)"},
	}
	got := make([]bodies, len(selectors))
	for i, sel := range selectors {
		if _, err := s.consumer("_"+sel.name, consumer.MessageSelector{Type: sel.kind, Expression: sel.words}, got[i].listen); err != nil {
			return err
		}
	}
	s.await("filtered messages", 40*time.Second, func() bool {
		for i, sel := range selectors {
			if got[i].len() < sel.want {
				return false
			}
		}
		return true
	})
	for i, sel := range selectors {
		s.say("%s: %s", sel.name, &got[i])
	}
	return nil
}

func goRetry(s *scene) error {
	p, err := s.producer()
	if err != nil {
		return err
	}
	sent, err := p.SendSync(s.ctx, primitive.NewMessage(s.topic, []byte("poison")).WithTag("tag").WithKeys([]string{"key"}))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	times, as := map[string]bool{}, map[string]bool{}
	_, err = s.consumer("_g", consumer.MessageSelector{}, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if c, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			c.DelayLevelWhenNextConsume = 1
		}
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			times[strconv.Itoa(int(m.ReconsumeTimes))] = true
			as[fmt.Sprintf("%t %t %s %s", m.Topic == s.topic, m.MsgId == sent.MsgID, m.GetTags(), m.GetKeys())] = true
		}
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(2))
	if err != nil {
		return err
	}
	dead := "%DLQ%" + s.topic + "_g"
	// The client may find out only at its second look at the routes, after 30 s, that there is a topic for retries.
	s.await("a topic for dead letters", 80*time.Second, func() bool {
		r, err := cluster.Ask(s.ctx, s.names()[0], 105, map[string]string{"topic": dead}, nil)
		return err == nil && r.Code == 0
	})
	letters := &scene{script: s.script, topic: dead, ctx: s.ctx, cluster: s.cluster, seen: s.seen}
	defer func() { s.ends = append(s.ends, letters.close) }()
	done := make(chan struct{})
	var once sync.Once
	_, err = letters.consumer("_dead", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			once.Do(func() {
				mu.Lock()
				defer mu.Unlock()
				s.say("consumed at reconsume times %s as %s", sorted(times), sorted(as))
				s.say("dead letter %s: times %d queue %d offset %d, retry topic %t, origin %t", m.Body, m.ReconsumeTimes, m.Queue.QueueId, m.QueueOffset,
					m.GetProperty("RETRY_TOPIC") == s.topic, m.GetProperty("ORIGIN_MESSAGE_ID") == sent.OffsetMsgID)
				close(done)
			})
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithGroupName(s.topic+"_dead"))
	if err != nil {
		return err
	}
	s.await("the dead letter", 40*time.Second, func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	return nil
}

func goDelay(s *scene) error {
	var mu sync.Mutex
	after := map[string]time.Duration{}
	up := make(chan struct{})
	var once sync.Once
	_, err := s.consumer("_g", consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range messages {
			if string(m.Body) == "now" {
				once.Do(func() { close(up) })
				continue
			}
			if _, again := after[string(m.Body)]; !again {
				after[string(m.Body)] = time.Since(time.UnixMilli(m.BornTimestamp))
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	p, err := s.producer()
	if err != nil {
		return err
	}
	if _, err := p.SendSync(s.ctx, primitive.NewMessage(s.topic, []byte("now"))); err != nil {
		return err
	}
	select { // a consumer on a busy machine may have its queues only after 20 s
	case <-up:
	case <-time.After(time.Minute):
		s.say("not within a minute: a message")
	}
	due := []time.Duration{0, time.Second, 5 * time.Second}
	for level := range due {
		m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "level %d", level))
		m.WithDelayTimeLevel(level)
		if _, err := p.SendSync(s.ctx, m); err != nil {
			return err
		}
	}
	s.await("delayed messages", 30*time.Second, func() bool { mu.Lock(); defer mu.Unlock(); return len(after) == len(due) })
	mu.Lock()
	defer mu.Unlock()
	for level, d := range due {
		name := fmt.Sprintf("level %d", level)
		took, came := after[name]
		switch {
		case !came:
			s.say("%s: never", name)
		case took < d-50*time.Millisecond:
			s.say("%s: early by %v", name, d-took)
		case took > d+5*time.Second:
			s.say("%s: late by %v", name, took-d)
		default:
			s.say("%s: in time", name)
		}
	}
	return nil
}

// verdicts gives transactions their outcome by their body.
type verdicts struct {
	mu      sync.Mutex
	checked map[string]bool
}

func (v *verdicts) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch {
	case strings.HasPrefix(string(m.Body), "commit"):
		return primitive.CommitMessageState
	case strings.HasPrefix(string(m.Body), "rollback"):
		return primitive.RollbackMessageState
	default:
		return primitive.UnkonwnState
	}
}

func (v *verdicts) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.checked[fmt.Sprintf("%s %t", m.Body, m.TransactionId != "")] = true
	if strings.HasSuffix(string(m.Body), "3") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func goTransaction(s *scene) error {
	got := &bodies{}
	if _, err := s.consumer("_g", consumer.MessageSelector{}, got.listen); err != nil {
		return err
	}
	v := &verdicts{checked: map[string]bool{}}
	p, err := rocketmq.NewTransactionProducer(v, producer.WithNameServer(s.names()),
		producer.WithGroupName(s.topic+"_producer"), producer.WithInstanceName(s.topic+"_p"))
	if err != nil {
		return err
	}
	s.ends = append(s.ends, p.Shutdown)
	if err := p.Start(); err != nil {
		return err
	}
	states := map[string]bool{}
	for i := range 12 {
		kind := []string{"commit", "commit", "rollback", "unknown"}[i%4]
		r, err := p.SendMessageInTransaction(s.ctx, primitive.NewMessage(s.topic, fmt.Appendf(nil, "%s %d", kind, i)))
		if err != nil {
			return err
		}
		states[fmt.Sprintf("%s %d %d", kind, r.State, r.Status)] = true
	}
	s.say("states %s", sorted(states))
	s.await("checks and commits", 60*time.Second, func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.checked) == 3 && got.len() == 7
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	s.say("checked %s", sorted(v.checked))
	s.say("got %s", got)
	if n := got.repeats(); n > 3 {
		s.say("%d repeats", n) // a check may meet the verdict on its way
	}
	return nil
}

func goPull(s *scene) error {
	if err := s.fill(5); err != nil {
		return err
	}
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(s.names()), consumer.WithGroupName(s.topic+"_g"),
		consumer.WithInstance(s.topic+"_g"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return err
	}
	if err := c.Subscribe(s.topic, consumer.MessageSelector{}); err != nil {
		return err
	}
	s.ends = append(s.ends, c.Shutdown)
	if err := c.Start(); err != nil {
		return err
	}
	queues, err := c.GetTopicRouteInfo(s.topic)
	if err != nil {
		return err
	}
	s.say("queues %d", len(queues))
	got := &bodies{}
	for end := time.Now().Add(40 * time.Second); got.len() < 20 && time.Now().Before(end); {
		r, err := c.Poll(s.ctx, time.Second)
		if err != nil {
			continue // nothing yet
		}
		for _, m := range r.GetMsgList() {
			got.add(string(m.Body))
		}
		c.ACK(s.ctx, r, consumer.ConsumeSuccess)
	}
	s.say("polled %s, repeats %d", got, got.repeats())
	slices.SortFunc(queues, func(a, b *primitive.MessageQueue) int { return a.QueueId - b.QueueId })
	for _, offset := range []int64{0, 3, 5, 100} {
		ctx, cancel := context.WithTimeout(s.ctx, 40*time.Second)
		r, err := c.PullFrom(ctx, queues[1], offset, 3)
		cancel()
		if err != nil {
			s.say("at %d: %v", offset, err)
			continue
		}
		var b []string
		for _, m := range r.GetMessageExts() {
			b = append(b, string(m.Body))
		}
		s.say("at %d: status %d next %d of [%d, %d) %v", offset, r.Status, r.NextBeginOffset, r.MinOffset, r.MaxOffset, b)
	}
	at, err := c.OffsetForTimestamp(queues[1], 0)
	s.say("offset at time 0: %d %v", at, err)
	return nil
}

func goAdmin(s *scene) error {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(s.names())))
	if err != nil {
		return err
	}
	s.ends = append(s.ends, a.Close)
	leaders, err := s.cluster.Leaders(s.ctx)
	if err != nil {
		return err
	}
	addr := leaders[cluster.BrokerName]
	topic := s.topic + "_made"
	if err := a.CreateTopic(s.ctx, admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(addr), admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3)); err != nil {
		return err
	}
	queues, err := a.FetchPublishMessageQueues(s.ctx, topic)
	if err != nil {
		return err
	}
	s.say("made with %d queues", len(queues))
	list, err := a.FetchAllTopicList(s.ctx)
	if err != nil {
		return err
	}
	s.say("in the list of topics: %t", slices.Contains(list.TopicList, topic))
	clusters, err := a.FetchClusterList(topic)
	s.say("clusters %v %v", clusters, err)
	groups, err := a.GetAllSubscriptionGroup(s.ctx, addr, 5*time.Second)
	if err != nil {
		return err
	}
	_, tools := groups.SubscriptionGroupTable["TOOLS_CONSUMER"]
	s.say("group of the tools: %t", tools)
	if err := a.DeleteTopic(s.ctx, admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(addr), admin.WithNameSrvAddr(s.names())); err != nil {
		return err
	}
	r, err := cluster.Ask(s.ctx, s.names()[0], 105, map[string]string{"topic": topic}, nil)
	s.say("route after it was deleted: %d %v", r.Code, err)
	return nil
}
