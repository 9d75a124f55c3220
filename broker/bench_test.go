package broker

import (
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// BenchmarkSend is what a send costs a broker without other replicas, and its client, which is next to nothing: 64 are on their way over one connection.
func BenchmarkSend(b *testing.B) {
	port := func() int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	cfg := NewConfig()
	cfg.Name, cfg.IP, cfg.Port = "a", "127.0.0.1", port()
	cfg.Log = dledger.Config{Group: "a", ID: "n0", Durability: dledger.Async, Dir: filepath.Join(b.TempDir(), "log"),
		Peers: "n0-127.0.0.1:" + strconv.Itoa(port())}
	br, err := Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	cl := remoting.NewClient(remoting.ClientConfig{Version: 317})
	defer cl.Close()
	address := "127.0.0.1:" + strconv.Itoa(cfg.Port)
	ext := map[string]string{"batch": "false", "bornTimestamp": "1700000000123", "brokerName": "a", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
		"flag": "0", "maxReconsumeTimes": "0", "producerGroup": "load", "queueId": "3", "reconsumeTimes": "0", "sysFlag": "0", "topic": "bench", "unitMode": "false",
		"properties": "UNIQ_KEY\x010A000001000100000000000000000001\x02WAIT\x01true\x02TAGS\x01a\x02"}
	body := make([]byte, 1<<10)
	slots := make(chan struct{}, 64)
	send := func() {
		slots <- struct{}{}
		err := cl.Go(address, remoting.Request{Code: mq.CodeSend, Ext: ext}, 10*time.Second, func(f *remoting.Frame, err error) {
			if err != nil || f.Code != mq.Success {
				b.Error(f, err)
			}
			<-slots
		}, body)
		if err != nil {
			b.Fatal(err)
		}
	}
	wait := func() {
		for range cap(slots) {
			slots <- struct{}{}
		}
		for range cap(slots) {
			<-slots
		}
	}
	send() // makes the topic
	wait()
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	wait()
}
