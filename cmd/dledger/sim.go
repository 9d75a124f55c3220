package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dledger/internal/sim"
)

func newSim() *cobra.Command {
	var c sim.Case
	var runs int
	var trace, shrink bool
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate groups whose network, disks and clocks fail",
		Long: `Lives the life of whole groups of real members on a virtual clock, network and disks. The seed decides everything: members,
settings, clients, and what goes wrong when. Everything that happens is held against the rules of the log; what
breaks one is printed with the end of its trace and the command that repeats it, and the exit code is 1.`,
		Example: `  dledger sim --seed 42
  dledger sim --runs 1000
  dledger sim --seed 42 --steps 5000 --trace | less`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case c.Steps < 1:
				return usage("--steps %d: must be at least 1", c.Steps)
			case runs < 1:
				return usage("--runs %d: must be at least 1", runs)
			case c.Clients < 0:
				return usage("--clients %d: must not be negative", c.Clients)
			case runs > 1 && (trace || c.Clients > 0 || c.Faults != nil):
				return usage("--runs %d: not together with --trace, --clients or --faults, which belong to one seed", runs)
			}
			if !cmd.Flags().Changed("seed") {
				c.Seed = uint64(time.Now().UnixMilli())
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			var err error
			if runs > 1 {
				err = simulateMany(cmd.Context(), out, c, runs, shrink)
			} else {
				err = simulateOne(out, c, trace, shrink)
			}
			return errors.Join(err, out.Flush())
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&c.Seed, "seed", 0, "what decides everything; with --runs the first seed (default: from the clock)")
	f.IntVar(&c.Steps, "steps", 20_000, "events before the faults end and the group has to recover")
	f.IntVar(&runs, "runs", 1, "number of seeds")
	f.IntSliceVar(&c.Faults, "faults", nil, "numbers of the faults that happen (default: all that the seed draws)")
	f.IntVar(&c.Clients, "clients", 0, "number of clients, if fewer than the seed draws")
	f.BoolVar(&trace, "trace", false, "print every event")
	f.BoolVar(&shrink, "shrink", false, "look for a smaller life that fails too")
	return cmd
}

// simulateOne lives one life and says everything about it.
func simulateOne(out io.Writer, c sim.Case, trace, shrink bool) error {
	if trace {
		c.Trace = out
	}
	r := c.Run()
	fmt.Fprintf(out, "seed %d\n%s\n", c.Seed, r.Setup)
	for _, f := range r.Faults {
		fmt.Fprintf(out, "%12.6f fault %d: %s\n", f.At.Seconds(), f.No, f.What)
	}
	printLived(out, r.Stats)
	if r.Err == nil {
		return nil
	}
	return simFailed(out, r, shrink)
}

// simulateMany lives many lives, as many at a time as there are processors, and says what there is to say of them all, or of those that were lived when ctx ended.
func simulateMany(ctx context.Context, out *bufio.Writer, c sim.Case, runs int, shrink bool) error {
	fmt.Fprintf(out, "seeds %d to %d\n", c.Seed, c.Seed+uint64(runs)-1)
	if err := out.Flush(); err != nil { // a run may take long, and the seeds are what is needed if it is ended
		return err
	}
	var sum sim.Stats
	var failed *sim.Result
	lived := 0
	sim.Explore(c.Seed, runs, c.Steps, runtime.GOMAXPROCS(0), func(r sim.Result) bool {
		sum.Add(&r.Stats)
		if lived++; r.Err != nil {
			failed = &r
		}
		return failed == nil && ctx.Err() == nil
	})
	printLived(out, sum)
	fmt.Fprintf(out, "faults that struck: %v; %d repairs, %d deletions by retention, %d logs started anew, %d recoveries without some members\n",
		&sum.Struck, sum.Repaired, sum.Expired, sum.Resets, sum.Partly)
	took, err := processorTime()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%.1f s of processor time\n", took.Seconds()) // .ci/run reads it
	switch {
	case failed != nil:
	case lived < runs:
		return fmt.Errorf("%d of %d lives, then %w", lived, runs, context.Cause(ctx))
	default:
		return nil
	}
	return simFailed(out, *failed, shrink)
}

// processorTime is what this process has used of the processors, which other programs beside it change little, as they do not the time on the clock.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

func printLived(out io.Writer, s sim.Stats) {
	fmt.Fprintf(out, "%d events in %v of virtual time: %d entries committed, %d proposals acknowledged, %d undecided, %d reads confirmed, %d leaders, %d restarts\n",
		s.Steps, s.Time.Round(time.Millisecond), s.Committed, s.Acked, s.Undecided, s.Reads, s.Leaders, s.Restarts)
}

// simFailed shows how a life ended that broke a rule, and gives the error that ends the command.
func simFailed(out io.Writer, r sim.Result, shrink bool) error {
	if shrink {
		fmt.Fprintf(out, "seed %d: %v\nagain, before it is made smaller: %s\n", r.Case.Seed, r.Err, r.Case.Command())
		r = sim.Shrink(r)
	}
	c := r.Case
	c.Trace = io.Discard // the same life once more, now keeping the last lines
	for _, line := range c.Run().Tail {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "again: %s\n", r.Case.Command())
	return fmt.Errorf("seed %d: %w", r.Case.Seed, r.Err)
}
