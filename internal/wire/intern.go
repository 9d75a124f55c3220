package wire

import (
	"hash/maphash"
	"sync/atomic"
)

// The ids and the group in requests are the same few strings again and again. internTable keeps the last one of each hash, so that
// reading one costs no allocation; its size bounds what a peer can make it hold.
var (
	internSeed  = maphash.MakeSeed()
	internTable [256]atomic.Pointer[string]
)

const internMax = 64 // longer strings are not kept

func intern(b []byte) string {
	if len(b) == 0 || len(b) > internMax {
		return string(b)
	}
	slot := &internTable[maphash.Bytes(internSeed, b)%uint64(len(internTable))]
	if kept := slot.Load(); kept != nil && *kept == string(b) {
		return *kept
	}
	s := string(b)
	slot.Store(&s)
	return s
}
