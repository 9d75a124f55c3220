package mq

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// InflatedMax bounds a compressed registration once it is unpacked. A topic takes some 40 bytes.
const InflatedMax = 64 << 20

// RegisterBody is the body of REGISTER_BROKER (RegisterBrokerBody): all topics of a broker, or the one that has changed.
type RegisterBody struct {
	FilterServers []string         `json:"filterServerList"`
	Config        TopicConfigTable `json:"topicConfigSerializeWrapper"`
}

// BodyCRC is the value of the field bodyCrc32, of the body as sent, and the checksum that a stored message carries of its body: CRC-32 (IEEE), its sign
// bit cleared.
func BodyCRC(body []byte) int32 { return int32(crc32.ChecksumIEEE(body) & math.MaxInt32) }

// EncodeCompressed writes the form that goes with compressed=true; order and topicSysFlag of topics get lost in it. In zlib's form:
//
//	int32 n, n bytes   DataVersion as JSON
//	int32              number of topics, and of each
//	  int32 n, n bytes   name, readQueueNums, writeQueueNums, perm, topicFilterType, attributes as JSON, between blanks
//	int32 n, n bytes   filter servers as JSON
//	int32              number of static-topic mappings: 0. Only readers of V5_0_0 on expect it, others ignore it
func (b *RegisterBody) EncodeCompressed() []byte {
	var plain []byte
	piece := func(p []byte) {
		plain = binary.BigEndian.AppendUint32(plain, uint32(len(p)))
		plain = append(plain, p...)
	}
	piece(Marshal(b.Config.DataVersion))
	plain = binary.BigEndian.AppendUint32(plain, uint32(len(b.Config.Topics)))
	for _, name := range slices.Sorted(maps.Keys(b.Config.Topics)) {
		t := b.Config.Topics[name]
		piece([]byte(t.Compact()))
	}
	piece(Marshal(b.FilterServers))
	plain = binary.BigEndian.AppendUint32(plain, 0)
	var out bytes.Buffer
	w, _ := zlib.NewWriterLevel(&out, zlib.BestCompression)
	w.Write(plain) //nolint:errcheck // a bytes.Buffer takes everything
	w.Close()      //nolint:errcheck
	return out.Bytes()
}

// DecodeRegister reads the body of REGISTER_BROKER from a broker of the given release. No body at all is a broker without topics.
func DecodeRegister(body []byte, compressed bool, version int32) (*RegisterBody, error) {
	b := &RegisterBody{}
	switch {
	case len(body) == 0:
		return b, nil
	case version < VersionRegisterBody:
		return b, Unmarshal(body, &b.Config)
	case !compressed:
		return b, Unmarshal(body, b)
	}
	z, err := zlib.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("compressed registration: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, InflatedMax+1))
	if err != nil {
		return nil, fmt.Errorf("compressed registration: %w", err)
	}
	if len(plain) > InflatedMax {
		return nil, fmt.Errorf("compressed registration: more than %d bytes", InflatedMax)
	}
	c := cutter{rest: plain}
	if err := Unmarshal(c.piece(), &b.Config.DataVersion); err != nil && !c.bad {
		return nil, err
	}
	n := c.number()
	b.Config.Topics = map[string]TopicConfig{}
	for range n {
		text := c.piece()
		if c.bad {
			break
		}
		var t TopicConfig
		if err := t.ParseCompact(string(text)); err != nil {
			return nil, err
		}
		b.Config.Topics[t.TopicName] = t
	}
	if servers := c.piece(); !c.bad {
		if err := Unmarshal(servers, &b.FilterServers); err != nil {
			return nil, err
		}
	}
	if c.bad {
		return nil, errors.New("compressed registration: cut short")
	}
	return b, nil // what follows are mappings of static topics, which nobody asks us for
}

// cutter takes numbers and pieces with a length off the front of a buffer.
type cutter struct {
	rest []byte
	bad  bool
}

func (c *cutter) number() int32 {
	if len(c.rest) < 4 {
		c.bad = true
		return 0
	}
	n := int32(binary.BigEndian.Uint32(c.rest))
	c.rest = c.rest[4:]
	if n < 0 {
		c.bad = true
		return 0
	}
	return n
}

func (c *cutter) piece() []byte {
	n := int(c.number())
	if c.bad || n > len(c.rest) {
		c.bad = true
		return nil
	}
	p := c.rest[:n]
	c.rest = c.rest[n:]
	return p
}

// Compact writes a topic as one line of a compressed registration (TopicConfig.encode).
func (t *TopicConfig) Compact() string {
	return fmt.Sprintf("%s %d %d %d %s %s", t.TopicName, t.ReadQueueNums, t.WriteQueueNums, t.Perm, cmp.Or(t.TopicFilterType, FilterSingleTag), Marshal(t.Attributes))
}

// ParseCompact reads what Compact writes. The attributes are missing in registrations of releases before 5.0.
func (t *TopicConfig) ParseCompact(s string) error {
	parts := strings.SplitN(s, " ", 6)
	if len(parts) < 5 {
		return fmt.Errorf("topic %.80q: not enough words", s)
	}
	*t = TopicConfig{TopicName: parts[0], TopicFilterType: parts[4], Attributes: map[string]string{}}
	for i, to := range []*int32{&t.ReadQueueNums, &t.WriteQueueNums, &t.Perm} {
		n, err := strconv.ParseInt(parts[1+i], 10, 32)
		if err != nil {
			return fmt.Errorf("topic %.80q: %.20q is no number", s, parts[1+i])
		}
		*to = int32(n)
	}
	if len(parts) == 6 && parts[5] != "" {
		if err := Unmarshal([]byte(parts[5]), &t.Attributes); err != nil {
			return fmt.Errorf("topic %.80q: %w", s, err)
		}
	}
	return nil
}
