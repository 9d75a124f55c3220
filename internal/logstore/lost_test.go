package logstore

import (
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// A commit index may come from others, ahead of the node's own sync. What the node has not synced nobody counts on it for, unless the group
// counts entries before they are synced.
func TestUnsyncedTailIsMissedOnlyWhereOthersCountOnIt(t *testing.T) {
	for _, async := range []bool{false, true} {
		m := vfs.NewMem()
		cfg := small(m)
		cfg.Async = async
		s := mustOpen(t, cfg)
		must(t, s.Append(0, 1, entry.MagicNormal, bodies(3, 20), nil))
		must(t, s.Flush())
		must(t, s.SetCommit(2))
		kept := func(name string, _ int64) int { // of the unsynced only the hint of the commit index
			if name == "base/dledger-n0/"+sideName {
				return vfs.BlockSize
			}
			return 0
		}
		cfg.FS = m.Fork(kept)
		want := raft.Index(-1)
		if async {
			want = 2
		}
		if st := mustOpen(t, cfg).State(); st.Last != -1 || st.TailLost != want {
			t.Errorf("async %t: last %d, lost %d; want -1 and %d", async, st.Last, st.TailLost, want)
		}
	}
}
