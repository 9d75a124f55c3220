package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"dledger/client"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a log group or brokers",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown bench %q, there are: log, mq", args[0])
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(newBenchLog(), newBenchMQ())
	return cmd
}

// load is what `bench log` is asked for.
type load struct {
	group
	count    int64
	duration time.Duration
	size     int
	inflight int
	protocol string
}

func newBenchLog() *cobra.Command {
	var o load
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Append entries as fast as the group takes them",
		Long: `Keeps a number of appends on the way and measures how long each takes until it is acknowledged. Entries are
random bytes and stay in the log. Appends that fail are counted by their outcome and do not end the run.`,
		Example: `  dledger bench log
  dledger bench log -n 1000000 --size 128 --inflight 64
  dledger bench log --duration 30s --protocol json --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.count < 1 && cmd.Flags().Changed("count"):
				return usage("--count %d: must be at least 1", o.count)
			case o.size < 0 || o.size > client.MaxBody:
				return usage("--size %d: from 0 to %d", o.size, client.MaxBody)
			case o.inflight < 1:
				return usage("--inflight %d: must be at least 1", o.inflight)
			case o.protocol != "auto" && o.protocol != "json":
				return usage("--protocol %q: auto or json", o.protocol)
			case o.duration <= 0:
				return usage("--duration %v: must be above 0", o.duration)
			}
			return benchLog(cmd, &o)
		},
	}
	o.flags(cmd, 10*time.Second, "how long an append is tried")
	f := cmd.Flags()
	f.Int64VarP(&o.count, "count", "n", 0, "number of entries (default: as many as fit the duration)")
	f.DurationVar(&o.duration, "duration", 10*time.Second, "length of the run, if --count does not end it before")
	f.IntVar(&o.size, "size", 1024, "bytes of an entry's body")
	f.IntVar(&o.inflight, "inflight", 256, "appends on the way at the same time")
	f.StringVar(&o.protocol, "protocol", "auto", "auto, or json for the original's requests also with nodes that understand better ones")
	return cmd
}

// measured is what `bench log` prints.
type measured struct {
	Entries   int64            `json:"entries"`
	Seconds   float64          `json:"seconds"`
	PerSecond float64          `json:"perSecond"`
	MiBPerSec float64          `json:"mibPerSecond"`
	Size      int              `json:"size"`
	Inflight  int              `json:"inflight"`
	Protocol  string           `json:"protocol"`
	Latency   latencies        `json:"latencyMs"`
	Failed    map[string]int64 `json:"failed,omitempty"`
}

type latencies struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// run is a load under way.
type loadRun struct {
	load
	what   string     // is counted
	mu     sync.Mutex // guards the rest; the appends of one connection are finished by one goroutine, so it is hardly fought for
	times  histogram
	done   int64
	failed map[string]int64
}

func benchLog(cmd *cobra.Command, o *load) error {
	c, err := o.dial(client.Config{JSON: o.protocol == "json"})
	if err != nil {
		return err
	}
	defer c.Close()
	body := make([]byte, o.size)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	find, cancel := o.context(cmd)
	_, err = c.Leader(find)
	cancel()
	if err != nil {
		return err
	}

	r := &loadRun{load: *o, what: "entries", failed: make(map[string]int64)}
	m := r.measure(cmd, func(stop context.Context) { r.send(stop, c, body) })
	if err := newPrinter(cmd.OutOrStdout(), o.json).print(m, "%s", m.text()); err != nil {
		return err
	}
	if m.Entries == 0 {
		return fmt.Errorf("no entry was appended: %v", m.Failed)
	}
	return nil
}

// measure runs send until it ends, which is told to end when the duration is over, and shows how it goes.
func (r *loadRun) measure(cmd *cobra.Command, send func(stop context.Context)) measured {
	start := time.Now()
	stop, cancelStop := context.WithTimeout(cmd.Context(), r.duration)
	defer cancelStop()
	bar := newProgress(cmd.ErrOrStderr())
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(stop)
	}()
	for running := true; running; {
		select {
		case <-sent:
			running = false
		case <-ticker.C:
			bar.show(func() string { return r.line(time.Since(start)) })
		}
	}
	bar.clear()
	return r.result(time.Since(start))
}

// send keeps appends on the way until stop ends or there are enough, and waits for the last.
func (r *loadRun) send(stop context.Context, c *client.Client, body []byte) {
	free := make(chan struct{}, r.inflight)
	for i := int64(0); r.count == 0 || i < r.count; i++ {
		free <- struct{}{} // comes, for every append ends
		if stop.Err() != nil {
			<-free
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
		from := time.Now()
		err := c.Go(ctx, body, func(_ client.Result, err error) {
			cancel()
			r.note(time.Since(from), err)
			<-free
		})
		if err != nil {
			cancel()
			r.note(time.Since(from), err)
			<-free
		}
	}
	for range r.inflight {
		free <- struct{}{}
	}
}

func (r *loadRun) note(took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed[reason(err)]++
		return
	}
	r.acknowledged(took)
}

// acknowledged notes a success; mu is held.
func (r *loadRun) acknowledged(took time.Duration) {
	r.done++
	r.times.add(took)
}

// reason sorts failures.
func reason(err error) string {
	var refused *client.RefusedError
	switch {
	case errors.Is(err, client.ErrUndecided) && errors.As(err, &refused):
		return "undecided " + refused.Name
	case errors.Is(err, client.ErrUndecided):
		return "undecided"
	case errors.As(err, &refused):
		return "refused " + refused.Name
	case errors.Is(err, client.ErrNoLeader):
		return "no leader"
	}
	return "not sent"
}

func (r *loadRun) line(passed time.Duration) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf("%s  %d %s  %.0f/s  p50 %v  p99 %v", passed.Round(time.Second), r.done, r.what, float64(r.done)/passed.Seconds(),
		r.times.at(0.5).Round(time.Microsecond), r.times.at(0.99).Round(time.Microsecond))
	for _, n := range r.failed {
		text += fmt.Sprintf("  %d failed", n)
	}
	return text
}

func (r *loadRun) result(passed time.Duration) measured {
	r.mu.Lock()
	defer r.mu.Unlock()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	s := passed.Seconds()
	return measured{Entries: r.done, Seconds: s, PerSecond: float64(r.done) / s, MiBPerSec: float64(r.done) * float64(r.size) / s / (1 << 20),
		Size: r.size, Inflight: r.inflight, Protocol: r.protocol, Failed: r.failed,
		Latency: latencies{ms(r.times.at(0.5)), ms(r.times.at(0.9)), ms(r.times.at(0.99)), ms(r.times.at(0.999)), ms(r.times.max)}}
}

func (m *measured) text() string {
	text := fmt.Sprintf("%d entries of %d bytes in %.1f s, %d on the way: %.0f/s, %.1f MiB/s\nlatency ms: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f\n",
		m.Entries, m.Size, m.Seconds, m.Inflight, m.PerSecond, m.MiBPerSec, m.Latency.P50, m.Latency.P90, m.Latency.P99, m.Latency.P999, m.Latency.Max)
	return text + failures(m.Failed)
}

func failures(failed map[string]int64) (text string) {
	for _, k := range slices.Sorted(maps.Keys(failed)) {
		text += fmt.Sprintf("%d failed: %s\n", failed[k], k)
	}
	return text
}
