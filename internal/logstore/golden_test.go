package logstore

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/golden"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// goldenStore is one of the files store-*.json: directories as the Java originals left them.
type goldenStore struct {
	Steps []goldenStep `json:"steps"`
}

type goldenStep struct {
	Step    string            `json:"step"`
	End     *raft.Index       `json:"ledgerEndIndex"`
	Entries []goldenEntry     `json:"entries"`
	Files   map[string]string `json:"files"`
}

type goldenEntry struct {
	Magic int32      `json:"magic"`
	Size  int32      `json:"size"`
	Pos   int64      `json:"pos"`
	Index raft.Index `json:"index"`
	Term  raft.Term  `json:"term"`
	Body  string     `json:"body"`
}

// encode gives the entry as the original does, without checksums.
func (e goldenEntry) encode(t testing.TB) []byte {
	body, err := base64.StdEncoding.DecodeString(e.Body)
	must(t, err)
	b := make([]byte, entry.HeaderSize+len(body))
	entry.PutHeader(b, entry.Header{Magic: e.Magic, Size: e.Size, Index: e.Index, Term: e.Term, Pos: e.Pos, BodyLen: int32(len(body))})
	copy(b[entry.HeaderSize:], body)
	return b
}

func readGolden(t testing.TB, version string) goldenStore {
	b, err := golden.Read("store-" + version + ".json")
	must(t, err)
	var g goldenStore
	must(t, json.Unmarshal(b, &g))
	return g
}

// bytes gives the content of a golden file: hex, or text for currterm and checkpoint.
func (g goldenStep) bytes(t testing.TB, name string) []byte {
	if !strings.Contains(name, "/data/") && !strings.Contains(name, "/index/") {
		return []byte(g.Files[name])
	}
	b, err := hex.DecodeString(g.Files[name])
	must(t, err)
	return b
}

// disk gives a disk that holds the step's files.
func (g goldenStep) disk(t testing.TB) *vfs.Mem {
	m := vfs.NewMem()
	for name := range g.Files {
		full := filepath.Join("base", name)
		must(t, m.MkdirAll(filepath.Dir(full)))
		f, err := m.OpenFile(full, os.O_RDWR|os.O_CREATE)
		must(t, err)
		_, err = f.WriteAt(g.bytes(t, name), 0)
		must(t, err)
		must(t, f.Close())
	}
	return m
}

// compare checks that a disk holds the step's data and index files, and no others.
func (g goldenStep) compare(t *testing.T, m *vfs.Mem) {
	t.Helper()
	for _, dir := range []string{"data", "index"} {
		names, err := m.ReadDir("base/dledger-n0/" + dir)
		must(t, err)
		var want []string
		for name := range g.Files {
			if rest, ok := strings.CutPrefix(name, "dledger-n0/"+dir+"/"); ok {
				want = append(want, rest)
			}
		}
		slices.Sort(want)
		if !slices.Equal(names, want) {
			t.Fatalf("%s holds %q, want %q", dir, names, want)
		}
		for _, n := range names {
			got, err := vfs.ReadFile(m, "base/dledger-n0/"+dir+"/"+n)
			must(t, err)
			if want := g.bytes(t, "dledger-n0/"+dir+"/"+n); !slices.Equal(got, want) {
				t.Errorf("%s/%s is\n%x, want\n%x", dir, n, got, want)
			}
		}
	}
}

var goldenVersions = []struct {
	version string
	compat  raft.Compat
}{{"0.3.1.2", raft.Compat03}, {"0.4.0", raft.Compat04}}

func TestJavaDirectoriesOpenAndStayAsTheyAre(t *testing.T) {
	for _, v := range goldenVersions {
		g := readGolden(t, v.version)
		entries := g.Steps[0].Entries
		for i, step := range g.Steps {
			t.Run(v.version+"/"+step.Step, func(t *testing.T) {
				m := step.disk(t)
				in, err := Inspect(m, "base/dledger-n0")
				must(t, err)
				rep, err := in.Verify()
				must(t, err)
				if len(rep.Problems) > 0 {
					t.Errorf("problems: %v", rep.Problems)
				}
				must(t, in.Close())

				cfg := small(m)
				cfg.Compat = v.compat
				s := mustOpen(t, cfg)
				st := s.State()
				if in.Info().First != st.First || in.Info().Last != st.Last || max(in.Info().Commit, st.First-1) != st.Commit {
					t.Errorf("inspected as %+v, opened as %+v", in.Info(), st)
				}
				// A truncated suffix of the original is there again: nothing in its files tells.
				if want := entries[len(entries)-1].Index; st.Last != want {
					t.Fatalf("last %d, want %d", st.Last, want)
				}
				if st.Term != 1 || st.Vote != "n0" || st.Runs[0].Term != 1 || len(st.Runs) != 1 {
					t.Errorf("state %+v", st)
				}
				wantCommit := st.First - 1
				if strings.HasPrefix(step.Step, "commit index 4") {
					wantCommit = 4
				}
				if st.Commit != wantCommit {
					t.Errorf("commit %d, want %d", st.Commit, wantCommit)
				}
				for _, e := range entries[st.First:] {
					p, last, err := s.Read(e.Index, e.Index+1, 0)
					must(t, err)
					if last != e.Index || !slices.Equal(slices.Concat(p...), e.encode(t)) {
						t.Errorf("entry %d is %x, want %x", e.Index, p, e.encode(t))
					}
				}
				must(t, s.Close())
				if i == 0 && v.version == "0.4.0" {
					step = g.Steps[1] // recovery sets the index record's magic of a no-op right
				}
				step.compare(t, m)
			})
		}
	}
}

