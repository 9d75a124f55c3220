package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReplaceANodeThatLostItsDisk goes the steps of the manual: the node is killed, its directory is gone, another process with its id and an empty
// directory takes its place, and `status` tells when it votes. Then the group can do without another node.
func TestReplaceANodeThatLostItsDisk(t *testing.T) {
	dir, base := t.TempDir(), freePort(t, 3, upStep)
	peers := fmt.Sprintf("n0-127.0.0.1:%d;n1-127.0.0.1:%d;n2-127.0.0.1:%d", base, base+upStep, base+2*upStep)
	sizes := []string{"--set", "mappedFileSizeForEntryData=1048576", "--set", "mappedFileSizeForEntryIndex=1048576"}
	up, pids, lost := upThree(t, dir, base, sizes...)
	mustRun(t, "", "append", "-p", peers, "-c", "2000", "-d", strings.Repeat("x", 1000))
	if err := syscall.Kill(pids[lost], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	up.out.wait(t, "start it again with: ")
	if err := os.RemoveAll(filepath.Join(dir, "dledger-"+lost)); err != nil {
		t.Fatal(err)
	}
	waitForStatus(t, peers, "the others have a leader", func(s groupState) bool { return s.Leader != "" && s.Leader != lost })

	elsewhere := t.TempDir()
	anew := start(t, append([]string{"server", "-g", "default", "-i", lost, "-p", peers, "-s", elsewhere}, sizes...)...)
	waitForStatus(t, peers, "the new node has all and votes", func(s groupState) bool {
		for _, n := range s.Nodes {
			if n.Error != "" || n.Abstains || n.Commit == nil || *n.Commit != *s.Nodes[0].End {
				return false
			}
		}
		return s.Leader != ""
	})
	for id, pid := range pids {
		if id != lost {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	mustRun(t, "", "append", "-p", peers, "-c", "10", "--timeout", "20s")
	if code := anew.end(t); code != 0 {
		t.Errorf("the new node: exit code %d", code)
	}
	if code := up.end(t); code != 0 {
		t.Errorf("the others: exit code %d", code)
	}
	for id := range pids {
		if id != lost {
			mustRun(t, "", "verify", "--dir", filepath.Join(dir, "dledger-"+id), "--against", filepath.Join(elsewhere, "dledger-"+lost))
		}
	}
}

// waitForStatus asks for the group's state until it is as it should be.
func waitForStatus(t testing.TB, peers, what string, ok func(groupState) bool) {
	t.Helper()
	late := time.Now().Add(limit)
	text := ""
	for time.Now().Before(late) {
		_, text, _ = command(t, "", "status", "-p", peers, "--json", "--timeout", "500ms")
		if s := decode[groupState](t, text); len(s) == 1 && len(s[0].Nodes) == 3 && ok(s[0]) {
			return
		}
	}
	t.Fatalf("in vain waited until %s; last: %s", what, text)
}
