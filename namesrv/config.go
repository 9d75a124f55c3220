package namesrv

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"dledger/internal/mq"
	"dledger/security"
)

// Config holds the settings of a Server. The zero value is usable: port 9876 on all addresses, nothing on disk.
type Config struct {
	Address  string       // host:port to listen on; default ":9876"
	Listener net.Listener // takes the place of Address
	KVFile   string       // where the key-value configuration is kept; "" = in memory only
	Logger   *slog.Logger // default: nothing is logged
	TLS      TLS

	ScanInterval  time.Duration // how often silent brokers are looked for; default 1 s
	BrokerTimeout time.Duration // silence after which a broker is gone that has not named a time itself; default 120 s

	OrderMessages      bool          // put the order configuration of a topic into its route
	KeepOrderConfig    bool          // do not give the order configuration to brokers that register
	HideAllTopics      bool          // refuse the list of all topics
	HideTopicLists     bool          // refuse the other lists of topics
	DeleteAbsentTopics bool          // a registration takes away the topics that it does not name
	WaitForService     time.Duration // refuse routes for so long after the start, until brokers have registered
}

// TLS are the settings of TLS connections; see there.
type TLS = security.TLS

// DefaultAddress is where clients look for a name server.
const DefaultAddress = ":9876"

func (c *Config) setDefaults() error {
	if c.Address == "" {
		c.Address = DefaultAddress
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		name string
		at   *time.Duration
		def  time.Duration
	}{{"ScanInterval", &c.ScanInterval, time.Second}, {"BrokerTimeout", &c.BrokerTimeout, 120 * time.Second}} {
		if *d.at < 0 {
			return fmt.Errorf("%s %v: below zero", d.name, *d.at)
		}
		if *d.at == 0 {
			*d.at = d.def
		}
	}
	return nil
}

// key is one line of the original's configuration file (NamesrvConfig, NettyServerConfig).
type key struct {
	name string
	get  func(*Config) string
	set  func(*Config, string) error
	live bool // may be changed by UPDATE_NAMESRV_CONFIG; never a path or an address
}

func boolKey(name string, live, inverted bool, at func(*Config) *bool) key {
	return key{name, func(c *Config) string { return strconv.FormatBool(*at(c) != inverted) }, func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%s: %.40q is neither true nor false", name, v)
		}
		*at(c) = b != inverted
		return nil
	}, live}
}

func parseNumber(name, v string, lo, hi int64) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("%s: %.40q is no number from %d to %d", name, v, lo, hi)
	}
	return n, nil
}

// keys are in the order in which they are listed.
var keys = []key{
	boolKey("deleteTopicWithBrokerRegistration", true, false, func(c *Config) *bool { return &c.DeleteAbsentTopics }),
	boolKey("enableAllTopicList", true, true, func(c *Config) *bool { return &c.HideAllTopics }),
	boolKey("enableTopicList", true, true, func(c *Config) *bool { return &c.HideTopicLists }),
	{"kvConfigPath", func(c *Config) string { return c.KVFile }, func(c *Config, v string) error { c.KVFile = v; return nil }, false},
	{"bindAddress", func(c *Config) string { host, _, _ := net.SplitHostPort(c.Address); return host }, func(c *Config, v string) error {
		_, port, err := net.SplitHostPort(c.Address)
		c.Address = net.JoinHostPort(v, port)
		return err
	}, false},
	{"listenPort", func(c *Config) string { _, port, _ := net.SplitHostPort(c.Address); return port }, func(c *Config, v string) error {
		if _, err := parseNumber("listenPort", v, 0, 65535); err != nil {
			return err
		}
		host, _, err := net.SplitHostPort(c.Address)
		c.Address = net.JoinHostPort(host, v)
		return err
	}, false},
	{"needWaitForService", func(c *Config) string { return strconv.FormatBool(c.WaitForService > 0) }, func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("needWaitForService: %.40q is neither true nor false", v)
		}
		switch {
		case !b:
			c.WaitForService = 0
		case c.WaitForService == 0:
			c.WaitForService = 45 * time.Second
		}
		return nil
	}, true},
	boolKey("orderMessageEnable", true, false, func(c *Config) *bool { return &c.OrderMessages }),
	boolKey("returnOrderTopicConfigToBroker", true, true, func(c *Config) *bool { return &c.KeepOrderConfig }),
	{"scanNotActiveBrokerInterval", func(c *Config) string { return strconv.FormatInt(c.ScanInterval.Milliseconds(), 10) }, func(c *Config, v string) error {
		n, err := parseNumber("scanNotActiveBrokerInterval", v, 1, 1<<31)
		c.ScanInterval = time.Duration(n) * time.Millisecond
		return err
	}, false},
	{"waitSecondsForService", func(c *Config) string { return strconv.FormatInt(int64(c.WaitForService/time.Second), 10) }, func(c *Config, v string) error {
		n, err := parseNumber("waitSecondsForService", v, 0, 1<<20)
		if c.WaitForService > 0 { // without needWaitForService it says nothing
			c.WaitForService = time.Duration(n) * time.Second
		}
		return err
	}, true},
}

