package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"dledger"
	"dledger/client"
	"dledger/internal/vfs"
)

// upFlags are those of `dledger up`.
type upFlags struct {
	nodes, portBase        int
	namesBase, brokersBase int // 0 = as the other ports say
	only                   string
	dir                    string
	restart                bool
	set                    []string
}

// loopback is where everything of `up` listens: there is no authentication, and nobody else is meant to reach it.
const loopback = "127.0.0.1"

const (
	upPort  = 20911 // below the ports that systems give to outgoing connections
	upStep  = 10    // between two nodes
	upGroup = client.DefaultGroup

	upNames      = 9876  // port of the first name server, where stock clients look for it
	upBrokers    = 10911 // and of the first broker, if portBase is upPort; else portBase + 1 and + 100
	upBrokerStep = 100   // between the ports of two broker groups on one node

	stopTimeout = 8 * time.Second // for a child to stop cleanly
)

func newUp() *cobra.Command {
	var o upFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run everything on this machine, from nothing: name server, broker, log",
		Long: `Runs a name server, a RocketMQ broker and a log group on this machine, on loopback: one node in this process, or three nodes in
a process each. Stock RocketMQ clients find the name server at 127.0.0.1:9876, the other commands find the log group, both without
flags. Ctrl-C stops all nodes; the data stays, and the next "dledger up" goes on with it. A new directory takes 1.3 GiB of disk for one
node and 4.7 GiB for three, since files are made at their full size.

Each of three nodes holds a name server and a replica of three broker groups, and leads one of them. Each can be killed by itself: the
others go on. A node that ended stays away until it is started again by hand, with the command that is printed, or by --restart.`,
		Example: `  dledger up
  dledger up --nodes 3 --dir /tmp/log
  dledger up --nodes 3 --set durability=async`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.nodes != 1 && o.nodes != 3 {
				return usage("--nodes %d: 1 or 3", o.nodes)
			}
			if last := o.portBase + upStep*(o.nodes-1); o.portBase < 1 || last > 65535 {
				return usage("--port-base %d: ports %d to %d do not exist", o.portBase, o.portBase, last)
			}
			if err := o.ports(); err != nil {
				return err
			}
			dir, err := upDir(o.dir)
			if err != nil {
				return err
			}
			o.dir = dir
			u := newGroupUp(&o, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err := u.check(); err != nil {
				return err
			}
			if o.nodes == 1 || o.only != "" {
				return u.runHere(cmd.Context())
			}
			return u.runChildren(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVarP(&o.nodes, "nodes", "n", 1, "number of nodes, 1 or 3")
	f.StringVar(&o.dir, "dir", "", "directory for the data (default $XDG_DATA_HOME/dledger or ~/.local/share/dledger)")
	f.IntVar(&o.portBase, "port-base", upPort, "port of the first node; the others follow in steps of 10")
	f.BoolVar(&o.restart, "restart", false, "start a node again that ended")
	f.IntVar(&o.namesBase, "namesrv-port", 0, "port of the first name server; the others follow in steps of 10 (default 9876, or with --port-base that + 1)")
	f.IntVar(&o.brokersBase, "broker-port", 0, "port of the first broker; other nodes follow in steps of 10, other groups in steps of 100 (default 10911, or with --port-base that + 100)")
	f.StringVar(&o.only, "only", "", "run only this node of --nodes 3, in this process: n0, n1 or n2")
	f.StringArrayVar(&o.set, "set", nil, "set a key of the log on all nodes, KEY=VALUE, see dledger server --help")
	return cmd
}

// upKeys are those that cannot be alike on all nodes and for all logs, or that `up` settles.
var upKeys = []string{"group", "selfId", "peers", "storeBaseDir", "dataStorePath", "readOnlyDataStoreDirs", "logBindAddress"}

// ports settles the ports that were not given, and checks that all exist.
func (o *upFlags) ports() error {
	if o.only != "" && (o.nodes != 3 || !slices.Contains([]string{"n0", "n1", "n2"}, o.only)) {
		return usage("--only %q: n0, n1 or n2, together with --nodes 3", o.only)
	}
	if o.namesBase == 0 {
		o.namesBase = o.portBase + 1
		if o.portBase == upPort {
			o.namesBase = upNames
		}
	}
	if o.brokersBase == 0 {
		o.brokersBase = o.portBase + upBrokerStep
		if o.portBase == upPort {
			o.brokersBase = upBrokers
		}
	}
	if last := o.namesPort(o.nodes - 1); o.namesBase < 1 || last > 65535 {
		return usage("--namesrv-port %d: ports %d to %d do not exist", o.namesBase, o.namesBase, last)
	}
	if last := o.brokerPort(o.nodes-1, o.nodes-1); o.brokersBase < 3 || last > 65535 {
		return usage("--broker-port %d: ports %d to %d do not exist", o.brokersBase, o.brokersBase, last)
	}
	return nil
}

func (o *upFlags) namesPort(node int) int { return o.namesBase + upStep*node }
func (o *upFlags) brokerPort(node, group int) int {
	return o.brokersBase + upStep*node + upBrokerStep*group
}

// upDir gives the absolute directory for the data.
func upDir(dir string) (string, error) {
	if dir == "" {
		base := os.Getenv("XDG_DATA_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", fmt.Errorf("no place for the data, give --dir: %w", err)
			}
			base = filepath.Join(home, ".local", "share")
		}
		dir = filepath.Join(base, "dledger")
	}
	return filepath.Abs(dir)
}

// groupUp is a group that `up` runs.
type groupUp struct {
	upFlags
	out, err io.Writer
	ids      []string
	peers    map[string]string
	program  string                          // for command lines that are printed
	free     func(dir string) (int64, error) // bytes of its file system; a test has its own
}

func newGroupUp(o *upFlags, out, stderr io.Writer) *groupUp {
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	u := &groupUp{upFlags: *o, out: out, err: stderr, peers: make(map[string]string), free: freeBytes, program: programName(os.Args[0], executable)}
	for i := range o.nodes {
		id := "n" + strconv.Itoa(i)
		u.ids = append(u.ids, id)
		u.peers[id] = net.JoinHostPort(loopback, strconv.Itoa(o.portBase+upStep*i))
	}
	return u
}

func (u *groupUp) root(id string) string { return filepath.Join(u.dir, "dledger-"+id) }

// check finds out beforehand what would make the start fail.
func (u *groupUp) check() error {
	for _, s := range u.set {
		if key, _, _ := strings.Cut(s, "="); slices.Contains(upKeys, strings.TrimSpace(key)) {
			return usage("--set %s: up says itself where its nodes are and what they are called; see dledger server", s)
		}
	}
	exists := func(id string) bool {
		_, err := os.Stat(u.root(id))
		return err == nil
	}
	switch {
	case u.only != "": // its parent has looked
	case u.nodes == 1 && (exists("n1") || exists("n2")):
		return fmt.Errorf("%s holds a group of 3 nodes: run it with --nodes 3, or give another --dir", u.dir)
	case u.nodes == 3 && exists("n0") && !exists("n1") && !exists("n2"):
		return fmt.Errorf("%s holds a group of 1 node: run it without --nodes 3, or give another --dir", u.dir)
	}
	for i, id := range u.ids {
		if u.only != "" && u.only != id {
			continue
		}
		needed := []string{port(u.peers[id]), strconv.Itoa(u.namesPort(i))}
		for g := range u.groups() {
			needed = append(needed, strconv.Itoa(u.brokerPort(i, g)))
		}
		for _, port := range needed {
			l, err := net.Listen("tcp", net.JoinHostPort(loopback, port))
			if err != nil {
				return fmt.Errorf("port %s for %s cannot be used, is another group running? (see --port-base): %w", port, id, err)
			}
			if err := l.Close(); err != nil {
				return err
			}
		}
	}
	c := dledger.Config{ID: u.ids[0], Peers: client.FormatPeers(u.peers), Dir: u.dir}
	if err := set(&c, u.set, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return usage("--set: %w", err)
	}
	if err := os.MkdirAll(u.dir, 0o755); err != nil {
		return err
	}
	return u.room()
}

// room checks that there is space for the files of new logs: each is made at its full size.
func (u *groupUp) room() error {
	if u.only != "" {
		return nil // its parent has looked
	}
	need := int64(0)
	count := func(root string, data, index int64) error {
		c := dledger.Config{DataFileSize: data, IndexFileSize: index}
		if err := set(&c, u.set, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		if files, err := os.ReadDir(filepath.Join(root, "data")); !c.Memory && (err != nil || len(files) == 0) {
			need += c.DataFileSize + c.IndexFileSize
		}
		return nil
	}
	for _, id := range u.ids {
		if err := count(u.root(id), dledger.DefaultDataFileSize, dledger.DefaultIndexFileSize); err != nil {
			return err
		}
		for _, name := range u.groups() {
			if err := count(filepath.Join(u.brokerDir(name, id), "dledger-"+id), upDataFile, upIndexFile); err != nil {
				return err
			}
		}
	}
	free, err := u.free(u.dir)
	if err != nil || free >= need { // if nobody knows, the start will tell
		return nil
	}
	return fmt.Errorf("%s has %s free, but the files of new logs take %s, since each is made at its full size: give another --dir, or make them smaller with --set mappedFileSizeForEntryData=BYTES and mappedFileSizeForEntryIndex=BYTES",
		u.dir, gibibytes(free), gibibytes(need))
}

// gibibytes gives n with one digit behind the point.
func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

func freeBytes(dir string) (int64, error) {
	s, err := vfs.OS().Space(dir)
	return s.Free, err
}

// runHere runs one node in this process: the only one, or the one that a child is for. It ends with ctx, or when a broker has stopped by itself.
func (u *groupUp) runHere(ctx context.Context) error {
	level := slog.LevelWarn
	if u.only != "" {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(u.err, &slog.HandlerOptions{Level: level}))
	i := max(0, slices.Index(u.ids, u.only))
	node := dledger.Config{Group: upGroup, ID: u.ids[i], Peers: client.FormatPeers(u.peers), Dir: u.dir, Bind: loopback, Logger: log}
	if err := set(&node, u.set, log); err != nil {
		return err
	}
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- serve(ctx, []dledger.Config{node}, log, "", "", len(u.groups()), func(s *dledger.Server) (func() error, error) { return u.beside(parent, cancel, i, s, log) })
	}()
	if u.only != "" {
		return <-served // the parent says what is to be said
	}
	led := u.await(ctx)
	for {
		select {
		case err := <-served:
			return err
		case leader := <-led:
			u.welcome(leader, func(string) int { return os.Getpid() })
			led = nil
		}
	}
}

// answerTimeout is how long all nodes have to answer once there is a leader: one that does not start says so within that time.
const answerTimeout = 5 * time.Second

// await looks for the leader in the background, and for all nodes to answer; the channel gives the leader's id, or nothing if ctx ends
// before.
func (u *groupUp) await(ctx context.Context) <-chan string {
	led := make(chan string, 1)
	go func() {
		c, err := client.New(client.Config{Group: upGroup, Peers: u.peers})
		if err != nil {
			return // the nodes refuse such a configuration, too, and say so
		}
		defer c.Close()
		leader, err := c.Leader(ctx)
		if err != nil {
			return
		}
		all, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		for all.Err() == nil {
			nodes := c.Status(all)
			if now := leaderOf(nodes); now != "" {
				leader = now
			}
			if !slices.ContainsFunc(nodes, func(n client.NodeStatus) bool { return n.Err != nil }) {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-all.Done():
			}
		}
		u.awaitBrokers(all)
		led <- leader
	}()
	return led
}

// welcome says what runs where, and what to try.
func (u *groupUp) welcome(leader string, pid func(id string) int) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "dledger %s\n\nRocketMQ name server  %s\n", dledger.Version, u.nameServers())
	for g, name := range u.groups() {
		var addresses []string
		for i := range u.ids {
			addresses = append(addresses, u.brokerAddress(i, g))
		}
		fmt.Fprintf(&b, "%s  %s\n", name, strings.Join(addresses, " "))
	}
	fmt.Fprintf(&b, "\nLog group %s\n", upGroup)
	for _, id := range u.ids {
		role := "follower"
		if id == leader {
			role = "leader"
		}
		fmt.Fprintf(&b, "  %s  %s  pid %d  %-8s  %s\n", id, u.peers[id], pid(id), role, u.root(id))
	}
	if u.nodes > 1 {
		fmt.Fprintf(&b, "logs: %s\n", u.logFile("nX"))
	}
	peers := ""
	if u.portBase != upPort {
		peers = fmt.Sprintf(" -p '%s'", client.FormatPeers(u.peers))
	}
	fmt.Fprintf(&b, "\nTry, in another terminal, a stock RocketMQ client, or the log:\n  (cd interop/mq && go run ./hello -n '%s')\n", u.nameServers())
	for _, command := range []string{"append" + peers + " -d hello", "get" + peers + " -i 0", "status" + peers} {
		fmt.Fprintf(&b, "  %s %s\n", u.program, command)
	}
	if u.nodes > 1 {
		fmt.Fprintf(&b, "  kill -9 %d\n", pid(leader))
	}
	fmt.Fprintln(&b, "\nCtrl-C stops the group; the data stays.")
	u.print(b.String())
}

