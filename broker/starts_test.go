package broker

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"dledger"
	"dledger/internal/leak"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/namesrv"
)

// A hundred times a broker is opened on real files and sockets, used by clients that stay connected, and closed: one alone with a name server, one whose group has
// no leader, one that finds its port taken, and one whose directory is in use. Goroutines, descriptors and files are then no more than they were after the
// first time.
func TestStartsAndStopsLeaveNothingBehind(t *testing.T) {
	dir := t.TempDir()
	var ports []string // where the broker's listeners are
	config := func(kind int) Config {
		cfg := NewConfig()
		cfg.Name, cfg.IP, cfg.DelayLevels, cfg.ForwardWait = "a", "127.0.0.1", "1s", time.Minute // the machine may have other things to do
		peers := "n0-127.0.0.1:20911"                                                            // where nobody of the group looks for it: see Listen
		if kind == 1 {
			peers += ";n1-127.0.0.1:1;n2-127.0.0.1:1" // nobody listens there
		}
		cfg.Log = dledger.Config{Group: "a", ID: "n0", Peers: peers, Dir: filepath.Join(dir, fmt.Sprint(kind)), DataFileSize: 1 << 20, IndexFileSize: 32 << 10,
			DiskCheckRatio: 0.99, DiskForceRatio: 0.99, Listen: func(string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }}
		ports = nil
		cfg.Listen = func(string) (net.Listener, error) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				ports = append(ports, l.Addr().String())
			}
			return l, err
		}
		return cfg
	}
	must := func(i int, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
	}
	until := func(held func() bool) {
		for !held() {
			runtime.Gosched() // nobody tells when a request is held
		}
	}
	// The name server outlives all of them: a connection that a broker leaves open stays.
	names, err := namesrv.Listen(namesrv.Config{Address: "127.0.0.1:0", KVFile: filepath.Join(dir, "kv.json")})
	if err != nil {
		t.Fatal(err)
	}
	defer names.Close()
	alone := func(i int) {
		cfg := config(0)
		cfg.NameServers = []string{names.Addr().String()}
		b, err := Open(cfg)
		must(i, err)
		c := remoting.NewClient(remoting.ClientConfig{Version: 409})
		call := func(code int32, ext map[string]string, body []byte) *remoting.Frame {
			t.Helper()
			f, err := c.Call(t.Context(), ports[0], remoting.Request{Code: code, Ext: ext}, time.Minute, body)
			must(i, err)
			return f
		}
		if f := call(mq.CodeSend, sendExt("t", 0), []byte("hello")); f.Code != mq.Success {
			t.Fatalf("time %d: a send is answered %d %s", i, f.Code, f.Remark)
		}
		if f := call(mq.CodeHeartbeat, nil, heart("a", "g", "t")); f.Code != mq.Success {
			t.Fatalf("time %d: a heartbeat is answered %d %s", i, f.Code, f.Remark)
		}
		// A send with a delay, a pull that is held and a connection without a word are there when the broker closes.
		if f := call(mq.CodeSend, sendExt("t", 0, "properties", "DELAY\x011\x02"), []byte("later")); f.Code != mq.Success {
			t.Fatalf("time %d: a delayed send is answered %d %s", i, f.Code, f.Remark)
		}
		silent, err := net.Dial("tcp", ports[1])
		must(i, err)
		held := make(chan error, 1)
		must(i, c.Go(ports[0], remoting.Request{Code: mq.CodePull, Ext: pullExt("g", "t", 2, 0, 15000)}, time.Minute, func(_ *remoting.Frame, err error) { held <- err }))
		until(func() bool { return b.polls.count.Load() == 1 || len(held) > 0 })
		must(i, b.Close())
		<-held // without an answer, or with one if it was looked at again when leadership ended
		must(i, c.Close())
		must(i, silent.Close())
	}
	leaderless := func(i int) {
		b, err := Open(config(1))
		must(i, err)
		c := remoting.NewClient(remoting.ClientConfig{Version: 409})
		answered := make(chan error, 1)
		must(i, c.Go(ports[0], remoting.Request{Code: mq.CodeSend, Ext: sendExt("t", 0)}, time.Minute, func(_ *remoting.Frame, err error) { answered <- err }, []byte("hello")))
		until(func() bool {
			b.gate.mu.Lock()
			defer b.gate.mu.Unlock()
			return len(b.gate.held) == 1 || len(answered) > 0
		})
		must(i, b.Close())
		<-answered
		must(i, c.Close())
	}
	refused := func(i int) {
		cfg := config(2)
		cfg.Listen = func(string) (net.Listener, error) { return nil, errors.New("address in use") }
		if b, err := Open(cfg); err == nil {
			t.Fatalf("time %d: %v", i, b.Close())
		}
		l, err := dledger.Open(config(2).Log)
		must(i, err)
		until(l.IsLeader) // or its term is there after some of the starts
		if b, err := Open(config(2)); err == nil {
			t.Fatalf("time %d: a directory has two owners: %v", i, b.Close())
		}
		must(i, l.Close())
	}
	leak.Check(t, dir, 3, func(i int) { []func(int){alone, leaderless, refused}[i%3](i) })
}
