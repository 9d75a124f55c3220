package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/mq"
)

// Counts of what this replica has done, for tools: totals behind GET_BROKER_RUNTIME_INFO (28) and counts by topic and group behind
// VIEW_BROKER_STATS_DATA (315). They live in memory and begin anew with the process, as in the original (StoreStatsService, BrokerStatsManager
// and BrokerStats there).

// statName is what a count is of, as in the original.
type statName string

const (
	statTopicPut      statName = "TOPIC_PUT_NUMS" // key: topic
	statTopicPutSize  statName = "TOPIC_PUT_SIZE"
	statGroupGet      statName = "GROUP_GET_NUMS" // key: topic@group
	statGroupGetSize  statName = "GROUP_GET_SIZE"
	statSendBack      statName = "SNDBCK_PUT_NUMS" // key: topic@group
	statBrokerPut     statName = "BROKER_PUT_NUMS" // key: cluster
	statBrokerGet     statName = "BROKER_GET_NUMS"
	statItemsMax               = 100_000 // counts that are kept; what is over is not counted
	statIdle                   = 24 * time.Hour
	statMinuteSamples          = 7 // every 10 s
	statHourSamples            = 7 // every 10 min
	statDaySamples             = 25
)

// statKey names one count. group is "" where there is none.
type statKey struct {
	name         statName
	topic, group string
}

// statItem is one count: messages or bytes, and how many requests brought them.
type statItem struct {
	value, times atomic.Int64

	minute, hour, day []statSample // oldest first; stats.mu
	changed           time.Time    // stats.mu
}

type statSample struct {
	at           time.Time
	value, times int64
}

// moment is a sample of the totals.
type moment struct {
	at                                      time.Time
	puts, found, missed, asked, transferred int64
}

// putLimits are the upper bounds of the classes of put times.
var putLimits = []time.Duration{0, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, 10 * time.Second}

// stats are the counts of one replica.
type stats struct {
	puts, putBytes, putsFailed atomic.Int64 // messages that clients sent
	gets, getBytes             atomic.Int64 // messages that consumers got
	found, missed              atomic.Int64 // pulls that found something, and that did not
	putMax, getMax             atomic.Int64 // ns
	putTimes                   [13]atomic.Int64

	mu      sync.RWMutex
	items   map[statKey]*statItem
	moments []moment // one a second, of the last ten minutes
	day     int      // of the year; when it changes morning moves on
	morning [2]struct{ puts, gets int64 }
}

func (s *stats) open(now time.Time) {
	s.items = map[statKey]*statItem{}
	s.day = now.YearDay()
	s.moments = []moment{{at: now}}
}

// run takes samples until ctx ends.
func (s *stats) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.sample(now, n)
		}
	}
}

// sample is the n-th tick, of one a second.
func (s *stats) sample(now time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moments = push(s.moments, s.moment(now), 601)
	if day := now.YearDay(); day != s.day {
		s.day = day
		s.morning[0] = s.morning[1]
		s.morning[1].puts, s.morning[1].gets = s.puts.Load(), s.gets.Load()
	}
	if n%10 != 0 {
		return
	}
	for key, i := range s.items {
		x := i.now(now)
		if last := i.minute[len(i.minute)-1]; x.times != last.times {
			i.changed = now
		}
		i.minute = push(i.minute, x, statMinuteSamples)
		if n%600 == 0 {
			i.hour = push(i.hour, x, statHourSamples)
		}
		if n%3600 == 0 {
			i.day = push(i.day, x, statDaySamples)
		}
		if now.Sub(i.changed) > statIdle {
			delete(s.items, key)
		}
	}
}

// push appends, and drops the oldest beyond max.
func push[T any](all []T, x T, max int) []T {
	if len(all) >= max {
		all = slices.Delete(all, 0, len(all)-max+1)
	}
	return append(all, x)
}

func (s *stats) moment(now time.Time) moment {
	found, missed := s.found.Load(), s.missed.Load()
	return moment{now, s.puts.Load(), found, missed, found + missed, s.gets.Load()}
}

func (i *statItem) now(at time.Time) statSample {
	return statSample{at, i.value.Load(), i.times.Load()}
}

// add counts value for a key.
func (s *stats) add(key statKey, value int64) {
	s.mu.RLock()
	i := s.items[key]
	s.mu.RUnlock()
	if i == nil {
		s.mu.Lock()
		i = s.items[key]
		if i == nil && len(s.items) < statItemsMax {
			now := time.Now()
			zero := []statSample{{at: now}}
			i = &statItem{minute: zero, hour: slices.Clone(zero), day: slices.Clone(zero), changed: now}
			key.topic, key.group = strings.Clone(key.topic), strings.Clone(key.group) // of a request
			s.items[key] = i
		}
		s.mu.Unlock()
		if i == nil {
			return
		}
	}
	i.value.Add(value)
	i.times.Add(1)
}

