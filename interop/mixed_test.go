package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"dledger/interop/harness"
	"dledger/interop/original"
)

// Groups of ours and the original's nodes, in both proportions: leadership goes to each node in turn under load, each node is killed in
// turn, and afterwards all acknowledged entries are on all nodes, in files that are equal byte for byte.
func TestMixedGroupsKeepAcknowledgedEntries(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		for _, mix := range [][]bool{{false, false, true}, {false, true, true}} {
			var kinds []harness.Kind
			for _, isJava := range mix {
				if isJava {
					kinds = append(kinds, java(t, gen))
				} else {
					kinds = append(kinds, ours(t))
				}
			}
			t.Run(composition(kinds), func(t *testing.T) {
				t.Parallel() // much of it is waiting for elections and for JVMs
				g := group(t, kinds...)
				g.GoOnly["compat"] = string(gen)
				started(t, g)
				load := harness.StartLoad(g, "mixed", 16, 200)
				for range rounds(1, 10) {
					rotate(t, g, load)
				}
				finish(t, g, load)
				verifyAgainst(t, g)
			})
		}
	}
}

// verifyAgainst lets our program compare the directories of g's stopped nodes.
func verifyAgainst(t *testing.T, g *harness.Group) {
	t.Helper()
	for _, n := range g.Nodes[1:] {
		if _, err := harness.Run(within(t, limit), ours(t).Go, "verify", "--dir", g.Nodes[0].Root(), "--against", n.Root()); err != nil {
			t.Error(err)
		}
	}
}

// The Java client against our group: 5,000 appends, all read back.
func TestOriginalClientWorksWithOurGroup(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			kit := java(t, gen).Java
			k := ours(t)
			g := group(t, k, k, k)
			g.DefaultTimers()
			started(t, g)
			out, err := harness.Run(within(t, 2*time.Minute), kit.Client(original.Lean, g.Dir, g.Name, g.Peers, 5000, 32, 200)...)
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, g.Logs())
			}
			var r struct{ Appended, Failed, Retries, Read, Wrong, AppendMs, ReadMs int }
			must(t, json.Unmarshal(out, &r))
			t.Logf("%d appended in %d ms, %d tried again; %d read in %d ms", r.Appended, r.AppendMs, r.Retries, r.Read, r.ReadMs)
			if r.Appended != 5000 || r.Read != 5000 || r.Wrong != 0 {
				t.Errorf("got %+v, want 5000 appended and read", r)
			}
		})
	}
}

// A directory that a Java node wrote is opened by ours, written on, and opened by Java again; every entry stays where it was.
func TestDirectoriesPassBetweenOursAndOriginal(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			theirs, ours := java(t, gen), ours(t)
			g := group(t, theirs)
			g.GoOnly["compat"] = string(gen)
			acked := map[int64][]byte{}
			for i, owner := range []harness.Kind{theirs, ours, theirs, ours} {
				g.Nodes[0].Kind = owner
				started(t, g)
				load := harness.StartLoad(g, fmt.Sprintf("owner%d", i), 16, 200)
				must(t, load.More(within(t, limit), 2000))
				more, _, err := load.Stop()
				must(t, err)
				for index, body := range more {
					acked[index] = body
				}
				readBack(t, g, acked)
				last, err := g.Settle(within(t, limit))
				must(t, err)
				must(t, g.Stop())
				must(t, g.Judge(acked, last))
				if _, err := harness.Run(within(t, limit), ours.Go, "verify", "--dir", g.Nodes[0].Root()); err != nil {
					t.Errorf("after %s: %v", owner, err)
				}
			}
		})
	}
}

// readBack gets every acknowledged entry from the leader, many at a time.
func readBack(t *testing.T, g *harness.Group, acked map[int64][]byte) {
	t.Helper()
	c := g.Client()
	defer c.Close()
	ctx := within(t, limit)
	type want struct {
		index int64
		body  []byte
	}
	work, wrong := make(chan want), make(chan error, len(acked))
	var readers sync.WaitGroup
	for range 32 {
		readers.Go(func() {
			for w := range work {
				if got, err := c.Get(ctx, w.index); err != nil || !bytes.Equal(got, w.body) {
					wrong <- fmt.Errorf("get %d: %.24q, %w; want %.24q", w.index, got, err, w.body)
				}
			}
		})
	}
	for index, body := range acked {
		work <- want{index, body}
	}
	close(work)
	readers.Wait()
	select {
	case err := <-wrong:
		t.Fatal(err)
	default:
	}
}
