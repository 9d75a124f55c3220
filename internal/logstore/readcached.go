package logstore

import "dledger/internal/raft"

// ReadCached is Read for a caller that must not wait for the disk: ok is false where entry lo is not in memory.
func (s *Store) ReadCached(lo, hi raft.Index, maxBytes int) (p raft.Payload, last raft.Index, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.covers(lo) != nil || hi <= lo {
		return nil, lo - 1, false
	}
	n := s.cache.find(lo)
	if n < 0 {
		return nil, lo - 1, false
	}
	s.cache.hits.Add(1)
	p, last = s.cache.read(n, lo, min(hi, s.last.index+1), maxBytes)
	return p, last, true
}
