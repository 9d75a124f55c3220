package remoting

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// never is a moment that does not come.
const never = math.MaxInt64

// scanMin is the least time between two scans: an answer is given up at most this much late.
const scanMin = 5 * time.Millisecond

// expirer is something with deadlines: expire acts on those that have passed and gives the next one.
type expirer interface {
	expire(now int64) (next int64)
}

// keeper watches the deadlines of all connections of a server or client with one goroutine and one timer, so that a call costs no
// timer of its own. It sleeps until the earliest known deadline; calls that end in time are simply not found by the scan.
type keeper struct {
	base time.Time
	next atomic.Int64 // the goroutine wakes up no later than this
	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	members map[expirer]struct{}
}

func newKeeper() *keeper {
	k := &keeper{base: time.Now(), wake: make(chan struct{}, 1), stop: make(chan struct{}), members: make(map[expirer]struct{})}
	k.next.Store(never)
	k.done.Go(k.run)
	return k
}

// now is the present moment in nanoseconds since the keeper was made, from 1 on: 0 is free to mean "not set".
func (k *keeper) now() int64 { return int64(time.Since(k.base)) + 1 }

func (k *keeper) add(e expirer) {
	k.mu.Lock()
	k.members[e] = struct{}{}
	k.mu.Unlock()
	k.note(e.expire(k.now())) // no scan of all for each that comes
}

func (k *keeper) remove(e expirer) {
	k.mu.Lock()
	delete(k.members, e)
	k.mu.Unlock()
}

// note makes sure that a scan happens at the moment due.
func (k *keeper) note(due int64) {
	if k.lower(due) {
		select {
		case k.wake <- struct{}{}:
		default: // it is already awake and will read next
		}
	}
}

func (k *keeper) lower(due int64) bool {
	for {
		next := k.next.Load()
		if due >= next {
			return false
		}
		if k.next.CompareAndSwap(next, due) {
			return true
		}
	}
}

// sleep waits; false means that the keeper was closed meanwhile.
func (k *keeper) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
		return true
	case <-k.stop:
		return false
	}
}

// close stops the goroutine and waits for it.
func (k *keeper) close() {
	close(k.stop)
	k.done.Wait()
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var members []expirer
	for {
		select {
		case <-k.stop:
			return
		case <-timer.C:
		case <-k.wake:
		}
		if now := k.now(); now >= k.next.Load() {
			k.next.Store(never) // before the scan: a deadline noted meanwhile is not lost
			k.mu.Lock()
			for e := range k.members {
				members = append(members, e)
			}
			k.mu.Unlock()
			for _, e := range members {
				k.lower(e.expire(now))
			}
			clear(members)
			members = members[:0]
		}
		if next := k.next.Load(); next != never {
			timer.Reset(max(scanMin, time.Duration(next-k.now())))
		}
	}
}
