package mq

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dledger/interop/harness"
)

// The first minute of the README: `dledger up` on an empty machine, and a message that a stock client sends and receives, with what `up` itself says to type. Building our program is
// not in it, building hello is.
func TestFirstMessageWithinAMinute(t *testing.T) {
	base, err := harness.UpPorts(1)
	must(t, err)
	began := time.Now()
	dir := scratch(t)
	told := make(chan string, 1)
	up, err := harness.Start([]string{program(t), "up", "--dir", dir, "--port-base", fmt.Sprint(base)}, dir, filepath.Join(dir, "up.log"), func(line []byte) {
		if _, at, ok := strings.Cut(string(line), "go run ./hello"); ok {
			select {
			case told <- strings.Trim(at, " )"):
			default:
			}
		}
	})
	must(t, err)
	t.Cleanup(up.Kill)
	var args string
	select {
	case args = <-told:
	case <-up.Done():
		t.Fatal("`dledger up` ended")
	case <-within(t, time.Minute).Done():
		t.Fatal("`dledger up` does not say how to send a message")
	}
	out, err := exec.CommandContext(within(t, time.Minute), "sh", "-c", "go run ./hello "+args).CombinedOutput()
	if err != nil {
		t.Fatalf("hello: %v\n%s", err, out)
	}
	var sent, received bool
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		sent = sent || strings.HasPrefix(lines.Text(), "sent ")
		received = received || strings.HasPrefix(lines.Text(), "received ")
	}
	if !sent || !received {
		t.Errorf("hello says:\n%s", out)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the first message took %v", took)
	}
}
