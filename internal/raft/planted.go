//go:build !planted

package raft

// Faults that can be planted to see that they are found: see the tests of package sim with the build tag planted. Without it they are
// constants, and the compiler leaves them out.
const (
	plantedVoteNotStored     = false // a vote in the present term is given without being stored (R6)
	plantedCommitBeyondEnd   = false // the leader's commit index is taken over beyond the last entry (R7)
	plantedDeposedPush       = false // entries of a leader of an earlier term are stored (R5)
	plantedDeposedTruncate   = false // a TRUNCATE of a leader of an earlier term is obeyed (R5)
	plantedAckBeforeSync     = false // entries are acknowledged before they are durable (R4)
	plantedPreviousUnchecked = false // entries are stored behind any entry (R3)
	plantedCommitByCounting  = false // an entry of an earlier term is committed once a majority has it (R4)
	plantedStaleRead         = false // a leader confirms reads without asking whether it still leads
	plantedWipedIsWhole      = false // a follower without entries counts as one that has them all (R4)
	plantedTermAgain         = false // a candidate campaigns again in a term in which it voted for itself (R8)
	plantedEndTermIsTerm     = false // a candidate gives its present term for that of its last entry (R6)
)
