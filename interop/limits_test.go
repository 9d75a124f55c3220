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
	"strings"
	"syscall"
	"testing"
	"time"

	"dledger/interop/harness"
)

const resultDiskFull = 415

// small gives each node a file system of 24 MiB for its directory, half of it taken by a file ballast, and the way to remove that file. Where user namespaces may
// mount, a process holds each in one of its own, and the directory is a link into that; otherwise they are mounted for all, which wants root, or sudo that asks
// nothing. They stay until the test ends.
func small(t *testing.T, g *harness.Group) (relieve func(n *harness.Node) error) {
	t.Helper()
	const room, ballast = 24 << 20, 12 << 20
	command := func(argv ...string) error {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	size := fmt.Sprintf("size=%d", room)
	apart := command("unshare", "-Urm", "mount", "-t", "tmpfs", "-o", size, "tmpfs", "/mnt")
	var sudo []string
	if os.Geteuid() != 0 {
		sudo = []string{"sudo", "-n"}
	}
	for _, n := range g.Nodes {
		if apart == nil {
			disk := n.Base() + ".disk"
			must(t, os.Mkdir(disk, 0o755))
			mounted := make(chan struct{})
			holder, err := harness.Start([]string{"unshare", "-Urm", "sh", "-c", `mount -t tmpfs -o "$1" tmpfs "$2" && echo mounted && exec sleep 1d`, "sh", size, disk},
				g.Dir, disk+".log", func([]byte) { close(mounted) })
			must(t, err)
			t.Cleanup(func() { n.Kill(); holder.Kill() })
			select {
			case <-mounted:
			case <-holder.Done():
				t.Fatalf("no file system at %s", disk)
			}
			must(t, os.Symlink(fmt.Sprintf("/proc/%d/root%s", holder.Pid(), disk), n.Base()))
		} else {
			must(t, os.MkdirAll(n.Base(), 0o755))
			owner := fmt.Sprintf("%s,uid=%d,gid=%d", size, os.Geteuid(), os.Getegid())
			if err := command(append(sudo, "mount", "-t", "tmpfs", "-o", owner, "tmpfs", n.Base())...); err != nil {
				err = fmt.Errorf("file systems of their own for the nodes want user namespaces that may mount, or root, or sudo without a password: %w", errors.Join(apart, err))
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			t.Cleanup(func() {
				n.Kill()
				if err := command(append(sudo, "umount", n.Base())...); err != nil {
					t.Error(err)
				}
			})
		}
		must(t, os.WriteFile(filepath.Join(n.Base(), "ballast"), make([]byte, ballast), 0o644))
		if err := os.WriteFile(filepath.Join(n.Base(), "more"), make([]byte, room-ballast+1), 0o644); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("more than %d bytes fit on the disk of %s (%v)", room, n.ID, err)
		}
		must(t, os.Remove(filepath.Join(n.Base(), "more")))
	}
	return func(n *harness.Node) error { return os.Remove(filepath.Join(n.Base(), "ballast")) }
}

// Three nodes on file systems of 24 MiB, half of it taken: appends go on until nobody has room for more, and are then refused as DISK_FULL. Every
// acknowledged entry can be read meanwhile. When room is made the group takes appends again, without a restart, and in the end all nodes hold the same.
func TestSmallDisksFillUpAndRecover(t *testing.T) {
	t.Parallel()
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	relieve := small(t, g)
	started(t, g)
	c := g.Client()
	defer c.Close()
	acked := map[int64][]byte{} // by index
	tried := 0
	try := func() error {
		tried++
		body := bytes.Repeat([]byte("x"), 20_000)
		copy(body, fmt.Sprintf("entry %d ", tried))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		a, err := c.Append(ctx, body)
		if err == nil {
			acked[a.Index] = body
		}
		return err
	}
	var full *harness.CodeError
	for full == nil {
		err := try()
		switch {
		case errors.As(err, &full) && full.Code != resultDiskFull:
			full = nil // leadership may move to a member that has room
		}
		if tried > 5000 {
			t.Fatalf("%d entries of 20,000 bytes on a disk of 24 MiB", len(acked))
		}
	}
	t.Logf("%d entries, then %v", len(acked), full)
	if len(acked) < 100 {
		t.Errorf("only %d entries on a disk with 12 MiB of room", len(acked))
	}
	for index, body := range acked {
		got, err := c.Get(within(t, limit), index)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("entry %d on a full disk: %d bytes, %v", index, len(got), err)
		}
	}
	for _, n := range g.Nodes {
		must(t, relieve(n))
	}
	must(t, harness.Until(within(t, limit), "an append after room was made", func() bool { return try() == nil }))
	for _, n := range g.Nodes {
		if !n.Running() {
			t.Errorf("%s has ended\n%s", n.ID, g.Logs())
		}
	}
	last, err := g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Stop())
	must(t, g.Judge(acked, last))
	verifyAgainst(t, g)
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
