package dledger

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"dledger/internal/logstore"
)

// Setting is one key of the configuration, as in the original's config file and behind --set.
type Setting struct {
	Key  string
	Help string
	Own  bool // the original does not know it

	set    func(c *Config, v string) error // nil: known to the original, without effect here
	lo, hi int64                           // what a number may be, in the unit of the key
	unit   int64                           // of the key, in that of its field; 0 if it is no number
	field  func(c *Config) int64           // its value; a zero there stands for the default, but the key's 0 for 0
}

func text(key, help string, f func(*Config) *string) Setting {
	return Setting{Key: key, Help: help, set: func(c *Config, v string) error { *f(c) = v; return nil }}
}

// Bounds of numbers that nobody reaches by intention; beyond them sums and products of theirs would overflow.
const (
	sizeMax  = math.MaxInt32 // of a file: an int in the original
	countMax = math.MaxInt32
	bytesMax = 1 << 50
	msMax    = 24 * 60 * 60 * 1000
	hoursMax = 1 << 21
)

// whole is a number that counts units of its field.
func whole[T ~int | ~int64](key, help string, lo, hi int64, unit T, f func(*Config) *T) Setting {
	s := Setting{Key: key, Help: help, lo: lo, hi: hi, unit: int64(unit), field: func(c *Config) int64 { return int64(*f(c)) }}
	s.set = func(c *Config, v string) error {
		n, err := s.parse(v)
		if err == nil {
			*f(c) = T(n) * unit
		}
		return err
	}
	return s
}

// check is for values that were not given by the key: times may be finer than its unit.
func (s *Setting) check(c *Config) error {
	if s.unit == 0 {
		return nil
	}
	n, least := s.field(c), s.lo
	if s.unit > 1 {
		least = int64(time.Millisecond)
	}
	switch {
	case n >= least && n <= s.hi*s.unit:
		return nil
	case s.unit > 1:
		return fmt.Errorf("%s %v: must be from %v to %v", s.Key, time.Duration(n), time.Duration(least), time.Duration(s.hi*s.unit))
	}
	return fmt.Errorf("%s %d: must be from %d to %d", s.Key, n, least, s.hi)
}

func (s *Setting) parse(v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < s.lo || n > s.hi {
		return 0, fmt.Errorf("%.40q is not a whole number from %d to %d", v, s.lo, s.hi)
	}
	return n, nil
}

func number[T ~int | ~int64](key, help string, lo, hi int64, f func(*Config) *T) Setting {
	return whole(key, help, lo, hi, 1, f)
}

func millis(key, help string, f func(*Config) *time.Duration) Setting {
	return whole(key, help, 1, msMax, time.Millisecond, f)
}

// ratio is a share from lo to 1; above 0 if lo is 0.
func ratio(key, help string, lo float64, f func(*Config) *float64) Setting {
	return Setting{Key: key, Help: help, set: func(c *Config, v string) error {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || !(n > 0 && n >= lo && n <= 1) { // so written, NaN is out too
			least := "above 0 and at most 1"
			if lo > 0 {
				least = fmt.Sprintf("from %.2f to 1", lo)
			}
			return fmt.Errorf("%.40q is not a number %s", v, least)
		}
		*f(c) = n
		return nil
	}}
}

func flag(key, help string, f func(*Config) *bool, on bool) Setting {
	return Setting{Key: key, Help: help, set: func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", v)
		}
		*f(c) = b == on
		return nil
	}}
}

func list(key, help, sep string, f func(*Config) *[]string) Setting {
	return Setting{Key: key, Help: help, set: func(c *Config, v string) error {
		*f(c) = slices.DeleteFunc(strings.Split(v, sep), func(s string) bool { return s == "" })
		return nil
	}}
}

// choice is one of some words.
func choice(key, help string, words []string, set func(c *Config, i int)) Setting {
	return Setting{Key: key, Help: help, set: func(c *Config, v string) error {
		i := slices.Index(words, v)
		if i < 0 {
			return fmt.Errorf("%q is none of %s", v, strings.Join(words, ", "))
		}
		set(c, i)
		return nil
	}}
}

// ours marks settings that the original does not know.
func ours(s ...Setting) []Setting {
	for i := range s {
		s[i].Own = true
	}
	return s
}

// idle are keys of the original without effect here.
func idle(keys ...string) []Setting {
	s := make([]Setting, len(keys))
	for i, key := range keys {
		s[i].Key = key
	}
	return s
}

