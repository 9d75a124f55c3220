package dledger

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEverySettingOfTheOriginalIsAccepted: the keys of DLedgerConfig with a value that the original takes, and where it goes.
func TestEverySettingOfTheOriginalIsAccepted(t *testing.T) {
	for _, k := range []struct {
		key, value string
		want       any // the field's value; nil: the key has no effect here
		field      func(*Config) any
	}{
		{"group", "g1", "g1", func(c *Config) any { return c.Group }},
		{"selfId", "n2", "n2", func(c *Config) any { return c.ID }},
		{"peers", "n0-localhost:20911", "n0-localhost:20911", func(c *Config) any { return c.Peers }},
		{"storeBaseDir", "/data", "/data", func(c *Config) any { return c.Dir }},
		{"dataStorePath", "/a,/b", []string{"/a", "/b"}, func(c *Config) any { return c.DataDirs }},
		{"readOnlyDataStoreDirs", "/c,", []string{"/c"}, func(c *Config) any { return c.ReadOnlyDataDirs }},
		{"storeType", "MEMORY", true, func(c *Config) any { return c.Memory }},
		{"storeType", "FILE", false, func(c *Config) any { return c.Memory }},
		{"mappedFileSizeForEntryData", "1048576", int64(1 << 20), func(c *Config) any { return c.DataFileSize }},
		{"mappedFileSizeForEntryIndex", "3200", int64(3200), func(c *Config) any { return c.IndexFileSize }},
		{"flushFileInterval", "10", nil, nil},
		{"checkPointInterval", "3000", nil, nil},
		{"fileReservedHours", "48", 48, func(c *Config) any { return c.ReservedHours }},
		{"deleteWhen", "02;14", "02;14", func(c *Config) any { return c.DeleteWhen }},
		{"diskSpaceRatioToCheckExpired", "0.6", 0.6, func(c *Config) any { return c.DiskCheckRatio }},
		{"diskSpaceRatioToForceClean", "0.9", 0.9, func(c *Config) any { return c.DiskForceRatio }},
		{"enableDiskForceClean", "true", true, func(c *Config) any { return c.ForceClean }},
		{"maxPendingRequestsNum", "500", 500, func(c *Config) any { return c.MaxPending }},
		{"maxWaitAckTimeMs", "1500", 1500 * time.Millisecond, func(c *Config) any { return c.AckTimeout }},
		{"maxPushTimeOutMs", "700", 700 * time.Millisecond, func(c *Config) any { return c.PushTimeout }},
		{"peerPushThrottlePoint", "1000", int64(1000), func(c *Config) any { return c.PushThrottle }},
		{"peerPushQuota", "-1", int64(-1), func(c *Config) any { return c.PushQuota }},
		{"enablePushToFollower", "true", nil, nil},
		{"enableLeaderElector", "false", true, func(c *Config) any { return c.NoElection }},
		{"heartBeatTimeIntervalMs", "100", 100 * time.Millisecond, func(c *Config) any { return c.Heartbeat }},
		{"maxHeartBeatLeak", "5", 5, func(c *Config) any { return c.HeartbeatLeak }},
		{"minVoteIntervalMs", "20", 20 * time.Millisecond, func(c *Config) any { return c.MinVoteInterval }},
		{"maxVoteIntervalMs", "90", 90 * time.Millisecond, func(c *Config) any { return c.MaxVoteInterval }},
		{"preferredLeaderIds", "n1;n2", []string{"n1", "n2"}, func(c *Config) any { return c.PreferredIDs }},
		{"preferredLeaderId", "n1", []string{"n1"}, func(c *Config) any { return c.PreferredIDs }},
		{"maxLeadershipTransferWaitIndex", "77", int64(77), func(c *Config) any { return c.TransferLag }},
		{"minTakeLeadershipVoteIntervalMs", "35", 35 * time.Millisecond, func(c *Config) any { return c.MinTakeInterval }},
		{"maxTakeLeadershipVoteIntervalMs", "110", 110 * time.Millisecond, func(c *Config) any { return c.MaxTakeInterval }},
		{"leadershipTransferWaitTimeout", "900", 900 * time.Millisecond, func(c *Config) any { return c.TransferWait }},
		{"enableBatchPush", "true", nil, nil},
		{"maxBatchPushSize", "4096", nil, nil},
		{"enableBatchAppend", "true", nil, nil},
		{"maxBatchAppendSize", "4096", nil, nil},
		{"maxBatchAppendIntervalMs", "1000", nil, nil},
		{"enableSnapshot", "true", nil, nil},
		{"snapshotThreshold", "1000", nil, nil},
		{"maxSnapshotReservedNum", "3", nil, nil},
		{"snapshotEntryResetStrategy", "RESET_ALL_SYNC", nil, nil},
		{"resetSnapshotEntriesDelayTime", "5000", nil, nil},
		{"resetSnapshotEntriesButKeepLastEntriesNum", "10", nil, nil},
		{"enableFastAdvanceCommitIndex", "true", nil, nil},
		{"metricsExporterType", "PROM", nil, nil},
		{"metricsGrpcExporterTarget", "x", nil, nil},
		{"metricsGrpcExporterHeader", "k:v", nil, nil},
		{"metricGrpcExporterTimeOutInMills", "3000", nil, nil},
		{"metricGrpcExporterIntervalInMills", "60000", nil, nil},
		{"metricLoggingExporterIntervalInMills", "10000", nil, nil},
		{"metricsPromExporterPort", "5557", nil, nil},
		{"metricsPromExporterHost", "", nil, nil},
		{"compat", "0.3", Compat03, func(c *Config) any { return c.Compat }},
		{"logBindAddress", "127.0.0.1", "127.0.0.1", func(c *Config) any { return c.Bind }},
		{"durability", "async", Async, func(c *Config) any { return c.Durability }},
		{"maxPendingBytes", "4096", int64(4096), func(c *Config) any { return c.PendingBytes }},
		{"maxUncommittedBytes", "8192", int64(8192), func(c *Config) any { return c.UncommittedBytes }},
	} {
		var c Config
		ignored, err := c.Set(k.key, k.value)
		if err != nil || ignored != (k.field == nil) {
			t.Errorf("%s=%s: ignored %v, %v", k.key, k.value, ignored, err)
			continue
		}
		if k.field == nil {
			if !reflect.DeepEqual(c, Config{}) {
				t.Errorf("%s changes the configuration, though it is to be ignored", k.key)
			}
		} else if got := k.field(&c); !reflect.DeepEqual(got, k.want) {
			t.Errorf("%s=%s: got %v, want %v", k.key, k.value, got, k.want)
		}
	}
}

