package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger"
	"dledger/client"
	"dledger/internal/vfs"
)

func TestAppendPrintsWhereEntriesLie(t *testing.T) {
	peers, _ := startGroup(t, 3)
	got := decode[appended](t, mustRun(t, "", "append", "-p", peers, "-d", "hello", "-c", "3", "--json"))
	if len(got) != 3 || got[0].Index != got[1].Index-1 || got[1].Pos != got[0].Pos+53 || got[0].Term < 0 {
		t.Errorf("%+v, want three entries of 53 bytes", got)
	}
	text := mustRun(t, "", "append", "-p", peers)
	if want := fmt.Sprintf("index %d  pos %d  term %d\n", got[2].Index+1, got[2].Pos+53, got[0].Term); text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

func TestAppendTakesALineForABody(t *testing.T) {
	peers, _ := startGroup(t, 1)
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	long := strings.Repeat("x", 300_000) // longer than any buffer
	got := decode[appended](t, mustRun(t, text.String()+"\n"+long, "append", "-p", peers, "-f", "-", "--json"))
	if len(got) != 5002 {
		t.Fatalf("%d entries, want 5002", len(got))
	}
	name := filepath.Join(t.TempDir(), "bodies")
	if err := os.WriteFile(name, []byte("from a file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "", "append", "-p", peers, "-f", name)
	bodies := mustRun(t, "", "get", "-p", peers, "-i", fmt.Sprint(got[0].Index), "-n", "10000", "--body")
	if bodies != text.String()+"\n"+long+"\nfrom a file\n" {
		t.Errorf("the bodies read back are others: %d bytes", len(bodies))
	}
}

func TestABodyThatFitsNoEntryIsNamed(t *testing.T) {
	peers, _ := startGroup(t, 1)
	big := strings.Repeat("x", client.MaxBody+1)
	code, stdout, stderr := command(t, "small\n"+big+"\n", "append", "-p", peers, "-f", "-")
	if code != exitFailed || strings.Count(stdout, "\n") != 1 || !strings.Contains(stderr, "1 entries appended") || !strings.Contains(stderr, "line 2 of standard input") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestGetPrintsEntries(t *testing.T) {
	peers, _ := startGroup(t, 1)
	mustRun(t, "a\nb\xff\nc\n", "append", "-p", peers, "-f", "-")
	first := firstNormal(t, peers)
	at := fmt.Sprint(first)
	if got, want := mustRun(t, "", "get", "-p", peers, "-i", at, "--body"), "a\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := mustRun(t, "", "get", "-p", peers, "-i", at); !strings.HasPrefix(got, at+"  term ") || !strings.HasSuffix(got, "  a\n") {
		t.Errorf("%q", got)
	}
	got := decode[record](t, mustRun(t, "", "get", "-p", peers, "-i", at, "-n", "99", "--json"))
	if len(got) != 3 || got[0].Body == nil || *got[0].Body != "a" || !bytes.Equal(got[1].BodyBase64, []byte("b\xff")) || got[1].Body != nil {
		t.Errorf("%+v", got)
	}
	code, _, stderr := command(t, "", "get", "-p", peers, "-i", "999")
	if code != exitFailed || !strings.Contains(stderr, "index 999") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

// firstNormal is the index of the first entry that somebody appended: a leader may have written one of its own before.
func firstNormal(t testing.TB, peers string) int64 {
	t.Helper()
	for _, r := range decode[record](t, mustRun(t, "", "get", "-p", peers, "-i", "0", "-n", "10", "--json")) {
		if !r.Noop {
			return r.Index
		}
	}
	t.Fatal("no entry")
	return -1
}

func TestTailFollowsTheLog(t *testing.T) {
	peers, _ := startGroup(t, 3)
	mustRun(t, "a\nb\nc\n", "append", "-p", peers, "-f", "-")
	tail := start(t, "tail", "-p", peers, "-n", "2", "--body")
	tail.out.wait(t, "b\nc\n")
	mustRun(t, "", "append", "-p", peers, "-d", "later")
	if got := tail.out.wait(t, "later\n"); got != "b\nc\nlater\n" {
		t.Errorf("%q", got)
	}
	if code := tail.end(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A tail that begins before its group waits for it, and says so; it then goes on through a time without a leader.
func TestTailWaitsForALeader(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t, 1, 0))
	cfg := dledger.Config{ID: "n0", Peers: "n0-" + address, Dir: t.TempDir(), DataFileSize: 1 << 20, IndexFileSize: 1 << 20}
	tail := start(t, "tail", "-p", cfg.Peers, "-i", "0", "--body", "--timeout", limit.String())
	tail.err.wait(t, "waiting for a leader of group default\n")
	for _, body := range []string{"before\n", "after\n"} {
		l, err := dledger.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		mustRun(t, "", "append", "-p", cfg.Peers, "-d", strings.TrimSpace(body))
		tail.out.wait(t, body)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if code := tail.end(t); code != 0 || strings.Count(tail.err.wait(t, ""), "\n") != 1 {
		t.Errorf("exit code %d, said %q", code, tail.err.wait(t, ""))
	}
}

func TestMistypedGroupIsNamed(t *testing.T) {
	peers, _ := startGroup(t, 1)
	for _, args := range [][]string{{"append"}, {"get"}, {"tail"}, {"tail", "-i", "0"}, {"transfer", "-t", "n1"}, {"status"}, {"bench", "log"}} {
		code, _, stderr := command(t, "", append(args, "-g", "typo", "-p", peers)...)
		if code != exitFailed || !strings.Contains(stderr, "typo") || strings.Count(stderr, "n0 ("+strings.TrimPrefix(peers, "n0-")+") answers 400 UNKNOWN_GROUP") != 1 || strings.Contains(stderr, "not answer") {
			t.Errorf("%q: exit code %d, stderr %q", args, code, stderr)
		}
	}
	text := ""
	for _, p := range []string{peers, peers + ";n1-127.0.0.1:1"} {
		_, stdout, stderr := command(t, "", "status", "-g", "typo", "-p", p)
		text += stdout + stderr
	}
	if strings.Contains(text, "n0 does not answer") || !strings.Contains(text, "n1 does not answer") {
		t.Errorf("%s", text)
	}
}

func TestStatusShowsEveryNode(t *testing.T) {
	peers, _ := startGroup(t, 3)
	mustRun(t, "", "append", "-p", peers, "-c", "10")
	dead := fmt.Sprintf("%s;n9-127.0.0.1:%d", peers, freePort(t, 1, 0))
	states := decode[groupState](t, mustRun(t, "", "status", "-p", dead, "--json"))
	if len(states) != 1 || states[0].Group != "default" || states[0].Leader == "" || len(states[0].Nodes) != 3 {
		t.Fatalf("%+v, want three nodes of default: n9 is no member", states)
	}
	for _, n := range states[0].Nodes {
		if n.Term == nil || n.Leader != states[0].Leader || n.End == nil || *n.End < 9 || *n.Commit > *n.End || (n.Role == "leader") != (n.ID == n.Leader) {
			t.Errorf("%+v", n)
		}
		if (len(n.Progress) == 2) != (n.Role == "leader") {
			t.Errorf("%s %s shows the progress of %d", n.ID, n.Role, len(n.Progress))
		}
	}
	text := mustRun(t, "", "status", "-p", peers)
	for _, want := range []string{"group default\n", "leader", "follower", "n2  ", "holds entries up to"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s does not show %q", text, want)
		}
	}
}

// A node that is set to something else is refused by the others and refuses them; status says what to change, with a leader and without one.
func TestStatusSaysWhyANodeIsRefused(t *testing.T) {
	port := freePort(t, 2, 1)
	peers := fmt.Sprintf("n0-127.0.0.1:%d;n1-127.0.0.1:%d", port, port+1)
	dir := t.TempDir()
	for id, compat := range map[string]dledger.Compat{"n0": dledger.CompatGo, "n1": dledger.Compat04} {
		l, err := dledger.Open(dledger.Config{ID: id, Peers: peers, Dir: dir, Compat: compat, DataFileSize: 1 << 20, IndexFileSize: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	const why = "it is set to compat: 0.4, this member to compat: go; they must be alike"
	for end := time.Now().Add(limit); ; {
		_, text, _ := command(t, "", "status", "-p", peers)
		_, lines, _ := command(t, "", "status", "-p", peers, "--json")
		if strings.Contains(text, "n0 refuses n1: "+why+"\n") && decode[groupState](t, lines)[0].Nodes[0].Refused["n1"] == why {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s%s", text, lines)
		}
	}
	led := statusText("g", []client.NodeStatus{{ID: "n0", Progress: []client.Progress{{ID: "n1", State: "compare", Match: -1, Kind: "refused", Refused: why}}, Refused: map[string]string{"n1": why}}})
	if !strings.Contains(led, "what n1 holds is not known yet (compare, refused)\nn0 refuses n1: "+why+"\n") {
		t.Error(led)
	}
}

func TestStatusAndMetricsShowAFullDisk(t *testing.T) {
	disk := vfs.NewMem()
	peers := fmt.Sprintf("n0-127.0.0.1:%d", freePort(t, 1, 0))
	l, err := dledger.Open(dledger.Config{ID: "n0", Peers: peers, Dir: "/data", FS: disk, DataFileSize: 1 << 20, IndexFileSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	mustRun(t, "", "append", "-p", peers)
	if text := mustRun(t, "", "status", "-p", peers); strings.Contains(text, "disk full") {
		t.Error(text)
	}
	disk.SetSpace(&vfs.Space{Total: 100, Free: 1})
	for end := time.Now().Add(limit); !strings.Contains(mustRun(t, "", "status", "-p", peers), "n0 takes no entries: disk full\n"); {
		if time.Now().After(end) {
			t.Fatal(mustRun(t, "", "status", "-p", peers))
		}
	}
	if s := decode[groupState](t, mustRun(t, "", "status", "-p", peers, "--json"))[0]; !s.Nodes[0].DiskFull {
		t.Errorf("%+v", s)
	}
	status, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(metrics, func(m metric) bool { return m.name == "dledger_disk_full" })
	if i < 0 || metrics[i].get(nil, &status) != 1 {
		t.Error("the metric dledger_disk_full is not 1")
	}
}

// While the log is searched for damage status says how far that has come and when the last search ended; between two searches the text says nothing, and JSON the end of the last.
func TestStatusShowsTheSearchForDamage(t *testing.T) {
	peers := fmt.Sprintf("n0-127.0.0.1:%d", freePort(t, 1, 0))
	l, err := dledger.Open(dledger.Config{ID: "n0", Peers: peers, Dir: "/data", FS: vfs.NewMem(), DataFileSize: 1 << 20, IndexFileSize: 1 << 20,
		ScrubInterval: time.Second, ScrubRate: 256 << 10}) // a mebibyte is searched at once, and then nothing for four seconds
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	scrub := func() dledger.Scrub {
		s, err := l.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Scrub
	}
	// shown is what both forms say of a search that does not move on meanwhile.
	shown := func(what string, is func(dledger.Scrub) bool) (s dledger.Scrub, text string, lines *scrubJSON) {
		t.Helper()
		for end := time.Now().Add(limit); time.Now().Before(end); {
			s = scrub()
			text = mustRun(t, "", "status", "-p", peers)
			lines = decode[groupState](t, mustRun(t, "", "status", "-p", peers, "--json"))[0].Nodes[0].Scrub
			if is(s) && s == scrub() {
				return s, text, lines
			}
		}
		t.Fatalf("no %s: %+v", what, s)
		return
	}
	last := func(s dledger.Scrub) string { return s.Last.UTC().Format(time.RFC3339) }

	mustRun(t, "", "append", "-p", peers) // there is a leader
	s, text, lines := shown("end of a search", func(s dledger.Scrub) bool { return !s.Running && l.Stats().ScrubPasses > 0 })
	if want := (scrubJSON{Last: last(s)}); strings.Contains(text, "scrubbed") || lines == nil || *lines != want {
		t.Errorf("%+v and\n%s, want %+v and nothing", lines, text, want)
	}
	if _, err := l.Propose(slices.Repeat([][]byte{make([]byte, 100<<10)}, 40), nil).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, text, lines = shown("search that runs", func(s dledger.Scrub) bool { return s.Running && s.Done > 0 && s.Total > 3<<20 })
	if want := (scrubJSON{s.Done, s.Total, last(s)}); lines == nil || *lines != want {
		t.Errorf("%+v, want %+v", lines, want)
	}
	if want := fmt.Sprintf("n0 searches for damage: scrubbed %d of %d bytes, last full pass at %s\n", s.Done, s.Total, last(s)); !strings.Contains(text, want) {
		t.Errorf("%s does not show %q", text, want)
	}
}

func TestTransferHandsLeadershipOver(t *testing.T) {
	peers, _ := startGroup(t, 3)
	for _, to := range []string{"n2", "n0", "n1"} {
		if got, want := mustRun(t, "", "transfer", "-p", peers, "-t", to), to+" leads group default\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if s := decode[groupState](t, mustRun(t, "", "status", "-p", peers, "--json"))[0]; s.Leader != to {
			t.Errorf("leader %q, want %s", s.Leader, to)
		}
	}
	code, _, stderr := command(t, "", "transfer", "-p", peers, "-t", "n8")
	if code != exitFailed || !strings.Contains(stderr, "n8") {
		t.Errorf("to nobody: exit code %d, stderr %q", code, stderr)
	}
}

func TestBenchMeasures(t *testing.T) {
	peers, _ := startGroup(t, 3)
	for _, protocol := range []string{"auto", "json"} {
		lines := mustRun(t, "", "bench", "log", "-p", peers, "-n", "2000", "--size", "100", "--protocol", protocol, "--json")
		if key := regexp.MustCompile(`"[^a-z][^"]*":`).FindString(lines); key != "" {
			t.Errorf("the key %s does not begin like the others", key)
		}
		m := decode[measured](t, lines)[0]
		if m.Entries != 2000 || m.PerSecond <= 0 || m.Latency.P50 <= 0 || m.Latency.P50 > m.Latency.P99 || m.Latency.P99 > m.Latency.Max || len(m.Failed) != 0 {
			t.Errorf("%s: %+v", protocol, m)
		}
	}
	from := time.Now()
	text := mustRun(t, "", "bench", "log", "-p", peers, "--duration", "100ms", "--inflight", "4")
	if took := time.Since(from); !strings.Contains(text, "latency ms: p50") || took > limit/2 {
		t.Errorf("%q after %v", text, took)
	}
}

func TestHistogramIsCloseToTheTruth(t *testing.T) {
	var h histogram
	var all []time.Duration
	for i := range 100_000 {
		d := time.Duration(i*i) * 7 % (10 * time.Second)
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(int(q*float64(len(all))), len(all)-1)]
		got := h.at(q)
		if float64(got) < 0.98*float64(want) || float64(got) > 1.02*float64(want)+1 {
			t.Errorf("quantile %v: %v, want about %v", q, got, want)
		}
	}
	h.add(1<<63 - 1) // the longest there is has a class, too
	if got := h.at(1); got != 1<<63-1 {
		t.Errorf("maximum %v", got)
	}
}

func TestDumpAndVerifyReadANodesDirectory(t *testing.T) {
	peers, dir := startGroup(t, 3)
	mustRun(t, "", "append", "-p", peers, "-d", "findme", "-c", "100")
	n0 := filepath.Join(dir, "dledger-n0")
	waitForCommit(t, peers)

	entries := decode[dumpedEntry](t, mustRun(t, "", "dump", "--dir", n0, "--body", "--json"))
	if n := len(entries); n < 100 || entries[n-1].Body == nil || *entries[n-1].Body != "findme" || entries[n-1].At != entries[n-1].Pos {
		t.Fatalf("%d entries, the last %+v", n, entries[len(entries)-1])
	}
	last := entries[len(entries)-1]
	records := decode[dumpedRecord](t, mustRun(t, "", "dump", "--dir", n0, "--index", "--json"))
	if n := len(records); n != len(entries) || records[n-1].Pos != last.Pos || records[n-1].Index != last.Index {
		t.Errorf("%d records, the last %+v, want %d up to %+v", n, records[n-1], len(entries), last)
	}
	if got := decode[dumpedEntry](t, mustRun(t, "", "dump", "--dir", n0, "--from", "7", "--to", "9", "--json")); len(got) != 3 || got[0].Index != 7 {
		t.Errorf("--from 7 --to 9: %+v", got)
	}
	if got := decode[dumpedEntry](t, mustRun(t, "", "dump", "--dir", n0, "--pos", fmt.Sprint(entries[49].Pos+1), "--to", "51", "--json")); len(got) != 2 || got[0].Index != 50 {
		t.Errorf("--pos behind entry 49: %+v", got)
	}
	if text := mustRun(t, "", "dump", "--dir", n0, "--from", fmt.Sprint(last.Index), "-b"); !strings.HasSuffix(text, "  findme\n") {
		t.Errorf("%q", text)
	}

	// A server runs on it.
	if text := mustRun(t, "", "verify", "--dir", n0); !strings.Contains(text, fmt.Sprintf("entries 0 to %d", last.Index)) {
		t.Errorf("%q", text)
	}
	if text := mustRun(t, "", "verify", "--dir", n0, "--against", filepath.Join(dir, "dledger-n1")); !strings.Contains(text, "byte-identical") {
		t.Errorf("%q", text)
	}
	code, _, stderr := command(t, "", "verify", "--dir", dir)
	if code != exitFailed || !strings.Contains(stderr, "dledger-n2") {
		t.Errorf("several nodes: exit code %d, stderr %q", code, stderr)
	}
}

// waitForCommit waits until all nodes have told that everything is committed.
func waitForCommit(t testing.TB, peers string) {
	t.Helper()
	late := time.Now().Add(limit)
	for time.Now().Before(late) {
		s := decode[groupState](t, mustRun(t, "", "status", "-p", peers, "--json"))[0]
		if !slices.ContainsFunc(s.Nodes, func(n nodeState) bool { return n.Commit == nil || *n.Commit != *s.Nodes[0].End }) {
			return
		}
	}
	t.Fatal("not everything is committed everywhere")
}

func TestVerifyNamesFileAndOffsetOfDamage(t *testing.T) {
	dir := t.TempDir()
	port := freePort(t, 1, 0)
	peers := fmt.Sprintf("n0-127.0.0.1:%d", port)
	server := start(t, "server", "-p", peers, "-s", dir, "--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576")
	mustRun(t, "", "append", "-p", peers, "-c", "100", "-d", "0123456789")
	if code := server.end(t); code != 0 {
		t.Fatalf("server: exit code %d", code)
	}
	mustRun(t, "", "verify", "--dir", dir) // the base directory of one node
	// That of a broker holds its log in the same way, and beside it an index that is not the log's.
	if err := os.Mkdir(filepath.Join(dir, "index"), 0o755); err != nil {
		t.Fatal(err)
	}
	if text := mustRun(t, "", "verify", "--dir", dir); !strings.Contains(text, "entries 0 to 99, ") {
		t.Errorf("of a broker's directory verify says %q", text)
	}
	var hit dumpedEntry
	for _, e := range decode[dumpedEntry](t, mustRun(t, "", "dump", "--dir", dir, "--json")) {
		if e.Index == 50 {
			hit = e
		}
	}
	f, err := os.OpenFile(hit.File, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("X"), hit.Offset+48+3); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := command(t, "", "verify", "--dir", dir)
	if code != exitFailed || !strings.Contains(stderr, hit.File) || !strings.Contains(stderr, fmt.Sprint(hit.Offset)) || !strings.Contains(stderr, "entry 50") {
		t.Errorf("exit code %d, stderr %q, want %s at byte %d", code, stderr, hit.File, hit.Offset)
	}
	code, _, stderr = command(t, "", "dump", "--dir", dir)
	if code != exitFailed || !strings.Contains(stderr, hit.File) {
		t.Errorf("dump: exit code %d, stderr %q", code, stderr)
	}
}

func TestBodiesGiveNoOrdersToTheTerminal(t *testing.T) {
	for body, want := range map[string]string{
		"plain":           "plain",
		"größer, 大きい, 👍🏽": "größer, 大きい, 👍🏽",
		"\x1b[2J":         `"\x1b[2J"`,
		"\u009b2J":        `"\u009b2J"`, // ESC [ in one character
		"\u0085":          `"\u0085"`,
		"a\x7f":           `"a\x7f"`,
		"a\u202eb":        `"a\u202eb"`, // the rest from right to left
		"a\u2028b":        `"a\u2028b"`,
		"\xc2":            `"\xc2"`,
		"a\nb":            `"a\nb"`,
	} {
		if got := shown([]byte(body)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
