package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"dledger/interop/harness"
)

// measured is one table: a row per figure, a column per system.
type measured struct {
	Name string `json:"name"`
	// Better says which way is good: "more" or "less".
	Better string                        `json:"better"`
	Unit   string                        `json:"unit"`
	Rows   []string                      `json:"rows"`
	Cells  map[string]map[string]float64 `json:"cells"` // row → system → median of the rounds
	Notes  []string                      `json:"notes,omitempty"`

	samples map[string]map[string][]float64
}

func newMeasured(name, better, unit string) *measured {
	return &measured{Name: name, Better: better, Unit: unit, Cells: map[string]map[string]float64{}, samples: map[string]map[string][]float64{}}
}

func (m *measured) add(row, system string, v float64) {
	if m.samples[row] == nil {
		m.Rows = append(m.Rows, row)
		m.samples[row], m.Cells[row] = map[string][]float64{}, map[string]float64{}
	}
	s := append(m.samples[row][system], v)
	m.samples[row][system] = s
	m.Cells[row][system] = median(s)
}

func (m *measured) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}

// print writes the table, synced systems and others apart, each figure with its ratio to ours (the first of its kind whose name starts with
// "ours"), so that 2.0x always means twice as good as ours.
func (m *measured) print(w io.Writer, systems []system) {
	for _, synced := range []bool{true, false} {
		var cols []system
		ours := ""
		for _, s := range systems {
			if s.Synced == synced {
				cols = append(cols, s)
				if ours == "" && strings.HasPrefix(s.Name, "ours") {
					ours = s.Name
				}
			}
		}
		if len(cols) == 0 {
			continue
		}
		kind := "acknowledged from page cache"
		if synced {
			kind = "acknowledged after sync"
		}
		fmt.Fprintf(w, "\n## %s (%s; %s is better), %s\n\n%-28s", m.Name, m.Unit, m.Better, kind, "")
		for _, c := range cols {
			fmt.Fprintf(w, "%19s", c.Name)
		}
		fmt.Fprintln(w)
		for _, row := range m.Rows {
			fmt.Fprintf(w, "%-28s", row)
			for _, c := range cols {
				v, ok := m.Cells[row][c.Name]
				if !ok {
					fmt.Fprintf(w, "%19s", "-")
					continue
				}
				cell := figure(v)
				if o := m.Cells[row][ours]; ours != "" && c.Name != ours && o > 0 && v > 0 {
					ratio := v / o
					if m.Better == "less" {
						ratio = o / v
					}
					cell += fmt.Sprintf(" %5.2fx", ratio)
				}
				fmt.Fprintf(w, "%19s", cell)
			}
			fmt.Fprintln(w)
		}
	}
	for _, n := range m.Notes {
		fmt.Fprintln(w, "  "+n)
	}
}

func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// measures by name. Each gives its tables, with what it has so far if ctx is cancelled.
var measures = map[string]func(context.Context, plan, []system, string) []*measured{
	"append":   measureAppend,
	"batch":    measureBatch,
	"get":      measureGet,
	"start":    measureStart,
	"failover": measureFailover,
	"catchup":  measureCatchUp,
	"restart":  measureRestart,
	"usage":    measureUsage,
}

func measureNames() []string {
	return []string{"append", "batch", "get", "start", "failover", "catchup", "restart", "usage"}
}

// up starts a cluster in a fresh directory below work and waits for its first append; done ends it and removes the directory.
// The error of a system that does not come up becomes a note.
func up(ctx context.Context, m *measured, s system, work string) (c cluster, done func(), took time.Duration, ok bool) {
	dir, err := os.MkdirTemp(work, "run-")
	if err != nil {
		m.note("%s: %v", s.Name, err)
		return nil, nil, 0, false
	}
	began := time.Now()
	c, err = s.start(dir)
	if err == nil {
		if err = firstAppend(ctx, c, 60*time.Second); err != nil {
			c.Close()
		}
	}
	if err != nil {
		m.note("%s did not come up: %v%s", s.Name, err, tails(dir))
		return nil, nil, 0, false
	}
	return c, func() {
		c.Close()
		if err := os.RemoveAll(dir); err != nil {
			m.note("%s: %v", s.Name, err)
		}
	}, time.Since(began), true
}

// tails gives the ends of the logs in dir.
func tails(dir string) (text string) {
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return ""
	}
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && len(b) > 0 {
			text += fmt.Sprintf("\n    %s: …%s", filepath.Base(n), b[max(0, len(b)-400):])
		}
	}
	return text
}

