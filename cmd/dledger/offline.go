package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"dledger/internal/entry"
	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// nodeDir finds the directory of one node: dir itself, or the only dledger-… in it, as in the directory of a broker, which has a directory index of its own.
func nodeDir(dir string) (string, error) {
	if dir == "" {
		return "", usage("--dir: name the directory of a node")
	}
	if _, err := os.Stat(dir); err != nil {
		return "", err
	}
	if has(dir, "data", "currterm") {
		return dir, nil
	}
	found, err := filepath.Glob(filepath.Join(dir, "dledger-*"))
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(d string) bool { return !isNode(d) })
	switch len(found) {
	case 0:
		if isNode(dir) {
			return dir, nil
		}
		return "", fmt.Errorf("%s is no directory of a node: it has neither data nor a dledger-… in it", dir)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	return "", fmt.Errorf("%s holds several nodes (%s), name one of them", dir, strings.Join(names, ", "))
}

// isNode tells whether a directory has anything in it that a node makes; its data files may lie elsewhere.
func isNode(dir string) bool { return has(dir, "data", "index", "currterm") }

// has tells whether one of the names is in dir.
func has(dir string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

// dataDirs is a flag for nodes whose data files are not in the usual place.
type dataDirs struct {
	flag string
	dirs []string
}

func (d *dataDirs) add(cmd *cobra.Command, flag, usage string) {
	d.flag = flag
	cmd.Flags().StringSliceVar(&d.dirs, flag, nil, usage)
}

func inspect(dir string, data *dataDirs) (*logstore.Inspector, error) {
	dir, err := nodeDir(dir)
	if err != nil {
		return nil, err
	}
	in, err := logstore.Inspect(vfs.OS(), dir, data.dirs...)
	if errors.Is(err, logstore.ErrNoDataFiles) {
		err = fmt.Errorf("%w; name their directories with --%s", err, data.flag)
	}
	return in, err
}

// dumpedEntry and dumpedRecord are what dump prints as JSON.
type dumpedEntry struct {
	record
	Magic  int32  `json:"magic"`
	Size   int32  `json:"size"`
	At     int64  `json:"at"`
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Sealed bool   `json:"checksums"`
}

type dumpedRecord struct {
	Index int64 `json:"index"`
	Term  int64 `json:"term"`
	Pos   int64 `json:"pos"`
	Size  int32 `json:"size"`
	Magic int32 `json:"magic"`
}

// endable is for commands that change nothing and may read for hours: a signal ends them where they are. What they leave goes with the process.
func endable(run func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		done := make(chan error, 1)
		go func() { done <- run(cmd, args) }()
		select {
		case err := <-done:
			return err
		case <-cmd.Context().Done():
			return context.Cause(cmd.Context())
		}
	}
}

