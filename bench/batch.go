package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"dledger/interop/harness"
	"dledger/interop/original"
)

// embeddedBatches proposes batches to a leader within this process; the two followers are processes.
func embeddedBatches(ctx context.Context, p plan, dir, program, durability string, n, size, inFlight int) (float64, error) {
	c, err := startInProcess(dir, program, durability)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	l := c.(*inProcess).l
	bodies := slices.Repeat([][]byte{body(size)}, n)
	r := drive(ctx, inFlight, p.Warm, p.Run, func(ctx context.Context, _ uint64) error {
		_, err := l.Propose(bodies, nil).Wait(ctx)
		return err
	})
	if r.Failed > 0 {
		err = fmt.Errorf("%d batches failed: %s", r.Failed, r.FirstErr)
	}
	return r.PerSec * float64(n), err
}

// originalBatches runs Batch.java, in which all three members are in one process: the original has no way to have only the leader there.
func originalBatches(ctx context.Context, p plan, kit *original.Kit, dir string, n, size, inFlight int) (float64, error) {
	addrs, err := freeAddrs()
	if err != nil {
		return 0, err
	}
	var peers []string
	for i, a := range addrs {
		peers = append(peers, fmt.Sprintf("n%d-%s", i, a))
	}
	jvm := []string{"-Xms512m", "-Xmx2g"} // three members are in it
	warm := max(p.Warm, p.Heat)
	limit, cancel := context.WithTimeout(ctx, warm+p.Run+60*time.Second)
	defer cancel()
	out, err := harness.Run(limit, kit.Batch(jvm, dir, strings.Join(peers, ";"), dir, n, size, inFlight, warm, p.Run)...)
	if err != nil {
		return 0, err
	}
	var r struct {
		Entries, Failed int64
		MS              int64
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		return 0, fmt.Errorf("output of the original: %w", err)
	}
	if r.Failed > 0 {
		err = fmt.Errorf("%d batches failed", r.Failed)
	}
	return float64(r.Entries) * 1000 / float64(r.MS), err
}