// firstAppend tries until an append is acknowledged.
func firstAppend(ctx context.Context, c cluster, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b := body(100)
	var last error
	err := harness.Until(ctx, "an acknowledged append", func() bool {
		one, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		_, last = c.Append(one, b)
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("%w (%v)", err, last)
	}
	return nil
}

// heat lets a system compile itself.
func heat(ctx context.Context, p plan, s system, c cluster) {
	if s.Compiles {
		drive(ctx, 256, 0, p.Heat, appender(c, body(1024)))
	}
}

func appender(c cluster, b []byte) func(context.Context, uint64) error {
	return func(ctx context.Context, _ uint64) error {
		_, err := c.Append(ctx, b)
		return err
	}
}

// measureAppend runs every number in flight with every size on every system, round after round.
func measureAppend(ctx context.Context, p plan, systems []system, work string) []*measured {
	rate := newMeasured("append, throughput", "more", "appends/s")
	half := newMeasured("append, median latency", "less", "ms")
	most := newMeasured("append, 99% latency", "less", "ms")
	points := len(p.Sizes) * len(p.InFlight)
	p.says.steps(p.Rounds * len(systems) * points)
	for round := range p.Rounds {
		for _, s := range systems {
			if ctx.Err() != nil {
				break
			}
			d := probeDisk(work)
			c, done, _, ok := up(ctx, rate, s, work)
			if !ok {
				p.says.skip(points)
				continue
			}
			heat(ctx, p, s, c)
			for _, size := range p.Sizes {
				b := body(size)
				for _, k := range p.InFlight {
					p.says.step("%s, round %d of %d, %d B, %d in flight", s.Name, round+1, p.Rounds, size, k)
					r := drive(ctx, k, p.Warm, p.Run, appender(c, b))
					row := fmt.Sprintf("%d B, %d in flight", size, k)
					if r.Failed > 0 && ctx.Err() == nil {
						rate.note("%s, %s: %d failed: %s", s.Name, row, r.Failed, r.FirstErr)
					}
					if ctx.Err() != nil {
						break // only a part of the period was measured
					}
					p.says.got("%.0f/s, median %.2f ms, 99%% %.2f ms", r.PerSec, r.P50.Seconds()*1000, r.P99.Seconds()*1000)
					rate.add(row, s.Name, r.PerSec)
					if r.Ops > 0 {
						half.add(row, s.Name, r.P50.Seconds()*1000)
						most.add(row, s.Name, r.P99.Seconds()*1000)
					}
				}
			}
			done()
			rate.note("round %d, before %s: %v", round+1, s.Name, d)
		}
	}
	return []*measured{rate, half, most}
}

// measureBatch gives batches to a leader that is part of the load's process: no client and no client protocol.
func measureBatch(ctx context.Context, p plan, systems []system, work string) []*measured {
	const entries, size = 64, 1024
	m := newMeasured("batch append in process", "more", fmt.Sprintf("entries/s of %d B, %d a batch", size, entries))
	inFlight := []int{1, 16, 64}
	p.says.steps(p.Rounds * len(inFlight) * count(systems, func(s system) bool { return s.batches != nil }))
	for round := range p.Rounds {
		for _, s := range systems {
			if s.batches == nil || ctx.Err() != nil {
				continue
			}
			for _, k := range inFlight {
				p.says.step("%s, round %d of %d, %d batches in flight", s.Name, round+1, p.Rounds, k)
				dir, err := os.MkdirTemp(work, "batch-")
				if err == nil {
					var v float64
					if v, err = s.batches(ctx, p, dir, entries, size, k); v > 0 && ctx.Err() == nil {
						p.says.got("%.0f/s", v)
						m.add(fmt.Sprintf("%d batches in flight", k), s.Name, v)
					}
					err = errors.Join(err, os.RemoveAll(dir))
				}
				if err != nil {
					m.note("%s, %d in flight: %v", s.Name, k, err)
				}
			}
		}
	}
	return []*measured{m}
}

func cpuOf(c cluster) (sum time.Duration) {
	for _, pid := range c.Pids() {
		if _, cpu, err := harness.Usage(pid); err == nil { // a node that has just died counts no more
			sum += cpu
		}
	}
	return sum
}

func measureGet(ctx context.Context, p plan, systems []system, work string) []*measured {
	const entries, inFlight = 10_000, 256
	m := newMeasured("get", "more", "gets/s of 1 KiB, 256 in flight")
	reads := func(s system) bool { return !strings.HasPrefix(s.Name, "limit") }
	p.says.steps(count(systems, reads))
	for _, s := range systems {
		if !reads(s) || ctx.Err() != nil {
			continue
		}
		p.says.step("%s", s.Name)
		c, done, _, ok := up(ctx, m, s, work)
		if !ok {
			continue
		}
		b := body(1024)
		indexes := make([]uint64, entries)
		err := fill(ctx, p, entries, 256, func(ctx context.Context, i int) (err error) {
			indexes[i], err = c.Append(ctx, b)
			return err
		})
		if err != nil {
			m.note("%s: %v", s.Name, err)
			done()
			continue
		}
		heat(ctx, p, s, c)
		r := drive(ctx, inFlight, p.Warm, p.Run, func(ctx context.Context, i uint64) error {
			return c.Get(ctx, indexes[i*7919%entries])
		})
		if r.Failed > 0 {
			m.note("%s: %d failed: %s", s.Name, r.Failed, r.FirstErr)
		}
		if ctx.Err() == nil {
			p.says.got("%.0f/s", r.PerSec)
			m.add("random index", s.Name, r.PerSec)
		}
		done()
	}
	return []*measured{m}
}

// fill makes n calls of op, inFlight at a time, each tried until it works or the plan's limit has passed.
func fill(ctx context.Context, p plan, n, inFlight int, op func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	told := time.Now()
	work := make(chan int)
	errs := make(chan error, inFlight)
	for range inFlight {
		go func() {
			var last error
			for i := range work {
				for {
					one, cancel := context.WithTimeout(ctx, 5*time.Second)
					err := op(one, i)
					cancel()
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						last = err
						break
					}
					afterFailure(ctx)
				}
			}
			errs <- last
		}()
	}
	for i := range n {
		if time.Since(told) > fillTold {
			told = time.Now()
			p.says.got("%d of %d entries written", i, n)
		}
		work <- i
	}
	close(work)
	var failed error
	for range inFlight {
		if err := <-errs; err != nil {
			failed = fmt.Errorf("fill: %w", err)
		}
	}
	return failed
}

