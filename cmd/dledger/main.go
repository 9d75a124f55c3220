// Command dledger is the whole program: servers, clients, and tools for data directories. This package owns flags, files, signals and
// what is printed; the work is done by the packages dledger, client, broker, namesrv and internal/logstore. Start at newRoot.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"dledger"
)

// Exit codes beside 0.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	quiet(commandLine(os.Args))
	// A file that may not grow is then an error of the write, which the log knows how to take, and not the end of the process.
	signal.Ignore(syscall.SIGXFSZ)
	ctx, _ := signalled(os.Interrupt, syscall.SIGTERM)
	os.Exit(run(ctx, commandLine(os.Args), os.Stdin, os.Stdout, os.Stderr))
}

// Causes of a context that a signal ended. SIGTERM asks brokers for a stop that clients do not notice.
var (
	errTerminated  = errors.New("terminated by a signal")
	errInterrupted = errors.New("interrupted")
)

// signalled gives a context that ends with the first of these signals; its cause is errTerminated if that is SIGTERM, else errInterrupted. A second one ends the
// process the hard way.
func signalled(which ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, which...)
	go func() {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM {
				end(errTerminated)
			} else {
				end(errInterrupted)
			}
		case <-ctx.Done():
		}
		signal.Stop(signals)
	}()
	return ctx, func() { end(context.Canceled) }
}

// run is the program without its process: it gives the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "dledger: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	var u usageError
	if errors.As(err, &u) {
		return exitUsage
	}
	return exitFailed
}

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usage(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "dledger",
		Short: "A commit log replicated by Raft, and RocketMQ on it",
		Long: `dledger keeps a commit log on several nodes by Raft, in the file format and with
the wire protocol of the Java original, and runs RocketMQ brokers and name servers
on it for stock clients and tools. Start with "dledger up".`,
		Version:           dledger.Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usage("unknown command %q (did you mean %s?)", args[0], strings.Join(near, " or "))
			}
			return usage("unknown command %q, see dledger --help", args[0])
		},
		Args: cobra.ArbitraryArgs, // RunE says what is wrong with them
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate(versionText())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w, see %s --help", flagError(err), cmd.CommandPath())
	})
	root.AddCommand(newUp(), newServer(), newAppend(), newGet(), newTail(), newStatus(), newTransfer(), newDump(), newVerify(), newBench(), newSim(), newNamesrv(), newBroker(), newAdmin(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // by themselves these two take anything
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return usage("no help for %q, see dledger --help", strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usage("no completion for %q, see dledger completion --help", args[0])
				}
				return cmd.Help()
			}
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		}
	}
	return root
}

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no argument, but got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// flagError says what is wrong with a value in words that are not those of Go's parsers.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	what := ""
	switch kind := bad.GetFlag().Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		what = "is out of range"
	case kind == "int" || kind == "int64":
		what = "is no whole number"
	case kind == "duration":
		what = "is no time like 500ms, 10s or 1m30s"
	case kind == "bool":
		what = "is neither true nor false"
	default:
		return err
	}
	return fmt.Errorf("--%s %q: %s", bad.GetFlag().Name, bad.GetValue(), what)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return newPrinter(cmd.OutOrStdout(), asJSON).print(thisVersion(), "%s", versionText())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}

// version is what there is to know of this program.
type version struct {
	Version string `json:"version"`
	Go      string `json:"go,omitempty"`
	Commit  string `json:"commit,omitempty"`
}

func thisVersion() version {
	v := version{Version: dledger.Version}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Go = info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				v.Commit = s.Value[:12]
			}
		}
	}
	return v
}

func versionText() string {
	v := thisVersion()
	text := "dledger " + v.Version
	if v.Go != "" {
		text += " (" + v.Go
		if v.Commit != "" {
			text += ", commit " + v.Commit
		}
		text += ")"
	}
	return text + "\n"
}
