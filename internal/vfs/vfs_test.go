package vfs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// contract runs a test against the operating system and against a Mem.
func contract(t *testing.T, test func(t *testing.T, fs FS, dir string)) {
	t.Run("os", func(t *testing.T) { test(t, OS(), t.TempDir()) })
	t.Run("mem", func(t *testing.T) {
		m := NewMem()
		if err := m.MkdirAll("a/dir"); err != nil {
			t.Fatal(err)
		}
		test(t, m, "a/dir")
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, fs FS, name string) string {
	t.Helper()
	b, err := ReadFile(fs, name)
	must(t, err)
	return string(b)
}

func create(t testing.TB, fs FS, name string) File {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE)
	must(t, err)
	return f
}

func TestWritesAreReadBack(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		f := create(t, fs, filepath.Join(dir, "f"))
		n, err := f.WriteVec([][]byte{[]byte("one "), nil, []byte("two "), []byte("three")}, 3)
		if n != 13 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
		_, err = f.WriteAt([]byte("abc"), 0)
		must(t, err)
		must(t, f.Datasync())
		must(t, f.Sync())
		if got := content(t, fs, filepath.Join(dir, "f")); got != "abcone two three" {
			t.Fatalf("content %q", got)
		}
		b := make([]byte, 10)
		if n, err := f.ReadAt(b, 11); n != 5 || err != io.EOF || string(b[:n]) != "three" {
			t.Fatalf("read %d, %v, %q", n, err, b[:n])
		}
		if n, err := f.ReadAt(b, 100); n != 0 || err != io.EOF {
			t.Fatalf("read behind the end: %d, %v", n, err)
		}
		must(t, f.Close())
	})
}

func TestVectorsOfAnyLengthAreWritten(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		f := create(t, fs, filepath.Join(dir, "f"))
		var bufs [][]byte
		var want []byte
		for i := range 2500 {
			b := bytes.Repeat([]byte{byte(i)}, i%7)
			bufs = append(bufs, b)
			want = append(want, b...)
		}
		n, err := f.WriteVec(bufs, 5000)
		if n != len(want) || err != nil {
			t.Fatalf("wrote %d of %d: %v", n, len(want), err)
		}
		got := make([]byte, len(want))
		_, err = f.ReadAt(got, 5000)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatal("content differs")
		}
		must(t, f.Close())
	})
}

func TestCreateMakesWholeFilesAndKeepsWhatIsThere(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		name := filepath.Join(dir, "f")
		f, err := fs.Create(name, 10000)
		must(t, err)
		if n, err := f.Size(); n != 10000 || err != nil {
			t.Fatalf("size %d, %v", n, err)
		}
		if got := content(t, fs, name); got != strings.Repeat("\x00", 10000) {
			t.Fatal("not zeros")
		}
		if _, err := fs.Create(name, 5); !errors.Is(err, os.ErrExist) {
			t.Fatalf("second create: %v", err)
		}
		if _, err := fs.Create(filepath.Join(dir, "no", "f"), 5); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("create in a missing directory: %v", err)
		}
		must(t, f.Close())
	})
}

func TestZeroTruncateAllocate(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		f := create(t, fs, filepath.Join(dir, "f"))
		want := make([]byte, 300<<10)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range want {
			want[i] = byte(rng.Uint32() | 1)
		}
		_, err := f.WriteAt(want, 0)
		must(t, err)
		for _, r := range [][2]int64{{100, 50}, {5000, 200 << 10}, {299 << 10, 1 << 10}, {7, 0}} {
			must(t, f.Zero(r[0], r[1]))
			clear(want[r[0] : r[0]+r[1]])
		}
		must(t, f.Allocate(0, 400<<10))
		want = append(want, make([]byte, 100<<10)...)
		if got := content(t, fs, filepath.Join(dir, "f")); got != string(want) {
			t.Fatal("content differs after Zero and Allocate")
		}
		must(t, f.Truncate(200))
		must(t, f.Truncate(400))
		want = append(want[:200], make([]byte, 200)...)
		if got := content(t, fs, filepath.Join(dir, "f")); got != string(want) {
			t.Fatal("content differs after Truncate")
		}
		must(t, f.Close())
	})
}

