package broker

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"dledger"
	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// TestMessagesOutsideTheReplicatedLogAreRefused: a directory of a Java broker that was not always in DLedger mode is not opened as one without messages, and stays as it is, queues and
// key index too. Files that no message begins are no reason.
func TestMessagesOutsideTheReplicatedLogAreRefused(t *testing.T) {
	host := netip.MustParseAddrPort("10.0.0.1:10911")
	message, err := mq.AppendStored(nil, &mq.Message{Topic: "t", Body: []byte("old"), BornHost: host, StoreHost: host})
	if err != nil {
		t.Fatal(err)
	}
	file := func(content []byte) string { return string(content) + strings.Repeat("\x00", 1<<16-len(content)) }
	const first, second = "00000000000000000000", "00000000000000065536"
	for _, k := range []struct {
		name    string
		files   map[string]string // below storePathRootDir
		more    string            // key=value
		refused string            // the directory that is named; "" = the start goes on
	}{
		{"a log of the older kind", map[string]string{"commitlog/" + first: file(message)}, "", "/store/commitlog"},
		{"one whose first file is gone", map[string]string{"commitlog/" + second: file(message)}, "", "/store/commitlog"},
		{"one that is a message long", map[string]string{"commitlog/" + first: string(message)}, "", "/store/commitlog"},
		{"one whose first file was never written", map[string]string{"commitlog/" + first: file(nil), "commitlog/" + second: file(message)}, "", "/store/commitlog"},
		{"one beside a replicated log", map[string]string{"commitlog/" + first: file(message), "dledger-n0/data/" + second: file([]byte{0, 0, 0, 1})}, "", "/store/commitlog"},
		{"one at its own place", map[string]string{"old/" + first: file(message)}, "storePathCommitLog=/store/old", "/store/old"},
		{"one at two places", map[string]string{"older/" + first: file(message)}, "storePathCommitLog=/store/old,/store/older", "/store/older"},
		{"none, with its place", map[string]string{"commitlog/" + first: file(nil), "commitlog/" + second: ""}, "", ""},
		{"none, and a file of somebody else", map[string]string{"commitlog/README": "x"}, "", ""},
		{"none, and a file in its place", map[string]string{"commitlog": "x"}, "", ""},
		{"none", nil, "storePathCommitLog=/store/old", ""},
		{"the replicated log in its place", map[string]string{"commitlog/" + first: file([]byte{0, 0, 0, 1})}, "storePathDLedgerCommitLog=/store/commitlog", ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			fs := vfs.NewMem()
			files := map[string]string{"consumequeue/t/0/" + first: file(make([]byte, 19)), "index/20261130000000000": "x", "checkpoint": "x", "config/topics.json": "{}"}
			maps.Copy(files, k.files)
			for name, content := range files {
				name = "/store/" + name
				if err := errors.Join(fs.MkdirAll(filepath.Dir(name)), vfs.Replace(fs, name, []byte(content))); err != nil {
					t.Fatal(err)
				}
			}
			before, err := fs.ReadDir("/store")
			if err != nil {
				t.Fatal(err)
			}
			cfg := NewConfig()
			cfg.Name, cfg.IP = "a", "127.0.0.1"
			cfg.Log = dledger.Config{ID: "n0", Peers: "n0-127.0.0.1:1", Dir: "/store", FS: fs}
			if key, value, ok := strings.Cut(k.more, "="); ok {
				if err := cfg.Set(key, value); err != nil {
					t.Fatal(err)
				}
			}
			goesOn := errors.New("the start goes on")
			cfg.Listen = func(string) (net.Listener, error) { return nil, goesOn }
			_, err = Open(cfg)
			switch {
			case k.refused == "" && !errors.Is(err, goesOn):
				t.Errorf("%v, want the start to go on", err)
			case k.refused != "" && (!strings.HasPrefix(fmt.Sprint(err), k.refused+" ") || !strings.Contains(fmt.Sprint(err), "move that directory away")):
				t.Errorf("%v, want an error that begins with %s and says what to do", err, k.refused)
			}
			for name, content := range files {
				if got, err := vfs.ReadFile(fs, "/store/"+name); err != nil || string(got) != content {
					t.Errorf("%s is %d bytes, %v; it was %d", name, len(got), err, len(content))
				}
			}
			if after, err := fs.ReadDir("/store"); err != nil || !slices.Equal(after, before) {
				t.Errorf("in the directory are now %v, %v; there were %v", after, err, before)
			}
		})
	}
}
