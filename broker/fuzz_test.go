package broker

import (
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/dledgertest"
	"dledger/internal/mq"
)

// fieldsText and fieldsOf write fields as one text that the fuzzer can change: a name and a value each, between control characters that no field has.
func fieldsText(ext map[string]string) string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(ext)) {
		s.WriteString(name + "\x1f" + ext[name] + "\x1e")
	}
	return s.String()
}

func fieldsOf(text string) map[string]string {
	ext := map[string]string{}
	for field := range strings.SplitSeq(text, "\x1e") {
		if name, value, ok := strings.Cut(field, "\x1f"); ok {
			ext[name] = value
		}
	}
	return ext
}

// FuzzRequests: whatever is asked of a broker, by a client or by one who knows the group's secret, it does not panic and tells the operator of no fault, answers once, or not
// at all if it need not, and takes a good send afterwards.
func FuzzRequests(f *testing.F) {
	known := slices.Sorted(maps.Keys(table()))
	r := rand.New(rand.NewPCG(1, 2))
	for _, code := range append(slices.Clone(known), 9999, -1) {
		c, ext, body := randomRequest(r, []int32{code})
		f.Add(c, fieldsText(ext), body, false, r.IntN(4) == 0)
	}
	for _, q := range sensible() {
		f.Add(q.code, fieldsText(q.ext), q.body, false, false)
	}
	f.Add(int32(mq.CodeSend), fieldsText(sendExt("t", 0)), []byte("x"), true, false)
	f.Add(int32(mq.CodePull), fieldsText(pullExt("g", "t", 0, 100, 15000)), []byte(nil), false, false)
	f.Fuzz(func(t *testing.T, code int32, fields string, body []byte, oneWay, member bool) {
		if len(fields)+len(body) > 1<<20 {
			return // more is a matter of frames
		}
		found := &bugs{}
		inClusterOf(t, dledgertest.Setup{Seed: 1}, 1, func(cfg *Config) { cfg.Logger = slog.New(found) }, func(c *cluster) {
			n := c.leader()
			b := c.brokers[n]
			conn := c.raw("10.1.0.9:9", c.address(n), rand.New(rand.NewPCG(3, 4)))
			defer conn.nc.Close()
			answers := func(opaque int) int {
				conn.mu.Lock()
				defer conn.mu.Unlock()
				return conn.answers[opaque]
			}
			opaque := 0
			ask := func(code int32, ext map[string]string, body []byte, oneWay bool) int {
				opaque++
				if err := conn.send(opaque, code, ext, body, oneWay); err != nil {
					c.T.Fatalf("request %d: %v", code, err)
				}
				return opaque
			}
			for _, q := range sensible() {
				ask(q.code, q.ext, q.body, false)
			}
			c.Wait("what it needs", func() bool { return answers(opaque) == 1 })
			ext := fieldsOf(fields)
			if delete(ext, fieldMember); member {
				ext[fieldMember] = c.secret()
			}
			asked := ask(code, ext, body, oneWay)
			want := 1
			switch {
			case oneWay:
				want = 0
			case code == mq.CodeQueryConsumerOffset: // which gets none while nobody knows
				want = -1
			default:
				for range 80 { // longer than anything is held
					if answers(asked) > 0 {
						break
					}
					time.Sleep(time.Second)
				}
			}
			time.Sleep(time.Second)
			if got := answers(asked); got != want && (want >= 0 || got > 1) {
				c.T.Errorf("%d answers, want %d", got, want)
			}
			conn.mu.Lock()
			if conn.ended != nil {
				c.T.Errorf("the connection has ended: %v", conn.ended)
			}
			conn.mu.Unlock()
			good := c.client("10.1.0.1").call(n, mq.CodeSend, sendExt("another", 0), []byte("good"))
			if good.Code != mq.Success && code != mq.CodeUpdateBrokerConfig { // which may refuse it from now on
				c.T.Errorf("a good send afterwards: code %d, %s", good.Code, good.Remark)
			}
			if b.Err() != nil {
				c.T.Error(b.Err())
			}
			found.mu.Lock()
			for _, text := range found.seen {
				c.T.Error(text)
			}
			found.mu.Unlock()
		})
	})
}
