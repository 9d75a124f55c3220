package remoting

import "io"

const (
	chunkMin = 4 << 10  // a new connection's first chunk
	chunkMax = 64 << 10 // the chunk of a connection that is busy with frames smaller than it
	readMin  = 512      // less room than this at the end of a chunk is not worth a read
	trustMax = 1 << 20
)

// reader cuts a stream into frames.
//
//  1. A chunk is filled once, from front to back, and never written again: frames may alias it for good.
//  2. Memory grows with the bytes that arrived, not with the length a frame promises: a chunk for a frame that is not there yet is
//     at most twice what is there, or as large as the frames this connection has sent before (up to trustMax).
type reader struct {
	chunk []byte
	r, w  int // chunk[r:w] is received and not yet given out
	size  int // of the next chunk for small frames
	trust int // size of the frames that arrived lately
}

// fill reads once from src.
func (d *reader) fill(src io.Reader) (int, error) {
	if err := d.makeRoom(); err != nil {
		return 0, err
	}
	room := len(d.chunk) - d.w
	n, err := src.Read(d.chunk[d.w:])
	d.w += n
	if n == room && d.size < chunkMax {
		d.size *= 2
	}
	return n, err
}

// makeRoom starts a new chunk when the frame that is under way does not fit into the present one.
func (d *reader) makeRoom() error {
	if d.size == 0 {
		d.size = chunkMin
	}
	have, room := d.w-d.r, len(d.chunk)-d.w
	want, err := frameSize(d.chunk[d.r:d.w])
	if err != nil {
		return err
	}
	if want == 0 && room >= readMin || want > 0 && (have+room >= want || d.r == 0 && room > 0) {
		return nil
	}
	next := make([]byte, max(d.size, min(want, max(2*have, d.trust))))
	copy(next, d.chunk[d.r:d.w])
	d.chunk, d.r, d.w = next, 0, have
	return nil
}

// next gives the next whole frame, or nil when it has not arrived yet.
func (d *reader) next() ([]byte, error) {
	have := d.chunk[d.r:d.w]
	size, err := frameSize(have)
	if err != nil || size == 0 || size > len(have) {
		return nil, err
	}
	d.r += size
	if size > d.trust {
		d.trust = min(size, trustMax)
	} else {
		d.trust -= (d.trust - size) / 64
	}
	return have[:size:size], nil
}
