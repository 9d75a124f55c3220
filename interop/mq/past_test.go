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
