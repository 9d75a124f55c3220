package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/logstore"
)

// spread makes the directory of a stopped node with 20 committed entries whose data files lie in two others.
func spread(t *testing.T, id string) (dir string, data []string) {
	t.Helper()
	base := t.TempDir()
	dir, data = filepath.Join(base, "dledger-"+id), []string{filepath.Join(base, "disk1"), filepath.Join(base, "disk2")}
	s, err := logstore.Open(logstore.Config{Dir: dir, DataDirs: data, DataFileSize: 512, IndexFileSize: 1024, Inline: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(0, 1, entry.MagicNormal, [][]byte(bytes.SplitAfter(bytes.Repeat([]byte("entry,"), 20), []byte(",")))[:20], nil); err != nil {
		t.Fatal(err)
	}
	for _, do := range []func() error{s.Flush, func() error { return s.SetCommit(19) }, s.Close} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	return dir, data
}

// TestDataFilesMayLieElsewhere: verify and dump read a node with several data paths, compare two of them, and say so where they do not know the paths, or not all.
func TestDataFilesMayLieElsewhere(t *testing.T) {
	a, dataA := spread(t, "n0")
	b, dataB := spread(t, "n1")
	both := []string{"--data-dir", dataA[0], "--data-dir", dataA[1]}
	against := append([]string{"verify", "--dir", a, "--against", filepath.Dir(b), "--against-data-dir", strings.Join(dataB, ",")}, both...)
	if got := mustRun(t, "", against...); !strings.Contains(got, "entries 0 to 19 are byte-identical") {
		t.Errorf("verify prints %q", got)
	}
	if got := decode[dumpedEntry](t, mustRun(t, "", append([]string{"dump", "--dir", a, "--json"}, both...)...)); len(got) != 20 {
		t.Errorf("dump prints %d entries, want 20", len(got))
	}
	empty, nowhere := t.TempDir(), filepath.Join(t.TempDir(), "nowhere")
	for _, test := range []struct {
		args string
		want string
	}{
		{"verify --dir " + a, "the data files of the log are not here"},
		{"verify --dir " + a, "name their directories with --data-dir"},
		{"verify --dir " + a + " --data-dir " + empty, "there are none in " + empty},
		{"verify --dir " + a + " --data-dir " + nowhere, nowhere},
		{"verify --dir " + a + " --data-dir " + strings.Join(dataA, ",") + " --against " + b, "name their directories with --against-data-dir"},
		{"dump --dir " + a, "name their directories with --data-dir"},
		{"dump --dir " + a + " --index", "name their directories with --data-dir"},
		{"dump --dir " + a + " --data-dir " + nowhere, nowhere},
		{"dump --dir " + a + " --data-dir " + dataA[0], "file 00000000000000000512 is missing"},
		{"dump --index --dir " + a + " --data-dir " + dataA[0], "file 00000000000000000512 is missing"},
		{"verify --dir " + a + " --data-dir " + dataA[1], "file 00000000000000000000 is missing"},
	} {
		code, stdout, stderr := command(t, "", strings.Fields(test.args)...)
		if code != exitFailed || !strings.Contains(stderr, test.want) || strings.Contains(test.args, "dump") && stdout != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %s", test.args, code, stdout, stderr, test.want)
		}
	}
	// The newest file is not there.
	names, err := os.ReadDir(dataA[0])
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadDir(dataA[1])
	if err != nil {
		t.Fatal(err)
	}
	newest, in := names[len(names)-1].Name(), dataA[0]
	if last := more[len(more)-1].Name(); last > newest {
		newest, in = last, dataA[1]
	}
	if err := os.Remove(filepath.Join(in, newest)); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := command(t, "", append([]string{"dump", "--dir", a}, both...)...)
	if code != exitFailed || !strings.Contains(stdout, "0  term 1") || !strings.Contains(stderr, "but entry 19 was there") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
