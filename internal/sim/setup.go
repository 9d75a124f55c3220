package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"dledger/internal/logstore"
	"dledger/internal/raft"
)

// setup is what a seed draws once for a life: the group, its files and timers, its clients, and what may go wrong how often.
type setup struct {
	ids       []raft.ID
	compat    raft.Compat
	strangers bool // compat 0.4: no member knows that the others are of this implementation
	async     bool
	losing    bool // in mode async: power goes at any moment, also that of a majority, and takes what that mode says
	preferred []raft.ID
	rates     []float64 // how fast each member's clock runs
	core      raft.Config
	ackWait   time.Duration
	syncTime  time.Duration // usual length of a sync
	latency   time.Duration // longest usual way of a message

	dataSize, indexSize, cache int64
	frame, window              int // of a push, and of what is unanswered, in bytes

	clients int
	pause   time.Duration // between two requests of a client, on average
	bodyMax int

	kinds []kind // faults that happen in this life
	gap   time.Duration
}

// pick gives one of the values.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// between draws from [lo, hi).
func between(r *rand.Rand, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(r.Int64N(int64(hi-lo)))
}

// stream gives the source of chance for one purpose of one seed. What one purpose draws changes nothing for the others.
func stream(seed, purpose, n uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, purpose<<48|n))
}

// Purposes of stream.
const (
	forSetup uint64 = iota + 1
	forFault
	forNetwork
	forNode
	forClient
	forCalm
	forRot
	forClock
	forMisdirected
	forRottenExpiry
	forSectors
	forLosses
	forStragglers
)

func draw(seed uint64) *setup {
	r := stream(seed, forSetup, 0)
	s := &setup{}
	size := pick(r, 1, 3, 3, 3, 3, 5, 5)
	s.ids = []raft.ID{"n0", "n1", "n2", "n3", "n4"}[:size]
	s.compat = pick(r, raft.CompatGo, raft.CompatGo, raft.CompatGo, raft.Compat04, raft.Compat03)
	s.strangers = s.compat == raft.Compat04 && r.IntN(3) == 0
	s.async = r.IntN(5) == 0
	if r.IntN(5) == 0 {
		s.preferred = []raft.ID{pick(r, s.ids...)}
	}
	for range s.ids {
		s.rates = append(s.rates, 0.95+0.1*r.Float64())
	}
	s.dataSize = pick[int64](r, 1<<10, 4<<10, 16<<10, 64<<10)
	s.indexSize = pick[int64](r, 32*8, 32*64, 32*1024)
	s.cache = pick[int64](r, 1, 2<<10, 64<<10, 1<<20)
	s.frame = pick(r, 512, 4<<10, 64<<10)
	s.window = pick(r, 2<<10, 64<<10)
	s.bodyMax = pick(r, 20, 120, 400)
	s.clients = pick(r, 1, 2, 4)
	s.pause = pick(r, 2*time.Millisecond, 8*time.Millisecond, 30*time.Millisecond)
	s.syncTime = pick(r, 100*time.Microsecond, time.Millisecond, 5*time.Millisecond)
	s.latency = pick(r, 200*time.Microsecond, 2*time.Millisecond, 10*time.Millisecond)
	s.ackWait = pick(r, 300*time.Millisecond, 2500*time.Millisecond)

	heartbeat := pick(r, 40*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond)
	s.latency = min(s.latency, heartbeat/20) // timers are made for a network that is quicker than they are
	minVote := heartbeat / 4
	maxVote := minVote + heartbeat
	s.core = raft.Config{
		Members: s.ids, Compat: s.compat, Heartbeat: heartbeat, HeartbeatLeak: 3,
		MinVoteInterval: minVote, MaxVoteInterval: maxVote,
		MinTakeInterval: min(30*time.Millisecond, minVote), MaxTakeInterval: min(100*time.Millisecond, maxVote),
		VoteWait:    max(heartbeat, 2*maxVote),
		PushTimeout: pick(r, 100*time.Millisecond, time.Second), CommitIdle: 20 * time.Millisecond,
		TransferWait: pick(r, 200*time.Millisecond, time.Second), TransferLag: pick[raft.Index](r, 10, 1000),
		MaxInflight: pick(r, 1, 2, 1000), MaxEntries: pick[raft.Index](r, 4, 16, 2048), MaxPending: pick[raft.Index](r, 10, 100, 1000),
		Preferred: s.preferred,
	}
	// Not every kind of fault in every life: some need a long time without the others to do their work.
	for k := range rot { // but those from there on, which are drawn apart: not all others go with them
		if kind(k).possible(s) && r.IntN(2) == 0 {
			s.kinds = append(s.kinds, kind(k))
		}
	}
	s.gap = pick(r, 30*time.Millisecond, 100*time.Millisecond, 400*time.Millisecond)
	rots := rot.possible(s) && stream(seed, forRot, 0).IntN(4) == 0
	misdirects := misdirected.possible(s) && stream(seed, forMisdirected, 0).IntN(6) == 4
	sectors := badSector.possible(s) && stream(seed, forSectors, 0).IntN(6) == 2
	if expires := (rots || sectors) && stream(seed, forRottenExpiry, 0).IntN(3) == 0; misdirects || (rots || sectors) && !expires {
		// A power cut may harm one member, retention delete on another: nobody may be left who has a good copy. Where bits flip or sectors go bad, only their member deletes meanwhile.
		s.kinds = slices.DeleteFunc(s.kinds, func(k kind) bool { return k == hoursPass || k == nearlyFull || k == fullDisk })
	}
	if rots {
		s.kinds = append(s.kinds, rot)
	}
	if misdirects {
		s.kinds = append(s.kinds, misdirected)
	}
	if stream(seed, forClock, 0).IntN(6) == 1 {
		s.kinds = append(s.kinds, clockBack)
	}
	if sectors {
		s.kinds = append(s.kinds, badSector)
	}
	if stragglers.possible(s) && stream(seed, forStragglers, 0).IntN(5) == 1 {
		s.kinds = append(s.kinds, stragglers)
	}
	if s.losing = blackout.possible(s) && stream(seed, forLosses, 0).IntN(3) == 1; s.losing {
		s.kinds = append(s.kinds, blackout, cutInCall)
	}
	return s
}

