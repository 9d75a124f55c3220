package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
)

// stuck is an output that nobody reads, like that of a program that waits for `less`.
type stuck struct{ reached, free chan struct{} }

func (s *stuck) Write(b []byte) (int, error) {
	select {
	case s.reached <- struct{}{}:
	default:
	}
	<-s.free
	return len(b), nil
}

// A large directory takes hours to read: a signal ends it.
func TestSignalEndsCommandsThatRead(t *testing.T) {
	dir := t.TempDir()
	peers := fmt.Sprintf("n0-127.0.0.1:%d", freePort(t, 1, 0))
	server := start(t, "server", "-p", peers, "-s", dir)
	mustRun(t, "", "append", "-p", peers, "-c", "10", "-d", "0123456789")
	if code := server.end(t); code != 0 {
		t.Fatalf("server: exit code %d", code)
	}
	for _, args := range [][]string{{"verify", "--dir", dir}, {"dump", "--dir", dir, "--json"}} {
		ctx, signal := context.WithCancelCause(t.Context())
		out := &stuck{make(chan struct{}, 1), make(chan struct{})}
		var errs bytes.Buffer
		code := make(chan int)
		go func() { code <- run(ctx, args, strings.NewReader(""), out, &errs) }()
		<-out.reached
		signal(errInterrupted)
		if got := <-code; got != exitFailed || errs.String() != "dledger: interrupted\n" {
			t.Errorf("%v: exit code %d, %q", args, got, errs.String())
		}
		close(out.free)
	}
}
