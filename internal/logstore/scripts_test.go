package logstore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dledger/internal/figure"
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
	{"roll", func(c *crashTest) {
		c.append(c.shape.roll, max(c.before.term, 1))
		c.flush()
		c.commit(c.before.flushed())
	}},
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
	{"retention", func(c *crashTest) {
		c.quietly(func() {
			c.append(c.shape.roll, max(c.before.term, 1))
			c.flush()
			c.sync()
			c.commit(c.before.flushed())
		})
		c.append(1, max(c.before.term, 1))
		c.expire()
	}},
}

// quietly does what a script needs without crashes in it.
func (c *crashTest) quietly(f func()) {
	was := c.off
	c.off = true
	f()
	c.off = was
}

// All scripts of up to two of these operations, and as many of three and four as a test may take time for, chosen by a seed, each in a compat and a durability of chance: a crash of
// some kind at each call of the last but one operation to the disk, and at each of the last one with nothing kept of what was not synced, all of it, each single block, all but one, a random part, or with the process killed. The log is
// what it was before the operation or what it is after it, nothing synced is missing, and it goes on. With files smaller than a block and with files of several.
//
// CRASH_SCRIPTS=all takes all scripts of four instead, with all these crashes at each call of each of their operations, so that shorter ones are among them; CRASH_SCRIPTS=3/25 the fourth
// of 25 parts of that. It takes the time it takes.
func TestShortScriptsSurviveCrashes(t *testing.T) {
	began, used := time.Now(), processorTime(t)
	one := []int{1: 1, 2: 1, 3: 6, 4: 160} // of so many scripts, by length
	atLeast := int64(20_000)
	if testing.Short() {
		one, atLeast = []int{1: 1, 2: 12, 3: 240, 4: 2400}, 250
	}
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	part, of, full := scriptsShare(t)
	again := ""
	if full {
		again = fmt.Sprintf("CRASH_SCRIPTS=%s ", os.Getenv("CRASH_SCRIPTS"))
	}
	t.Logf("again: %sgo test ./internal/logstore -run %s -crash.seed=%d", again, t.Name(), seed)
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
		for i, s := range level {
			if full && length == 4 && i%of == part || !full && rng.IntN(one[length]) == 0 {
				scripts = append(scripts, s)
			}
		}
	}
	if full {
		t.Logf("%d scripts of %d", len(scripts), len(level))
		atLeast = int64(500 * len(scripts))
	}
	var expired atomic.Int64
	images, dataHoles, indexHoles := make([]atomic.Int64, len(shapes)), make([]atomic.Int64, len(shapes)), make([]atomic.Int64, len(shapes))
	t.Run("scripts", func(t *testing.T) {
		const parts = 4
		for part := range parts {
			t.Run(fmt.Sprint(part), func(t *testing.T) {
				t.Parallel()
				for i := part; i < len(scripts); i += parts {
					for k, shape := range shapes {
						c := crashScript(t, shape, seed+uint64(i), scripts[i], full)
						images[k].Add(int64(c.crashes))
						dataHoles[k].Add(int64(c.holes["data"]))
						indexHoles[k].Add(int64(c.holes["index"]))
						expired.Add(int64(c.expired))
					}
				}
			})
		}
	})
	all := int64(0)
	for k, shape := range shapes {
		n, data, index := images[k].Load(), dataHoles[k].Load(), indexHoles[k].Load()
		t.Logf("%s files: %d images in %d scripts, in %d a block of a data file is lost between two that are kept, in %d one of an index file", shape.name, n, len(scripts), data, index)
		if shape.name == "wide" && (data == 0 || index == 0) {
			t.Error("no block was lost between two that were kept")
		}
		if n < atLeast/4 {
			t.Errorf("only %d images of crashes with %s files", n, shape.name)
		}
		all += n
	}
	if expired.Load() == 0 {
		t.Error("retention took nothing away")
	}
	if all < atLeast {
		t.Errorf("only %d images of crashes", all)
	}
	used = processorTime(t) - used
	figure.Log(t, "%d images of crashes in %v, %v of processor time", all, time.Since(began).Round(time.Millisecond), used.Round(time.Millisecond))
	if used > scriptsMost && !testing.Short() && !raced && !full {
		t.Errorf("%v of processor time, want at most %v", used, scriptsMost)
	}
}

// scriptsShare gives the part of all scripts that CRASH_SCRIPTS asks for.
func scriptsShare(t *testing.T) (part, of int, full bool) {
	t.Helper()
	switch v := os.Getenv("CRASH_SCRIPTS"); v {
	case "":
		return 0, 1, false
	case "all":
		return 0, 1, true
	default:
		if n, err := fmt.Sscanf(v, "%d/%d", &part, &of); n != 2 || err != nil || part < 0 || part >= of || fmt.Sprintf("%d/%d", part, of) != v {
			t.Fatalf("CRASH_SCRIPTS=%s: say it as all, or as 0/25 to 24/25", v)
		}
		return part, of, true
	}
}

// scriptsMost is how long the scripts may take, whatever else the machine does: what is slower is run less often.
const scriptsMost = 90 * time.Second

// processorTime gives what this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// crashScript runs a script on a short log, with crashes in its last operations, or, if full is set, with all of them in each.
func crashScript(t *testing.T, shape shape, seed uint64, script []int, full bool) *crashTest {
	c := newCrashTest(t, shape, seed)
	c.off = true
	c.vote(1, "n0")
	c.append(shape.log, 1)
	c.flush()
	c.sync()
	c.commit(raft.Index(2))
	var names []string
	for i, op := range script {
		names = append(names, scriptOps[op].name)
		switch left := len(script) - i; {
		case left == 1 || full:
			c.off, c.quick, c.whole = false, false, true
		case left == 2:
			c.off, c.quick = false, true
		}
		scriptOps[op].run(c)
		if t.Failed() {
			t.Fatalf("%s files, compat %v, async %t, script %s", shape.name, c.cfg.Compat, c.cfg.Async, strings.Join(names, ", "))
		}
	}
	c.off = true
	if err := c.store.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}
