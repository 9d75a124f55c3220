package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dledger"
)

func TestServerStopsCleanlyAndGoesOnWithItsData(t *testing.T) {
	dir := t.TempDir()
	peers := fmt.Sprintf("n0-127.0.0.1:%d", freePort(t, 1, 0))
	for i := range 2 {
		server := start(t, "server", "-p", peers, "-s", dir, "--log-format", "json", "--set", "durability=async", "--set", "enableBatchPush=true")
		mustRun(t, "", "append", "-p", peers, "-d", strconv.Itoa(i))
		if !strings.Contains(server.err.wait(t, ""), `"key":"enableBatchPush"`) {
			t.Error("nothing says that enableBatchPush has no effect")
		}
		from := time.Now()
		if code := server.end(t); code != 0 || time.Since(from) > 5*time.Second {
			t.Errorf("exit code %d after %v", code, time.Since(from))
		}
	}
	if got := mustRun(t, "", "dump", "--dir", filepath.Join(dir, "dledger-n0"), "--body"); !strings.Contains(got, "  0\n") || !strings.Contains(got, "  1\n") {
		t.Errorf("%q", got)
	}
}

func TestServerRunsTheNodesOfAFile(t *testing.T) {
	dir := t.TempDir()
	port := freePort(t, 1, 0)
	file := filepath.Join(dir, "groups.yaml")
	text := "configs:\n"
	for i, id := range []string{"n0", "a0", "b0"} {
		text += fmt.Sprintf("  - group: g%d\n    selfId: %s\n    peers: %s-127.0.0.1:%d\n    storeBaseDir: %s/g%d\n    mappedFileSizeForEntryData: 1048576\n    deleteWhen: 04\n", i, id, id, port, dir, i)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	server := start(t, "server", "-c", file, "--set", "mappedFileSizeForEntryIndex=1048576")
	for i, id := range []string{"n0", "a0", "b0"} {
		peers := fmt.Sprintf("%s-127.0.0.1:%d", id, port)
		mustRun(t, "", "append", "-g", "g"+strconv.Itoa(i), "-p", peers, "-d", "in "+id)
		if got := mustRun(t, "", "get", "-g", "g"+strconv.Itoa(i), "-p", peers, "-i", "0", "-n", "5"); !strings.Contains(got, "in "+id) {
			t.Errorf("group g%d: %q", i, got)
		}
	}
	if code := server.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, s := range []string{"data", "index"} {
		files, err := os.ReadDir(filepath.Join(dir, "g1", "dledger-a0", s))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", s, len(files), err)
		}
		if info, err := files[0].Info(); err != nil || info.Size() != 1<<20 {
			t.Errorf("%s: %v bytes, %v, want those set", s, info.Size(), err)
		}
	}
}

func TestConfigFileValuesAreTheOriginals(t *testing.T) {
	nodes, err := parseConfigs([]byte(`
configs:
  - group: 007 # an agent
    selfId: "n0"
    peers: n0-localhost:20911;n1-localhost:20912
    deleteWhen: 04
    diskSpaceRatioToCheckExpired: 0.5
    enableDiskForceClean: false
    heartBeatTimeIntervalMs: 500
    maxBatchPushSize: 4096
    preferredLeaderId: "n1"
    readOnlyDataStoreDirs:
`), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := dledger.Config{ID: "n0", Peers: "n0-localhost:20911;n1-localhost:20912", DiskCheckRatio: 0.5, Heartbeat: 500 * time.Millisecond}
	got := nodes[0]
	if got.Group != "007" || got.ID != want.ID || got.Peers != want.Peers || got.DiskCheckRatio != want.DiskCheckRatio || got.Heartbeat != want.Heartbeat ||
		got.DeleteWhen != "04" || len(got.PreferredIDs) != 1 || got.PreferredIDs[0] != "n1" {
		t.Errorf("%+v", got)
	}
}

func TestMetricsPageHasEveryMetric(t *testing.T) {
	port, pages := freePort(t, 1, 0), freePort(t, 2, 1)
	peers := fmt.Sprintf("n0-127.0.0.1:%d", port)
	metricsAt, pprofAt := fmt.Sprintf("127.0.0.1:%d", pages), fmt.Sprintf("127.0.0.1:%d", pages+1)
	start(t, "server", "-p", peers, "-s", t.TempDir(), "--metrics", metricsAt, "--pprof", pprofAt)
	mustRun(t, "", "append", "-p", peers)
	page := get(t, "http://"+metricsAt+"/metrics")
	for _, m := range metrics {
		if !strings.Contains(page, "\n"+m.name+`{group="default",self_id="n0"} `) {
			t.Errorf("%s is missing", m.name)
		}
	}
	if !regexp.MustCompile(`dledger_leader\{.*\} 1\n`).MatchString(page) {
		t.Error("the only node does not lead")
	}
	if !strings.Contains(get(t, "http://"+pprofAt+"/debug/pprof/"), "goroutine") {
		t.Error("no profiles")
	}
}

func get(t testing.TB, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// What a user finds in the manual is what there is.
func TestManualListsEverySettingAndMetric(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range dledger.Settings() {
		if !strings.Contains(string(text), "| `"+s.Key+"` |") {
			t.Errorf("docs/operating.md does not list the setting %s", s.Key)
		}
	}
	for _, m := range metrics {
		if !strings.Contains(string(text), "| `"+m.name+"` |") {
			t.Errorf("docs/operating.md does not list the metric %s", m.name)
		}
	}
}

// onlyHere checks that a port is open on loopback and on no other address of this machine.
func onlyHere(t *testing.T, port int) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	here := net.IPv4(127, 0, 0, 1)
	for _, a := range append(addresses, &net.IPNet{IP: here}) {
		ip := a.(*net.IPNet).IP
		if ip.IsLinkLocalUnicast() {
			continue // not without a zone
		}
		c, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: ip, Port: port})
		if err == nil {
			c.Close()
		}
		if (err == nil) != ip.Equal(here) {
			t.Errorf("%v port %d: %v", ip, port, err)
		}
	}
}

