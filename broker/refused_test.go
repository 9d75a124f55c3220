package broker

import (
	"testing"
	"time"

	"dledger"
	"dledger/dledgertest"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// sendMany sends n messages at once and gives how many were answered with each code by when until returns.
func sendMany(c *cluster, cl *client, n int, until func()) map[int32]int {
	c.T.Helper()
	codes := make(chan int32, n)
	for range n {
		err := cl.r.Go(c.address("n0"), remoting.Request{Code: mq.CodeSend, Ext: sendExt("Orders", 0)}, time.Minute, func(f *remoting.Frame, err error) {
			if err != nil {
				c.T.Error(err)
				codes <- -1
				return
			}
			codes <- f.Code
		}, make([]byte, 1000))
		if err != nil {
			c.T.Fatal(err)
		}
	}
	until()
	got := map[int32]int{}
	for range n {
		got[<-codes]++
	}
	return got
}

// A full disk is 14, which every client tries again; and it is room again that ends it, not a restart.
func TestFullDiskIsServiceNotAvailable(t *testing.T) {
	t.Parallel()
	inCluster(t, 1, nil, func(c *cluster) {
		cl := c.client("10.0.1.1")
		cl.must(c.leader(), mq.CodeSend, sendExt("Orders", 0), []byte("before"))
		c.Disk("n0").SetFree(0)
		c.Disk("n0").SetUsed(0.99)
		time.Sleep(2 * time.Second) // the log looks at its disk once a second
		if got := sendMany(c, cl, 20, func() {}); got[mq.ServiceNotAvailable] != 20 {
			c.T.Errorf("answers by their code: %v, want 20 of 14", got)
		}
		c.Disk("n0").SetUsed(-1)
		c.Disk("n0").SetFree(-1)
		time.Sleep(2 * time.Second)
		cl.must("n0", mq.CodeSend, sendExt("Orders", 0), []byte("after"))
	})
}

// More messages than may wait for a majority are 2, flow control; those that wait are taken once the disk goes on.
func TestFullPendingListIsFlowControl(t *testing.T) {
	t.Parallel()
	const most, sent = 30, 100
	inClusterOf(t, dledgertest.Setup{Config: func(_ string, c *dledger.Config) { c.MaxPending = most }}, 1, nil, func(c *cluster) {
		cl := c.client("10.0.1.1")
		cl.must(c.leader(), mq.CodeSend, sendExt("Orders", 0), []byte("before"))
		time.Sleep(time.Second)
		c.Disk("n0").Hang()
		got := sendMany(c, cl, sent, func() {
			time.Sleep(200 * time.Millisecond)
			c.Disk("n0").Resume()
		})
		if got[mq.SystemBusy] < sent-most || got[mq.Success] < most/2 || got[mq.SystemBusy]+got[mq.Success] != sent {
			c.T.Errorf("answers by their code: %v, want at most %d taken and the rest refused with 2", got, most)
		}
		cl.must("n0", mq.CodeSend, sendExt("Orders", 0), []byte("after"))
	})
}