func newDump() *cobra.Command {
	var dir string
	var data dataDirs
	var index, body, asJSON bool
	var from, to, pos int64
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the entries or index records of a data directory",
		Long: `Prints what lies in the directory of one node, ours or a Java one's, without changing it; a server may be
running on it. The directory is that of the node (…/dledger-n0), or the one above it if it holds one node.`,
		Example: `  dledger dump --dir /var/lib/dledger/dledger-n0 --from 1000 --to 1010 --body
  dledger dump --dir /var/lib/dledger/dledger-n0 --index`,
		Args: noArgs,
		RunE: endable(func(cmd *cobra.Command, _ []string) error {
			if pos >= 0 && (index || cmd.Flags().Changed("from")) {
				return usage("--pos %d: not together with --index or --from", pos)
			}
			switch {
			case from < 0:
				return usage("--from %d: must not be negative", from)
			case to < -1:
				return usage("--to %d: must not be negative", to)
			case pos < -1:
				return usage("--pos %d: must not be negative", pos)
			case to >= 0 && to < from:
				return usage("--to %d: lies before --from %d", to, from)
			case index && body:
				return usage("--body: not together with --index")
			}
			in, err := inspect(dir, &data)
			if err != nil {
				return err
			}
			defer in.Close()
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
			p := newPrinter(out, asJSON)
			if index {
				err = dumpIndex(p, in, from, to)
			} else {
				err = dumpEntries(p, in, from, to, pos, body)
			}
			return errors.Join(err, out.Flush())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "directory of the node")
	data.add(cmd, "data-dir", "directories of the data files, where they are not in DIR/data")
	f.BoolVar(&index, "index", false, "print index records instead of entries")
	f.Int64Var(&from, "from", 0, "index of the first entry")
	f.Int64Var(&to, "to", -1, "index of the last entry; -1 = the last one there is")
	f.Int64Var(&pos, "pos", -1, "begin at the entry that lies at this byte position or behind it")
	f.BoolVarP(&body, "body", "b", false, "print the bodies, too")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}

func dumpEntries(p *printer, in *logstore.Inspector, from, to, pos int64, withBody bool) error {
	if pos >= 0 {
		from = firstAt(in, pos)
	}
	for it, err := range in.Entries(raft.Index(from)) {
		if err != nil {
			return err
		}
		if to >= 0 && int64(it.Index) > to {
			return nil
		}
		if it.At < pos {
			continue
		}
		text := ""
		r := record{Index: int64(it.Index), Term: int64(it.Term), Pos: it.Pos, Noop: it.Magic == entry.MagicNoop}
		if withBody {
			r = recordOf(r.Index, r.Term, r.Pos, r.Noop, it.Body())
			text = "  " + shown(it.Body())
		}
		kind := ""
		switch it.Magic {
		case entry.MagicNoop:
			kind = "  no-op"
		case entry.MagicConfig:
			kind = "  config"
		}
		moved := ""
		if it.At != it.Pos {
			moved = fmt.Sprintf(" (lies at %d)", it.At)
		}
		err := p.print(dumpedEntry{r, it.Magic, it.Size, it.At, it.File, it.Offset, it.ChainCRC != 0},
			"%d  term %d  pos %d%s  size %d%s%s\n", it.Index, it.Term, it.Pos, moved, it.Size, kind, text)
		if err != nil {
			return err
		}
	}
	return nil
}

// firstAt gives an index at or before the first entry that lies at pos or behind it, by bisecting the index records.
func firstAt(in *logstore.Inspector, pos int64) int64 {
	lo, hi := in.Info().First, in.Info().Last
	for lo < hi {
		mid := lo + (hi-lo+1)/2
		at := int64(-1)
		for r, err := range in.Records(mid) {
			if err == nil {
				at = r.Pos
			}
			break
		}
		switch {
		case at < 0: // no record: the entries themselves are read
			return int64(lo)
		case at <= pos:
			lo = mid
		default:
			hi = mid - 1
		}
	}
	return int64(lo)
}

func dumpIndex(p *printer, in *logstore.Inspector, from, to int64) error {
	for r, err := range in.Records(raft.Index(from)) {
		if err != nil {
			return err
		}
		if to >= 0 && int64(r.Index) > to {
			return nil
		}
		err := p.print(dumpedRecord{int64(r.Index), int64(r.Term), r.Pos, r.Size, r.Magic},
			"%d  term %d  pos %d  size %d  magic %d\n", r.Index, r.Term, r.Pos, r.Size, r.Magic)
		if err != nil {
			return err
		}
	}
	return nil
}

// verified is what verify prints as JSON.
type verified struct {
	Dir      string   `json:"dir"`
	Begin    int64    `json:"begin"`
	End      int64    `json:"end"`
	Commit   int64    `json:"commit"`
	Term     int64    `json:"term"`
	Vote     string   `json:"vote,omitempty"`
	Entries  int64    `json:"entries"`
	Bytes    int64    `json:"bytes"`
	Moved    int64    `json:"moved,omitempty"`
	Ours     bool     `json:"ours"`
	Clean    bool     `json:"clean"`
	Notes    []string `json:"notes,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

func (v *verified) entries() string {
	if v.End < v.Begin {
		return "no entries"
	}
	return fmt.Sprintf("entries %d to %d", v.Begin, v.End)
}

func newVerify() *cobra.Command {
	var dir, against string
	var data, otherData dataDirs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check every record of a data directory, or compare two",
		Long: `Reads every entry and index record of the directory of one node, ours or a Java one's, and checks form,
checksums, order and positions. It changes nothing, and a server may be running on the directory.
With --against it also proves that two nodes hold the same bytes up to the smaller commit index.
The exit code is 0 if all is well.`,
		Example: `  dledger verify --dir /var/lib/dledger/dledger-n0
  dledger verify --dir /a/dledger-n0 --against /b/dledger-n1
  dledger verify --dir /a/dledger-n0 --data-dir /disk1/a,/disk2/a --against /b/dledger-n1 --against-data-dir /disk1/b,/disk2/b`,
		Args: noArgs,
		RunE: endable(func(cmd *cobra.Command, _ []string) error {
			if against == "" && len(otherData.dirs) > 0 {
				return usage("--%s %s: only with --against", otherData.flag, strings.Join(otherData.dirs, ","))
			}
			p := newPrinter(cmd.OutOrStdout(), asJSON)
			in, err := inspect(dir, &data)
			if err != nil {
				return err
			}
			defer in.Close()
			if against == "" {
				return verify(cmd, p, dir, in)
			}
			other, err := inspect(against, &otherData) // before an hour is spent on the first
			if err != nil {
				return err
			}
			defer other.Close()
			if err := verify(cmd, p, dir, in); err != nil {
				return err
			}
			if err := verify(cmd, p, against, other); err != nil {
				return err
			}
			return compare(p, dir, against, in, other)
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory of the node")
	data.add(cmd, "data-dir", "directories of the data files, where they are not in DIR/data")
	cmd.Flags().StringVar(&against, "against", "", "directory of another node of the same group")
	otherData.add(cmd, "against-data-dir", "directories of the data files of that node, where they are not in its directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}

func verify(cmd *cobra.Command, p *printer, dir string, in *logstore.Inspector) error {
	rep, err := in.Verify()
	if err != nil {
		return fmt.Errorf("verify %s: %w", dir, err)
	}
	v := verified{Dir: dir, Begin: int64(rep.Info.First), End: int64(rep.Info.Last), Commit: int64(rep.Info.Commit), Term: int64(rep.Info.Term), Vote: string(rep.Info.Vote),
		Entries: rep.Entries, Bytes: rep.Bytes, Moved: rep.Moved, Ours: rep.Info.Ours, Clean: rep.Info.Clean, Notes: rep.Notes}
	for _, err := range rep.Problems {
		v.Problems = append(v.Problems, err.Error())
	}
	if p.json != nil {
		if err := p.json.Encode(v); err != nil {
			return err
		}
	} else if err := p.print(nil, "%s: %s, %d bytes, commit index %d, term %d\n", dir, v.entries(), v.Bytes, v.Commit, v.Term); err != nil {
		return err
	}
	for _, note := range rep.Notes {
		if p.json == nil {
			if err := p.print(nil, "  note: %s\n", note); err != nil {
				return err
			}
		}
	}
	if len(rep.Problems) == 0 {
		return nil
	}
	for _, problem := range rep.Problems[1:] {
		fmt.Fprintf(cmd.ErrOrStderr(), "dledger: %v\n", problem)
	}
	return fmt.Errorf("%s is damaged, %d problems: %w", dir, len(rep.Problems), rep.Problems[0])
}

// comparison is what verify --against prints as JSON.
type comparison struct {
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Equal  bool   `json:"equal"`
	Differ string `json:"differ,omitempty"`
}

func compare(p *printer, dir, against string, a, b *logstore.Inspector) error {
	c, err := logstore.Compare(a, b)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	if p.json != nil {
		if err := p.json.Encode(comparison{int64(c.From), int64(c.To), c.Equal, c.Differ}); err != nil {
			return err
		}
	}
	switch {
	case !c.Equal:
		return fmt.Errorf("%s and %s differ: %s", dir, against, c.Differ)
	case p.json != nil:
		return nil
	case c.To < c.From:
		return p.print(nil, "nothing to compare: the nodes have no committed entry in common\n")
	}
	return p.print(nil, "entries %d to %d are byte-identical\n", c.From, c.To)
}
