package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// sendTo sends a message as a producer does and gives the answer; while the broker is not there yet it is tried again.
func sendTo(t testing.TB, address, topic, body string) *remoting.Frame {
	t.Helper()
	c := remoting.NewClient(remoting.ClientConfig{Version: 409})
	defer c.Close()
	ext := map[string]string{"producerGroup": "p", "topic": topic, "defaultTopic": mq.TopicDefault, "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
		"bornTimestamp": "1", "flag": "0"}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		f, err := c.Call(ctx, address, remoting.Request{Code: mq.CodeSend, Ext: ext}, limit, []byte(body))
		if err == nil {
			return f
		}
		if ctx.Err() != nil {
			t.Fatalf("send to %s: %v", address, err)
		}
		time.Sleep(10 * time.Millisecond) // a real process
	}
}

func TestBrokerRunsAnUnmodifiedConfigurationOfTheOriginal(t *testing.T) {
	dir := t.TempDir()
	names, log := freePort(t, 1, 0), freePort(t, 1, 0)
	port := freePort(t, 3, 1) + 2 // a broker listens two ports below as well
	file := filepath.Join(dir, "broker-n0.conf")
	text := fmt.Sprintf(`brokerClusterName = RaftCluster
brokerName=RaftNode00
brokerIP1=127.0.0.1
listenPort=%d
namesrvAddr=127.0.0.1:1
storePathRootDir=%s/node00
storePathCommitLog=%s/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:%d
## must be unique
dLegerSelfId=n0
sendMessageThreadPoolNums=16
mappedFileSizeCommitLog=1048576
`, port, dir, dir, log)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	server := start(t, "namesrv", "--port", strconv.Itoa(names), "--kv-file", filepath.Join(dir, "kv.json"))
	server.out.wait(t, "boot success")
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for i := range 2 { // the second run goes on with the data of the first
		b := start(t, "broker", "-c", file, "-n", fmt.Sprintf("127.0.0.1:%d", names), "--set", "mappedFileSizeForEntryIndex=1048576")
		if got := b.out.wait(t, "boot success"); !strings.Contains(got, "RaftNode00, "+address) {
			t.Errorf("the line does not say who and where: %q", got)
		}
		if f := sendTo(t, address, "t", "hello"); f.Code != mq.Success || f.Ext["queueOffset"] != strconv.Itoa(i) {
			t.Errorf("run %d: code %d %s %v", i, f.Code, f.Remark, f.Ext)
		}
		for _, key := range []string{"storePathCommitLog", "sendMessageThreadPoolNums"} {
			if !strings.Contains(b.err.wait(t, ""), key) {
				t.Errorf("nothing says that %s has no effect", key)
			}
		}
		if i == 1 {
			benchesBrokers(t, fmt.Sprintf("127.0.0.1:%d", names))
		}
		if code := b.end(t); code != 0 {
			t.Errorf("exit code %d: %s", code, b.err.wait(t, ""))
		}
	}
	if got := mustRun(t, "", "broker", "-c", file, "-p"); !strings.Contains(got, "brokerName=RaftNode00\n") || !strings.Contains(got, "sendMessageThreadPoolNums=16\n") {
		t.Errorf("printed %q", got)
	}
	for args, want := range map[string]string{
		"broker":                                "--config-file",
		"broker -c " + file + " --set x":        "KEY=VALUE",
		"broker -c nowhere.conf":                "nowhere.conf",
		"broker -c " + file + " -n nowhere":     "nowhere",
		"broker -c " + file + " --set compat=1": "compat",
	} {
		if code, _, stderr := command(t, "", strings.Fields(args)...); code == 0 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, want a line that names %s", args, code, stderr, want)
		}
	}
}

// TestNameServersOfTheEnvironment: NAMESRV_ADDR is what counts where nothing else names any, as with the original's programs.
func TestNameServersOfTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broker.conf")
	if err := os.WriteFile(file, []byte("enableDLegerCommitLog=true\nbrokerName=a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct{ env, args, want string }{
		{"", "", "namesrvAddr=\n"},
		{"10.0.0.1:9876;10.0.0.2:9876", "", "namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\n"},
		{"10.0.0.1:9876", "-n 10.0.0.3:9876", "namesrvAddr=10.0.0.3:9876\n"},
		{"10.0.0.1:9876", "--set namesrvAddr=10.0.0.4:9876", "namesrvAddr=10.0.0.4:9876\n"},
	} {
		t.Setenv("NAMESRV_ADDR", k.env)
		if got := mustRun(t, "", append(strings.Fields("broker -p -c "+file), strings.Fields(k.args)...)...); !strings.Contains(got, k.want) {
			t.Errorf("environment %q, %q: %s, want %s", k.env, k.args, got, k.want)
		}
	}
	t.Setenv("NAMESRV_ADDR", "nowhere")
	for _, args := range []string{"broker -c " + file, "bench mq"} {
		if code, _, stderr := command(t, "", strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, "NAMESRV_ADDR") && args != "bench mq" || !strings.Contains(stderr, "nowhere") {
			t.Errorf("%s: exit code %d, %q", args, code, stderr)
		}
	}
}

