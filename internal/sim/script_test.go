package sim

import (
	"fmt"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// scripted begins the life of a group of three in which nothing goes wrong but what a test does, with the lead of somebody.
func scripted(t *testing.T, compat raft.Compat) (w *world, leader *node, c *client) {
	t.Helper()
	seed := uint64(1)
	s := draw(seed)
	for ; len(s.ids) != 3 || s.compat != compat || s.async || s.strangers || s.preferred != nil; s = draw(seed) {
		seed++
	}
	s.kinds, s.clients, s.bodyMax, s.core.MaxPending, s.core.MaxInflight = nil, 0, 120, 1000, 1000
	s.dataSize, s.indexSize, s.cache = 4<<10, 32*64, 1<<20
	w = &world{c: Case{Seed: seed}, setup: s, chance: stream(seed, forNetwork, 0)}
	w.check = newChecker(w)
	w.begin()
	c = &client{w: w, chance: stream(seed, forClient, 0)}
	if !w.until(recovery, func() bool { return w.leader() != nil }) {
		t.Fatalf("no leader: %v\n%s", w.err, w.describe())
	}
	leader = w.leader()
	for range 5 {
		c.propose(leader)
	}
	w.wait(t, "a beginning", func() bool { return c.busy == 0 && w.agreed() })
	return w, leader, c
}

func (w *world) wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	if !w.until(recovery, done) {
		t.Fatalf("waited in vain for %s: %v\n%s", what, w.err, w.describe())
	}
}

// A follower has stored a part of the entries that were pushed to it, and its answers are lost; some of them get lost with its power, or none. The entries are
// pushed again in other pieces, some of them twice: in the end it has each of them once, where the leader has it.
func TestRepeatedPushesInOtherPiecesStoreEachEntryOnce(t *testing.T) {
	for _, compat := range []raft.Compat{raft.CompatGo, raft.Compat04, raft.Compat03} {
		for _, pieces := range [][2]int{{512, 64 << 10}, {2048, 300}, {700, 1100}} {
			for _, power := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, %d then %d bytes, power %t", compat, pieces[0], pieces[1], power), func(t *testing.T) {
					w, l, c := scripted(t, compat)
					f := w.nodes[(l.no+1)%3]
					there, back := w.link(l.id, f.id), w.link(f.id, l.id)
					before := f.flushed.index
					w.setup.frame = pieces[0]
					back.cut = true
					for range 30 {
						c.propose(l)
					}
					w.wait(t, "a part to be stored", func() bool { return f.flushed.index > before })
					there.cut = true
					w.wait(t, "the rest to be committed without it", func() bool { return c.busy == 0 })
					last := l.flushed.index
					part := f.flushed.index
					if part >= last {
						t.Fatalf("%s has all %d entries", f.id, last)
					}
					if !power {
						f.down(vfs.KeepRandom(w.c.Seed))
						f.start()
					}
					w.setup.frame = pieces[1]
					there.cut, back.cut, there.noise = false, false, noise{repeat: 0.5}
					w.greet(there)
					w.greet(back)
					w.wait(t, "them to meet", func() bool { return there.known && back.known })
					again := 0
					for first := before + 1; first <= part; first++ { // by hand, as what was sent and not answered is sent again
						for _, to := range []raft.Index{first, part, part + 1, last} {
							again += repush(t, there, first, to)
						}
					}
					if again == 0 {
						t.Error("nothing was pushed again")
					}
					w.wait(t, "all to be everywhere", w.agreed)
					w.until(raft.Instant(time.Second), func() bool { return false }) // late copies
					if w.err != nil {
						t.Fatal(w.err)
					}
					if f.flushed.index != l.flushed.index || f.flushed.index < last {
						t.Errorf("%s has entries up to %d, the leader up to %d", f.id, f.flushed.index, l.flushed.index)
					}
					if err := w.check.whole(f); err != nil {
						t.Error(err)
					}
					if err := w.check.alike(l, f); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// repush pushes entries first to last as the leader would, whatever it has heard of them, in as many pieces as a frame makes of them.
func repush(t *testing.T, l *link, first, last raft.Index) (pieces int) {
	t.Helper()
	st := l.from.store
	term := l.from.loop.View().Term
	prev, err := st.Term(first - 1)
	if err != nil {
		t.Fatal(err)
	}
	m := raft.Message{Type: raft.MsgAppend, From: l.from.id, To: l.to.id, Leader: l.from.id, Term: term, Index: first - 1, LogTerm: prev, First: first, Last: last,
		Runs: []raft.Run{{Term: term, First: first}}, Commit: l.from.loop.Commit()}
	for {
		p, end, err := st.Read(m.First, m.Last+1, l.from.w.setup.frame)
		if err != nil {
			t.Fatal(err)
		}
		l.pushPart(m, end, p)
		if pieces++; end == m.Last {
			return pieces
		}
		skip(&m, end)
	}
}
