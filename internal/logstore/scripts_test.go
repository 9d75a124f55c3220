package logstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// piece is one unsynced block of a file, or a change of its size or name.
type piece struct {
	name  string
	block int64
}

// pieces lists what a crash of disk may lose or keep.
func pieces(disk *vfs.Mem) (all []piece) {
	disk.Fork(func(name string, block int64) int {
		all = append(all, piece{name, block})
		return 0
	})
	return all
}

// scriptOps are the operations that scripts are made of; each can follow any other.
var scriptOps = []struct {
	name string
	run  func(*crashTest)
}{
	{"append", func(c *crashTest) { c.append(1, max(c.before.term, 1)); c.flush(); c.sync() }},
	{"roll", func(c *crashTest) { c.append(7, max(c.before.term, 1)); c.flush(); c.commit(c.before.flushed()) }},
	{"truncate", func(c *crashTest) {
		if m := c.before; m.last() > max(m.commit, m.first-1) {
			c.truncate(m.last() - 1)
		} else {
			c.append(2, max(m.term, 1))
			c.truncate(m.last())
		}
	}},
	{"vote", func(c *crashTest) { c.vote(c.before.term+1, "n1") }},
	{"checkpoint", func(c *crashTest) { c.append(1, max(c.before.term, 1)); c.flush(); c.checkpoint() }},
	{"retention", func(c *crashTest) { c.append(1, max(c.before.term, 1)); c.expire() }},
}

// All scripts of up to two of these operations, and as many of three and four as a test may take time for, chosen by a seed: a crash at each call of the last
// operation to the disk, with nothing kept of what was not synced, all of it, each single block, a random part, or with the process killed. The log is what
// it was before the operation or what it is after it, nothing synced is missing, and it goes on.
func TestShortScriptsSurviveCrashes(t *testing.T) {
	one := []int{1: 1, 2: 1, 3: 2, 4: 40} // of so many scripts, by length
	atLeast := int64(20_000)
	if testing.Short() {
		one, atLeast = []int{1: 1, 2: 4, 3: 40, 4: 400}, 1000
	}
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test ./internal/logstore -run %s -crash.seed=%d", t.Name(), seed)
	var scripts [][]int
	rng := rand.New(rand.NewPCG(seed, 4))
	level := [][]int{nil}
	for length := 1; length <= 4; length++ {
		var next [][]int
		for _, s := range level {
			for op := range scriptOps {
				next = append(next, append(s[:len(s):len(s)], op))
			}
		}
		level = next
		for _, s := range level {
			if rng.IntN(one[length]) == 0 {
				scripts = append(scripts, s)
			}
		}
	}
	var images atomic.Int64
	t.Run("scripts", func(t *testing.T) {
		const parts = 4
		for part := range parts {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				for i := part; i < len(scripts); i += parts {
					images.Add(int64(crashScript(t, seed+uint64(i), scripts[i])))
				}
			})
		}
	})
	if n := images.Load(); n < atLeast {
		t.Errorf("only %d images of crashes", n)
	}
	t.Logf("%d images of crashes in %d scripts", images.Load(), len(scripts))
}

// crashScript runs a script on a log of two files, with crashes in its last operation, and gives how many there were.
func crashScript(t *testing.T, seed uint64, script []int) int {
	c := newCrashTest(t, seed)
	c.off = true
	c.vote(1, "n0")
	c.append(8, 1)
	c.flush()
	c.sync()
	c.commit(raft.Index(2))
	var names []string
	for i, op := range script {
		names = append(names, scriptOps[op].name)
		if i == len(script)-1 {
			c.off, c.whole = false, true
		}
		scriptOps[op].run(c)
		if t.Failed() {
			t.Fatalf("script %s", strings.Join(names, ", "))
		}
	}
	c.off = true
	if err := c.store.Close(); err != nil {
		t.Fatal(err)
	}
	return c.crashes
}
