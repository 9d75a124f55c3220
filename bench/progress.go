package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress says on standard error what is being measured and what has come out, while the tables on standard output are still to come.
type progress struct {
	w     io.Writer
	began time.Time // of the run

	mu      sync.Mutex
	measure string // and which of how many it is
	n, of   int    // steps of the measure
}

func newProgress(w io.Writer) *progress { return &progress{w: w, began: time.Now()} }

// begin names the measure that comes next, the i-th of n, counted from 1.
func (p *progress) begin(name string, i, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.measure, p.n, p.of = fmt.Sprintf("%s (measure %d of %d)", name, i, n), 0, 0
}

// steps says how many steps the measure has.
func (p *progress) steps(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n, p.of = 0, n
}

// step begins one.
func (p *progress) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	fmt.Fprintf(p.w, "%8v  %s, %d of %d: %s\n", time.Since(p.began).Round(time.Second), p.measure, p.n, p.of, fmt.Sprintf(format, args...))
}

// skip leaves out n steps, of a system that did not come up.
func (p *progress) skip(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n += n
}

// got tells a figure, or how far the present step is.
func (p *progress) got(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%8v    %s\n", time.Since(p.began).Round(time.Second), fmt.Sprintf(format, args...))
}
