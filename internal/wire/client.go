package wire

import (
	"fmt"
	"maps"
	"slices"

	"dledger/internal/raft"
	"dledger/internal/remoting"
)

// The requests of clients, alike in all releases of the original. Clients leave LocalID, LeaderID and Term unset (-1).
// Decode methods may overwrite the bytes they are given, and the result aliases them.

// AppendRequest asks the leader to append one entry: APPEND, 50001. The original's batch form cannot be sent over the network and
// is not read.
type AppendRequest struct {
	Base
	Body []byte // nil in a request without one, which the original answers with an error
}

// AppendResponse answers APPEND.
type AppendResponse struct {
	Base
	Index raft.Index // -1 when nothing was appended
	Pos   int64      // byte position of the entry in the data files; -1 likewise
}

// GetRequest asks for one entry: GET, 50002. The original's maxSize and indexList are never used by it; they are not kept.
type GetRequest struct {
	Base
	BeginIndex raft.Index
}

// GetResponse answers GET with one entry, or none.
type GetResponse struct {
	Base
	Entries raft.Payload // in the file encoding
}

// MetadataRequest asks any node for leader and addresses: METADATA, 50000.
type MetadataRequest struct{ Base }

// MetadataResponse answers METADATA. The original leaves Term at -1.
type MetadataResponse struct {
	Base
	Peers map[string]string // id → "host:port"
}

// ClientBase gives the base of a client's request to the member remote ("" = any, where the receiver allows it).
func ClientBase(group string, remote raft.ID) Base {
	return Base{Group: group, RemoteID: remote, Code: ResultOK, Term: -1}
}

// DecodeBase reads the base fields alone. It leaves b as it is, so that the rest can be read later.
func DecodeBase(b []byte) (Base, error) {
	base := Base{Code: ResultOK, Term: -1}
	s := scanner{b: b}
	s.object(&base, nil)
	return base, s.err
}

// Decode reads the request.
func (r *AppendRequest) Decode(b []byte) error {
	var f fields
	err := f.parse(b)
	r.Base, r.Body = f.Base, f.body
	if err == nil && f.body == nil {
		err = fmt.Errorf("%w: append without a body", ErrArgument)
	}
	return err
}

// AppendTo appends the request to dst.
func (r *AppendRequest) AppendTo(dst []byte) []byte {
	w := begin(grow(dst, 192+len(r.Body)/3*4))
	w.bytes(`"body":`, r.Body)
	w.int(`"code":`, int64(r.Code))
	w.rest(&r.Base)
	return w.end()
}

// Decode reads the answer that came with headerCode.
func (r *AppendResponse) Decode(headerCode int32, b []byte) error {
	f, err := decodeResponse(headerCode, b)
	r.Base, r.Index, r.Pos = f.Base, raft.Index(f.index), f.pos
	return err
}

func decodeResponse(headerCode int32, b []byte) (f fields, err error) {
	if err = headerError(headerCode, b); err == nil {
		err = f.parse(b)
	}
	return f, err
}

// AppendTo appends the answer to dst.
func (r *AppendResponse) AppendTo(dst []byte) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(r.Code))
	w.text(`"group":`, r.Group)
	w.int(`"index":`, int64(r.Index))
	w.text(`"leaderId":`, string(r.LeaderID))
	w.text(`"localId":`, string(r.LocalID))
	w.int(`"pos":`, r.Pos)
	w.text(`"remoteId":`, string(r.RemoteID))
	w.int(`"term":`, int64(r.Term))
	return w.end()
}

// Decode reads the request.
func (r *GetRequest) Decode(b []byte) error {
	f := fields{}
	err := f.parse(b)
	r.Base, r.BeginIndex = f.Base, raft.Index(f.beginIndex)
	return err
}

// AppendTo appends the request to dst.
func (r *GetRequest) AppendTo(dst []byte) []byte {
	w := begin(dst)
	w.int(`"beginIndex":`, int64(r.BeginIndex))
	w.int(`"code":`, int64(r.Code))
	w.text(`"group":`, r.Group)
	w.text(`"leaderId":`, string(r.LeaderID))
	w.text(`"localId":`, string(r.LocalID))
	w.int(`"maxSize":`, 0)
	w.text(`"remoteId":`, string(r.RemoteID))
	w.int(`"term":`, int64(r.Term))
	return w.end()
}

// Decode reads the answer that came with headerCode.
func (r *GetResponse) Decode(headerCode int32, b []byte) error {
	f, err := decodeResponse(headerCode, b)
	if err == nil && f.list.bad != nil {
		err = fmt.Errorf("%w: %w", ErrMalformed, f.list.bad)
	}
	r.Base, r.Entries = f.Base, f.list.payload()
	return err
}

// AppendTo appends the answer to dst. An error means that Entries are no whole entries.
func (r *GetResponse) AppendTo(dst []byte) ([]byte, error) {
	w := begin(grow(dst, 256+jsonSize(r.Entries, 1)))
	w.int(`"code":`, int64(r.Code))
	w.b = append(w.b, `"entries":[`...)
	if err := w.entries(r.Entries); err != nil {
		return dst, err
	}
	w.b = append(w.b, ']', ',')
	w.rest(&r.Base)
	return w.end(), nil
}

func (r *GetResponse) appendEmpty(dst []byte) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(r.Code))
	w.b = append(w.b, `"entries":[],`...)
	w.rest(&r.Base)
	return w.end()
}

// Decode reads the request.
func (r *MetadataRequest) Decode(b []byte) (err error) {
	r.Base, err = DecodeBase(b)
	return err
}

// AppendTo appends the request to dst.
func (r *MetadataRequest) AppendTo(dst []byte) []byte { return r.Base.appendTo(dst) }

// Decode reads the answer that came with headerCode.
func (r *MetadataResponse) Decode(headerCode int32, b []byte) error {
	f, err := decodeResponse(headerCode, b)
	r.Base, r.Peers = f.Base, f.peers
	return err
}

// AppendTo appends the answer to dst.
func (r *MetadataResponse) AppendTo(dst []byte) []byte {
	w := begin(dst)
	w.int(`"code":`, int64(r.Code))
	w.text(`"group":`, r.Group)
	w.text(`"leaderId":`, string(r.LeaderID))
	w.text(`"localId":`, string(r.LocalID))
	if r.Peers != nil {
		w.b = append(w.b, `"peers":{`...)
		for i, id := range slices.Sorted(maps.Keys(r.Peers)) {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.b = append(remoting.AppendString(w.b, id), ':')
			w.b = remoting.AppendString(w.b, r.Peers[id])
		}
		w.b = append(w.b, '}', ',')
	}
	w.text(`"remoteId":`, string(r.RemoteID))
	w.int(`"term":`, int64(r.Term))
	return w.end()
}

// TransferRequest gives the message of a client that asks the leader to hand over to the member transferee; term is the leader's,
// which an append's answer or a status shows.
func TransferRequest(leader, transferee raft.ID, term raft.Term) raft.Message {
	return raft.Message{Type: raft.MsgTransfer, To: leader, Term: term, Transferer: leader, Transferee: transferee}
}
