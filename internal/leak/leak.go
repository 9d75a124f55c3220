// Package leak tells whether a test's starts and stops leave something behind: goroutines, descriptors, files. It is for tests alone, so no
// arrow of testdata/imports.txt leads to it. Start at Check.
package leak

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// below gives the names of all files and directories below dir.
func below(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		names[name] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// leftovers gives the names of after that are more than those of before, and what was to be replaced or thrown away, whenever it came. A name that took the place of another one
// is none.
func leftovers(before, after map[string]bool) (left []string) {
	added := 0
	for name := range after {
		if strings.HasSuffix(name, ".tmp") {
			left = append(left, name)
		} else if !before[name] {
			added++
		}
	}
	for name := range before {
		if !after[name] {
			added--
		}
	}
	if added > 0 {
		for name := range after {
			if !before[name] && !strings.HasSuffix(name, ".tmp") {
				left = append(left, name)
			}
		}
	}
	slices.Sort(left)
	return left
}

// Check calls once with 0 to kinds - 1, so that what stays for the life of a process is there, and then a hundred times with 0 to 99: no goroutine is then there
// that was not before, no more descriptors, and no more files in the temporary directory and below dir, where all that is started works; and nothing there ends with .tmp.
// The temporary directory is another one meanwhile, so the test must not be parallel to others.
func Check(t *testing.T, dir string, kinds int, once func(i int)) {
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
	before, open := goleak.IgnoreCurrent(), count(t, descriptors)
	names := []map[string]bool{below(t, tmp), below(t, dir)}
	for i := range 100 {
		once(i)
	}
	if err := goleak.Find(before); err != nil { // which waits for those that have told everyone they ended
		t.Error(err)
	}
	if n := count(t, descriptors); n > open {
		t.Errorf("%d descriptors, before %d", n, open)
	}
	for i, d := range []string{tmp, dir} {
		if left := leftovers(names[i], below(t, d)); len(left) > 0 {
			t.Errorf("%d files are left that were not there before: %q", len(left), left)
		}
	}
	if len(names[1]) < 2 {
		t.Errorf("nothing was started below %s", dir)
	}
}
