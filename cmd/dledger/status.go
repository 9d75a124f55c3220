package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"dledger/client"
)

// nodeState is a node's state as `status --json` prints it. What the node did not tell is left out.
type nodeState struct {
	ID         string            `json:"id"`
	Address    string            `json:"address"`
	Error      string            `json:"error,omitempty"`
	Product    string            `json:"product,omitempty"`
	Version    string            `json:"version,omitempty"`
	Role       string            `json:"role,omitempty"`
	Term       *int64            `json:"term,omitempty"`
	Leader     string            `json:"leader,omitempty"`
	Begin      *int64            `json:"begin,omitempty"`
	End        *int64            `json:"end,omitempty"`
	Commit     *int64            `json:"commit,omitempty"`
	Durable    *int64            `json:"durable,omitempty"`
	Pending    int               `json:"pending,omitempty"`
	UptimeMs   int64             `json:"uptimeMs,omitempty"`
	Compat     string            `json:"compat,omitempty"`
	Durability string            `json:"durability,omitempty"`
	Failure    string            `json:"failure,omitempty"`
	Abstains   bool              `json:"abstains,omitempty"`
	DiskFull   bool              `json:"diskFull,omitempty"`
	Damaged    []damageJSON      `json:"damaged,omitempty"`
	Repaired   int64             `json:"repaired,omitempty"`
	Scrub      *scrubJSON        `json:"scrub,omitempty"`
	Progress   []progressJSON    `json:"progress,omitempty"`
	Refused    map[string]string `json:"refused,omitempty"` // by id, and why
}

type progressJSON struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Match   int64  `json:"match"`
	IdleMs  int64  `json:"idleMs"`
	Kind    string `json:"kind,omitempty"`
	Refused string `json:"refused,omitempty"`
}

type damageJSON struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Bytes int64 `json:"bytes"`
}

type scrubJSON struct {
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
	Last  string `json:"last,omitempty"` // RFC 3339
}

type groupState struct {
	Group  string      `json:"group"`
	Leader string      `json:"leader,omitempty"`
	Nodes  []nodeState `json:"nodes"`
}

