package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"dledger/client"
)

func newAppend() *cobra.Command {
	var g group
	var data, file string
	var count int
	cmd := &cobra.Command{
		Use:   "append",
		Short: "Append entries",
		Long: fmt.Sprintf(`Appends entries and prints where each of them lies, once a majority of the group has it.

The body is --data, --count times, or with --file each line of a file. A body has at most %d bytes.
Entries get into the log in the order they are given in. An error that says "outcome unknown" means that
the entry may be in the log or may yet get there; after any other error it is not.`, client.MaxBody),
		Example: `  dledger append -d hello
  dledger append -d hello -c 1000
  seq 1 1000 | dledger append -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bodies bodies
			switch {
			case file != "" && (cmd.Flags().Changed("data") || cmd.Flags().Changed("count")):
				return usage("--file %s: not together with --data or --count", file)
			case count < 0:
				return usage("--count %d: must not be negative", count)
			case len(data) > client.MaxBody:
				return usage("--data: %d bytes, a body has at most %d", len(data), client.MaxBody)
			case file == "":
				bodies = repeated([]byte(data), count)
			case file == "-":
				bodies = lines("standard input", cmd.InOrStdin())
			default:
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				bodies = lines(file, f)
			}
			return appendAll(cmd, &g, bodies)
		},
	}
	g.flags(cmd, 10*time.Second, "give up after so long without an acknowledgement")
	cmd.Flags().StringVarP(&data, "data", "d", "Hello", "body of the entries")
	cmd.Flags().IntVarP(&count, "count", "c", 1, "number of entries")
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with one body a line, - for standard input")
	return cmd
}

// bodies gives the next body and a name for it, or io.EOF.
type bodies func() (body []byte, name string, err error)

func repeated(body []byte, count int) bodies {
	i := 0
	return func() ([]byte, string, error) {
		if i == count {
			return nil, "", io.EOF
		}
		i++
		return body, fmt.Sprintf("entry %d of %d", i, count), nil
	}
}

func lines(file string, r io.Reader) bodies {
	in := bufio.NewReaderSize(r, 64<<10)
	n := 0
	return func() ([]byte, string, error) {
		n++
		name := fmt.Sprintf("line %d of %s", n, file)
		var line []byte
		for {
			part, err := in.ReadSlice('\n')
			line = append(line, part...)
			if len(line) > client.MaxBody+1 || err == io.EOF && len(line) > client.MaxBody {
				return nil, name, fmt.Errorf("%s: longer than %d bytes, the largest body", name, client.MaxBody)
			}
			switch {
			case err == bufio.ErrBufferFull:
				continue
			case err == io.EOF && len(line) == 0:
				return nil, "", io.EOF
			case err != nil && err != io.EOF:
				return nil, name, fmt.Errorf("%s: %w", name, err)
			}
			return bytes.TrimSuffix(line, []byte("\n")), name, nil
		}
	}
}

// appended is what is printed of an entry.
type appended struct {
	Index int64 `json:"index"`
	Pos   int64 `json:"pos"`
	Term  int64 `json:"term"`
}

// sending is an append on the way.
type sending struct {
	name string // "" where err says it already
	done chan struct{}
	r    client.Result
	err  error
}

// appender is what appending needs of a client.
type appender interface {
	Go(ctx context.Context, body []byte, done func(client.Result, error)) error
	Close() error
}

// appending is many appends on the way, and what has come of them so far.
type appending struct {
	to       appender
	patience time.Duration // how long something may wait for its acknowledgement
	out      *bufio.Writer
	print    *printer
	bar      *progress
	cancel   context.CancelCauseFunc
	line     chan *sending // in the order of the input; closed at its end
	late     *time.Timer

	acknowledged int
	undecided    int
	last         string // the undecided one that was read last
	failure      error  // the first; one that leaves an entry undecided goes before others
}

// lastMoment is how long acknowledgements that are on the way are waited for when the command is to end.
const lastMoment = 2 * time.Second

// appendAll appends what next gives and prints what is acknowledged, in order.
func appendAll(cmd *cobra.Command, g *group, next bodies) error {
	c, err := g.dial(client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
	a := appending{to: c, patience: g.timeout, out: out, print: newPrinter(out, g.json), bar: newProgress(cmd.ErrOrStderr())}
	return a.run(cmd.Context(), next)
}

// run ends with the input, with the first failure, or with ctx, and waits for what is on the way; it does not wait for the goroutine "send"
// while that reads.
func (a *appending) run(ctx context.Context, next bodies) error {
	ctx, a.cancel = context.WithCancelCause(ctx)
	defer a.cancel(nil)
	// Whatever is on the way then is acknowledged within a moment, or stays undecided.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastMoment, func() { _ = a.to.Close() }) })()
	a.line = make(chan *sending, 16<<10)
	a.late = time.NewTimer(a.patience)
	defer a.late.Stop()
	go a.send(ctx, next)
	for s := a.next(ctx); s != nil; s = a.next(ctx) {
		a.await(ctx, s)
		a.count(s)
	}
	a.bar.clear()
	a.flush()
	return a.outcome(context.Cause(ctx))
}

// send is a goroutine. It notes an append in line before it hands it over: what is not in line when ctx has ended is not in the log.
func (a *appending) send(ctx context.Context, next bodies) {
	defer close(a.line)
	for ctx.Err() == nil {
		body, name, err := next()
		if err == io.EOF {
			return
		}
		s := &sending{name: name, done: make(chan struct{})}
		if err != nil {
			s.name = ""
		}
		if a.line <- s; err == nil {
			err = a.to.Go(ctx, body, func(r client.Result, err error) {
				s.r, s.err = r, err
				close(s.done)
			})
		}
		if err != nil {
			s.err = err
			close(s.done)
			return
		}
	}
}

// next gives the next append in line; nil at the end of the input, or when ctx has ended and the line is empty.
func (a *appending) next(ctx context.Context) *sending {
	select {
	case s := <-a.line:
		return s
	default:
	}
	a.flush() // somebody may wait for what is there
	select {
	case s := <-a.line:
		return s
	case <-ctx.Done():
	}
	select {
	case s := <-a.line:
		return s
	default:
		return nil
	}
}

// await waits until s is over. Its time begins here, since everything before it is over: the command does not run out of patience with its own input.
func (a *appending) await(ctx context.Context, s *sending) {
	select {
	case <-s.done:
		return
	default:
	}
	a.flush()
	a.late.Reset(a.patience)
	select {
	case <-s.done:
		return
	case <-a.late.C:
		a.cancel(fmt.Errorf("no acknowledgement for %v", a.patience))
	case <-ctx.Done():
	}
	<-s.done
}

// count takes the outcome of s. Whatever is acknowledged is printed, also behind a failure.
func (a *appending) count(s *sending) {
	if s.err == nil {
		a.acknowledged++
		if err := a.print.print(appended{s.r.Index, s.r.Pos, s.r.Term}, "index %d  pos %d  term %d\n", s.r.Index, s.r.Pos, s.r.Term); err != nil {
			a.fail(err)
		}
		a.bar.show(func() string { return fmt.Sprintf("%d entries appended", a.acknowledged) })
		return
	}
	err := s.err
	if s.name != "" {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	if errors.Is(err, client.ErrUndecided) {
		if a.undecided++; a.undecided == 1 {
			a.failure = err
		}
		a.last = s.name
	}
	a.fail(err)
}

func (a *appending) fail(err error) {
	if a.failure == nil {
		a.failure = err
	}
	a.cancel(a.failure)
}

func (a *appending) flush() {
	if err := a.out.Flush(); err != nil {
		a.fail(err)
	}
}

// outcome says in one line how it ended. cause is why it ended early, if it did.
func (a *appending) outcome(cause error) error {
	err := a.failure
	switch {
	case cause == nil:
	case err == nil:
		err = cause
	case !errors.Is(err, cause):
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if a.undecided > 1 {
		err = fmt.Errorf("%w; %d more are undecided, the last of them %s", err, a.undecided-1, a.last)
	}
	if err != nil && a.acknowledged > 0 {
		return fmt.Errorf("%d entries appended, then %w", a.acknowledged, err)
	}
	return err
}
