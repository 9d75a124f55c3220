package mq

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestRepeatsAreJudgedByWhatBrokersKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTraffic()
		key := "_ordered/a/0"
		seen := func(offset int64) {
			f.commit(key, offset)
			time.Sleep(time.Second)
		}
		for _, offset := range []int64{5, 5, 10, 10, 6, 6, 12, 12} { // one a second
			seen(offset)
		}
		for offset, want := range map[int64]time.Duration{
			13: 0,               // not committed
			12: 0,               // the next one is
			11: 2 * time.Second, // known since 12 was seen
			8:  time.Second,     // known from the first 10 to the last, then forgotten
			5:  6 * time.Second, // known since the first 10
			4:  8 * time.Second,
		} {
			if got := f.commits[key].past(offset); got != want {
				t.Errorf("message at %d: known as committed for %v, want %v", offset, got, want)
			}
		}
		if got := f.commits["other"].past(0); got != 0 {
			t.Errorf("of a queue that nobody has asked for: %v", got)
		}
	})
}

// Of a group of one consumer, with and without order, no message comes again that brokers had known as committed for longer than progress may go back; two that share a group may
// get it.
func TestRepeatsOfAGroupOfOneAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTraffic(shared, alone)
		at := place{"a", 0, 4}
		f.repeatMax = diedMax + listenMax
		if got := f.unknown(); !slices.Equal(got, []string{alone, ordered}) {
			t.Errorf("unknown before anything was committed: %q", got)
		}
		for _, group := range []string{shared, alone, ordered} {
			f.commit(group+"/a/0", 5)
		}
		if got := f.unknown(); got != nil {
			t.Errorf("unknown: %q", got)
		}
		f.reach["a/0"] = 5
		for range 2 {
			f.take(shared, at, "m")
			f.take(alone, at, "m")
			f.next(at)
		}
		if len(f.faults) > 0 {
			t.Errorf("repeats of what was committed just now: %q", f.faults)
		}
		time.Sleep(f.repeatMax + time.Millisecond)
		f.take(shared, at, "m")
		if len(f.faults) > 0 {
			t.Errorf("of two that share a group: %q", f.faults)
		}
		f.take(alone, at, "m")
		f.next(at)
		if len(f.faults) != 2 {
			t.Errorf("of groups of one: %q, want 2", f.faults)
		}
	})
}

// Only a send that failed or took long may be stored again, also one of the Java client, which says how long each took; and none more often than a client tries.
func TestQuickSendsAreStoredOnce(t *testing.T) {
	f := newTraffic(alone)
	f.hear("acked a 0 0 quick C0FFEE 7F00000100002A9F0000000000000001 100")
	f.hear("acked a 0 2 slow C0FFEF 7F00000100002A9F0000000000000002 101")
	f.hear("failed undecided code 14")
	f.once("single", nil, errors.New("nobody knows"))
	if len(f.faults) > 0 {
		t.Fatal(f.faults)
	}
	for _, c := range []struct {
		body        string
		times       int
		unexplained int
	}{{"quick", 1, 0}, {"quick", 2, 1}, {"slow", 3, 0}, {"slow", 4, 1}, {"undecided", 3, 0}, {"undecided", 4, 1}, {"single", 1, 0}, {"single", 2, 1}, {"never sent", 2, 1}, {"", 1, 1}} {
		stored := map[place]message{}
		for i := range c.times {
			stored[place{"a", 0, int64(i)}] = message{body: c.body}
		}
		if twice, got := f.copies(stored); len(got) != c.unexplained || twice != c.times-1 {
			t.Errorf("%q stored %d times: %d twice, unexplained %q, want %d", c.body, c.times, twice, got, c.unexplained)
		}
	}
	for _, text := range []string{"acked a 0 0 quick C0FFEE 7F00000100002A9F0000000000000001", "acked a 0 0 quick C0FFEE 7F00000100002A9F0000000000000001 soon"} {
		if f.hear(text); len(f.faults) != 1 {
			t.Errorf("%q is taken for an answer", text)
		}
		f.faults = nil
	}
}

func TestAcknowledgedMessagesAreComparedByPlaceBodyAndIds(t *testing.T) {
	at := place{"a", 1, 7}
	acked := map[place]message{at: {"one", "C0FFEE", position("7F00000100002A9F000000000000ABCD")}}
	for _, c := range []struct {
		name   string
		stored map[place]message
		wrong  int
	}{
		{"the same, of another host", map[place]message{at: {"one", "C0FFEE", position("7F00000100002AAA000000000000ABCD")}}, 0},
		{"the same, of a host with a long address", map[place]message{at: {"one", "C0FFEE", position("FE8000000000000000000000000000010000" + "2A9F000000000000ABCD")}}, 0},
		{"another body", map[place]message{at: {"two", "C0FFEE", 0xABCD}}, 1},
		{"another client's id", map[place]message{at: {"one", "C0FFEF", 0xABCD}}, 1},
		{"another position", map[place]message{at: {"one", "C0FFEE", position("7F00000100002A9F000000000000ABCE")}}, 1},
		{"an id that says no position", map[place]message{at: {"one", "C0FFEE", position("C0FFEE")}}, 1},
		{"another place", map[place]message{{"a", 1, 8}: {"one", "C0FFEE", 0xABCD}}, 1},
		{"more beside it", map[place]message{at: {"one", "C0FFEE", 0xABCD}, {"a", 1, 8}: {"two", "C0FFEF", 0xABFF}}, 0},
	} {
		if wrong := misplaced(acked, c.stored); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d", c.name, wrong, c.wrong)
		}
	}
	for _, none := range []message{{"one", "", 3}, {"one", "C0FFEE", position("")}, {"one", "C0FFEE", position("7F00000100002A9Fx00000000000ABCD")}} {
		if wrong := misplaced(map[place]message{at: none}, map[place]message{at: none}); len(wrong) != 1 {
			t.Errorf("%s, without an id, passes", none)
		}
	}
}
