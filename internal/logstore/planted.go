//go:build !planted

package logstore

// Faults that can be planted to see that they are found, as in package raft. Two of them were real.
const (
	plantedTailLostOnRoll    = false // of several data files only the newest is synced
	plantedPositionUnchecked = false // a pushed entry may name any position
	plantedTermNotSynced     = false // term and vote are renamed into place before they are on disk (R6)
	plantedBareNoop          = false // a no-op counts as an entry without checksum
	plantedDamageServed      = false // a reader is given damaged bodies (R2)
	plantedLossForgotten     = false // after a crash of the machine in mode async a member votes at once (R4)
	plantedTermOfTheDead     = false // a term found after a killed process is believed, and not made durable (R6)
)
