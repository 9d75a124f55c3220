package dledger

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// holdings counts what a process may leak.
type holdings struct{ goroutines, descriptors, temporaries int }

// over reports whether h holds more than base of anything. Less is no leak: what a test before left behind may have been counted in the base and end later.
func (h holdings) over(base holdings) bool {
	return h.goroutines > base.goroutines || h.descriptors > base.descriptors || h.temporaries > base.temporaries
}

func count(t *testing.T) holdings {
	t.Helper()
	list := func(dir string) int {
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	return holdings{runtime.NumGoroutine(), list("/proc/self/fd"), list(os.TempDir())}
}

// A hundred times a group of one and a member of a group of three whose others are away are opened, used and closed: goroutines, descriptors and temporary
// files are then no more than they were after the first time.
func TestStartsAndStopsLeaveNothingBehind(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("descriptors are counted in /proc: ", err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	once := func(i int) {
		peers := "n0-" + address
		if i%2 == 1 {
			peers += ";n1-127.0.0.1:1;n2-127.0.0.1:1" // nobody listens there
		}
		l, err := Open(Config{Group: "g", ID: "n0", Peers: peers, Dir: filepath.Join(dir, fmt.Sprint(i%2)), DataFileSize: 1 << 20, IndexFileSize: 32 << 10,
			DiskCheckRatio: 0.99, DiskForceRatio: 0.99})
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if i%2 == 0 {
			for !l.IsLeader() {
				changed := l.Changed()
				if !l.IsLeader() {
					<-changed
				}
			}
			if _, err := l.Append(t.Context(), []byte("hello")); err != nil {
				t.Fatalf("start %d: %v", i, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
	}
	once(0)
	once(1)
	before := count(t)
	for i := range 100 {
		once(i)
	}
	after := count(t)
	for deadline := time.Now().Add(10 * time.Second); after.over(before) && time.Now().Before(deadline); after = count(t) {
		runtime.Gosched() // a goroutine that has told everyone it ended may still be counted
	}
	if after.over(before) {
		buf := make([]byte, 1<<20)
		t.Errorf("got %+v, had %+v\n%s", after, before, buf[:runtime.Stack(buf, true)])
	}
}
