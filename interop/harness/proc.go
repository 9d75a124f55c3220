package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one child in a process group of its own. Its standard error, and what no line handler takes of its standard output, go to
// a log file that is appended to over restarts. It dies with the process that started it.
type Process struct {
	argv []string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and its output is read
	err  error         // how it ended; valid once done is closed
}

// Start runs argv in directory dir with its output appended to the file log. Each whole line of standard output is given to
// line, if not nil, on one goroutine.
func Start(argv []string, dir, log string, line func([]byte)) (*Process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", argv[0], err)
	}
	defer f.Close() // the child has its own descriptor
	p := &Process{argv: argv, log: log, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stderr = f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out io.ReadCloser
	if line == nil {
		p.cmd.Stdout = f
	} else if out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, fmt.Errorf("pipe output of %s: %w", argv[0], err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		if out != nil {
			for s := bufio.NewScanner(out); s.Scan(); {
				line(s.Bytes())
			}
			_, _ = io.Copy(io.Discard, out) // behind a line too long for the scanner; a full pipe would hold the process up
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Pid is the process id, which is also the id of its process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the whole process group with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // fails only when nothing is left to kill
	<-p.done
}

// Stop asks with SIGTERM and kills what is left after grace. It returns an error when it had to kill, or when the exit code
// says failure; 143 is what a JVM answers to SIGTERM.
func (p *Process) Stop(grace time.Duration) error {
	_ = syscall.Kill(p.Pid(), syscall.SIGTERM) // fails only when it is gone already
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end within %v of SIGTERM; log in %s", filepath.Base(p.argv[0]), grace, p.log)
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // its children, if it left any
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.ExitCode() == 128+int(syscall.SIGTERM) {
		return nil
	}
	return p.err
}

// Usage reads from the kernel how much memory the process holds and how much processor time it has used since its start.
func (p *Process) Usage() (rss int64, cpu time.Duration, err error) { return Usage(p.Pid()) }

// Peak reads from the kernel the most memory that the process has held at a time since its start, or since ForgetPeak, in bytes: what it held for a moment counts too.
func (p *Process) Peak() (rss int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("read peak: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &rss); err == nil {
			return rss << 10, nil
		}
	}
	return 0, fmt.Errorf("read peak of %d: %q", p.Pid(), text)
}

// ForgetPeak makes the peak what the process holds now.
func (p *Process) ForgetPeak() error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.Pid()), []byte("5"), 0); err != nil {
		return fmt.Errorf("forget peak: %w", err)
	}
	return nil
}

// Descriptors counts those that the process has open.
func (p *Process) Descriptors() (int, error) {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	return len(open), err
}

// Usage is the resident set in bytes and the processor time, user and system, of the live process pid.
func Usage(pid int) (rss int64, cpu time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read usage: %w", err)
	}
	// The second field is the name in parentheses, which may hold blanks; what follows it starts with field 3.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const utime, stime, pages = 14 - 3, 15 - 3, 24 - 3
	if len(f) <= pages {
		return 0, 0, fmt.Errorf("read usage of %d: %q", pid, stat)
	}
	var n [3]int64
	for i, at := range []int{utime, stime, pages} {
		if n[i], err = strconv.ParseInt(f[at], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("read usage of %d: %w", pid, err)
		}
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux architecture Go runs on
	return n[2] * int64(os.Getpagesize()), time.Duration(n[0]+n[1]) * time.Second / ticksPerSecond, nil
}

// Run runs argv to its end, or kills its process group when ctx ends, and gives its standard output. The error holds what it
// wrote to standard error.
func Run(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, &stderr)
	}
	return out, nil
}

// ports hands out ports below the range the kernel takes for outgoing connections, so that a node that was killed can come
// back on its own. No port is given twice, and none that another process hands out: each claims blocks of ports with locks that end with it.
var ports struct {
	mu     sync.Mutex
	block  int // first port of the block that is handed out; 0 = none yet
	next   int // offset in block
	claims []*os.File
}

const (
	portLo    = 12000
	portBlock = 1000
	blocks    = 20
)

// FreePort finds a port on which nobody listens.
func FreePort() (int, error) { return FreePorts(0) }

// FreePorts finds a base so that nobody listens on base + offset for any of the offsets, which are not negative and below portBlock.
func FreePorts(offsets ...int) (int, error) {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	free := func(port int) bool {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		return err == nil && l.Close() == nil
	}
	span := slices.Max(offsets) + 1
	for {
		for ; ports.block > 0 && ports.next+span <= portBlock; ports.next++ {
			base := ports.block + ports.next
			if !slices.ContainsFunc(offsets, func(off int) bool { return !free(base + off) }) {
				ports.next += span
				return base, nil
			}
		}
		if err := claimPorts(); err != nil {
			return 0, err
		}
	}
}

// claimPorts goes on to a block of ports that no process has claimed. Processes start to look at different places, for those that do not share a directory
// for temporary files. ports.mu is held.
func claimPorts() error {
	for i := range blocks {
		lo := portLo + (os.Getpid()+i)%blocks*portBlock
		if slices.ContainsFunc(ports.claims, func(f *os.File) bool { return strings.HasSuffix(f.Name(), strconv.Itoa(lo)) }) {
			continue // a second lock on it would be refused too, but this one is for sure ours
		}
		f, err := os.OpenFile(filepath.Join(os.TempDir(), "dledger-ports-"+strconv.Itoa(lo)), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			continue // somebody else's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			f.Close()
			continue
		}
		ports.claims = append(ports.claims, f)
		ports.block, ports.next = lo, 0
		return nil
	}
	return errors.New("no block of ports below the ephemeral range is free")
}

// UpPorts finds a port base for `dledger up` with so many nodes: a log and a name server for each, and a broker for each node and group, which listens two ports
// below its own as well.
func UpPorts(nodes int) (int, error) {
	var offsets []int
	for node := range nodes {
		offsets = append(offsets, 10*node, 10*node+1)
		for group := range nodes {
			broker := 100 + 10*node + 100*group
			offsets = append(offsets, broker-2, broker)
		}
	}
	return FreePorts(offsets...)
}

// Until calls ok every few milliseconds until it is true, and fails when ctx ends first; what says what was waited for.
func Until(ctx context.Context, what string, ok func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Pause stops the process, and Resume lets it go on (SIGSTOP, SIGCONT). When Pause returns no thread of it runs any more: the kernel lets one thread stop the others
// once its turn has come, and on a busy machine they go on until then.
func (p *Process) Pause() error {
	if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var failed error
	err := Until(ctx, "a process to stop", func() bool {
		var states string
		states, failed = threadStates(p.Pid())
		return failed != nil || strings.Trim(states, "TtDXZ") == "" // who waits for its disk comes back stopped
	})
	return errors.Join(failed, err)
}

// Resume ends a Pause.
func (p *Process) Resume() error { return syscall.Kill(p.Pid(), syscall.SIGCONT) }

// threadStates gives a letter for each thread of a process, as in proc(5).
func threadStates(pid int) (string, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err == nil && len(stats) == 0 {
		err = fmt.Errorf("process %d is gone", pid)
	}
	var states []byte
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has ended
		}
		states = append(states, stat[bytes.LastIndexByte(stat, ')')+2])
	}
	return string(states), err
}