// settings lists every key, the original's first (DLedgerConfig).
var settings = slices.Concat([]Setting{
	text("group", "group id", func(c *Config) *string { return &c.Group }),
	text("selfId", "this member's id", func(c *Config) *string { return &c.ID }),
	text("peers", "all members, id-host:port joined by ';'", func(c *Config) *string { return &c.Peers }),
	text("storeBaseDir", "base directory", func(c *Config) *string { return &c.Dir }),
	list("dataStorePath", "one or several directories for data files, joined by ','", ",", func(c *Config) *[]string { return &c.DataDirs }),
	list("readOnlyDataStoreDirs", "further data directories, joined by ',', in which nothing is written or deleted", ",", func(c *Config) *[]string { return &c.ReadOnlyDataDirs }),
	choice("storeType", "FILE, or MEMORY for a log that is gone with the process", []string{"FILE", "MEMORY"}, func(c *Config, i int) { c.Memory = i == 1 }),
	number("mappedFileSizeForEntryData", "size of a data file in bytes", 256, sizeMax, func(c *Config) *int64 { return &c.DataFileSize }),
	indexSize(number("mappedFileSizeForEntryIndex", "size of an index file in bytes, a multiple of 32", 32, sizeMax, func(c *Config) *int64 { return &c.IndexFileSize })),
	number("fileReservedHours", "minimum age of a data file that is deleted, in hours", 1, hoursMax, func(c *Config) *int { return &c.ReservedHours }),
	{Key: "deleteWhen", Help: "hours of the day at which old files are deleted, joined by ';'", set: func(c *Config, v string) error {
		_, err := logstore.Hours(v)
		if err == nil {
			c.DeleteWhen = v
		}
		return err
	}},
	ratio("diskSpaceRatioToCheckExpired", "used share of the disk above which old files are deleted at any hour", 0, func(c *Config) *float64 { return &c.DiskCheckRatio }),
	ratio("diskSpaceRatioToForceClean", "used share above which files may be deleted before their time; 0.05 more is a full disk", 0.5, func(c *Config) *float64 { return &c.DiskForceRatio }),
	flag("enableDiskForceClean", "delete unexpired files under disk pressure", func(c *Config) *bool { return &c.ForceClean }, true),
	number("maxPendingRequestsNum", "uncommitted entries a leader accepts", 1, countMax, func(c *Config) *int { return &c.MaxPending }),
	millis("maxWaitAckTimeMs", "how long an append waits for its acknowledgement", func(c *Config) *time.Duration { return &c.AckTimeout }),
	millis("maxPushTimeOutMs", "an unanswered push is repeated after this time", func(c *Config) *time.Duration { return &c.PushTimeout }),
	number("peerPushThrottlePoint", "bytes a follower must be behind before the quota applies", 1, bytesMax, func(c *Config) *int64 { return &c.PushThrottle }),
	unlimited(number("peerPushQuota", "bytes a second to a follower that far behind; negative = no limit", -bytesMax, bytesMax, func(c *Config) *int64 { return &c.PushQuota })),
	flag("enableLeaderElector", "false: never stand for election", func(c *Config) *bool { return &c.NoElection }, false),
	millis("heartBeatTimeIntervalMs", "time between two heartbeats", func(c *Config) *time.Duration { return &c.Heartbeat }),
	number("maxHeartBeatLeak", "missed heartbeats before a new election", 1, 10_000, func(c *Config) *int { return &c.HeartbeatLeak }),
	millis("minVoteIntervalMs", "shortest pause of a candidate between two attempts", func(c *Config) *time.Duration { return &c.MinVoteInterval }),
	millis("maxVoteIntervalMs", "longest pause of a candidate between two attempts", func(c *Config) *time.Duration { return &c.MaxVoteInterval }),
	millis("minTakeLeadershipVoteIntervalMs", "shortest pause between two attempts of a member that was asked to take leadership over", func(c *Config) *time.Duration { return &c.MinTakeInterval }),
	millis("maxTakeLeadershipVoteIntervalMs", "longest pause of one", func(c *Config) *time.Duration { return &c.MaxTakeInterval }),
	list("preferredLeaderIds", "members that should lead, joined by ';'", ";", func(c *Config) *[]string { return &c.PreferredIDs }),
	list("preferredLeaderId", "older name of preferredLeaderIds", ";", func(c *Config) *[]string { return &c.PreferredIDs }),
	number("maxLeadershipTransferWaitIndex", "a member further behind, in entries, is not handed leadership", 1, bytesMax, func(c *Config) *int64 { return &c.TransferLag }),
	millis("leadershipTransferWaitTimeout", "how long it may take to catch up then, in ms", func(c *Config) *time.Duration { return &c.TransferWait }),
}, ours(
	choice("compat", "which nodes the group may hold: go, 0.4 or 0.3", []string{"go", "0.4", "0.3"}, func(c *Config, i int) { c.Compat = [...]Compat{CompatGo, Compat04, Compat03}[i] }),
	choice("durability", "what an acknowledgement means: group (synced on a majority) or async (in the page cache of a majority)", []string{"group", "async"}, func(c *Config, i int) { c.Durability = Durability(i) }),
	text("logBindAddress", "IP address of this machine to listen on, instead of all", func(c *Config) *string { return &c.Bind }),
	flag("repairDamage", "repair damaged entries with what other members have; false: they stop the start", func(c *Config) *bool { return &c.NoRepair }, false),
	never(number("scrubBytesPerSecond", "rate at which the whole log is searched for damage now and then; 0 = never", 0, bytesMax, func(c *Config) *int64 { return &c.ScrubRate })),
	whole("scrubIntervalHours", "how often that is done", 1, hoursMax, time.Hour, func(c *Config) *time.Duration { return &c.ScrubInterval }),
	number("maxPendingBytes", "bytes of appends that may wait for the loop", 1, bytesMax, func(c *Config) *int64 { return &c.PendingBytes }),
	number("maxUncommittedBytes", "bytes of uncommitted entries a leader accepts", 1, bytesMax, func(c *Config) *int64 { return &c.UncommittedBytes }),
), idle(
	"flushFileInterval", "checkPointInterval", "enablePushToFollower",
	"enableBatchPush", "maxBatchPushSize", "enableBatchAppend", "maxBatchAppendSize", "maxBatchAppendIntervalMs",
	"enableSnapshot", "snapshotThreshold", "maxSnapshotReservedNum", "snapshotEntryResetStrategy",
	"resetSnapshotEntriesDelayTime", "resetSnapshotEntriesButKeepLastEntriesNum", "enableFastAdvanceCommitIndex",
	"metricsExporterType", "metricsGrpcExporterTarget", "metricsGrpcExporterHeader", "metricGrpcExporterTimeOutInMills",
	"metricGrpcExporterIntervalInMills", "metricLoggingExporterIntervalInMills", "metricsPromExporterPort", "metricsPromExporterHost",
))

