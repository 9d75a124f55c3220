package main

import (
	"strings"
	"testing"
)

func TestProgressSaysWhatAndHowFar(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out)
	p.begin("append", 1, 8)
	p.steps(4)
	p.step("%s, round %d", "ours group", 1)
	p.got("%d/s", 1000)
	p.skip(2)
	p.step("nats R3")
	want := "      0s  append (measure 1 of 8), 1 of 4: ours group, round 1\n      0s    1000/s\n      0s  append (measure 1 of 8), 4 of 4: nats R3\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
