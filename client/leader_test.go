package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever asks for a leader ends at once where no node knows the group, as with a mistyped one, and names group and address.
func TestUnknownGroupIsSaidAtOnce(t *testing.T) {
	bothKinds(t, func(t *testing.T, java bool) {
		g := newFakeGroup(t, java, "n0", "n1")
		g.do(func() { g.nodes["n0"].stranger, g.nodes["n1"].stranger = true, true })
		c := g.client(Config{Group: "typo"})
		from := time.Now()
		for name, ask := range map[string]func() error{
			"append":   func() error { _, err := c.Append(t.Context(), []byte("a")); return err },
			"batch":    func() error { _, err := c.AppendBatch(t.Context(), [][]byte{[]byte("a"), []byte("b")}); return err },
			"get":      func() error { _, err := c.Get(t.Context(), 0); return err },
			"bounds":   func() error { _, _, err := c.Bounds(t.Context()); return err },
			"leader":   func() error { _, err := c.Leader(t.Context()); return err },
			"transfer": func() error { return c.Transfer(t.Context(), "n1") },
			"tail": func() error {
				for _, err := range c.Tail(t.Context(), 0) {
					return err
				}
				return nil
			},
		} {
			err := ask()
			if !errors.Is(err, ErrUnknownGroup) || errors.Is(err, ErrUndecided) || !strings.Contains(err.Error(), `"typo"`) || !strings.Contains(err.Error(), "n1 (n1:1) answers 401 UNKNOWN_MEMBER") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if took := time.Since(from); took > time.Second {
			t.Errorf("all that took %v", took)
		}
	})
}

// The list of nodes may name some that do not run: they are waited for a while, since they may be the members.
func TestNodesThatDoNotRunAreWaitedForAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0")
		g.do(func() { g.nodes["n0"].stranger = true })
		peers := map[string]string{"n0": address("n0"), "n1": address("n1")}
		c := g.client(Config{Peers: peers})
		from := time.Now()
		if _, err := c.Append(t.Context(), nil); !errors.Is(err, ErrUnknownGroup) || time.Since(from) < strangers || time.Since(from) > 2*strangers {
			t.Errorf("after %v: %v", time.Since(from), err)
		}
		led := make(chan error, 1)
		go func() { _, err := c.Leader(t.Context()); led <- err }()
		time.Sleep(strangers / 2)
		g.do(func() { g.leader = "n1" })
		g.start("n1", false)
		defer g.stop("n1")
		if err := <-led; err != nil {
			t.Errorf("a leader that comes meanwhile: %v", err)
		}
	})
}

// A node that starts takes connections and is silent; one that ends says for a moment that it is no member.
func TestWhoMayYetBeAMemberIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFakeGroup(t, false, "n0", "n1")
		g.do(func() { g.nodes["n0"].stranger, g.nodes["n1"].silent = true, true })
		c := g.client(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*strangers)
		defer cancel()
		if _, err := c.Leader(ctx); errors.Is(err, ErrUnknownGroup) || !errors.Is(err, ErrNoLeader) {
			t.Errorf("while one is silent: %v", err)
		}
		g.do(func() { g.nodes["n1"].silent, g.leader = false, "n1" })
		if _, err := c.Append(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		g.stop("n1")
		synctest.Wait() // the client notices
		g.do(func() { g.nodes["n0"].stranger, g.leader = true, "n0" })
		time.AfterFunc(5*strangers, func() { g.do(func() { g.nodes["n0"].stranger = false }) })
		if _, err := c.Append(t.Context(), nil); err != nil {
			t.Errorf("once it has met the group: %v", err)
		}
	})
}
