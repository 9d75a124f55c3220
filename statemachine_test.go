package dledger_test

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
)

// store is a map from key to value; an entry is "key=value".
type store struct {
	mu       sync.Mutex
	values   map[string]string
	applied  int // calls of Apply
	restored int // entries' worth of values that came from a snapshot

	during func() // runs in the middle of Snapshot; may be nil
}

func newStore() *store { return &store{values: map[string]string{}} }

func (s *store) Apply(e dledger.Entry) error {
	key, value, ok := strings.Cut(string(e.Body), "=")
	if !ok {
		return fmt.Errorf("%q is not key=value", e.Body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = value
	s.applied++
	return nil
}

func (s *store) Snapshot(w io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := bufio.NewWriter(w)
	if err := gob.NewEncoder(b).Encode(s.values); err != nil {
		return err
	}
	if s.during != nil {
		s.during()
	}
	return b.Flush()
}

func (s *store) Restore(r io.Reader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = map[string]string{}
	err := gob.NewDecoder(r).Decode(&s.values)
	s.restored = len(s.values)
	return err
}

func (s *store) copy() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values)
}

// machine runs a store on a member until the test or the member ends. The channel gives what Run returned.
func machine(c *dledgertest.Cluster, m *dledgertest.Member, s *store) (*dledger.Machine, <-chan error) {
	c.T.Helper()
	mc, err := dledger.NewMachine(m.Ledger, s, dledger.SnapshotConfig{Dir: "/" + m.ID + "/snapshots", Entries: 50})
	if err != nil {
		c.T.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- mc.Run(c.T.Context()) }()
	return mc, end
}

func set(c *dledgertest.Cluster, lo, hi int) dledger.Entry {
	c.T.Helper()
	var last dledger.Entry
	for i := lo; i < hi; i++ {
		e, err := c.Append(c.T.Context(), fmt.Appendf(nil, "k%d=v%d", i, i))
		if err != nil {
			c.T.Fatal(err)
		}
		last = e
	}
	return last
}

// snapshots lists what is in a member's snapshot directory.
func snapshots(c *dledgertest.Cluster, id string) []string {
	c.T.Helper()
	names, err := c.Disk(id).Mem().ReadDir("/" + id + "/snapshots")
	if err != nil {
		c.T.Fatal(err)
	}
	return names
}

// TestMachinesOfAllMembersAgree, through crashes of each, and each starts again from its snapshot instead of from the first entry.
func TestMachinesOfAllMembersAgree(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseAll}.Run(t, 3, func(c *dledgertest.Cluster) {
		stores := map[string]*store{}
		run := func(id string) *dledger.Machine {
			stores[id] = newStore()
			mc, _ := machine(c, c.Member(id), stores[id])
			return mc
		}
		machines := map[string]*dledger.Machine{}
		for _, id := range c.IDs() {
			machines[id] = run(id)
		}
		for k, id := range c.IDs() {
			set(c, 100*k, 100*k+100)
			c.Kill(id)
			c.Leader()
			c.Start(id)
			machines[id] = run(id)
			if mc, s := machines[id], stores[id]; mc.Applied() < 49 || s.restored == 0 {
				c.T.Errorf("%s began at entry %d with %d values, want a snapshot's", id, mc.Applied(), s.restored)
			}
		}
		set(c, 300, 310)
		last, err := c.Leader().Confirm(c.T.Context())
		if err != nil {
			c.T.Fatal(err)
		}
		for _, id := range c.IDs() {
			if err := machines[id].Wait(c.T.Context(), last); err != nil {
				c.T.Fatal(err)
			}
			if got := stores[id].copy(); len(got) != 310 || got["k309"] != "v309" || got["k0"] != "v0" {
				c.T.Errorf("%s has %d values", id, len(got))
			}
		}
	})
}

// TestMachineWaitsForNoOps: Confirm may give the index of one, and Wait must not wait for ever.
func TestMachineWaitsForNoOps(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		set(c, 0, 10)
		c.Kill(c.Leader().ID)
		l := c.Leader()
		mc, _ := machine(c, l, newStore())
		i, err := l.Confirm(c.T.Context())
		if err != nil {
			c.T.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(c.T.Context(), time.Second)
		defer cancel()
		if err := mc.Wait(ctx, i); err != nil {
			c.T.Error(err)
		}
	})
}

func TestNewestThreeSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 1, func(c *dledgertest.Cluster) {
		mc, _ := machine(c, c.Member("n0"), newStore())
		e := set(c, 0, 1000)
		if err := mc.Wait(c.T.Context(), e.Index); err != nil {
			c.T.Fatal(err)
		}
		time.Sleep(time.Second)
		want := []string{"snapshot-00000000000000000899", "snapshot-00000000000000000949", "snapshot-00000000000000000999"}
		if got := snapshots(c, "n0"); fmt.Sprint(got) != fmt.Sprint(want) {
			c.T.Errorf("got %v, want %v", got, want)
		}
	})
}

