//go:build planted

package logstore

var plantedTailLostOnRoll, plantedPositionUnchecked, plantedTermNotSynced, plantedBareNoop, plantedTermOfTheDead, plantedDamageServed, plantedLossForgotten bool

// Planted are the switches of the faults in planted.go.
var Planted = map[string]*bool{
	"tail lost on a file roll": &plantedTailLostOnRoll,
	"position not checked":     &plantedPositionUnchecked,
	"term not synced":          &plantedTermNotSynced,
	"no-op without checksum":   &plantedBareNoop,
	"term of a killed process": &plantedTermOfTheDead,
	"damage served":            &plantedDamageServed,
	"loss forgotten":           &plantedLossForgotten,
}
