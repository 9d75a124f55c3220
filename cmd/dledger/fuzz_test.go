package main

import (
	"log/slog"
	"testing"
)

// FuzzConfigFile: whatever a configuration file holds gives nodes or a message, and never a panic.
func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("configs:\n- group: default\n  selfId: n0\n  peers: n0-localhost:20911\n  storeBaseDir: /tmp/x\n"))
	f.Add([]byte("configs: [{group: a, mappedFileSizeForEntryData: 1024}]"))
	f.Add([]byte("configs:\n- &a {group: g}\n- *a\n- <<: *a\n"))
	f.Add([]byte("{"))
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, text []byte) {
		nodes, err := parseConfigs(text, log)
		if (len(nodes) > 0) == (err != nil) {
			t.Errorf("%d nodes and error %v", len(nodes), err)
		}
		if err != nil && err.Error() == "" {
			t.Error("an error without a message")
		}
	})
}
