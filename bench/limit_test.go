package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"dledger/interop/harness"
)

// The yardstick must do what it claims: what it acknowledges is in the files of two nodes.
func TestLimitWritesWhatItAcknowledges(t *testing.T) {
	var addrs [3]string
	var files [3]*limitFile
	for i := range addrs {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
		if files[i], err = openLimitFile(t.TempDir(), true); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		go limitFollower(addrs[i+1], files[i+1]) // ends with the test's process
	}
	go limitLead(addrs[0], addrs[1:], files[0])
	var c *pipeClient
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := harness.Until(ctx, "the leader", func() (ok bool) {
		var err error
		c, err = dialPipe(addrs[0])
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	var end uint64
	for i := range 100 {
		a, err := c.call(ctx, opAppend, 0, fmt.Appendf(nil, "body %03d", i))
		if err != nil {
			t.Fatal(err)
		}
		end = a.value
	}
	have := 0
	for _, f := range files {
		var b [8]byte
		if _, err := f.f.ReadAt(b[:], int64(end)-8); err != nil {
			t.Fatal(err)
		}
		if string(b[:]) == "body 099" {
			have++
		}
	}
	if have < 2 {
		t.Errorf("%d of 3 files hold the last acknowledged body, want at least 2", have)
	}
}

func TestDriveMeasuresOnlyAfterTheWarmUp(t *testing.T) {
	calls := 0
	r := drive(t.Context(), 1, 50*time.Millisecond, 50*time.Millisecond, func(context.Context, uint64) error {
		calls++
		if calls == 3 {
			return fmt.Errorf("third")
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	if r.Ops == 0 || int(r.Ops) > calls*2/3 || r.Failed != 1 || r.FirstErr != "third" {
		t.Errorf("got %+v of %d calls, want about half of them and one failure", r, calls)
	}
}
