// Package mq is accepted when stock RocketMQ clients cannot tell our servers from the original ones.
//
// Scripts run stock clients (the Go client in this process, Java clients and mqadmin as processes, package stock) against a name server and one
// group of three brokers, and write down what they see in lines that do not depend on ids, times and chance. The files under testdata/seen hold
// what they see of the stock servers, release 5.3.3 in DLedger mode; the tests ask that ours give the same.
//
//	INTEROP_ORIGINAL=1   also compares the files with the stock servers, and with each kind of name server beside the other kind of brokers
//	INTEROP_LONG=1       makes many rounds of kills, hand-overs and partitions
//	-update              rewrites the files from the stock servers
//	DLEDGER=path         tests that program instead of one built from this tree
//	DLEDGER_RACE=1       builds ours with the race detector
//	INTEROP=off          leaves everything out
//
// Without a JDK or Maven what needs them is skipped; where the environment says CI=true that is a failure. A failed test keeps its directories.
package mq

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"

	"dledger/interop/harness"
	"dledger/interop/jvm"
	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

var update = flag.Bool("update", false, "rewrite testdata/seen from the stock servers")

var binary = harness.Program{Root: filepath.Join("..", "..")}

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("INTEROP") == "off" {
		fmt.Println("left out: INTEROP=off")
		return
	}
	rlog.SetLogger(silent{})
	code := m.Run()
	if err := binary.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// silent drops what the Go client logs: what a script sees counts.
type silent struct{}

func (silent) Debug(string, map[string]any)   {}
func (silent) Info(string, map[string]any)    {}
func (silent) Warning(string, map[string]any) {}
func (silent) Error(string, map[string]any)   {}
func (silent) Fatal(string, map[string]any)   {}
func (silent) Level(string)                   {}
func (silent) OutputPath(string) error        { return nil }

// program is ours.
func program(t *testing.T) string {
	t.Helper()
	path, err := binary.Path()
	must(t, err)
	return path
}

// fetched is a stock release.
func fetched(t *testing.T, r stock.Release) *stock.Kit {
	t.Helper()
	kit, err := stock.Fetch(within(t, 8*time.Minute), r)
	if errors.Is(err, jvm.ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	must(t, err)
	return kit
}

// subject is a kind of servers that scripts run against.
type subject struct {
	name           string
	names, brokers func(t *testing.T) cluster.Kind
}

func oursKind(t *testing.T) cluster.Kind     { return cluster.Kind{Program: program(t)} }
func originalKind(t *testing.T) cluster.Kind { return cluster.Kind{Kit: fetched(t, stock.Servers)} }

// subjects are those of this run.
func subjects() []subject {
	original := subject{"original", originalKind, originalKind}
	ours := subject{"ours", oursKind, oursKind}
	switch {
	case *update:
		return []subject{original}
	case os.Getenv("INTEROP_ORIGINAL") != "":
		return []subject{original, {"our-names", oursKind, originalKind}, {"our-brokers", originalKind, oursKind}, ours}
	default:
		return []subject{ours}
	}
}

// started starts s and waits until it takes sends. It ends with the test.
func started(t *testing.T, s subject) *cluster.Cluster {
	t.Helper()
	began := time.Now()
	c, err := cluster.Start(scratch(t), s.names(t), s.brokers(t))
	must(t, err)
	t.Cleanup(c.Kill)
	must(t, c.Ready(within(t, 2*time.Minute), 1))
	t.Logf("%s: ready after %v", s.name, time.Since(began).Round(time.Millisecond))
	return c
}

// scratch is a directory that is removed unless the test fails.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mq-"+strings.ReplaceAll(t.Name(), "/", "_")+"-")
	must(t, err)
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

// ticks gives 0, 1, 2 and so on, one every d, until ctx ends.
func ticks(ctx context.Context, d time.Duration) iter.Seq[int] {
	return func(yield func(int) bool) {
		pace := time.NewTicker(d)
		defer pace.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
			}
			if !yield(i) {
				return
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seen is what scripts have written down, by the name of its file under testdata/seen; lines of one script stay in order.
type seen struct {
	mu    sync.Mutex
	lines map[string][]string
}

func (s *seen) say(script, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines = map[string][]string{}
	}
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		s.lines[script] = append(s.lines[script], strings.TrimRight(line, " \r\t"))
	}
}

var badly = regexp.MustCompile(`(?m)^(failed|not within)|: (late|early|never)`)

// written are the files that this run has rewritten: what two clients share has to be equal.
var written = map[string]string{}

// compare fails a subtest for each script that has seen something else than its file says. Files begin with kind; prefix tells clients apart.
func (s *seen) compare(t *testing.T, prefix, kind string, scripts []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, script := range scripts {
		t.Run(prefix+script, func(t *testing.T) {
			got := strings.Join(s.lines[script], "\n") + "\n"
			name := filepath.Join("testdata", "seen", kind+script+".txt")
			if old, again := written[name]; again && old != got {
				t.Errorf("two clients see different things:\n%s", difference(old, got))
			}
			if *update && badly.MatchString(got) {
				t.Fatalf("not written down, since the machine was too slow or a script is wrong:\n%s", got)
			}
			if *update {
				written[name] = got
				must(t, os.MkdirAll(filepath.Dir(name), 0o755))
				must(t, os.WriteFile(name, []byte(got), 0o644))
				return
			}
			want, err := os.ReadFile(name)
			must(t, err)
			if got != string(want) {
				t.Errorf("seen otherwise than of the original (-), %s:\n%s", name, difference(string(want), got))
			}
		})
	}
}

// difference lists lines of a that are not in b with -, and those of b that are not in a with +, after the longest common subsequence.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []string
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			out = append(out, "- "+x[i])
			i++
		default:
			out = append(out, "+ "+y[j])
			j++
		}
	}
	return strings.Join(out, "\n")
}

// sorted gives the keys of a set in order, in the form the scripts print.
func sorted(m map[string]bool) string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return "[" + strings.Join(keys, ", ") + "]"
}
