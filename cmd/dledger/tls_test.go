package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/security"
)

// With TLS enforced on name server and broker, they find each other, a TLS client is served and a plain one is not. The keys come from the file that
// tls.config.file names.
func TestBrokerAndNameServerSpeakTLSAlone(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	keys := put("tls.properties", "tls.server.mode=enforcing\n")
	port := freePort(t, 5, 1) // of the name server, the log, the broker's second listener, none, the broker
	names := fmt.Sprintf("127.0.0.1:%d", port)
	directory := start(t, "namesrv", "-c", put("namesrv.conf", "tls.config.file="+keys+"\nkvConfigPath="+filepath.Join(dir, "kv.json")+"\n"), "--port", strconv.Itoa(port))
	replica := start(t, "broker", "-c", put("broker.conf", fmt.Sprintf(`brokerName=a
brokerIP1=127.0.0.1
listenPort=%d
namesrvAddr=%s
enableDLegerCommitLog=true
dLegerSelfId=n0
dLegerPeers=n0-127.0.0.1:%d
storePathRootDir=%s
mappedFileSizeForEntryData=1048576
mappedFileSizeForEntryIndex=1048576
tls.config.file=%s
`, port+4, names, port+1, dir, keys)))
	setup, err := remoting.NewTLS(security.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	secure := remoting.NewClient(remoting.ClientConfig{Dial: setup.Dial, Version: mq.Version})
	defer secure.Close()
	leader := ""
	for leader == "" {
		f, err := secure.Call(ctx, names, remoting.Request{Code: mq.CodeClusterInfo}, time.Second)
		var info mq.ClusterInfo
		if err == nil && mq.Unmarshal(f.Body, &info) == nil {
			leader = info.Brokers["a"].BrokerAddrs[0]
		}
		if ctx.Err() != nil {
			t.Fatalf("no leader at the name server: %v\n%s\n%s", err, directory.err.wait(t, ""), replica.err.wait(t, ""))
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	ask := remoting.Request{Code: mq.CodeMaxOffset, Ext: map[string]string{"topic": "t", "queueId": "0"}}
	if f, err := secure.Call(ctx, leader, ask, time.Second); err != nil || f.Code != mq.Success {
		t.Errorf("TLS client: %v, %v", f, err)
	}
	plain := remoting.NewClient(remoting.ClientConfig{Version: mq.Version})
	defer plain.Close()
	for _, address := range []string{names, leader} {
		if f, err := plain.Call(ctx, address, ask, time.Second); err == nil {
			t.Errorf("%s serves a plain client: %+v", address, f)
		}
	}
}