// TestDamagedSnapshotIsPassedOver: an older one is taken, and the log supplies the rest.
func TestDamagedSnapshotIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{"a bit", "the tail", "everything"} {
		t.Run(damage, func(t *testing.T) {
			dledgertest.Setup{Loss: dledgertest.LoseNothing}.Run(t, 1, func(c *dledgertest.Cluster) {
				mc, _ := machine(c, c.Member("n0"), newStore())
				e := set(c, 0, 120)
				if err := mc.Wait(c.T.Context(), e.Index); err != nil {
					c.T.Fatal(err)
				}
				time.Sleep(time.Second)
				c.Kill("n0")
				names, mem := snapshots(c, "n0"), c.Disk("n0").Mem()
				newest := "/n0/snapshots/" + names[len(names)-1]
				if err := harm(mem, newest, damage); err != nil {
					c.T.Fatal(err)
				}
				c.Start("n0")
				s := newStore()
				mc, _ = machine(c, c.Member("n0"), s)
				if got := mc.Applied(); got != 49 {
					c.T.Errorf("began at entry %d, want 49", got)
				}
				if err := mc.Wait(c.T.Context(), e.Index); err != nil {
					c.T.Fatal(err)
				}
				if got := s.copy(); len(got) != 120 {
					c.T.Errorf("%d values, want 120", len(got))
				}
			})
		})
	}
}

// TestCrashDuringSnapshotLeavesTheOlderOnes, whatever of the unfinished one reached the disk.
func TestCrashDuringSnapshotLeavesTheOlderOnes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		dledgertest.Setup{Seed: seed + 1}.Run(t, 1, func(c *dledgertest.Cluster) {
			s := newStore()
			reached, resume := make(chan struct{}), make(chan struct{})
			count := 0
			s.during = func() {
				if count++; count == 2 {
					close(reached)
					<-resume
				}
			}
			machine(c, c.Member("n0"), s)
			set(c, 0, 120)
			<-reached
			c.Kill("n0")
			close(resume)
			c.Start("n0")
			s = newStore()
			mc, _ := machine(c, c.Member("n0"), s)
			if got := mc.Applied(); got != 49 {
				c.T.Errorf("began at entry %d, want 49", got)
			}
			if err := mc.Wait(c.T.Context(), 119); err != nil {
				c.T.Fatal(err)
			}
			if got := s.copy(); len(got) != 120 {
				c.T.Errorf("%d values, want 120", len(got))
			}
			for _, n := range snapshots(c, "n0") {
				if strings.HasSuffix(n, ".tmp") {
					c.T.Errorf("%s is left over", n)
				}
			}
		})
	}
}

// TestMachineBehindRetentionSaysWhatIsMissing instead of applying what comes after a gap.
func TestMachineBehindRetentionSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Config: expiring(dledger.CompatGo)}.Run(t, 1, func(c *dledgertest.Cluster) {
		set(c, 0, 2000)
		expire(c, 500, c.Member("n0"))
		s := newStore()
		_, end := machine(c, c.Member("n0"), s)
		err := <-end
		if !errors.Is(err, dledger.ErrCompacted) || !strings.Contains(err.Error(), "needs entry 0") || !strings.Contains(err.Error(), "/n0/snapshots") {
			c.T.Errorf("got %v, want ErrCompacted that names entry and directory", err)
		}
		if s.applied > 0 {
			c.T.Errorf("%d entries were applied behind the gap", s.applied)
		}
	})
}

func TestSnapshotOfAnotherLogIsRefused(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{Loss: dledgertest.LoseNothing}.Run(t, 3, func(c *dledgertest.Cluster) {
		mc, _ := machine(c, c.Member("n0"), newStore())
		e := set(c, 0, 60)
		if err := mc.Wait(c.T.Context(), e.Index); err != nil {
			c.T.Fatal(err)
		}
		time.Sleep(time.Second)
		mem := c.Disk("n0").Mem()
		name := "/n0/snapshots/" + snapshots(c, "n0")[0]
		if err := forge(mem, name, 7); err != nil {
			c.T.Fatal(err)
		}
		if _, err := dledger.NewMachine(c.Member("n0").Ledger, newStore(), dledger.SnapshotConfig{Dir: "/n0/snapshots"}); err == nil || !strings.Contains(err.Error(), "another log") {
			c.T.Errorf("got %v, want a refusal", err)
		}
	})
}

func TestFullDiskPutsTheSnapshotOff(t *testing.T) {
	t.Parallel()
	dledgertest.Setup{}.Run(t, 1, func(c *dledgertest.Cluster) {
		mc, _ := machine(c, c.Member("n0"), newStore())
		set(c, 0, 40)
		c.Disk("n0").SetFree(100)
		e := set(c, 40, 60)
		if err := mc.Wait(c.T.Context(), e.Index); err != nil {
			c.T.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := snapshots(c, "n0"); len(got) > 0 {
			c.T.Errorf("the full disk holds %v", got)
		}
		c.Disk("n0").SetFree(-1)
		time.Sleep(2 * time.Second) // the log looks at its disk once a second
		e = set(c, 60, 110)
		if err := mc.Wait(c.T.Context(), e.Index); err != nil {
			c.T.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := snapshots(c, "n0"); len(got) != 1 {
			c.T.Errorf("after space came there are %v, want one snapshot", got)
		}
	})
}

func TestFailingApplyEndsTheMachine(t *testing.T) {
	t.Parallel()
	dledgertest.Run(t, 1, func(c *dledgertest.Cluster) {
		s := newStore()
		mc, end := machine(c, c.Member("n0"), s)
		set(c, 0, 5)
		if _, err := c.Append(c.T.Context(), []byte("nonsense")); err != nil {
			c.T.Fatal(err)
		}
		set(c, 5, 6)
		if err := <-end; err == nil || !strings.Contains(err.Error(), "apply entry 5") {
			c.T.Errorf("got %v, want that entry 5 could not be applied", err)
		}
		if mc.Applied() != 4 || s.applied != 5 {
			c.T.Errorf("applied up to %d, want 4", mc.Applied())
		}
	})
}
