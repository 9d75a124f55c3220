package wire

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
)

const base64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// In JSON dialects base64 is most of the work, and tables do it two to three times as fast as the standard library: pairs gives two
// characters for 12 bits, and quads the bits that a character stands for in each of the four places of a group.
var (
	pairs [1 << 12]uint16
	quads [4][256]uint32
)

const notBase64 = 1 << 31 // in quads: no character of the alphabet

func init() {
	for i := range pairs {
		pairs[i] = uint16(base64Alphabet[i>>6]) | uint16(base64Alphabet[i&63])<<8
	}
	for place := range quads {
		for c := range quads[place] {
			quads[place][c] = notBase64
		}
		for bits, c := range []byte(base64Alphabet) {
			quads[place][c] = uint32(bits) << (18 - 6*place)
		}
	}
}

// appendBase64 appends standard base64 with padding.
func appendBase64(dst, src []byte) []byte {
	dst = slices.Grow(dst, base64.StdEncoding.EncodedLen(len(src)))
	out := dst[len(dst):cap(dst)]
	n := 0
	for len(src) >= 8 && len(out)-n >= 8 { // 6 bytes at a time, read as 8
		v := binary.BigEndian.Uint64(src)
		binary.LittleEndian.PutUint64(out[n:], uint64(pairs[v>>52])|uint64(pairs[v>>40&0xfff])<<16|uint64(pairs[v>>28&0xfff])<<32|
			uint64(pairs[v>>16&0xfff])<<48)
		src, n = src[6:], n+8
	}
	return base64.StdEncoding.AppendEncode(dst[:len(dst)+n], src)
}

// decodeBase64 decodes standard base64, with or without padding, and gives the number of bytes. dst may be src itself: what is written
// never overtakes what is read. The URL alphabet is refused; the original silently takes it for nothing, which loses the body.
func decodeBase64(dst, src []byte) (int, error) {
	n, i := 0, 0
	// 16 characters at a time, and never the last group, which may be padded. Each 6 bytes are written as 8: the two behind them are
	// not needed any more, or not yet.
	for ; i+20 <= len(src) && n+16 <= len(dst); i, n = i+16, n+12 {
		v, w := binary.LittleEndian.Uint64(src[i:]), binary.LittleEndian.Uint64(src[i+8:])
		a, b, c, d := quad(uint32(v)), quad(uint32(v>>32)), quad(uint32(w)), quad(uint32(w>>32))
		if (a|b|c|d)&notBase64 != 0 {
			break // line ends, or no base64 at all: the standard library knows
		}
		binary.BigEndian.PutUint64(dst[n:], uint64(a)<<40|uint64(b)<<16)
		binary.BigEndian.PutUint64(dst[n+6:], uint64(c)<<40|uint64(d)<<16)
	}
	src = src[i:]
	encoding := base64.RawStdEncoding
	if len(src) > 0 && src[len(src)-1] == '=' {
		encoding = base64.StdEncoding
	}
	k, err := encoding.Decode(dst[n:], src)
	return n + k, err
}

// quad gives the 24 bits that four characters stand for, the first in the lowest byte.
func quad(v uint32) uint32 {
	return quads[0][byte(v)] | quads[1][byte(v>>8)] | quads[2][byte(v>>16)] | quads[3][v>>24]
}