// print tells the user something. Nobody may be there any more to read it, which does not concern the nodes.
func (u *groupUp) print(text string) { _, _ = io.WriteString(u.out, text) }

// child is a node in a process of its own.
type child struct {
	id   string
	cmd  *exec.Cmd
	ends int // times it ended in a row soon after its start
	from time.Time
}

// ended is a child's end on its way to the loop.
type ended struct {
	*child
	err error
}

func (u *groupUp) logFile(id string) string { return filepath.Join(u.dir, id+".log") }

func (u *groupUp) args(id string) []string {
	args := []string{"up", "--nodes", strconv.Itoa(u.nodes), "--only", id, "--dir", u.dir}
	if u.portBase != upPort {
		args = append(args, "--port-base", strconv.Itoa(u.portBase))
	}
	args = append(args, "--namesrv-port", strconv.Itoa(u.namesBase), "--broker-port", strconv.Itoa(u.brokersBase))
	for _, s := range u.set {
		args = append(args, "--set", s)
	}
	return args
}

// runChildren runs each node in a process, until ctx ends.
func (u *groupUp) runChildren(ctx context.Context) error {
	// A child gets SIGINT when the thread ends that started it, so this one has to last as long as this function.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ends := make(chan ended, len(u.ids))
	running := make(map[string]*child)
	defer func() { u.stop(running, ends) }()
	for _, id := range u.ids {
		c := &child{id: id}
		if err := u.start(c, ends); err != nil {
			return err
		}
		running[id] = c
	}
	lookCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	led := u.await(lookCtx)
	welcomed := false
	restart := make(chan *child, len(u.ids))
	for {
		select {
		case <-ctx.Done():
			return nil
		case leader := <-led:
			led, welcomed = nil, true
			u.welcome(leader, func(id string) int {
				if c := running[id]; c != nil {
					return c.cmd.Process.Pid
				}
				return 0
			})
		case e := <-ends:
			delete(running, e.id)
			if !welcomed && !killed(e.err) {
				return fmt.Errorf("%s did not start: %s", e.id, u.lastWords(e))
			}
			u.print(fmt.Sprintf("%s (pid %d) ended: %s\n", e.id, e.cmd.Process.Pid, u.lastWords(e)))
			switch {
			case u.restart:
				e.child.again(restart)
			case len(running) == 0:
				return errors.New("all nodes have ended")
			default:
				u.print("start it again with: " + u.commandLine(e.id) + "\n")
			}
		case c := <-restart:
			if err := u.start(c, ends); err != nil {
				return err
			}
			running[c.id] = c
			u.print(fmt.Sprintf("%s started again, pid %d\n", c.id, c.cmd.Process.Pid))
		}
	}
}