func TestServerListensOnTheAddressItIsGiven(t *testing.T) {
	port := freePort(t, 1, 0)
	s := start(t, "server", "-p", fmt.Sprintf("n0-localhost:%d", port), "-s", t.TempDir(), "--set", "logBindAddress=127.0.0.1",
		"--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576")
	s.err.wait(t, "msg=serving")
	onlyHere(t, port)
}

func TestUpRunsOneNodeHere(t *testing.T) {
	dir := t.TempDir()
	base := freePort(t, 1, 0)
	args := []string{"up", "--dir", dir, "--port-base", strconv.Itoa(base)}
	up := start(t, args...)
	text := up.out.wait(t, "Ctrl-C")
	if !strings.Contains(text, fmt.Sprintf("n0  127.0.0.1:%d  pid %d  leader", base, os.Getpid())) {
		t.Errorf("%q", text)
	}
	peers := fmt.Sprintf("n0-127.0.0.1:%d", base)
	mustRun(t, "", "append", "-p", peers)
	for _, port := range []int{base, base + 1, base + upBrokerStep, base + upBrokerStep - 2} {
		onlyHere(t, port)
	}

	code, _, stderr := command(t, "", args...)
	if code != exitFailed || !strings.Contains(stderr, strconv.Itoa(base)) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a second one on that port: exit code %d, stderr %q", code, stderr)
	}
	code, _, stderr = command(t, "", "up", "--dir", dir, "--port-base", strconv.Itoa(freePort(t, 1, 0)))
	if code != exitFailed || !strings.Contains(stderr, dir) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("a second one on that directory: exit code %d, stderr %q", code, stderr)
	}
	code, _, stderr = command(t, "", "up", "--nodes", "3", "--dir", dir, "--port-base", strconv.Itoa(freePort(t, 3, upStep)))
	if code != exitFailed || !strings.Contains(stderr, "1 node") {
		t.Errorf("three nodes on that directory: exit code %d, stderr %q", code, stderr)
	}
	if code := up.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	again := start(t, args...)
	again.out.wait(t, "Ctrl-C")
	mustRun(t, "", "get", "-p", peers, "-i", "0")
}

