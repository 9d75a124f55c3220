package dledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"dledger/internal/raft"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
	"dledger/internal/wire"
)

// port opens a port on host and gives its address, and what a Config or ServerConfig has for Listen, so that nobody else can take the port in between. A
// second life at the address opens the port again.
func port(t testing.TB, host string) (address string, listen func(string) (net.Listener, error)) {
	t.Helper()
	if ln, err := net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		t.Skipf("no %s here: %v", host, err)
	} else {
		_ = ln.Close()
	}
	ln, err := listenTCP("", net.JoinHostPort(host, "0")) // as where Listen is nil
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	_, number, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	handed := false
	return net.JoinHostPort(host, number), func(address string) (net.Listener, error) {
		if handed {
			return listenTCP("", address)
		}
		handed = true
		return ln, nil
	}
}

// anywhere is Listen for members that nobody connects to.
func anywhere(string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

// openFiles counts this process's descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted: %v", err)
	}
	return len(names)
}

// TestFailedOpenLeavesNothingBehind: whatever it is that fails.
func TestFailedOpenLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	good := Config{ID: "n0", Peers: "n0-127.0.0.1:20911", Listen: anywhere, Dir: t.TempDir(), DataFileSize: 64 << 10, IndexFileSize: 32 * 1024}
	l, err := Open(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files := openFiles(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"another data file size", func(c *Config) { c.DataFileSize = 128 << 10 }, "data files of 65536"},
		{"another index file size", func(c *Config) { c.IndexFileSize = 32 * 2048 }, "index files of 32768"},
		{"a file for a directory", func(c *Config) { c.Dir = file }, file},
		{"an address of another machine", func(c *Config) {
			c.Listen = func(string) (net.Listener, error) { return nil, errors.New("cannot assign requested address") }
		}, "cannot assign"},
		{"a member that is not one", func(c *Config) { c.ID = "n7" }, `id "n7"`},
		{"no directory", func(c *Config) { c.Dir = "" }, "dir"},
		{"peers without port", func(c *Config) { c.Peers = "n0-localhost" }, "localhost"},
	} {
		cfg := good
		k.change(&cfg)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("%s: got %v, want an error that names %q", k.name, err, k.want)
		}
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d descriptors, before %d", n, files)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func TestDirectoryIsForOneMemberAtATime(t *testing.T) {
	members := group(t, 1, nil)
	cfg := members[0].cfg
	cfg.Server, cfg.Listen = nil, anywhere
	if l, err := Open(cfg); err == nil {
		t.Errorf("a second member opened the directory: %v", l.Close())
	} else if !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v, want that the directory is in use", err)
	}
}

