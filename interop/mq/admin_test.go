package mq

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"dledger/interop/mq/cluster"
	"dledger/interop/mq/stock"
)

// command is one call of mqadmin. In words {…} stands for a fact of the cluster; see scenery.
type command struct {
	file  string // of testdata/seen, without the prefix admin-
	words string
	mask  []mask // after the masks of all commands
	only  string // if not empty, lines that match
	sort  bool   // the original's order is that of a hash table
}

type mask struct{ pattern, to string }

var (
	ids     = mask{`\b([0-9A-Fa-f]{56}|[0-9A-Fa-f]{32})\b`, "ID"}
	dates   = mask{`\d{4}-\d\d-\d\d[ #@]+\d\d:\d\d:\d\d([,:.]\d{1,3})?`, "DATE"}
	millis  = mask{`\b1[5-9]\d{11}\b`, "MS"}
	addrs   = mask{`/?127\.0\.0\.1:\d+`, "ADDR"}
	clients = mask{`[0-9.]+@\S+`, "CLIENT"}
	inlog   = mask{`(commitLogOffset=|CommitLog Offset: +|physicOffset=)\d+`, "${1}N"} // our log has records of its own
	traces  = mask{`(?m)^(\tat |\t\.\.\. |For more information|See https:).*\n?`, ""}
	spaces  = mask{` {2,}`, "  "}
	retries = mask{`(?m)^%RETRY%\S+  broker-a  .*\n?`, ""} // from the client's second look at the routes on
	// The original's table of groups by topic names the topic as a group of its own.
	itself = mask{`MessageTrack \[consumerGroup=admin, .*\n?|(?m:^(DefaultCluster  )?admin  admin(  .*)?$\n?)`, ""}

	reals  = mask{`\b\d+\.\d+\b`, "REAL"}
	tps    = mask{`(?m)^(\w+Tps)( *:).*$`, "$1$2 TPS"}
	others = mask{`,?[1-3]:"ADDR"`, ""} // which ids the followers have depends on who leads
)

// common masks are applied to the output of every command.
var common = []mask{ids, dates, millis, addrs, clients, inlog, traces, spaces, retries, itself}

// needed are the lines of brokerStatus that tools and dashboards read.
const needed = `^(broker(Active|Version|VersionDesc)|(put|getTransferred|getFound|getMiss|getTotal)Tps|(send|pull)ThreadPoolQueue(Size|Capacity|HeadWaitTimeMills)|` +
	`pageCacheLockTimeMills|earliestMessageTimeStamp|commitLogDiskRatio|timer\w+|msg(Put|Get)Total\w+|bootTimestamp|runtime|commitLogM\w+Offset|dispatchBehindBytes|putMessage(SizeTotal|TimesTotal|AverageSize))\b`

