package broker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"dledger"
	"dledger/internal/mq"
)

// Compatibility: GET_BROKER_RUNTIME_INFO (28), GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25), VIEW_BROKER_STATS_DATA (315),
// CLEAN_EXPIRED_CONSUMEQUEUE (306), DELETE_EXPIRED_COMMITLOG (329), CLEAN_UNUSED_TOPIC (316), GET_BROKER_HA_STATUS (907). Each tells of the replica that is asked.
//
// Runtime info has every key of the original; those that speak of its thread pools and buffers are 0, as there are none. The configuration can be
// changed where that is safe in a running broker (settable), never paths, addresses or who is in the group; a change lasts until the process ends.
// Expired files are removed by the log itself: 306 and 329 only make queues and index follow at once.

// viewStats gives one count. Sends are counted by the leader, pulls by the replica that served them.
func (b *Broker) viewStats(r *request) {
	f := r.fields()
	name, key := f.Str("statsName"), f.Str("statsKey")
	if err := f.Err(); err != nil {
		r.malformed(err)
		return
	}
	data, ok := b.stats.data(name, key)
	if !ok {
		if !r.toLeader() {
			r.refuse(mq.SystemError, "The stats <%s> <%s> not exist", name, key)
		}
		return
	}
	r.json(data)
}

func (b *Broker) cleanExpired(r *request) {
	if err := b.store.CleanExpired(); err != nil {
		r.malformed(err)
		return
	}
	r.ok()
}

// cleanUnused has nothing to do: the queues of a topic are removed where the topic is.
func (b *Broker) cleanUnused(r *request) { r.ok() }

func (b *Broker) haStatus(r *request) {
	info := mq.HARuntimeInfo{Connections: []string{}, Master: b.gate.here(), MaxOffset: b.store.Stats().End}
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	status, err := b.ledger.Status(ctx)
	if err != nil {
		r.malformed(err)
		return
	}
	for _, p := range status.Peers {
		if p.State == dledger.PeerAppend {
			info.InSyncSlaveNums++
		}
	}
	r.json(info)
}

