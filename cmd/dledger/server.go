package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/cobra"

	"dledger"
)

// serverFlags are those of `dledger server`, named as the original's where it has them.
type serverFlags struct {
	group, id, peers, dir        string
	readOnly, preferred          string
	throttle, quota              string
	file                         string
	set                          []string
	logLevel, logFormat          string
	metricsAddress, pprofAddress string
}

// original pairs a flag of the original's with the key it sets.
var originalFlags = []struct{ flag, key string }{
	{"group", "group"}, {"id", "selfId"}, {"peers", "peers"}, {"store-base-dir", "storeBaseDir"},
	{"read-only-data-store-dirs", "readOnlyDataStoreDirs"}, {"peer-push-throttle-point", "peerPushThrottlePoint"},
	{"peer-push-quotas", "peerPushQuota"}, {"preferred-leader-id", "preferredLeaderIds"},
}

func newServer() *cobra.Command {
	var o serverFlags
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run one node, or with a configuration file nodes of several groups on one port",
		Long: `Runs one node of a group until it gets SIGTERM or SIGINT; it then hands leadership over and stops cleanly.

--set takes every key of the original's configuration and these:` + ownKeys() + `.
--config-file is a YAML file with a list of nodes under "configs", each with the same keys; all must have the same
port. --set applies to each of them, the other flags that set a key cannot be used with it.`,
		Example: `  dledger server -g orders -i n0 -p "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911" -s /var/lib/dledger
  dledger server -g orders -i n0 -p "n0-127.0.0.1:20911" -s data --set durability=async --set compat=0.4
  dledger server -c groups.yaml --metrics 127.0.0.1:9100`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			nodes, err := o.nodes(cmd, log)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), nodes, log, o.metricsAddress, o.pprofAddress, 0, nil)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.group, "group", "g", "default", "group")
	f.StringVarP(&o.id, "id", "i", "n0", "id of this node")
	f.StringVarP(&o.peers, "peers", "p", "n0-localhost:20911", "all nodes of the group, id-host:port joined by ';'")
	f.StringVarP(&o.dir, "store-base-dir", "s", "/tmp/dledgerstore", "base directory; the node's files are in dledger-ID in it")
	f.StringVar(&o.readOnly, "read-only-data-store-dirs", "", "further directories of data files, joined by ',', in which nothing is written or deleted")
	f.StringVar(&o.throttle, "peer-push-throttle-point", "", "bytes a follower must be behind before the quota applies")
	f.StringVar(&o.quota, "peer-push-quotas", "", "bytes a second to a follower that far behind")
	f.StringVar(&o.preferred, "preferred-leader-id", "", "nodes that should lead, joined by ';'")
	f.StringVarP(&o.file, "config-file", "c", "", "YAML file with the nodes to run")
	f.StringArrayVar(&o.set, "set", nil, "set a key, KEY=VALUE; may be given several times")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringVar(&o.metricsAddress, "metrics", "", "serve Prometheus metrics on this host:port")
	f.StringVar(&o.pprofAddress, "pprof", "", "serve profiles of this process on this host:port")
	return cmd
}

// ownKeys lists the keys that the original does not have, in lines of help.
func ownKeys() string {
	var b strings.Builder
	width := len("--set takes every key of the original's configuration and these:")
	for _, s := range dledger.Settings() {
		if !s.Own {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
			width++
		}
		if width+1+len(s.Key) > 118 {
			b.WriteByte('\n')
			width = 0
		} else {
			b.WriteByte(' ')
			width++
		}
		b.WriteString(s.Key)
		width += len(s.Key)
	}
	return b.String()
}

func parseLevel(s string) (slog.Leveler, error) {
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(s)); err != nil {
		return nil, usage("--log-level %q: none of debug, info, warn, error", s)
	}
	return level, nil
}

func newLog(w io.Writer, level, format string) (*slog.Logger, error) {
	least, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usage("--log-format %q: neither text nor json", format)
}

// nodes gives the configuration of every node to run.
func (o *serverFlags) nodes(cmd *cobra.Command, log *slog.Logger) ([]dledger.Config, error) {
	var nodes []dledger.Config
	if o.file != "" {
		for _, f := range originalFlags {
			if cmd.Flags().Changed(f.flag) {
				return nil, usage("--%s: not together with --config-file, which has %s", f.flag, f.key)
			}
		}
		text, err := os.ReadFile(o.file)
		if err != nil {
			return nil, err
		}
		if nodes, err = parseConfigs(text, log); err != nil {
			return nil, fmt.Errorf("%s: %w", o.file, err)
		}
	} else {
		var c dledger.Config
		for _, f := range originalFlags {
			if value := cmd.Flag(f.flag).Value.String(); value != "" {
				if _, err := c.Set(f.key, value); err != nil {
					return nil, usage("--%s: %w", f.flag, err)
				}
			}
		}
		nodes = append(nodes, c)
	}
	for i := range nodes {
		if err := set(&nodes[i], o.set, log); err != nil {
			return nil, err
		}
		nodes[i].Logger = log
	}
	for i := range nodes {
		err := nodes[i].Check()
		if own, _ := ownAddress(&nodes[i]); err == nil && port(own) == "0" {
			err = fmt.Errorf("peers: port 0 of %s: the others have to know the port", nodes[i].ID)
		}
		switch {
		case err != nil && o.file == "":
			return nil, usageError{err}
		case err != nil:
			return nil, fmt.Errorf("%s: node %d: %w", o.file, i+1, err)
		}
		for k := range i {
			if !nodes[i].Memory && !nodes[k].Memory && nodes[i].ID == nodes[k].ID && filepath.Clean(nodes[i].Dir) == filepath.Clean(nodes[k].Dir) {
				return nil, fmt.Errorf("%s: nodes %d and %d both have storeBaseDir %q and selfId %q, so they would share one directory", o.file, k+1, i+1, nodes[i].Dir, nodes[i].ID)
			}
			if dir := shared(nodes[i].DataDirs, nodes[k].DataDirs); dir != "" {
				return nil, fmt.Errorf("%s: nodes %d and %d both have dataStorePath %q", o.file, k+1, i+1, dir)
			}
		}
	}
	return nodes, nil
}

