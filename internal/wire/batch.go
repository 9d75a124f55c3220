package wire

import (
	"encoding/binary"
	"fmt"
	"time"

	"dledger/internal/raft"
)

// Batches of our own clients, big-endian. All strings have a length of 16 bits before them and at most 255 bytes.
//
// Append request (CodeAppendBatch):
//
//	offset size field
//	     0    1 version, 1
//	     1    3 0
//	     4    … group, remote id
//	     …    4 number of bodies, then for each its length (4 bytes) and its bytes
//
// Append answer:
//
//	 0    1 version, 1
//	 1    1 0
//	 2    2 result
//	 4    8 term
//	12    8 first index, -1 = nothing was appended
//	20    4 number of positions
//	24    … leader id, then the positions, 8 bytes each
//
// Get request (CodeGetBatch):
//
//	 0    1 version, 1
//	 1    1 flags: 1 confirmed read
//	 2    2 0
//	 4    8 from index
//	12    4 most bytes, 16 most entries, 20 milliseconds to wait at the end of the log
//	24    … group, remote id
//
// Get answer:
//
//	 0    1 version, 1
//	 1    1 0
//	 2    2 result
//	 4    8 term, 12 commit index, 20 first, 28 last (-1, -1 = no entries)
//	36    … leader id, then the entries as they are on disk
const (
	batchVersion       = 1
	appendBatchFixed   = 4
	appendAnswerFixed  = 24
	getBatchFixed      = 24
	getAnswerFixed     = 36
	flagConfirmed      = 1
	appendBatchMinimum = 4 // bytes that the smallest body takes
)

// AppendBatchRequest asks the leader to append entries, all or none, in this order and without others between them.
type AppendBatchRequest struct {
	Group    string
	RemoteID raft.ID
	Bodies   [][]byte
}

// AppendBatchResponse answers it when the last of the entries is acknowledged.
type AppendBatchResponse struct {
	Code      Result
	LeaderID  raft.ID
	Term      raft.Term
	First     raft.Index // of the first entry; -1 when nothing was appended
	Positions []int64    // of each entry
}

// GetBatchRequest asks for entries from an index on.
type GetBatchRequest struct {
	Group      string
	RemoteID   raft.ID
	From       raft.Index
	BytesMax   int           // 0 = the server's own bound; at least one entry comes in any case
	EntriesMax int           // 0 = no bound
	Confirmed  bool          // only committed entries, read while the leadership was confirmed
	Wait       time.Duration // how long to wait for an entry when From is the end of the log; whole milliseconds
}

// GetBatchResponse answers it.
type GetBatchResponse struct {
	Code        Result
	LeaderID    raft.ID
	Term        raft.Term
	Commit      raft.Index
	First, Last raft.Index   // -1, -1 without entries
	Entries     raft.Payload // in the file encoding
}

// Pieces gives the request; large bodies are not copied.
func (r *AppendBatchRequest) Pieces() [][]byte {
	size := appendBatchFixed + 4 + len(r.Group) + len(r.RemoteID) + 4
	for _, body := range r.Bodies {
		size += 4
		if len(body) <= joinMax {
			size += len(body)
		}
	}
	b := make([]byte, 0, size)
	b = append(b, batchVersion, 0, 0, 0)
	b = appendText(b, r.Group)
	b = appendText(b, string(r.RemoteID))
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Bodies)))
	var pieces [][]byte
	from := 0
	for _, body := range r.Bodies {
		b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
		if len(body) <= joinMax {
			b = append(b, body...)
			continue
		}
		pieces = append(pieces, b[from:], body)
		from = len(b)
	}
	return append(pieces, b[from:])
}

// joinMax is the size up to which a body is copied into the request rather than sent as a piece of its own.
const joinMax = 512

// Decode reads the request; the bodies alias b.
func (r *AppendBatchRequest) Decode(b []byte) error {
	if err := checkBatch("append batch", b, appendBatchFixed); err != nil {
		return err
	}
	c := cutter{b: b[appendBatchFixed:]}
	r.Group = c.sized()
	r.RemoteID = raft.ID(c.sized())
	n := c.uint32()
	if c.short || n > int64(len(c.b))/appendBatchMinimum {
		return fmt.Errorf("%w: append batch cut at %d bytes", ErrMalformed, len(b))
	}
	r.Bodies = make([][]byte, n)
	for i := range r.Bodies {
		body := c.take(c.uint32())
		r.Bodies[i] = body[:len(body):len(body)]
	}
	if !c.done() {
		return fmt.Errorf("%w: append batch of %d bytes does not hold its %d bodies", ErrMalformed, len(b), n)
	}
	if n == 0 {
		return fmt.Errorf("%w: append batch without bodies", ErrArgument)
	}
	return nil
}

// AppendTo appends the answer to dst.
func (r *AppendBatchResponse) AppendTo(b []byte) []byte {
	b = grow(b, appendAnswerFixed+2+len(r.LeaderID)+8*len(r.Positions))
	b = append(b, batchVersion, 0)
	b = append16(b, int(r.Code))
	b = append64(b, int64(r.Term))
	b = append64(b, int64(r.First))
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Positions)))
	b = appendText(b, string(r.LeaderID))
	for _, pos := range r.Positions {
		b = append64(b, pos)
	}
	return b
}

