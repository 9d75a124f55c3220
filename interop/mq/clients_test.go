package mq

import (
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dledger/interop/harness"
	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

// javaScripts are those of Stock.java. What they see is the same with both releases of the client.
var javaScripts = []string{"broadcast", "delay", "filter", "litepull", "orderly", "orderlydead", "produce", "pull", "push", "refusals", "retry", "transaction"}

// answering needs the older client: in 5.3.3 a request gets no answer from the original either.
const answering = "request"

// assigned needs the newer client: the older one cannot let the broker share queues.
const assigned = "assigned"

// Every form of sending and consuming, by the Go client and two generations of the Java client, side by side.
func TestStockClientsSeeTheOriginal(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			kits := map[string]*stock.Kit{"java4-": fetched(t, stock.Client4), "java5-": fetched(t, stock.Servers)}
			c := started(t, s)
			var goSaw, java4, java5 seen
			saw := map[string]*seen{"java4-": &java4, "java5-": &java5}
			scripts := map[string][]string{"java4-": append([]string{answering}, javaScripts...), "java5-": append([]string{assigned}, javaScripts...)}
			var wg sync.WaitGroup
			prefixes := slices.Sorted(maps.Keys(kits))
			for _, prefix := range prefixes {
				must(t, createTopics(t, c, prefix, scripts[prefix]))
			}
			wg.Go(func() { // one after the other: two young JVMs would keep two cores from anything else
				for _, prefix := range prefixes {
					runJava(t, c, c.NameServer, kits[prefix], saw[prefix], prefix, scripts[prefix])
				}
			})
			names := slices.Sorted(maps.Keys(goScripts))
			runGo(t, c, &goSaw, names)
			wg.Wait()
			goSaw.compare(t, "", "", names)
			for _, prefix := range prefixes {
				saw[prefix].compare(t, prefix, "java-", scripts[prefix])
			}
			if t.Failed() {
				t.Log(c.Logs())
			}
		})
	}
}

func createTopics(t *testing.T, c *cluster.Cluster, prefix string, scripts []string) error {
	for _, script := range scripts {
		if err := c.CreateTopic(within(t, time.Minute), prefix+script, 4); err != nil {
			return err
		}
	}
	return nil
}

// runJava runs scripts of Stock.java, for which names is the name server, and returns when all have said what they saw, or the time is up.
func runJava(t *testing.T, c *cluster.Cluster, names string, kit *stock.Kit, saw *seen, prefix string, scripts []string) {
	all := make(chan struct{})
	left := len(scripts)
	home := filepath.Join(c.Dir, prefix+"client")
	argv := kit.Client(home, append([]string{names, prefix}, scripts...)...)
	p, err := harness.Start(argv, c.Dir, filepath.Join(c.Dir, prefix+"client.log"), func(line []byte) {
		script, text, ok := strings.Cut(string(line), "\t")
		switch {
		case !ok: // what the client prints of its own
		case text != "#end":
			saw.say(script, "%s", text)
		default:
			if left--; left == 0 {
				close(all)
			}
		}
	})
	if err != nil {
		t.Error(err)
		return
	}
	defer p.Kill()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	select {
	case <-all:
	case <-p.Done():
		t.Errorf("%sclient ended before its scripts", prefix)
	case <-limit.C:
		t.Errorf("%sclient is not done in 2 minutes", prefix)
	}
}

// What a stock client sees does not depend on how it talks: in TLS, with the binary header, or both.
func TestStockClientsSeeTheSameOverTLSAndWithTheBinaryHeader(t *testing.T) {
	const tls, binary = "-Dtls.enable=true", "-Drocketmq.serialize.type=ROCKETMQ"
	scripts := []string{"produce", "pull", "push"}
	c := started(t, subject{"ours", oursKind, oursKind})
	for prefix, options := range map[string][]string{"tls-": {tls}, "binary-": {binary}, "tls-binary-": {tls, binary}} {
		must(t, createTopics(t, c, prefix, scripts))
		kit := *fetched(t, stock.Servers)
		kit.ClientJVM = options
		names, spoken := listening(t, c.NameServer)
		var saw seen
		runJava(t, c, names, &kit, &saw, prefix, scripts)
		saw.compare(t, prefix, "java-", scripts)
		select {
		case first := <-spoken:
			if inTLS := first[0] == 0x16; inTLS != slices.Contains(options, tls) {
				t.Errorf("%sclient: the name server got %x first", prefix, first)
			} else if !inTLS && (first[4] == 1) != slices.Contains(options, binary) {
				t.Errorf("%sclient: its header is of kind %d", prefix, first[4])
			}
		default:
			t.Errorf("%sclient has not asked the name server", prefix)
		}
	}
	if t.Failed() {
		t.Log(c.Logs())
	}
}

// listening stands between clients and a server until the test ends, and tells the first five bytes that a client sends.
func listening(t *testing.T, server string) (address string, spoken <-chan [5]byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	heard := make(chan [5]byte, 1)
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				up, err := net.Dial("tcp", server)
				if err != nil {
					t.Errorf("reach %s: %v", server, err)
					return
				}
				defer up.Close()
				go func() {
					_, _ = io.Copy(client, up) // a connection ends as it likes
					client.Close()
				}()
				var first [5]byte
				if _, err := io.ReadFull(client, first[:]); err != nil {
					return // it only looked whether somebody is there
				}
				select {
				case heard <- first:
				default:
				}
				if _, err := up.Write(first[:]); err == nil {
					_, _ = io.Copy(up, client)
				}
			}()
		}
	}()
	return l.Addr().String(), heard
}
