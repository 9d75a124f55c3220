package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// run is what one period of load measured.
type run struct {
	Ops      int64         `json:"ops"` // completed after the warm-up
	Failed   int64         `json:"failed"`
	Seconds  float64       `json:"seconds"`
	PerSec   float64       `json:"perSec"`
	P50      time.Duration `json:"p50ns"`
	P99      time.Duration `json:"p99ns"`
	Max      time.Duration `json:"maxNs"`
	FirstErr string        `json:"firstError,omitempty"`
}

// body gives size bytes that do not compress, the same ones to every system.
func body(size int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(size)))
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// drive keeps inFlight calls of op under way for warm + d and measures those that end after warm. i counts calls from 0.
func drive(ctx context.Context, inFlight int, warm, d time.Duration, op func(ctx context.Context, i uint64) error) run {
	var next atomic.Uint64
	var failed atomic.Int64
	var firstErr atomic.Pointer[string]
	start := time.Now()
	from, to := start.Add(warm), start.Add(warm+d)
	took := make([][]time.Duration, inFlight)
	var wait sync.WaitGroup
	for g := range inFlight {
		wait.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if began.After(to) {
					return
				}
				call, cancel := context.WithTimeout(ctx, 10*time.Second)
				err := op(call, next.Add(1)-1)
				cancel()
				ended := time.Now()
				switch {
				case err != nil:
					failed.Add(1)
					s := err.Error()
					firstErr.CompareAndSwap(nil, &s)
					afterFailure(ctx)
				case ended.After(from) && !ended.After(to):
					took[g] = append(took[g], ended.Sub(began))
				}
			}
		})
	}
	wait.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	r := run{Failed: failed.Load(), Seconds: d.Seconds()}
	if s := firstErr.Load(); s != nil {
		r.FirstErr = *s
	}
	r.summarize(all)
	return r
}

// summarize takes in how long calls took, shortest first.
func (r *run) summarize(took []time.Duration) {
	n := len(took)
	r.Ops, r.PerSec = int64(n), float64(n)/r.Seconds
	if n > 0 {
		r.P50, r.P99, r.Max = took[n/2], took[n*99/100], took[n-1]
	}
}

// afterFailure waits a little: refusals come quickly, and a group without a leader has better things to do than refuse.
func afterFailure(ctx context.Context) {
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// ownCPU is the processor time this process, the load, has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only a bad argument makes it fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
