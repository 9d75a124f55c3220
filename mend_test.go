package dledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/vfs"
)

// scrubbing makes members look for damage every second.
func scrubbing(id string, c *dledger.Config) {
	small(id, c)
	c.ScrubInterval = time.Second
}

func never(id string, c *dledger.Config) {
	small(id, c)
	c.ScrubRate = -1
}

// flip damages entries in the middle of a member's data files, one in each of count files, and gives how many that were.
func flip(c *dledgertest.Cluster, id string, count int) int {
	c.T.Helper()
	mem := c.Disk(id).Mem()
	dir := "/" + id + "/dledger-" + id + "/data"
	names, err := mem.ReadDir(dir)
	if err != nil {
		c.T.Fatal(err)
	}
	n := 0
	for i := 0; i+1 < len(names) && n < count; i++ {
		if err := mem.Flip(filepath.Join(dir, names[i]), int64(1000+137*i), 0x10); err != nil {
			c.T.Fatal(err)
		}
		n++
	}
	if n == 0 {
		c.T.Fatalf("%s has %d data files", id, len(names))
	}
	return n
}

// sizeOfData is the size of a member's data files.
func sizeOfData(c *dledgertest.Cluster, id string) int64 {
	info, err := c.Disk(id).Mem().Stat("/" + id + "/dledger-" + id + "/data/00000000000000000000")
	if err != nil {
		c.T.Fatal(err)
	}
	return info.Size
}

// flipEnd damages the last byte of a member's log.
func flipEnd(c *dledgertest.Cluster, id string) (name string, off int64) {
	c.T.Helper()
	mem := c.Disk(id).Mem()
	dir := "/" + id + "/dledger-" + id + "/data"
	names, err := mem.ReadDir(dir)
	if err != nil {
		c.T.Fatal(err)
	}
	for _, n := range names {
		b, err := vfs.ReadFile(mem, filepath.Join(dir, n))
		if err != nil {
			c.T.Fatal(err)
		}
		if end := len(bytes.TrimRight(b, "\x00")); end > 0 {
			name, off = filepath.Join(dir, n), int64(end-1)
		}
	}
	if err := mem.Flip(name, off, 0x20); err != nil {
		c.T.Fatal(err)
	}
	return name, off
}

// sameFiles compares the directories of all members, up to where the shorter one ends.
func sameFiles(c *dledgertest.Cluster) {
	c.T.Helper()
	ids := c.IDs()
	for _, sub := range []string{"data", "index"} {
		for _, id := range ids[1:] {
			a, b := c.Disk(ids[0]).Mem(), c.Disk(id).Mem()
			names, err := a.ReadDir("/" + ids[0] + "/dledger-" + ids[0] + "/" + sub)
			if err != nil {
				c.T.Fatal(err)
			}
			for _, n := range names {
				x, err1 := vfs.ReadFile(a, "/"+ids[0]+"/dledger-"+ids[0]+"/"+sub+"/"+n)
				y, err2 := vfs.ReadFile(b, "/"+id+"/dledger-"+id+"/"+sub+"/"+n)
				if errors.Is(err2, fs.ErrNotExist) && len(bytes.Trim(x, "\x00")) == 0 {
					continue // made ahead by one and not by the other: nothing is in it
				}
				if err := errors.Join(err1, err2); err != nil || !bytes.Equal(x, y) {
					c.T.Errorf("%s/%s of %s and %s differ (%v)", sub, n, ids[0], id, err)
				}
			}
		}
	}
}

// TestScrubFindsDamageAndOthersRepairIt: on a follower and on the leader, while the group is at work, in every compat mode.
func TestScrubFindsDamageAndOthersRepairIt(t *testing.T) {
	t.Parallel()
	for _, compat := range []dledger.Compat{dledger.CompatGo, dledger.Compat04, dledger.Compat03} {
		setup := dledgertest.Setup{Config: func(id string, c *dledger.Config) { scrubbing(id, c); c.Compat = compat }}
		setup.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 1000)
			victims := []string{c.Leader().ID, c.Followers()[0].ID}
			hits := map[string]int{}
			for _, id := range victims {
				hits[id] = flip(c, id, 3)
			}
			appendSome(c, 1000, 1100)
			for _, id := range victims {
				c.Wait("the repair of "+id, func() bool {
					s := c.Member(id).Stats()
					return s.Damages == int64(hits[id]) && s.Repaired >= int64(hits[id]) && s.DamagedBytes == 0 && len(mustStatus(c, id).Damaged) == 0
				})
			}
			c.Agree()
			time.Sleep(10 * time.Second)
			for _, id := range victims {
				if s := c.Member(id).Stats(); s.Damages != int64(hits[id]) || s.ScrubPasses < 5 || mustStatus(c, id).Scrub.Last.IsZero() {
					t.Errorf("%s: %+v", id, s)
				}
			}
			sameFiles(c)
		})
	}
}

