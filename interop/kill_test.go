package interop

import (
	"slices"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/interop/harness"
)

// Our own group with its default timers: the leader is killed again and again under load; every acknowledged append is on all three
// nodes in the end. How long clients waited is a figure.
func TestOurGroupSurvivesKillsOfTheLeader(t *testing.T) {
	t.Parallel()
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	started(t, g)
	load := harness.StartLoad(g, "kills", 16, 200)
	c := g.Client()
	defer c.Close()
	var waits []time.Duration
	for range rounds(5, 100) {
		must(t, load.More(within(t, limit), 200))
		id, err := c.Leader(within(t, limit))
		must(t, err)
		leader := g.Node(id)
		term, killed := load.Term(), time.Now()
		leader.Kill()
		next, err := load.AckAbove(within(t, limit), term)
		if err != nil {
			t.Fatalf("%v\n%s", err, g.Logs())
		}
		waits = append(waits, next.Sub(killed))
		must(t, leader.Start())
	}
	finish(t, g, load)
	verifyAgainst(t, g)
	report(t, waits)
}

func report(t *testing.T, waits []time.Duration) {
	t.Helper()
	slices.Sort(waits)
	figure.Log(t, "kill -9 of the leader to the next acknowledged append, %d times: min %v, median %v, max %v",
		len(waits), waits[0], waits[len(waits)/2], waits[len(waits)-1])
}
