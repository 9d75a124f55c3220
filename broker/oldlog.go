package broker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"dledger/internal/vfs"
)

// Compatibility: a Java broker whose group was not always in DLedger mode has messages in a log of the older kind beside the replicated one, and serves both; offsets below the
// first of the replicated log are of the older one. Here there is the replicated log alone. Queues and key index lie in the same files in both cases, and those of
// another log are removed, so a broker that opened such a directory would take what only makes old messages findable away from the Java broker, too.

// refuseOldLog is the error of a directory that holds messages outside the replicated log. It changes nothing.
func (c *Config) refuseOldLog() error {
	dirs := append([]string{filepath.Join(c.Log.Dir, "commitlog")}, split(c.given["storePathCommitLog"], ",")...)
	for _, dir := range dirs {
		if slices.ContainsFunc(append(slices.Clone(c.Log.DataDirs), c.Log.ReadOnlyDataDirs...), func(d string) bool { return filepath.Clean(d) == filepath.Clean(dir) }) {
			continue // files of the replicated log
		}
		name, err := oldMessages(c.fs(), dir)
		if err != nil {
			return fmt.Errorf("whether %s holds messages from before DLedger mode: %w", dir, err)
		}
		if name != "" {
			return fmt.Errorf("%s holds messages from before the group was in DLedger mode (%s): they are not served here, and the queues that find them would be removed; nothing was touched. "+
				"Let the Java brokers run until they are consumed, or move that directory away to do without them", dir, name)
		}
	}
	return nil
}

// fs is the file system of the log.
func (c *Config) fs() vfs.FS {
	if c.Log.FS != nil {
		return c.Log.FS
	}
	return vfs.OS()
}

// oldMessages gives a file of dir that a message begins; "" if there is none. Files are named by the position where they begin, and made with zeros before they are needed.
func oldMessages(files vfs.FS, dir string) (string, error) {
	names, err := files.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return "", nil
	}
	for _, name := range names {
		if len(name) != 20 || strings.Trim(name, "0123456789") != "" {
			continue
		}
		if begun, err := begins(files, filepath.Join(dir, name)); err != nil || begun {
			return name, err
		}
	}
	return "", err
}

// begins tells whether a file has anything but zeros where its first message would be.
func begins(files vfs.FS, name string) (bool, error) {
	f, err := files.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	b := make([]byte, 4096)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return slices.ContainsFunc(b[:n], func(c byte) bool { return c != 0 }), errors.Join(err, f.Close())
}
