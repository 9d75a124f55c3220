package dledger

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Setting is one key of the configuration, as in the original's config file and behind --set.
type Setting struct {
	Key  string
	Help string
	set  func(c *Config, v string) error // nil: known to the original, without effect here
}

func text(f func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *f(c) = v; return nil }
}

func number[T int | int64](f func(*Config) *T) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", v)
		}
		*f(c) = T(n)
		return nil
	}
}

func millis(f func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 || n > 1<<40 {
			return fmt.Errorf("%q is not a number of milliseconds", v)
		}
		*f(c) = time.Duration(n) * time.Millisecond
		return nil
	}
}

func ratio(f func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", v)
		}
		*f(c) = n
		return nil
	}
}

func flag(f func(*Config) *bool, on bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", v)
		}
		*f(c) = b == on
		return nil
	}
}

func list(sep string, f func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, v string) error {
		*f(c) = slices.DeleteFunc(strings.Split(v, sep), func(s string) bool { return s == "" })
		return nil
	}
}

// settings lists every key, the original's first (protocol page section 8.1).
var settings = []Setting{
	{"group", "group id", text(func(c *Config) *string { return &c.Group })},
	{"selfId", "this member's id", text(func(c *Config) *string { return &c.ID })},
	{"peers", "all members, id-host:port joined by ';'", text(func(c *Config) *string { return &c.Peers })},
	{"storeBaseDir", "base directory", text(func(c *Config) *string { return &c.Dir })},
	{"dataStorePath", "one or several directories for data files, joined by ','", list(",", func(c *Config) *[]string { return &c.DataDirs })},
	{"readOnlyDataStoreDirs", "further data directories, joined by ',', read but not written", list(",", func(c *Config) *[]string { return &c.ReadOnlyDataDirs })},
	{"storeType", "FILE, or MEMORY for a log that is gone with the process", func(c *Config, v string) error {
		switch v {
		case "FILE":
			c.Memory = false
		case "MEMORY":
			c.Memory = true
		default:
			return fmt.Errorf("%q is neither FILE nor MEMORY", v)
		}
		return nil
	}},
	{"mappedFileSizeForEntryData", "size of a data file in bytes", number(func(c *Config) *int64 { return &c.DataFileSize })},
	{"mappedFileSizeForEntryIndex", "size of an index file in bytes, a multiple of 32", number(func(c *Config) *int64 { return &c.IndexFileSize })},
	{"fileReservedHours", "minimum age of a data file that is deleted, in hours", number(func(c *Config) *int { return &c.ReservedHours })},
	{"deleteWhen", "hours of the day at which old files are deleted, joined by ';'", text(func(c *Config) *string { return &c.DeleteWhen })},
	{"diskSpaceRatioToCheckExpired", "used share of the disk above which old files are deleted at any hour", ratio(func(c *Config) *float64 { return &c.DiskCheckRatio })},
	{"diskSpaceRatioToForceClean", "used share above which files may be deleted before their time; 0.05 more is a full disk", ratio(func(c *Config) *float64 { return &c.DiskForceRatio })},
	{"enableDiskForceClean", "delete unexpired files under disk pressure", flag(func(c *Config) *bool { return &c.ForceClean }, true)},
	{"maxPendingRequestsNum", "uncommitted entries a leader accepts", number(func(c *Config) *int { return &c.MaxPending })},
	{"maxWaitAckTimeMs", "how long an append waits for its acknowledgement", millis(func(c *Config) *time.Duration { return &c.AckTimeout })},
	{"maxPushTimeOutMs", "an unanswered push is repeated after this time", millis(func(c *Config) *time.Duration { return &c.PushTimeout })},
	{"peerPushThrottlePoint", "bytes a follower must be behind before the quota applies", number(func(c *Config) *int64 { return &c.PushThrottle })},
	{"peerPushQuota", "bytes a second to a follower that far behind; negative = no limit", number(func(c *Config) *int64 { return &c.PushQuota })},
	{"enableLeaderElector", "false: never stand for election", flag(func(c *Config) *bool { return &c.NoElection }, false)},
	{"heartBeatTimeIntervalMs", "time between two heartbeats", millis(func(c *Config) *time.Duration { return &c.Heartbeat })},
	{"maxHeartBeatLeak", "missed heartbeats before a new election", number(func(c *Config) *int { return &c.HeartbeatLeak })},
	{"minVoteIntervalMs", "shortest pause of a candidate between two attempts", millis(func(c *Config) *time.Duration { return &c.MinVoteInterval })},
	{"maxVoteIntervalMs", "longest pause of a candidate between two attempts", millis(func(c *Config) *time.Duration { return &c.MaxVoteInterval })},
	{"preferredLeaderIds", "members that should lead, joined by ';'", list(";", func(c *Config) *[]string { return &c.PreferredIDs })},
	{"preferredLeaderId", "older name of preferredLeaderIds", list(";", func(c *Config) *[]string { return &c.PreferredIDs })},
	{"maxLeadershipTransferWaitIndex", "a member further behind, in entries, is not handed leadership", number(func(c *Config) *int64 { return &c.TransferLag })},
	{"leadershipTransferWaitTimeout", "how long it may take to catch up then, in ms", millis(func(c *Config) *time.Duration { return &c.TransferWait })},

	{"compat", "which nodes the group may hold: go, 0.4 or 0.3", setCompat},
	{"durability", "what an acknowledgement means: group (synced on a majority) or async (in the page cache of a majority)", func(c *Config, v string) error {
		switch v {
		case "group":
			c.Durability = Group
		case "async":
			c.Durability = Async
		default:
			return fmt.Errorf("%q is neither group nor async", v)
		}
		return nil
	}},
	{"logBindAddress", "IP address of this machine to listen on, instead of all", text(func(c *Config) *string { return &c.Bind })},
	{"repairDamage", "repair damaged entries with what other members have; false: they stop the start", flag(func(c *Config) *bool { return &c.NoRepair }, false)},
	{"scrubBytesPerSecond", "rate at which the whole log is searched for damage now and then; 0 = never", func(c *Config, v string) error {
		err := number(func(c *Config) *int64 { return &c.ScrubRate })(c, v)
		if err == nil && c.ScrubRate == 0 {
			c.ScrubRate = -1
		}
		return err
	}},
	{"scrubIntervalHours", "how often that is done", func(c *Config, v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a number of hours", v)
		}
		c.ScrubInterval = max(time.Duration(n)*time.Hour, 1)
		return nil
	}},
	{"maxPendingBytes", "bytes of appends that may wait for the loop", number(func(c *Config) *int64 { return &c.PendingBytes })},

	{"flushFileInterval", "", nil}, {"checkPointInterval", "", nil}, {"enablePushToFollower", "", nil},
	{"minTakeLeadershipVoteIntervalMs", "", nil}, {"maxTakeLeadershipVoteIntervalMs", "", nil},
	{"enableBatchPush", "", nil}, {"maxBatchPushSize", "", nil}, {"enableBatchAppend", "", nil}, {"maxBatchAppendSize", "", nil}, {"maxBatchAppendIntervalMs", "", nil},
	{"enableSnapshot", "", nil}, {"snapshotThreshold", "", nil}, {"maxSnapshotReservedNum", "", nil}, {"snapshotEntryResetStrategy", "", nil},
	{"resetSnapshotEntriesDelayTime", "", nil}, {"resetSnapshotEntriesButKeepLastEntriesNum", "", nil}, {"enableFastAdvanceCommitIndex", "", nil},
	{"metricsExporterType", "", nil}, {"metricsGrpcExporterTarget", "", nil}, {"metricsGrpcExporterHeader", "", nil}, {"metricGrpcExporterTimeOutInMills", "", nil},
	{"metricGrpcExporterIntervalInMills", "", nil}, {"metricLoggingExporterIntervalInMills", "", nil}, {"metricsPromExporterPort", "", nil}, {"metricsPromExporterHost", "", nil},
}

func setCompat(c *Config, v string) error {
	switch v {
	case "go":
		c.Compat = CompatGo
	case "0.4":
		c.Compat = Compat04
	case "0.3":
		c.Compat = Compat03
	default:
		return fmt.Errorf("%q is none of go, 0.4, 0.3", v)
	}
	return nil
}

// Settings gives every key that has an effect, with a line of help, in the order of the documentation.
func Settings() []Setting {
	return slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool { return s.set == nil })
}

// Set sets one key to a value, both as the original's config file has them. ignored tells that the original knows the key but it has
// no effect here. An unknown key is an error that names the nearest known one.
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
	return false, fmt.Errorf("unknown setting %q (did you mean %s?)", key, nearest(key))
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
