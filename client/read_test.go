package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/internal/raft"
	"dledger/internal/wire"
)

func (g *fakeGroup) fill(bodies ...string) {
	g.do(func() { g.log = append(g.log, bodies...) })
}

func TestGetReadsTheEntry(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.fill("a", "b")
		c := g.client(Config{})
		e, err := c.Get(t.Context(), 1)
		if err != nil || e.Index != 1 || e.Term != 3 || e.Pos != 100 || string(e.Body) != "b" {
			t.Errorf("%+v, %v", e, err)
		}
		if _, err := c.Get(t.Context(), 2); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("behind the end: %v", err)
		}
		if _, err := c.Get(t.Context(), -1); !errors.Is(err, ErrOutOfRange) && !errors.Is(err, ErrCompacted) {
			t.Errorf("before the beginning: %v", err)
		}
		g.do(func() { g.first = 1 })
		if _, err := c.Get(t.Context(), 0); !errors.Is(err, ErrCompacted) {
			t.Errorf("compacted: %v", err)
		}
	})
}

func TestGetFollowsALeaderChange(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.fill("a")
		c := g.client(Config{})
		if _, err := c.Get(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		g.stop("n0")
		time.AfterFunc(time.Second, func() { g.do(func() { g.leader = "n2" }) })
		if _, err := c.Get(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

// A leader that was cut off does not have the newest entries; its "there is none" must not be believed.
func TestOnlyTheConfirmedLeaderSaysThatThereIsNoEntry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1", "n2")
		g.fill("a")
		c := g.client(Config{})
		if _, err := c.Get(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		g.do(func() {
			g.leader = "n1"
			g.nodes["n0"].believes = "n0"
		})
		if _, err := c.Get(t.Context(), 1); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("error %v, want ErrOutOfRange", err)
		}
		if leader, err := c.Leader(t.Context()); err != nil || leader != "n1" {
			t.Errorf("leader %q, %v: the answer came from the old one", leader, err)
		}
	})
}

func TestEntriesGiveTheLogToItsEnd(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		var want []string
		for range 100 {
			want = append(want, "body")
		}
		g.fill(want...)
		c := g.client(Config{})
		next := int64(5)
		for e, err := range c.Entries(t.Context(), 5) {
			if err != nil || e.Index != next {
				t.Fatalf("entry %d, %v, want %d", e.Index, err, next)
			}
			next++
		}
		if next != 100 {
			t.Errorf("ended before %d, want 100", next)
		}
		for e := range c.Entries(t.Context(), 0) {
			if e.Index == 7 {
				break // leaves no goroutine behind: the bubble would tell
			}
		}
		for _, err := range c.Entries(t.Context(), 1000) {
			t.Errorf("behind the end: %v", err)
		}
	})
}

func TestEntriesEndWithAnError(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0")
		g.fill("a", "b")
		g.do(func() { g.first = 1 })
		var got error
		for _, err := range g.client(Config{}).Entries(t.Context(), 0) {
			got = err
		}
		if !errors.Is(got, ErrCompacted) {
			t.Errorf("error %v, want ErrCompacted", got)
		}
	})
}

func TestTailWaitsForMore(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.fill("a")
		c := g.client(Config{})
		go func() {
			for _, body := range []string{"b", "c", "d"} {
				time.Sleep(10 * time.Second) // longer than any request waits
				g.fill(body)
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		for e, err := range c.Tail(ctx, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, string(e.Body)); len(got) == 4 {
				cancel()
			}
		}
		if want := []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestBoundsAreFound(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		for _, want := range [][2]int64{{0, -1}, {0, 0}, {0, 1}, {0, 2}, {0, 99}, {13, 99}, {99, 99}, {31, 31}, {32, 64}} {
			g := newFakeGroup(t, java, "n0", "n1", "n2")
			g.do(func() {
				g.first = want[0]
				g.log = make([]string, want[1]+1)
			})
			c := g.client(Config{})
			first, last, err := c.Bounds(t.Context())
			if err != nil || first != want[0] || last != want[1] {
				t.Errorf("%d to %d, %v, want %d to %d", first, last, err, want[0], want[1])
			}
			c.Close()
		}
	})
}