// commands run in this order; each sees what those before have done.
var commands = []command{
	{file: "clusterList", words: "clusterList", mask: []mask{
		{`(?m)^(DefaultCluster +broker-a +)[123] (.*  )\d+-(\d+\()`, "${1}FOLLOWER ${2}N-$3"}, {`(?m)^(DefaultCluster +broker-a +0 .*  )[12]-(\d+\()`, "${1}0-$2"}, reals}}, // a clock of timers is a second or two late now and then; followers of the original give any number as what they lag behind with timers
	{file: "brokerStatus", words: "brokerStatus -b {leader}", mask: []mask{tps, {`(?m)^(commitLogMaxOffset|\w+Capacity)( *: ).*$`, "$1${2}N"}, {`(commitLogDiskRatio  : ).*`, "${1}REAL"},
		{`(runtime  : ).*`, "${1}TIME"}, {`(?m)^(timerReadBehind  : )[12]$`, "${1}0"}}, only: needed}, // our log has records of its own, and no pools of threads; the original's clock of timers is seconds late now and then
	{file: "updateTopic", words: "updateTopic -c DefaultCluster -t admin_made -r 3 -w 2"},
	{file: "updateTopic-broker", words: "updateTopic -b {leader} -t admin_made -r 3 -w 3 -p 4"},
	{file: "updateTopic-bad", words: "updateTopic -c DefaultCluster -t bad@name"},
	{file: "updateTopicPerm", words: "updateTopicPerm -c DefaultCluster -t admin_made -p 6"},
	{file: "topicList", words: "topicList", only: `^(mqadmin|[^r]|r[^m])`, sort: true},
	{file: "topicList-cluster", words: "topicList -c", only: `^(mqadmin|#|\S+  ([^r]|r[^m]))`, sort: true},
	{file: "topicRoute", words: "topicRoute -t admin", mask: []mask{others}},
	{file: "topicRoute-unknown", words: "topicRoute -t nosuchtopic"},
	{file: "topicClusterList", words: "topicClusterList -t admin"},
	{file: "topicStatus", words: "topicStatus -t admin"},
	{file: "topicStatus-unknown", words: "topicStatus -t nosuchtopic"},
	{file: "updateSubGroup", words: "updateSubGroup -c DefaultCluster -g admin_group -s true -r 3"},
	{file: "getConsumerConfig", words: "getConsumerConfig -g admin_group"},
	{file: "consumerProgress", words: "consumerProgress -g admin_g", mask: []mask{reals}},
	{file: "consumerProgress-all", words: "consumerProgress"},
	{file: "consumerProgress-unknown", words: "consumerProgress -g nosuchgroup"},
	{file: "consumerStatus", words: "consumerStatus -g admin_g"},
	{file: "consumerConnection", words: "consumerConnection -g admin_g"},
	{file: "consumerConnection-unknown", words: "consumerConnection -g nosuchgroup"},
	{file: "producerConnection", words: "producerConnection -g admin_producer -t admin"},
	{file: "producerConnection-unknown", words: "producerConnection -g nosuchgroup -t admin"},
	{file: "queryMsgById", words: "queryMsgById -t admin -i {offsetid}"},
	{file: "queryMsgById-incomplete", words: "queryMsgById -i {offsetid}"},
	{file: "queryMsgByUniqueKey", words: "queryMsgByUniqueKey -t admin -i {uniqueid}"},
	{file: "queryMsgByUniqueKey-unknown", words: "queryMsgByUniqueKey -t admin -i 7F000001000018B4AAC2000000000000"},
	{file: "queryMsgByKey", words: "queryMsgByKey -t admin -k key3"},
	{file: "queryMsgByKey-unknown", words: "queryMsgByKey -t admin -k nosuchkey"},
	{file: "queryMsgByOffset", words: "queryMsgByOffset -t admin -b broker-a -i 1 -o 1"},
	{file: "printMsg", words: "printMsg -t admin -d true"},
	{file: "printMsgByQueue", words: "printMsgByQueue -t admin -a broker-a -i 1 -p true -d true"},
	{file: "statsAll", words: "statsAll -t admin", mask: []mask{reals, {`(?m)  [08]  [08]$`, "  8  8"}}}, // 0 when the messages are older than a minute
	{file: "brokerConsumeStats", words: "brokerConsumeStats -b {leader} -t 10000 -l 0"},
	{file: "sendMessage", words: "sendMessage -t admin -p hello -k admin_key -c admin_tag -b broker-a -i 2"},
	{file: "consumeMessage", words: "consumeMessage -t admin -b broker-a -i 2 -o 2 -c 1 -g admin_reader"},
	{file: "queryCq", words: "queryCq -t admin -q 1 -i 0 -c 2"},
	{file: "getBrokerConfig", words: "getBrokerConfig -b {leader}", only: `^(broker(Name|ClusterName|Id)|deleteWhen|fileReservedTime|enableDLegerCommitLog|` +
		`autoCreateTopicEnable|transactionCheckInterval|maxMessageSize|dLegerGroup) +=`, sort: true},
	{file: "updateBrokerConfig", words: "updateBrokerConfig -b {leader} -k transactionCheckMax -v 14"},
	{file: "updateBrokerConfig-refused", words: "updateBrokerConfig -b {leader} -k brokerConfigPath -v /tmp/x"},
	{file: "wipeWritePerm", words: "wipeWritePerm -b broker-a"},
	{file: "topicRoute-wiped", words: "topicRoute -t admin", mask: []mask{others}},
	{file: "addWritePerm", words: "addWritePerm -b broker-a"},
	{file: "updateSubGroup-clone", words: "updateSubGroup -c DefaultCluster -g admin_clone"},
	{file: "cloneGroupOffset", words: "cloneGroupOffset -s admin_g -d admin_clone -t admin -o true"},
	{file: "consumerProgress-clone", words: "consumerProgress -g admin_clone"},
	{file: "resetOffsetByTime", words: "resetOffsetByTime -g admin_clone -t admin -s 0 -f true"},
	{file: "resetOffsetByTime-now", words: "resetOffsetByTime -g admin_g -t admin -s now -f true"},
	{file: "skipAccumulatedMessage", words: "skipAccumulatedMessage -g admin_clone -t admin -f true"},
	{file: "allocateMQ", words: "allocateMQ -t admin -i 10.0.0.1,10.0.0.2"},
	{file: "sendMsgStatus", words: "sendMsgStatus -b broker-a -c 2 -s 10", mask: []mask{{`rt=\d+ms`, "rt=N"}}},
	{file: "getNamesrvConfig", words: "getNamesrvConfig", mask: []mask{{`/\S+/names/`, "DIR/names/"}, {`(listenPort  =  )\d+`, "${1}PORT"}}, only: `^(kvConfigPath|orderMessageEnable|listenPort)\b`, sort: true},
	{file: "updateKvConfig", words: "updateKvConfig -s NS -k K -v V"},
	{file: "deleteKvConfig", words: "deleteKvConfig -s NS -k K"},
	{file: "updateOrderConf", words: "updateOrderConf -t admin -v broker-a:4 -m put"},
	{file: "updateOrderConf-get", words: "updateOrderConf -t admin -m get"},
	{file: "cleanExpiredCQ", words: "cleanExpiredCQ -b {leader}"},
	{file: "cleanUnusedTopic", words: "cleanUnusedTopic -b {leader}"},
	{file: "deleteSubGroup", words: "deleteSubGroup -c DefaultCluster -g admin_group"},
	{file: "deleteTopic", words: "deleteTopic -c DefaultCluster -t admin_made"},
	{file: "topicRoute-deleted", words: "topicRoute -t admin_made"},
	{file: "nosuchcommand", words: "nosuchcommand"},
}

