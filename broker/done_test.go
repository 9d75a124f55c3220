package broker

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// brokenQueues is a disk on which the files of queues cannot be opened any more, once it is broken.
type brokenQueues struct {
	vfs.FS
	broken *atomic.Bool
}

func (d brokenQueues) check(name string) error {
	if d.broken.Load() && strings.Contains(name, "consumequeue") {
		return syscall.EIO
	}
	return nil
}

func (d brokenQueues) OpenFile(name string, flag int) (vfs.File, error) {
	if err := d.check(name); err != nil {
		return nil, err
	}
	return d.FS.OpenFile(name, flag)
}

func (d brokenQueues) Create(name string, size int64) (vfs.File, error) {
	if err := d.check(name); err != nil {
		return nil, err
	}
	return d.FS.Create(name, size)
}

// TestBrokerThatCannotGoOnSaysSo: a replica whose queues cannot be written leaves its group by itself, and whoever holds it learns that and why; one that is closed
// has nothing to tell.
func TestBrokerThatCannotGoOnSaysSo(t *testing.T) {
	broken := new(atomic.Bool)
	inCluster(t, 1, func(cfg *Config) { cfg.Log.FS = brokenQueues{cfg.Log.FS, broken} }, func(c *cluster) {
		n := c.leader()
		b := c.brokers[n]
		c.client("10.1.0.1").must(n, mq.CodeSend, sendExt("t", 0), []byte("x"))
		select {
		case <-b.Done():
			c.T.Error("done while it serves")
		default:
		}
		if err := b.Err(); err != nil {
			c.T.Errorf("an error while it serves: %v", err)
		}
		broken.Store(true)
		<-b.Done()
		if err := b.Err(); !errors.Is(err, syscall.EIO) {
			c.T.Errorf("it ended with %v, want the disk's error", err)
		}
		if err := b.Close(); !errors.Is(err, syscall.EIO) { // of the last checkpoint
			c.T.Errorf("closed with %v, want the disk's error", err)
		}
		delete(c.brokers, n)
	})
	inCluster(t, 1, nil, func(c *cluster) {
		n := c.leader()
		b := c.brokers[n]
		if err := b.Close(); err != nil {
			c.T.Error(err)
		}
		<-b.Done()
		if err := b.Err(); err != nil {
			c.T.Errorf("an error after Close: %v", err)
		}
	})
}
