package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestReplicasRunWithAQuietMonitor(t *testing.T) {
	for _, c := range []struct {
		name, args, set, want string
		changes               bool
	}{
		{"a broker", "broker -c x", "", quietSetting, true},
		{"a server beside other settings", "server", "gctrace=1", "gctrace=1," + quietSetting, true},
		{"a setting of the operator's own stays", "server", "gctrace=1,schedtrace=1000", "gctrace=1,schedtrace=1000", false},
		{"once is enough", "broker", quietSetting, quietSetting, false},
		{"a client command", "append -d broker", "", "", false},
		{"a question", "broker --help", "", "", false},
		{"no command", "", "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, changes := quieter(strings.Fields(c.args), c.set); got != c.want || changes != c.changes {
				t.Errorf("got %q, %v, want %q, %v", got, changes, c.want, c.changes)
			}
		})
	}
}

// The aim: a server's process really has the setting, under the id it was started with, and works. The way: look at the environment that the kernel shows of it.
func TestServerStartsItselfQuietly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0], "server", "-g", "g", "-i", "n0", "-p", "n0-"+address, "-s", t.TempDir())
	cmd.Env = append(os.Environ(), "DLEDGER_TEST_AS_PROGRAM=1", "GODEBUG=")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	serves := func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	for end := time.Now().Add(limit); !serves(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Error("does not serve")
			break
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid))
	if err != nil {
		t.Error(err)
	}
	if !bytes.Contains(environ, []byte("\x00GODEBUG="+quietSetting+"\x00")) && !bytes.HasPrefix(environ, []byte("GODEBUG="+quietSetting+"\x00")) {
		t.Errorf("its environment: %q", environ)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}
