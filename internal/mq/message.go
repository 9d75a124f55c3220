package mq

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Message is one message as the commit log holds it (MessageExt in the Java original). The log's form, big-endian; hosts are 8 bytes for
// IPv4 and 20 for IPv6, the positions are those with two IPv4 hosts:
//
//	offset size field
//	     0    4 total size
//	     4    4 magic      0xDAA320A7 (v1); 0xDAA320AB (v2): the topic is longer than 127 bytes
//	     8    4 body CRC   CRC-32 (IEEE) of the body, sign bit cleared
//	    12    4 queue id
//	    16    4 flag
//	    20    8 queue offset      \ rewritten when the message gets its place in the log
//	    28    8 physical offset   /
//	    36    4 sysFlag
//	    40    8 born time, ms
//	    48    8 born host: IP, port as int32
//	    56    8 store time, ms
//	    64    8 store host
//	    72    4 reconsume times
//	    76    8 prepared transaction offset
//	    84    4 body length, then the body
//	          1 topic length (2 in v2), then the topic
//	          2 properties length, then the properties (see PropAll)
type Message struct {
	Topic          string
	QueueID        int32
	Flag           int32 // the producer's own, opaque
	QueueOffset    int64 // counts the messages of the queue
	PhysicalOffset int64 // byte position in the commit log
	SysFlag        int32
	BornTime       int64 // ms since 1970, as StoreTime
	BornHost       netip.AddrPort
	StoreTime      int64
	StoreHost      netip.AddrPort
	ReconsumeTimes int32
	PreparedOffset int64  // of a committed transaction: the physical offset of its half message
	BodyCRC        uint32 // as stored; AppendStored computes it
	Body           []byte
	Properties     string
}

// The fields that are rewritten in the stored form, and the queue id; they lie before the hosts, whose size varies.
const (
	OffsetQueueID        = 12
	OffsetQueueOffset    = 20
	OffsetPhysicalOffset = 28
	OffsetSysFlag        = 36
)

const (
	magicV1 = 0xDAA320A7
	magicV2 = 0xDAA320AB

	fixedSize = 84 - 16 + 4 + 1 + 2 // all fields of fixed length, without hosts, v1
)

// Bits of Message.SysFlag.
const (
	SysCompressed  int32 = 1 << 0
	SysMultiTag    int32 = 1 << 1
	SysTransaction int32 = 3 << 2 // the transaction type is one of the four below
	SysNotTrans    int32 = 0
	SysPrepared    int32 = 1 << 2
	SysCommit      int32 = 2 << 2
	SysRollback    int32 = 3 << 2
	SysBornHostV6  int32 = 1 << 4
	SysStoreHostV6 int32 = 1 << 5
	SysNeedUnwrap  int32 = 1 << 6
	SysInnerBatch  int32 = 1 << 7
)

// Limits of the stored form.
const (
	TopicMax      = 255 // bytes; the original takes 127 from producers, more only behind %RETRY%
	PropertiesMax = math.MaxInt16
)

// ErrMessage: the bytes are no message in stored form.
var ErrMessage = errors.New("not a message")

// StoredSize is the length of the stored form.
func (m *Message) StoredSize() int {
	n := fixedSize + hostSize(m.BornHost) + hostSize(m.StoreHost) + len(m.Body) + len(m.Topic) + len(m.Properties)
	if len(m.Topic) > math.MaxInt8 {
		n++
	}
	return n
}

func hostSize(h netip.AddrPort) int {
	if isV6(h) {
		return 20
	}
	return 8
}

func isV6(h netip.AddrPort) bool { return h.Addr().Is6() && !h.Addr().Is4In6() }

// AppendStored appends the stored form. The bits of SysFlag that tell the size of the hosts, and the CRC, follow from the other fields.
func AppendStored(dst []byte, m *Message) ([]byte, error) {
	switch {
	case len(m.Topic) > TopicMax:
		return dst, fmt.Errorf("topic of %d bytes, at most %d", len(m.Topic), TopicMax)
	case len(m.Properties) > PropertiesMax:
		return dst, fmt.Errorf("properties of %d bytes, at most %d", len(m.Properties), PropertiesMax)
	case len(m.Body) > math.MaxInt32-PropertiesMax-1024:
		return dst, fmt.Errorf("body of %d bytes", len(m.Body))
	}
	magic := uint32(magicV1)
	if len(m.Topic) > math.MaxInt8 {
		magic = magicV2
	}
	flag := m.SysFlag &^ (SysBornHostV6 | SysStoreHostV6)
	if isV6(m.BornHost) {
		flag |= SysBornHostV6
	}
	if isV6(m.StoreHost) {
		flag |= SysStoreHostV6
	}
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(m.StoredSize()))
	dst = be.AppendUint32(dst, magic)
	dst = be.AppendUint32(dst, uint32(BodyCRC(m.Body)))
	dst = be.AppendUint32(dst, uint32(m.QueueID))
	dst = be.AppendUint32(dst, uint32(m.Flag))
	dst = be.AppendUint64(dst, uint64(m.QueueOffset))
	dst = be.AppendUint64(dst, uint64(m.PhysicalOffset))
	dst = be.AppendUint32(dst, uint32(flag))
	dst = be.AppendUint64(dst, uint64(m.BornTime))
	dst = appendHost(dst, m.BornHost)
	dst = be.AppendUint64(dst, uint64(m.StoreTime))
	dst = appendHost(dst, m.StoreHost)
	dst = be.AppendUint32(dst, uint32(m.ReconsumeTimes))
	dst = be.AppendUint64(dst, uint64(m.PreparedOffset))
	dst = be.AppendUint32(dst, uint32(len(m.Body)))
	dst = append(dst, m.Body...)
	if magic == magicV2 {
		dst = be.AppendUint16(dst, uint16(len(m.Topic)))
	} else {
		dst = append(dst, byte(len(m.Topic)))
	}
	dst = append(dst, m.Topic...)
	dst = be.AppendUint16(dst, uint16(len(m.Properties)))
	return append(dst, m.Properties...), nil
}