func TestStatusNamesEveryNode(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.fill("a", "b")
		g.stop("n1")
		// n0 is not configured but known to the others, n7 is configured and known to nobody.
		c := g.client(Config{Peers: map[string]string{"n1": address("n1"), "n2": address("n2"), "n7": address("n7")}})
		nodes := c.Status(t.Context())
		var ids []string
		for _, n := range nodes {
			ids = append(ids, n.ID)
		}
		if want := []string{"n0", "n1", "n2"}; !slices.Equal(ids, want) {
			t.Fatalf("nodes %q, want %q", ids, want)
		}
		if n := nodes[0]; n.Err != nil || n.Role != "leader" || n.Leader != "n0" || n.Term != 3 {
			t.Errorf("leader %+v", n)
		}
		if n := nodes[2]; n.Err != nil || n.Role != "follower" || n.Leader != "n0" || n.Term != 3 {
			t.Errorf("follower %+v", n)
		}
		if nodes[1].Err == nil {
			t.Error("n1 does not run, but told")
		}
		end := int64(1)
		if java {
			end = -1
		}
		if n := nodes[0]; n.End != end || n.Commit != end || (n.Product == Java) != java {
			t.Errorf("leader %+v, want end %d", n, end)
		}
	})
}

func TestStatusDoesNotWaitForNodesThatHang(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.nodes["n2"].silent = true
		c := g.client(Config{RequestTimeout: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		nodes := c.Status(ctx)
		if len(nodes) != 3 || nodes[0].Err != nil || nodes[1].Err != nil || !errors.Is(nodes[2].Err, context.DeadlineExceeded) {
			t.Errorf("%+v", nodes)
		}
	})
}

func TestMetadataNamesTheLeader(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		g.stop("n1")
		m, err := g.client(Config{}).Metadata(t.Context())
		if err != nil || m.Leader != "n0" || !maps.Equal(m.Peers, g.peers()) {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

func TestTransferMovesLeadership(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1", "n2")
		c := g.client(Config{})
		for _, to := range []string{"n1", "n1", "n2", "n0"} {
			if err := c.Transfer(t.Context(), to); err != nil {
				t.Fatalf("to %s: %v", to, err)
			}
			if leader, err := c.Leader(t.Context()); err != nil || leader != to {
				t.Errorf("leader %q, %v, want %s", leader, err, to)
			}
		}
		var refused *RefusedError
		if err := c.Transfer(t.Context(), "n9"); !errors.As(err, &refused) || refused.Code != int(wire.ResultUnknownMember) {
			t.Errorf("to nobody: %v", err)
		}
	})
}

// A refusal that passes with a Java leader is tried again; one of ours has waited itself and means it.
func TestTransferTriesAgainWithJavaLeader(t *testing.T) {
	for _, s := range []raft.Status{raft.StatusTakeLeadershipFailed, raft.StatusFallBehind} {
		bothKinds(t, func(t *testing.T, java bool) {
			g := newFakeGroup(t, java, "n0", "n1", "n2")
			g.transfers = []raft.Status{s, s}
			var refused *RefusedError
			switch err := g.client(Config{}).Transfer(t.Context(), "n2"); {
			case java && err != nil:
				t.Error(err)
			case java && g.asked[wire.CodeTransfer] != 3:
				t.Errorf("asked %d times, want 3", g.asked[wire.CodeTransfer])
			case !java && (!errors.As(err, &refused) || refused.Code != int(wire.ResultOf(s))):
				t.Errorf("got %v, want the refusal %v", err, wire.ResultOf(s))
			}
		})
	}
}

func TestParsePeers(t *testing.T) {
	for _, test := range []struct {
		in   string
		want map[string]string
		err  string // part of it
	}{
		{in: "n0-localhost:20911", want: map[string]string{"n0": "localhost:20911"}},
		{in: "n0-a-b:1;n1-[::1]:2; ", want: map[string]string{"n0": "a-b:1", "n1": "[::1]:2"}},
		{in: "", err: "no peer"},
		{in: "n0", err: `"n0"`},
		{in: "-a:1", err: `"-a:1"`},
		{in: "n0-a", err: `"a"`},
		{in: "n0-a:", err: `"a:"`},
		{in: "n0-a:1;n0-b:1", err: "twice"},
	} {
		got, err := ParsePeers(test.in)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("ParsePeers(%q): error %v, want one with %s", test.in, err, test.err)
			}
			continue
		}
		if err != nil || !maps.Equal(got, test.want) {
			t.Errorf("ParsePeers(%q) = %v, %v, want %v", test.in, got, err, test.want)
		}
		if again, err := ParsePeers(FormatPeers(got)); err != nil || !maps.Equal(again, got) {
			t.Errorf("FormatPeers(%v) = %q is not read back", got, FormatPeers(got))
		}
	}
}

func TestNewNamesTheBadSetting(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{Peers: map[string]string{"n0": "nowhere"}},
		{Peers: map[string]string{"": "a:1"}},
		{Peers: map[string]string{"n0": "a:1"}, RequestTimeout: -1},
		{Peers: map[string]string{"n0": "a:1"}, PendingBytes: -1},
	} {
		if c, err := New(cfg); err == nil {
			c.Close()
			t.Errorf("New(%+v) succeeded", cfg)
		}
	}
}
