package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dledger/interop/harness"
)

// told is what `dledger status --json` says of a group.
type told struct {
	Leader string
	Nodes  []struct {
		ID, Error   string
		Abstains    bool
		End, Commit *int64
	}
}

// status asks with the command line, as somebody does who has the manual before him. It fails while there is no leader, and says what it knows.
func status(t *testing.T, g *harness.Group) told {
	t.Helper()
	out, err := harness.Run(within(t, limit), ours(t).Go, "status", "-g", g.Name, "-p", g.Peers, "--json", "--timeout", "1s")
	var s told
	if wrong := json.Unmarshal(out, &s); wrong != nil {
		t.Fatal(errors.Join(wrong, err))
	}
	return s
}

// led tells whether there is a leader and all nodes answer but those that are not there.
func (s told) led(away ...*harness.Node) bool {
	gone := map[string]bool{}
	for _, n := range away {
		gone[n.ID] = true
	}
	for _, n := range s.Nodes {
		if n.Error != "" && !gone[n.ID] {
			return false
		}
	}
	return s.Leader != "" && !gone[s.Leader]
}

// abstains tells whether node n says that it does not vote, and whole that it votes and has committed all that the leader has.
func (s told) abstains(id string) bool {
	for _, n := range s.Nodes {
		if n.ID == id {
			return n.Abstains
		}
	}
	return false
}

func (s told) whole(id string) bool {
	end, commit := int64(-1), int64(-2)
	for _, n := range s.Nodes {
		if n.ID == s.Leader && n.End != nil {
			end = *n.End
		}
		if n.ID == id && n.Commit != nil {
			commit = *n.Commit
		}
	}
	return commit == end && !s.abstains(id)
}

// "Adding and replacing nodes" in docs/operating.md, step by step: a node loses its data, and one with its id and an empty directory takes its place, at the same address
// and at another one. Afterwards the group can do without another node, and all hold the same.
func TestNodeIsReplacedAsTheManualSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		compat         string
		elsewhere, led bool // it gets another address; it leads when it is lost
	}{{"go", false, true}, {"go", true, false}, {"0.3", true, true}} {
		t.Run(fmt.Sprintf("%s, another address %v", c.compat, c.elsewhere), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections
			k := ours(t)
			g := group(t, k, k, k)
			g.GoOnly["compat"] = c.compat
			lost := started(t, g)
			if !c.led {
				lost, _ = others(g, lost)
			}
			load := harness.StartLoad(g, "before", 16, 200)
			must(t, load.More(within(t, limit), 1000))
			_, err := g.Settle(within(t, limit)) // compat 0.3: "step 1 is all that protects what it had acknowledged"
			must(t, err)
			lost.Kill()
			wait := func(what string, ok func(told) bool) {
				t.Helper()
				var last told
				if err := harness.Until(within(t, limit), what, func() bool { last = status(t, g); return ok(last) }); err != nil {
					t.Fatalf("%v; %+v\n%s", err, last, g.Logs())
				}
			}

			wait("step 1: a leader, and all others run", func(s told) bool { return s.led(lost) })
			must(t, load.More(within(t, limit), 200))
			acked, _, err := load.Stop()
			must(t, err)
			must(t, os.Rename(lost.Root(), filepath.Join(g.Dir, "lost"))) // step 2
			if c.elsewhere {                                              // step 3
				before := fmt.Sprintf("%s-127.0.0.1:%d", lost.ID, lost.Port)
				lost.Port, err = harness.FreePort()
				must(t, err)
				g.Peers = strings.Replace(g.Peers, before, fmt.Sprintf("%s-127.0.0.1:%d", lost.ID, lost.Port), 1)
				for _, n := range g.Nodes {
					if n != lost {
						must(t, n.Stop())
						must(t, n.Start())
						wait(n.ID+" to be level with the leader", func(s told) bool { return s.led(lost) && s.whole(n.ID) })
					}
				}
			}
			load = harness.StartLoad(g, "during", 16, 200)
			must(t, load.More(within(t, limit), 200))
			if c.compat == "go" {
				// What the new node lacks comes within milliseconds here: so that somebody can see step 5 the leader stands still until he has.
				leader := g.Node(status(t, g).Leader)
				must(t, leader.Process().Pause())
				must(t, lost.Start()) // step 4
				wait("step 5: it abstains", func(s told) bool { return s.abstains(lost.ID) })
				text, _ := harness.Run(within(t, limit), k.Go, "status", "-g", g.Name, "-p", g.Peers, "--timeout", "1s") // nobody leads
				if want := lost.ID + " does not vote until it has caught up"; !bytes.Contains(text, []byte(want)) {
					t.Errorf("status does not say %q:\n%s", want, text)
				}
				must(t, leader.Process().Resume())
			} else {
				must(t, lost.Start())
			}
			must(t, load.More(within(t, limit), 200))
			more, _, err := load.Stop()
			must(t, err)
			maps.Copy(acked, more)
			wait("step 5: it votes and has all", func(s told) bool { return s.led() && s.whole(lost.ID) })

			other, third := others(g, lost) // step 6
			other.Kill()
			load = harness.StartLoad(g, "after", 16, 200)
			must(t, load.More(within(t, limit), 200))
			more, _, err = load.Stop()
			must(t, err)
			maps.Copy(acked, more)
			must(t, other.Start())
			last, err := g.Settle(within(t, limit))
			must(t, err)
			must(t, g.Stop())
			must(t, g.Judge(acked, last))
			for _, n := range []*harness.Node{other, third} {
				if _, err := harness.Run(within(t, limit), k.Go, "verify", "--dir", lost.Root(), "--against", n.Root()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
