package namesrv

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"sync"

	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// orderNamespace holds the order configuration of topics: topic → "broker-a:4;broker-b:4".
const orderNamespace = "ORDER_TOPIC_CONFIG"

// Bounds of the key-value configuration, which anyone may write to.
const (
	kvKeysMax  = 100_000
	kvBytesMax = 8 << 20 // names and values together
)

// kvConfig is the key-value configuration (KVConfigManager in the Java original).
//
//  1. What a request was told to be stored is in the file, durably. One that got an error has changed nothing, unless the error says that the change is made and that only a
//     crash of the machine may undo it.
//  2. File and table hold the same. The file is always a whole one: it is written beside the old one and renamed.
type kvConfig struct {
	fs   vfs.FS
	file string // "" = in memory only

	writing sync.Mutex // one change at a time, held over I/O; readers do not take it
	unsure  bool       // the last change may not outlive a crash of the machine; writing

	mu    sync.RWMutex
	table map[string]map[string]string // namespace → key → value; inner maps are replaced, never changed
	keys  int
	bytes int
}

// kvFile is the form of kvConfig.json (KVConfigSerializeWrapper).
type kvFile struct {
	Table map[string]map[string]string `json:"configTable"`
}

func openKV(disk vfs.FS, file string) (*kvConfig, error) {
	kv := &kvConfig{fs: disk, file: file, table: map[string]map[string]string{}}
	if file == "" {
		return kv, nil
	}
	b, err := vfs.ReadFile(disk, file)
	if errors.Is(err, fs.ErrNotExist) {
		return kv, nil
	}
	if err != nil {
		return nil, fmt.Errorf("key-value configuration: %w", err)
	}
	var f kvFile
	if err := mq.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("key-value configuration %s: %w", file, err)
	}
	for namespace, table := range f.Table {
		kv.table[namespace] = table
		kv.keys += len(table)
		for k, v := range table {
			kv.bytes += len(namespace) + len(k) + len(v)
		}
	}
	return kv, nil
}

func (kv *kvConfig) get(namespace, key string) (string, bool) {
	kv.mu.RLock()
	defer kv.mu.RUnlock()
	v, ok := kv.table[namespace][key]
	return v, ok
}

// list gives the table of a namespace, which must not be written to; nil when there is none.
func (kv *kvConfig) list(namespace string) map[string]string {
	kv.mu.RLock()
	defer kv.mu.RUnlock()
	return kv.table[namespace]
}

// change sets a key, or deletes it when value is nil.
func (kv *kvConfig) change(namespace, key string, value *string) error {
	kv.writing.Lock()
	defer kv.writing.Unlock()
	kv.mu.RLock()
	old, had := kv.table[namespace][key]
	inner := maps.Clone(kv.table[namespace])
	next := maps.Clone(kv.table)
	keys, bytes := kv.keys, kv.bytes
	kv.mu.RUnlock()
	if value == nil && !had || value != nil && had && old == *value {
		return kv.surely()
	}
	if had {
		keys--
		bytes -= len(namespace) + len(key) + len(old)
		delete(inner, key)
	}
	if value != nil {
		keys++
		bytes += len(namespace) + len(key) + len(*value)
		if keys > kvKeysMax || bytes > kvBytesMax {
			return fmt.Errorf("the key-value configuration is full: at most %d keys and %d bytes", kvKeysMax, kvBytesMax)
		}
		if inner == nil {
			inner = map[string]string{}
		}
		inner[key] = *value
	}
	if next[namespace] = inner; len(inner) == 0 {
		delete(next, namespace)
	}
	if kv.file != "" {
		if err := kv.write(mq.Marshal(kvFile{next})); err != nil {
			return fmt.Errorf("key-value configuration: %w", err)
		}
		kv.unsure = true
	}
	kv.mu.Lock()
	kv.table, kv.keys, kv.bytes = next, keys, bytes
	kv.mu.Unlock()
	return kv.surely()
}

// write makes content that of the file; surely makes that last. An error means that the file is as it was.
func (kv *kvConfig) write(content []byte) error {
	if err := kv.fs.MkdirAll(filepath.Dir(kv.file)); err != nil {
		return err
	}
	return vfs.WriteAside(kv.fs, kv.file, content, true)
}

// surely makes the last change outlive a crash of the machine, if it may not; writing is held.
func (kv *kvConfig) surely() error {
	if !kv.unsure {
		return nil
	}
	if err := kv.fs.SyncDir(filepath.Dir(kv.file)); err != nil {
		return fmt.Errorf("key-value configuration: the change is made, but a crash of the machine may undo it: %w", err)
	}
	kv.unsure = false
	return nil
}

// PUT_KV_CONFIG (100). Fields: namespace!, key!, value!. mqadmin updateKvConfig, updateOrderConf.
func (s *Server) putKV(r *request) (reply, error) {
	namespace, key, value := r.Str("namespace"), r.Str("key"), r.Str("value")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	if err := s.kv.change(namespace, key, &value); err != nil {
		return reply{}, err
	}
	s.log.Info("key-value configuration changed", "namespace", namespace, "key", key)
	return reply{}, nil
}

// GET_KV_CONFIG (101). Fields: namespace!, key!. Answer: field value; QueryNotFound when there is none.
func (s *Server) getKV(r *request) (reply, error) {
	namespace, key := r.Str("namespace"), r.Str("key")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	v, ok := s.kv.get(namespace, key)
	if !ok {
		return reply{}, refuse(mq.QueryNotFound, "no config item: namespace %.80q, key %.80q", namespace, key)
	}
	return reply{ext: map[string]string{"value": v}}, nil
}

// DELETE_KV_CONFIG (102). Fields: namespace!, key!. Deleting what is not there succeeds.
func (s *Server) deleteKV(r *request) (reply, error) {
	namespace, key := r.Str("namespace"), r.Str("key")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	if err := s.kv.change(namespace, key, nil); err != nil {
		return reply{}, err
	}
	s.log.Info("key-value configuration changed", "namespace", namespace, "deleted", key)
	return reply{}, nil
}

// GET_KVLIST_BY_NAMESPACE (219). Field: namespace!. Answer: KVTable; QueryNotFound when there is nothing in it.
func (s *Server) listKV(r *request) (reply, error) {
	namespace := r.Str("namespace")
	if err := r.Err(); err != nil {
		return reply{}, err
	}
	table := s.kv.list(namespace)
	if len(table) == 0 {
		return reply{}, refuse(mq.QueryNotFound, "no config item: namespace %.80q", namespace)
	}
	return reply{body: mq.Marshal(mq.KVTable{Table: table})}, nil
}
