// Command bench compares our log with others, on this machine, in one run: three processes each, over loopback, the same bodies.
//
//	go run . -quick                     everything, briefly (about six minutes)
//	go run . -only 'ours|hashi' -measure append
//	go run . -full -json result.json
//
// While it measures it says on standard error what it is at, how far it is, and each figure. It prints a table per measure with the ratio to ours, also when it is
// interrupted. Systems whose acknowledgement means "on two disks" and those whose
// acknowledgement means "in two page caches" are compared among themselves only. Rounds go through all systems in turn and the
// median of the rounds is kept, because the disk of a rented machine drifts; a probe of it is printed beside each round.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// plan says how long and how often.
type plan struct {
	Rounds    int           `json:"rounds"`
	Warm      time.Duration `json:"warmNs"`
	Run       time.Duration `json:"runNs"`
	InFlight  []int         `json:"inFlight"`
	Sizes     []int         `json:"sizes"`
	Failovers int           `json:"failovers"`
	Behind    int64         `json:"behindBytes"` // catch-up
	LogSize   int64         `json:"logBytes"`    // restart
	Idle      time.Duration `json:"idleNs"`
	Heat      time.Duration `json:"heatNs"`  // load before a system that compiles while it runs is measured
	Limit     time.Duration `json:"limitNs"` // for filling a log, a failover, a catch-up, a restart: what takes longer becomes a note

	says *progress
}

var plans = map[string]plan{
	"quick":  {1, 300 * time.Millisecond, 700 * time.Millisecond, []int{1, 64, 256}, []int{128, 1024}, 1, 16 << 20, 16 << 20, 2 * time.Second, 4 * time.Second, 30 * time.Second, nil},
	"normal": {3, 500 * time.Millisecond, 2 * time.Second, []int{1, 16, 64, 256}, []int{128, 1024, 4096}, 5, 100 << 20, 256 << 20, 5 * time.Second, 15 * time.Second, 2 * time.Minute, nil},
	"full":   {3, time.Second, 5 * time.Second, []int{1, 16, 64, 256}, []int{128, 1024, 4096}, 20, 500 << 20, 1 << 30, 10 * time.Second, 30 * time.Second, 10 * time.Minute, nil},
}

// report is what -json writes.
type report struct {
	Machine  map[string]string `json:"machine"`
	Plan     plan              `json:"plan"`
	Systems  []system          `json:"systems"`
	Missing  []string          `json:"missing,omitempty"`
	Measures []*measured       `json:"measures"`
}

func main() {
	var (
		quick   = flag.Bool("quick", false, "a whole run in about six minutes")
		full    = flag.Bool("full", false, "long periods, 20 failovers, 500 MiB and 1 GiB logs")
		only    = flag.String("only", "", "regular expression: names of the systems to measure")
		which   = flag.String("measure", strings.Join(measureNames(), ","), "measures, comma-separated")
		out     = flag.String("json", "", "also write the figures to this file")
		dir     = flag.String("dir", "", "where the data goes (default: a temporary directory)")
		dledger = flag.String("dledger", "", "our program (default: built from the tree this module lies in)")
		node    nodeFlags
	)
	node.register()
	flag.Parse()
	if node.role != "" {
		fatal(node.run())
	}
	name := "normal"
	if *quick {
		name = "quick"
	} else if *full {
		name = "full"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, plans[name], *only, strings.Split(*which, ","), *out, *dir, *dledger); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func compare(ctx context.Context, p plan, only string, which []string, out, dir, dledger string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	for _, name := range which {
		if measures[name] == nil {
			return fmt.Errorf("-measure: no measure %q, there are %s", name, strings.Join(measureNames(), ", "))
		}
	}
	work, err := os.MkdirTemp(dir, "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) // what is left is only data of this run
	if dledger, err = program(ctx, dledger, work); err != nil {
		return err
	}
	r := report{Machine: machine(work), Plan: p}
	all, missing := systems(ctx, dledger)
	r.Missing = missing
	for _, s := range all {
		if match.MatchString(s.Name) {
			r.Systems = append(r.Systems, s)
		}
	}
	if len(r.Systems) == 0 {
		return fmt.Errorf("-only: no system matches %q", only)
	}
	printFacts(r)
	p.says = newProgress(os.Stderr)
	for i, name := range which {
		p.says.begin(name, i+1, len(which))
		tables := measures[name](ctx, p, r.Systems, work)
		for _, t := range tables {
			if len(t.Rows) > 0 || ctx.Err() == nil {
				t.print(os.Stdout, r.Systems)
			}
		}
		r.Measures = append(r.Measures, tables...)
		if err := r.write(out); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted in the measure %s: the tables hold what there was", name)
		}
	}
	fmt.Printf("\ntook %v\n", time.Since(p.says.began).Round(time.Second))
	return nil
}

// write puts what there is so far into the file that -json names, if it names one.
func (r *report) write(name string) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// nodeFlags are the hidden flags that make this program one node of a peer.
type nodeFlags struct {
	role, peers, addrs, dir string
	id                      int
	sync                    bool
}

func (n *nodeFlags) register() {
	flag.StringVar(&n.role, "role", "", "internal: be a node of a peer")
	flag.IntVar(&n.id, "id", 0, "internal")
	flag.StringVar(&n.peers, "peers", "", "internal")
	flag.StringVar(&n.addrs, "addrs", "", "internal")
	flag.StringVar(&n.dir, "node-dir", "", "internal")
	flag.BoolVar(&n.sync, "sync", false, "internal")
}

func (n *nodeFlags) run() error {
	peers, addrs := strings.Split(n.peers, ","), strings.Split(n.addrs, ",")
	switch n.role {
	case "limit":
		f, err := openLimitFile(n.dir, n.sync)
		if err != nil {
			return err
		}
		if n.id > 0 {
			return limitFollower(peers[n.id], f)
		}
		return limitLead(addrs[0], peers[1:], f)
	case "hraft":
		return hraftNode(n.id, peers, addrs, n.dir)
	case "nats":
		return natsNode(n.id, peers, addrs, n.dir, n.sync)
	}
	return fmt.Errorf("no role %q", n.role)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}
