//go:build planted

package raft

var plantedVoteNotStored, plantedCommitBeyondEnd, plantedDeposedPush, plantedDeposedTruncate, plantedAckBeforeSync, plantedPreviousUnchecked,
	plantedCommitByCounting, plantedStaleRead, plantedWipedIsWhole, plantedTermAgain, plantedEndTermIsTerm bool

// Planted are the switches of the faults in planted.go.
var Planted = map[string]*bool{
	"vote not stored":                 &plantedVoteNotStored,
	"commit index beyond the end":     &plantedCommitBeyondEnd,
	"push of a deposed leader":        &plantedDeposedPush,
	"truncate of a deposed leader":    &plantedDeposedTruncate,
	"acknowledged before the sync":    &plantedAckBeforeSync,
	"previous entry not checked":      &plantedPreviousUnchecked,
	"committed by counting":           &plantedCommitByCounting,
	"stale read":                      &plantedStaleRead,
	"wiped member counts as whole":    &plantedWipedIsWhole,
	"campaign in the same term again": &plantedTermAgain,
	"term given for that of the end":  &plantedEndTermIsTerm,
}
