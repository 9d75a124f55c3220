package dledger

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestDamageOnARealDiskIsRepaired: a member is stopped, bytes in the middle of its files change, and it is started again; the search finds them.
func TestDamageOnARealDiskIsRepaired(t *testing.T) {
	t.Parallel()
	set := func(c *Config) {
		c.DataFileSize, c.IndexFileSize, c.ScrubInterval = 64<<10, 32*1024, 50*time.Millisecond
		c.HeartbeatLeak = 20 // no election because other tests keep the machine busy
	}
	members := group(t, 3, set)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lead := leader(t, members)
	var pending []*Pending
	for i := range 2000 {
		pending = append(pending, lead.Propose([][]byte{fmt.Appendf(nil, "entry %d of a log that is going to be damaged", i)}, nil))
	}
	var last Index
	for _, p := range pending {
		a, err := p.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		last = a.First
	}
	k := 0
	if members[k] == lead {
		k = 1
	}
	victim := members[k]
	wait := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-ctx.Done():
				t.Fatalf("in vain waited for %s", what)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	wait("the last entry", func() bool { return victim.Commit() >= last })
	cfg := victim.cfg
	cfg.Server = nil
	if err := victim.Close(); err != nil {
		t.Fatal(err)
	}
	file := func(member, sub string, off int64) string {
		return filepath.Join(cfg.Dir, "dledger-"+member, sub, fmt.Sprintf("%020d", off))
	}
	hit := func(name string, off int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	hit(file(cfg.ID, "data", 0), 5000, []byte("what is not there"))
	hit(file(cfg.ID, "data", 64<<10), 0, make([]byte, 4096))
	hit(file(cfg.ID, "index", 0), 3000, make([]byte, 512))
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	wait("the repair", func() bool { s := l.Stats(); return s.Damages >= 2 && s.DamagedBytes == 0 && s.Mended >= 16 })
	for _, where := range []struct {
		sub string
		off int64
	}{{"data", 0}, {"data", 64 << 10}, {"index", 0}} {
		a, err1 := os.ReadFile(file(cfg.ID, where.sub, where.off))
		b, err2 := os.ReadFile(file(lead.cfg.ID, where.sub, where.off))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s %d differs from the leader's (%v, %v)", where.sub, where.off, err1, err2)
		}
	}
}