// TestDamageFoundByAReaderIsRepaired: nobody gets wrong bytes meanwhile; an iterator waits for the repair.
func TestDamageFoundByAReaderIsRepaired(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: never}.Run(t, 3, func(c *dledgertest.Cluster) {
		last := appendSome(c, 0, 1000)
		c.Stop(c.IDs()...) // so that nothing is in memory
		for _, id := range c.IDs() {
			c.Start(id)
		}
		c.Leader()
		c.WaitCommitted(last.Index)
		id := c.Followers()[0].ID
		hits := flip(c, id, 3)
		next := dledger.Index(0)
		for e, err := range c.Member(id).Entries(c.T.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if want, err := c.Leader().Get(e.Index); err != nil || !bytes.Equal(e.Body, want.Body) {
				t.Fatalf("entry %d reads as %q, the leader has %q, %v", e.Index, e.Body, want.Body, err)
			}
			if next = e.Index; next == last.Index {
				break
			}
		}
		if s := c.Member(id).Stats(); s.Repaired < int64(hits) || s.DamagedBytes != 0 {
			t.Errorf("%+v", s)
		}
		c.Agree()
		sameFiles(c)
	})
}

// TestDamagedMemberStartsAndIsRepaired: damage behind the last checkpoint shows at the start.
func TestDamagedMemberStartsAndIsRepaired(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: never, Loss: dledgertest.LoseNothing}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 500)
		for _, id := range c.IDs() {
			c.Kill(id)
			flipEnd(c, id)
			c.Start(id)
			c.Wait("the repair of "+id, func() bool { s := c.Member(id).Stats(); return s.Damages > 0 && s.DamagedBytes == 0 })
			c.Wait("its vote", func() bool { return !mustStatus(c, id).Abstaining })
			appendSome(c, 500, 510)
		}
		c.Agree()
		sameFiles(c)
	})
}

// TestDamagedLeaderHandsOver: what it cannot repair it does not lead with, while another member can lead.
func TestDamagedLeaderHandsOver(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: scrubbing}.Run(t, 3, func(c *dledgertest.Cluster) {
		appendSome(c, 0, 1000)
		for _, id := range c.IDs()[:2] { // the same entries, on two of three
			flip(c, id, 3)
		}
		sound := c.IDs()[2]
		c.Wait("all to be repaired", func() bool {
			for _, id := range c.IDs()[:2] {
				if s := c.Member(id).Stats(); s.Damages == 0 || s.DamagedBytes > 0 {
					return false
				}
			}
			return true
		})
		c.Agree()
		sameFiles(c)
		// With the third away nobody can repair, and the two go on all the same.
		c.Stop(c.IDs()...)
		for _, id := range c.IDs()[:2] { // they hold nothing in memory
			flip(c, id, 3)
			c.Start(id)
		}
		c.Wait("the damage to be found", func() bool {
			return c.Member(c.IDs()[0]).Stats().DamagedBytes > 0 && c.Member(c.IDs()[1]).Stats().DamagedBytes > 0
		})
		appendSome(c, 1000, 1010)
		for _, id := range c.IDs()[:2] {
			d := mustStatus(c, id).Damaged[0]
			if _, err := c.Member(id).Get(d.First); !errors.Is(err, dledger.ErrDamaged) {
				t.Errorf("%s gives damaged entry %d: %v", id, d.First, err)
			}
		}
		// The disks of both do not give back what is written over the damage, so no repair ends it, and leadership has to go to the third.
		for _, id := range c.IDs()[:2] {
			size := sizeOfData(c, id)
			c.Disk(id).Mem().SetHook(func(call vfs.Call) error {
				for i := range int64(3) { // see flip
					if at := 1000 + 137*i; call.Op == "read" && strings.HasSuffix(call.Name, fmt.Sprintf("/data/%020d", i*size)) && call.Off <= at && at < call.Off+call.N {
						return syscall.EIO
					}
				}
				return nil
			})
		}
		if c.Leader().ID == sound {
			t.Fatal("it leads already")
		}
		began := time.Now()
		c.Start(sound)
		c.Wait("the one without damage to lead", func() bool { return c.Member(sound).IsLeader() })
		if took, most := time.Since(began), 5*electionTime(scrubbing); took > most {
			t.Errorf("it led after %v, want %v", took, most)
		}
		for _, id := range c.IDs()[:2] {
			if c.Member(id).Stats().DamagedBytes == 0 {
				t.Errorf("%s is repaired; the test does not do what it is for", id)
			}
			c.Disk(id).Mem().SetHook(nil)
		}
		c.Wait("all to be repaired", func() bool {
			return c.Member(c.IDs()[0]).Stats().DamagedBytes+c.Member(c.IDs()[1]).Stats().DamagedBytes == 0
		})
		c.Agree()
		sameFiles(c)
	})
}