// indexSize takes multiples of an index record alone.
func indexSize(s Setting) Setting {
	set := s.set
	s.set = func(c *Config, v string) error {
		if n, err := s.parse(v); err == nil && n%32 != 0 {
			return fmt.Errorf("%q is not a multiple of 32 from %d to %d", v, s.lo, s.hi)
		}
		return set(c, v)
	}
	return s
}

// unlimited takes any number but 0, which a Config has for the default.
func unlimited(s Setting) Setting {
	set := s.set
	s.set = func(c *Config, v string) error {
		if n, err := s.parse(v); err == nil && n == 0 {
			return fmt.Errorf("%q is neither a number of bytes from 1 to %d nor negative, for no limit", v, s.hi)
		}
		return set(c, v)
	}
	return s
}

// never takes 0, for which a Config has any negative number.
func never(s Setting) Setting {
	set, field := s.set, s.field
	s.set = func(c *Config, v string) error {
		err := set(c, v)
		if err == nil && c.ScrubRate == 0 {
			c.ScrubRate = -1
		}
		return err
	}
	s.field = func(c *Config) int64 { return max(field(c), 0) }
	return s
}

// Settings gives every key that has an effect, with a line of help, in the order of the documentation; the original's come first.
func Settings() []Setting {
	return slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool { return s.set == nil })
}

// Set sets one key to a value, both as the original's config file has them. ignored tells that the original knows the key but it has
// no effect here. An unknown key is an error that names the nearest known one, if one is near.
func (c *Config) Set(key, value string) (ignored bool, err error) {
	for _, s := range settings {
		if s.Key != key {
			continue
		}
		if s.set == nil {
			return true, nil
		}
		if err := s.set(c, strings.TrimSpace(value)); err != nil {
			return false, fmt.Errorf("%s: %w", key, err)
		}
		return false, nil
	}
	if near := nearest(key); distance(near, key) <= max(2, len(key)/3) {
		return false, fmt.Errorf("unknown setting %q (did you mean %s?)", key, near)
	}
	return false, fmt.Errorf("unknown setting %q", key)
}

// nearest is the known key with the smallest edit distance.
func nearest(key string) string {
	keys := make([]string, 0, len(settings))
	for _, s := range Settings() {
		keys = append(keys, s.Key)
	}
	sort.SliceStable(keys, func(i, k int) bool { return distance(keys[i], key) < distance(keys[k], key) })
	return keys[0]
}

// distance counts the single-letter changes that make b of a, ignoring case.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag, row[j+1] = row[j+1], min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
