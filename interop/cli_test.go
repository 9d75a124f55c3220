package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dledger/interop/harness"
)

// Our command line against a Java group: 5,000 lines appended, read back, and the leader handed on.
func TestOurCommandLineWorksWithOriginalGroup(t *testing.T) {
	t.Parallel()
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			t.Parallel() // much of it is waiting for elections and for JVMs
			k, dl := java(t, gen), ours(t).Go
			g := group(t, k, k, k)
			g.DefaultTimers()
			leader := started(t, g)
			const n = 5000
			var lines bytes.Buffer
			for i := range n {
				fmt.Fprintf(&lines, "line %d of the command line:%s\n", i, strings.Repeat("x", i%300))
			}
			file := filepath.Join(g.Dir, "lines")
			must(t, os.WriteFile(file, lines.Bytes(), 0o644))
			run := func(args ...string) []byte {
				t.Helper()
				args = append([]string{dl, args[0], "-g", g.Name, "-p", g.Peers}, args[1:]...)
				out, err := harness.Run(within(t, limit), args...)
				if err != nil {
					t.Fatalf("%v\n%s", err, g.Logs())
				}
				return out
			}

			// A JVM that has just started on a busy machine may not commit within the 2 s it has: then the outcome is unknown, rightly.
			load := harness.StartLoad(g, "warm", 16, 200)
			must(t, load.More(within(t, limit), 1000))
			_, _, err := load.Stop()
			must(t, err)
			var out []byte
			var began time.Time
			for try := 1; ; try++ {
				_, err := g.Settle(within(t, limit))
				must(t, err)
				began = time.Now()
				out, err = harness.Run(within(t, limit), dl, "append", "-g", g.Name, "-p", g.Peers, "-f", file, "--json")
				if err == nil {
					break
				}
				if try == 3 || !strings.Contains(err.Error(), "outcome unknown") {
					t.Fatalf("%v\n%s", err, g.Logs())
				}
			}
			acks := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
			if len(acks) != n {
				t.Fatalf("got %d acknowledgements, want %d", len(acks), n)
			}
			// A Java leader handles the requests of one connection on four threads, so the order may differ a little.
			want := make([][]byte, n)
			first := struct{ Index int64 }{1 << 62}
			for _, line := range acks {
				ack := first
				must(t, json.Unmarshal(line, &ack))
				first.Index = min(first.Index, ack.Index)
			}
			for i, body := range bytes.SplitAfter(bytes.TrimSpace(lines.Bytes()), []byte("\n")) {
				ack := first
				must(t, json.Unmarshal(acks[i], &ack))
				at := ack.Index - first.Index
				if at >= n || want[at] != nil {
					t.Fatalf("line %d is at index %d; the first of %d lines is at %d", i, ack.Index, n, first.Index)
				}
				want[at] = bytes.TrimSpace(body)
			}
			appended := time.Since(began)
			got := run("get", "-i", fmt.Sprint(first.Index), "-n", fmt.Sprint(n), "--body")
			if !bytes.Equal(bytes.TrimSpace(got), bytes.Join(want, []byte("\n"))) {
				t.Errorf("read %d bytes that differ from the %d appended", len(got), lines.Len())
			}
			t.Logf("appended in %v, read in %v", appended, time.Since(began)-appended)

			// A Java leader refuses a follower that is behind, and may leave one behind for good (docs/compat.md).
			var to *harness.Node
			must(t, harness.Until(within(t, limit), "a follower with the whole log", func() bool {
				for _, n := range g.Nodes {
					if n != leader && n.Status().End == leader.Status().End {
						to = n
					}
				}
				return to != nil
			}))
			run("transfer", "-t", to.ID)
			if status := run("status", "--json"); !bytes.Contains(status, []byte(to.ID)) {
				t.Errorf("status does not know %s: %s", to.ID, status)
			}
			c := g.Client()
			defer c.Close()
			must(t, harness.Until(within(t, limit), to.ID+" to be named as the leader", func() bool { // the members hear of it one by one
				now, err := c.Leader(within(t, limit))
				return err == nil && now == to.ID
			}))
		})
	}
}
