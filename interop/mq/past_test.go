package mq

import (
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
