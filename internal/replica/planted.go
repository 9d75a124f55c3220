//go:build !planted

package replica

// Faults that can be planted to see that they are found, as in package raft.
const (
	plantedLostWakeUp      = false // an answer does not wake the loop
	plantedSyncCoversLater = false // a sync counts for what was written after it began (R4)
)