func TestPrewriteChangesNoByte(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		name := filepath.Join(dir, "f")
		f, err := fs.Create(name, 8<<20)
		must(t, err)
		_, err = f.WriteAt([]byte("before"), 0)
		must(t, err)
		_, err = f.WriteAt([]byte("behind"), 5<<20)
		must(t, err)
		must(t, f.Prewrite(PrewriteUnit, 5<<20-PrewriteUnit))
		_, err = f.WriteAt([]byte("inside"), 1<<20)
		must(t, err)
		must(t, f.Datasync())
		want := make([]byte, 8<<20)
		copy(want, "before")
		copy(want[1<<20:], "inside")
		copy(want[5<<20:], "behind")
		if content(t, fs, name) != string(want) {
			t.Error("content differs")
		}
		if err := f.Prewrite(100, PrewriteUnit); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("prewrite at an odd place: %v", err)
		}
		must(t, f.Close())
	})
}

func TestNextDataSkipsNothingThatIsThere(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		f, err := fs.Create(filepath.Join(dir, "f"), 8<<20)
		must(t, err)
		_, err = f.WriteAt([]byte("x"), 5<<20+7)
		must(t, err)
		for _, off := range []int64{0, 1 << 20, 5<<20 + 7} {
			lo, hi := off, off
			for hi <= 5<<20+7 && err == nil {
				if lo, hi, err = f.NextData(hi); lo > 5<<20+7 || hi <= lo {
					break
				}
			}
			if err != nil || lo > 5<<20+7 {
				t.Errorf("from %d: got [%d, %d), %v, want a range with %d", off, lo, hi, err, 5<<20+7)
			}
		}
		must(t, f.Truncate(4<<20))
		if lo, _, err := f.NextData(4 << 20); err != nil || lo != 4<<20 {
			t.Errorf("from the end: got %d, %v, want the size", lo, err)
		}
		must(t, f.Close())
	})
}

func TestNames(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		at := func(n string) string { return filepath.Join(dir, n) }
		must(t, fs.MkdirAll(at("x/y/z")))
		must(t, fs.MkdirAll(at("x/y/z")))
		must(t, create(t, fs, at("x/b")).Close())
		must(t, create(t, fs, at("x/a")).Close())
		names, err := fs.ReadDir(at("x"))
		must(t, err)
		if !slices.Equal(names, []string{"a", "b", "y"}) {
			t.Fatalf("names %q", names)
		}
		must(t, Replace(fs, at("x/a"), []byte("new")))
		must(t, fs.Rename(at("x/a"), at("x/b")))
		if got := content(t, fs, at("x/b")); got != "new" {
			t.Fatalf("content %q", got)
		}
		must(t, fs.Rename(at("x"), at("w")))
		if got := content(t, fs, at("w/b")); got != "new" {
			t.Fatalf("content %q in the renamed directory", got)
		}
		must(t, fs.SyncDir(dir))
		if fi, err := fs.Stat(at("w/b")); err != nil || fi.Size != 3 || fi.Dir {
			t.Fatalf("stat %+v, %v", fi, err)
		}
		if fi, err := fs.Stat(at("w/y")); err != nil || !fi.Dir {
			t.Fatalf("stat %+v, %v", fi, err)
		}
		must(t, fs.Remove(at("w/b")))
		for _, err := range []error{fs.Remove(at("w/b")), fs.Rename(at("w/b"), at("w/c")), second(fs.Stat(at("x"))), second(fs.ReadDir(at("x"))), second(fs.OpenFile(at("x/b"), os.O_RDWR))} {
			if !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%v, want not exist", err)
			}
		}
		if _, err := fs.OpenFile(at("w/y"), os.O_RDWR); err == nil {
			t.Fatal("a directory was opened for writing")
		}
		must(t, create(t, fs, at("w/n")).Close())
		if _, err := fs.OpenFile(at("w/n"), os.O_RDWR|os.O_CREATE|os.O_EXCL); !errors.Is(err, os.ErrExist) {
			t.Fatalf("%v, want exist", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestReadOnlyFilesAreNotWritten(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		must(t, create(t, fs, filepath.Join(dir, "f")).Close())
		f, err := fs.OpenFile(filepath.Join(dir, "f"), os.O_RDONLY)
		must(t, err)
		if _, err := f.WriteAt([]byte("x"), 0); err == nil {
			t.Fatal("written")
		}
		must(t, f.Close())
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("second close: %v", err)
		}
	})
}

