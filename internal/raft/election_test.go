package raft

import (
	"math/rand"
	"slices"
	"testing"
	"time"
)

// TestFailoverTakesOneTimeout measures, with the original's timers, how long a group is without a leader after its leader crashes:
// one time-out, which the original draws out to 11 to 17 s when its candidates meet (section 5.3, row 2).
func TestFailoverTakesOneTimeout(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewSource(seed))
	for _, size := range []int{3, 5} {
		var took []time.Duration
		for range 200 {
			config := defaults()
			config.Rand = r.Int63n
			g := newGroup(t, config, []ID{"n0", "n1", "n2", "n3", "n4"}[:size]...)
			g.fate = func(*Message) fate { return fate{delay: ms/10 + Instant(r.Int63n(int64(2*ms)))} }
			for _, id := range g.ids {
				g.nodes[id].start()
			}
			for g.leader() == nil {
				g.run(g.now + 10*ms)
			}
			g.run(g.now + Instant(r.Int63n(int64(10*time.Second))))
			old := g.leader()
			old.propose(3)
			g.run(g.now + 100*ms)
			old.crash(-1)
			at := g.now
			for g.leader() == nil {
				g.run(g.now + 10*ms)
			}
			took = append(took, time.Duration(g.now-at))
		}
		slices.Sort(took)
		t.Logf("%d members: median %v, worst %v", size, took[len(took)/2], took[len(took)-1])
		if worst, limit := took[len(took)-1], 10*time.Second; worst > limit {
			t.Errorf("%d members: the worst failover took %v, want at most %v", size, worst, limit)
		}
	}
}

// TestStartTakesOneVoteInterval: a group that starts has a leader after about one vote interval.
func TestStartTakesOneVoteInterval(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewSource(seed))
	var worst Instant
	for range 200 {
		config := defaults()
		config.Rand = r.Int63n
		g := newGroup(t, config, "n0", "n1", "n2")
		for _, id := range g.ids {
			g.nodes[id].start()
		}
		for g.leader() == nil && g.now < Instant(time.Minute) {
			g.run(g.now + ms)
		}
		worst = max(worst, g.now)
	}
	t.Logf("worst %v", time.Duration(worst))
	if limit := Instant(4 * time.Second); worst > limit {
		t.Errorf("the worst start took %v, want at most %v", time.Duration(worst), time.Duration(limit))
	}
}
