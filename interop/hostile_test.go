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
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dledger/internal/figure"
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

// send writes bytes on a connection of their own and reads until the other side has had enough, or for a moment. What it reads is judged.
func send(ctx context.Context, address string, b []byte, v verdict) error {
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
	if err := v.judge(answer); err != nil {
		return fmt.Errorf("%.100q is answered %.500q, which should be %s: %w", b, answer, v, err)
	}
	return nil
}

// stranger is a request of somebody that the port does not know, and how it is to be answered.
type stranger struct {
	Frame   []byte
	Verdict verdict
	Grown   int // bytes that are put where the frame has grows; 0 = it stays as it is
}

// grows is where a frame may be made longer: in a base64 string of its body. An attacker in a process of its own is told small frames alone.
const grows = "Z3Jvd3M="

// grown is the whole of a request that is longer than its Frame.
func (s stranger) grown() []byte {
	grown := bytes.Replace(s.Frame[4:], []byte(grows), bytes.Repeat([]byte("R3Jv"), s.Grown/4), 1)
	return slices.Concat(word(uint32(len(grown))), grown)
}

// force is how much there is of each attack.
type force struct {
	Many  int // connections one after the other
	Slow  int // connections at a time
	Ticks int // of a fifth of a second, that slow connections last
	Step  int // of a request that is cut at each so many bytes
}

var (
	full  = force{Many: 64, Slow: 2000, Ticks: 20, Step: 1}
	light = force{Many: 16, Slow: 500, Ticks: 4, Step: 4}
)

