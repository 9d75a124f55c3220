package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"dledger/client"
)

// record is what is printed of an entry.
type record struct {
	Index      int64   `json:"index"`
	Term       int64   `json:"term"`
	Pos        int64   `json:"pos"`
	Noop       bool    `json:"noop,omitempty"`
	Body       *string `json:"body,omitempty"`       // where it is text
	BodyBase64 []byte  `json:"bodyBase64,omitempty"` // where it is not
}

func recordOf(index, term, pos int64, noop bool, body []byte) record {
	r := record{Index: index, Term: term, Pos: pos, Noop: noop}
	if utf8.Valid(body) {
		s := string(body)
		r.Body = &s
	} else {
		r.BodyBase64 = body
	}
	return r
}

// printEntry writes an entry as a line, or its body alone.
func printEntry(p *printer, e client.Entry, bodyOnly bool) error {
	switch {
	case bodyOnly && e.Noop:
		return nil
	case bodyOnly:
		_, err := p.w.Write(append(e.Body[:len(e.Body):len(e.Body)], '\n'))
		return err
	}
	body := "no-op"
	if !e.Noop {
		body = shown(e.Body)
	}
	return p.print(recordOf(e.Index, e.Term, e.Pos, e.Noop, e.Body), "%d  term %d  pos %d  %s\n", e.Index, e.Term, e.Pos, body)
}

// shown makes a line of a body: text as it is if it fits one, else quoted. A body must not give orders to the terminal, nor turn its line around.
func shown(body []byte) string {
	for _, r := range string(body) {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control) || r == utf8.RuneError {
			return fmt.Sprintf("%q", body)
		}
	}
	return string(body)
}

func newGet() *cobra.Command {
	var g group
	var index, count int64
	var bodyOnly bool
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Print entries",
		Long: `Prints one entry, or several from an index on. An entry that does not exist is an error; with --count
the end of the log is none.`,
		Example: `  dledger get -i 0
  dledger get -i 100 -n 50 --json
  dledger get -i 0 --body > message`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if index < 0 {
				return usage("--index %d: must not be negative", index)
			}
			if count < 1 {
				return usage("--count %d: must be at least 1", count)
			}
			if bodyOnly && g.json {
				return usage("--body: not together with --json, which has the bodies in it")
			}
			c, err := g.dial(client.Config{})
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := g.context(cmd)
			defer cancel()
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			p := newPrinter(out, g.json)
			if count == 1 {
				e, err := c.Get(ctx, index)
				if err != nil {
					return err
				}
				return errors.Join(printEntry(p, e, bodyOnly), out.Flush())
			}
			left := count
			for e, err := range c.Entries(ctx, index) {
				if err != nil {
					return errors.Join(out.Flush(), err)
				}
				if err := printEntry(p, e, bodyOnly); err != nil {
					return err
				}
				if left--; left == 0 {
					break
				}
			}
			return out.Flush()
		},
	}
	g.flags(cmd, 10*time.Second, "give up after this time")
	cmd.Flags().Int64VarP(&index, "index", "i", 0, "index of the first entry")
	cmd.Flags().Int64VarP(&count, "count", "n", 1, "number of entries")
	cmd.Flags().BoolVarP(&bodyOnly, "body", "b", false, "print the bodies alone, a line break behind each")
	return cmd
}

func newTail() *cobra.Command {
	var g group
	var from, count int64
	var bodyOnly bool
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the last entries, and every further one as it is committed",
		Example: `  dledger tail
  dledger tail -n 0 --json
  dledger tail -i 0 --body`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < -1 {
				return usage("--index %d: must not be negative", from)
			}
			if count < 0 {
				return usage("--count %d: must not be negative", count)
			}
			if from >= 0 && cmd.Flags().Changed("count") {
				return usage("--index %d: not together with --count", from)
			}
			if bodyOnly && g.json {
				return usage("--body: not together with --json, which has the bodies in it")
			}
			c, err := g.dial(client.Config{})
			if err != nil {
				return err
			}
			defer c.Close()
			if from, err = beginOf(cmd, &g, c, from, count); err != nil {
				return err
			}
			return follow(cmd.Context(), c.Tail(cmd.Context(), from), bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10), g.json, bodyOnly)
		},
	}
	g.flags(cmd, 10*time.Second, "how long to look for a leader at the start; later it waits for one as long as it takes")
	cmd.Flags().Int64VarP(&from, "index", "i", -1, "begin at this entry, instead of the last ones")
	cmd.Flags().Int64VarP(&count, "count", "n", 10, "number of entries before the end to begin with")
	cmd.Flags().BoolVarP(&bodyOnly, "body", "b", false, "print the bodies alone, a line break behind each")
	return cmd
}

// leaderSoon is how long a command looks for a leader before it says so.
const leaderSoon = time.Second

// beginOf waits for the leader and gives from, or if that is negative the index where the last count entries begin.
func beginOf(cmd *cobra.Command, g *group, c *client.Client, from, count int64) (int64, error) {
	ctx, cancel := g.context(cmd)
	defer cancel()
	said := make(chan struct{})
	saying := time.AfterFunc(leaderSoon, func() {
		defer close(said)
		fmt.Fprintf(cmd.ErrOrStderr(), "waiting for a leader of group %s\n", g.name)
	})
	_, err := c.Leader(ctx)
	if !saying.Stop() {
		<-said // before anything else is said
	}
	if err != nil || from >= 0 {
		return from, err
	}
	first, last, err := c.Bounds(ctx)
	if err != nil {
		return 0, err
	}
	return max(first, last-count+1), nil
}

// follow prints entries as they come, until ctx ends, which is how one leaves it.
func follow(ctx context.Context, entries iter.Seq2[client.Entry, error], out *bufio.Writer, asJSON, bodyOnly bool) error {
	p := newPrinter(out, asJSON)
	lines := make(chan client.Entry)
	failed := make(chan error, 1)
	go func() {
		defer close(lines)
		for e, err := range entries {
			if err != nil {
				failed <- err
				return
			}
			select {
			case lines <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		var e client.Entry
		var ok bool
		select {
		case e, ok = <-lines:
		default: // nothing more for now: show what there is
			if err := out.Flush(); err != nil {
				return err
			}
			e, ok = <-lines
		}
		if !ok {
			break
		}
		if err := printEntry(p, e, bodyOnly); err != nil {
			return err
		}
	}
	select {
	case err := <-failed:
		return errors.Join(out.Flush(), err)
	default:
		return out.Flush()
	}
}
