package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine tells what the figures depend on.
func machine(dir string) map[string]string {
	m := map[string]string{"go": runtime.Version(), "cpus": fmt.Sprint(runtime.NumCPU()), "arch": runtime.GOARCH}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m["kernel"] = unix.ByteSliceToString(u.Release[:])
	}
	m["cpu"] = field("/proc/cpuinfo", "model name")
	m["memory"] = field("/proc/meminfo", "MemTotal")
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		m["filesystem"] = fmt.Sprintf("type %#x", fs.Type)
	}
	m["disk"] = probeDisk(dir).String()
	return m
}

func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// disk is how long one write of 4 KiB with fdatasync takes, into a file whose space is allocated.
type disk struct {
	P50, P99 time.Duration
	err      error
}

func (d disk) String() string {
	if d.err != nil {
		return d.err.Error()
	}
	return fmt.Sprintf("4 KiB write + fdatasync: median %v, 99%% %v", d.P50.Round(time.Microsecond), d.P99.Round(time.Microsecond))
}

func probeDisk(dir string) disk {
	name := filepath.Join(dir, "probe")
	f, err := os.Create(name)
	if err != nil {
		return disk{err: err}
	}
	defer os.Remove(name)
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 4<<20); err != nil {
		return disk{err: err}
	}
	b := make([]byte, 4096)
	var took []time.Duration
	for at, start := int64(0), time.Now(); time.Since(start) < 200*time.Millisecond; at = (at + 4096) % (4 << 20) {
		began := time.Now()
		if _, err := f.WriteAt(b, at); err != nil {
			return disk{err: err}
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return disk{err: err}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return disk{P50: took[len(took)/2], P99: took[len(took)*99/100]}
}

func printFacts(r report) {
	var keys []string
	for k := range r.Machine {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Printf("%-11s %s\n", k, r.Machine[k])
	}
	fmt.Printf("%-11s %d round(s), %v warm-up, %v measured\n\n", "plan", r.Plan.Rounds, r.Plan.Warm, r.Plan.Run)
	for _, s := range r.Systems {
		kind := "acks from page cache"
		if s.Synced {
			kind = "acks after sync"
		}
		fmt.Printf("%-17s %-20s %s\n", s.Name, kind, s.Note)
	}
	for _, m := range r.Missing {
		fmt.Println("missing:", m)
	}
}