// runtimeInfo tells tools how this replica is. clusterList shows zeros for all values if one that it wants is missing.
func (b *Broker) runtimeInfo(r *request) {
	now, s, store := time.Now(), &b.stats, b.store.Stats()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	up := now.Sub(b.started)
	puts, putBytes := s.puts.Load(), s.putBytes.Load()
	s.mu.RLock()
	morning := s.morning
	s.mu.RUnlock()
	ratio := "-1"
	if space, err := b.meta.fs().Space(b.cfg.Log.Dir); err == nil {
		ratio = fmt.Sprintf("%.4f", space.Used())
	}
	info := map[string]string{
		"brokerVersionDesc": mq.VersionDesc, "brokerVersion": number(int64(mq.Version)), "brokerActive": boolText(b.gate.here()),
		"bootTimestamp": number(milliseconds(b.started)),
		"runtime":       fmt.Sprintf("[ %d days, %d hours, %d minutes, %d seconds ]", int(up.Hours())/24, int(up.Hours())%24, int(up.Minutes())%60, int(up.Seconds())%60),

		"putTps":            s.rates(func(m moment) int64 { return m.puts }),
		"getTransferredTps": s.rates(func(m moment) int64 { return m.transferred }), "getTransferedTps": s.rates(func(m moment) int64 { return m.transferred }),
		"getFoundTps": s.rates(func(m moment) int64 { return m.found }), "getMissTps": s.rates(func(m moment) int64 { return m.missed }), "getTotalTps": s.rates(func(m moment) int64 { return m.asked }),

		"msgPutTotalYesterdayMorning": number(morning[0].puts), "msgPutTotalTodayMorning": number(morning[1].puts), "msgPutTotalTodayNow": number(puts),
		"msgGetTotalYesterdayMorning": number(morning[0].gets), "msgGetTotalTodayMorning": number(morning[1].gets), "msgGetTotalTodayNow": number(s.gets.Load()),

		"putMessageEntireTimeMax": number(time.Duration(s.putMax.Load()).Milliseconds()), "putMessageTimesTotal": number(puts), "putMessageFailedTimes": number(s.putsFailed.Load()),
		"putMessageSizeTotal": number(putBytes), "putMessageAverageSize": fmt.Sprintf("%.1f", float64(putBytes)/float64(max(puts, 1))), "putMessageDistributeTime": s.distribution(),
		"putLatency99": fmt.Sprintf("%.1f", s.percentile(0.99)), "putLatency999": fmt.Sprintf("%.1f", s.percentile(0.999)),
		"getMessageEntireTimeMax": number(time.Duration(s.getMax.Load()).Milliseconds()), "dispatchMaxBuffer": "0", "dispatchBehindBytes": number(store.Behind),
		"startAcceptSendRequestTimeStamp": number(max(milliseconds(b.conf().AcceptSendsFrom), 0)),

		"commitLogMinOffset": number(store.First), "commitLogMaxOffset": number(store.End), "earliestMessageTimeStamp": number(b.store.EarliestLogTime()),
		"commitLogDiskRatio": ratio, "commitLogDiskRatio_" + b.cfg.Log.Dir: ratio, "consumeQueueDiskRatio": ratio, "commitLogDirCapacity": "Total : " + b.capacity(),
		"pageCacheLockTimeMills": "0", "remainTransientStoreBufferNumbs": "2147483647", "remainHowManyDataToCommit": "0 B", "remainHowManyDataToFlush": "0 B",
		"timerEnqueueTps": "0.0", "timerDequeueTps": "0.0",
		"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": number(waitersMax),
	}
	behind, unread := b.timersBehind(now)
	info["timerReadBehind"], info["timerOffsetBehind"], info["timerCongestNum"] = number(int64(behind/time.Second)), number(unread), number(b.timersWaiting.Load())
	if store.Damaged > 0 || store.Mended > 0 { // not told by the original
		info["consumeQueuesDamaged"], info["consumeQueueUnitsMended"] = number(int64(store.Damaged)), number(store.Mended)
	}
	if store.IndexRemade > 0 || store.IndexDamaged {
		info["keyIndexDamaged"], info["keyIndexRemade"] = boolText(store.IndexDamaged), number(store.IndexRemade)
	}
	if n := b.failures.Load(); n > 0 {
		var failing []string
		b.failing.Range(func(name, err any) bool {
			failing = append(failing, fmt.Sprintf("%v: %v", name, err))
			return true
		})
		slices.Sort(failing)
		info["leaderServiceErrors"], info["leaderServicesFailing"] = number(n), strings.Join(failing, "; ")
	}
	for _, pool := range []string{"send", "pull", "litePull", "query", "ack"} {
		info[pool+"ThreadPoolQueueSize"], info[pool+"ThreadPoolQueueHeadWaitTimeMills"], info[pool+"ThreadPoolQueueCapacity"] = "0", "0", number(waitersMax)
	}
	b.gate.mu.Lock()
	info["sendThreadPoolQueueSize"] = number(int64(len(b.gate.held))) // what waits for a leader
	b.gate.mu.Unlock()
	delivered := b.delayOffsets()
	for level := range b.levels {
		info["scheduleMessageOffset_"+number(int64(level+1))] = number(delivered[level+1]) + "," + number(b.store.MaxOffset(mq.TopicSchedule, int32(level)))
	}
	r.json(mq.KVTable{Table: info})
}

func (b *Broker) capacity() string {
	space, err := b.meta.fs().Space(b.cfg.Log.Dir)
	if err != nil {
		return "unknown"
	}
	const gib = float64(1 << 30)
	return fmt.Sprintf("%.1f GiB, Free : %.1f GiB.", float64(space.Total)/gib, float64(space.Free)/gib)
}

// settable are the keys that UPDATE_BROKER_CONFIG takes.
var settable = map[string]bool{
	"brokerPermission": true, "autoCreateTopicEnable": true, "autoCreateSubscriptionGroup": true, "maxMessageSize": true, "rejectTransactionMessage": true, "enablePropertyFilter": true, "longPollingEnable": true, "shortPollingTimeMills": true,
	"useServerSideResetOffset": true, "startAcceptSendRequestTimeStamp": true, "transactionTimeOut": true, "transactionCheckMax": true, "timerMaxDelaySec": true,
	"recallMessageEnable": true, "allowRecallWhenBrokerNotWriteable": true, "serverLoadBalancerEnable": true,
}

