package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"dledger"
)

// metric is one line of the metrics page.
type metric struct {
	name string
	kind prometheus.ValueType
	help string
	get  func(*dledger.Stats, *dledger.Status) float64
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metrics is the page, with the original's names where it has the metric. docs/operating.md lists them.
var metrics = []metric{
	{"dledger_entries_count", gauge, "Entries in the log.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Entries) }},
	{"dledger_leader", gauge, "1 on the node that leads, else 0.", func(_ *dledger.Stats, s *dledger.Status) float64 { return truth(s.Role == "leader") }},
	{"dledger_up", gauge, "0 once the node no longer takes part, since its disk failed.", func(_ *dledger.Stats, s *dledger.Status) float64 { return truth(s.Err == nil) }},
	{"dledger_term", gauge, "Present term.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.Term) }},
	{"dledger_begin_index", gauge, "First entry of the log.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.First) }},
	{"dledger_end_index", gauge, "Last entry of the log, -1 if it is empty.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.Last) }},
	{"dledger_commit_index", gauge, "Last committed entry.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.Commit) }},
	{"dledger_durable_index", gauge, "Last entry that the node's own sync has covered.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.Durable) }},
	{"dledger_pending_appends", gauge, "Appends that wait for their acknowledgement.", func(_ *dledger.Stats, s *dledger.Status) float64 { return float64(s.Pending) }},
	{"dledger_abstaining", gauge, "1 while the node does not vote, since it may lack what others count on it for.", func(_ *dledger.Stats, s *dledger.Status) float64 { return truth(s.Abstaining) }},
	{"dledger_disk_full", gauge, "1 while the node takes no entries, since its disk is full.", func(_ *dledger.Stats, s *dledger.Status) float64 { return truth(s.DiskFull) }},
	{"dledger_proposed_entries_total", counter, "Entries accepted as leader.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Proposed) }},
	{"dledger_committed_entries_total", counter, "By how much the commit index has risen.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Committed) }},
	{"dledger_elections_total", counter, "Times the node became leader.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Elections) }},
	{"dledger_cuts_total", counter, "Times a suffix was cut that the leader did not have.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Cuts) }},
	{"dledger_turns_total", counter, "Rounds of the node's loop.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Turns) }},
	{"dledger_syncs_total", counter, "Syncs of data files.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Syncs) }},
	{"dledger_sync_seconds_total", counter, "Time spent in syncs.", func(s *dledger.Stats, _ *dledger.Status) float64 { return s.SyncTime.Seconds() }},
	{"dledger_sync_seconds_max", gauge, "Longest sync since the start.", func(s *dledger.Stats, _ *dledger.Status) float64 { return s.SyncMax.Seconds() }},
	{"dledger_writes_total", counter, "Hand-overs of entries to the operating system.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Writes) }},
	{"dledger_written_bytes_total", counter, "Bytes of entries written.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.BytesWritten) }},
	{"dledger_cache_reads_total", counter, "Reads served from memory.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.CacheReads) }},
	{"dledger_disk_reads_total", counter, "Reads served from files.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.DiskReads) }},
	{"dledger_cache_bytes", gauge, "Newest entries kept in memory.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.CacheBytes) }},
	{"dledger_data_files", gauge, "Data files.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.DataFiles) }},
	{"dledger_expired_files_total", counter, "Data files deleted by retention.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.ExpiredFiles) }},
	{"dledger_damages_total", counter, "Damaged stretches of the log found.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Damages) }},
	{"dledger_damaged_bytes", gauge, "Bytes of committed entries that are damaged and not yet repaired.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.DamagedBytes) }},
	{"dledger_repaired_entries_total", counter, "Damaged entries repaired with what other nodes had.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Repaired) }},
	{"dledger_mended_records_total", counter, "Damaged index and blank records made anew.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.Mended) }},
	{"dledger_scrubbed_bytes_total", counter, "Bytes searched for damage.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.ScrubbedBytes) }},
	{"dledger_scrub_passes_total", counter, "Searches of the whole log for damage.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(s.ScrubPasses) }},
	{"dledger_uptime_seconds", gauge, "Time since the node was started.", func(s *dledger.Stats, _ *dledger.Status) float64 { return float64(int64(s.Uptime.Seconds())) }},
}

// collector reads the ledgers when the page is asked for.
type collector struct {
	ledgers []*dledger.Ledger
	descs   []*prometheus.Desc // of metrics
	lag     *prometheus.Desc
}

func newCollector(ledgers []*dledger.Ledger) *collector {
	c := &collector{ledgers: ledgers}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, []string{"group", "self_id"}, nil))
	}
	c.lag = prometheus.NewDesc("dledger_follower_lag_entries", "On a leader: entries that a follower does not hold yet.", []string{"group", "self_id", "remote_id"}, nil)
	return c
}

// Describe lists what Collect may give.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	out <- c.lag
}

// Collect gives the present values. A ledger that does not answer is left out.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, l := range c.ledgers {
		status, err := l.Status(ctx)
		if err != nil {
			continue
		}
		stats := l.Stats()
		for i, m := range metrics {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.get(&stats, &status), status.Group, status.ID)
		}
		for _, p := range status.Peers {
			out <- prometheus.MustNewConstMetric(c.lag, gauge, float64(status.Last-p.Match), status.Group, status.ID, p.ID)
		}
	}
}
