package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestSimSaysWhatItSimulates(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string // in what is printed
	}{
		{[]string{"sim", "--seed", "7", "--steps", "500"}, 0, "seed 7\nmembers "},
		{[]string{"sim", "--seed", "7", "--steps", "500", "--runs", "3"}, 0, "seeds 7 to 9\n"},
		{[]string{"sim", "--seed", "7", "--steps", "500", "--runs", "3"}, 0, "faults that struck: noisy-net "},
		{[]string{"sim", "--seed", "7", "--steps", "500", "--runs", "3"}, 0, " s of processor time\n"},
		{[]string{"sim", "--seed", "7", "--steps", "500", "--faults", "1,2", "--clients", "1", "--trace"}, 0, " starts: entries 0 to -1"},
		{[]string{"sim", "--steps", "0"}, exitUsage, "--steps 0"},
		{[]string{"sim", "--runs", "2", "--trace"}, exitUsage, "--runs 2"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), c.args, strings.NewReader(""), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d, printed %.200q; want %d and %q", c.args, code, out.String(), c.code, c.want)
		}
	}
}

// A million lives take a day: a signal ends them, and what was lived until then is counted.
func TestSignalEndsTheSimulation(t *testing.T) {
	ctx, signal := context.WithCancelCause(t.Context())
	signal(errInterrupted)
	var out, errs bytes.Buffer
	code := run(ctx, []string{"sim", "--seed", "7", "--steps", "500", "--runs", "1000000"}, strings.NewReader(""), &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), " of 1000000 lives, then interrupted") || !strings.Contains(out.String(), " events in ") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}
