//go:build !race

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dledger/internal/figure"
	"dledger/internal/mq"
)

// TestTenThousandLongPollsTakeBoundedMemory: a broker in a process of its own holds a pull for each of 10,000 connections, answers all of them when messages come,
// and gives the memory back when the clients have gone.
func TestTenThousandLongPollsTakeBoundedMemory(t *testing.T) {
	const (
		clients   = 10_000
		perClient = 48 << 10 // bytes of memory
		spare     = 512      // descriptors for everything else
		patience  = 5 * time.Minute
	)
	if err := raiseDescriptors(clients + spare); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir, port, log := t.TempDir(), freePort(t, 3, 1)+2, freePort(t, 1, 0) // a broker listens two ports below as well
	file := filepath.Join(dir, "broker.conf")
	if err := os.WriteFile(file, []byte(brokerConf(port, log, dir, "mappedFileSizeCommitLog=4194304\ndefaultTopicQueueNums=4")), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	broker := exec.Command(self, "broker", "-c", file, "--log-level", "warn", "--set", "mappedFileSizeForEntryIndex=1048576")
	broker.Env = append(os.Environ(), "DLEDGER_TEST_AS_PROGRAM=1")
	out := newScreen()
	broker.Stdout, broker.Stderr = out, out
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(broker.Process.Signal(os.Interrupt), broker.Wait()); err != nil {
			t.Errorf("the broker did not stop cleanly: %v\n%s", err, out.wait(t, ""))
		}
	})
	out.wait(t, "boot success")
	address := "127.0.0.1:" + strconv.Itoa(port)
	for range 4 {
		sendTo(t, address, "t", "x")
	}
	memory := func() int { return residentBytes(t, broker.Process.Pid) }

	conns := make([]*rawConn, clients)
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	})
	pull := map[string]string{"consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "4", "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
		"suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0"}
	first, err := dialRaw(address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := first.ask(mq.CodeConsumerList, map[string]string{"consumerGroup": "g"}); err != nil {
		t.Fatal(err)
	}
	idle := memory()
	each := func(what string, do func(i int) error) {
		t.Helper()
		from := time.Now()
		var workers sync.WaitGroup
		for w := range 8 {
			workers.Go(func() {
				for i := w; i < clients; i += 8 {
					if err := do(i); err != nil {
						t.Errorf("client %d: %s: %v", i, what, err)
						return
					}
				}
			})
		}
		workers.Wait()
		if t.Failed() {
			t.Fatalf("the broker printed:\n%s", out.wait(t, ""))
		}
		t.Logf("%s: %v", what, time.Since(from).Round(time.Millisecond))
	}
	each("connect and pull", func(i int) (err error) {
		if conns[i], err = dialRaw(address, patience); err != nil {
			return err
		}
		if err := conns[i].send(mq.CodePull, pull); err != nil {
			return err
		}
		// Requests of a connection are taken in order: when this one is answered, the pull is held.
		return conns[i].ask(mq.CodeMinOffset, map[string]string{"topic": "t", "queueId": "0"})
	})
	full := memory()
	figure.Log(t, "idle %d MiB, with %d long polls %d MiB: %d KiB each", idle>>20, clients, full>>20, (full-idle)/clients>>10)
	if full-idle > clients*perClient {
		t.Errorf("each of %d long polls takes %d bytes, want %d at most", clients, (full-idle)/clients, perClient)
	}

	sendTo(t, address, "t", "for everybody")
	each("get the message", func(i int) error {
		for {
			code, _, err := conns[i].answer()
			switch {
			case err != nil || code == mq.Success:
				return err
			case code != mq.PullNotFound:
				return fmt.Errorf("code %d", code)
			}
			if err := conns[i].send(mq.CodePull, pull); err != nil { // it was held for so long that its time was over
				return err
			}
		}
	})
	after := memory()
	t.Logf("after all were answered %d MiB", after>>20)
	if after-idle > 2*clients*perClient { // the answers, and what the collector has not looked at yet
		t.Errorf("after all were answered the broker takes %d MiB", after>>20)
	}
}

// raiseDescriptors lets this process, and those that it starts, open n files.
func raiseDescriptors(n uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Cur >= n {
		return nil
	}
	limit.Cur, limit.Max = n, max(limit.Max, n) // more than Max only for those who may
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d open files are needed: %w", n, err)
	}
	return nil
}

// residentBytes is the memory of a process.
func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip(err) // not Linux
	}
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no VmRSS in %s", text)
	return 0
}

// rawConn is a client's connection without goroutines.
type rawConn struct {
	net.Conn
	in     *bufio.Reader
	opaque int
}

func dialRaw(address string, patience time.Duration) (*rawConn, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	return &rawConn{Conn: c, in: bufio.NewReaderSize(c, 512)}, c.SetDeadline(time.Now().Add(patience))
}

func (c *rawConn) send(code int32, ext map[string]string) error {
	c.opaque++
	header, err := json.Marshal(map[string]any{"code": code, "flag": 0, "language": "JAVA", "opaque": c.opaque, "serializeTypeCurrentRPC": "JSON", "version": mq.Version, "extFields": ext})
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	_, err = c.Write(append(b, header...))
	return err
}

// ask sends a request and takes the answer to it, whatever its code.
func (c *rawConn) ask(code int32, ext map[string]string) error {
	if err := c.send(code, ext); err != nil {
		return err
	}
	_, opaque, err := c.answer()
	if err == nil && opaque != c.opaque {
		err = fmt.Errorf("an answer to request %d came before that to %d", opaque, c.opaque)
	}
	return err
}

func (c *rawConn) answer() (code int32, opaque int, err error) {
	var sizes [8]byte
	if _, err := io.ReadFull(c.in, sizes[:]); err != nil {
		return 0, 0, err
	}
	n, header := int64(binary.BigEndian.Uint32(sizes[:])), int64(binary.BigEndian.Uint32(sizes[4:])&0xFFFFFF)
	var h struct {
		Code   int32
		Opaque int
	}
	text, err := io.ReadAll(io.LimitReader(c.in, header))
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err == nil {
		_, err = io.CopyN(io.Discard, c.in, n-4-header)
	}
	return h.Code, h.Opaque, err
}