// TestManyGroupsShareAServer: three processes' worth of servers, twenty groups on each, each group with its own leader and log.
func TestManyGroupsShareAServer(t *testing.T) {
	const groups = 20
	var servers []*Server
	var peers []string
	for i := range 3 {
		address, listen := port(t, "127.0.0.1")
		s, err := Listen(ServerConfig{Address: address, Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
		peers = append(peers, fmt.Sprintf("n%d-%s", i, address))
	}
	dir := t.TempDir()
	members := make([][]*Ledger, groups)
	for g := range groups {
		for i, s := range servers {
			l, err := Open(Config{Group: fmt.Sprintf("g%d", g), ID: fmt.Sprintf("n%d", i), Peers: strings.Join(peers, ";"), Dir: filepath.Join(dir, fmt.Sprint(g)),
				DataFileSize: 64 << 10, IndexFileSize: 32 * 1024, Server: s, PreferredIDs: []string{fmt.Sprintf("n%d", g%3)}})
			if err != nil {
				t.Fatal(err)
			}
			members[g] = append(members[g], l)
		}
	}
	if l, err := Open(members[0][0].cfg); err == nil || !strings.Contains(err.Error(), `group "g0"`) && !strings.Contains(err.Error(), "in use") {
		t.Errorf("the same member twice: %v, %v", l, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for g, ms := range members {
		all.Go(func() {
			var e Entry
			for i := 0; i < 5; {
				var err error
				if e, err = leaderOf(ctx, ms).Append(ctx, fmt.Appendf(nil, "%d of %d", i, g)); err == nil {
					i++
				} else if ctx.Err() != nil {
					t.Errorf("group %d: %v", g, err)
					return
				}
			}
			for _, l := range ms {
				i := 0
				for e, err := range l.Entries(ctx, 0) {
					switch string(e.Body) {
					case fmt.Sprintf("%d of %d", i, g):
						i++
					case fmt.Sprintf("%d of %d", i-1, g): // repeated on a busy machine, because it was undecided
					default:
						t.Errorf("group %d: entry %d is %q, %v", g, i, e.Body, err)
					}
					if err != nil || i == 5 {
						break
					}
				}
			}
			if e.Index < 4 {
				t.Errorf("group %d: five appends end at entry %d", g, e.Index)
			}
		})
	}
	all.Wait()
	for _, ms := range members {
		for _, l := range ms {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, s := range servers {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// leaderOf waits for a member that leads, until ctx ends; then it gives any.
func leaderOf(ctx context.Context, members []*Ledger) *Ledger {
	for ctx.Err() == nil {
		changed := members[0].Changed()
		for _, l := range members {
			if l.IsLeader() {
				return l
			}
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond): // another member may see it first
		case <-ctx.Done():
		}
	}
	return members[0]
}

// TestMembersSetDifferentlyAreRefused: the refusal names the setting, and the members that agree go on.
func TestMembersSetDifferentlyAreRefused(t *testing.T) {
	for _, k := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"compat", func(c *Config) { c.Compat = Compat04 }, "compat: 0.4"},
		{"data file size", func(c *Config) { c.DataFileSize = 32 << 20 }, "mappedFileSizeForEntryData is 33554432"},
		{"group", func(c *Config) { c.Group = "other" }, `group "default"`},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			members := group(t, 3, func(c *Config) {
				if c.ID == "n2" {
					k.change(c)
				}
			})
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			l := leaderOf(ctx, members[:2])
			if _, err := l.Append(ctx, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			for {
				s, err := l.Status(ctx)
				if err != nil {
					t.Fatal(err)
				}
				var refused string
				for _, p := range s.Peers {
					if p.ID == "n2" {
						refused = p.Refused
					}
				}
				if strings.Contains(refused, k.want) {
					break
				}
				select {
				case <-time.After(10 * time.Millisecond): // the status has no event
				case <-ctx.Done():
					t.Fatalf("the leader says %q of n2, want that it names %q", refused, k.want)
				}
			}
			if c := members[2].Commit(); c >= 0 {
				t.Errorf("the refused member has committed entry %d", c)
			}
		})
	}
}

// TestAddressesMayBeNamesAndIPv6, on real sockets.
func TestAddressesMayBeNamesAndIPv6(t *testing.T) {
	for _, host := range []string{"localhost", "::1"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			var peers []string
			var listen []func(string) (net.Listener, error)
			for i := range 3 {
				address, l := port(t, host)
				peers, listen = append(peers, fmt.Sprintf("n%d-%s", i, address)), append(listen, l)
			}
			next := 0
			members := group(t, 3, func(c *Config) {
				c.Peers = strings.Join(peers, ";")
				c.ID, c.Listen = fmt.Sprintf("n%d", next), listen[next]
				next++
			})
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			e, err := leaderOf(ctx, members).Append(ctx, []byte("hello"))
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range members {
				for got, err := range l.Entries(ctx, e.Index) {
					if err != nil || string(got.Body) != "hello" {
						t.Errorf("%s: %q, %v", l.cfg.ID, got.Body, err)
					}
					break
				}
			}
		})
	}
}

// A port that will carry two groups answers for the first one only when the second is open too: until then nobody is told that a member is unknown.
func TestPortAnswersOnceAllItsGroupsAreOpen(t *testing.T) {
	address, listen := port(t, "127.0.0.1")
	s, err := Listen(ServerConfig{Address: address, Listen: listen, Groups: 2})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func(name string) *Ledger {
		l, err := Open(Config{Group: name, ID: "n0", Peers: "n0-" + address, Dir: filepath.Join(dir, name), DataFileSize: 64 << 10, IndexFileSize: 32 * 1024, Server: s})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := open("first")
	c := remoting.NewClient(remoting.ClientConfig{})
	defer c.Close()
	answered := make(chan error, 1)
	body := (&wire.MetadataRequest{Base: wire.Base{Group: "second", RemoteID: "n0", Code: wire.ResultOK, Term: -1}}).AppendTo(nil)
	if err := c.Go(address, remoting.Request{Code: wire.CodeMetadata}, 10*time.Second, func(f *remoting.Frame, err error) {
		var a wire.MetadataResponse
		if err == nil {
			err = a.Decode(f.Code, f.Body)
		}
		if err == nil && a.Code != wire.ResultOK {
			err = fmt.Errorf("answered %v", a.Code)
		}
		answered <- err
	}, body); err != nil {
		t.Fatal(err)
	}
	second := open("second")
	if err := <-answered; err != nil {
		t.Errorf("asked before the group was open: %v", err)
	}
	for _, l := range []*Ledger{first, second} {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A confirmed read of our own client that has to wait for the disk holds up its answer and nothing else: not the leadership, and not an append.
func TestConfirmedReadWaitsForTheDiskAlone(t *testing.T) {
	m := vfs.NewMem()
	address, listen := port(t, "127.0.0.1")
	cfg := Config{ID: "n0", Peers: "n0-" + address, Listen: listen, Dir: "/n0", FS: m, DataFileSize: 64 << 10, IndexFileSize: 32 * 1024}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for life := range 2 { // so that nothing is in memory
		l, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		leader(t, []*Ledger{l})
		if life == 0 {
			if _, err := l.Append(ctx, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		reading, resume := make(chan bool, 16), make(chan bool)
		m.SetHook(func(c vfs.Call) error {
			if c.Op == "read" && strings.Contains(c.Name, "/data/") {
				reading <- true
				<-resume
			}
			return nil
		})
		cl := remoting.NewClient(remoting.ClientConfig{})
		defer cl.Close()
		req := wire.GetBatchRequest{Group: "default", RemoteID: l.net.self, From: 0, EntriesMax: 1, Confirmed: true}
		answered := make(chan error, 1)
		go func() {
			_, err := cl.Call(ctx, l.peers[0].Address, remoting.Request{Code: wire.CodeGetBatch}, 20*time.Second, req.AppendTo(nil))
			answered <- err
		}()
		select {
		case <-reading:
		case <-ctx.Done():
			t.Fatal("nothing is read from the disk")
		}
		if _, err := l.Append(ctx, []byte("meanwhile")); err != nil {
			t.Errorf("append while a read waits: %v", err)
		}
		close(resume)
		if err := <-answered; err != nil {
			t.Error(err)
		}
		m.SetHook(nil)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Fault 22 of the original: where many groups share a port, a snapshot of another member is answered, in the way of the group's generation.
func TestSnapshotIsAnsweredInEveryGroupOfAPort(t *testing.T) {
	address, listen := port(t, "127.0.0.1")
	s, err := Listen(ServerConfig{Address: address, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client := remoting.NewClient(remoting.ClientConfig{})
	defer client.Close()
	for group, compat := range map[string]Compat{"a": Compat03, "b": Compat04} {
		l, err := Open(Config{Group: group, ID: "n0", Peers: "n0-" + address, Dir: t.TempDir(), DataFileSize: 64 << 10, IndexFileSize: 32 * 1024, Server: s, Compat: compat})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		answer := make(chan error, 1)
		if err := client.Go(address, remoting.Request{Code: wire.CodeInstallSnapshot}, 5*time.Second, func(f *remoting.Frame, err error) {
			if err == nil {
				var got raft.Compat
				if got, err = wire.SnapshotDialect(f.Code, f.Body); err == nil && got != compat {
					err = fmt.Errorf("answered as %v, want %v", got, compat)
				}
			}
			answer <- err
		}, wire.AppendSnapshotProbe(nil, group, "n0", "n1")); err != nil {
			t.Fatal(err)
		}
		if err := <-answer; err != nil {
			t.Errorf("group %s: %v", group, err)
		}
	}
}

// Requests that nobody who belongs to a group sends are counted as such, and only they: their connections are read from slowly when there are many.
func TestStrangersAskInVain(t *testing.T) {
	address, listen := port(t, "127.0.0.1")
	s, err := Listen(ServerConfig{Address: address, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := Open(Config{Group: "g", ID: "n0", Peers: "n0-" + address + ";n1-127.0.0.1:1;n2-127.0.0.1:2", Dir: t.TempDir(), DataFileSize: 64 << 10, IndexFileSize: 32 * 1024, Server: s})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := remoting.NewClient(remoting.ClientConfig{})
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	const me = `"group":"g","remoteId":"n0",`
	const end = `"ledgerEndIndex":-1,"ledgerEndTerm":-1`
	for _, c := range []struct {
		what string
		code int32
		body string
		vain bool
	}{
		{"a vote for a stranger", wire.CodeVote, `{` + me + `"localId":"n9","leaderId":"n9","term":0,` + end + `}`, true},
		{"a member's vote", wire.CodeVote, `{` + me + `"localId":"n1","leaderId":"n1","term":0,` + end + `}`, false},
		{"a stranger's heartbeat", wire.CodeHeartbeat, `{` + me + `"localId":"n9","leaderId":"n9","term":0}`, true},
		{"a stranger's push", wire.CodePush, `{` + me + `"localId":"n9","leaderId":"n9","term":0,"type":"COMMIT","commitIndex":0}`, true},
		{"a vote in another group", wire.CodeVote, `{"group":"h","remoteId":"n0","localId":"n1","leaderId":"n1","term":0,` + end + `}`, true},
		{"an append here", wire.CodeAppend, `{` + me + `"body":"aGVsbG8="}`, false}, // n0 does not lead: clients ask around
		{"an append in another group", wire.CodeAppend, `{"group":"h","remoteId":"n0","body":"aGVsbG8="}`, true},
		{"nonsense", wire.CodeAppend, `[`, true},
		{"metadata", wire.CodeMetadata, `{` + me + `"x":0}`, false},
		{"status", wire.CodeStatus, `{"group":"g"}`, false},
		{"status of another group", wire.CodeStatus, `{"group":"h"}`, true},
		{"a handshake", wire.CodeHello, `{"group":"g"}`, false},
		{"a handshake with another group", wire.CodeHello, `{"group":"h"}`, true},
		{"a batch read of nonsense", wire.CodeGetBatch, `x`, true},
		{"a batch of nonsense", wire.CodeAppendBatch, `x`, true},
		{"a code of nobody's", 12345, ``, true},
	} {
		before := s.remote.Stats().Vain
		if _, err := client.Call(ctx, address, remoting.Request{Code: c.code}, 10*time.Second, []byte(c.body)); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if n := s.remote.Stats().Vain - before; (n == 1) != c.vain || n > 1 {
			t.Errorf("%s: counts %d times", c.what, n)
		}
	}
}
