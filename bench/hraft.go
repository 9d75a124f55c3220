package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// nothing is a state machine that keeps nothing: what is measured is the log.
type nothing struct{}

func (nothing) Apply(l *raft.Log) any               { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error) { return nothing{}, nil }
func (nothing) Restore(r io.ReadCloser) error       { return r.Close() }
func (nothing) Persist(s raft.SnapshotSink) error   { return s.Close() }
func (nothing) Release()                            {}

// hraftNode is one member of a hashicorp/raft group over raft-wal, with the pipe protocol in front. Settings are the defaults but for
// two that make batches larger (MaxAppendEntries, BatchApplyCh), and no snapshots, which the others take none of either.
func hraftNode(id int, peers, addrs []string, dir string) error {
	log, err := wal.Open(mkdir(dir, "wal"))
	if err != nil {
		return err
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(fmt.Sprint(id))
	c.MaxAppendEntries = 1024
	c.BatchApplyCh = true
	c.SnapshotThreshold = 1 << 60
	c.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr})
	advertise, err := net.ResolveTCPAddr("tcp", peers[id])
	if err != nil {
		return err
	}
	transport, err := raft.NewTCPTransport(peers[id], advertise, 3, 10*time.Second, os.Stderr)
	if err != nil {
		return err
	}
	snapshots := raft.NewDiscardSnapshotStore()
	known, err := raft.HasExistingState(log, log, snapshots)
	if err != nil {
		return err
	}
	r, err := raft.NewRaft(c, nothing{}, log, log, snapshots, transport)
	if err != nil {
		return err
	}
	if !known {
		var members raft.Configuration
		for i, p := range peers {
			members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i)), Address: raft.ServerAddress(p)})
		}
		if err := r.BootstrapCluster(members).Error(); err != nil {
			return err
		}
	}
	return servePipe(addrs[id], func(q pipeRequest, answer func(pipeAnswer)) {
		switch q.op {
		case opAppend:
			hraftAnswers(r.Apply(q.body, 5*time.Second), answer)
		case opGet:
			var l raft.Log
			if err := log.GetLog(q.arg, &l); err != nil {
				answer(pipeAnswer{status: pipeFailed})
				return
			}
			answer(pipeAnswer{value: q.arg, body: l.Data})
		case opStatus:
			a := pipeAnswer{status: pipeNotLeader, value: r.LastIndex()}
			if addr, _ := r.LeaderWithID(); addr == "" {
				a.status = pipeNoLeader
			} else if r.State() == raft.Leader {
				a.status = pipeOK
			}
			answer(a)
		}
	})
}

// futures are answered in the order they were made, by one goroutine: they end in that order too.
var hraftWaiting = make(chan func(), 1<<16)

func init() {
	go func() {
		for f := range hraftWaiting {
			f()
		}
	}()
}

func hraftAnswers(f raft.ApplyFuture, answer func(pipeAnswer)) {
	hraftWaiting <- func() {
		if err := f.Error(); err != nil {
			answer(pipeAnswer{status: pipeFailed})
			return
		}
		answer(pipeAnswer{value: f.Index()})
	}
}

func mkdir(parts ...string) string {
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		fatal(err)
	}
	return dir
}