// TestDamageStopsAMemberThatIsAlone, and one that is told to: there the error names file and byte.
func TestDamageStopsAMemberThatIsAlone(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3} {
		setup := dledgertest.Setup{Loss: dledgertest.LoseNothing, Config: func(id string, c *dledger.Config) { never(id, c); c.NoRepair = members > 1 }}
		setup.Run(t, members, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 500)
			c.Kill("n0")
			name, off := flipEnd(c, "n0")
			err := c.TryStart("n0")
			if want := fmt.Sprintf("%s at byte ", name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("start: %v, want %q in it, and a byte before %d", err, want, off)
			}
			c.Wipe("n0")
		})
	}
}

// A leader that cannot read what it has to give to its followers, and nobody else has, commits nothing any more. It gives way, and its next start cuts what is damaged.
func TestLeaderThatCannotReadItsTailIsReplaced(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		setup := dledgertest.Setup{Loss: dledgertest.LoseNothing, Config: func(id string, c *dledger.Config) { never(id, c); config(id, c) }}
		setup.Run(t, 3, func(c *dledgertest.Cluster) {
			e := appendSome(c, 0, 50)
			c.Agree()
			old := c.Leader()
			var others []string
			for _, id := range c.IDs() {
				if id != old.ID {
					others = append(others, id)
				}
			}
			c.Kill(others...)
			last := mustStatus(c, old.ID).Last
			old.Propose([][]byte{make([]byte, 3000), make([]byte, 3000), make([]byte, 3000)}, nil)
			c.Wait("what nobody else has to be on its disk", func() bool { return mustStatus(c, old.ID).Durable >= last+3 })
			c.Kill(old.ID)
			c.Start(old.ID) // so it has nothing in memory
			if err := c.Disk(old.ID).Mem().Flip("/"+old.ID+"/dledger-"+old.ID+"/data/00000000000000000000", e.Pos+1000, 0x20); err != nil {
				c.T.Fatal(err)
			}
			c.Start(others[0])
			c.Wait("it to find out", func() bool { return mustStatus(c, old.ID).Err != nil })
			c.Start(others[1])
			c.Wait("another leader", func() bool { return c.Leader().ID != old.ID })
			appendSome(c, 50, 60)
			c.Kill(old.ID)
			c.Start(old.ID)
			c.Agree()
		})
	})
}

// A sector of the leader's disk that cannot be read, in entries that a follower needs: the leader gets them from another member, or, where the disk does not keep
// them either, hands leadership over; the follower becomes whole.
func TestSectorThatTheLeaderCannotReadIsNoBarrier(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		dledgertest.Setup{Config: never}.Run(t, 3, func(c *dledgertest.Cluster) {
			last := appendSome(c, 0, 1000)
			c.WaitCommitted(last.Index)
			c.Stop(c.IDs()...) // nothing is in memory
			for _, id := range c.IDs() {
				c.Start(id)
			}
			l, f := c.Leader(), c.Followers()[0].ID
			mem := c.Disk(l.ID).Mem()
			elsewhere := false
			mem.SetHook(func(call vfs.Call) error {
				switch hit := strings.HasSuffix(call.Name, "/data/00000000000000000000") && call.Off < 1200 && call.Off+call.N > 1000; {
				case hit && call.Op == "write":
					elsewhere = !dead
				case hit && call.Op == "read" && !elsewhere:
					return syscall.EIO
				}
				return nil
			})
			c.Wipe(f)
			c.Start(f)
			c.Wait("the wiped follower is whole", func() bool {
				s := mustStatus(c, f)
				return s.Last >= last.Index && !s.Abstaining
			})
			if now := c.Leader().ID; dead && now == l.ID {
				t.Errorf("%s leads on a disk that does not keep what is written", now)
			}
			mem.SetHook(nil)
		})
	}
}