// each runs n sends, some at a time.
func each(ctx context.Context, n, together int, one func(i int) error) error {
	var wait sync.WaitGroup
	errs := make([]error, together)
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

// attacks that a port of ours must take which speaks frames.
func (g target) frameAttacks() []attack {
	deep := strings.Repeat(`{"a":[`, 20_000)
	closed := deep + strings.Repeat(`]}`, 20_000)
	lengths := [][]byte{word(0), word(0xffffffff), word(0x7fffffff), word(16<<20 + 1), word(1), word(7)}
	list := []attack{
		{"impossible lengths", func(ctx context.Context, a string) error {
			return each(ctx, 4*len(lengths), 8, func(i int) error {
				return send(ctx, a, append(slices.Clone(lengths[i%len(lengths)]), "and then something"...), silent)
			})
		}},
		{"a header longer than its frame", func(ctx context.Context, a string) error {
			return send(ctx, a, slices.Concat(word(100), word(4000), make([]byte, 200)), refused)
		}},
		{"an unknown serializer", func(ctx context.Context, a string) error {
			return send(ctx, a, slices.Concat(word(100), word(7<<24|50), make([]byte, 200)), refused)
		}},
	}
	for i, text := range []string{deep, closed} {
		name := []string{"deep JSON cut short", "deep JSON"}[i]
		list = append(list,
			attack{name + " in the header", func(ctx context.Context, a string) error { return send(ctx, a, join(text, ""), refused) }},
			attack{name + " in the body", func(ctx context.Context, a string) error { return send(ctx, a, frameOf(50001, 1, text), refused) }})
	}
	return list
}

// attacks that a page, which speaks HTTP, must take.
func (g target) pageAttacks() []attack {
	const get, host = "GET /metrics HTTP/1.1\r\n", "Host: h\r\n"
	endless := bytes.Repeat([]byte("X-More: and more\r\n"), 120_000) // 2 MB
	return []attack{
		{"a header without end", func(ctx context.Context, a string) error {
			return each(ctx, 8, 8, func(int) error { return send(ctx, a, slices.Concat([]byte(get+host), endless), noPage) })
		}},
		{"frames", func(ctx context.Context, a string) error {
			return send(ctx, a, bytes.Repeat(frameOf(50001, 1, "{}"), 100), noPage)
		}},
		{"a body that never comes", func(ctx context.Context, a string) error {
			return g.crowd(ctx, a, []byte(get+host+"Content-Length: 1000000\r\n\r\n"), 1)
		}},
		{"requests whose answers nobody reads", func(ctx context.Context, a string) error {
			return g.crowd(ctx, a, bytes.Repeat([]byte(get+host+"\r\n"), 50), 1)
		}},
		{"connections that stay after a request", func(ctx context.Context, a string) error {
			return g.crowd(ctx, a, []byte(get+host+"\r\n"), 1)
		}},
	}
}

// crowd opens connections and writes b on each, in as many parts as there are ticks. It reads nothing.
func (g target) crowd(ctx context.Context, a string, b []byte, ticks int) error {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range g.Force.Slow {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		conns = append(conns, c)
	}
	pace := time.NewTicker(200 * time.Millisecond)
	defer pace.Stop()
	for k := range ticks {
		for _, c := range conns {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // what is not read is not written
			_, _ = c.Write(b[len(b)*k/ticks : len(b)*(k+1)/ticks])        // it may have been closed: its right
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// target is what an attack is aimed at.
type target struct {
	Address   string
	Page      bool   // it speaks HTTP
	Whole     []byte // a request that the port understands
	Strangers []stranger
	Force     force
	Seed      uint64
	No        int // of the attack; used by attackAsTold alone
}

// attacks are all that there are for a target.
func (g target) attacks() []attack {
	garbage, special := refused, g.frameAttacks
	if g.Page {
		garbage, special = noPage, g.pageAttacks
	}
	r := rand.New(rand.NewPCG(g.Seed, 0))
	noise := make([][]byte, g.Force.Many)
	for i := range noise {
		noise[i] = make([]byte, 1+r.IntN(4000))
		for k := range noise[i] {
			noise[i][k] = byte(r.Uint32())
		}
	}
	list := []attack{{"random bytes", func(ctx context.Context, a string) error {
		return each(ctx, len(noise), 8, func(i int) error { return send(ctx, a, noise[i], garbage) })
	}}}
	list = append(list, special()...)
	list = append(list,
		attack{"a request cut at each byte", func(ctx context.Context, a string) error {
			return each(ctx, len(g.Whole)/g.Force.Step, 8, func(i int) error { return send(ctx, a, g.Whole[:i*g.Force.Step], silent) })
		}},
		attack{"slow connections", func(ctx context.Context, a string) error { // the length and the header a little at a time, and then all but the last byte
			return g.crowd(ctx, a, g.Whole[:len(g.Whole)-1], g.Force.Ticks)
		}},
		attack{"a storm of connections", func(ctx context.Context, a string) error {
			return each(ctx, g.Force.Slow, 8, func(int) error {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
				if err != nil {
					return err
				}
				return c.Close()
			})
		}})
	for i, s := range g.Strangers {
		list = append(list, attack{fmt.Sprintf("a flood of a stranger's requests, %d", i+1), func(ctx context.Context, a string) error {
			if s.Grown > 0 { // few at a time: what they bring is in memory, and garbage takes as much
				flood := bytes.Repeat(s.grown(), 2)
				return each(ctx, g.Force.Many/8, 2, func(int) error { return send(ctx, a, flood, s.Verdict) })
			}
			flood := bytes.Repeat(s.Frame, 200)
			return each(ctx, g.Force.Many, 8, func(int) error { return send(ctx, a, flood, s.Verdict) })
		}})
	}
	return list
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
// stays within 64 MiB of what it was, also for a moment. So do its descriptors within those given, if any are.
func endure(t *testing.T, p *harness.Process, g target, descriptors int, good func(context.Context) error) {
	t.Helper()
	g.Seed = rand.Uint64()
	if which := os.Getenv(latencyVariable); which != "" {
		if g.Force == full {
			g.latency(t, which, good)
		}
		return
	}
	const mib = 1 << 20
	samples := 500
	if g.Force == light {
		samples = 100
	}
	_, _, err := pace(within(t, limit), good, samples/2)
	must(t, err)
	p50, calm, err := pace(within(t, limit), good, samples)
	must(t, err)
	base, _, err := p.Usage()
	must(t, err)
	files, err := p.Descriptors()
	must(t, err)
	t.Logf("%s: base: p50 %v, p99 %v, %d MiB, %d descriptors; seed %d", g.Address, p50, calm, base/mib, files, g.Seed)
	worstOf, under := time.Duration(0), ""
	for _, a := range g.attacks() {
		must(t, p.ForgetPeak())
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		ended := make(chan error, 1)
		go func() { ended <- a.run(ctx, g.Address) }()
		most, mostFiles := int64(0), 0
		var worst time.Duration
		for done := false; !done; {
			_, p99, err := pace(ctx, good, samples/5)
			if err != nil {
				t.Fatalf("%s: the good client: %v", a.name, err)
			}
			worst = max(worst, p99)
			peak, err := p.Peak() // now, since whoever attacks another port of the process may make it forget
			must(t, err)
			most = max(most, peak)
			now, err := p.Descriptors()
			must(t, err)
			mostFiles = max(mostFiles, now)
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
		if worst > worstOf {
			worstOf, under = worst, a.name
		}
		t.Logf("%-37s p99 %8v (%.1f times), memory %+d MiB, descriptors %+d", a.name, worst.Round(10*time.Microsecond), float64(worst)/float64(calm), (most-base)/mib, mostFiles-files)
		if most-base > 64*mib && !harness.Racing() {
			t.Errorf("%s: %d MiB more than before", a.name, (most-base)/mib)
		}
		if descriptors > 0 && mostFiles-files > descriptors {
			t.Errorf("%s: %d descriptors more than before, want at most %d", a.name, mostFiles-files, descriptors)
		}
	}
	figure.Log(t, "%s: a good client's p99 %v, at worst %v under %s", g.Address, calm.Round(10*time.Microsecond), worstOf.Round(10*time.Microsecond), under)
}

// latencyVariable makes the tests of the hostile network hold a good client's p99, and nothing else, under the attacks whose names have its value in them, a regular
// expression. Those tests want the machine for themselves.
const latencyVariable = "INTEROP_LATENCY"

// latency holds a good client's p99 under attack to twice what it is without, or while the same attacker is busy with a port that only reads and drops.
func (g target) latency(t *testing.T, which string, good func(context.Context) error) {
	t.Helper()
	wanted := regexp.MustCompile(which)
	_, _, err := pace(within(t, limit), good, 500)
	must(t, err)
	t.Logf("%s: seed %d", g.Address, g.Seed)
	for i, a := range g.attacks() {
		if !wanted.MatchString(a.name) {
			continue
		}
		g.No = i
		calm, beside, under := g.feel(t, good)
		figure.Log(t, "%s: %-37s a good client's p99 in turns: %v, %v with the same at a port that drops all (%.1f times), %v without it", g.Address, a.name,
			under.Round(10*time.Microsecond), beside.Round(10*time.Microsecond), float64(under)/float64(beside), calm.Round(10*time.Microsecond))
		if under > 2*max(calm, beside)+slice {
			t.Errorf("%s: p99 %v under %s, %v while that is done to a port that drops all, %v without it", g.Address, under, a.name, beside, calm)
		}
	}
}

// slice is how long the system's scheduler may let a process wait that has become runnable while others compute: that says nothing of the server.
const slice = 3 * time.Millisecond

// feel gives a good client's p99 without an attack, with the attacker at work on a port of nobody's, and with the attack, as medians of rounds that take turns: whatever else this
// machine does meanwhile it does to all of them. What the attacker takes of the machine, its processors and its loopback, is in both of the latter.
func (g target) feel(t *testing.T, good func(context.Context) error) (calm, beside, under time.Duration) {
	t.Helper()
	nobody := sink(t)
	attackers := []*harness.Process{nil, g.attacker(t, nobody), g.attacker(t, g.Address)}
	const rounds, samples = 5, 100
	var p99s [3][]time.Duration
	for range rounds {
		for i, p := range attackers {
			if p != nil {
				must(t, p.Resume())
			}
			_, p99, err := pace(within(t, limit), good, samples)
			must(t, err)
			p99s[i] = append(p99s[i], p99)
			if p != nil {
				must(t, p.Pause())
			}
		}
	}
	for _, p := range attackers[1:] {
		select {
		case <-p.Done():
			t.Error("an attacker has ended")
		default:
			p.Kill()
		}
	}
	for i := range p99s {
		slices.Sort(p99s[i])
	}
	return p99s[0][rounds/2], p99s[1][rounds/2], p99s[2][rounds/2]
}

// attacker starts attack No of g at an address, a process of its own, and pauses it once it has begun.
func (g target) attacker(t *testing.T, address string) *harness.Process {
	t.Helper()
	g.Address = address
	order, err := json.Marshal(g)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	var runs atomic.Int64
	p, err := harness.Start([]string{"env", attackVariable + "=" + string(order), self}, dir, dir+"/attacker.log", func([]byte) { runs.Add(1) })
	must(t, err)
	t.Cleanup(p.Kill)
	must(t, harness.Until(within(t, limit), "the attacker", func() bool { return runs.Load() > 0 }))
	must(t, p.Pause())
	return p
}

// sink serves a port that reads and drops whatever comes, until the test ends.
func sink(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c) // whatever ends it
				c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

// Whatever comes in at the ports of a group's members and of their pages: the leader leads on, in the same term and without another election, a follower says
// whom it follows, and pages are given.
func TestHostileNetworkDisturbsNoGroup(t *testing.T) {
	t.Parallel() // most of it is waiting for connections to be closed
	k := ours(t)
	g := group(t, k, k, k)
	g.DefaultTimers()
	metrics, profiles := map[string]string{}, map[string]string{} // by id, host and port
	for _, n := range g.Nodes {
		base, err := harness.FreePorts(0, 1)
		must(t, err)
		metrics[n.ID], profiles[n.ID] = fmt.Sprintf("127.0.0.1:%d", base), fmt.Sprintf("127.0.0.1:%d", base+1)
		n.Wrap = func(argv []string) []string {
			return append(argv, "--metrics", metrics[n.ID], "--pprof", profiles[n.ID])
		}
	}
	leader := started(t, g)
	_, err := g.Settle(within(t, limit)) // all have heard of the leader
	must(t, err)
	c := g.Client()
	defer c.Close()
	reigns := func() (all []string) {
		for _, n := range g.Nodes {
			text, err := page(within(t, limit), "http://"+metrics[n.ID]+"/metrics")
			must(t, err)
			found := reignLine.FindAllString(text, -1)
			if len(found) != 2 {
				t.Fatalf("the page of %s has %q of term and elections", n.ID, found)
			}
			all = append(all, found...)
		}
		return all
	}
	before := reigns()

	at := func(n *harness.Node, f force) target {
		fields := `{"group":"interop","remoteId":"` + n.ID + `","localId":"n9","leaderId":"n9","term":1000000,"code":200,`
		return target{
			Address: fmt.Sprintf("127.0.0.1:%d", n.Port), Force: f, Whole: frameOf(50001, 1, `{"body":"aGVsbG8=","code":200,"group":"nobody","remoteId":"n0","term":-1}`),
			Strangers: []stranger{
				{frameOf(51001, 1, fields+`"ledgerEndIndex":1000000,"ledgerEndTerm":1000000}`), refused, 0}, // a vote
				{frameOf(51004, 1, fields+`"type":"TRUNCATE","commitIndex":0}`), refused, 0},
				{frameOf(51002, 1, fields+`"x":0}`), refused, 0}, // a heartbeat
				{frameOf(51004, 1, fields+`"type":"APPEND","commitIndex":0,"count":1,"entries":[{"body":"`+grows+`","bodyCrc":0,"chainCrc":0,"channel":0,"index":0,"magic":1,"pos":0,`+
					`"size":1048623,"term":1000000}],"firstEntryIndex":0,"lastEntryIndex":0,"lastEntryTerm":1000000,"preLogIndex":-1,"preLogTerm":-1,"totalSize":1048623}`), refused, 4 << 20 / 3}, // of 1 MiB
			},
		}
	}
	endure(t, leader.Process(), at(leader, full), 0, func(ctx context.Context) error {
		_, err := c.Append(ctx, []byte("a good client's entry"))
		return err
	})
	var followers []*harness.Node
	for _, n := range g.Nodes {
		if n != leader {
			followers = append(followers, n)
		}
	}
	t.Run("others", func(t *testing.T) {
		t.Run("follower", func(t *testing.T) {
			t.Parallel()
			endure(t, followers[0].Process(), at(followers[0], light), 0, func(ctx context.Context) error {
				m, err := c.Metadata(ctx, followers[0].ID)
				if err == nil && m.LeaderID != leader.ID {
					err = fmt.Errorf("it follows %q", m.LeaderID)
				}
				return err
			})
		})
		for _, p := range []struct{ address, good, bad string }{
			{metrics[followers[1].ID], "/metrics", "/debug/pprof/"},
			{profiles[followers[1].ID], "/debug/pprof/cmdline", "/debug/pprof/profile?seconds=1000000"}, // of eleven days
		} {
			t.Run("page "+strings.ReplaceAll(p.good, "/", " "), func(t *testing.T) {
				t.Parallel()
				request := func(path string) []byte { return []byte("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n") }
				const connections, others = 2 * 32, 16 // of both pages, as docs/operating.md says; of clients and members that come and go
				endure(t, followers[1].Process(), target{Address: p.address, Page: true, Force: light, Whole: request(p.good), Strangers: []stranger{{request(p.bad), noPage, 0}}},
					connections+others, func(ctx context.Context) error {
						for { // it may have been sent away for another
							text, err := page(ctx, "http://"+p.address+p.good)
							if err == nil && len(text) > 0 || ctx.Err() != nil {
								return err
							}
						}
					})
			})
		}
	})
	if after := reigns(); !slices.Equal(after, before) {
		t.Errorf("now %q\nbefore %q", after, before)
	}
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
	_, err = g.Settle(within(t, limit))
	must(t, err)
	must(t, g.Stop())
}

var reignLine = regexp.MustCompile(`(?m)^dledger_(term|elections_total)\{.*$`)

// page gets a page on a connection of its own.
func page(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(text), err
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
	endure(t, p, target{Address: names, Force: full, Whole: extFrame(105, map[string]string{"topic": "nobody"}, ""), Strangers: []stranger{
		{extFrame(103, map[string]string{"brokerName": "b", "brokerAddr": "10.0.0.1:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}, "{}"), onlyFrames, 0},
		{extFrame(322, map[string]string{"brokerName": "b"}, "{}"), onlyFrames, 0},
	}}, 0, routes)
	endure(t, p, target{Address: broker, Force: full, Whole: send, Strangers: []stranger{
		{extFrame(34, nil, `{"clientID":"stranger","consumerDataSet":[{"groupName":"`+strings.Repeat("g", 300)+`"}],"producerDataSet":[]}`), onlyFrames, 0},
		{extFrame(11, map[string]string{"consumerGroup": "stranger", "topic": "good", "queueId": "0", "queueOffset": "999999999", "maxMsgNums": "32", "sysFlag": "6",
			"commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0"}, ""), refused, 0},
		{extFrame(10, map[string]string{"topic": "no such topic!", "queueId": "x"}, "x"), refused, 0},
	}}, 0, sends)
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
	if done, err := saysDone(answer); err != nil || !done {
		return fmt.Errorf("answered %.300q (%v)", answer, err)
	}
	return nil
}