// fillTold is how often fill says how far it is.
const fillTold = 5 * time.Second

// count gives how many systems a measure takes.
func count(systems []system, take func(system) bool) (n int) {
	for _, s := range systems {
		if take(s) {
			n++
		}
	}
	return n
}

func measureStart(ctx context.Context, p plan, systems []system, work string) []*measured {
	m := newMeasured("start of three fresh nodes to the first acknowledged append", "less", "s")
	rounds := max(p.Rounds, 2)
	p.says.steps(rounds * count(systems, func(s system) bool { return !s.WayIn }))
	for round := range rounds {
		for _, s := range systems {
			if s.WayIn || ctx.Err() != nil {
				continue
			}
			p.says.step("%s, round %d of %d", s.Name, round+1, rounds)
			if _, done, took, ok := up(ctx, m, s, work); ok {
				p.says.got("%.2f s", took.Seconds())
				m.add("start", s.Name, took.Seconds())
				done()
			}
		}
	}
	return []*measured{m}
}

func measureFailover(ctx context.Context, p plan, systems []system, work string) []*measured {
	m := newMeasured("kill -9 of the leader to the next acknowledged append", "less", "s, each system's default timers")
	p.says.steps(p.Failovers * count(systems, system.whole))
	for _, s := range systems {
		if !s.whole() || ctx.Err() != nil {
			continue
		}
		c, done, _, ok := up(ctx, m, s, work)
		if !ok {
			p.says.skip(p.Failovers)
			continue
		}
		var all []float64
		for i := range p.Failovers {
			p.says.step("%s, kill %d of %d", s.Name, i+1, p.Failovers)
			took, err := failover(ctx, p.Limit, c)
			if err != nil {
				m.note("%s: %v", s.Name, err)
				p.says.skip(p.Failovers - i - 1)
				break
			}
			p.says.got("%.2f s", took.Seconds())
			all = append(all, took.Seconds())
		}
		if len(all) > 0 {
			m.add("median", s.Name, median(all))
			m.add("worst", s.Name, slices.Max(all))
		}
		done()
	}
	return []*measured{m}
}

