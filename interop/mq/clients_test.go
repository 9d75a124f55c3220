package mq

import (
	"maps"
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
var javaScripts = []string{"broadcast", "delay", "filter", "litepull", "orderly", "produce", "pull", "push", "refusals", "retry", "transaction"}

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
					runJava(t, c, kits[prefix], saw[prefix], prefix, scripts[prefix])
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

// runJava runs scripts of Stock.java and returns when all have said what they saw, or the time is up.
func runJava(t *testing.T, c *cluster.Cluster, kit *stock.Kit, saw *seen, prefix string, scripts []string) {
	all := make(chan struct{})
	left := len(scripts)
	home := filepath.Join(c.Dir, prefix+"client")
	argv := kit.Client(home, append([]string{c.NameServer, prefix}, scripts...)...)
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
