package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"dledger"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain lets this test program also be the program under test: `dledger up` starts its own executable.
func TestMain(m *testing.M) {
	if os.Getenv("DLEDGER_TEST_AS_PROGRAM") != "" {
		main()
	}
	os.Exit(m.Run())
}

// limit bounds everything a test waits for.
const limit = 30 * time.Second

// command runs the program in this process and gives its exit code and output.
func command(t testing.TB, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// mustRun is command for what has to succeed.
func mustRun(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	code, stdout, stderr := command(t, stdin, args...)
	if code != 0 {
		t.Fatalf("dledger %q: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

// screen is what a command that runs on has printed so far.
type screen struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newScreen() *screen { return &screen{changed: make(chan struct{})} }

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.text.Write(b)
}

// wait waits until the text contains what, and gives all of it.
func (s *screen) wait(t testing.TB, what string) string {
	t.Helper()
	late := time.After(limit)
	for {
		s.mu.Lock()
		text, changed := s.text.String(), s.changed
		s.mu.Unlock()
		if strings.Contains(text, what) {
			return text
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%q was not printed, but:\n%s", what, text)
		}
	}
}

// running is a command that runs on.
type running struct {
	out, err *screen
	stop     context.CancelFunc
	code     chan int
}

func start(t testing.TB, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{out: newScreen(), err: newScreen(), stop: cancel, code: make(chan int, 1)}
	go func() { r.code <- run(ctx, args, strings.NewReader(""), r.out, r.err) }()
	t.Cleanup(func() {
		cancel()
		r.code <- <-r.code // it has ended
	})
	return r
}

// end stops the command as a signal does, and gives its exit code.
func (r *running) end(t testing.TB) int {
	t.Helper()
	r.stop()
	return r.wait(t)
}

func (r *running) wait(t testing.TB) int {
	t.Helper()
	select {
	case code := <-r.code:
		r.code <- code
		return code
	case <-time.After(limit):
		t.Fatalf("it does not end; it printed:\n%s%s", r.out.wait(t, ""), r.err.wait(t, ""))
		return -1
	}
}

// freePort gives the first of n ports, step apart, that nobody listens on. They lie below those that systems give to outgoing
// connections, so that they stay free.
func freePort(t testing.TB, n, step int) int {
	t.Helper()
	for range 1000 {
		first, free := 10000+rand.IntN(15000), true
		for i := range n {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(first+i*step))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

// startGroup runs n nodes in this process, on loopback, and gives their peers string and directory.
func startGroup(t testing.TB, n int) (peers, dir string) {
	t.Helper()
	dir = t.TempDir()
	listeners := make(map[string]net.Listener)
	var parts []string
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[l.Addr().String()] = l
		parts = append(parts, fmt.Sprintf("n%d-%s", i, l.Addr()))
	}
	peers = strings.Join(parts, ";")
	ledgers := make([]*dledger.Ledger, n)
	for i := range n {
		l, err := dledger.Open(dledger.Config{ID: "n" + strconv.Itoa(i), Peers: peers, Dir: dir, DataFileSize: 1 << 20, IndexFileSize: 1 << 20,
			HeartbeatLeak: 20, // no election because other tests keep the machine busy
			Listen:        func(address string) (net.Listener, error) { return listeners[address], nil }})
		if err != nil {
			t.Fatal(err)
		}
		ledgers[i] = l
	}
	t.Cleanup(func() {
		if err := closeAll(ledgers); err != nil {
			t.Error(err)
		}
	})
	return peers, dir
}

// walk calls f for every command.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		walk(c, f)
	}
}

// ours tells commands with texts of ours from those of the library.
func ours(cmd *cobra.Command) bool {
	return cmd.Name() != "help" && cmd.Name() != "completion" && (!cmd.HasParent() || cmd.Parent().Name() != "completion")
}

// The help texts are read as a whole: `go test ./cmd/dledger -update` shows them as a diff.
func TestHelpIsAsInTheGoldenFile(t *testing.T) {
	var all strings.Builder
	walk(newRoot(), func(cmd *cobra.Command) {
		if !ours(cmd) {
			return
		}
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		fmt.Fprintf(&all, "$ dledger %s\n%s\n", strings.Join(args, " "), mustRun(t, "", args...))
	})
	golden := filepath.Join("testdata", "help.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("help texts differ from %s, see the diff after go test ./cmd/dledger -update", golden)
	}
}

func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	walk(newRoot(), func(cmd *cobra.Command) {
		if !ours(cmd) {
			return
		}
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		if cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "version" && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
	})
}

func TestUsageErrorsAreOneLineThatNamesTheValue(t *testing.T) {
	free := strconv.Itoa(freePort(t, 1, 0)) // up looks at its ports before it has read all settings
	for _, test := range []struct {
		args string
		want string
	}{
		{"stauts", `"stauts" (did you mean status?)`},
		{"xyzzy", `"xyzzy"`},
		{"help xyzzy", `"xyzzy"`},
		{"help bench xyzzy", `"bench xyzzy"`},
		{"help get xyzzy", `"get xyzzy"`},
		{"completion xyzzy", `"xyzzy"`},
		{"completion bash xyzzy", `"xyzzy"`},
		{"bench xyzzy", `"xyzzy"`},
		{"status extra", `"extra"`},
		{"status --nope", "--nope"},
		{"status -p nowhere", `"nowhere"`},
		{"status -p n0-a:1;n0-b:1", `"n0"`},
		{"status --timeout 0s", "0s"},
		{"status --timeout soon", "soon"},
		{"append -c -1", "-1"},
		{"append -c many", `--count "many": is no whole number`},
		{"append -c 99999999999999999999", `--count "99999999999999999999": is out of range`},
		{"append --timeout 5", `--timeout "5": is no time like 500ms, 10s or 1m30s`},
		{"append --json=maybe", `--json "maybe": is neither true nor false`},
		{"append --group=", `--group ""`},
		{"append -f x -d y", "--file x"},
		{"get -i -5", "-5"},
		{"get -n 0", "0"},
		{"get --body --json", "--body: not together with --json"},
		{"tail --body --json", "--body: not together with --json"},
		{"tail -n -1", "-1"},
		{"tail -n 5 -i 3", "--index 3: not together with --count"},
		{"transfer", "--to"},
		{"dump", "--dir"},
		{"dump --dir . --pos 3 --index", "--pos 3"},
		{"dump --dir . --pos -3", "--pos -3"},
		{"dump --dir . --from -3", "--from -3"},
		{"dump --dir . --to -3", "--to -3"},
		{"dump --dir . --from 5 --to 3", "--to 3: lies before --from 5"},
		{"dump --dir . --index --body", "--body"},
		{"verify", "--dir"},
		{"verify --dir . --against-data-dir d", "--against-data-dir d"},
		{"up --nodes 2", "2"},
		{"up --dir /nowhere --port-base " + free + " --set group=x", "group=x"},
		{"up --port-base 65530 --nodes 3", "65530"},
		{"server --set nonsense", `"nonsense"`},
		{"server --set nonsense=1", `--set: unknown setting "nonsense"`},
		{"server --set heartBeatTimeInterval=1", "heartBeatTimeIntervalMs"},
		{"server --set heartBeatTimeIntervalMs=soon", `"soon"`},
		{"server --set compat=0.5", `"0.5"`},
		{"server --set mappedFileSizeForEntryIndex=100", "mappedFileSizeForEntryIndex: \"100\""},
		{"server --set maxVoteIntervalMs=20", "maxVoteIntervalMs 20ms: must be above minVoteIntervalMs (50ms)"},
		{"server -i n7", `"n7"`},
		{"server -i n0 -p n0-x", `"x"`},
		{"server -p n0-localhost:99999", `"99999"`},
		{"server -p n0-localhost:0", "port 0 of n0"},
		{"status -p n0-localhost:99999", `"99999"`},
		{"status -p n0-localhost:0", `"0"`},
		{"up --dir /nowhere --port-base " + free + " --set maxHeartBeatLeak=0", `"0"`},
		{"server --log-level loud", `"loud"`},
		{"server --log-format xml", `"xml"`},
		{"server -c groups.yaml -g x", "--group"},
		{"bench disk", `"disk"`},
		{"bench log --size -1", "-1"},
		{"bench log --inflight 0", "0"},
		{"bench log --protocol http", `"http"`},
		{"bench mq --size 0", "--size 0"},
		{"bench mq -w 0", "--producers 0"},
		{"bench mq -n nowhere", `"nowhere"`},
		{"bench mq -n ;", `";"`},
		{"bench mq -t a/b", "a/b"},
		{"bench mq --duration 0s", "0s"},
		{"bench mq --timeout -1s", "-1s"},
		{"broker", "--config-file"},
		{"broker extra", `"extra"`},
		{"broker --set x", "KEY=VALUE"},
		{"broker -n nowhere --set brokerName=a", `"nowhere"`},
		{"namesrv --port 70000", "70000"},
		{"namesrv --log-level loud", `"loud"`},
		{"admin", "mqadmin"},
		{"admin clusterList -n 127.0.0.1:9876", "mqadmin"},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, stdout, stderr := command(t, "", strings.Fields(test.args)...)
			if code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "dledger: ") || !strings.Contains(stderr, test.want) {
				t.Errorf("stdout %q, stderr %q, want one line with %s", stdout, stderr, test.want)
			}
		})
	}
}