// Decode reads the answer that came with headerCode.
func (r *AppendBatchResponse) Decode(headerCode int32, b []byte) error {
	if err := headerError(headerCode, b); err != nil {
		return err
	}
	if err := checkBatch("append batch answer", b, appendAnswerFixed); err != nil {
		return err
	}
	c := cutter{b: b[appendAnswerFixed:]}
	r.Code, r.Term, r.First = result16(b), raft.Term(get64(b, 4)), raft.Index(get64(b, 12))
	n := int64(binary.BigEndian.Uint32(b[20:]))
	r.LeaderID = raft.ID(c.sized())
	positions := c.take(8 * n)
	if !c.done() {
		return fmt.Errorf("%w: append batch answer with %d bytes", ErrMalformed, len(b))
	}
	r.Positions = make([]int64, n)
	for i := range r.Positions {
		r.Positions[i] = get64(positions, 8*i)
	}
	return nil
}

// AppendTo appends the request to dst.
func (r *GetBatchRequest) AppendTo(b []byte) []byte {
	flags := byte(0)
	if r.Confirmed {
		flags |= flagConfirmed
	}
	b = append(b, batchVersion, flags, 0, 0)
	b = append64(b, int64(r.From))
	b = binary.BigEndian.AppendUint32(b, uint32(r.BytesMax))
	b = binary.BigEndian.AppendUint32(b, uint32(r.EntriesMax))
	b = binary.BigEndian.AppendUint32(b, uint32(r.Wait.Milliseconds()))
	b = appendText(b, r.Group)
	return appendText(b, string(r.RemoteID))
}

// Decode reads the request.
func (r *GetBatchRequest) Decode(b []byte) error {
	if err := checkBatch("get batch", b, getBatchFixed); err != nil {
		return err
	}
	c := cutter{b: b[getBatchFixed:]}
	r.Group = c.sized()
	r.RemoteID = raft.ID(c.sized())
	if !c.done() {
		return fmt.Errorf("%w: get batch with %d bytes", ErrMalformed, len(b))
	}
	r.Confirmed = b[1]&flagConfirmed != 0
	r.From = raft.Index(get64(b, 4))
	r.BytesMax = int(binary.BigEndian.Uint32(b[12:]))
	r.EntriesMax = int(binary.BigEndian.Uint32(b[16:]))
	r.Wait = time.Duration(binary.BigEndian.Uint32(b[20:])) * time.Millisecond
	if r.From < 0 {
		return fmt.Errorf("%w: get from index %d", ErrArgument, r.From)
	}
	return nil
}

// Pieces gives the answer; the entries are not copied.
func (r *GetBatchResponse) Pieces() [][]byte {
	head := r.appendHead(make([]byte, 0, getAnswerFixed+2+len(r.LeaderID)))
	return append(append(make([][]byte, 0, 1+len(r.Entries)), head), r.Entries...)
}

func (r *GetBatchResponse) appendHead(b []byte) []byte {
	b = append(b, batchVersion, 0)
	b = append16(b, int(r.Code))
	b = append64(b, int64(r.Term))
	b = append64(b, int64(r.Commit))
	b = append64(b, int64(r.First))
	b = append64(b, int64(r.Last))
	return appendText(b, string(r.LeaderID))
}

// Decode reads the answer that came with headerCode; the entries alias b. It checks that they are the entries First…Last.
func (r *GetBatchResponse) Decode(headerCode int32, b []byte) error {
	if err := headerError(headerCode, b); err != nil {
		return err
	}
	if err := checkBatch("get batch answer", b, getAnswerFixed); err != nil {
		return err
	}
	c := cutter{b: b[getAnswerFixed:]}
	r.Code, r.Term, r.Commit = result16(b), raft.Term(get64(b, 4)), raft.Index(get64(b, 12))
	r.First, r.Last = raft.Index(get64(b, 20)), raft.Index(get64(b, 28))
	r.LeaderID = raft.ID(c.sized())
	if c.short {
		return fmt.Errorf("%w: get batch answer cut at %d bytes", ErrMalformed, len(b))
	}
	r.Entries = nil
	if len(c.b) > 0 {
		r.Entries = raft.Payload{c.b}
	}
	walk, due := cursor{rest: r.Entries}, r.First
	for {
		h, whole, err := walk.next()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if whole == nil {
			break
		}
		if h.Index != due {
			return fmt.Errorf("%w: entry %d where %d is due", ErrMalformed, h.Index, due)
		}
		due++
	}
	if len(r.Entries) > 0 && due-1 != r.Last || len(r.Entries) == 0 && r.Last >= 0 {
		return fmt.Errorf("%w: entries %d to %d where %d to %d are announced", ErrMalformed, r.First, due-1, r.First, r.Last)
	}
	return nil
}

func checkBatch(what string, b []byte, fixed int) error {
	if len(b) < fixed || b[0] != batchVersion {
		return fmt.Errorf("%w: %s of %d bytes", ErrMalformed, what, len(b))
	}
	return nil
}

// result16 reads a result of 16 bits, which may be -1.
func result16(b []byte) Result { return Result(int16(binary.BigEndian.Uint16(b[2:]))) }

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxString)]
	return append(append16(b, len(s)), s...)
}

// sized reads a string with its length before it.
func (r *cutter) sized() string {
	n := r.take(2)
	if r.short {
		return ""
	}
	return r.text(get16(n, 0))
}

func (r *cutter) uint32() int64 {
	n := r.take(4)
	if r.short {
		return 0
	}
	return int64(binary.BigEndian.Uint32(n))
}
