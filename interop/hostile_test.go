package interop

import (
	"bytes"
	"context"
	bigendian "encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dledger/interop/harness"
)

// attack is one kind of ill will towards a port. It ends by itself.
type attack struct {
	name string
	run  func(ctx context.Context, address string) error
}

// frameOf is a whole frame with a JSON header.
func frameOf(code, opaque int, body string) []byte {
	header := fmt.Sprintf(`{"code":%d,"flag":0,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":0}`, code, opaque)
	return join(header, body)
}

// join makes a frame of a JSON header and a body.
func join(header, body string) []byte {
	return slices.Concat(word(uint32(4+len(header)+len(body))), word(uint32(len(header))), []byte(header), []byte(body))
}

// send writes bytes on a connection of their own and reads until the other side has had enough, or for a moment. What it reads must have nothing of never in it, and
// where that is empty must be nothing at all.
func send(ctx context.Context, address string, b []byte, never string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("the port does not take connections: %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	// The other side may close at any moment; that is its answer.
	_, _ = c.Write(b)
	answer, _ := io.ReadAll(c)
	if len(answer) > 0 && bytes.Contains(answer, []byte(never)) {
		return fmt.Errorf("%.100q is answered %.500q", b, answer)
	}
	return nil
}

// granted is in the answers of a broker or a name server that has done what was asked.
const granted = `"code":0,`

// nonsense is in no answer: what a port does for anybody is no wrong answer.
const nonsense = "\x00never\x00"

// stranger is a request of somebody that the port does not know, and what no answer to it may have in it.
type stranger struct {
	Frame []byte
	Never string
}

// each runs n sends, eight at a time.
func each(ctx context.Context, n int, one func(i int) error) error {
	var wait sync.WaitGroup
	errs := make([]error, 8)
	for w := range errs {
		wait.Go(func() {
			for i := w; i < n && errs[w] == nil && ctx.Err() == nil; i += len(errs) {
				errs[w] = one(i)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func word(v uint32) []byte { return bigendian.BigEndian.AppendUint32(nil, v) }

// attacks that any port of ours must take. whole is a request the port understands.
func attacks(r *rand.Rand, whole []byte, strangers ...stranger) []attack {
	deep := strings.Repeat(`{"a":[`, 20_000)
	lengths := [][]byte{word(0), word(0xffffffff), word(0x7fffffff), word(16<<20 + 1), word(1), word(7)}
	noise := make([][]byte, 64)
	for i := range noise {
		noise[i] = make([]byte, 1+r.IntN(4000))
		for k := range noise[i] {
			noise[i][k] = byte(r.Uint32())
		}
	}
	list := []attack{
		{"random bytes", func(ctx context.Context, a string) error {
			return each(ctx, len(noise), func(i int) error { return send(ctx, a, noise[i], granted) })
		}},
		{"impossible lengths", func(ctx context.Context, a string) error {
			return each(ctx, 4*len(lengths), func(i int) error {
				return send(ctx, a, append(slices.Clone(lengths[i%len(lengths)]), "and then something"...), "")
			})
		}},
		{"a header longer than its frame", func(ctx context.Context, a string) error {
			return send(ctx, a, slices.Concat(word(100), word(4000), make([]byte, 200)), granted)
		}},
		{"an unknown serializer", func(ctx context.Context, a string) error {
			return send(ctx, a, slices.Concat(word(100), word(7<<24|50), make([]byte, 200)), granted)
		}},
		{"deep JSON in the header", func(ctx context.Context, a string) error {
			return send(ctx, a, join(deep, ""), granted)
		}},
		{"deep JSON in the body", func(ctx context.Context, a string) error { return send(ctx, a, frameOf(50001, 1, deep), `"index":0`) }},
		{"a request cut at each byte", func(ctx context.Context, a string) error {
			return each(ctx, len(whole), func(i int) error { return send(ctx, a, whole[:i], "") })
		}},
		{"2,000 slow connections", func(ctx context.Context, a string) error {
			var conns []net.Conn
			defer func() {
				for _, c := range conns {
					c.Close()
				}
			}()
			for i := range 2000 {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
				if err != nil {
					return fmt.Errorf("connection %d: %w", i, err)
				}
				conns = append(conns, c)
			}
			pace := time.NewTicker(200 * time.Millisecond)
			defer pace.Stop()
			for k := range 20 { // four seconds, the length and the header a little at a time, and then all of the body but its last byte
				part := whole[len(whole)*k/21 : len(whole)*(k+1)/21]
				if k == 19 {
					part = whole[len(whole)*k/21 : len(whole)-1]
				}
				for _, c := range conns {
					_, _ = c.Write(part) // it may have been closed: its right
				}
				select {
				case <-pace.C:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}},
		{"a storm of connections", func(ctx context.Context, a string) error {
			return each(ctx, 2000, func(int) error {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
				if err != nil {
					return err
				}
				return c.Close()
			})
		}},
	}
	for _, s := range strangers {
		list = append(list, attack{"a flood of a stranger's requests", func(ctx context.Context, a string) error {
			flood := bytes.Repeat(s.Frame, 200)
			return each(ctx, 64, func(int) error { return send(ctx, a, flood, s.Never) })
		}})
	}
	return list
}

// target is what an attack is aimed at.
type target struct {
	Address   string
	Whole     []byte // a request that the port understands
	Strangers []stranger
	Seed      uint64
	No        int // of the attack; used by attackAsTold alone
}

func (g target) attacks() []attack {
	return attacks(rand.New(rand.NewPCG(g.Seed, 0)), g.Whole, g.Strangers...)
}

// attackVariable makes this test program an attacker: it holds a target.
const attackVariable = "INTEROP_ATTACK"

// attackAsTold is the attacker: a process of its own that does one attack over and over until it is killed. It takes only the processor time that nobody else wants:
// what a good client feels is then what the server does about the attack, and not that attacker, server and client share two processors.
func attackAsTold(order string) {
	var g target
	if err := json.Unmarshal([]byte(order), &g); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	a := g.attacks()[g.No]
	for {
		fmt.Println("again") // the test waits for the first of these lines
		if err := a.run(context.Background(), g.Address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// pace is what a good client saw: it does one thing after the other, with a pause that leaves the machine room.
func pace(ctx context.Context, one func(context.Context) error, n int) (p50, p99 time.Duration, err error) {
	var took []time.Duration
	for range n {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, 4*time.Second)
		err := one(call)
		cancel()
		if err != nil {
			return 0, 0, err
		}
		took = append(took, time.Since(began))
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	slices.Sort(took)
	return took[n/2], took[n*99/100-1], nil
}

// endure puts all attacks on a port of process p, one after the other: good, a good client of the port, is served all the while, and the process's memory
// stays within 64 MiB of what it was.
func endure(t *testing.T, p *harness.Process, address string, whole []byte, good func(context.Context) error, strangers ...stranger) {
	t.Helper()
	const mib = 1 << 20
	_, _, err := pace(within(t, limit), good, 300)
	must(t, err)
	p50, calm, err := pace(within(t, limit), good, 500)
	must(t, err)
	base, _, err := p.Usage()
	must(t, err)
	g := target{Address: address, Whole: whole, Strangers: strangers, Seed: rand.Uint64()}
	t.Logf("%s: base: p50 %v, p99 %v, %d MiB; seed %d", address, p50, calm, base/mib, g.Seed)
	for i, a := range g.attacks() {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		ended := make(chan error, 1)
		go func() { ended <- a.run(ctx, address) }()
		most := int64(0)
		var worst time.Duration
		for done := false; !done; {
			_, p99, err := pace(ctx, good, 100)
			if err != nil {
				t.Fatalf("%s: the good client: %v", a.name, err)
			}
			worst = max(worst, p99)
			rss, _, err := p.Usage()
			must(t, err)
			most = max(most, rss)
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("%s: %v", a.name, err)
				}
				done = true
			default:
			}
		}
		cancel()
		t.Logf("%-35s p99 %8v (%.1f times), memory %+d MiB", a.name, worst.Round(10*time.Microsecond), float64(worst)/float64(calm), (most-base)/mib)
		if os.Getenv("INTEROP_LONG") != "" {
			g.No = i
			g.feel(t, a.name, good)
		}
		if most-base > 64*mib && !harness.Racing() {
			t.Errorf("%s: %d MiB more than before", a.name, (most-base)/mib)
		}
	}
}

// feel prints a good client's p99 with the attacker paused and with it at work, as medians of rounds that take turns: whatever else this machine does meanwhile it does
// to both. Nothing is held: see docs/testing.md.
func (g target) feel(t *testing.T, name string, good func(context.Context) error) {
	t.Helper()
	order, err := json.Marshal(g)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	var runs atomic.Int64
	p, err := harness.Start([]string{"env", attackVariable + "=" + string(order), self}, dir, dir+"/attacker.log", func([]byte) { runs.Add(1) })
	must(t, err)
	defer p.Kill()
	must(t, harness.Until(within(t, limit), "the attacker", func() bool { return runs.Load() > 0 }))
	const rounds, samples = 9, 200
	var calm, under []time.Duration
	for range rounds {
		must(t, p.Pause())
		_, p99, err := pace(within(t, limit), good, samples)
		must(t, err)
		calm = append(calm, p99)
		must(t, p.Resume())
		_, p99, err = pace(within(t, limit), good, samples)
		must(t, err)
		under = append(under, p99)
	}
	select {
	case <-p.Done():
		text, err := os.ReadFile(dir + "/attacker.log")
		t.Errorf("the attacker ended: %s %v", text, err)
	default:
	}
	slices.Sort(calm)
	slices.Sort(under)
	t.Logf("%-35s p99 in turns: %v, without it %v", name, under[rounds/2].Round(10*time.Microsecond), calm[rounds/2].Round(10*time.Microsecond))
}

// Whatever comes in at the leader's port: it goes on leading.
func TestHostileNetworkDisturbsNoGroup(t *testing.T) {
	t.Parallel() // most of it is waiting for connections to be closed
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	leader := started(t, g)
	c := g.Client()
	defer c.Close()
	vote := frameOf(51001, 1, `{"group":"interop","remoteId":"`+leader.ID+`","localId":"n9","leaderId":"n9","term":1000000,"ledgerEndIndex":1000000,"ledgerEndTerm":1000000,"code":200}`)
	push := frameOf(51004, 1, `{"group":"interop","remoteId":"`+leader.ID+`","localId":"n9","leaderId":"n9","term":1000000,"type":"TRUNCATE","commitIndex":0,"code":200}`)
	beat := frameOf(51002, 1, `{"group":"interop","remoteId":"`+leader.ID+`","localId":"n9","leaderId":"n9","term":1000000,"code":200}`)
	whole := frameOf(50001, 1, `{"body":"aGVsbG8=","code":200,"group":"nobody","remoteId":"n0","term":-1}`)
	endure(t, leader.Process(), fmt.Sprintf("127.0.0.1:%d", leader.Port), whole, func(ctx context.Context) error {
		_, err := c.Append(ctx, []byte("a good client's entry"))
		return err
	}, stranger{vote, `"voteResult":"ACCEPT"`}, stranger{push, `"code":200,"count"`}, stranger{beat, `"code":200,"group"`})
	if now, err := c.Leader(within(t, limit)); err != nil || now != leader.ID {
		t.Errorf("%s leads (%v), want %s as before", now, err, leader.ID)
	}
	for _, n := range g.Nodes {
		text, err := os.ReadFile(n.Base() + ".log")
		must(t, err)
		if bytes.Contains(text, []byte("panic")) {
			t.Errorf("%s: %s", n.ID, text)
		}
	}
	_, err := g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Stop())
}

// extFrame is a whole request with fields in its header.
func extFrame(code int, fields map[string]string, body string) []byte {
	ext, err := json.Marshal(fields)
	if err != nil {
		panic(err) // strings
	}
	header := fmt.Sprintf(`{"code":%d,"extFields":%s,"flag":0,"language":"JAVA","opaque":7,"version":479}`, code, ext)
	return join(header, body)
}

// The same for the ports of name server and broker, in one process that holds both.
func TestHostileNetworkDisturbsNoBroker(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	base, err := harness.UpPorts(1)
	must(t, err)
	p, err := harness.Start([]string{ours(t).Go, "up", "--dir", dir, "--port-base", fmt.Sprint(base)}, dir, dir+"/up.log", nil)
	must(t, err)
	t.Cleanup(p.Kill)
	names, broker := fmt.Sprintf("127.0.0.1:%d", base+1), fmt.Sprintf("127.0.0.1:%d", base+100)
	send := extFrame(10, map[string]string{"producerGroup": "good", "topic": "good", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
		"sysFlag": "0", "bornTimestamp": "1700000000123", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false"}, "a good client's message")
	clients := map[string]*caller{}
	call := func(address string, frame []byte) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			if clients[address] == nil {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
				if err != nil {
					return err
				}
				t.Cleanup(func() { c.Close() })
				clients[address] = &caller{c}
			}
			return clients[address].call(ctx, frame)
		}
	}
	sends, routes := call(broker, send), call(names, extFrame(105, map[string]string{"topic": "good"}, ""))
	must(t, harness.Until(within(t, limit), "a send, and its topic's route", func() bool {
		return sends(within(t, time.Second)) == nil && routes(within(t, time.Second)) == nil
	}))
	endure(t, p, names, extFrame(105, map[string]string{"topic": "nobody"}, ""), routes,
		stranger{extFrame(103, map[string]string{"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}, "{}"), nonsense},
		stranger{extFrame(322, map[string]string{"brokerName": "b"}, "{}"), nonsense})
	endure(t, p, broker, send, sends,
		stranger{extFrame(34, nil, `{"clientID":"stranger","consumerDataSet":[{"groupName":"`+strings.Repeat("g", 300)+`"}],"producerDataSet":[]}`), nonsense},
		stranger{extFrame(11, map[string]string{"consumerGroup": "stranger", "topic": "good", "queueId": "0", "queueOffset": "999999999", "maxMsgNums": "32", "sysFlag": "6",
			"commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0"}, ""), granted},
		stranger{extFrame(10, map[string]string{"topic": "no such topic!", "queueId": "x"}, "x"), granted})
	must(t, p.Stop(20*time.Second))
	text, err := os.ReadFile(dir + "/up.log")
	must(t, err)
	if bytes.Contains(text, []byte("panic")) {
		t.Errorf("%s", text)
	}
}

// caller does one request after the other on one connection.
type caller struct{ net.Conn }

func (c *caller) call(ctx context.Context, frame []byte) error {
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	if _, err := c.Write(frame); err != nil {
		return err
	}
	var length [4]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return err
	}
	answer := make([]byte, bigendian.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"code":0,`)) {
		return fmt.Errorf("answered %.300q", answer)
	}
	return nil
}
