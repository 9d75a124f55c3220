//go:build planted

package replica

var plantedLostWakeUp, plantedSyncCoversLater bool

// Planted are the switches of the faults in planted.go.
var Planted = map[string]*bool{
	"lost wake-up":              &plantedLostWakeUp,
	"sync covers what is later": &plantedSyncCoversLater,
}