// again hands c to restart: at once, or later if it did not last.
func (c *child) again(restart chan<- *child) {
	if time.Since(c.from) > 10*time.Second {
		c.ends = 0
	}
	pause := time.Duration(0)
	if c.ends++; c.ends > 1 {
		pause = min(time.Second<<(c.ends-2), 30*time.Second)
	}
	time.AfterFunc(pause, func() { restart <- c })
}

// start starts the process; its end comes by ends.
func (u *groupUp) start(c *child, ends chan<- ended) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(u.logFile(c.id), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	c.cmd = exec.Command(program, u.args(c.id)...)
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // Ctrl-C is for this process, which then stops the children in its own way
		Pdeathsig: syscall.SIGINT,
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.id, err)
	}
	c.from = time.Now()
	started := &child{id: c.id, cmd: c.cmd, ends: c.ends, from: c.from}
	go func() { ends <- ended{started, started.cmd.Wait()} }()
	return nil
}

// stop ends all children and waits for them.
func (u *groupUp) stop(running map[string]*child, ends <-chan ended) {
	signal := func(s os.Signal) {
		for _, c := range running {
			if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				u.print(fmt.Sprintf("stop %s: %v\n", c.id, err))
			}
		}
	}
	signal(syscall.SIGINT) // all of them: no client finds another replica, so none is waited for
	deadline := time.After(stopTimeout)
	for len(running) > 0 {
		select {
		case e := <-ends:
			delete(running, e.id)
		case <-deadline:
			u.print("some nodes do not stop and are killed\n")
			signal(syscall.SIGKILL)
		}
	}
}

