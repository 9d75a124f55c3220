package harness

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"dledger/internal/golden"
)

// The judge itself is judged by directories that the originals wrote.
func TestReadLogFindsWhatOriginalsWrote(t *testing.T) {
	for _, version := range []string{"0.3.1.2", "0.4.0"} {
		raw, err := golden.Read("store-" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Steps []struct {
				Step    string
				Entries []struct {
					Magic            int32
					Pos, Index, Term int64
					Body             []byte
				}
				LedgerEndIndex int64
				Files          map[string]string
			}
		}
		if err := json.Unmarshal(raw, &file); err != nil {
			t.Fatal(err)
		}
		s := file.Steps[0]
		root := t.TempDir()
		for name, text := range s.Files {
			_, name, ok := strings.Cut(name, "/") // below dledger-n0
			if !ok || !strings.Contains(name, "/") {
				continue // currterm, checkpoint
			}
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		l, err := ReadLog(root)
		if err != nil {
			t.Fatal(err)
		}
		if l.End() != s.LedgerEndIndex {
			t.Errorf("%s: got end %d, want %d", version, l.End(), s.LedgerEndIndex)
		}
		for _, want := range s.Entries {
			got, ok := l.At(want.Index)
			if !ok || got.Magic != want.Magic || got.Term != want.Term || got.At != want.Pos || !bytes.Equal(got.Body, want.Body) {
				t.Errorf("%s: got entry %+v, want %+v", version, got, want)
			}
		}
		if end, err := EndOf(root); err != nil || end != s.LedgerEndIndex {
			t.Errorf("%s: got end %d from the index files, %v, want %d", version, end, err, s.LedgerEndIndex)
		}
	}
}

func TestSameNamesTheFirstDifference(t *testing.T) {
	entry := func(index int64, body string) []byte {
		b := make([]byte, headerSize, headerSize+len(body))
		b[3], b[7], b[15], b[47] = 1, byte(headerSize+len(body)), byte(index), byte(len(body))
		return append(b, body...)
	}
	write := func(entries ...[]byte) *Log {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "data"), 0o755); err != nil {
			t.Fatal(err)
		}
		b := append(bytes.Join(entries, nil), make([]byte, 100)...)
		if err := os.WriteFile(filepath.Join(dir, "data", strings.Repeat("0", 20)), b, 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := ReadLog(dir)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b := write(entry(0, "x"), entry(1, "y")), write(entry(0, "x"), entry(1, "z"))
	if err := a.Same(b, 0); err != nil {
		t.Errorf("equal up to 0: %v", err)
	}
	if err := a.Same(b, 1); err == nil || !strings.Contains(err.Error(), "index 1") {
		t.Errorf("got %v, want a difference at index 1", err)
	}
	if err := a.Same(write(entry(0, "x")), 1); err == nil {
		t.Error("a shorter log passes as equal")
	}
}

// Two processes that test at the same time must not hand out the same port: a node that is killed would find it taken when it comes back.
func TestPortsOfOtherProcessesAreLeftAlone(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ports.mu.Lock()
	before, next, claims := ports.block, ports.next, ports.claims
	ports.block, ports.claims = 0, nil
	ports.mu.Unlock()
	defer func() {
		for _, f := range ports.claims {
			f.Close()
		}
		ports.block, ports.next, ports.claims = before, next, claims
	}()
	const open = portLo + 7*portBlock
	for i := range blocks { // another open file stands for another process
		f, err := os.Create(filepath.Join(os.TempDir(), "dledger-ports-"+strconv.Itoa(portLo+i*portBlock)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if portLo+i*portBlock == open {
			continue
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
	last := 0
	for {
		port, err := FreePorts(0, 99)
		if err != nil {
			break // the one free block is used up
		}
		if port < open || port+99 >= open+portBlock || port < last {
			t.Fatalf("port %d after %d, want one of the block from %d on", port, last, open)
		}
		last = port + 99
	}
	if last == 0 {
		t.Error("the block that nobody has claimed is not used")
	}
}

func TestOutcriesOfProgramsAreFound(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("n0.log", "level=INFO msg=\"no panic: all is well\"\nthe end\n")
	write("n0/data", "panic: in the data of a client\n")
	if err := Outcry(dir); err != nil {
		t.Errorf("nothing has happened: %v", err)
	}
	for _, text := range []string{"panic: runtime error: index out of range\n", "fatal error: concurrent map writes\n", "WARNING: DATA RACE\nWrite at 0x00c000120010 by goroutine 7:\n"} {
		write("n1/n1.log", "started\n==================\n"+text)
		if err := Outcry(dir); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("of %q is said: %v", text, err)
		}
	}
}

// Once Pause has returned no thread of the process does anything any more, however busy the machine is, until Resume.
func TestPausedProcessStandsStill(t *testing.T) {
	if os.Getenv("DLEDGER_TEST_SPINS") != "" {
		for range 7 {
			go func() {
				for {
					runtime.Gosched()
				}
			}()
		}
		for os.Getppid() != 1 {
			runtime.Gosched()
		}
		return
	}
	t.Setenv("DLEDGER_TEST_SPINS", "1")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := Start([]string{os.Args[0], "-test.run", "^" + t.Name() + "$"}, t.TempDir(), filepath.Join(t.TempDir(), "log"), nil)
	must(err)
	defer p.Kill()
	states := ""
	running := func() bool {
		states, err = threadStates(p.Pid())
		must(err)
		return len(states) >= 4 && strings.Contains(states, "R")
	}
	for range 20 {
		must(Until(t.Context(), "busy threads", running))
		must(p.Pause())
		for range 100 {
			if running() {
				t.Fatalf("states of the threads of a paused process: %s", states)
			}
		}
		must(p.Resume())
	}
}

// Memory that a process held for a moment, and has given back, is in its peak until the peak is forgotten.
func TestPeakHoldsWhatWasGivenBack(t *testing.T) {
	const mib = 1 << 20
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Getenv("DLEDGER_TEST_GIVES_BACK") != "" {
		b, err := syscall.Mmap(-1, 0, 64*mib, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		must(err)
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 1
		}
		must(syscall.Munmap(b))
		os.Stdout.WriteString("given back\n")
		select {} // it dies with the test
	}
	t.Setenv("DLEDGER_TEST_GIVES_BACK", "1")
	given := make(chan struct{})
	p, err := Start([]string{os.Args[0], "-test.run", "^" + t.Name() + "$"}, t.TempDir(), filepath.Join(t.TempDir(), "log"), func([]byte) { close(given) })
	must(err)
	defer p.Kill()
	<-given
	now, _, err := p.Usage()
	must(err)
	peak, err := p.Peak()
	must(err)
	must(p.ForgetPeak())
	after, err := p.Peak()
	must(err)
	if peak < 64*mib || now > 48*mib || after > 48*mib {
		t.Errorf("it holds %d MiB, peak %d MiB, %d MiB when that is forgotten; want a peak of 64 MiB and little else", now/mib, peak/mib, after/mib)
	}
}