// appendHost writes address and port; no address is 0.0.0.0.
func appendHost(dst []byte, h netip.AddrPort) []byte {
	if a := h.Addr(); isV6(h) {
		b := a.As16()
		dst = append(dst, b[:]...)
	} else if a.IsValid() {
		b := a.Unmap().As4()
		dst = append(dst, b[:]...)
	} else {
		dst = append(dst, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(h.Port()))
}

// ParseStored reads the message at the start of b, which may go on behind it, and gives its length. It checks that the fields fit together, not
// the CRC: the log's entry around it has checksums of its own.
//
// Nothing is copied: Body, Topic and Properties are b's own memory, which must not be written to as long as they are used. What is kept
// for long should be cloned, or it keeps all of b alive.
func ParseStored(b []byte) (Message, int, error) {
	var m Message
	if len(b) < fixedSize+16 {
		return m, 0, fmt.Errorf("%w: %d bytes", ErrMessage, len(b))
	}
	be := binary.BigEndian
	size, magic := int(be.Uint32(b)), be.Uint32(b[4:])
	if magic != magicV1 && magic != magicV2 {
		return m, 0, fmt.Errorf("%w: magic %#x", ErrMessage, magic)
	}
	if size < fixedSize+16 || size > len(b) {
		return m, 0, fmt.Errorf("%w: size %d in %d bytes", ErrMessage, int32(size), len(b))
	}
	b = b[:size:size]
	m.BodyCRC = be.Uint32(b[8:])
	m.QueueID = int32(be.Uint32(b[OffsetQueueID:]))
	m.Flag = int32(be.Uint32(b[16:]))
	m.QueueOffset = int64(be.Uint64(b[OffsetQueueOffset:]))
	m.PhysicalOffset = int64(be.Uint64(b[OffsetPhysicalOffset:]))
	m.SysFlag = int32(be.Uint32(b[OffsetSysFlag:]))
	born, store := 8, 8
	if m.SysFlag&SysBornHostV6 != 0 {
		born = 20
	}
	if m.SysFlag&SysStoreHostV6 != 0 {
		store = 20
	}
	if size < fixedSize+born+store {
		return m, 0, fmt.Errorf("%w: size %d", ErrMessage, size)
	}
	m.BornTime = int64(be.Uint64(b[40:]))
	rest := b[48:]
	m.BornHost, rest = host(rest[:born]), rest[born:]
	m.StoreTime, rest = int64(be.Uint64(rest)), rest[8:]
	m.StoreHost, rest = host(rest[:store]), rest[store:]
	m.ReconsumeTimes, rest = int32(be.Uint32(rest)), rest[4:]
	m.PreparedOffset, rest = int64(be.Uint64(rest)), rest[8:]

	n := int(int32(be.Uint32(rest)))
	rest = rest[4:]
	if n < 0 || n > len(rest)-3 {
		return m, 0, fmt.Errorf("%w: body of %d bytes in a message of %d", ErrMessage, n, size)
	}
	m.Body, rest = rest[:n:n], rest[n:]
	if magic == magicV2 {
		n, rest = int(be.Uint16(rest)), rest[2:]
	} else {
		n, rest = int(rest[0]), rest[1:]
	}
	if n > len(rest)-2 {
		return m, 0, fmt.Errorf("%w: topic of %d bytes", ErrMessage, n)
	}
	m.Topic, rest = shared(rest[:n]), rest[n:]
	n, rest = int(be.Uint16(rest)), rest[2:]
	if n != len(rest) || n > PropertiesMax {
		return m, 0, fmt.Errorf("%w: properties of %d bytes where %d are left", ErrMessage, n, len(rest))
	}
	m.Properties = shared(rest)
	return m, size, nil
}

func host(b []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(b[:len(b)-4])
	return netip.AddrPortFrom(a, uint16(binary.BigEndian.Uint32(b[len(b)-4:])))
}

// shared gives b as a string without a copy.
func shared(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// SetStored rewrites queue offset and physical offset of a stored form.
func SetStored(stored []byte, queueOffset, physicalOffset int64) {
	binary.BigEndian.PutUint64(stored[OffsetQueueOffset:], uint64(queueOffset))
	binary.BigEndian.PutUint64(stored[OffsetPhysicalOffset:], uint64(physicalOffset))
}

// TransactionType is one of SysNotTrans, SysPrepared, SysCommit and SysRollback.
func (m *Message) TransactionType() int32 { return m.SysFlag & SysTransaction }

// InQueue tells whether the message takes a place in its queue: prepared and rolled back ones do not.
func (m *Message) InQueue() bool {
	t := m.TransactionType()
	return t == SysNotTrans || t == SysCommit
}

// MsgID is the id that the broker gave the message.
func (m *Message) MsgID() string { return OffsetMsgID(m.StoreHost, m.PhysicalOffset) }

// OffsetMsgID gives the id of the message at a physical offset: store host and offset in hexadecimal (createMessageId in the original).
func OffsetMsgID(host netip.AddrPort, offset int64) string {
	const digits = "0123456789ABCDEF"
	var b [28]byte
	var id [2 * len(b)]byte
	p := binary.BigEndian.AppendUint64(appendHost(b[:0], host), uint64(offset))
	for i, c := range p {
		id[2*i], id[2*i+1] = digits[c>>4], digits[c&15]
	}
	return string(id[:2*len(p)])
}

// ParseMsgID takes an id of OffsetMsgID apart.
func ParseMsgID(id string) (netip.AddrPort, int64, error) {
	if len(id) != 32 && len(id) != 56 {
		return netip.AddrPort{}, 0, fmt.Errorf("message id %q: %d characters, want 32 or 56", id, len(id))
	}
	b, err := hex.DecodeString(id)
	if err != nil {
		return netip.AddrPort{}, 0, fmt.Errorf("message id %q: %w", id, err)
	}
	n := len(b) - 8
	return host(b[:n]), int64(binary.BigEndian.Uint64(b[n:])), nil
}

// JavaHash is String.hashCode of the Java library.
func JavaHash(s string) int32 {
	var h int32
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return javaHash(h, s[i:])
		}
		h = 31*h + int32(s[i])
	}
	return h
}

