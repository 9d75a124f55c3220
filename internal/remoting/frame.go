// Package remoting owns RocketMQ's framing and the connections that carry it: it turns a stream into frames and frames into as
// few writes as possible, matches answers to requests, and bounds what a peer can make this process hold. It knows no request
// code and no body. Start at Conn; Server accepts them, Client dials them.
package remoting

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// FrameMax is the largest frame in bytes, its length word included (com.rocketmq.remoting.frameMaxLength in the original).
// A larger one closes the connection it arrives on, and is refused with ErrTooLarge where it would be sent.
const FrameMax = 16 << 20

// Header codes that this package gives itself; every other one belongs to the packages above.
const (
	CodeBusy        = 2 // a bound is reached: try again later
	CodeUnsupported = 3 // no handler knows the request's code
)

const (
	flagAnswer = 1 << 0
	flagOneWay = 1 << 1
)

// Language is the name this implementation gives itself in every header it writes; the originals know it.
const Language = "GO"

// Serial is the form of a frame's header. An answer uses the form of its request, so that the peer is sure to read it.
type Serial byte

const (
	SerialJSON   Serial = 0
	SerialBinary Serial = 1
)

// Header is what a frame says about itself (RemotingCommand in the Java original).
type Header struct {
	Serial   Serial
	Code     int32 // request code, or outcome in an answer; only 16 bits of it survive SerialBinary
	Flag     int32 // bit 0: answer, bit 1: one-way, nobody waits for an answer
	Opaque   int32 // ties an answer to its request on one connection; chosen by the requester
	Version  int32 // the sender's release, as an ordinal of the original's version list; 0 for stand-alone DLedger
	Language string
	Remark   string
	Ext      map[string]string // nil when the header has none
}

// IsAnswer tells answers from requests.
func (h *Header) IsAnswer() bool { return h.Flag&flagAnswer != 0 }

// IsOneWay tells requests that want no answer.
func (h *Header) IsOneWay() bool { return h.Flag&flagOneWay != 0 }

// Frame is one request or answer as received.
//
//  1. The Frame a handler or a done function is given is valid until that function returns; copy the struct to keep it.
//  2. Body and Ext belong to the receiver for good: the memory behind Body is never written again by this package. A kept Body
//     keeps the chunk alive that it was read into: at most 64 KiB more than the largest frame in it. A kept value of Ext keeps all of them alive; clone what is to be kept for long.
type Frame struct {
	Header
	Body []byte
}

// Ref names a request on the connection it came from; a handler that answers later keeps it instead of the frame.
type Ref struct {
	opaque int32
	serial Serial
	oneWay bool
	size   int32 // of the body
}

// Ref gives the name to answer the request by.
func (f *Frame) Ref() Ref {
	return Ref{opaque: f.Opaque, serial: f.Serial, oneWay: f.IsOneWay(), size: int32(len(f.Body))}
}

// Errors of the frame layer. Anything that ErrFrame wraps closes the connection.
var (
	ErrFrame    = errors.New("malformed frame")
	ErrTooLarge = fmt.Errorf("frame larger than %d bytes", FrameMax)
)

// A frame, big-endian:
//
//	offset size field
//	     0    4 length: bytes that follow this word
//	     4    1 form of the header: 0 JSON, 1 binary
//	     5    3 header length h
//	     8    h header
//	   8+h    … body
const prefixSize = 8

// frameSize gives the whole size of the frame at the start of b, or 0 while fewer than its first 4 bytes are there.
func frameSize(b []byte) (int, error) {
	if len(b) < 4 {
		return 0, nil
	}
	n := binary.BigEndian.Uint32(b)
	if n < 4 {
		return 0, fmt.Errorf("%w: length %d", ErrFrame, int32(n))
	}
	if n > FrameMax-4 {
		return 0, fmt.Errorf("%w: length %d: %w", ErrFrame, n, ErrTooLarge)
	}
	return int(n) + 4, nil
}

// parse reads the one whole frame b into f; f.Body aliases b.
func (f *Frame) parse(b []byte) error {
	word := binary.BigEndian.Uint32(b[4:])
	form, size := Serial(word>>24), int(word&0xFFFFFF)
	if size > len(b)-prefixSize {
		return fmt.Errorf("%w: header of %d bytes in a frame of %d", ErrFrame, size, len(b))
	}
	head := b[prefixSize : prefixSize+size]
	f.Header = Header{Serial: form}
	f.Body = b[prefixSize+size : len(b) : len(b)]
	var err error
	switch form {
	case SerialJSON:
		err = f.Header.parseJSON(head)
	case SerialBinary:
		err = f.Header.parseBinary(head)
	default:
		err = fmt.Errorf("header form %d", form)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	return nil
}

// appendHead appends everything of a frame but its body: h and the lengths that go with a body of bodySize bytes.
// It returns dst unchanged and ErrTooLarge when the frame would exceed FrameMax.
func appendHead(dst []byte, h *Header, bodySize int) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	if h.Serial == SerialBinary {
		var err error
		if dst, err = h.appendBinary(dst); err != nil {
			return dst[:start], err
		}
	} else {
		dst = h.appendJSON(dst)
	}
	size := len(dst) - start - prefixSize
	if size+bodySize+prefixSize > FrameMax {
		return dst[:start], ErrTooLarge
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(4+size+bodySize))
	binary.BigEndian.PutUint32(dst[start+4:], uint32(h.Serial)<<24|uint32(size))
	return dst, nil
}
