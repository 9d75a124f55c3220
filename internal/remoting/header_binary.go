package remoting

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The binary header (RocketMQSerializable in the Java original), big-endian:
//
//	offset size field
//	     0    2 code, int16: codes above 32767 do not survive
//	     2    1 language, an ordinal of languages
//	     3    2 version, int16
//	     5    4 opaque
//	     9    4 flag
//	    13    4 remark length r, 0 = none
//	    17    r remark
//	  17+r    4 length e of all pairs, 0 = none
//	  21+r    e pairs: int16 key length, key, int32 value length, value
const binaryFixed = 21

// languages are the names of the language ordinals (LanguageCode in the Java original).
var languages = [...]string{"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
	"RUST", "NODE_JS"}

const languageOther = 7

var errBinaryHeader = errors.New("binary header cut or inconsistent")

func (h *Header) parseBinary(b []byte) error {
	if len(b) < binaryFixed {
		return errBinaryHeader
	}
	h.Code = int32(int16(binary.BigEndian.Uint16(b)))
	h.Language = languages[languageOther]
	if int(b[2]) < len(languages) {
		h.Language = languages[b[2]]
	}
	h.Version = int32(int16(binary.BigEndian.Uint16(b[3:])))
	h.Opaque = int32(binary.BigEndian.Uint32(b[5:]))
	h.Flag = int32(binary.BigEndian.Uint32(b[9:]))
	remark, b, ok := cut32(b[13:])
	if !ok {
		return errBinaryHeader
	}
	h.Remark = string(remark)
	pairs, _, ok := cut32(b)
	if !ok {
		return errBinaryHeader
	}
	for len(pairs) > 0 {
		if h.Ext == nil {
			h.Ext = make(map[string]string, 16)
		}
		if len(pairs) < 2 {
			return errBinaryHeader
		}
		n := int(int16(binary.BigEndian.Uint16(pairs)))
		if n < 0 || n > len(pairs)-2 {
			return errBinaryHeader
		}
		key := pairs[2 : 2+n]
		var value []byte
		if value, pairs, ok = cut32(pairs[2+n:]); !ok {
			return errBinaryHeader
		}
		if len(key) > 0 && len(value) > 0 { // an empty key or value is the original's null
			h.Ext[string(key)] = string(value)
		}
	}
	return nil
}

// cut32 splits b behind a field that an int32 length precedes.
func cut32(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n < 0 || int(n) > len(b)-4 {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

func (h *Header) appendBinary(dst []byte) ([]byte, error) {
	if h.Code < math.MinInt16 || h.Code > math.MaxInt16 {
		return dst, fmt.Errorf("code %d does not fit a binary header", h.Code)
	}
	language := byte(languageOther)
	for i, name := range languages {
		if name == h.Language {
			language = byte(i)
		}
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Code))
	dst = append(dst, language)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Opaque))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.Flag))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(h.Remark)))
	dst = append(dst, h.Remark...)
	mark := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for key, value := range h.Ext {
		if len(key) > math.MaxInt16 {
			return dst, fmt.Errorf("header field name of %d bytes", len(key))
		}
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(key)))
		dst = append(dst, key...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
		dst = append(dst, value...)
	}
	binary.BigEndian.PutUint32(dst[mark:], uint32(len(dst)-mark-4))
	return dst, nil
}