// FromProperties reads the keys of the original's configuration file. What it does not know, or knows to be without effect here, is
// named in warnings.
func FromProperties(properties map[string]string) (cfg Config, warnings []string, err error) {
	cfg.Address, cfg.TLS = DefaultAddress, security.Default()
	if err := cfg.setDefaults(); err != nil {
		return cfg, nil, err
	}
	left := make(map[string]bool, len(properties))
	for name := range properties {
		left[name] = true
	}
	for _, k := range keys {
		v, ok := properties[k.name]
		if !ok {
			continue
		}
		delete(left, k.name)
		if err := k.set(&cfg, strings.TrimSpace(v)); err != nil {
			return cfg, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		known, err := cfg.TLS.Set(name, strings.TrimSpace(properties[name]))
		if err != nil {
			return cfg, nil, err
		}
		if !known {
			warnings = append(warnings, name)
		}
	}
	slices.Sort(warnings)
	return cfg, warnings, nil
}

// UPDATE_NAMESRV_CONFIG (318). Body: lines key=value. mqadmin updateNamesrvConfig sends it. The original takes every key but those of
// its black list; here only keys that are safe to change in a running server are taken, and a body with any other is refused with
// NoPermission and changes nothing. A change lasts until the end of the process.
func (s *Server) updateConfig(r *request) (reply, error) {
	s.setting.Lock()
	defer s.setting.Unlock()
	next := *s.config.Load()
	lines := map[string]string{}
	for line := range strings.Lines(string(r.body)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		name, v, ok := strings.Cut(line, "=")
		if !ok {
			return reply{}, refuse(mq.InvalidParameter, "%.80q is no key=value", line)
		}
		lines[strings.TrimSpace(name)] = strings.TrimSpace(v)
	}
	if len(lines) == 0 {
		return reply{}, refuse(mq.InvalidParameter, "no key=value in the body")
	}
	for _, k := range keys { // in this order: needWaitForService before waitSecondsForService
		v, ok := lines[k.name]
		if !ok || !k.live {
			continue
		}
		delete(lines, k.name)
		if err := k.set(&next, v); err != nil {
			return reply{}, refuse(mq.InvalidParameter, "%v", err)
		}
	}
	for name := range lines {
		return reply{}, refuse(mq.NoPermission, "the key %.80q cannot be changed by a request", name)
	}
	s.config.Store(&next)
	s.log.Info("configuration changed", "by", r.conn.RemoteAddr())
	return reply{}, nil
}

// Properties gives all keys as lines key=value, in the form of the original's configuration file.
func (c *Config) Properties() string {
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k.name + "=" + k.get(c) + "\n")
	}
	return b.String()
}

// GET_NAMESRV_CONFIG (319). Answer: lines key=value.
func (s *Server) getConfig(*request) (reply, error) {
	return reply{body: []byte(s.config.Load().Properties())}, nil
}
