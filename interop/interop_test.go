// Package interop tests our program together with the Java originals, as processes on loopback ports.
//
// The originals come from Maven at the first run (package original). Without a JDK or Maven the tests that need them are skipped; where the
// environment says CI=true that is a failure. INTEROP_LONG=1 adds the slowest tests and makes the rounds of others many. A failed test keeps its directories
// and says where. DLEDGER names a program to test instead of one built from this tree, DLEDGER_RACE=1 builds it with the race detector.
//
// Without INTEROP in the environment, INTEROP_LONG=1 and -run only the tests of brief run: a `go test ./...` has to end within the ten minutes that go gives a package,
// also on two busy cores. INTEROP=all (make interop) is everything, INTEROP=off nothing.
package interop

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "dledger"        // what is tested runs in processes of its own; without these imports a cached
	_ "dledger/client" // success would count for a program that has changed
	"dledger/interop/harness"
	"dledger/interop/jvm"
	"dledger/interop/original"
)

var generations = []original.Generation{original.G03, original.G04}

// rounds is how often a test does a thing that may be done many times.
func rounds(quick, long int) int {
	if os.Getenv("INTEROP_LONG") != "" {
		return long
	}
	return quick
}

// long keeps a test for INTEROP_LONG=1.
func long(t *testing.T) {
	t.Helper()
	if rounds(0, 1) == 0 {
		t.Skip("only with INTEROP_LONG=1")
	}
}

// brief is what stands for all others in a plain `go test ./...`.
var brief = []string{
	"TestOriginalClientWorksWithOurGroup", "TestOurCommandLineWorksWithOriginalGroup", "TestDirectoriesPassBetweenOursAndOriginal", "TestMixedGroupsKeepAcknowledgedEntries",
	"TestOurFollowerKeepsCommittedEntriesForNewOriginalLeader", "TestOurGroupSurvivesKillsOfTheLeader", "TestBriefTestsAreThere",
}

func TestBriefTestsAreThere(t *testing.T) {
	names, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	for _, name := range brief {
		if !bytes.Contains(text, []byte("\nfunc "+name+"(t *testing.T) {")) {
			t.Errorf("there is no test %s", name)
		}
	}
}

// choose keeps to the brief tests unless somebody has said which ones he wants.
func choose() error {
	flag.Parse()
	run := flag.Lookup("test.run")
	if os.Getenv("INTEROP") != "" || rounds(0, 1) == 1 || run.Value.String() != "" || flag.Lookup("test.list").Value.String() != "" {
		return nil
	}
	fmt.Println("the brief form; all tests: make interop")
	return run.Value.Set("^(" + strings.Join(brief, "|") + ")$")
}

// together is how many tests run at a time on however many processors, if nobody says -parallel: most of a test is waiting, and each may have three JVMs.
const together = 3

var program = harness.Program{Root: ".."}

func TestMain(m *testing.M) {
	if order := os.Getenv(attackVariable); order != "" {
		attackAsTold(order)
		return
	}
	if os.Getenv("INTEROP") == "off" {
		fmt.Println("left out: INTEROP=off")
		return
	}
	if err := choose(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(together)); err != nil {
			panic(err) // the name of a flag of package testing
		}
	}
	code := m.Run()
	if err := program.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ours is our program.
func ours(t *testing.T) harness.Kind {
	t.Helper()
	path, err := program.Path()
	must(t, err)
	return harness.Kind{Go: path}
}

// java is the original of generation g.
func java(t *testing.T, g original.Generation) harness.Kind {
	t.Helper()
	kit, err := original.Fetch(within(t, 5*time.Minute), g)
	if errors.Is(err, jvm.ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return harness.Kind{Java: kit}
}

// limit is how long a test waits for anything that takes a second when the machine has nothing else to do.
const limit = time.Minute

// group makes a group in a directory that stays when the test fails, and ends its processes with the test.
func group(t *testing.T, kinds ...harness.Kind) *harness.Group {
	t.Helper()
	dir := scratch(t)
	g, err := harness.NewGroup("interop", dir, kinds...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	return g
}

// scratch is a directory that is removed unless the test fails.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "interop-"+strings.ReplaceAll(t.Name(), "/", "_")+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := harness.Outcry(dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("logs and data are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// within is the test's context with a limit.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// started starts all nodes of g and waits for a leader.
func started(t *testing.T, g *harness.Group) *harness.Node {
	t.Helper()
	must(t, g.Start())
	leader, err := g.WaitLeader(within(t, limit))
	must(t, err)
	return leader
}

// level waits until n, which was away, holds what the group has. A Java 0.4.0 leader may have given it up (fault 32 in docs/compat.md); then leadership
// goes to the third node, as an operator would do it.
func level(t *testing.T, g *harness.Group, n *harness.Node) {
	t.Helper()
	err := g.Hold(within(t, limit/2), n)
	if err == nil {
		return
	}
	c := g.Client()
	defer c.Close()
	leader, err2 := c.Leader(within(t, limit))
	must(t, err2)
	if l := g.Node(leader); l.Kind.Java == nil || l.Kind.Java.Gen != original.G04 {
		t.Fatal(err) // it has no such fault
	}
	for _, m := range g.Nodes {
		if m != n && m.ID != leader {
			t.Logf("%s does not get on under %s, leadership goes to %s", n.ID, leader, m.ID)
			must(t, g.Lead(within(t, limit), m))
		}
	}
	must(t, g.Hold(within(t, limit), n))
}

// finish ends a load that is still running, waits until all nodes hold the same, stops them and judges their files.
func finish(t *testing.T, g *harness.Group, load *harness.Load) {
	t.Helper()
	acked, undecided, err := load.Stop()
	must(t, err)
	last, err := g.Settle(within(t, limit))
	must(t, err)
	if err := g.Stop(); err != nil {
		t.Errorf("nodes did not end well: %v", err)
	}
	must(t, g.Judge(acked, last))
	t.Logf("%d acknowledged, %d undecided, last index %d", len(acked), undecided, last)
}
