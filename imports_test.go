package dledger_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The arrows between packages are a decision, so they are written down in testdata/imports.txt, one a line, and nowhere do others
// exist. What the files of tests import is free.
func TestImportsAreThoseOfTheTable(t *testing.T) {
	table, err := os.ReadFile("testdata/imports.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			if want[line] {
				t.Errorf("testdata/imports.txt lists %q twice", line)
			}
			want[line] = true
		}
	}
	got := arrows(t)
	for _, a := range slices.Sorted(maps.Keys(got)) {
		if !want[a] {
			t.Errorf("new arrow: %s\nIf it points down, add that line to testdata/imports.txt and say in the commit why the package needs it.", a)
		}
	}
	for _, a := range slices.Sorted(maps.Keys(want)) {
		if !got[a] {
			t.Errorf("testdata/imports.txt lists an arrow that is no more: %s\nRemove the line.", a)
		}
	}
}

// arrows gives the imports of all packages of this module but those of the standard library, as "from -> to"; our own packages go by
// their directories, the root by its name.
func arrows(t *testing.T) map[string]bool {
	t.Helper()
	var stderr bytes.Buffer
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}`, "./...")
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " ")
		if root, _, _ := strings.Cut(to, "/"); !ok || root != "dledger" && !strings.Contains(root, ".") {
			continue
		}
		found[strings.TrimPrefix(from, "dledger/")+" -> "+strings.TrimPrefix(to, "dledger/")] = true
	}
	if len(found) == 0 {
		t.Fatal("go list names no import")
	}
	return found
}
