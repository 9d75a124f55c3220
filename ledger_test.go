package dledger

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// group opens n members on loopback, each on its own disk under the test's directory.
func group(t testing.TB, n int, set func(*Config)) []*Ledger {
	t.Helper()
	var peers []string
	var listen []func(string) (net.Listener, error)
	for i := range n {
		address, l := port(t, "127.0.0.1")
		peers, listen = append(peers, fmt.Sprintf("n%d-%s", i, address)), append(listen, l)
	}
	dir := t.TempDir()
	var out []*Ledger
	for i := range n {
		cfg := Config{ID: fmt.Sprintf("n%d", i), Peers: strings.Join(peers, ";"), Listen: listen[i], Dir: dir, DataFileSize: 16 << 20, IndexFileSize: 32 * 100_000}
		if os.Getenv("DLEDGER_LOG") != "" {
			cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		}
		if set != nil {
			set(&cfg)
		}
		l, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		out = append(out, l)
	}
	return out
}

// leader waits for a member that leads.
func leader(t testing.TB, members []*Ledger) *Ledger {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(deadline)}}
		for _, l := range members { // taken before the look: no change is missed
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(l.Changed())})
		}
		for _, l := range members {
			if l.IsLeader() {
				return l
			}
		}
		if k, _, _ := reflect.Select(cases); k == 0 {
			t.Fatal("no leader within 30 s")
		}
	}
}

// TestAppendedEntriesAreReadOnEveryMember is the path of a record from end to end, in each compat and durability.
func TestAppendedEntriesAreReadOnEveryMember(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, compat := range []Compat{CompatGo, Compat04, Compat03} {
			for _, durability := range []Durability{Group, Async} {
				t.Run(fmt.Sprintf("%d members, %v, %v", n, compat, durability), func(t *testing.T) {
					t.Parallel()
					members := group(t, n, func(c *Config) {
						c.Compat, c.Durability = compat, durability
						c.Heartbeat, c.MinVoteInterval, c.MaxVoteInterval = 200*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond
					})
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					defer cancel()
					lead := leader(t, members)
					const count = 300
					first := Index(-1)
					for i := range count {
						e, err := lead.Append(ctx, fmt.Appendf(nil, "entry %d", i))
						if err != nil {
							t.Fatalf("append %d: %v", i, err)
						}
						if first < 0 {
							first = e.Index
						}
					}
					for _, l := range members {
						k := 0
						for e, err := range l.Entries(ctx, first) {
							if err != nil {
								s, _ := l.Status(context.Background())
								ls, _ := lead.Status(context.Background())
								t.Fatalf("%s after %d: %v; %+v; leader %+v", l.cfg.ID, k, err, s, ls)
							}
							if got, want := string(e.Body), fmt.Sprintf("entry %d", k); got != want {
								t.Fatalf("%s: entry %d is %q, want %q", l.cfg.ID, e.Index, got, want)
							}
							if k++; k == count {
								break
							}
						}
					}
				})
			}
		}
	}
}
