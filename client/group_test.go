package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"dledger"
	"dledger/internal/vfs"
)

func (n *network) listen(address string) (net.Listener, error) {
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = l
	return l, nil
}

// Real members are closed and opened again in turn while many clients' appends are on the way. What was acknowledged is in the log
// once, at its index; what was refused is not.
func TestAppendsToARealGroupThatChangesItsLeader(t *testing.T) {
	for _, json := range []bool{false, true} {
		t.Run("json="+strconv.FormatBool(json), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				net := &network{listeners: make(map[string]*listener)}
				peers := map[string]string{"n0": address("n0"), "n1": address("n1"), "n2": address("n2")}
				disks := make(map[string]vfs.FS)
				members := make(map[string]*dledger.Ledger)
				open := func(id string) {
					l, err := dledger.Open(dledger.Config{ID: id, Peers: FormatPeers(peers), Dir: "/data", FS: disks[id], Dial: net.dial, Listen: net.listen,
						DataFileSize: 1 << 20, IndexFileSize: 1 << 20})
					if err != nil {
						t.Fatal(err)
					}
					members[id] = l
				}
				for id := range peers {
					disks[id] = vfs.NewMem()
					open(id)
				}
				c, err := New(Config{Peers: peers, Dial: net.dial, JSON: json})
				if err != nil {
					t.Fatal(err)
				}

				working, stop := context.WithCancel(t.Context())
				var mu sync.Mutex
				acknowledged, decided := map[int64]string{}, map[string]bool{} // by index; bodies that must not be there
				var workers sync.WaitGroup
				for w := range 8 {
					workers.Go(func() {
						for i := 0; working.Err() == nil; i++ {
							body := fmt.Sprintf("%d/%d", w, i)
							ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
							r, err := c.Append(ctx, []byte(body))
							cancel()
							mu.Lock()
							switch {
							case err == nil && acknowledged[r.Index] != "":
								t.Errorf("%s and %s were both acknowledged at %d", acknowledged[r.Index], body, r.Index)
							case err == nil:
								acknowledged[r.Index] = body
							case !errors.Is(err, ErrUndecided):
								decided[body] = true
							}
							mu.Unlock()
							time.Sleep(10 * time.Millisecond) // memory takes no time, which would stop the clock
						}
					})
				}
				for range 3 {
					for id := range peers {
						time.Sleep(200 * time.Millisecond)
						if err := members[id].Close(); err != nil {
							t.Error(err)
						}
						time.Sleep(100 * time.Millisecond)
						open(id)
					}
				}
				stop()
				workers.Wait()

				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				seen := map[string]int64{}
				for e, err := range c.Entries(ctx, 0) {
					if err != nil {
						t.Fatal(err)
					}
					body := string(e.Body)
					if e.Noop {
						continue
					}
					if at, twice := seen[body]; twice {
						t.Errorf("%s is in the log at %d and %d", body, at, e.Index)
					}
					seen[body] = e.Index
					if decided[body] {
						t.Errorf("%s is in the log, but its append was refused", body)
					}
				}
				for index, body := range acknowledged {
					if at, ok := seen[body]; !ok || at != index {
						t.Errorf("%s was acknowledged at %d and lies at %d (%v)", body, index, at, ok)
					}
				}
				if len(acknowledged) < 100 {
					t.Errorf("%d appends acknowledged, want many", len(acknowledged))
				}
				for _, n := range c.Status(ctx) {
					if n.Err != nil || n.Role == "" || n.End < 99 {
						t.Errorf("status %+v", n)
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				for _, l := range members {
					if err := l.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
