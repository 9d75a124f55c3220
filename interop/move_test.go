package interop

import (
	"maps"
	"testing"

	"dledger/interop/harness"
	"dledger/interop/original"
)

// The way from the original to ours that docs/compat.md describes: under load each Java node is stopped and its directory taken over by
// ours, set to that generation; then, with no Java node left, all nodes are restarted with compat go. From 0.4 there is a way back. Nothing acknowledged
// is lost on the way.
func TestGroupMovesFromOriginalToOurs(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			theirs, k := java(t, gen), ours(t)
			g := group(t, theirs, theirs, theirs)
			g.GoOnly["compat"] = string(gen)
			started(t, g)
			load := harness.StartLoad(g, "moving", 16, 200)
			must(t, load.More(within(t, limit), 500))
			for _, n := range g.Nodes {
				must(t, n.Stop())
				n.Kind = k
				must(t, n.Start())
				// The next node may go once this one holds what the group has, or a majority would be without it.
				must(t, load.More(within(t, limit), 500))
				level(t, g, n)
			}
			acked, _, err := load.Stop()
			must(t, err)
			last, err := g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))

			g.GoOnly["compat"] = "go"
			started(t, g)
			load = harness.StartLoad(g, "moved", 16, 200)
			must(t, load.More(within(t, limit), 1000))
			more, _, err := load.Stop()
			must(t, err)
			maps.Copy(acked, more)
			readBack(t, g, acked)
			last, err = g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))
			verifyAgainst(t, g)

			if gen == original.G03 {
				return // there may be no-ops in the log by now
			}
			g.GoOnly["compat"], g.Nodes[0].Kind = string(gen), theirs
			started(t, g)
			last, err = g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))
		})
	}
}
