package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/magiconair/properties"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dledger/namesrv"
)

// calledAs are names of the original's scripts: a link to this program with such a name behaves as the command.
var calledAs = map[string]string{"mqnamesrv": "namesrv", "mqbroker": "broker", "mqadmin": "admin"}

// commandLine gives the arguments of this process, with the command in front when its name says which.
func commandLine(args []string) []string {
	if command, ok := calledAs[filepath.Base(args[0])]; ok {
		return append([]string{command}, args[1:]...)
	}
	return args[1:]
}

func newNamesrv() *cobra.Command {
	var file, names, kvFile, logLevel, logFormat string
	var port int
	var printConfig bool
	cmd := &cobra.Command{
		Use:   "namesrv",
		Short: "Run a RocketMQ name server",
		Long: `Runs a name server for RocketMQ brokers and clients until it gets SIGTERM or SIGINT. Several of them know nothing of each
other: give all their addresses to every broker and client.

--config-file is a properties file of the original (namesrv.conf). Keys without effect here are named in a warning.
Called by the name mqnamesrv the program is this command.`,
		Example: `  dledger namesrv
  dledger namesrv --port 9877 --kv-file data/kvConfig.json
  dledger namesrv -c namesrv.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(cmd.ErrOrStderr(), logLevel, logFormat)
			if err != nil {
				return err
			}
			keys := map[string]string{}
			if file != "" {
				if keys, err = readProperties(file); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("port") {
				if port < 0 || port > 65535 {
					return usage("--port %d: there is no such port", port)
				}
				keys["listenPort"] = strconv.Itoa(port)
			}
			cfg, unknown, err := namesrv.FromProperties(keys)
			if err != nil {
				return fmt.Errorf("%s: %w", cmp.Or(file, "--port"), err)
			}
			if len(unknown) > 0 {
				log.Warn("keys without effect here", "file", file, "keys", unknown)
			}
			if names != "" {
				log.Warn("--namesrv-addr has no effect: name servers know nothing of each other", "namesrvAddr", names)
			}
			cfg.Logger = log
			if cfg.KVFile = cmp.Or(kvFile, cfg.KVFile); cfg.KVFile == "" {
				home, err := os.UserHomeDir()
				if err != nil {
					return fmt.Errorf("no place for the key-value configuration, give --kv-file: %w", err)
				}
				cfg.KVFile = filepath.Join(home, "namesrv", "kvConfig.json") // the original's place
			}
			if printConfig {
				_, err := fmt.Fprint(cmd.OutOrStdout(), cfg.Properties())
				return err
			}
			return serveNames(cmd.Context(), cmd, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config-file", "c", "", "properties file of the original")
	f.StringVarP(&names, "namesrv-addr", "n", "", "taken since the original takes it, without effect there and here")
	f.IntVar(&port, "port", 9876, "port to listen on; goes before listenPort in the file")
	f.StringVar(&kvFile, "kv-file", "", "where the key-value configuration is kept (default kvConfigPath of the file, else ~/namesrv/kvConfig.json)")
	f.BoolVarP(&printConfig, "print-config-item", "p", false, "print the configuration and end")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name { // as the original spells them
		case "configFile":
			name = "config-file"
		case "namesrvAddr":
			name = "namesrv-addr"
		case "printConfigItem":
			name = "print-config-item"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// serveNames runs a name server until ctx ends.
func serveNames(ctx context.Context, cmd *cobra.Command, cfg namesrv.Config) (err error) {
	tuneMemory()
	if dir := filepath.Dir(cfg.KVFile); cfg.KVFile != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			cfg.Logger.Warn("the key-value configuration cannot be written: requests to change it will be refused", "kvConfigPath", cfg.KVFile, "error", err)
		}
	}
	s, err := namesrv.Listen(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	_, listening, err := net.SplitHostPort(s.Addr().String())
	if err != nil {
		return err
	}
	// The first words are those that scripts around the original wait for.
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "The Name Server boot success: clients and brokers find it on port %s (%s)\n", listening, s.Addr()); err != nil {
		return err
	}
	cfg.Logger.Info("serving", "address", s.Addr().String(), "kvConfig", cfg.KVFile)
	<-ctx.Done()
	cfg.Logger.Info("stopping")
	return nil
}

// readProperties reads a file of lines key=value. References to other keys, ${x}, are taken as they stand, as the original does.
func readProperties(file string) (map[string]string, error) {
	l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := l.LoadFile(file)
	if err != nil {
		return nil, err
	}
	all := p.Map()
	if file := all["tls.config.file"]; file != "" { // keys of a file of their own, as the original has them
		delete(all, "tls.config.file")
		more, err := readProperties(file)
		if err != nil {
			return nil, fmt.Errorf("tls.config.file: %w", err)
		}
		maps.Copy(more, all)
		return more, nil
	}
	return all, nil
}