// shared gives a directory that both lists name; "" if there is none.
func shared(a, b []string) string {
	for _, dir := range a {
		if slices.ContainsFunc(b, func(other string) bool { return filepath.Clean(other) == filepath.Clean(dir) }) {
			return dir
		}
	}
	return ""
}

// set applies --set flags.
func set(c *dledger.Config, settings []string, log *slog.Logger) error {
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return usage("--set %q: want KEY=VALUE", s)
		}
		ignored, err := c.Set(strings.TrimSpace(key), value)
		if err != nil {
			return usage("--set: %w", err)
		}
		if ignored {
			log.Info("setting of the original has no effect here", "key", key)
		}
	}
	return nil
}

// scalar is a value of the file as it is written there: to the original 04 is a text, not a number. An empty one is not set.
type scalar string

// UnmarshalYAML takes the text of the node.
func (s *scalar) UnmarshalYAML(n ast.Node) error {
	switch n.(type) {
	case *ast.NullNode:
		return nil
	case ast.ScalarNode:
		*s = scalar(n.GetToken().Value)
		return nil
	}
	return fmt.Errorf("%s is neither text nor number", strings.TrimSpace(n.String()))
}

// parseConfigs reads the original's configuration file.
func parseConfigs(text []byte, log *slog.Logger) ([]dledger.Config, error) {
	var file struct {
		Configs []map[string]scalar `yaml:"configs"`
	}
	if err := decodeYAML(text, &file); err != nil {
		return nil, err
	}
	if len(file.Configs) == 0 {
		return nil, errors.New(`no node under "configs"`)
	}
	nodes := make([]dledger.Config, len(file.Configs))
	for i, keys := range file.Configs {
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if keys[key] == "" {
				continue // as if it were not there
			}
			ignored, err := nodes[i].Set(key, string(keys[key]))
			if err != nil {
				return nil, fmt.Errorf("node %d: %w", i+1, err)
			}
			if ignored {
				log.Info("setting of the original has no effect here", "key", key)
			}
		}
	}
	return nodes, nil
}

// decodeYAML reads text into v. The library panics on some texts that are no configuration, such as "configs: !x 1": those are refused too.
func decodeYAML(text []byte, v any) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it is not the YAML of a configuration")
		}
	}()
	if err := yaml.UnmarshalWithOptions(text, v, yaml.DisallowUnknownField()); err != nil {
		return errors.New(strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return nil
}

// ownAddress is the address in peers under the node's own id.
func ownAddress(c *dledger.Config) (string, error) {
	peers, err := dledger.ParsePeers(c.Peers)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(peers, func(p dledger.Peer) bool { return p.ID == c.ID })
	if i < 0 {
		return "", fmt.Errorf("id %q is not one of the peers %q", c.ID, c.Peers)
	}
	return peers[i].Address, nil
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// serve runs the nodes until ctx ends. beside, if not nil, runs what shares their port, more groups of that number, and stops it before they close.
func serve(ctx context.Context, nodes []dledger.Config, log *slog.Logger, metrics, pprof string, more int, beside func(*dledger.Server) (stop func() error, err error)) (err error) {
	tuneMemory()
	address, bind := "", nodes[0].Bind
	for i := range nodes {
		own, err := ownAddress(&nodes[i])
		if err != nil {
			return err
		}
		if address != "" && port(own) != port(address) {
			return fmt.Errorf("node %s of group %s has port %s, but all nodes of one process share one port, %s", nodes[i].ID, nodes[i].Group, port(own), port(address))
		}
		if nodes[i].Bind != bind {
			return fmt.Errorf("node %s of group %s has logBindAddress %q, but all nodes of one process share one port, on %q", nodes[i].ID, nodes[i].Group, nodes[i].Bind, bind)
		}
		address = cmp.Or(address, own)
	}
	server, err := dledger.Listen(dledger.ServerConfig{Address: address, Bind: bind, Groups: len(nodes) + more, Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	var open []*dledger.Ledger
	stop := func() error { return nil }
	defer func() {
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }() // it may take a while, and leadership of the nodes need not wait for it
		err = errors.Join(err, closeAll(open), <-stopped)
	}()
	for i := range nodes {
		nodes[i].Server = server
		l, err := dledger.Open(nodes[i])
		if err != nil {
			return err
		}
		open = append(open, l)
	}
	if beside != nil {
		if stop, err = beside(server); err != nil {
			stop = func() error { return nil }
			return err
		}
	}
	pages, err := servePages(metrics, pprof, open)
	if err != nil {
		return err
	}
	log.Info("serving", "address", server.Addr().String(), "nodes", len(open))
	<-ctx.Done()
	log.Info("stopping")
	return pages.close()
}

// closeAll closes ledgers side by side, since each may wait for a successor of its own.
func closeAll(ledgers []*dledger.Ledger) error {
	failed := make([]error, len(ledgers))
	var closing sync.WaitGroup
	for i, l := range ledgers {
		closing.Go(func() { failed[i] = l.Close() })
	}
	closing.Wait()
	return errors.Join(failed...)
}

// tuneMemory lets the heap grow further between collections than Go does by itself, as long as it is small: a log's live data is a
// few tens of MiB, and under load most of the rest is garbage of requests. The environment variable GOGC goes before it.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
}
