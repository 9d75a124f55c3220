package dledger

import (
	"errors"
	"fmt"

	"dledger/internal/logstore"
	"dledger/internal/raft"
	"dledger/internal/replica"
	"dledger/internal/vfs"
)

// openStore recovers the log of the member that c describes.
func openStore(c *Config, members int) (*logstore.Store, error) {
	fs := c.FS
	if fs == nil && c.Memory {
		fs = vfs.NewMem()
	}
	s, err := logstore.Open(logstore.Config{
		FS: fs, Dir: c.root(), DataDirs: c.DataDirs, ReadOnlyDirs: c.ReadOnlyDataDirs,
		DataFileSize: c.DataFileSize, IndexFileSize: c.IndexFileSize, Compat: c.Compat, Async: c.Durability == Async, Repairs: c.repairs(members),
		Retention: logstore.Retention{ReservedHours: c.ReservedHours, DeleteWhen: c.DeleteWhen, CheckRatio: c.DiskCheckRatio, ForceRatio: c.DiskForceRatio, ForceClean: c.ForceClean},
		Log:       c.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open the log of %s in %s: %w", c.ID, c.root(), err)
	}
	return s, nil
}

// storeLog is the store as the replica's loop sees it: it tells what the loop must tell apart.
type storeLog struct{ *logstore.Store }

func (s storeLog) Append(first raft.Index, term raft.Term, magic int32, bodies [][]byte, stamp replica.Stamp) error {
	return forLoop(s.Store.Append(first, term, magic, bodies, stamp))
}

func (s storeLog) AppendEncoded(from raft.Index, p raft.Payload) error {
	return forLoop(s.Store.AppendEncoded(from, p))
}

func (s storeLog) Flush() error { return forLoop(s.Store.Flush()) }

func (s storeLog) Sync() error {
	_, err := s.Store.Sync()
	return err
}

func forLoop(err error) error {
	if err == nil {
		return nil // and nothing is allocated for the target below
	}
	var pos *logstore.PositionError
	switch {
	case errors.Is(err, logstore.ErrFailed):
		return err
	case errors.Is(err, logstore.ErrDiskFull):
		return fmt.Errorf("%w: %w", replica.ErrDiskFull, err)
	case errors.As(err, &pos), errors.Is(err, logstore.ErrOrder), errors.Is(err, logstore.ErrEntry), errors.Is(err, logstore.ErrTooLarge):
		return fmt.Errorf("%w: %w", replica.ErrRefused, err)
	}
	return err
}

// initial translates what recovery found for the core.
func initial(s logstore.State) raft.Initial {
	return raft.Initial{Term: s.Term, Vote: s.Vote, First: s.First, Last: s.Last, PrevTerm: s.PrevTerm, Runs: s.Runs, Commit: s.Commit, Abstain: s.TailLost,
		Behind: s.Behind, New: s.New}
}
