package main

import (
	"math"
	"testing"
)

func TestRowsThatFollowFromOthers(t *testing.T) {
	const pair = "java pair"
	figures := &table{figures: map[[2]string]float64{}}
	for system, perSec := range map[string]float64{oursAsync: 880, oursGroup: 600, oursAlone: 1000, pair: 800} {
		figures.add(sendsRow(64), system, perSec)
	}
	figures.add(sendsRow(16), oursAsync, 500) // the others were not measured: nothing follows
	figures.derive(pair, []int{16, 64})
	for _, c := range []struct {
		row, system string
		want        float64
	}{
		{"cost of three replicas against one, 64 producers, %", oursAsync, 12},
		{"sends/s, times those of the pair, 64 producers", oursAsync, 1.1},
		{"sends/s, times those of the pair, 64 producers", oursGroup, 0.75},
	} {
		if got := figures.figures[[2]string{c.row, c.system}]; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s, %s: %v, want %v", c.row, c.system, got, c.want)
		}
	}
	if want := 4; len(figures.rows) != want {
		t.Errorf("rows %q, want %d", figures.rows, want)
	}
}
