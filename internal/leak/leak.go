// Package leak tells whether a test's starts and stops leave something behind: goroutines, descriptors, temporary files. It is for tests alone, so no
// arrow of testdata/imports.txt leads to it. Start at Check.
package leak

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func count(t *testing.T, dir string) int {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// Check calls once with 0 to kinds - 1, so that what stays for the life of a process is there, and then a hundred times with 0 to 99: no goroutine is then there
// that was not before, and no more descriptors and temporary files. Temporary files go to a directory of their own meanwhile, so the test must
// not be parallel to others.
func Check(t *testing.T, kinds int, once func(i int)) {
	t.Helper()
	const descriptors = "/proc/self/fd"
	if _, err := os.Stat(descriptors); err != nil {
		t.Skip("descriptors are counted in /proc: ", err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	for i := range kinds {
		once(i)
	}
	before, files, temporaries := goleak.IgnoreCurrent(), count(t, descriptors), count(t, tmp)
	for i := range 100 {
		once(i)
	}
	if err := goleak.Find(before); err != nil { // which waits for those that have told everyone they ended
		t.Error(err)
	}
	if n := count(t, descriptors); n > files {
		t.Errorf("%d descriptors, before %d", n, files)
	}
	if n := count(t, tmp); n > temporaries {
		t.Errorf("%d temporary files, before %d", n, temporaries)
	}
}