// failover kills the leader, waits for an append, starts the node again and waits until it holds that append.
func failover(ctx context.Context, limit time.Duration, c cluster) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	leader := -1
	if err := harness.Until(ctx, "a leader", func() bool {
		var err error
		leader, err = c.Leader(ctx)
		return err == nil
	}); err != nil {
		return 0, err
	}
	c.Kill(leader)
	began := time.Now()
	if err := firstAppend(ctx, c, limit); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if err := c.Start(leader); err != nil {
		return 0, err
	}
	return took, whole(ctx, c, leader)
}

// whole appends one entry and waits until node has it.
func whole(ctx context.Context, c cluster, node int) error {
	var index uint64
	var why error
	return harness.Until(ctx, fmt.Sprintf("node %d to hold the last entry", node), func() bool {
		if index == 0 {
			one, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if index, why = c.Append(one, body(100)); why != nil {
				index = 0
				return false
			}
		}
		return c.Holds(ctx, node, index)
	})
}

// follower picks a node that does not lead.
func follower(ctx context.Context, c cluster) (int, error) {
	leader, err := c.Leader(ctx)
	return (leader + 1) % 3, err
}

func measureRestart(ctx context.Context, p plan, systems []system, work string) []*measured {
	m := newMeasured(fmt.Sprintf("kill -9 and restart of a follower with a log of %d MiB until it serves", p.LogSize>>20), "less", "s")
	p.says.steps(count(systems, system.whole))
	for _, s := range systems {
		if !s.whole() || ctx.Err() != nil {
			continue
		}
		p.says.step("%s", s.Name)
		c, done, _, ok := up(ctx, m, s, work)
		if !ok {
			continue
		}
		b := body(4096)
		err := fill(ctx, p, int(p.LogSize/4096), 256, func(ctx context.Context, _ int) error {
			_, err := c.Append(ctx, b)
			return err
		})
		for range 3 {
			if err != nil {
				break
			}
			var took time.Duration
			if took, err = restart(ctx, p.Limit, c); err == nil {
				p.says.got("%.2f s", took.Seconds())
				m.add("4 KiB entries", s.Name, took.Seconds())
			}
		}
		if err != nil {
			m.note("%s: %v", s.Name, err)
		}
		done()
	}
	return []*measured{m}
}

func restart(ctx context.Context, limit time.Duration, c cluster) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	node, err := follower(ctx, c)
	if err != nil {
		return 0, err
	}
	if err := whole(ctx, c, node); err != nil {
		return 0, err
	}
	c.Kill(node)
	began := time.Now()
	if err := c.Start(node); err != nil {
		return 0, err
	}
	err = whole(ctx, c, node)
	return time.Since(began), err
}

func measureUsage(ctx context.Context, p plan, systems []system, work string) []*measured {
	m := newMeasured("memory and processor of all three nodes", "less", "see rows")
	p.says.steps(count(systems, func(s system) bool { return !s.Embedded }))
	for _, s := range systems {
		if s.Embedded || ctx.Err() != nil {
			continue
		}
		p.says.step("%s", s.Name)
		c, done, _, ok := up(ctx, m, s, work)
		if !ok {
			continue
		}
		idle := time.NewTimer(p.Idle)
		cpu, began := cpuOf(c), time.Now()
		select {
		case <-idle.C:
		case <-ctx.Done():
		}
		m.add("idle, % of one core", s.Name, 100*(cpuOf(c)-cpu).Seconds()/time.Since(began).Seconds())
		m.add("idle RSS, MiB", s.Name, rssOf(c))
		heat(ctx, p, s, c)
		cpu, own := cpuOf(c), ownCPU()
		r := drive(ctx, 64, 0, p.Run+p.Warm, appender(c, body(1024)))
		if r.Ops > 0 {
			m.add("CPU/append, 1 KiB × 64, µs", s.Name, float64((cpuOf(c)-cpu).Microseconds())/float64(r.Ops))
			m.add("same, the client's, µs", s.Name, float64((ownCPU()-own).Microseconds())/float64(r.Ops))
		}
		m.add("loaded RSS, MiB", s.Name, rssOf(c))
		p.says.got("idle %s MiB and %s %% of a core, loaded %s MiB", figure(m.Cells["idle RSS, MiB"][s.Name]), figure(m.Cells["idle, % of one core"][s.Name]),
			figure(m.Cells["loaded RSS, MiB"][s.Name]))
		done()
	}
	return []*measured{m}
}

func rssOf(c cluster) float64 {
	var sum int64
	for _, pid := range c.Pids() {
		if rss, _, err := harness.Usage(pid); err == nil {
			sum += rss
		}
	}
	return float64(sum) / (1 << 20)
}
