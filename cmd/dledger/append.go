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
	name string
	done chan struct{}
	r    client.Result
	err  error
}

// appendAll has many appends on the way and prints their outcomes in order. The first failure ends it, once what is on the way has
// come to its end.
func appendAll(cmd *cobra.Command, g *group, next bodies) error {
	c, err := g.dial(client.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	idle := time.AfterFunc(g.timeout, func() { cancel(fmt.Errorf("no acknowledgement for %v", g.timeout)) })
	defer idle.Stop()

	line := make(chan *sending, 16<<10)
	var sendErr error
	go func() {
		defer close(line)
		for {
			body, name, err := next()
			if err == io.EOF {
				return
			}
			if err == nil {
				s := &sending{name: name, done: make(chan struct{})}
				err = c.Go(ctx, body, func(r client.Result, err error) {
					s.r, s.err = r, err
					close(s.done)
				})
				if err == nil {
					line <- s
					continue
				}
				err = fmt.Errorf("%s: %w", name, err)
			}
			sendErr = err
			return
		}
	}()

	out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
	p := newPrinter(out, g.json)
	bar := newProgress(cmd.ErrOrStderr())
	acknowledged := 0
	var failure error
	for s := range line {
		select {
		case <-s.done:
		default:
			if err := out.Flush(); err != nil && failure == nil { // somebody may wait for what is there
				failure = err
				cancel(err)
			}
			<-s.done
		}
		if s.err != nil {
			if failure == nil || errors.Is(s.err, client.ErrUndecided) && !errors.Is(failure, client.ErrUndecided) {
				failure = fmt.Errorf("%s: %w", s.name, s.err)
			}
			cancel(failure)
			continue
		}
		idle.Reset(g.timeout)
		acknowledged++
		if failure == nil {
			if err := p.print(appended{s.r.Index, s.r.Pos, s.r.Term}, "index %d  pos %d  term %d\n", s.r.Index, s.r.Pos, s.r.Term); err != nil {
				failure = err
				cancel(err)
			}
		}
		bar.show(func() string { return fmt.Sprintf("%d entries appended", acknowledged) })
	}
	bar.clear()
	if err := out.Flush(); err != nil && failure == nil {
		failure = err
	}
	if failure == nil {
		failure = sendErr
	}
	if failure != nil && acknowledged > 0 {
		return fmt.Errorf("%d entries appended, then %w", acknowledged, failure)
	}
	return failure
}