// New logs take their files' full size at once: that there is no room for them is said before anything is started.
func TestUpSaysWhatDiskItNeeds(t *testing.T) {
	for _, test := range []struct {
		nodes int
		set   []string
		need  string
	}{
		{1, nil, "1.3 GiB"}, // as README says
		{3, nil, "4.7 GiB"},
		{3, []string{"mappedFileSizeForEntryData=1073741824", "mappedFileSizeForEntryIndex=1073741824"}, "24.0 GiB"},
		{3, []string{"storeType=MEMORY"}, ""},
	} {
		dir := t.TempDir()
		base := freePort(t, 3, upStep)
		o := upFlags{nodes: test.nodes, portBase: base, dir: dir, set: test.set}
		if err := o.ports(); err != nil {
			t.Fatal(err)
		}
		u := newGroupUp(&o, io.Discard, io.Discard)
		u.free = func(string) (int64, error) { return 1 << 30, nil }
		err := u.check()
		if test.need == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		for _, want := range []string{dir, "1.0 GiB free", test.need, "mappedFileSizeForEntryData"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d nodes: %v, want %q", test.nodes, err, want)
			}
		}
		for _, id := range u.ids { // what is there already needs no more room
			for _, root := range []string{u.root(id), filepath.Join(u.brokerDir("broker-a", id), "dledger-"+id), filepath.Join(u.brokerDir("broker-b", id), "dledger-"+id), filepath.Join(u.brokerDir("broker-c", id), "dledger-"+id)} {
				if err := errors.Join(os.MkdirAll(filepath.Join(root, "data"), 0o755), os.WriteFile(filepath.Join(root, "data", "00000000000000000000"), nil, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := u.check(); err != nil {
			t.Error(err)
		}
	}
}

func TestCommandsThatAreShownWork(t *testing.T) {
	for _, test := range []struct{ arg0, executable, want string }{
		{"dledger", "/usr/local/bin/dledger", "dledger"},
		{"./dledger", "/src/dledger", "./dledger"},
		{"/opt/my tools/dledger", "/opt/my tools/dledger", "'/opt/my tools/dledger'"},
		{"/tmp/go-build12/b001/exe/dledger", "/tmp/go-build12/b001/exe/dledger", "go run ./cmd/dledger"},
		{"/home/u/.cache/go-build/ab/abc-d/dledger", "/home/u/.cache/go-build/ab/abc-d/dledger", "go run ./cmd/dledger"},
	} {
		if got := programName(test.arg0, test.executable); got != test.want {
			t.Errorf("%s: got %q, want %q", test.arg0, got, test.want)
		}
	}
	o := upFlags{nodes: 3, portBase: 1000, namesBase: 2000, brokersBase: 3000, dir: "/a b"}
	var out bytes.Buffer
	u := newGroupUp(&o, &out, io.Discard)
	u.program = "./dledger"
	u.welcome("n0", func(string) int { return 1 })
	for _, want := range []string{"  ./dledger append -p 'n0-", "  ./dledger get -p '", "  ./dledger status -p '"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if got := u.commandLine("n1"); !strings.HasPrefix(got, "./dledger up --nodes 3 --only n1 --dir '/a b' ") {
		t.Error(got)
	}
}

var pidOf = regexp.MustCompile(`(n\d)  127\.0\.0\.1:\d+  pid (\d+)  (leader|follower)`)

// upThree starts three nodes and gives their pids, and the leader.
func upThree(t *testing.T, dir string, base int, more ...string) (up *running, pids map[string]int, leader string) {
	t.Helper()
	t.Setenv("DLEDGER_TEST_AS_PROGRAM", "1")
	up = start(t, append([]string{"up", "--nodes", "3", "--dir", dir, "--port-base", strconv.Itoa(base)}, more...)...)
	pids = make(map[string]int)
	for _, m := range pidOf.FindAllStringSubmatch(up.out.wait(t, "Ctrl-C"), -1) {
		pid, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		pids[m[1]] = pid
		if m[3] == "leader" {
			leader = m[1]
		}
	}
	if len(pids) != 3 || leader == "" {
		t.Fatalf("nodes %v, leader %q", pids, leader)
	}
	return up, pids, leader
}

func TestUpRunsThreeProcessesThatCanBeKilled(t *testing.T) {
	dir, base := t.TempDir(), freePort(t, 3, upStep)
	peers := fmt.Sprintf("n0-127.0.0.1:%d;n1-127.0.0.1:%d;n2-127.0.0.1:%d", base, base+upStep, base+2*upStep)
	up, pids, leader := upThree(t, dir, base, "--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576")
	mustRun(t, "", "append", "-p", peers, "-c", "10")
	if err := syscall.Kill(pids[leader], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	text := up.out.wait(t, "start it again with: ")
	if !strings.Contains(text, fmt.Sprintf("%s (pid %d) ended: signal: killed", leader, pids[leader])) {
		t.Errorf("%q", text)
	}
	mustRun(t, "", "append", "-p", peers, "-c", "10", "--timeout", "20s")
	s := decode[groupState](t, mustRun(t, "", "status", "-p", peers, "--json"))[0]
	for _, n := range s.Nodes {
		if (n.Error != "") != (n.ID == leader) {
			t.Errorf("%+v after %s was killed", n, leader)
		}
	}
	if code := up.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for id, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s (pid %d) is still there: %v", id, pid, err)
		}
		mustRun(t, "", "verify", "--dir", filepath.Join(dir, "dledger-"+id))
	}
	code, _, stderr := command(t, "", "up", "--dir", dir, "--port-base", strconv.Itoa(base))
	if code != exitFailed || !strings.Contains(stderr, "3 nodes") {
		t.Errorf("one node on that directory: exit code %d, stderr %q", code, stderr)
	}
}

func TestUpRestartsWhatEnded(t *testing.T) {
	up, pids, leader := upThree(t, t.TempDir(), freePort(t, 3, upStep), "--restart")
	if err := syscall.Kill(pids[leader], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	up.out.wait(t, leader+" started again, pid ")
}

func TestUpSaysWhyANodeDoesNotStart(t *testing.T) {
	dir, base := t.TempDir(), freePort(t, 3, upStep)
	t.Setenv("DLEDGER_TEST_AS_PROGRAM", "1")
	if err := os.WriteFile(filepath.Join(dir, "dledger-n1"), []byte("in the way"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := start(t, "up", "--nodes", "3", "--dir", dir, "--port-base", strconv.Itoa(base))
	if code := up.wait(t); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if text := up.err.wait(t, ""); !strings.Contains(text, "n1 did not start: ") || !strings.Contains(text, filepath.Join(dir, "dledger-n1")) || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
	for i := range 3 { // nothing is left behind
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", base+i*upStep))
		if err != nil {
			t.Error(err)
			continue
		}
		l.Close()
	}
}
