// Package jvm finds a JDK and Maven, and keeps what is fetched and compiled with them between runs. It knows no artifact and starts no server;
// start at Find.
package jvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrUnavailable says that this machine has no JDK or no Maven.
var ErrUnavailable = errors.New("no Java program can be run here")

// Tools are the paths of the programs needed, and the directory of the user's for what is kept.
type Tools struct {
	Java, Javac, Maven string
	Cache              string
}

// Find looks for all of them. The error wraps ErrUnavailable if one is missing.
func Find() (Tools, error) {
	var t Tools
	for name, to := range map[string]*string{"java": &t.Java, "javac": &t.Javac, "mvn": &t.Maven} {
		path, err := exec.LookPath(name)
		if err != nil {
			return t, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		*to = path
	}
	var err error
	if t.Cache, err = os.UserCacheDir(); err != nil {
		return t, fmt.Errorf("find the user's cache directory: %w", err)
	}
	return t, nil
}

// Once fills a directory beside home and renames it, so that home is whole or absent; if home is there it does nothing. Parallel callers may race harmlessly.
func Once(home string, fill func(tmp string) error) error {
	if _, err := os.Stat(home); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for fetched artifacts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return fmt.Errorf("make the cache of artifacts: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(home), "fetch-")
	if err != nil {
		return fmt.Errorf("make the cache of artifacts: %w", err)
	}
	defer os.RemoveAll(tmp) // fails only when already renamed, or leaves a stray directory in a cache
	if err := fill(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, home); err != nil {
		if _, gone := os.Stat(home); gone != nil {
			return fmt.Errorf("publish fetched artifacts: %w", err)
		}
	}
	return nil
}

// Run runs a program to its end in dir. The error holds what it printed.
func Run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, out)
	}
	return nil
}
