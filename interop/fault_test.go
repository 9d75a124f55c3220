package interop

import (
	"context"
	"sync"
	"testing"

	"dledger/interop/harness"
	"dledger/interop/original"
)

// lowest keeps the smallest end of a log that was seen since it was long enough.
type lowest struct {
	mu   sync.Mutex
	long bool
	min  int64 // valid once long
}

const longEnough = 500 // entries

func (l *lowest) see(end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.long && end >= longEnough {
		l.long, l.min = true, end
	}
	if l.long {
		l.min = min(l.min, end)
	}
}

func (l *lowest) end() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.min
}

// A Java 0.4.0 node that leads for the first time in its life compares at the end its log had when it started, which is no entry at all if it
// started empty, and tells all followers to drop everything (fault 1 in docs/compat.md). This is what happens to a Java follower: its
// committed entries are gone until the leader has sent them again, and meanwhile the leader has the only copy.
func TestOriginalFollowerDropsCommittedEntriesForNewLeader(t *testing.T) {
	k := java(t, original.G04)
	g := group(t, k, k, k)
	g.DefaultTimers()
	var seen [3]lowest
	for i, n := range g.Nodes {
		n.Watch = func(s harness.Status) { seen[i].see(s.End) }
	}
	first := started(t, g)
	next, other := others(g, first)
	load := harness.StartLoad(g, "drop", 16, 200)
	must(t, load.More(within(t, limit), 2*longEnough))
	acked, _, err := load.Stop()
	must(t, err)
	_, err = g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Lead(within(t, limit), next))
	last, err := g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Stop())
	must(t, g.Judge(acked, last))
	for i, n := range g.Nodes {
		if end := seen[i].end(); n == other && end >= longEnough {
			t.Errorf("the follower's log never ended below %d; the original has changed, docs/compat.md speaks of it", end)
		}
	}
}

// Our follower in the same place answers the comparison with its commit index, so that the Java leader goes on from there, and drops nothing.
func TestOurFollowerKeepsCommittedEntriesForNewOriginalLeader(t *testing.T) {
	theirs, k := java(t, original.G04), ours(t)
	g := group(t, k, theirs, k)
	g.DefaultTimers()
	g.GoOnly["compat"] = string(original.G04)
	must(t, g.Start())
	_, err := g.WaitLeader(within(t, limit))
	must(t, err)
	if g.Nodes[1].Status().Role == "LEADER" {
		must(t, g.Nodes[1].Stop()) // it has to start to lead later
		_, err := g.WaitLeader(within(t, limit))
		must(t, err)
		must(t, g.Nodes[1].Start())
	}
	load := harness.StartLoad(g, "keep", 16, 200)
	must(t, load.More(within(t, limit), 2*longEnough))
	acked, _, err := load.Stop()
	must(t, err)
	before, err := g.Settle(within(t, limit))
	must(t, err)
	var seen [3]lowest
	ctx, stop := context.WithCancel(within(t, limit))
	watched := make(chan error, 2)
	for _, i := range []int{0, 2} {
		go func() {
			watched <- func() error {
				for ctx.Err() == nil {
					l, err := harness.ReadLog(g.Nodes[i].Root())
					if err != nil {
						return err
					}
					seen[i].see(l.End())
				}
				return nil
			}()
		}()
	}
	must(t, g.Lead(within(t, limit), g.Nodes[1]))
	last, err := g.Settle(within(t, limit))
	must(t, err)
	stop()
	for range 2 {
		must(t, <-watched)
	}
	must(t, g.Stop())
	must(t, g.Judge(acked, last))
	for _, i := range []int{0, 2} {
		if end := seen[i].end(); end < before {
			t.Errorf("%s's log ended at %d for a moment; %d entries were committed", g.Nodes[i].ID, end, before)
		}
	}
}

// others gives the two members of g that are not n.
func others(g *harness.Group, n *harness.Node) (a, b *harness.Node) {
	for _, m := range g.Nodes {
		switch {
		case m == n:
		case a == nil:
			a = m
		default:
			b = m
		}
	}
	return a, b
}

// A Java 0.4.0 leader keeps at most 1000 pushes to a follower on the way, and forgets those that were refused or lost only while it is below that
// limit: a follower that was away for longer may get nothing more until the leadership changes (fault 32). Nothing that the follower
// could answer helps, since nobody asks it. Whether it happens depends on timing; that a change of leaders helps does not.
func TestFollowerOfOriginalLeaderIsWholeAfterTheLeaderChanges(t *testing.T) {
	t.Parallel()
	long(t)
	for _, kind := range []string{"java", "go"} {
		t.Run(kind, func(t *testing.T) {
			k := java(t, original.G04)
			follower := k
			if kind == "go" {
				follower = ours(t)
			}
			g := group(t, k, k, follower)
			g.GoOnly["compat"] = string(original.G04)
			started(t, g)
			must(t, g.Lead(within(t, limit), g.Nodes[0]))
			load := harness.StartLoad(g, "away", 16, 200)
			g.Nodes[2].Kill()
			must(t, load.More(within(t, limit), 3000))
			must(t, g.Nodes[2].Start())
			must(t, load.More(within(t, limit), 3000))
			acked, _, err := load.Stop()
			must(t, err)
			end, err := harness.EndOf(g.Nodes[2].Root())
			must(t, err)
			t.Logf("%d entries acknowledged, the follower's log ends at %d", len(acked), end)
			must(t, g.Lead(within(t, limit), g.Nodes[1]))
			last, err := g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))
		})
	}
}
