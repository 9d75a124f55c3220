package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
)

func TestNameServerServesUntilItIsStopped(t *testing.T) {
	dir := t.TempDir()
	port := freePort(t, 1, 0)
	file := filepath.Join(dir, "namesrv.conf")
	text := fmt.Sprintf("# a comment\nlistenPort = 1\nkvConfigPath=%s/kv/kvConfig.json\nserverWorkerThreads=8\nsupportActingMaster=true\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	kv := map[string]string{"namespace": "n", "key": "k", "value": "v"}
	for _, code := range []int32{mq.CodePutKV, mq.CodeGetKV} { // the second run finds what the first was told
		server := start(t, "namesrv", "--configFile", file, "--port", strconv.Itoa(port))
		if got := server.out.wait(t, "boot success"); !strings.Contains(got, strconv.Itoa(port)) {
			t.Errorf("the line does not say the port: %q", got)
		}
		if warned := server.err.wait(t, "supportActingMaster"); !strings.Contains(warned, "serverWorkerThreads") { // as a broker does
			t.Errorf("a key without effect is not named: %s", warned)
		}
		c := remoting.NewClient(remoting.ClientConfig{Version: mq.Version})
		f, err := c.Call(t.Context(), "127.0.0.1:"+strconv.Itoa(port), remoting.Request{Code: code, Ext: kv}, 5*time.Second)
		if err != nil || f.Code != mq.Success || code == mq.CodeGetKV && f.Ext["value"] != "v" {
			t.Errorf("request %d: %+v, %v", code, f, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if code := server.end(t); code != 0 {
			t.Errorf("exit code %d: %s", code, server.err.wait(t, ""))
		}
	}
}

func TestNameServerRefusesWhatItCannotUse(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.conf")
	if err := os.WriteFile(bad, []byte("listenPort=x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"listenPort", []string{"-c", bad}},
		{"none.conf", []string{"-c", filepath.Join(dir, "none.conf")}},
		{"70000", []string{"--port", "70000"}},
		{"loud", []string{"--log-level", "loud"}},
	} {
		code, _, stderr := command(t, "", append([]string{"namesrv"}, c.args...)...)
		if code == 0 || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, %q, want one line with %q", c.args, code, stderr, c.want)
		}
	}
	if got := mustRun(t, "", "namesrv", "-p", "--port", "9000"); !strings.Contains(got, "listenPort=9000\n") {
		t.Errorf("configuration: %q", got)
	}
}

func TestNameOfTheProgramIsACommand(t *testing.T) {
	for _, c := range [][2][]string{
		{{"/opt/bin/mqnamesrv", "-c", "f"}, {"namesrv", "-c", "f"}},
		{{"/opt/bin/mqbroker", "-n", "a:9876", "-m"}, {"broker", "-n", "a:9876", "-m"}},
		{{"mqadmin", "clusterList"}, {"admin", "clusterList"}},
		{{"dledger", "namesrv"}, {"namesrv"}},
		{{"./dledger"}, {}},
	} {
		if got := commandLine(c[0]); !reflect.DeepEqual(got, c[1]) {
			t.Errorf("%q: got %q, want %q", c[0], got, c[1])
		}
	}
}

// TestLinksTakeWhatTheScriptsOfTheOriginalTake: every option of BrokerStartup and NamesrvStartup, short and long, by a link of the script's name to the program.
func TestLinksTakeWhatTheScriptsOfTheOriginalTake(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "broker.conf")
	if err := os.WriteFile(conf, []byte("brokerName=a\nenableDLegerCommitLog=true\nfileReservedTime=48\nregionId=r\nhaListenPort=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	names := filepath.Join(dir, "namesrv.conf")
	if err := os.WriteFile(names, []byte("listenPort=9000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct{ program, args, has, hasNot string }{
		{"mqbroker", "-c " + conf + " -p", "regionId=r", ""},
		{"mqbroker", "--configFile " + conf + " --printConfigItem", "regionId=r", ""},
		{"mqbroker", "-c " + conf + " -n 10.0.0.1:9876 -m", "namesrvAddr=10.0.0.1:9876", "regionId"},
		{"mqbroker", "-c " + conf + " --namesrvAddr 10.0.0.1:9876 --printImportantConfig", "fileReservedTime=48", "haListenPort"},
		{"mqbroker", "-c " + conf + " -p -m", "regionId=r", ""},
		{"mqbroker", "-h", "dledger broker [flags]", ""},
		{"mqnamesrv", "-c " + names + " -p", "listenPort=9000", ""},
		{"mqnamesrv", "-n 10.0.0.1:9876 -p", "listenPort=9876", ""},
		{"mqnamesrv", "--configFile " + names + " --namesrvAddr 10.0.0.1:9876 --printConfigItem", "listenPort=9000", ""},
		{"mqnamesrv", "-h", "dledger namesrv [flags]", ""},
	} {
		link := filepath.Join(dir, k.program)
		if err := os.Symlink(self, link); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		cmd := exec.CommandContext(ctx, link, strings.Fields(k.args)...)
		cmd.Env = append(os.Environ(), "DLEDGER_TEST_AS_PROGRAM=1")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		cancel()
		if err != nil || !strings.Contains(string(out), k.has) || k.hasNot != "" && strings.Contains(string(out), k.hasNot) {
			t.Errorf("%s %s: %v %s\n%s\nwant %s and not %q", k.program, k.args, err, stderr.String(), out, k.has, k.hasNot)
		}
	}
}