// processes are commands that are run once more at the end, each as a process of its own, for how it ends: scripts of operators go by that. Admin.java runs all of them in one.
var processes = []string{
	"clusterList",
	"topicRoute -t nosuchtopic",
	"updateBrokerConfig -b {leader} -k brokerConfigPath -v /tmp/x",
	"queryMsgById -i {offsetid}",
}

// passing is what another try may not say again.
var passing = regexp.MustCompile(`unsupported value: NaN|RemotingTimeoutException: .*|RemotingConnectException: .*`)

// Operators' commands, with a producer and a consumer at work and some messages in a topic.
func TestAdminSeesTheOriginal(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			kit := fetched(t, stock.Servers)
			c := started(t, s)
			facts := scenery(t, c)
			var saw seen
			tools := startAdmin(t, kit, c)
			var files []string
			for _, cmd := range commands {
				words := spoken(cmd.words, facts)
				said := tools.run(append(words, "-n", c.NameServer)...)
				// Two things that only a young or a busy machine says. The Go client divides by the time between the first and the last sample of its statistics,
				// which is nothing while there is only one, and cannot encode the outcome; the next sample is 10 s away at most. The tools wait a second or less for
				// some answers.
				if passing.MatchString(said) {
					for range ticks(within(t, 30*time.Second), 200*time.Millisecond) {
						t.Logf("again: mqadmin %s: %s", cmd.words, passing.FindString(said))
						if said = tools.run(append(words, "-n", c.NameServer)...); !passing.MatchString(said) {
							break
						}
					}
				}
				for _, m := range append(append([]mask{}, common...), cmd.mask...) {
					said = regexp.MustCompile(m.pattern).ReplaceAllString(said, m.to)
				}
				lines := strings.Split(strings.TrimSpace(said), "\n")
				if cmd.only != "" {
					keep := regexp.MustCompile(cmd.only)
					lines = slices.DeleteFunc(lines, func(l string) bool { return !keep.MatchString(l) })
				}
				if cmd.sort {
					slices.Sort(lines)
				}
				saw.say(cmd.file, "mqadmin %s", cmd.words)
				saw.say(cmd.file, "%s", strings.Join(lines, "\n"))
				files = append(files, cmd.file)
			}
			for _, p := range processes {
				argv := kit.MQAdmin(filepath.Join(c.Dir, "tools"), append(spoken(p, facts), "-n", c.NameServer)...)
				cmd := exec.CommandContext(within(t, time.Minute), argv[0], argv[1:]...)
				cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), "ROCKETMQ_HOME="+c.Dir)
				out, err := cmd.CombinedOutput()
				t.Logf("mqadmin %s: %v\n%s", p, err, out)
				saw.say("processes", "mqadmin %s: exit code %d", p, cmd.ProcessState.ExitCode())
			}
			saw.compare(t, "", "admin-", append(files, "processes"))
			if t.Failed() {
				t.Log(c.Logs())
			}
		})
	}
}

