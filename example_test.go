package dledger_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"dledger"
)

// open gives a group of one member in a new directory, for the examples.
func open() (l *dledger.Ledger, stop func()) {
	dir, err := os.MkdirTemp("", "dledger")
	if err != nil {
		log.Fatal(err)
	}
	l, err = dledger.Open(dledger.Config{ID: "n0", Peers: "n0-127.0.0.1:0", Dir: dir, DataFileSize: 1 << 20, IndexFileSize: 32 << 10})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := l.WaitLeader(context.Background()); err != nil {
		log.Fatal(err)
	}
	return l, func() {
		if err := l.Close(); err != nil {
			log.Print(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			log.Print(err)
		}
	}
}

// Each member of a group is opened by its own process, with the same peers and its own id. This group has one.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "dledger")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	l, err := dledger.Open(dledger.Config{
		Group:        "orders",
		ID:           "n0",
		Peers:        "n0-127.0.0.1:0", // "n0-host0:20911;n1-host1:20911;n2-host2:20911" for three
		Dir:          dir,
		DataFileSize: 16 << 20,
	})
	if err != nil {
		log.Fatal(err)
	}
	leader, err := l.WaitLeader(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(leader, "leads")

	if err := l.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: n0 leads
}

func ExampleLedger_Append() {
	l, stop := open()
	defer stop()

	e, err := l.Append(context.Background(), []byte("hello"))
	if err != nil {
		log.Fatal(err) // if errors.Is(err, dledger.ErrUndecided), the entry may yet be in the log; otherwise it never will be
	}
	fmt.Printf("entry %d of term %d\n", e.Index, e.Term)

	e, err = l.Get(e.Index)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", e.Body)
	// Output:
	// entry 0 of term 1
	// hello
}

// A batch is in the log as a whole. The stamp writes into each entry what is known only once its place is: here its index.
func ExampleLedger_Propose() {
	l, stop := open()
	defer stop()

	batch := [][]byte{[]byte("??? first"), []byte("??? second")}
	stamp := func(_ int, index dledger.Index, _ int64, body []byte) {
		copy(body, fmt.Sprintf("%03d", index))
	}
	p := l.Propose(batch, stamp) // does not wait, so that many can be under way
	a, err := p.Wait(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for i := range batch {
		e, err := l.Get(a.First + dledger.Index(i))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", e.Body)
	}
	// Output:
	// 000 first
	// 001 second
}

// Entries works on every member, and waits at the end for what comes.
func ExampleLedger_Entries() {
	l, stop := open()
	defer stop()

	go func() {
		for i := range 3 {
			if _, err := l.Append(context.Background(), fmt.Appendf(nil, "message %d", i)); err != nil {
				log.Print(err)
			}
		}
	}()
	for e, err := range l.Entries(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", e.Index, e.Body)
		if e.Index == 2 {
			break
		}
	}
	// Output:
	// 0: message 0
	// 1: message 1
	// 2: message 2
}