// put counts messages of one send that were stored.
func (s *stats) put(cluster string, msgs []*mq.Message, took time.Duration) {
	size := 0
	for _, m := range msgs {
		size += m.StoredSize()
	}
	n := int64(len(msgs))
	s.puts.Add(n)
	s.putBytes.Add(int64(size))
	raise(&s.putMax, int64(took))
	class, _ := slices.BinarySearch(putLimits, took.Truncate(time.Millisecond))
	s.putTimes[class].Add(1)
	topic := msgs[0].Topic
	s.add(statKey{statTopicPut, topic, ""}, n)
	s.add(statKey{statTopicPutSize, topic, ""}, int64(size))
	s.add(statKey{statBrokerPut, cluster, ""}, n)
}

// get counts messages that one pull got.
func (s *stats) get(cluster, topic, group string, n, size int) {
	s.found.Add(1)
	s.gets.Add(int64(n))
	s.getBytes.Add(int64(size))
	s.add(statKey{statGroupGet, topic, group}, int64(n))
	s.add(statKey{statGroupGetSize, topic, group}, int64(size))
	s.add(statKey{statBrokerGet, cluster, ""}, int64(n))
}

func raise(a *atomic.Int64, n int64) {
	for old := a.Load(); n > old && !a.CompareAndSwap(old, n); old = a.Load() {
	}
}

// forget drops the counts of a topic or a group that is no more.
func (s *stats) forget(match func(statKey) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.items {
		if match(key) {
			delete(s.items, key)
		}
	}
}

// rates gives messages or requests a second over the last 10 s, minute and ten minutes, as tools want them: three numbers in one text.
func (s *stats) rates(of func(moment) int64) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	now := s.moment(time.Now())
	var out []string
	for _, span := range []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute} {
		from := s.moments[0]
		for _, m := range slices.Backward(s.moments) {
			if now.at.Sub(m.at) >= span {
				from = m
				break
			}
		}
		rate := 0.0
		if elapsed := now.at.Sub(from.at); elapsed > 0 {
			rate = float64(of(now)-of(from)) / max(elapsed, time.Second).Seconds()
		}
		out = append(out, fmt.Sprintf("%.2f", rate))
	}
	return strings.Join(out, " ")
}

// data gives a count over the last minute, hour and day; false when nothing was counted. key is as tools write it: "topic" or "topic@group".
func (s *stats) data(name, key string) (mq.BrokerStats, bool) {
	topic, group, _ := strings.Cut(key, "@")
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := s.items[statKey{statName(name), topic, group}]
	if i == nil {
		return mq.BrokerStats{}, false
	}
	now := i.now(time.Now())
	return mq.BrokerStats{Minute: since(i.minute, now), Hour: since(i.hour, now), Day: since(i.day, now)}, true
}

func since(samples []statSample, now statSample) mq.StatsItem {
	from := samples[0]
	x := mq.StatsItem{Sum: now.value - from.value}
	if elapsed := max(now.at.Sub(from.at), time.Second); x.Sum > 0 {
		x.TPS = float64(x.Sum) / elapsed.Seconds()
		x.AvgPT = float64(x.Sum) / float64(max(now.times-from.times, 1))
	}
	return x
}

// rate gives the messages a second of a count over the last minute.
func (s *stats) rate(name statName, topic, group string) float64 {
	key := topic
	if group != "" {
		key = offsetKey(topic, group)
	}
	d, _ := s.data(string(name), key)
	return d.Minute.TPS
}

// percentile gives the upper bound, in ms, of the class of put times that the given share of sends lies in.
func (s *stats) percentile(share float64) float64 {
	total := int64(0)
	for i := range s.putTimes {
		total += s.putTimes[i].Load()
	}
	seen := int64(0)
	for i, limit := range putLimits {
		if seen += s.putTimes[i].Load(); float64(seen) >= share*float64(total) {
			return max(float64(limit.Milliseconds()), 1)
		}
	}
	return float64(time.Duration(s.putMax.Load()).Milliseconds())
}

// distribution gives the classes of put times as the original writes them.
func (s *stats) distribution() string {
	var b strings.Builder
	for i := range s.putTimes {
		switch {
		case i == 0:
			fmt.Fprintf(&b, "[<=0s]:%d ", s.putTimes[i].Load())
		case i == len(putLimits):
			fmt.Fprintf(&b, "[%v~]:%d ", putLimits[i-1], s.putTimes[i].Load())
		default:
			fmt.Fprintf(&b, "[%v~%v]:%d ", putLimits[i-1], putLimits[i], s.putTimes[i].Load())
		}
	}
	return b.String()
}
