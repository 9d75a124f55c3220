package namesrv

import (
	"syscall"
	"testing"

	"dledger/internal/vfs"
)

// TestKeyValueFileAndTableHoldTheSame: whichever call of a change fails, what is told is what a restart finds; and a change that was acknowledged outlives a crash of the
// machine.
func TestKeyValueFileAndTableHoldTheSame(t *testing.T) {
	const file = "/d/kv.json"
	for nth := 1; ; nth++ {
		disk := vfs.NewMem()
		kv, err := openKV(disk, file)
		if err != nil {
			t.Fatal(err)
		}
		before, after := "before", "after"
		if err := kv.change("n", "k", &before); err != nil {
			t.Fatal(err)
		}
		calls, failed := 0, ""
		disk.SetHook(func(c vfs.Call) error {
			if calls++; calls == nth {
				failed = c.Op
				return syscall.EIO
			}
			return nil
		})
		err = kv.change("n", "k", &after)
		disk.SetHook(nil)
		if failed == "" {
			if err != nil || nth < 4 {
				t.Errorf("%d calls, %v", nth-1, err)
			}
			return
		}
		if err == nil {
			t.Errorf("%s failed, and nothing was said of it", failed)
		}
		told, _ := kv.get("n", "k")
		again, err := openKV(disk.Fork(vfs.KeepAll), file)
		if err != nil {
			t.Fatal(err)
		}
		if kept, _ := again.get("n", "k"); kept != told {
			t.Errorf("%s failed: %q is told, a restart finds %q", failed, told, kept)
		}
		if err := kv.change("n", "k", &after); err != nil {
			t.Errorf("%s failed, and the next try with %v", failed, err)
		}
		crashed, err := openKV(disk.Fork(vfs.KeepNone), file)
		if err != nil {
			t.Fatal(err)
		}
		if kept, _ := crashed.get("n", "k"); kept != after {
			t.Errorf("%s failed, the next try was acknowledged, and a crash of the machine left %q", failed, kept)
		}
	}
}
