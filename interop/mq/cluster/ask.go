package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// Answer is what a server said.
type Answer struct {
	Code   int
	Remark string
	Fields map[string]string `json:"extFields"`
	Body   []byte            `json:"-"`
}

// Ask puts one request to the server at addr over a connection of its own.
//
//	offset  size  field
//	     0     4  length of what follows
//	     4     1  0: the header is JSON
//	     5     3  length of the header
//	     8        header, body
func Ask(ctx context.Context, addr string, code int, fields map[string]string, body []byte) (Answer, error) {
	fail := func(err error) (Answer, error) {
		return Answer{}, fmt.Errorf("ask %s, code %d: %w", addr, code, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fail(err)
	}
	defer conn.Close() // it has done its work, or failed
	end, _ := ctx.Deadline()
	if err := conn.SetDeadline(end); err != nil {
		return fail(err)
	}
	if fields == nil {
		fields = map[string]string{}
	}
	header, err := json.Marshal(map[string]any{"code": code, "language": "GO", "version": 479, "opaque": 1, "flag": 0, "extFields": fields})
	if err != nil {
		return fail(err)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	frame = append(append(frame, header...), body...)
	if _, err := conn.Write(frame); err != nil {
		return fail(err)
	}
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fail(err)
	}
	length, in := int(binary.BigEndian.Uint32(head[:])), int(binary.BigEndian.Uint32(head[4:])&0xFFFFFF)
	if length > 16<<20 || in > length-4 {
		return fail(fmt.Errorf("answer of %d bytes with a header of %d", length, in))
	}
	rest := make([]byte, length-4)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return fail(err)
	}
	a := Answer{Body: rest[in:]}
	if err := json.Unmarshal(rest[:in], &a); err != nil {
		return fail(err)
	}
	return a, nil
}