func TestUnknownSettingNamesTheNearest(t *testing.T) {
	for key, want := range map[string]string{
		"heartbeatIntervalMs":       "heartBeatTimeIntervalMs",
		"HEARTBEATTIMEINTERVALMS":   "heartBeatTimeIntervalMs",
		"storeBaseDirectory":        "storeBaseDir",
		"durabilty":                 "durability",
		"mappedFileSizeForEntryDat": "mappedFileSizeForEntryData",
		"peer":                      "peers",
	} {
		var c Config
		if _, err := c.Set(key, "1"); err == nil || !strings.Contains(err.Error(), `"`+key+`"`) || !strings.Contains(err.Error(), want+"?") {
			t.Errorf("%s: got %v, want that it names %s", key, err, want)
		}
	}
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, k := range []struct{ key, value string }{
		{"compat", "0.5"}, {"logBindAddress", "localhost"}, {"compat", ""}, {"durability", "sync"}, {"storeType", "DISK"}, {"heartBeatTimeIntervalMs", "2s"}, {"heartBeatTimeIntervalMs", "-1"},
		{"maxHeartBeatLeak", "three"}, {"mappedFileSizeForEntryData", "1GB"}, {"enableDiskForceClean", "yes"}, {"diskSpaceRatioToForceClean", "85%"},
		{"fileReservedHours", "99999999999999999999"}, {"fileReservedHours", "-5"}, {"maxPendingRequestsNum", "0"}, {"deleteWhen", "25"}, {"deleteWhen", "soon"},
		{"mappedFileSizeForEntryIndex", "33"}, {"maxVoteIntervalMs", "10"}, {"maxTakeLeadershipVoteIntervalMs", "10"}, {"diskSpaceRatioToForceClean", "0.3"}, {"diskSpaceRatioToForceClean", "NaN"}, {"selfId", "n-0"},
		{"diskSpaceRatioToCheckExpired", "1.5"}, {"preferredLeaderIds", "n0;n9"}, {"peers", "n0"}, {"peers", "n0-a:1;n0-b:2"}, {"mappedFileSizeForEntryData", "100"},
		{"maxWaitAckTimeMs", "0"}, {"maxPushTimeOutMs", "0"}, {"maxPendingBytes", "-1"}, {"maxUncommittedBytes", "0"}, {"leadershipTransferWaitTimeout", "0"}, {"maxLeadershipTransferWaitIndex", "-1"},
		{"group", ""}, {"maxHeartBeatLeak", "1000000000000"}, {"mappedFileSizeForEntryData", "9223372036854775807"}, {"mappedFileSizeForEntryData", "4294967296"},
		{"mappedFileSizeForEntryIndex", "9223372036854775776"}, {"fileReservedHours", "0"}, {"heartBeatTimeIntervalMs", "0"}, {"scrubIntervalHours", "-1"}, {"scrubIntervalHours", "0"},
		{"peerPushQuota", "0"}, {"diskSpaceRatioToCheckExpired", "0"}, {"diskSpaceRatioToForceClean", "0"}, {"scrubBytesPerSecond", "-1"},
	} {
		c := Config{ID: "n0", Peers: "n0-localhost:20911", Dir: t.TempDir()}
		_, err := c.Set(k.key, k.value)
		if err == nil {
			c = c.withDefaults()
			err = c.check()
		}
		if k.key == "group" && err == nil {
			continue // nothing stands for the default
		}
		if err == nil || !strings.Contains(err.Error(), k.key) && !strings.Contains(err.Error(), nameOf(k.key)) {
			t.Errorf("%s=%s: got %v, want an error that names the setting", k.key, k.value, err)
		}
	}
}