func TestReplicatedEntriesMakeTheFilesOfTheOriginal(t *testing.T) {
	for _, v := range goldenVersions {
		g := readGolden(t, v.version)
		for _, pieces := range []int{1, 7, 1000} {
			m := vfs.NewMem()
			cfg := small(m)
			cfg.Compat = v.compat
			s := mustOpen(t, cfg)
			var all []byte
			for _, e := range g.Steps[0].Entries {
				all = append(all, e.encode(t)...)
			}
			must(t, s.AppendEncoded(0, slices.Collect(slices.Chunk(all, len(all)/pieces+1))))
			must(t, s.Flush())
			g.Steps[1].compare(t, m)
			must(t, s.Close())
		}
	}
}

// A snapshot of the original at index 2 leaves the files that our log has when it starts anew with entry 3 at its position.
func TestResetMakesTheLeadingBlanksOfTheOriginal(t *testing.T) {
	g := readGolden(t, "0.4.0")
	m := vfs.NewMem()
	cfg := small(m)
	cfg.Compat = raft.Compat04
	s := mustOpen(t, cfg)
	fill(t, s, 9, 1)
	must(t, s.Reset(3, 175, 1))
	var all raft.Payload
	for _, e := range g.Steps[0].Entries {
		all = append(all, e.encode(t))
	}
	must(t, s.AppendEncoded(3, all))
	must(t, s.Flush())
	g.Steps[2].compare(t, m)
	if st := s.State(); st.First != 3 || st.PrevTerm != 1 || st.Commit != 2 || st.Last != 6 {
		t.Errorf("state %+v", st)
	}
}

// Where the original only moves its positions, the bytes of truncated entries are zeros here.
func TestTruncateErasesWhatTheOriginalLeaves(t *testing.T) {
	g := readGolden(t, "0.4.0")
	m := g.Steps[2].disk(t)
	cfg := small(m)
	cfg.Compat = raft.Compat04
	s := mustOpen(t, cfg)
	must(t, s.Truncate(4))
	must(t, s.Close())
	s = mustOpen(t, cfg)
	if st := s.State(); st.Last != 4 || st.First != 3 {
		t.Errorf("log is %d to %d, want 3 to 4", st.First, st.Last)
	}
	want := g.Steps[2]
	want.Files = map[string]string{}
	for name, content := range g.Steps[2].Files {
		switch {
		case strings.HasSuffix(name, "data/00000000000000000256"):
			content = content[:2*49] + strings.Repeat("0", 2*(256-49))
		case strings.HasSuffix(name, "index/00000000000000000128"):
			content = content[:2*32] + strings.Repeat("0", 2*(128-32))
		}
		want.Files[name] = content
	}
	want.compare(t, m)
}

func TestTermAndCheckpointAreReadableByTheOriginal(t *testing.T) {
	m := vfs.NewMem()
	s := mustOpen(t, small(m))
	fill(t, s, 5, 1)
	must(t, s.SaveTerm(1, "n0"))
	must(t, s.SetCommit(4))
	must(t, s.Close())
	for name, want := range map[string]string{
		"checkpoint": "committedIndex=4\nendIndex=5\n",
		"currterm":   string(ballot{term: 1, vote: "n0"}.encode()),
	} {
		got, err := vfs.ReadFile(m, "base/dledger-n0/"+name)
		must(t, err)
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// An index that does not begin where the log does is made anew, as a missing one is: where its first files are gone, and where its files are those of another log.
func TestIndexOfAnotherPlaceIsMadeAnew(t *testing.T) {
	const dir = "base/dledger-n0/index/"
	for _, v := range goldenVersions {
		g := readGolden(t, v.version)
		for name, spoil := range map[string]func(m *vfs.Mem){
			"the first file is gone": func(m *vfs.Mem) { must(t, m.Remove(dir+fileName(0))) },
			"all lie far behind": func(m *vfs.Mem) {
				must(t, m.Rename(dir+fileName(0), dir+fileName(1280)))
				must(t, m.Rename(dir+fileName(128), dir+fileName(1408)))
			},
		} {
			t.Run(v.version+", "+name, func(t *testing.T) {
				m := g.Steps[0].disk(t)
				spoil(m)
				cfg := small(m)
				cfg.Compat, cfg.CacheBytes = v.compat, 1
				s := mustOpen(t, cfg)
				for range 2 {
					for _, e := range g.Steps[0].Entries {
						p, _, err := s.Read(e.Index, e.Index+1, 0)
						must(t, err)
						if !slices.Equal(slices.Concat(p...), e.encode(t)) {
							t.Errorf("entry %d is %x, want %x", e.Index, p, e.encode(t))
						}
					}
					fill(t, s, s.State().Last+9, 2)
					must(t, s.Close())
					s = mustOpen(t, cfg)
				}
				must(t, s.Close())
			})
		}
	}
}
