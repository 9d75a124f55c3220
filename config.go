package dledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// Compat says which nodes a group may hold (docs/adr/0002-compat-is-a-setting.md). All members must be set alike; a member of another kind is refused.
type Compat = raft.Compat

const (
	CompatGo = raft.CompatGo // all members are of this implementation
	Compat04 = raft.Compat04 // Java DLedger 0.4.0 members are possible
	Compat03 = raft.Compat03 // Java DLedger 0.3.x members are possible, as in every RocketMQ release
)

// Durability says what an acknowledged entry has survived (docs/adr/0003-acknowledged-means-synced.md).
type Durability uint8

const (
	// Group: an entry is acknowledged once a majority of the members has synced it to disk. Whatever arrives during a sync shares the
	// next one.
	Group Durability = iota
	// Async: an entry is acknowledged once a majority has written it to the page cache, as in the Java original; disks are synced
	// in the background. It outlives the crash of every process. A power failure of a majority can lose acknowledged entries of the last
	// moments. One of a single member does not: it neither votes nor leads until it has caught up.
	Async
)

func (d Durability) String() string { return [...]string{"group", "async"}[d] }

// Sizes of files where Config has none.
const (
	DefaultDataFileSize  = 1 << 30
	DefaultIndexFileSize = 32 * 5 * 1024 * 1024
)

// Config describes one member of one group. ID and Peers are needed, and Dir unless Memory is set; every other zero value means the default,
// which for timers depends on Compat. Settings can also be given by the original's names, see Set.
type Config struct {
	Group string // default "default"
	ID    string // this member, for example "n0"; must not contain "-" or ";"
	Peers string // all members, "n0-host:port;n1-host:port;…"; IPv6 addresses in brackets
	Dir   string // base directory; this member's files are in Dir/dledger-ID
	Bind  string // IP address of this machine to listen on; default all

	Compat     Compat
	Durability Durability
	Memory     bool // keep the log in memory only (storeType MEMORY)

	DataDirs         []string // where data files go instead of Dir/dledger-ID/data; new files are spread over them
	ReadOnlyDataDirs []string // further data files, which are neither written nor deleted
	DataFileSize     int64    // bytes, default 1 GiB; alike on all members unless Compat is 0.4
	IndexFileSize    int64    // bytes, a multiple of 32, default 160 MiB

	ReservedHours  int     // a data file may be deleted this long after its last write; default 72
	DeleteWhen     string  // hours of the day at which that is done, "04" or "02;14"; default "04"
	DiskCheckRatio float64 // used share of the disk above which it is done at any hour; default 0.70
	DiskForceRatio float64 // above it files may be deleted before their time, if ForceClean; default 0.85; 0.05 more is a full disk
	ForceClean     bool    // delete unexpired data under disk pressure; default false

	NoRepair      bool          // damage stops the start, instead of being repaired with what other members have
	ScrubRate     int64         // bytes a second at which the log is searched for damage; default 16 MiB, negative = never
	ScrubInterval time.Duration // between two such searches; default a week

	Heartbeat       time.Duration // default 200 ms; 2 s in compat 0.3 and 0.4
	HeartbeatLeak   int           // missed heartbeats before a new election; default 3
	MinVoteInterval time.Duration // pause of a candidate before it tries again, at least; default 50 ms; 300 ms
	MaxVoteInterval time.Duration // and at most; default 250 ms; 1 s
	MinTakeInterval time.Duration // the same of one that was asked to take leadership over; default 30 ms, and no more than MinVoteInterval
	MaxTakeInterval time.Duration // default 100 ms, and no more than MaxVoteInterval
	PreferredIDs    []string      // who should lead, if alive
	NoElection      bool          // never stand for election

	MaxPending       int   // uncommitted entries a leader accepts; default 10,000
	UncommittedBytes int64 // and their bytes; default 256 MiB
	PendingBytes     int64 // bytes of appends that may wait for the loop; default 64 MiB

	AckTimeout   time.Duration // how long an append waits for a majority; default 2.5 s
	PushTimeout  time.Duration // an unanswered push is repeated after it; default 1 s
	PushQuota    int64         // bytes a second to a follower that is far behind; default 20 MiB, in compat go unlimited; negative = unlimited
	PushThrottle int64         // how far behind, in bytes, PushQuota begins to apply; default 300 MiB
	TransferLag  int64         // a member further behind, in entries, is not handed leadership; default 1,000
	TransferWait time.Duration // how long it may take to catch up then; default 1 s

	Logger *slog.Logger // default: nothing is logged

	// Server carries this group beside others on one port; nil makes the Ledger listen on its own address in Peers.
	Server *Server

	// For tests of programs, see package dledgertest: the disk, the network, and the source of chance.
	FS     FS
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	Listen func(address string) (net.Listener, error)
	Rand   func(n int64) int64
}

