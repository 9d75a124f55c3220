package dledger_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// TestEveryFuzzTargetHasKeptInputs: what fuzzing has found worth keeping runs as an ordinary test, and who fuzzes for five seconds begins where others have ended. Kept inputs are few and
// small, and none is of a target that is gone.
func TestEveryFuzzTargetHasKeptInputs(t *testing.T) {
	const most, sizeMost = 25, 4 << 10
	targets := map[string]bool{}
	each(t, "_test.go", func(string) bool { return false }, func(name string) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fuzzTarget.FindAllStringSubmatch(string(text), -1) {
			dir := filepath.Join(filepath.Dir(name), "testdata", "fuzz", m[1])
			targets[dir] = true
			list, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if len(list) == 0 || len(list) > most {
				t.Errorf("%s has %d kept inputs in %s, want 1 to %d", m[1], len(list), dir, most)
			}
			for _, f := range list {
				info, err := f.Info()
				if err != nil {
					t.Fatal(err)
				}
				if info.Size() > sizeMost {
					t.Errorf("%s has %d bytes, want at most %d", filepath.Join(dir, f.Name()), info.Size(), sizeMost)
				}
			}
		}
	})
	if len(targets) < 18 {
		t.Errorf("only %d fuzz targets found", len(targets))
	}
	kept, err := filepath.Glob("*/testdata/fuzz/*")
	for _, pattern := range []string{"testdata/fuzz/*", "*/*/testdata/fuzz/*"} {
		more, bad := filepath.Glob(pattern)
		kept, err = append(kept, more...), errors.Join(err, bad)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range kept {
		if !targets[dir] {
			t.Errorf("%s has inputs of a target that is not there", dir)
		}
	}
}