// store is the configuration of a member's store, but for file system, directory and clock.
func (s *setup) store() logstore.Config {
	return logstore.Config{
		DataFileSize: s.dataSize, IndexFileSize: s.indexSize, Compat: s.compat, Async: s.async, CacheBytes: s.cache, Inline: true, Repairs: len(s.ids) > 1,
		Retention: logstore.Retention{ReservedHours: 1, DeleteWhen: "0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
			ForceClean: !s.strangers},
	}
}

// String says it in a few lines.
func (s *setup) String() string {
	var names []string
	for _, k := range s.kinds {
		names = append(names, k.String())
	}
	durability := "group"
	if s.async {
		durability = "async"
	}
	if s.losing {
		durability = "async, which may lose"
	}
	return fmt.Sprintf("members %d, compat %s, strangers %t, durability %s, preferred %v, clock rates %.3v\n"+
		"files of %d and %d bytes, cache %d, frames %d, window %d; heartbeat %v, push timeout %v, ack wait %v, inflight %d, entries %d, pending %d\n"+
		"%d clients every %v with bodies up to %d; latency up to %v, sync %v; faults every %v: %s",
		len(s.ids), s.compat, s.strangers, durability, s.preferred, s.rates,
		s.dataSize, s.indexSize, s.cache, s.frame, s.window, s.core.Heartbeat, s.core.PushTimeout, s.ackWait, s.core.MaxInflight, s.core.MaxEntries, s.core.MaxPending,
		s.clients, s.pause, s.bodyMax, s.latency, s.syncTime, s.gap, strings.Join(names, " "))
}
