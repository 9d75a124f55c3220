package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dledger"
	"dledger/broker"
)

// brokerFlags are those of `dledger broker`, named as the original's where it has them.
type brokerFlags struct {
	file, names         string
	set                 []string
	print, important    bool
	logLevel, logFormat string
	metrics, pprof      string
}

func newBroker() *cobra.Command {
	var o brokerFlags
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run one replica of a RocketMQ broker group",
		Long: `Runs one replica of a broker group in DLedger mode for stock RocketMQ clients.

--config-file is a broker.conf of the original, as it is. Keys without effect here are named in a warning, as are values that are not
taken, with what is used in their place. Name servers that neither -n nor namesrvAddr names are those of NAMESRV_ADDR in the
environment. --set and the file also take keys of ours: durability (group or async), compat (go, or 0.3 in a group with Java brokers),
and the log's keys (see dledger server --help). Called by the name mqbroker the program is this command.

SIGTERM hands leadership over; the replica then goes on passing requests to the new leader until the clients that used it have asked
for routes again, a minute at most (drainMaxMs). SIGINT does not wait for them.`,
		Example: `  dledger broker -c conf/dledger/broker-n0.conf
  dledger broker -c broker-n0.conf -n "10.0.0.1:9876;10.0.0.2:9876"
  dledger broker --set brokerName=a --set dLegerSelfId=n0 --set "dLegerPeers=n0-127.0.0.1:20911" --set storePathRootDir=data --set enableDLegerCommitLog=true`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "config-file", "c", "", "broker.conf of the original")
	f.StringVarP(&o.names, "namesrv-addr", "n", "", "name servers, host:port joined by ';'; goes before namesrvAddr in the file (default NAMESRV_ADDR of the environment)")
	f.StringArrayVar(&o.set, "set", nil, "set a key, KEY=VALUE; may be given several times, goes before the file")
	f.BoolVarP(&o.print, "print-config-item", "p", false, "print the configuration and end")
	f.BoolVarP(&o.important, "print-important-config", "m", false, "print what the original calls important of it and end")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringVar(&o.metrics, "metrics", "", "serve Prometheus metrics on this host:port")
	f.StringVar(&o.pprof, "pprof", "", "serve profiles of this process on this host:port")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name { // as the original spells them
		case "configFile":
			name = "config-file"
		case "namesrvAddr":
			name = "namesrv-addr"
		case "printConfigItem":
			name = "print-config-item"
		case "printImportantConfig":
			name = "print-important-config"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// config gives what file and flags come to.
func (o *brokerFlags) config() (broker.Config, error) {
	cfg := broker.NewConfig()
	if o.file != "" {
		var err error
		if cfg, err = broker.ReadConfig(o.file); err != nil {
			return cfg, err
		}
	}
	if o.names != "" {
		if err := cfg.Set("namesrvAddr", o.names); err != nil {
			return cfg, usage("--namesrv-addr: %w", err)
		}
	}
	for _, s := range o.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return cfg, usage("--set %q: want KEY=VALUE", s)
		}
		if err := cfg.Set(strings.TrimSpace(key), value); err != nil {
			return cfg, usage("--set: %w", err)
		}
	}
	if names := os.Getenv(namesEnv); len(cfg.NameServers) == 0 && names != "" {
		if err := cfg.Set("namesrvAddr", names); err != nil {
			return cfg, usage("%s of the environment: %w", namesEnv, err)
		}
	}
	return cfg, nil
}

// namesEnv is where the original's programs look for name servers that nothing else names.
const namesEnv = "NAMESRV_ADDR"

func (o *brokerFlags) run(cmd *cobra.Command) (err error) {
	log, err := newLog(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
	if err != nil {
		return err
	}
	if o.file == "" && len(o.set) == 0 {
		return usage("no configuration: give a broker.conf with --config-file, or its keys with --set; dledger up runs a broker that needs none")
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if text := cfg.Properties(); o.print || o.important {
		if !o.print {
			text = important(text)
		}
		_, err := fmt.Fprint(cmd.OutOrStdout(), text)
		return err
	}
	cfg.Logger = log
	tuneMemory()
	b, err := broker.Open(cfg)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	defer func() { err = errors.Join(err, stopBrokers(ctx, []*broker.Broker{b})) }()
	pages, err := servePages(o.metrics, o.pprof, []*dledger.Ledger{b.Ledger()})
	if err != nil {
		return err
	}
	// The first words are those that scripts around the original wait for.
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "The broker[%s, %s] boot success\n", cfg.Name, b.Address()); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-b.Done(): // stopBrokers gives the reason
	}
	log.Info("stopping")
	return pages.close()
}

// importantKeys are those that the original (5.3.3) prints for -m (ImportantField).
var importantKeys = strings.Fields(`accessMessageInMemoryMaxRatio aclEnable allAckInSyncStateSet autoCreateSubscriptionGroup autoCreateTopicEnable brokerClusterName brokerIP1 brokerId
	brokerName brokerRole cleanFileForciblyEnable commitIntervalCommitLog deleteFileBatchMax deleteWhen disappearTimeAfterStart dispatchFromSenderThread enableAutoInSyncReplicas
	enableCleanExpiredOffset fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fileReservedTime flushCommitLogTimed flushDiskType flushIntervalCommitLog haFlowControlEnable
	haMasterAddress inSyncReplicas listenPort maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory
	messageIndexEnable messageIndexSafe minInSyncReplicas msgTraceTopicName namesrvAddr recoverConcurrently rejectTransactionMessage storePathBrokerIdentity storePathCommitLog
	storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeType totalReplicas traceTopicEnable transactionCheckInterval transactionCheckMax transactionTimeOut
	transientStorePoolEnable wakeCommitWhenPutMessage wakeFlushWhenPutMessage`)

// important gives those lines of a configuration whose keys are important.
func important(properties string) string {
	var b strings.Builder
	for line := range strings.Lines(properties) {
		if key, _, _ := strings.Cut(line, "="); slices.Contains(importantKeys, key) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// newAdmin says where the tool is that administers brokers (decision 16).
func newAdmin() *cobra.Command {
	return &cobra.Command{
		Use:     "admin",
		Short:   "Says where the RocketMQ admin tool is",
		Hidden:  true,
		Example: "  mqadmin clusterList -n 127.0.0.1:9876",
		Long: `There is no admin tool of ours for brokers and name servers: the original's, bin/mqadmin of a RocketMQ distribution, works with them as
it is, also its dashboard. For the log beneath there are dledger status, transfer, dump and verify.`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			return usage("brokers are administered with mqadmin of a RocketMQ distribution, which works with ours as it is; see dledger admin --help")
		},
	}
}

// stopBrokers closes replicas side by side, and tells also why one has stopped by itself. After SIGTERM they take the time that their clients need; another signal ends that.
func stopBrokers(ctx context.Context, brokers []*broker.Broker) error {
	stop := (*broker.Broker).Close
	if context.Cause(ctx) == errTerminated {
		again, cancel := signalled(syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
		stop = func(b *broker.Broker) error { return b.Shutdown(again) }
	}
	failed := make(chan error, len(brokers))
	for _, b := range brokers {
		go func() {
			err := stop(b)
			failed <- errors.Join(b.Err(), err)
		}()
	}
	var errs []error
	for range brokers {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}