func javaHash(h int32, s string) int32 {
	for _, r := range s {
		if a, b := utf16.EncodeRune(r); a != utf8.RuneError {
			h = 31*(31*h+a) + b
		} else {
			h = 31*h + r
		}
	}
	return h
}

// TagsCode is what a consume queue keeps of a message's tag; 0 without one.
func TagsCode(tags string) int64 { return int64(JavaHash(tags)) }

// KeyHash is what the key index keeps of a key (indexKeyHashMethod in the original).
func KeyHash(key string) int32 {
	h := JavaHash(key)
	switch {
	case h == math.MinInt32:
		return 0
	case h < 0:
		return -h
	}
	return h
}

// BatchItem is one message of a client's batch. The other fields of its Message are those of the request.
type BatchItem struct {
	Flag       int32
	Body       []byte
	Properties string
}

// SplitBatch takes the body of a batch request apart; Body and Properties are b's own memory. For each message:
//
//	int32 size of all · int32 magic, ignored · int32 CRC, ignored · int32 flag · int32 body length, body · int16 properties length, properties
func SplitBatch(b []byte) ([]BatchItem, error) {
	const head = 22
	var items []BatchItem
	for len(b) > 0 {
		if len(b) < head {
			return nil, fmt.Errorf("batch: message %d: %d bytes are left", len(items), len(b))
		}
		size := int(int32(binary.BigEndian.Uint32(b)))
		if size < head || size > len(b) {
			return nil, fmt.Errorf("batch: message %d: size %d, %d bytes are left", len(items), size, len(b))
		}
		n := int(int32(binary.BigEndian.Uint32(b[16:])))
		if n < 0 || n > size-head {
			return nil, fmt.Errorf("batch: message %d: body of %d bytes in %d", len(items), n, size)
		}
		props := b[20+n : size : size]
		if k := int(int16(binary.BigEndian.Uint16(props))); k != len(props)-2 {
			return nil, fmt.Errorf("batch: message %d: properties of %d bytes where %d are left", len(items), k, len(props)-2)
		}
		items = append(items, BatchItem{Flag: int32(binary.BigEndian.Uint32(b[12:])), Body: b[20 : 20+n : 20+n], Properties: shared(props[2:])})
		b = b[size:]
	}
	return items, nil
}

// AppendBatchItem appends one message as a client's batch has it.
func AppendBatchItem(dst []byte, it BatchItem) []byte {
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(22+len(it.Body)+len(it.Properties)))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = be.AppendUint32(dst, uint32(it.Flag))
	dst = be.AppendUint32(dst, uint32(len(it.Body)))
	dst = append(dst, it.Body...)
	dst = be.AppendUint16(dst, uint16(len(it.Properties)))
	return append(dst, it.Properties...)
}
