package broker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
)

func newStats(now time.Time) *stats {
	s := &stats{}
	s.open(now)
	return s
}

func sent(n int) (msgs []*mq.Message) {
	host := netip.MustParseAddrPort("127.0.0.1:1")
	for range n {
		msgs = append(msgs, &mq.Message{Topic: "t", BornHost: host, StoreHost: host})
	}
	return msgs
}

func TestTotalsOfADayBeginAtMidnight(t *testing.T) {
	now := time.Date(2026, 3, 4, 23, 59, 58, 0, time.Local)
	s := newStats(now)
	day := func(puts int) {
		s.put("c", sent(puts), time.Millisecond)
		for range 5 {
			now = now.Add(time.Second)
			s.sample(now, 1)
		}
	}
	day(3)
	now = now.Add(24*time.Hour - 5*time.Second)
	day(4)
	if s.morning[0].puts != 3 || s.morning[1].puts != 7 || s.puts.Load() != 7 {
		t.Errorf("yesterday's morning %d, today's %d, now %d; want 3, 7, 7", s.morning[0].puts, s.morning[1].puts, s.puts.Load())
	}
}

func TestTimesOfSendsAreClassed(t *testing.T) {
	s := newStats(time.Now())
	for took, n := range map[time.Duration]int{500 * time.Microsecond: 90, 7 * time.Millisecond: 8, 450 * time.Millisecond: 1, 20 * time.Second: 1} {
		for range n {
			s.put("c", sent(1), took)
		}
	}
	if a, b, c := s.percentile(0.9), s.percentile(0.99), s.percentile(0.999); a != 1 || b != 500 || c != 20000 {
		t.Errorf("90 %% %v ms, 99 %% %v ms, 99.9 %% %v ms; want 1, 500, 20000", a, b, c)
	}
	d := s.distribution()
	for _, want := range []string{"[<=0s]:90 ", "[0s~10ms]:8 ", "[200ms~500ms]:1 ", "[10s~]:1 "} {
		if !strings.Contains(d, want) {
			t.Errorf("%q lacks %q", d, want)
		}
	}
}

func TestCountsAreForgotten(t *testing.T) {
	now := time.Now()
	s := newStats(now)
	for i := range statItemsMax + 10 { // whoever sends to more topics is not counted there, and still counted in the totals
		s.add(statKey{statTopicPut, fmt.Sprint("t", i), ""}, 1)
	}
	if n := len(s.items); n != statItemsMax {
		t.Errorf("%d counts, want %d", n, statItemsMax)
	}
	s.forget(func(k statKey) bool { return k.topic == "t5" })
	if _, ok := s.data("TOPIC_PUT_NUMS", "t5"); ok || len(s.items) != statItemsMax-1 {
		t.Error("a count was not forgotten")
	}
	s.add(statKey{statTopicPut, "again", ""}, 1)
	if _, ok := s.data("TOPIC_PUT_NUMS", "again"); !ok {
		t.Error("there is room, but it is not counted")
	}
	s.sample(now.Add(10*time.Second), 10)
	s.add(statKey{statTopicPut, "again", ""}, 1)
	s.sample(now.Add(20*time.Hour), 10)
	s.sample(now.Add(statIdle+time.Minute), 10)
	if _, ok := s.data("TOPIC_PUT_NUMS", "again"); !ok || len(s.items) != 1 {
		t.Errorf("after a day: %d counts, want the one that has changed since", len(s.items))
	}
}

func TestRatesAreOverTheirTime(t *testing.T) {
	now := time.Now().Add(-time.Hour)
	s := newStats(now)
	for i := range 3600 {
		if i >= 3540 {
			s.puts.Add(10) // 10 a second in the last minute
		}
		now = now.Add(time.Second)
		s.sample(now, i+1)
	}
	var a, b, c float64
	if _, err := fmt.Sscan(s.rates(func(m moment) int64 { return m.puts }), &a, &b, &c); err != nil || a < 9 || a > 11 || b < 9.5 || b > 10.5 || c < 0.9 || c > 1.1 {
		t.Errorf("%v %v %v, %v; want 10, 10, 1", a, b, c, err)
	}
	if len(s.moments) > 601 {
		t.Errorf("%d samples", len(s.moments))
	}
}
