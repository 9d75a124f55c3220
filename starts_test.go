package dledger

import (
	"fmt"
	"path/filepath"
	"testing"

	"dledger/internal/leak"
)

// A hundred times a group of one and a member of a group of three whose others are away are opened, used and closed: no goroutine stays, and descriptors and
// files are then no more than they were after the first time.
func TestStartsAndStopsLeaveNothingBehind(t *testing.T) {
	dir := t.TempDir()
	leak.Check(t, dir, 2, func(i int) {
		peers := "n0-127.0.0.1:20911"
		if i%2 == 1 {
			peers += ";n1-127.0.0.1:1;n2-127.0.0.1:1" // nobody listens there
		}
		l, err := Open(Config{Group: "g", ID: "n0", Peers: peers, Listen: anywhere, Dir: filepath.Join(dir, fmt.Sprint(i%2)), DataFileSize: 1 << 20, IndexFileSize: 32 << 10,
			DiskCheckRatio: 0.99, DiskForceRatio: 0.99})
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if i%2 == 0 {
			leader(t, []*Ledger{l})
			if _, err := l.Append(t.Context(), []byte("hello")); err != nil {
				t.Fatalf("start %d: %v", i, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
	})
}