func TestLockIsHeldByOne(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		l, err := fs.Lock(dir)
		must(t, err)
		if _, err := fs.Lock(dir); !errors.Is(err, ErrLocked) {
			t.Fatalf("second lock: %v", err)
		}
		must(t, l.Close())
		l, err = fs.Lock(dir)
		must(t, err)
		must(t, l.Close())
	})
}

func TestSpaceAndBootAreKnown(t *testing.T) {
	contract(t, func(t *testing.T, fs FS, dir string) {
		s, err := fs.Space(dir)
		if err != nil || s.Total <= 0 || s.Free <= 0 || s.Used() < 0 || s.Used() > 1 {
			t.Fatalf("space %+v, %v", s, err)
		}
		if id := fs.BootID(); id == "" || fs.BootID() != id {
			t.Fatalf("boot id %q", id)
		}
	})
}

func TestCrashLosesOnlyWhatWasNotSynced(t *testing.T) {
	m := NewMem()
	f := create(t, m, "f")
	must(t, m.SyncDir("."))
	old := bytes.Repeat([]byte{1}, 4*BlockSize)
	_, err := f.WriteAt(old, 0)
	must(t, err)
	must(t, f.Datasync())
	fresh := bytes.Repeat([]byte{2}, 5*BlockSize)
	_, err = f.WriteAt(fresh, 0)
	must(t, err)

	if got := content(t, m.Fork(KeepNone), "f"); got != string(old) {
		t.Error("KeepNone does not give the synced content")
	}
	if got := content(t, m.Fork(KeepAll), "f"); got != string(fresh) {
		t.Error("KeepAll does not give the written content")
	}
	got := content(t, m.Fork(func(_ string, b int64) int {
		switch b {
		case 1:
			return BlockSize
		case 2:
			return 100
		}
		return 0
	}), "f")
	want := slices.Concat(old[:BlockSize], fresh[:BlockSize], fresh[:100], old[:2*BlockSize-100])
	if got != string(want) {
		t.Error("torn and kept blocks are not where they were asked for")
	}
	before := m.BootID()
	m.Crash(nil)
	if got := content(t, m, "f"); got != string(fresh) || m.BootID() != before {
		t.Error("the end of a process loses bytes or counts as a boot")
	}
	if _, err := f.WriteAt(old, 0); !errors.Is(err, ErrCrashed) {
		t.Errorf("write through a dead handle: %v", err)
	}
	m.Crash(KeepNone)
	if got := content(t, m, "f"); got != string(old) || m.BootID() == before {
		t.Error("what was not synced before a process ended survives the power cut after it")
	}
}