// benchesBrokers: `bench mq` counts what is stored, also in a topic that it makes, and what is refused.
func benchesBrokers(t *testing.T, names string) {
	t.Helper()
	for _, topic := range []string{mq.TopicBenchmark, "made"} {
		m := decode[mqMeasured](t, mustRun(t, "", "bench", "mq", "-n", names, "-t", topic, "-w", "8", "-s", "100", "--count", "200", "--duration", "1m", "--json"))[0]
		if m.Messages != 200 || m.Producers != 8 || m.Size != 100 || m.PerSecond <= 0 || m.Latency.P50 <= 0 || len(m.Failed) > 0 {
			t.Errorf("topic %s: %+v", topic, m)
		}
	}
	code, text, stderr := command(t, "", "bench", "mq", "-n", names, "-t", mq.TopicHalf, "-w", "1", "--count", "2")
	if code != exitFailed || !strings.Contains(text, "2 failed: refused 16") || !strings.Contains(stderr, "no message was stored") {
		t.Errorf("a topic that is refused: exit code %d, %q, %q", code, text, stderr)
	}
}

// With our own client; stock ones work with three nodes in the module interop/mq.
func TestEveryReplicaOfUpTakesMessages(t *testing.T) {
	dir, base := t.TempDir(), freePort(t, 4, 100)
	up, _, _ := upThree(t, dir, base, "--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576")
	text := up.out.wait(t, "Ctrl-C")
	if !strings.Contains(text, fmt.Sprintf("127.0.0.1:%d;127.0.0.1:%d;127.0.0.1:%d", base+1, base+11, base+21)) {
		t.Errorf("it does not name its name servers: %q", text)
	}
	for group := range 3 {
		for node := range 3 { // every replica takes messages, whoever leads
			address := fmt.Sprintf("127.0.0.1:%d", base+100+10*node+100*group)
			if f := sendTo(t, address, "t", "hello"); f.Code != mq.Success || f.Ext["queueOffset"] != strconv.Itoa(node) {
				t.Errorf("group %d, node %d: code %d %s %v", group, node, f.Code, f.Remark, f.Ext)
			}
		}
	}
	if code := up.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestProcessOfABrokerThatCannotGoOnEnds: a supervisor learns that a broker has left its group from the end of its process, and why from its last line.
func TestProcessOfABrokerThatCannotGoOnEnds(t *testing.T) {
	t.Run("broker", func(t *testing.T) {
		dir, log, port := t.TempDir(), freePort(t, 1, 0), freePort(t, 3, 1)+2
		args := []string{"broker"}
		for _, s := range []string{"brokerName=a", "brokerIP1=127.0.0.1", "listenPort=" + strconv.Itoa(port), "dLegerSelfId=n0", fmt.Sprintf("dLegerPeers=n0-127.0.0.1:%d", log), "dLegerGroup=a",
			"storePathRootDir=" + dir, "enableDLegerCommitLog=true", "mappedFileSizeCommitLog=1048576", "mappedFileSizeForEntryIndex=1048576"} {
			args = append(args, "--set", s)
		}
		b := start(t, args...)
		b.out.wait(t, "boot success")
		endsWithItsQueues(t, b, dir, fmt.Sprintf("127.0.0.1:%d", port))
	})
	t.Run("up", func(t *testing.T) {
		dir, base := t.TempDir(), freePort(t, 4, 100)
		up := start(t, "up", "--dir", dir, "--port-base", strconv.Itoa(base), "--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576")
		up.out.wait(t, "Ctrl-C")
		endsWithItsQueues(t, up, filepath.Join(dir, "broker-a-n0"), fmt.Sprintf("127.0.0.1:%d", base+100))
	})
}

// endsWithItsQueues puts a file where the broker at address keeps the queues that it is to delete, and waits for the process to end.
func endsWithItsQueues(t *testing.T, r *running, dir, address string) {
	t.Helper()
	if f := sendTo(t, address, "t", "hello"); f.Code != mq.Success {
		t.Fatalf("code %d %s", f.Code, f.Remark)
	}
	queues := filepath.Join(dir, "consumequeue")
	if err := os.RemoveAll(queues); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(queues, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := remoting.NewClient(remoting.ClientConfig{Version: 409})
	defer c.Close()
	// Nobody may be there any more to answer.
	_, _ = c.Call(t.Context(), address, remoting.Request{Code: mq.CodeDeleteTopic, Ext: map[string]string{"topic": "t"}}, limit)
	code := r.wait(t)
	lines := strings.Split(strings.TrimSpace(r.err.wait(t, "")), "\n")
	if last := lines[len(lines)-1]; code != exitFailed || !strings.HasPrefix(last, "dledger: ") || !strings.Contains(last, "not a directory") {
		t.Errorf("exit code %d, last line %q, want one that says why", code, last)
	}
}
