package raft

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the traces of testdata/*.txt")

// TestProtocolStories runs testdata/*.txt. A story is a list of commands, `----`, and the trace they leave: messages, events and
// at the end the state of every member. An empty line ends a trace and goes on with more commands on the same group. Lines that
// begin with # are comments. `go test -run Stories -update` rewrites the traces.
//
//	cluster n0 n1 n2 [compat=0.4] [java=j1,…] [preferred=n1] [pending=10] [inflight=3] [entries=4] [election=off]   the members; those of java are played by the story
//	disk n0 log=1x3,2 [term=2] [vote=n1] [commit=1] [first=1] [prev=0] [abstain=5] [behind=1] [new=1]   before start; a log of 3 entries of term 1 and 1 of term 2
//	start [n0 …]               all by default
//	elect n0                   it campaigns until it leads, unseen; members played by the story do not vote
//	timeout n0                 its time-out comes, alone
//	propose n0 3 · read n0 · transfer n0 n1 · expire n0 4 · full n0 [off] · damaged n0 [off] · retire n0 · fail n0 · sync n0 · manual (syncs are done by `sync`)
//	met n0 n1 [past]           n1 tells n0 whether the group has a past
//	crash n0 · restart n0 · wipe n0 (a crash that leaves an empty disk) · pause n0 · resume n0
//	cut n0->n2 · cut n2 (both ways, with all) · heal · hold n0->n2 · release n0->n2
//	settle                     until no message is under way; time passes only as they need it
//	wait 500ms                 everything that happens by itself in that time
//	trace all|none|vote,append,…   which messages are shown; at first all but heartbeats and commits
//	j1 > n0 append term=3 first=2 terms=3,3 commit=1    a message of a member played by the story
//	j1 answers ok end=4        to the oldest request it has not answered, but for heartbeats and commits (to=heartbeat); `j1 forgets` all
func TestProtocolStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) { tell(t, name) })
	}
}

func tell(t *testing.T, name string) {
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{t: t, shown: "all but heartbeat,commit"}
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	for i := 0; i < len(lines); {
		for ; i < len(lines) && lines[i] != "----"; i++ {
			out.WriteString(lines[i] + "\n")
			if line := strings.TrimSpace(lines[i]); line != "" && line[0] != '#' {
				if err := s.command(line); err != nil {
					t.Fatalf("%s:%d: %s: %v", name, i+1, line, err)
				}
			}
		}
		out.WriteString("----\n" + s.state())
		for i++; i < len(lines) && lines[i] != ""; i++ {
		}
		if i < len(lines) {
			out.WriteString("\n")
			i++
		}
	}
	if *update {
		if err := os.WriteFile(name, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := out.String(), string(text); got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// story is one run of a script.
type story struct {
	t       *testing.T
	g       *group
	java    []ID
	shown   string
	trace   strings.Builder
	waiting map[ID][]Message // requests to members played by the story
}

func (s *story) command(line string) error {
	w := strings.Fields(line)
	args := map[string]string{}
	var words []string
	for _, x := range w[1:] {
		if k, v, ok := strings.Cut(x, "="); ok {
			args[k] = v
		} else {
			words = append(words, x)
		}
	}
	if w[0] == "cluster" {
		return s.cluster(words, args)
	}
	if slices.Contains(s.java, ID(w[0])) {
		return s.play(ID(w[0]), words, args)
	}
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int { k, _ := strconv.Atoi(arg(i)); return k }
	n := s.g.nodes[ID(arg(0))]
	member := func() error {
		if n == nil {
			return fmt.Errorf("%q is no member", arg(0))
		}
		return nil
	}
	switch w[0] {
	case "start":
		for _, id := range s.g.ids {
			if m := s.g.nodes[id]; m != nil && (len(words) == 0 || slices.Contains(words, string(id))) {
				m.start()
			}
		}
		return nil
	case "settle":
		s.settle()
		return nil
	case "wait":
		d, err := time.ParseDuration(arg(0))
		s.g.run(s.g.now + Instant(d))
		return err
	case "trace":
		s.shown = strings.Join(words, " ")
		return nil
	case "manual":
		s.g.syncTime = func(*node) Instant { return -1 }
		return nil
	case "heal":
		for _, l := range s.g.links {
			l.cut = false
		}
		return nil
	case "cut", "hold", "release":
		return s.links(w[0], arg(0))
	}
	if err := member(); err != nil {
		return err
	}
	d := &n.disk
	switch w[0] {
	case "disk":
		return s.disk(n, args)
	case "elect":
		shown := s.shown
		s.shown = "none"
		for k := 0; k < 5 && n.core.role != Leader; k++ {
			s.timeout(n)
			s.settle()
		}
		s.shown = shown
		if n.core.role == Leader {
			return nil
		}
		return fmt.Errorf("%s is %s", n.id, n.core.role)
	case "timeout":
		s.timeout(n)
	case "propose":
		if _, status := n.propose(max(1, number(1))); status != StatusOK {
			s.say("%s refuses: %s", n.id, status)
		}
	case "read":
		n.read()
	case "transfer":
		n.transfer(ID(arg(1)), func(status Status) { s.say("%s transfer: %s", n.id, status) })
	case "expire":
		n.expire(Index(number(1)))
	case "full":
		d.full = arg(1) != "off"
	case "damaged":
		n.act(func() { n.core.Damaged(arg(1) != "off") })
	case "retire":
		n.act(func() { n.core.Retire() })
	case "fail":
		n.breakDisk()
	case "sync":
		n.finishSync(d.last(), d.termOf(d.last()), d.gen)
	case "crash":
		n.crash(-1)
	case "wipe":
		n.wipe()
	case "restart":
		n.crash(-1)
		n.start()
	case "connect":
		n.act(func() { n.core.Connected(ID(arg(1)), true) })
	case "met":
		n.act(func() { n.core.Met(ID(arg(1)), arg(2) == "past") })
	case "pause":
		n.pause()
	case "resume":
		n.resume()
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// parseCompat is the reverse of String.
func parseCompat(s string) (Compat, error) {
	switch s {
	case "go", "":
		return CompatGo, nil
	case "0.4":
		return Compat04, nil
	case "0.3":
		return Compat03, nil
	}
	return 0, fmt.Errorf("compat %q is none of go, 0.4, 0.3", s)
}

func (s *story) cluster(words []string, args map[string]string) error {
	config := defaults()
	var err error
	if config.Compat, err = parseCompat(args["compat"]); err != nil {
		return err
	}
	var ids []ID
	for _, x := range words {
		ids = append(ids, ID(x))
	}
	for _, x := range strings.FieldsFunc(args["java"], func(r rune) bool { return r == ',' }) {
		ids, s.java = append(ids, ID(x)), append(s.java, ID(x))
	}
	for _, x := range strings.FieldsFunc(args["preferred"], func(r rune) bool { return r == ',' }) {
		config.Preferred = append(config.Preferred, ID(x))
	}
	config.NoElection = args["election"] == "off"
	if k, err := strconv.Atoi(args["pending"]); err == nil {
		config.MaxPending = Index(k)
	}
	if k, err := strconv.Atoi(args["inflight"]); err == nil {
		config.MaxInflight = k
	}
	if k, err := strconv.Atoi(args["entries"]); err == nil {
		config.MaxEntries = Index(k)
	}
	g := newGroup(s.t, config, ids...)
	s.g, s.waiting = g, map[ID][]Message{}
	g.sent = func(m *Message) {
		if s.shows(m.Type) {
			s.say("%s > %s  %s", m.From, m.To, describe(m))
		}
	}
	g.seen = func(n *node, e Event) {
		if s.shown == "none" {
			return
		}
		switch e.Kind {
		case EventCut, EventReset:
			s.say("%s %s %d", n.id, [...]string{EventCut: "cuts behind", EventReset: "begins anew behind"}[e.Kind], e.Index)
		case EventStuck:
			s.say("%s: %s is stuck before %d", n.id, e.Peer, e.Index)
		case EventConflict:
			s.say("%s: %s conflicts at committed %d", n.id, e.Peer, e.Index)
		case EventTransfer:
			s.say("%s hands over to %s", n.id, e.Peer)
		case EventStalled:
			s.say("%s: disk stalled", n.id)
		case EventTermLearned:
			s.say("%s learns term %d", n.id, e.Term)
		}
	}
	for _, id := range s.java {
		delete(g.nodes, id)
		g.outside[id] = func(m *Message) {
			if !m.Type.IsAnswer() {
				s.waiting[id] = append(s.waiting[id], *m)
			}
		}
	}
	return nil
}

func (s *story) shows(t MsgType) bool {
	name := strings.TrimSuffix(t.String(), "-answer")
	hide, but := strings.CutPrefix(s.shown, "all but ")
	switch {
	case s.shown == "all":
		return true
	case but:
		return !slices.Contains(strings.Split(hide, ","), name)
	}
	return slices.Contains(strings.Split(s.shown, ","), name)
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(&s.trace, format+"\n", args...) }

func (s *story) disk(n *node, args map[string]string) error {
	d := &n.disk
	for k, v := range args {
		i, _ := strconv.Atoi(v)
		switch k {
		case "term":
			d.term = Term(i)
		case "vote":
			d.vote = ID(v)
			s.g.facts.votes[ballot{n.id, d.term}] = d.vote
		case "commit":
			d.commit = Index(i)
		case "abstain":
			d.abstain = Index(i)
		case "behind":
			d.behind = i > 0
		case "new":
			d.new = i > 0
		case "first":
			d.first = Index(i)
		case "prev":
			d.prev = Term(i)
		case "log":
		default:
			return fmt.Errorf("unknown %s", k)
		}
	}
	for _, x := range strings.FieldsFunc(args["log"], func(r rune) bool { return r == ',' }) {
		term, times, many := strings.Cut(x, "x")
		t, _ := strconv.Atoi(term)
		k := 1
		if many {
			k, _ = strconv.Atoi(times)
		}
		for range k {
			i := d.last() + 1
			id := s.g.newID()
			if o, ok := s.g.facts.entries[place{i, Term(t)}]; ok {
				id = o.id // the same entry on several members
			}
			n.append(i, []entry{{Term(t), id}})
			d.term = max(d.term, Term(t))
		}
	}
	d.synced = d.last()
	for k := Index(len(s.g.facts.committed)); k <= d.commit; k++ {
		s.g.facts.committed = append(s.g.facts.committed, d.at(max(k, d.first)))
	}
	return nil
}

// timeout moves time on to the member's next campaign. What is due on other members until then happens too.
func (s *story) timeout(n *node) {
	c := n.core
	for c.role == Candidate && c.campaign.phase == asking { // what is under way comes to its end first
		s.g.run(c.campaign.deadline() + 1)
	}
	if c.role == Leader {
		return
	}
	d := c.campaign.next
	if c.role == Follower {
		d = c.heard + Instant(c.patience)
	}
	for _, id := range s.g.ids { // the others stay quiet meanwhile
		if m := s.g.nodes[id]; m != nil && m != n && m.core != nil {
			if m.core.role == Follower && m.core.leader == c.leader || m.core.role == Candidate {
				m.timer++
			}
		}
	}
	s.g.run(d + 1)
}

// settle lets messages arrive until none is under way, or a second has passed.
func (s *story) settle() {
	for range 1000 {
		if len(s.g.events) == 0 || s.g.events[0].at > s.g.now+2*ms {
			return
		}
		s.g.run(s.g.events[0].at)
	}
}

func (s *story) links(do, what string) error {
	from, to, one := strings.Cut(what, "->")
	if !one {
		if do == "cut" {
			for k, l := range s.g.links {
				if (k[0] == ID(what) || k[1] == ID(what)) && k[0] != k[1] {
					l.cut = true
				}
			}
			return nil
		}
	}
	l := s.g.links[[2]ID{ID(from), ID(to)}]
	if l == nil {
		return fmt.Errorf("no link %s", what)
	}
	switch do {
	case "cut":
		l.cut = true
	case "hold":
		l.hold = true
	case "release":
		l.hold = false
		for _, m := range l.held {
			s.g.carry(l, m, ms, false, s.g.nodes[m.To].life)
		}
		l.held = nil
	}
	return nil
}

// play sends a message of a member that the story plays.
func (s *story) play(id ID, words []string, args map[string]string) error {
	num := func(key string, none int) int {
		if v, ok := args[key]; ok {
			none, _ = strconv.Atoi(v)
		}
		return none
	}
	if len(words) == 1 && words[0] == "forgets" {
		s.waiting[id] = nil
		return nil
	}
	if len(words) >= 2 && words[0] == "answers" {
		k := slices.IndexFunc(s.waiting[id], func(m Message) bool {
			if to, ok := args["to"]; ok {
				return to == m.Type.String()
			}
			return m.Type != MsgHeartbeat && m.Type != MsgCommit
		})
		if k < 0 {
			return fmt.Errorf("%s was not asked", id)
		}
		q := s.waiting[id][k]
		s.waiting[id] = slices.Delete(s.waiting[id], k, k+1)
		a := Message{Type: q.Type.Answer(), From: id, To: q.From, Asked: q.Asked, Index: q.Index, First: q.First, Last: q.Last,
			Term: Term(num("term", int(q.Term))), Begin: Index(num("begin", 0)), End: Index(num("end", 0)), XTerm: Term(num("xterm", -1)), XIndex: Index(num("xindex", -1))}
		if v := slices.Index(voteNames[:], words[1]); v >= 0 && (q.Type == MsgVote || q.Type == MsgPreVote) {
			a.Vote = VoteResult(v)
		} else if v := slices.Index(statusNames[:], words[1]); v >= 0 {
			a.Status = Status(v)
		} else {
			return fmt.Errorf("unknown outcome %s", words[1])
		}
		s.say("%s > %s  %s", id, a.To, describe(&a))
		s.g.nodes[a.To].deliver(a, 0)
		s.settle()
		return nil
	}
	if len(words) < 3 || words[0] != ">" || s.g.nodes[ID(words[1])] == nil {
		return fmt.Errorf("want: %s > node type key=value…", id)
	}
	to := s.g.nodes[ID(words[1])]
	typ := MsgType(slices.Index(msgNames[:], words[2]))
	m := Message{Type: typ, From: id, To: to.id, Leader: id, Term: Term(num("term", 0)), Index: Index(num("at", -1)), LogTerm: Term(num("logterm", -1)), Commit: Index(num("commit", -1))}
	if v, ok := args["leader"]; ok {
		m.Leader = ID(v)
	}
	switch typ {
	case MsgAppend:
		m.First = Index(num("first", 0))
		m.Last, m.Index, m.LogTerm = m.First-1, m.First-1, UnknownTerm
		var batch disk
		batch.first = m.First
		for _, x := range strings.Split(args["terms"], ",") {
			term, _ := strconv.Atoi(x)
			m.Last++
			if len(m.Runs) == 0 || m.Runs[len(m.Runs)-1].Term != Term(term) {
				m.Runs = append(m.Runs, Run{Term(term), m.Last})
			}
			batch.entries = append(batch.entries, s.entry(m.Last, Term(term)))
		}
		m.Payload = batch.payload(m.First, m.Last)
	case MsgTruncate:
		if s.g.config.Compat == Compat04 {
			m.LogTerm = UnknownTerm
		}
		if t := num("next", -1); t >= 0 {
			m.Runs = []Run{{Term(t), m.Index + 1}}
			if slices.Contains(words, "anew") {
				m.Runs = (&Core{log: shape{first: m.Index, last: m.Index + 1, runs: []Run{{m.LogTerm, m.Index}, {Term(t), m.Index + 1}}}}).withEntry(m.Index)
			}
		}
	case MsgCompare:
		m.End = Index(num("end", -1))
	case MsgTransfer:
		m.Transferer, m.Transferee = ID(args["from"]), ID(args["to"])
	}
	if s.g.config.Compat == Compat03 && (typ == MsgCompare || typ == MsgTruncate) {
		one := disk{first: m.Index, entries: []entry{s.entry(m.Index, m.LogTerm)}}
		m.Payload = one.payload(m.Index, m.Index)
	}
	s.say("%s > %s  %s", id, to.id, describe(&m))
	to.deliver(m, 0)
	s.settle()
	return nil
}

// entry gives the one entry that can stand at index i in term t.
func (s *story) entry(i Index, t Term) entry {
	if o, ok := s.g.facts.entries[place{i, t}]; ok {
		return entry{t, o.id}
	}
	return entry{t, s.g.newID()}
}

// voteNames are the original's, in lower case and without REJECT.
var voteNames = [...]string{"unknown", "accept", "unknown-leader", "unexpected-leader", "expired-term", "already-voted", "already-has-leader",
	"term-not-ready", "term-small-than-ledger", "expired-ledger-term", "small-ledger-end-index", "taking-leadership"}

// describe writes a message without what every one has and without what is as expected.
func describe(m *Message) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, " "+format, args...) }
	fmt.Fprintf(&b, "%s term=%d", m.Type, m.Term)
	if m.Type.IsAnswer() {
		switch m.Type {
		case MsgVoteAnswer, MsgPreVoteAnswer:
			if m.Status != StatusOK {
				say("%s", m.Status)
			}
			say("%s", voteNames[m.Vote])
		case MsgAppendAnswer:
			say("%d..%d %s", m.First, m.Last, m.Status)
		case MsgCompareAnswer, MsgTruncateAnswer, MsgResetAnswer:
			say("%d %s", m.Index, m.Status)
			if m.Status == StatusInconsistentState {
				say("end=%d", m.End)
				if m.XTerm >= 0 {
					say("x=%d/%d", m.XIndex, m.XTerm)
				}
			}
		default:
			say("%s", m.Status)
		}
		return b.String()
	}
	switch m.Type {
	case MsgVote, MsgPreVote:
		say("last=%d/%d", m.Index, m.LogTerm)
	case MsgAppend:
		say("%d..%d", m.First, m.Last)
		for _, r := range m.Runs {
			say("%d/%d", r.First, r.Term)
		}
		if m.LogTerm != UnknownTerm {
			say("after %d/%d", m.Index, m.LogTerm)
		}
	case MsgCompare, MsgReset:
		say("%d/%d", m.Index, m.LogTerm)
		if m.Type == MsgCompare && m.End > m.Index {
			say("of %d", m.End)
		}
	case MsgTruncate:
		say("keep %d", m.Index)
		if len(m.Payload) > 0 {
			say("entry %d/%d", m.Index, m.LogTerm)
		}
		if len(m.Runs) > 0 {
			say("before %d/%d", m.Index+1, m.Runs[len(m.Runs)-1].Term)
			if m.Runs[0].First == m.Index {
				say("or anew")
			}
		}
	case MsgTransfer:
		say("%s to %s at %d", m.Transferer, m.Transferee, m.Index)
	}
	if m.Type.IsPush() {
		say("commit=%d", m.Commit)
	}
	if m.Leader != m.From && m.Type != MsgTransfer {
		say("leader=%s", m.Leader)
	}
	return b.String()
}

// state is the trace so far and a line for each member.
func (s *story) state() string {
	for _, id := range s.g.ids {
		n := s.g.nodes[id]
		switch {
		case n == nil:
			continue
		case n.core == nil:
			s.say("%s down", id)
			continue
		}
		c := n.core
		var b strings.Builder
		fmt.Fprintf(&b, "%s %-9s term=%d log=%s commit=%d", id, c.role, c.term, logOf(&n.disk), c.commit)
		if c.durable < c.log.last {
			fmt.Fprintf(&b, " durable=%d", c.durable)
		}
		if c.vote != "" {
			fmt.Fprintf(&b, " vote=%s", c.vote)
		}
		if c.Abstaining() {
			b.WriteString(" abstains")
		}
		for _, p := range c.Peers() {
			fmt.Fprintf(&b, "  %s:%s match=%d", p.ID, p.State, p.Match)
		}
		for _, k := range n.confirmed {
			if k.Status == StatusOK {
				fmt.Fprintf(&b, "  read=%d", k.Index)
			} else {
				fmt.Fprintf(&b, "  read=%s", k.Status)
			}
		}
		n.confirmed = nil
		s.say("%s", b.String())
	}
	out := s.trace.String()
	s.trace.Reset()
	return out
}

// logOf writes a log as index/term of each run's first entry and its end: 0/1..2 3/2..3.
func logOf(d *disk) string {
	if len(d.entries) == 0 {
		return fmt.Sprintf("[%d..)", d.first)
	}
	var b strings.Builder
	for i := d.first; i <= d.last(); {
		j := i
		for j < d.last() && d.at(j+1).term == d.at(i).term {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d-%d/%d", i, j, d.at(i).term)
		i = j + 1
	}
	return "[" + b.String() + "]"
}