func TestCrashLosesNamesThatWereNotSynced(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("d"))
	must(t, create(t, m, "d/a").Close())
	must(t, create(t, m, "d/b").Close())
	must(t, m.SyncDir("d"))
	must(t, create(t, m, "d/c").Close())
	must(t, m.Rename("d/a", "d/x"))
	must(t, m.Remove("d/b"))
	list := func(m *Mem) string {
		names, err := m.ReadDir("d")
		must(t, err)
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		name string
		keep Keep
		want string
	}{
		{"none", KeepNone, "a b"},
		{"all", KeepAll, "c x"},
		{"only the removal", func(n string, b int64) int { return map[bool]int{true: 1}[n == "d/b"] }, "a"},
		{"only the rename", func(n string, b int64) int { return map[bool]int{true: 1}[n == "d/x"] }, "b x"},
		{"process", nil, "c x"},
	} {
		if got := list(m.Fork(c.keep)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	must(t, m.SyncDir("d"))
	if got := list(m.Fork(KeepNone)); got != "c x" {
		t.Errorf("after SyncDir: %q", got)
	}
}

func TestRandomCrashIsRepeatable(t *testing.T) {
	m := NewMem()
	f := create(t, m, "f")
	must(t, m.SyncDir("."))
	_, err := f.WriteAt(bytes.Repeat([]byte{7}, 100*BlockSize), 0)
	must(t, err)
	a, b := content(t, m.Fork(KeepRandom(5)), "f"), content(t, m.Fork(KeepRandom(5)), "f")
	if a != b {
		t.Error("one seed gives two outcomes")
	}
	other := false
	for seed := range uint64(5) {
		other = other || content(t, m.Fork(KeepRandom(seed)), "f") != a
	}
	if !other {
		t.Error("six seeds give one outcome")
	}
}

func TestFaultsAreInjected(t *testing.T) {
	m := NewMem()
	f := create(t, m, "f")
	m.SetHook(FailNth("write", 2, syscall.EIO))
	_, err := f.WriteAt([]byte("a"), 0)
	must(t, err)
	if _, err := f.WriteAt([]byte("b"), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("second write: %v", err)
	}
	_, err = f.WriteAt([]byte("c"), 1)
	must(t, err)
	m.SetHook(FailNth("write", 1, &ShortError{N: 2, Err: syscall.ENOSPC}))
	if n, err := f.WriteVec([][]byte{[]byte("x"), []byte("yz")}, 2); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("short write: %d, %v", n, err)
	}
	if got := content(t, m, "f"); got != "acxy" {
		t.Errorf("content %q", got)
	}
	must(t, m.Flip("f", 1, 0x20))
	if got := content(t, m.Fork(KeepAll), "f"); got != "aCxy" {
		t.Errorf("content %q after a flip", got)
	}
}

func TestCapacityIsKept(t *testing.T) {
	m := NewMem()
	m.SetCapacity(5 * pageSize)
	f, err := m.Create("f", 2*pageSize)
	must(t, err)
	if _, err := m.Create("g", 4*pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("create beyond the capacity: %v", err)
	}
	if n, err := f.WriteAt(make([]byte, 6*pageSize), 0); n != 5*pageSize || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write beyond the capacity: %d, %v", n, err)
	}
	if s, err := m.Space("."); err != nil || s.Free != 0 || s.Used() != 1 {
		t.Errorf("space %+v, %v", s, err)
	}
	must(t, m.Remove("f"))
	if m.Used() != 0 {
		t.Errorf("%d bytes used after removal", m.Used())
	}
	m.SetSpace(&Space{Total: 100, Free: 20})
	if s, err := m.Space("."); err != nil || s.Used() != 0.8 {
		t.Errorf("space %+v, %v", s, err)
	}
}

// A file of 1 GiB costs memory only where it is written.
func TestMemIsSparse(t *testing.T) {
	m := NewMem()
	f, err := m.Create("f", 1<<30)
	must(t, err)
	_, err = f.WriteAt([]byte("x"), 1<<30-1)
	must(t, err)
	if n := len(m.now["f"].pages); n != 1 {
		t.Errorf("%d pages, want 1", n)
	}
}

func TestCallsAreTraced(t *testing.T) {
	m := NewMem()
	var got []string
	m.SetHook(func(c Call) error {
		got = append(got, c.String())
		return nil
	})
	must(t, Replace(m, "f", []byte("abc")))
	want := []string{"open f.tmp", "write f.tmp off=0 n=3", "sync f.tmp", "rename f.tmp f", "syncdir ."}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func BenchmarkMemWriteSync(b *testing.B) {
	m := NewMem()
	f, err := m.Create("f", 1<<30)
	must(b, err)
	buf := make([]byte, 1072)
	b.SetBytes(1072)
	off := int64(0)
	for b.Loop() {
		_, err := f.WriteAt(buf, off%(1<<24))
		must(b, err)
		must(b, f.Datasync())
		off += 1072
	}
}
