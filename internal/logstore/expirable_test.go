package logstore

import (
	"fmt"
	"slices"
	"testing"

	"dledger/internal/entry"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// Retention makes an entry the log's first by what its header says. Whatever bit of that flips meanwhile, the log begins with a whole entry in its own place, and what
// could not be believed is marked as damage.
func TestRetentionBelievesNoDamagedHeader(t *testing.T) {
	for _, bare := range []bool{false, true} { // Java leaders write no checksums: there the index record has to agree
		m := vfs.NewMem()
		clock := newClock()
		m.SetClock(clock.now)
		cfg := sick(m)
		cfg.Now, cfg.Compat = clock.now, raft.Compat03
		s := mustOpen(t, cfg)
		if bare {
			leader := mustOpen(t, small(vfs.NewMem()))
			fill(t, leader, 29, 1)
			p, _, err := leader.Read(0, 30, 1<<20)
			must(t, err)
			e := slices.Concat(p...)
			for b := e; len(b) > 0; {
				h, err := entry.Parse(b)
				must(t, err)
				clear(b[36:44])
				b = b[h.Size:]
			}
			must(t, s.AppendEncoded(0, raft.Payload{e}))
			must(t, s.Flush())
		} else {
			fill(t, s, 29, 1)
		}
		must(t, s.SetCommit(29))
		var begins []raft.Index // the first entry of each file
		for i := range raft.Index(30) {
			pos, _, err := s.Pos(i)
			must(t, err)
			if pos%256 == 0 {
				begins = append(begins, i)
			}
		}
		must(t, s.Close())
		clock.add(72 * hour)
		last := len(begins) - 1
		for k := 1; k <= last; k++ {
			for at := range int64(entry.HeaderSize) {
				if bare && at >= 32 && at < 44 { // nothing tells that channel and sums are other ones
					continue
				}
				what := fmt.Sprintf("bare %t, byte %d of entry %d", bare, at, begins[k])
				d := m.Fork(vfs.KeepAll)
				cfg.FS = d
				s := mustOpen(t, cfg)
				must(t, d.Flip("base/dledger-n0/data/"+fileName(int64(k)*256), at, 1<<(at%8)))
				_, err := s.Expire()
				must(t, err)
				want := begins[last]
				if k == last {
					want = begins[last-1]
				}
				b, st := s.Bounds(), s.State()
				if b.First != want || b.FirstPos != int64(slices.Index(begins, want))*256 || st.PrevTerm != 1 {
					t.Errorf("%s: %+v, term before it %d; want %d", what, b, st.PrevTerm, want)
				}
				// A higher term without a checksum is taken for the beginning of that term, by whoever reads the entry.
				if dam := s.Damaged(); k == last && !(bare && at >= 16 && at < 24) && (len(dam) != 1 || dam[0].First != begins[k] || dam[0].Last != begins[k]) {
					t.Errorf("%s: damaged are %v", what, dam)
				}
				must(t, s.Close())
			}
			// A header that is not read is damaged as well.
			what := fmt.Sprintf("bare %t, entry %d unreadable", bare, begins[k])
			d := m.Fork(vfs.KeepAll)
			cfg.FS = d
			s := mustOpen(t, cfg)
			deaden(d, "base/dledger-n0/data/"+fileName(int64(k)*256), 0, 256, false)
			_, err := s.Expire()
			must(t, err)
			want := begins[last]
			if k == last {
				want = begins[last-1]
			}
			if b, dam := s.Bounds(), s.Damaged(); b.First != want || k == last && len(dam) != 1 {
				t.Errorf("%s: first is %d, want %d; damaged are %v", what, b.First, want, dam)
			}
			must(t, s.Close())
		}
	}
}
