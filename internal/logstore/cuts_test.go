package logstore

import (
	"fmt"
	"testing"
	"time"

	"dledger/internal/raft"
)

// A log of many index and data files is cut at each of its entries, so at each place of an index file and at both edges of each file, and grows again in the next
// term: not as far as before, and further. The power goes at each call to the disk, or the process is killed, or it is stopped and started: never is an entry there
// that was cut, and none missing that was synced.
func TestCutsAtEveryIndexAndFileEdge(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test ./internal/logstore -run %s -crash.seed=%d", t.Name(), seed)
	images := 0
	for cut := raft.Index(-1); cut < 29; cut++ {
		for _, more := range []int{1, 31} {
			if testing.Short() && (int(cut)+more)%3 > 0 {
				continue
			}
			c := newCrashTest(t, shapes[0], seed+uint64(cut+1))
			c.quick, c.off = true, true
			c.vote(1, "n0")
			c.append(30, 1)
			c.flush()
			c.sync()
			c.off = false
			c.truncate(cut)
			c.vote(2, "n1")
			c.append(more, 2)
			c.flush()
			c.sync()
			c.crash(fmt.Sprintf("cut behind %d, %d entries more", cut, more))
			c.do("close", func(m *model) { m.durable = m.flushed() }, c.store.Close)
			c.store = mustOpen(t, c.cfg)
			if err := c.after.compatible(c.store, c.after.last(), body); err != nil {
				t.Fatalf("cut behind %d, %d entries more, stopped and started: %v", cut, more, err)
			}
			must(t, c.store.Close())
			images += c.crashes
		}
	}
	t.Logf("%d images of crashes", images)
}