// FS is the disk of a member: files by name, with what is durable told apart from what is only written.
type FS = vfs.FS

// Peer is one member and its address.
type Peer struct {
	ID      string
	Address string // host:port
}

func hasPeer(peers []Peer, id string) bool {
	return slices.ContainsFunc(peers, func(p Peer) bool { return p.ID == id })
}

// ParsePeers reads "n0-host:port;n1-host:port".
func ParsePeers(s string) ([]Peer, error) {
	var out []Peer
	for part := range strings.SplitSeq(s, ";") {
		if part == "" {
			continue
		}
		id, address, ok := strings.Cut(part, "-")
		if !ok || id == "" {
			return nil, fmt.Errorf("peers: %q is not id-host:port", part)
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil || port == "" {
			return nil, fmt.Errorf("peers: address %q of %s is not host:port", address, id)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			return nil, fmt.Errorf("peers: port %q of %s is not a number from 0 to 65535", port, id)
		}
		if hasPeer(out, id) {
			return nil, fmt.Errorf("peers: %s is named twice", id)
		}
		out = append(out, Peer{ID: id, Address: address})
	}
	if len(out) == 0 {
		return nil, errors.New("peers: no member given, expected n0-host:port;…")
	}
	return out, nil
}

func or[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// withDefaults fills in what was not set.
func (c Config) withDefaults() Config {
	java := c.Compat != CompatGo
	pick := func(ours, original time.Duration) time.Duration {
		if java {
			return original
		}
		return ours
	}
	or(&c.Group, "default")
	or(&c.DataFileSize, DefaultDataFileSize)
	or(&c.IndexFileSize, DefaultIndexFileSize)
	or(&c.ReservedHours, 72)
	or(&c.DeleteWhen, "04")
	or(&c.DiskCheckRatio, 0.70)
	or(&c.DiskForceRatio, 0.85)
	or(&c.ScrubRate, 16<<20)
	or(&c.ScrubInterval, 7*24*time.Hour)
	or(&c.Heartbeat, pick(200*time.Millisecond, 2*time.Second))
	or(&c.HeartbeatLeak, 3)
	or(&c.MinVoteInterval, pick(50*time.Millisecond, 300*time.Millisecond))
	or(&c.MaxVoteInterval, pick(250*time.Millisecond, time.Second))
	or(&c.MinTakeInterval, min(30*time.Millisecond, c.MinVoteInterval))
	or(&c.MaxTakeInterval, max(min(100*time.Millisecond, c.MaxVoteInterval), c.MinTakeInterval+1))
	or(&c.MaxPending, 10_000)
	or(&c.UncommittedBytes, 256<<20)
	or(&c.PendingBytes, 64<<20)
	or(&c.AckTimeout, 2500*time.Millisecond)
	or(&c.PushTimeout, time.Second)
	if c.PushQuota == 0 && java {
		c.PushQuota = 20 << 20
	}
	or(&c.PushThrottle, 300<<20)
	or(&c.TransferLag, 1000)
	or(&c.TransferWait, time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Rand == nil {
		c.Rand = rand.Int64N
	}
	return c
}

// Check names the first setting that Open would refuse, without looking at any file.
func (c Config) Check() error {
	c = c.withDefaults()
	return c.check()
}

// check names the first setting that cannot be.
func (c *Config) check() error {
	peers, err := ParsePeers(c.Peers)
	if err != nil {
		return err
	}
	bad := func(what string, v any, why string) error { return fmt.Errorf("%s %v: %s", what, v, why) }
	for _, s := range settings {
		if err := s.check(c); err != nil {
			return err
		}
	}
	switch {
	case c.ID == "":
		return errors.New("id: not given")
	case strings.ContainsAny(c.ID, "-;/\\ "):
		return bad("id", fmt.Sprintf("%q", c.ID), "must not contain '-', ';', '/' or blanks")
	case !hasPeer(peers, c.ID):
		return bad("id", fmt.Sprintf("%q", c.ID), fmt.Sprintf("is not one of the peers %q", c.Peers))
	case len(peers) > 9:
		return bad("peers", len(peers), "at most 9 members")
	case c.Bind != "" && net.ParseIP(c.Bind) == nil:
		return bad("logBindAddress", fmt.Sprintf("%q", c.Bind), "want an IP address of this machine, or nothing for all")
	case c.Dir == "" && !c.Memory:
		return errors.New("dir: not given")
	case c.IndexFileSize%32 != 0:
		return bad("mappedFileSizeForEntryIndex", c.IndexFileSize, "must be a multiple of 32")
	case c.MaxVoteInterval <= c.MinVoteInterval:
		return bad("maxVoteIntervalMs", c.MaxVoteInterval, fmt.Sprintf("must be above minVoteIntervalMs (%v)", c.MinVoteInterval))
	case c.MaxTakeInterval <= c.MinTakeInterval:
		return bad("maxTakeLeadershipVoteIntervalMs", c.MaxTakeInterval, fmt.Sprintf("must be above minTakeLeadershipVoteIntervalMs (%v)", c.MinTakeInterval))
	case !(c.DiskForceRatio >= 0.5 && c.DiskForceRatio <= 1): // so written, NaN is out too
		return bad("diskSpaceRatioToForceClean", c.DiskForceRatio, "between 0.50 and 1")
	case !(c.DiskCheckRatio > 0 && c.DiskCheckRatio <= 1):
		return bad("diskSpaceRatioToCheckExpired", c.DiskCheckRatio, "above 0 and at most 1")
	}
	if _, err := logstore.Hours(c.DeleteWhen); err != nil {
		return fmt.Errorf("deleteWhen: %w", err)
	}
	for _, id := range c.PreferredIDs {
		if !hasPeer(peers, id) {
			return bad("preferredLeaderIds", fmt.Sprintf("%q", id), fmt.Sprintf("is not one of the peers %q", c.Peers))
		}
	}
	return nil
}

// root is the directory of this member's files.
func (c *Config) root() string { return filepath.Join(c.Dir, "dledger-"+c.ID) }

// core translates the settings for package raft.
func (c *Config) core(peers []Peer) raft.Config {
	members := make([]raft.ID, len(peers))
	for i, p := range peers {
		members[i] = raft.ID(p.ID)
	}
	preferred := make([]raft.ID, len(c.PreferredIDs))
	for i, id := range c.PreferredIDs {
		preferred[i] = raft.ID(id)
	}
	return raft.Config{
		ID: raft.ID(c.ID), Members: members, Compat: c.Compat,
		Heartbeat: c.Heartbeat, HeartbeatLeak: c.HeartbeatLeak,
		MinVoteInterval: c.MinVoteInterval, MaxVoteInterval: c.MaxVoteInterval,
		MinTakeInterval: c.MinTakeInterval, MaxTakeInterval: c.MaxTakeInterval,
		VoteWait:    min(2*time.Second, max(c.Heartbeat, 2*c.MaxVoteInterval)),
		PushTimeout: c.PushTimeout, CommitIdle: 20 * time.Millisecond,
		TransferWait: c.TransferWait, TransferLag: raft.Index(c.TransferLag),
		MaxInflight: 1000, MaxEntries: 2048, MaxPending: raft.Index(c.MaxPending),
		Preferred: preferred, NoElection: c.NoElection, Rand: c.Rand,
	}
}
