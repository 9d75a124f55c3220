package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dledger/client"
)

// held is a group that acknowledges when the test says so, in order.
type held struct {
	mu     sync.Mutex
	ctx    context.Context
	next   int64
	all    int64 // acknowledge this many by themselves
	line   []func(client.Result, error)
	closed bool
}

func (h *held) Go(ctx context.Context, _ []byte, done func(client.Result, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return client.ErrClosed
	}
	if h.ctx, h.line = ctx, append(h.line, done); h.next < h.all {
		h.acknowledge()
	}
	return nil
}

func (h *held) acknowledge() {
	h.line[0](client.Result{Index: h.next, Term: 1, Pos: 49 * h.next}, nil)
	h.line, h.next = h.line[1:], h.next+1
}

func (h *held) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, done := range h.line {
		done(client.Result{Index: -1}, fmt.Errorf("%w: closed", client.ErrUndecided))
	}
	h.line = nil
	return nil
}

// appendIn runs appending on virtual time with what the test writes to in. The error is that of the command.
func appendIn(ctx context.Context, to *held, patience time.Duration) (in *io.PipeWriter, out *screen, result <-chan error) {
	r, in := io.Pipe()
	out = newScreen()
	buffered := bufio.NewWriterSize(out, 64<<10)
	a := appending{to: to, patience: patience, out: buffered, print: newPrinter(buffered, false), bar: newProgress(io.Discard)}
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx, lines("standard input", r)) }()
	return in, out, ended
}

func write(t *testing.T, in io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(in, text); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// printed is what a screen shows now.
func (s *screen) printed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestAppendWaitsForItsInputAsLongAsItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out, result := appendIn(t.Context(), &held{all: 2}, 3*time.Second)
		write(t, in, "a\n")
		if got := out.printed(); got != "index 0  pos 0  term 1\n" {
			t.Errorf("while the input pauses %q is shown, want the first acknowledgement", got)
		}
		time.Sleep(time.Hour)
		write(t, in, "b\n")
		in.Close()
		if err := <-result; err != nil || out.printed() != "index 0  pos 0  term 1\nindex 1  pos 49  term 1\n" {
			t.Errorf("%v, printed %q", err, out.printed())
		}
	})
}

func TestAppendGivesUpWithoutAnAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out, result := appendIn(t.Context(), &held{all: 1}, 3*time.Second)
		write(t, in, "a\n")
		time.Sleep(time.Minute)
		write(t, in, "b\nc\nd\n")
		from := time.Now()
		err := <-result
		if took := time.Since(from); took != 3*time.Second+lastMoment {
			t.Errorf("it gave up after %v", took)
		}
		want := "1 entries appended, then no acknowledgement for 3s: line 2 of standard input: " + client.ErrUndecided.Error() + ": closed; 2 more are undecided, the last of them line 4 of standard input"
		if err == nil || err.Error() != want || !errors.Is(err, client.ErrUndecided) {
			t.Errorf("%v\nwant %s", err, want)
		}
		if got := out.printed(); got != "index 0  pos 0  term 1\n" {
			t.Errorf("printed %q", got)
		}
		in.Close()
	})
}

// A signal comes while standard input is read, which nothing interrupts: with nothing on the way, with something that is acknowledged within a moment,
// and with something that is not.
func TestSignalEndsAppendThatReads(t *testing.T) {
	for _, test := range []struct {
		name     string
		on, more int // appends on the way, and those acknowledged after the signal
		want     string
	}{
		{"nothing on the way", 0, 0, "1 entries appended, then interrupted"},
		{"acknowledged late", 2, 2, "3 entries appended, then interrupted"},
		{"undecided", 2, 1, "2 entries appended, then interrupted: line 3 of standard input: " + client.ErrUndecided.Error() + ": closed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, signal := context.WithCancelCause(t.Context())
				to := &held{all: 1}
				in, out, result := appendIn(ctx, to, time.Minute)
				write(t, in, "a\n"+strings.Repeat("b\n", test.on))
				from := time.Now()
				signal(errInterrupted)
				synctest.Wait()
				for range test.more {
					to.mu.Lock()
					to.acknowledge()
					to.mu.Unlock()
				}
				err := <-result
				if err == nil || err.Error() != test.want {
					t.Errorf("%v\nwant %s", err, test.want)
				}
				if time.Since(from) > lastMoment {
					t.Errorf("it took %v", time.Since(from))
				}
				if got := strings.Count(out.printed(), "\n"); got != 1+test.more {
					t.Errorf("%d acknowledgements are shown, want %d", got, 1+test.more)
				}
				in.Close()
			})
		})
	}
}
