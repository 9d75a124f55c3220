package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"dledger"
	"dledger/client"
)

// group runs a group of one member in this process, on a port of its own, and gives its peers.
func group() (peers map[string]string, stop func() error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	peers = map[string]string{"n0": l.Addr().String()}
	ledger, err := dledger.Open(dledger.Config{ID: "n0", Peers: client.FormatPeers(peers), Memory: true,
		Listen: func(string) (net.Listener, error) { return l, nil }})
	if err != nil {
		log.Fatal(err)
	}
	return peers, ledger.Close
}

func ExampleClient_Append() {
	peers, stop := group()
	defer stop()
	c, err := client.New(client.Config{Peers: peers})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Append(ctx, []byte("hello"))
	switch {
	case errors.Is(err, client.ErrUndecided):
		log.Fatal("it may be in the log: look before sending it again: ", err)
	case err != nil:
		log.Fatal("it is not in the log: ", err)
	}
	e, err := c.Get(ctx, r.Index)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d: %s\n", e.Index, e.Body)
	// Output: 0: hello
}

func ExampleClient_Tail() {
	peers, stop := group()
	defer stop()
	c, err := client.New(client.Config{Peers: peers})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.AppendBatch(ctx, [][]byte{[]byte("one"), []byte("two")}); err != nil {
		log.Fatal(err)
	}
	for e, err := range c.Tail(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", e.Index, e.Body)
		if e.Index == 1 {
			break
		}
	}
	// Output:
	// 0: one
	// 1: two
}