// A member whose sidecar the disk does not give comes up, does not vote before it has caught up with a leader, and then is one like the others, on another sector.
func TestMemberWhoseSidecarCannotBeReadCatchesUp(t *testing.T) {
	everyCompat(t, func(t *testing.T, config func(string, *dledger.Config)) {
		dledgertest.Setup{Loss: dledgertest.LoseNothing, Config: func(id string, c *dledger.Config) { never(id, c); config(id, c) }}.Run(t, 3, func(c *dledgertest.Cluster) {
			appendSome(c, 0, 50)
			c.Agree()
			ill := c.Followers()[0].ID
			c.Kill(ill)
			appendSome(c, 50, 60)
			other := c.Followers()[0].ID
			leader := c.Leader().ID
			elsewhere := false
			c.Disk(ill).Mem().SetHook(func(call vfs.Call) error {
				switch {
				case call.Op == "rename" && strings.HasSuffix(call.NewName, "/commit"):
					elsewhere = true
				case strings.HasSuffix(call.Name, "/commit") && !elsewhere && (call.Op == "read" || call.Op == "write"):
					return syscall.EIO
				}
				return nil
			})
			c.Partition([]string{ill}, []string{leader, other})
			c.Start(ill)
			if !mustStatus(c, ill).Abstaining || !elsewhere {
				t.Errorf("%s abstains: %t, its sidecar is another one: %t", ill, mustStatus(c, ill).Abstaining, elsewhere)
			}
			c.Heal()
			c.Wait("it to catch up", func() bool { return !mustStatus(c, ill).Abstaining })
			c.Agree()
			c.Kill(other)
			c.Kill(leader)
			c.Start(other)
			appendSome(c, 60, 70) // which takes its vote
			c.Start(leader)
			c.Agree()
			c.Kill(ill)
			c.Start(ill)
			if mustStatus(c, ill).Abstaining {
				t.Errorf("%s abstains again", ill)
			}
			c.Agree()
		})
	})
}

// TestScrubKeepsToItsRate: a pass over 8 MiB at 1 MiB a second takes eight seconds, reads no more in any of them but the piece it began with, and status tells how far it is.
func TestScrubKeepsToItsRate(t *testing.T) {
	t.Parallel()
	const rate = 1 << 20
	dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.ScrubRate, c.ScrubInterval = rate, 5*time.Minute }}.Run(t, 1, func(c *dledgertest.Cluster) {
		l := c.Leader()
		for range 8 {
			batch := make([][]byte, 64)
			for k := range batch {
				batch[k] = make([]byte, 16<<10-48)
			}
			if _, err := l.Propose(batch, nil).Wait(c.T.Context()); err != nil {
				c.T.Fatal(err)
			}
		}
		for pass := range 2 { // the first a minute after the start, the next an interval later
			before := l.Stats().ScrubbedBytes
			var begun time.Time
			for deadline := time.Now().Add(time.Hour); begun.IsZero(); time.Sleep(50 * time.Millisecond) {
				if mustStatus(c, l.ID).Scrub.Running {
					begun = time.Now()
				} else if time.Now().After(deadline) {
					c.T.Fatalf("pass %d does not begin", pass)
				}
			}
			midway := 0
			for mustStatus(c, l.ID).Scrub.Running {
				s, took := mustStatus(c, l.ID).Scrub, time.Since(begun)
				most := int64(took.Seconds()*rate) + 9*rate/8
				if s.Done > most || s.Done < most-5*rate/2 || s.Done != l.Stats().ScrubbedBytes-before {
					c.T.Fatalf("pass %d after %v: %d bytes, want at most %d", pass, took, s.Done, most)
				}
				if s.Total < 8<<20 || s.Total > 8<<20+64<<10 {
					c.T.Fatalf("pass %d: of %d bytes, want 8 MiB", pass, s.Total)
				}
				if s.Done > s.Total/4 && s.Done < 3*s.Total/4 {
					midway++
				}
				time.Sleep(100 * time.Millisecond)
			}
			if took := time.Since(begun); took < 6*time.Second || took > 9*time.Second || midway < 10 {
				c.T.Errorf("pass %d took %v and was seen midway %d times", pass, took, midway)
			}
			if last := mustStatus(c, l.ID).Scrub.Last; time.Since(last) > time.Second {
				c.T.Errorf("pass %d ended at %v, it is %v", pass, last, time.Now())
			}
		}
	})
}
