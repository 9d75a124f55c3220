package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The machine's limit: what three processes achieve that only copy, write and, if told to, sync. Node 0 always leads; there are no
// terms, no checks, no recovery. The batching is that of our replica: one write and one sync under way, everything that arrives meanwhile
// shares the next, the leader's sync runs beside replication, and an append is answered once two of three have it.

const limitFileMax = 1 << 30

// limitFile is a file that is written ahead of use by fallocate, from its start again when it is full.
type limitFile struct {
	f    *os.File
	at   int64
	sync bool
}

func openLimitFile(dir string, sync bool) (*limitFile, error) {
	f, err := os.Create(filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, limitFileMax); err != nil {
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	return &limitFile{f: f, sync: sync}, f.Sync()
}

func (l *limitFile) append(b []byte) error {
	if l.at+int64(len(b)) > limitFileMax {
		l.at = 0
	}
	if _, err := l.f.WriteAt(b, l.at); err != nil {
		return err
	}
	l.at += int64(len(b))
	if l.sync {
		return unix.Fdatasync(int(l.f.Fd()))
	}
	return nil
}

// limitFollower takes bytes as they come, writes what one read brought and answers with the count of bytes it has.
func limitFollower(addr string, f *limitFile) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		sock, err := l.Accept()
		if err != nil {
			return err
		}
		buf := make([]byte, 4<<20)
		var have uint64
		for {
			n, err := sock.Read(buf)
			if err != nil {
				break // the leader has gone; wait for the next
			}
			if err := f.append(buf[:n]); err != nil {
				return err
			}
			have += uint64(n)
			if _, err := sock.Write(binary.BigEndian.AppendUint64(nil, have)); err != nil {
				break
			}
		}
		sock.Close()
	}
}

// limitLeader owns the order of the bytes. All fields below mu are guarded by it.
type limitLeader struct {
	file *limitFile

	mu      sync.Mutex
	work    sync.Cond // out or len(waiting) has changed
	out     []byte    // accepted, not yet handed to the disk and the followers
	total   uint64    // bytes accepted ever
	have    [3]uint64 // bytes each node has: own, followers
	waiting []limitWait
}

type limitWait struct {
	end    uint64
	answer func(pipeAnswer)
}

func limitLead(addr string, followers []string, f *limitFile) error {
	l := &limitLeader{file: f}
	l.work.L = &l.mu
	lanes := make([]*outbox, len(followers))
	for i, a := range followers {
		sock, err := dialRetry(a)
		if err != nil {
			return err
		}
		lanes[i] = newOutbox(sock)
		go l.acks(i+1, sock)
	}
	go l.write(lanes)
	return servePipe(addr, func(q pipeRequest, answer func(pipeAnswer)) {
		if q.op != opAppend {
			answer(pipeAnswer{status: pipeOK})
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.out = binary.BigEndian.AppendUint32(l.out, uint32(len(q.body)))
		l.out = append(l.out, q.body...)
		l.total += uint64(len(q.body)) + 4
		l.waiting = append(l.waiting, limitWait{l.total, answer})
		l.work.Signal()
	})
}

func dialRetry(addr string) (net.Conn, error) {
	for deadline := time.Now().Add(10 * time.Second); ; {
		sock, err := net.Dial("tcp", addr)
		if err == nil || time.Now().After(deadline) {
			return sock, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// write is the leader's loop: one batch at a time to the followers and the own file.
func (l *limitLeader) write(lanes []*outbox) {
	var spare []byte
	for {
		l.mu.Lock()
		for len(l.out) == 0 {
			l.work.Wait()
		}
		batch, end := l.out, l.total
		l.out = spare[:0]
		l.mu.Unlock()
		for _, lane := range lanes {
			if err := lane.send(func(b []byte) []byte { return append(b, batch...) }); err != nil {
				fatal(err)
			}
		}
		if err := l.file.append(batch); err != nil {
			fatal(err)
		}
		l.advance(0, end)
		spare = batch
	}
}

func (l *limitLeader) acks(node int, sock net.Conn) {
	r := bufio.NewReader(sock)
	var b [8]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			fatal(fmt.Errorf("follower %d: %w", node, err))
		}
		l.advance(node, binary.BigEndian.Uint64(b[:]))
	}
}

func (l *limitLeader) advance(node int, have uint64) {
	l.mu.Lock()
	l.have[node] = have
	sorted := l.have
	slices.Sort(sorted[:])
	n := 0
	for n < len(l.waiting) && l.waiting[n].end <= sorted[1] {
		n++
	}
	done := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.mu.Unlock()
	for _, w := range done {
		w.answer(pipeAnswer{value: w.end})
	}
}