// properties gives the configuration by the original's keys.
func (b *Broker) properties() map[string]string {
	c := b.conf()
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	all := maps.Clone(c.given)
	if all == nil {
		all = map[string]string{}
	}
	role, id := "SLAVE", c.followerID()
	if b.gate.here() {
		role, id = "SYNC_MASTER", 0
	}
	maps.Copy(all, map[string]string{
		"brokerClusterName": c.Cluster, "brokerName": c.Name, "brokerId": mq.Itoa(id), "brokerRole": role, "brokerIP1": c.IP, "brokerIP2": c.HAIP, "listenPort": mq.Itoa(c.Port),
		"haListenPort": mq.Itoa(c.HAPort), "namesrvAddr": strings.Join(c.NameServers, ";"), "flushDiskType": map[bool]string{true: "ASYNC_FLUSH", false: "SYNC_FLUSH"}[c.Log.Durability.String() == "async"],
		"enableDLegerCommitLog": "true", "dLegerGroup": c.Log.Group, "dLegerSelfId": c.Log.ID, "dLegerPeers": c.Log.Peers, "storePathRootDir": c.Log.Dir,
		"brokerPermission": mq.Itoa(c.Permission), "autoCreateTopicEnable": boolText(c.AutoCreateTopic), "autoCreateSubscriptionGroup": boolText(c.AutoCreateGroup),
		"defaultTopicQueueNums": mq.Itoa(c.DefaultQueues), "maxMessageSize": mq.Itoa(c.MessageSizeMax), "regionId": c.RegionID, "traceOn": boolText(c.TraceOn),
		"traceTopicEnable": boolText(c.TraceTopic), "msgTraceTopicName": c.TraceTopicName, "rejectTransactionMessage": boolText(c.RejectTransaction),
		"enablePropertyFilter": boolText(c.PropertyFilter), "longPollingEnable": boolText(c.LongPolling), "shortPollingTimeMills": ms(c.ShortPolling),
		"storeReplyMessageEnable": boolText(c.StoreReplies), "useServerSideResetOffset": boolText(c.ServerReset), "startAcceptSendRequestTimeStamp": mq.Itoa(max(milliseconds(c.AcceptSendsFrom), 0)),
		"registerNameServerPeriod": ms(c.RegisterEvery), "brokerHeartbeatInterval": ms(c.HeartbeatEvery), "brokerNotActiveTimeoutMillis": ms(c.NotActive), "messageDelayLevel": c.DelayLevels,
		"transactionTimeOut": ms(c.TransactionTimeout), "transactionCheckMax": mq.Itoa(c.TransactionChecks), "transactionCheckInterval": ms(c.TransactionEvery),
		"deleteWhen": cmp.Or(c.Log.DeleteWhen, "04"), "fileReservedTime": mq.Itoa(cmp.Or(c.Log.ReservedHours, 73) - 1), // as it came, see keys
		"timerWheelEnable": boolText(c.TimerEnabled), "timerMaxDelaySec": strconv.FormatInt(int64(c.TimerMax/time.Second), 10), "durability": c.Log.Durability.String(),
	})
	return all
}

func (b *Broker) getConfig(r *request) {
	all := b.properties()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text.WriteString(name + "=" + all[name] + "\n")
	}
	version := mq.DataVersion{Counter: b.confVersion.Load(), StateVersion: b.term.Load(), Timestamp: milliseconds(b.started)}
	r.answer(mq.Success, "", map[string]string{"version": string(mq.Marshal(version))}, []byte(text.String()))
}

// updateConfig takes lines key=value: all of them or, if one is refused, none.
func (b *Broker) updateConfig(r *request) {
	b.confChange.Lock()
	defer b.confChange.Unlock()
	next := *b.conf()
	next.given = maps.Clone(next.given)
	changed := 0
	for line := range strings.Lines(string(r.body())) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		switch {
		case !ok:
			r.refuse(mq.InvalidParameter, "%.80q is no key=value", line)
			return
		case !settable[name]:
			b.log.Warn("a key that may not be changed by a request", "key", name, "by", r.from.String())
			r.refuse(mq.NoPermission, "Can not update config in black list.") // as tools show it
			return
		}
		if err := next.Set(name, value); err != nil {
			r.refuse(mq.InvalidParameter, "%v", err)
			return
		}
		changed++
	}
	if changed == 0 {
		r.refuse(mq.InvalidParameter, "no key=value in the body")
		return
	}
	b.changed.Store(&next)
	b.confVersion.Add(1)
	b.log.Info("configuration changed", "by", r.from.String(), "keys", changed)
	b.names.changed()
	r.ok()
}