// nameOf gives the word by which messages call a key whose Config field has a better known name.
func nameOf(key string) string {
	if key == "selfId" {
		return "id"
	}
	return key
}

func TestSettingsListIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Settings() {
		if seen[s.Key] {
			t.Errorf("%s is listed twice", s.Key)
		}
		seen[s.Key] = true
		if s.Help == "" {
			t.Errorf("%s has no help", s.Key)
		}
	}
}

// Every number has its ends, at which a member can be opened, and beyond which the error is one line with key, value and both ends; a Config that is filled in
// by a program is held to them too.
func TestEveryNumberHasItsRange(t *testing.T) {
	whole := Config{ID: "n0", Peers: "n0-localhost:20911", Dir: t.TempDir()}
	for _, s := range Settings() {
		if s.unit == 0 {
			continue
		}
		for _, n := range []int64{s.lo, s.hi / 32 * 32} {
			c := whole
			_, err := c.Set(s.Key, strconv.FormatInt(n, 10))
			below, above := false, false // of two settings that have to be in order
			switch s.Key {
			case "minVoteIntervalMs":
				c.MaxVoteInterval, below = c.MinVoteInterval+1, true
			case "maxVoteIntervalMs":
				c.MinVoteInterval, above = c.MaxVoteInterval-1, true
			case "minTakeLeadershipVoteIntervalMs":
				c.MaxTakeInterval, below = c.MinTakeInterval+1, true
			case "maxTakeLeadershipVoteIntervalMs":
				c.MinTakeInterval, above = c.MaxTakeInterval-1, true
			}
			if err = errors.Join(err, c.Check()); err != nil && !(below && n > s.lo) && !(above && n == s.lo) {
				t.Errorf("%s=%d: %v", s.Key, n, err)
			}
		}
		for _, v := range []string{strconv.FormatInt(s.lo-1, 10), strconv.FormatInt(s.hi+1, 10), "9223372036854775807", "-9223372036854775808", "1e3", " "} {
			c := whole
			_, err := c.Set(s.Key, v)
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s=%s: %v", s.Key, v, err)
				continue
			}
			for _, want := range []string{s.Key, strings.TrimSpace(v), strconv.FormatInt(s.hi, 10)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s=%s: %v, want %q in it", s.Key, v, err, want)
				}
			}
		}
	}
	for name, change := range map[string]func(*Config){
		"mappedFileSizeForEntryData":    func(c *Config) { c.DataFileSize = 1 << 40 },
		"maxHeartBeatLeak":              func(c *Config) { c.HeartbeatLeak = 1e12 },
		"heartBeatTimeIntervalMs":       func(c *Config) { c.Heartbeat = time.Microsecond },
		"leadershipTransferWaitTimeout": func(c *Config) { c.TransferWait = math.MaxInt64 },
		"fileReservedHours":             func(c *Config) { c.ReservedHours = -1 },
	} {
		c := whole
		if change(&c); c.Check() == nil || !strings.HasPrefix(c.Check().Error(), name+" ") {
			t.Errorf("%s: %v", name, c.Check())
		}
	}
}