// spoken are the words of a command with the facts in them.
func spoken(words string, facts map[string]string) []string {
	all := strings.Fields(words)
	for i := range all {
		for name, fact := range facts {
			all[i] = strings.ReplaceAll(all[i], "{"+name+"}", fact)
		}
	}
	return all
}

// scenery fills topic admin and leaves a producer and a consumer running.
func scenery(t *testing.T, c *cluster.Cluster) map[string]string {
	t.Helper()
	var saw seen
	s := &scene{script: "admin", topic: "admin", ctx: within(t, 5*time.Minute), cluster: c, seen: &saw}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	must(t, c.CreateTopic(s.ctx, s.topic, 4))
	p, queues, err := s.manual()
	must(t, err)
	got := &bodies{}
	_, err = s.consumer("_g", consumer.MessageSelector{}, got.listen)
	must(t, err)
	leaders, err := c.Leaders(s.ctx)
	must(t, err)
	facts := map[string]string{"leader": leaders[cluster.BrokerName]}
	for i := range 8 {
		m := primitive.NewMessage(s.topic, fmt.Appendf(nil, "body %d", i)).WithTag("tag").WithKeys([]string{fmt.Sprintf("key%d", i)})
		m.Queue = queues[i%4]
		r, err := p.SendSync(s.ctx, m)
		must(t, err)
		facts["offsetid"], facts["uniqueid"] = r.OffsetMsgID, r.MsgID
	}
	s.await("consumption", time.Minute, func() bool { return got.len() == 8 })
	group, topic := s.topic+"_g", s.topic
	s.await("offsets and the producer at the broker", time.Minute, func() bool {
		for i := range 4 {
			r, err := cluster.Ask(s.ctx, facts["leader"], 14, map[string]string{"consumerGroup": group, "topic": topic, "queueId": fmt.Sprint(i)}, nil)
			if err != nil || r.Fields["offset"] != "2" {
				return false
			}
		}
		r, err := cluster.Ask(s.ctx, facts["leader"], 204, map[string]string{"producerGroup": s.topic + "_producer"}, nil)
		return err == nil && r.Code == 0
	})
	if len(saw.lines) > 0 {
		t.Fatalf("%v\n%s", saw.lines, c.Logs())
	}
	return facts
}

// adminTools is a process of Admin.java. Some commands end it, as they end mqadmin; the next finds a new one.
type adminTools struct {
	t    *testing.T
	argv []string
	dir  string

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startAdmin(t *testing.T, kit *stock.Kit, c *cluster.Cluster) *adminTools {
	t.Helper()
	a := &adminTools{t: t, argv: kit.Admin(filepath.Join(c.Dir, "tools")), dir: c.Dir}
	a.start()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill() // it waits for commands
		_ = a.cmd.Wait()         // it was ended with a signal
	})
	return a
}

func (a *adminTools) start() {
	a.t.Helper()
	a.cmd = exec.CommandContext(a.t.Context(), a.argv[0], a.argv[1:]...)
	a.cmd.Dir = a.dir
	a.cmd.Env = append(os.Environ(), "ROCKETMQ_HOME="+a.dir)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	a.in, err = a.cmd.StdinPipe()
	must(a.t, err)
	out, err := a.cmd.StdoutPipe()
	must(a.t, err)
	must(a.t, a.cmd.Start())
	a.out = bufio.NewScanner(out)
	a.out.Buffer(nil, 1<<20)
	for a.out.Scan() && a.out.Text() != "#ready" {
	}
}

// run gives what a command prints, and the exit code if it ended the process.
func (a *adminTools) run(words ...string) string {
	a.t.Helper()
	limit := time.AfterFunc(time.Minute, func() { _ = a.cmd.Process.Kill() }) // the code then says so
	defer limit.Stop()
	if _, err := fmt.Fprintln(a.in, strings.Join(words, "\t")); err != nil {
		a.t.Fatalf("mqadmin %v: %v", words, err)
	}
	var lines []string
	for a.out.Scan() {
		if a.out.Text() == "#end" {
			return strings.Join(lines, "\n")
		}
		lines = append(lines, a.out.Text())
	}
	_ = a.cmd.Wait() // the exit code says it
	lines = append(lines, fmt.Sprintf("exit code %d", a.cmd.ProcessState.ExitCode()))
	a.start()
	return strings.Join(lines, "\n")
}
