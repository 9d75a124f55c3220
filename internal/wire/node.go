package wire

import (
	"encoding/json"
	"fmt"

	"dledger/internal/raft"
)

// Product is how our nodes name themselves in HELLO.
const Product = "dledger-go"

// Hello asks any node who it is, and tells who asks: CodeHello, JSON. A node of the original does not know the request.
type Hello struct {
	Group    string  `json:"group"`
	RemoteID raft.ID `json:"remoteId,omitempty"`
	LocalID  raft.ID `json:"localId,omitempty"`
	Node
}

// HelloResponse answers HELLO. With a Code other than ResultOK only the Base fields and Product count.
type HelloResponse struct {
	Code  Result  `json:"code"`
	Group string  `json:"group,omitempty"`
	ID    raft.ID `json:"id,omitempty"`
	Past  bool    `json:"past,omitempty"` // it holds entries, or has been in a term: the group has a past
	Node
}

// Node is what two nodes must know of each other before they exchange entries.
type Node struct {
	Product      string `json:"product,omitempty"`
	Version      string `json:"version,omitempty"`
	Compat       string `json:"compat,omitempty"` // the setting: go, 0.4 or 0.3
	DataFileSize int64  `json:"dataFileSize,omitempty"`
}

// StatusRequest asks any node for its state: CodeStatus, JSON.
type StatusRequest struct {
	Group    string  `json:"group"`
	RemoteID raft.ID `json:"remoteId,omitempty"`
}

// StatusResponse answers STATUS. Indexes are -1 where there is none.
type StatusResponse struct {
	Code     Result             `json:"code"`
	Group    string             `json:"group"`
	ID       raft.ID            `json:"id"`
	Role     string             `json:"role"`
	Term     raft.Term          `json:"term"`
	LeaderID raft.ID            `json:"leaderId,omitempty"`
	First    raft.Index         `json:"firstIndex"`
	Last     raft.Index         `json:"lastIndex"`
	Durable  raft.Index         `json:"durableIndex"`
	Commit   raft.Index         `json:"commitIndex"`
	Applied  raft.Index         `json:"appliedIndex"`
	Pending  int                `json:"pending"` // appends that wait for their acknowledgement
	UptimeMs int64              `json:"uptimeMs"`
	Peers    map[string]string  `json:"peers,omitempty"`    // id → "host:port"
	Progress []Progress         `json:"progress,omitempty"` // on a leader: one for each other member
	Refused  map[raft.ID]string `json:"refused,omitempty"`  // whom this node takes for no member of its group, and why
	Error    string             `json:"error,omitempty"`    // why the replica has stopped
	Abstains bool               `json:"abstains,omitempty"` // it does not vote until it has caught up
	Node
	Durability string `json:"durability,omitempty"`

	DiskFull   bool     `json:"diskFull,omitempty"` // it takes no more entries
	Damaged    []Damage `json:"damaged,omitempty"`
	Repaired   int64    `json:"repaired,omitempty"`   // entries, since the start
	ScrubDone  int64    `json:"scrubDone,omitempty"`  // bytes, of the search for damage that runs
	ScrubTotal int64    `json:"scrubTotal,omitempty"` // 0 = none runs
	ScrubbedMs int64    `json:"scrubbedMs,omitempty"` // end of the last full one, in milliseconds since 1970; 0 = never
}

// Damage is a stretch of committed entries that are damaged on a node's disk.
type Damage struct {
	First raft.Index `json:"firstIndex"`
	Last  raft.Index `json:"lastIndex"`
	Bytes int64      `json:"bytes"`
}

// Progress is what a leader knows of one follower.
type Progress struct {
	ID      raft.ID    `json:"id"`
	State   string     `json:"state"`
	Match   raft.Index `json:"matchIndex"`
	IdleMs  int64      `json:"idleMs"` // since its last answer; -1 = none yet
	Kind    string     `json:"kind,omitempty"`
	Refused string     `json:"refused,omitempty"` // why Kind is refused
}

// EncodeJSON writes one of this file's structs.
func EncodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("wire: %T cannot be written as JSON: %v", v, err)) // they hold nothing that can fail
	}
	return b
}

// DecodeJSON reads a request of this file's structs.
func DecodeJSON(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}

// DecodeJSONAnswer reads an answer of this file's structs that came with headerCode.
func DecodeJSONAnswer(headerCode int32, b []byte, v any) error {
	if err := headerError(headerCode, b); err != nil {
		return err
	}
	return DecodeJSON(b, v)
}
