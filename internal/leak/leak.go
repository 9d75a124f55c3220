// Package leak tells whether a test's starts and stops leave something behind: goroutines, descriptors, temporary files. It is for tests alone, so no
// arrow of testdata/imports.txt leads to it. Start at Check.
package leak

import (
	"os"
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

// Check calls once with 0 to kinds - 1, so that what stays for the life of a process is there, and then a hundred times with 0 to 99: what the process holds is
// then no more than before. Temporary files go to a directory of their own meanwhile, so the test must not be parallel to others.
func Check(t *testing.T, kinds int, once func(i int)) {
	t.Helper()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("descriptors are counted in /proc: ", err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	for i := range kinds {
		once(i)
	}
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
