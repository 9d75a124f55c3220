package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"dledger/interop/harness"
)

const resultDiskFull = 415

// Three nodes on file systems of 24 MiB, half of it taken: appends go on until nobody has room for more, and are then refused as DISK_FULL. Every
// acknowledged entry can be read meanwhile. When room is made the group takes appends again, without a restart.
func TestSmallDisksFillUpAndRecover(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt").CombinedOutput(); err != nil {
		t.Skipf("no file systems of our own here: %v %s", err, out) // user namespaces are a matter of the machine, also in CI
	}
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	for _, n := range g.Nodes {
		n.Wrap = func(argv []string) []string {
			script := `mount -t tmpfs -o size=24m tmpfs "$1" && dd if=/dev/zero of="$1/ballast" bs=1M count=12 2>/dev/null && shift && exec "$@"`
			return append([]string{"unshare", "-Urm", "sh", "-c", script, "sh", n.Base()}, argv...)
		}
	}
	started(t, g)
	c := g.Client()
	defer c.Close()
	body := bytes.Repeat([]byte("x"), 20_000)
	acked := map[int64]bool{}
	var full *harness.CodeError
	for i := 0; full == nil; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		a, err := c.Append(ctx, body)
		cancel()
		switch {
		case err == nil:
			acked[a.Index] = true
		case errors.As(err, &full) && full.Code != resultDiskFull:
			full = nil // leadership may move to a member that has room
		}
		if i > 5000 {
			t.Fatalf("%d entries of 20,000 bytes on a disk of 24 MiB", len(acked))
		}
	}
	t.Logf("%d entries, then %v", len(acked), full)
	if len(acked) < 100 {
		t.Errorf("only %d entries on a disk with 12 MiB of room", len(acked))
	}
	for index := range acked {
		got, err := c.Get(within(t, limit), index)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("entry %d on a full disk: %d bytes, %v", index, len(got), err)
		}
	}
	for _, n := range g.Nodes {
		must(t, os.Remove(fmt.Sprintf("/proc/%d/root%s", n.Process().Pid(), filepath.Join(n.Base(), "ballast"))))
	}
	must(t, harness.Until(within(t, limit), "an append after room was made", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.Append(ctx, body)
		return err == nil
	}))
	for _, n := range g.Nodes {
		if !n.Running() {
			t.Errorf("%s has ended\n%s", n.ID, g.Logs())
		}
	}
	must(t, g.Stop())
}

// A node that may have few descriptors open runs out of them under a crowd of connections, and goes on: those it has are served, its peers reach it, and
// when the crowd has gone new clients do.
func TestDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	for _, n := range g.Nodes {
		n.Wrap = func(argv []string) []string {
			return append([]string{"sh", "-c", `ulimit -n 64 && exec "$@"`, "sh"}, argv...)
		}
	}
	leader := started(t, g)
	load := harness.StartLoad(g, "descriptors", 8, 200)
	must(t, load.More(within(t, limit), 500))
	var crowd []net.Conn
	for range 200 {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", leader.Port)) // the kernel takes more than the process does
		if err != nil {
			break
		}
		crowd = append(crowd, conn)
	}
	must(t, load.More(within(t, limit), 5000))
	for _, conn := range crowd {
		must(t, conn.Close())
	}
	fresh := g.Client()
	defer fresh.Close()
	must(t, harness.Until(within(t, limit), "a new client's append", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := fresh.Append(ctx, []byte("a new client's"))
		return err == nil
	}))
	finish(t, g, load)
}
