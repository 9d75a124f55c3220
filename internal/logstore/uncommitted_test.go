package logstore

import (
	"fmt"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// uncommitted is a store of entries 0 to 20, all synced and none in memory, of which those up to 3 are committed.
func uncommitted(t *testing.T) (*vfs.Mem, *Store) {
	t.Helper()
	m := vfs.NewMem()
	cfg := small(m)
	cfg.CacheBytes, cfg.Repairs = 1, true
	s := mustOpen(t, cfg)
	for i := raft.Index(0); i <= 20; i++ {
		fill(t, s, i, 1)
	}
	_, err := s.Sync()
	must(t, err)
	must(t, s.SetCommit(3))
	return m, s
}

// A wrong index record of an entry that is synced and not committed yet is put right when the entry is read: a leader could push nothing from there on
// otherwise, and would go on leading.
func TestWrongRecordOfAnUncommittedEntryIsMended(t *testing.T) {
	m, s := uncommitted(t)
	// Index files have four records of 32 bytes; the fields of one are magic, pos, size, index, term.
	must(t, m.Flip("base/dledger-n0/index/00000000000000000256", 2*32+17, 0x40))
	must(t, m.Flip("base/dledger-n0/index/00000000000000000256", 3*32+5, 0x40))
	for _, i := range []raft.Index{10, 11} {
		_, last, err := s.Read(i, i+1, 1)
		if err != nil || last != i {
			t.Errorf("entry %d: read to %d, %v", i, last, err)
		}
	}
	if st := s.Stats(); st.Mended == 0 || s.Hurt() {
		t.Errorf("%d records mended, damage left: %t", st.Mended, s.Hurt())
	}
	check(t, s, 0, 20, func(raft.Index) raft.Term { return 1 })
	must(t, s.Close())
}

// A clock that is set back does not keep an answer of Full for as long as that.
func TestFullIsAskedAgainWhenTheClockGoesBack(t *testing.T) {
	m := vfs.NewMem()
	now := time.Date(2030, 1, 1, 4, 0, 0, 0, time.UTC)
	cfg := small(m)
	cfg.Now = func() time.Time { return now }
	s := mustOpen(t, cfg)
	m.SetSpace(&vfs.Space{Total: 1000, Free: 10})
	if !s.Full() {
		t.Error("a disk used to 99 % is not full")
	}
	m.SetSpace(nil)
	now = now.Add(-3 * time.Hour)
	if s.Full() {
		t.Error("an empty disk is full since the clock was set back")
	}
	must(t, s.Close())
}

// Damage of entries that are cut goes with them.
func TestDamageThatIsCutIsForgotten(t *testing.T) {
	m, s := uncommitted(t)
	pos, size, err := s.Pos(10)
	must(t, err)
	must(t, m.Flip(fmt.Sprintf("base/dledger-n0/data/%020d", pos/256*256), pos%256+int64(size)-1, 1))
	if _, _, err := s.Read(10, 11, 1); err == nil || !s.Hurt() {
		t.Errorf("damage is not noticed: %v", err)
	}
	must(t, s.Truncate(9))
	if s.Hurt() {
		t.Errorf("damage is left: %v", s.Damaged())
	}
	for i := raft.Index(10); i <= 20; i++ {
		fill(t, s, i, 2)
	}
	check(t, s, 0, 20, func(i raft.Index) raft.Term { return 1 + raft.Term(i/10) - raft.Term(i/20) })
	must(t, s.Close())
}
