package wire

import (
	"encoding/base64"
	"slices"
)

// appendBase64 appends standard base64 with padding.
func appendBase64(dst, src []byte) []byte {
	return base64.StdEncoding.AppendEncode(slices.Grow(dst, base64.StdEncoding.EncodedLen(len(src))), src)
}

// decodeBase64 decodes standard base64, with or without padding. dst may be src itself: what is written never overtakes what is
// read. The URL alphabet is refused; the original silently takes it for nothing, which loses the body.
func decodeBase64(dst, src []byte) (int, error) {
	if len(src)%4 == 0 {
		return base64.StdEncoding.Decode(dst, src)
	}
	return base64.RawStdEncoding.Decode(dst, src)
}