func TestFailuresAreOneLineAndExitCode1(t *testing.T) {
	empty := t.TempDir()
	port := freePort(t, 1, 0)
	nobody := fmt.Sprintf("n0-127.0.0.1:%d", port)
	bad := filepath.Join(empty, "groups.yaml")
	old := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(old, "commitlog"), 0o755), os.WriteFile(filepath.Join(old, "commitlog", "00000000000000000000"), []byte{0, 0, 0, 91}, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		file string // content of groups.yaml
		want string
	}{
		{args: "status --timeout 1s -p " + nobody, want: "n0 (127.0.0.1:" + strconv.Itoa(port)},
		{args: "append --timeout 200ms -p " + nobody, want: "connection refused"},
		{args: "get --timeout 200ms -p " + nobody, want: "no leader"},
		{args: "transfer -t n1 --timeout 200ms -p " + nobody, want: "n1"},
		{args: "tail --timeout 200ms -p " + nobody, want: "no leader"},
		{args: "tail -i 0 --timeout 200ms -p " + nobody, want: "no leader: --timeout 200ms passed: n0 (127.0.0.1:" + strconv.Itoa(port)},
		{args: "bench log --timeout 200ms -p " + nobody, want: "no leader"},
		{args: "bench mq --timeout 200ms -n " + nobody[3:], want: "no route for topic BenchmarkTest: " + nobody[3:]},
		{args: "broker -c " + bad, file: "brokerName=a", want: "enableDLegerCommitLog"},
		{args: "broker -c " + bad, file: "brokerName=a\nenableDLegerCommitLog=true", want: "dLegerSelfId is missing"},
		{args: "broker -c " + bad, file: "listenPort=0", want: bad + ": listenPort: \"0\""},
		{args: "broker -c " + bad, file: "a=\\u12", want: bad + ": properties: Line 1"},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, port+1, empty, "dLegerPeers=127.0.0.1:1"), want: "dLegerPeers: \"127.0.0.1:1\""},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, port+1, empty, "dLegerSelfId=n7"), want: "dLegerSelfId \"n7\""},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, port+1, empty, "bindAddress=192.0.2.1"), want: "bindAddress, listenPort: listen tcp 192.0.2.1:"},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, port+1, bad, ""), want: bad},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, port+1, old, ""), want: filepath.Join(old, "commitlog") + " holds messages from before"},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(taken(t), port, empty, ""), want: "address already in use"},
		{args: "broker -c " + bad + " --log-level error", file: brokerConf(port, taken(t), empty, ""), want: "address already in use"},
		{args: fmt.Sprintf("namesrv --log-level error --kv-file %s --port %d", filepath.Join(empty, "kv.json"), taken(t)), want: "address already in use"},
		{args: "append -f " + empty + "/missing", want: empty + "/missing"},
		{args: "dump --dir " + empty + "/missing", want: empty + "/missing"},
		{args: "verify --dir " + empty, want: empty},
		{args: "server -c " + empty + "/missing.yaml", want: "missing.yaml"},
		{args: "server -c " + bad, file: "configs: [", want: bad},
		{args: "server -c " + bad, file: "nodes: []", want: "nodes"},
		{args: "server -c " + bad, file: "configs: []", want: "no node"},
		{args: "server -c " + bad, file: "configs:\n  - {selfID: n0}", want: "selfId"},
		{args: "server -c " + bad, file: "configs:\n  - selfId: [n0]", want: "[n0]"},
		{args: "server -c " + bad, file: "configs:\n  - selfId: n0\n    selfId: n1", want: "selfId"},
		{args: "server -c " + bad, file: "configs:\n  - {selfId: n0, maxPendingRequestsNum: x}", want: `"x"`},
		{args: "server -c " + bad, file: fmt.Sprintf("configs:\n  - {peers: n0-localhost:%d, selfId: n0, storeBaseDir: a}\n  - {group: b, peers: n0-localhost:%d, selfId: n0, storeBaseDir: b}", port, port+1), want: "share one port"},
		{args: "server -c " + bad, file: fmt.Sprintf("configs:\n  - {peers: n0-localhost:%d, selfId: n0, storeBaseDir: a}\n  - {group: b, peers: n0-localhost:%d, selfId: n0, storeBaseDir: b, logBindAddress: 127.0.0.1}", port, port), want: "logBindAddress"},
		{args: "server -c " + bad, file: "configs:\n  - {peers: n0-localhost:1, selfId: n0, storeBaseDir: a}\n  - {group: b, peers: n0-localhost:1, selfId: n0, storeBaseDir: ./a/}", want: "nodes 1 and 2 both have storeBaseDir \"./a/\" and selfId \"n0\""},
		{args: "server -c " + bad, file: "configs:\n  - {peers: n0-localhost:1, selfId: n0, storeBaseDir: a, dataStorePath: \"c,d\"}\n  - {group: b, peers: n0-localhost:1, selfId: n0, storeBaseDir: b, dataStorePath: d}", want: "nodes 1 and 2 both have dataStorePath \"d\""},
		{args: "server -c " + bad, file: "configs:\n  - {peers: n0-localhost:1, selfId: n0, storeBaseDir: a, maxHeartBeatLeak: 0}", want: "node 1: maxHeartBeatLeak: \"0\" is not a whole number from 1 to "},
	} {
		t.Run(test.args+test.file, func(t *testing.T) {
			if err := os.WriteFile(bad, []byte(test.file), 0o644); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := command(t, "", strings.Fields(test.args)...)
			if code != exitFailed {
				t.Errorf("exit code %d, want %d", code, exitFailed)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "dledger: ") || !strings.Contains(stderr, test.want) {
				t.Errorf("stderr %q, want one line with %s", stderr, test.want)
			}
		})
	}
}

// brokerConf is a broker.conf with this port, port of the log and directory, and one line more.
func brokerConf(port, log int, dir, more string) string {
	return fmt.Sprintf("brokerName=a\nbrokerIP1=127.0.0.1\nlistenPort=%d\nenableDLegerCommitLog=true\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:%d\nstorePathRootDir=%s\n%s\n", port, log, dir, more)
}

// taken gives a port that somebody listens on until the test ends.
func taken(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// decode reads JSON lines.
func decode[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

func TestVersionIsPrinted(t *testing.T) {
	if got := mustRun(t, "", "version"); !strings.HasPrefix(got, "dledger "+dledger.Version+" ") {
		t.Errorf("%q", got)
	}
	if mustRun(t, "", "version") != mustRun(t, "", "--version") {
		t.Error("version and --version differ")
	}
	if v := decode[version](t, mustRun(t, "", "version", "--json")); len(v) != 1 || v[0].Version != dledger.Version || v[0].Go == "" {
		t.Errorf("as JSON %+v", v)
	}
}
