package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Program is ours, built at the first call of Path from the module in directory Root.
//
//	DLEDGER=path      names one that is built already
//	DLEDGER_RACE=1    builds it with the race detector, or says that the named one is: the first race ends the process that has it, and what that has
//	                  written fails the test (Outcry)
type Program struct {
	Root string

	once sync.Once
	dir  string // of its own making
	path string
	err  error
}

// Racing tells whether the processes run with the race detector, which takes several times the memory and the processor time.
func Racing() bool { return os.Getenv("DLEDGER_RACE") != "" }

// Path is where it lies.
func (p *Program) Path() (string, error) {
	p.once.Do(func() {
		if Racing() {
			if p.err = os.Setenv("GORACE", strings.TrimSpace("halt_on_error=1 "+os.Getenv("GORACE"))); p.err != nil {
				return
			}
		}
		if p.path = os.Getenv("DLEDGER"); p.path != "" {
			return
		}
		if p.dir, p.err = os.MkdirTemp("", "dledger-interop-"); p.err != nil {
			return
		}
		p.path = filepath.Join(p.dir, "dledger")
		argv := []string{"go", "build"}
		if Racing() {
			argv = append(argv, "-race")
		}
		build := exec.Command(argv[0], append(argv[1:], "-o", p.path, "./cmd/dledger")...)
		build.Dir = p.Root
		if out, err := build.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("build dledger: %w\n%s", err, out)
		}
	})
	return p.path, p.err
}

// Remove removes what Path has built.
func (p *Program) Remove() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// outcries begin the lines with which a Go program says that it has a fault.
var outcries = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE)`)

// Outcry gives an error that holds what our programs have said of their own faults in the logs below dir, nil if nothing. A test may kill the process that
// said it and start it again, or never ask it anything, so tests look here when they end.
func Outcry(dir string) error {
	var all []error
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".log" {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if at := outcries.FindIndex(text); at != nil {
			all = append(all, fmt.Errorf("%s: %s", name, bytes.TrimSpace(text[at[0]:min(len(text), at[0]+20_000)])))
		}
		return nil
	})
	return errors.Join(append(all, err)...)
}