// killed tells whether a process was ended from outside.
func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// lastWords says why a child ended: its error line if it failed, else how it ended.
func (u *groupUp) lastWords(e ended) string {
	how := "exit code 0"
	if e.err != nil {
		how = e.err.Error()
	}
	if killed(e.err) {
		return how
	}
	text, err := os.ReadFile(u.logFile(e.id))
	if err != nil {
		return how
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last, ok := strings.CutPrefix(lines[len(lines)-1], "dledger: "); ok && e.err != nil {
		return last
	}
	return how + ", see " + u.logFile(e.id)
}

// commandLine is what starts a node by hand.
func (u *groupUp) commandLine(id string) string {
	parts := []string{u.program}
	for _, a := range u.args(id) {
		parts = append(parts, quoted(a))
	}
	return strings.Join(parts, " ")
}

// quoted is a word of a command line as a shell reads it.
func quoted(word string) string {
	if strings.ContainsAny(word, " ;'\"$&|<>()*?\\") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// programName is how this program can be started again, in the same directory: as it was started, or where `go run` has built it for once, by `go run`.
func programName(arg0, executable string) string {
	built := func(part string) bool { return strings.HasPrefix(part, "go-build") }
	if slices.ContainsFunc(strings.Split(filepath.ToSlash(executable), "/"), built) {
		return "go run ./cmd/dledger"
	}
	return quoted(arg0)
}
