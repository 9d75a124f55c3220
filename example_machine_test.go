package dledger_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"

	"dledger"
)

// counter is a state machine: it counts entries.
type counter struct{ n atomic.Int64 }

func (c *counter) Apply(dledger.Entry) error {
	c.n.Add(1)
	return nil
}

func (c *counter) Snapshot(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%d", c.n.Load())
	return err
}

func (c *counter) Restore(r io.Reader) error {
	var n int64
	_, err := fmt.Fscanf(r, "%d", &n)
	c.n.Store(n)
	return err
}

// A linearizable read: confirm that this member leads, wait for the index that Confirm gives, look at the state.
func ExampleMachine() {
	dir, err := os.MkdirTemp("", "dledger")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := dledger.Open(dledger.Config{ID: "n0", Peers: "n0-127.0.0.1:0", Dir: dir, DataFileSize: 1 << 20, IndexFileSize: 32 << 10})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	c := &counter{}
	m, err := dledger.NewMachine(l, c, dledger.SnapshotConfig{Dir: filepath.Join(dir, "snapshots"), Entries: 1000})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()

	if _, err := l.WaitLeader(ctx); err != nil {
		log.Fatal(err)
	}
	for range 5 {
		if _, err := l.Append(ctx, []byte("tick")); err != nil {
			log.Fatal(err)
		}
	}
	i, err := l.Confirm(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Wait(ctx, i); err != nil {
		log.Fatal(err)
	}
	fmt.Println("counted", c.n.Load())

	cancel()
	fmt.Println("stopped:", errors.Is(<-ended, context.Canceled))
	// Output:
	// counted 5
	// stopped: true
}
