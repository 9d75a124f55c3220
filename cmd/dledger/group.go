package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"dledger/client"
)

// defaultPeers are the nodes that "dledger up" starts, one or three of them.
const defaultPeers = "n0-127.0.0.1:20911;n1-127.0.0.1:20921;n2-127.0.0.1:20931"

// group is what every client command is told of the group it talks to.
type group struct {
	name    string
	peers   string
	timeout time.Duration
	json    bool // print JSON
}

func (g *group) flags(cmd *cobra.Command, timeout time.Duration, what string) {
	f := cmd.Flags()
	f.StringVarP(&g.name, "group", "g", client.DefaultGroup, "group")
	f.StringVarP(&g.peers, "peers", "p", defaultPeers, "nodes of the group, id-host:port joined by ';'; one that runs is enough")
	f.DurationVar(&g.timeout, "timeout", timeout, what)
	f.BoolVar(&g.json, "json", false, "print JSON, one object a line")
}

// dial makes the client. cfg may hold further settings.
func (g *group) dial(cfg client.Config) (*client.Client, error) {
	peers, err := client.ParsePeers(g.peers)
	if err != nil {
		return nil, usage("--peers: %w", err)
	}
	if g.name == "" {
		return nil, usage("--group \"\": name a group")
	}
	if g.timeout <= 0 {
		return nil, usage("--timeout %v: must be above 0", g.timeout)
	}
	cfg.Group, cfg.Peers = g.name, peers
	return client.New(cfg)
}

// context gives a context that ends after the timeout.
func (g *group) context(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(cmd.Context(), g.timeout, fmt.Errorf("--timeout %v passed", g.timeout))
}

// printer writes results as text or as JSON, and keeps the first error so that a closed pipe ends the command.
type printer struct {
	w    io.Writer
	json *json.Encoder // nil for text
}

func newPrinter(w io.Writer, asJSON bool) *printer {
	p := &printer{w: w}
	if asJSON {
		p.json = json.NewEncoder(w)
		p.json.SetEscapeHTML(false)
	}
	return p
}

// print writes v as JSON, or else the text.
func (p *printer) print(v any, format string, a ...any) error {
	if p.json != nil {
		return p.json.Encode(v)
	}
	_, err := fmt.Fprintf(p.w, format, a...)
	return err
}

// isTerminal tells whether somebody watches w.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// progress is a line on the terminal that is written over and over.
type progress struct {
	w    io.Writer // nil: nobody watches
	next time.Time
}

const progressEvery = 200 * time.Millisecond

func newProgress(w io.Writer) *progress {
	p := &progress{next: time.Now().Add(time.Second)} // short work needs no line
	if isTerminal(w) {
		p.w = w
	}
	return p
}

// show replaces the line, if it is time to.
func (p *progress) show(line func() string) {
	if now := time.Now(); p.w != nil && now.After(p.next) {
		p.next = now.Add(progressEvery)
		fmt.Fprintf(p.w, "\r\033[K%s", line())
	}
}

// clear removes the line.
func (p *progress) clear() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\033[K")
	}
}
