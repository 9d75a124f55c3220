package interop

import (
	"fmt"
	"testing"

	"dledger/interop/harness"
)

// The yardstick: what the other tests ask of mixed groups, a group of originals alone does.
func TestOriginalsAloneKeepAcknowledgedEntries(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			k := java(t, gen)
			g := group(t, k, k, k)
			g.DefaultTimers()
			started(t, g)
			load := harness.StartLoad(g, "base", 16, 200)
			must(t, load.More(within(t, limit), 3000))
			finish(t, g, load)
		})
	}
}

// The same steps as TestMixedGroupsKeepAcknowledgedEntries on originals alone, so that a failure there can be told from the original's own.
func TestOriginalsAloneSurviveTransfersAndKills(t *testing.T) {
	t.Parallel()
	long(t)
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			k := java(t, gen)
			g := group(t, k, k, k)
			started(t, g)
			load := harness.StartLoad(g, "rotate", 16, 200)
			rotate(t, g, load)
			finish(t, g, load)
		})
	}
}

// rotate moves leadership to every node under load, then kills every node in turn and starts it again.
func rotate(t *testing.T, g *harness.Group, load *harness.Load) {
	t.Helper()
	for _, n := range g.Nodes {
		must(t, g.Lead(within(t, limit), n))
		must(t, load.More(within(t, limit), 300))
	}
	for _, n := range g.Nodes {
		n.Kill()
		if err := load.More(within(t, limit), 300); err != nil {
			t.Fatalf("without %s: %v\n%s", n.ID, err, g.Logs())
		}
		must(t, n.Start())
		if err := load.More(within(t, limit), 300); err != nil {
			t.Fatalf("with %s again: %v\n%s", n.ID, err, g.Logs())
		}
		level(t, g, n)
	}
}

// composition names a group by its nodes, ours first: "2 go 1 java 0.3".
func composition(kinds []harness.Kind) string {
	count := map[string]int{}
	for _, k := range kinds {
		count[k.String()]++
	}
	name := ""
	for _, k := range kinds {
		if n := count[k.String()]; n > 0 {
			name += fmt.Sprintf("%d %s ", n, k)
			delete(count, k.String())
		}
	}
	return name[:len(name)-1]
}
