package leak

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a start leaves below its directory is seen; what it replaces by another name is not taken for more.
func TestLeftoversAreSeen(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, then []string // files that are made before and after
		gone        []string
		want        []string
	}{
		{name: "nothing", first: []string{"a", "d/b"}},
		{name: "a file more", first: []string{"a"}, then: []string{"d/c"}, want: []string{"d", "d/c"}},
		{name: "another name", first: []string{"d/00"}, then: []string{"d/10"}, gone: []string{"d/00"}},
		{name: "another name and one more", first: []string{"d/00"}, then: []string{"d/10", "d/20"}, gone: []string{"d/00"}, want: []string{"d/10", "d/20"}},
		{name: "one that was to be renamed", first: []string{"a"}, then: []string{"a.tmp"}, want: []string{"a.tmp"}},
		{name: "that was there before", first: []string{"a.tmp"}, want: []string{"a.tmp"}},
		{name: "in the place of another file", first: []string{"a", "b"}, then: []string{"b.tmp"}, gone: []string{"b"}, want: []string{"b.tmp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			put := func(names []string) {
				for _, n := range names {
					n = filepath.Join(dir, n)
					if err := os.MkdirAll(filepath.Dir(n), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(n, nil, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			put(c.first)
			before := below(t, dir)
			put(c.then)
			for _, n := range c.gone {
				if err := os.Remove(filepath.Join(dir, n)); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, n := range leftovers(before, below(t, dir)) {
				n, err := filepath.Rel(dir, n)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, n)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