func newStatus() *cobra.Command {
	var g group
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of every node",
		Long: `Shows role, term and log of every node of the group. The exit code is 0 if there is a leader.
Java nodes tell only role, leader and term.`,
		Example: `  dledger status
  dledger status -g orders -p "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911" --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.dial(client.Config{RequestTimeout: max(g.timeout, time.Millisecond)})
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := g.context(cmd)
			defer cancel()
			nodes := c.Status(ctx)
			leader := leaderOf(nodes)
			text := ""
			if !g.json {
				text = statusText(g.name, nodes)
			}
			if err := newPrinter(cmd.OutOrStdout(), g.json).print(stateOf(g.name, leader, nodes), "%s", text); err != nil {
				return err
			}
			if leader == "" {
				return noLeader(g.name, nodes)
			}
			return nil
		},
	}
	g.flags(cmd, 2*time.Second, "how long to wait for each node")
	return cmd
}

// leaderOf gives the node that says it leads, with the highest term.
func leaderOf(nodes []client.NodeStatus) string {
	leader, term := "", int64(-2)
	for _, n := range nodes {
		if n.Err == nil && n.Role == "leader" && n.Term > term {
			leader, term = n.ID, n.Term
		}
	}
	return leader
}

func noLeader(group string, nodes []client.NodeStatus) error {
	var down, refuse []error
	for _, n := range nodes {
		switch {
		case refuses(n.Err):
			refuse = append(refuse, n.Err)
		case n.Err != nil:
			down = append(down, fmt.Errorf("%s (%s): %w", n.ID, n.Address, n.Err))
		}
	}
	switch {
	case len(down) == len(nodes):
		return fmt.Errorf("group %s: no node answers: %w", group, down[0])
	case len(down)+len(refuse) == len(nodes) && len(down) > 0:
		return fmt.Errorf("group %s: no node is a member of it that answers: %w, %w", group, refuse[0], down[0])
	case len(refuse) == len(nodes):
		return fmt.Errorf("group %s: no node is a member of it: %w", group, refuse[0])
	case len(refuse) > 0 && len(down) > 0:
		return fmt.Errorf("group %s has no leader, %d of %d nodes refuse and %d do not answer: %w, %w", group, len(refuse), len(nodes), len(down), refuse[0], down[0])
	case len(refuse) > 0:
		return fmt.Errorf("group %s has no leader, %d of %d nodes refuse: %w", group, len(refuse), len(nodes), refuse[0])
	case len(down) > 0:
		return fmt.Errorf("group %s has no leader, %d of %d nodes do not answer: %w", group, len(down), len(nodes), down[0])
	}
	return fmt.Errorf("group %s has no leader", group)
}

func stateOf(group, leader string, nodes []client.NodeStatus) groupState {
	s := groupState{Group: group, Leader: leader, Nodes: make([]nodeState, 0, len(nodes))}
	for _, n := range nodes {
		j := nodeState{ID: n.ID, Address: n.Address, Product: n.Product, Version: n.Version, Role: n.Role, Leader: n.Leader, Pending: n.Pending,
			UptimeMs: n.Uptime.Milliseconds(), Compat: n.Compat, Durability: n.Durability, Failure: n.Failure, Abstains: n.Abstains, DiskFull: n.DiskFull, Refused: n.Refused}
		if n.Err != nil {
			j.Error = n.Err.Error()
		} else {
			j.Term = &n.Term
			if n.Product != client.Java {
				j.Begin, j.End, j.Commit, j.Durable = &n.Begin, &n.End, &n.Commit, &n.Durable
			}
		}
		j.Repaired = n.Repaired
		for _, d := range n.Damaged {
			j.Damaged = append(j.Damaged, damageJSON(d))
		}
		if n.ScrubTotal > 0 || !n.Scrubbed.IsZero() {
			j.Scrub = &scrubJSON{Done: n.ScrubDone, Total: n.ScrubTotal}
			if !n.Scrubbed.IsZero() {
				j.Scrub.Last = n.Scrubbed.UTC().Format(time.RFC3339)
			}
		}
		for _, p := range n.Progress {
			j.Progress = append(j.Progress, progressJSON{ID: p.ID, State: p.State, Match: p.Match, IdleMs: p.Idle.Milliseconds(), Kind: p.Kind, Refused: p.Refused})
		}
		s.Nodes = append(s.Nodes, j)
	}
	return s
}

func statusText(group string, nodes []client.NodeStatus) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "group %s\n", group)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "node\taddress\trole\tterm\tleader\tbegin\tend\tcommit\tdurable\t")
	for _, n := range nodes {
		switch {
		case n.Err != nil:
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\t\t\t\t\t\n", n.ID, n.Address, unreachable(n.Err))
		case n.Product == client.Java:
			fmt.Fprintf(w, "%s\t%s\t%s (java)\t%d\t%s\t?\t?\t?\t?\t\n", n.ID, n.Address, n.Role, n.Term, orDash(n.Leader))
		default:
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t\n", n.ID, n.Address, n.Role, n.Term, orDash(n.Leader), n.Begin, n.End, n.Commit, n.Durable)
		}
	}
	w.Flush() // into memory: it cannot fail
	for _, n := range nodes {
		switch {
		case refuses(n.Err):
			fmt.Fprintf(&b, "%v\n", n.Err)
		case n.Err != nil:
			fmt.Fprintf(&b, "%s does not answer: %v\n", n.ID, n.Err)
		}
		if n.Failure != "" {
			fmt.Fprintf(&b, "%s no longer takes part: %s\n", n.ID, n.Failure)
		}
		if n.DiskFull {
			fmt.Fprintf(&b, "%s takes no entries: disk full\n", n.ID)
		}
		if n.Abstains {
			fmt.Fprintf(&b, "%s does not vote until it has caught up\n", n.ID)
		}
		health(&b, n)
		for _, p := range n.Progress {
			if p.Match < 0 && p.State == "compare" {
				fmt.Fprintf(&b, "what %s holds is not known yet (%s", p.ID, p.State)
			} else {
				fmt.Fprintf(&b, "%s holds entries up to %d (%s", p.ID, p.Match, p.State)
			}
			if p.Kind != "" {
				fmt.Fprintf(&b, ", %s", p.Kind)
			}
			if p.Idle > 3*time.Second {
				fmt.Fprintf(&b, ", silent for %v", p.Idle.Round(time.Second))
			}
			fmt.Fprintln(&b, ")")
		}
		for _, id := range slices.Sorted(maps.Keys(n.Refused)) {
			fmt.Fprintf(&b, "%s refuses %s: %s\n", n.ID, id, n.Refused[id])
		}
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// health says what is known of damage on a node's disk.
func health(b *bytes.Buffer, n client.NodeStatus) {
	for _, d := range n.Damaged {
		fmt.Fprintf(b, "%s has damaged entries: %d to %d, %d bytes\n", n.ID, d.First, d.Last, d.Bytes)
	}
	if n.Repaired > 0 {
		fmt.Fprintf(b, "%s has repaired %d entries since its start\n", n.ID, n.Repaired)
	}
	if n.ScrubTotal > 0 {
		fmt.Fprintf(b, "%s searches for damage: scrubbed %d of %d bytes", n.ID, n.ScrubDone, n.ScrubTotal)
		if !n.Scrubbed.IsZero() {
			fmt.Fprintf(b, ", last full pass at %s", n.Scrubbed.UTC().Format(time.RFC3339))
		}
		fmt.Fprintln(b)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// refuses tells whether err is a node's own answer.
func refuses(err error) bool { return errors.As(err, new(*client.RefusedError)) }

func unreachable(err error) string {
	if refuses(err) {
		return "refuses"
	}
	return "unreachable"
}

func newTransfer() *cobra.Command {
	var g group
	var to string
	cmd := &cobra.Command{
		Use:     "transfer",
		Short:   "Hand leadership to a node",
		Example: `  dledger transfer -t n1`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usage("--to: name the node that shall lead")
			}
			c, err := g.dial(client.Config{})
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := g.context(cmd)
			defer cancel()
			if err := c.Transfer(ctx, to); err != nil {
				return fmt.Errorf("transfer to %s: %w", to, err)
			}
			return newPrinter(cmd.OutOrStdout(), g.json).print(map[string]string{"group": g.name, "leader": to}, "%s leads group %s\n", to, g.name)
		},
	}
	g.flags(cmd, 12*time.Second, "give up after this time")
	cmd.Flags().StringVarP(&to, "to", "t", "", "id of the node that shall lead")
	return cmd
}
