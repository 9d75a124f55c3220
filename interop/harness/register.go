package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Registers are values over the log: a write appends an entry, a read follows the log to an end that the leader has confirmed. What clients did and
// saw is judged by porcupine. Our leaders confirm an end, the originals do not: a read of theirs may be stale.
type Registers struct {
	begun time.Time

	mu    sync.Mutex
	ops   []porcupine.Operation
	acked map[int64][]byte // index → body
	spans map[int64]span   // index → when it was written
	seq   int64
}

type span struct{ call, done int64 }

// NewRegisters is an empty history.
func NewRegisters() *Registers {
	return &Registers{begun: time.Now(), acked: map[int64][]byte{}, spans: map[int64]span{}}
}

// registerOp is the input of an operation: a write of value, which is above 0, or a read.
type registerOp struct {
	key   string
	write bool
	value int64
}

// Registers that were never written hold 0. An operation whose outcome is unknown may take effect at any later time, or never: it ends after all others.
var registerModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(registerOp).key
			parts[key] = append(parts[key], op)
		}
		var all [][]porcupine.Operation
		for _, p := range parts {
			all = append(all, p)
		}
		return all
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		if op := input.(registerOp); op.write {
			return true, op.value
		}
		return output.(int64) == state.(int64), state
	},
	DescribeOperation: func(input, output any) string {
		op := input.(registerOp)
		if op.write {
			return fmt.Sprintf("%s := %d", op.key, op.value)
		}
		return fmt.Sprintf("%s = %v", op.key, output)
	},
}

// Acked are the acknowledged writes: what must be in the log at which index.
func (r *Registers) Acked() map[int64][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked
}

// Len is the number of operations so far.
func (r *Registers) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

// Reads is the number of reads so far that gave a value.
func (r *Registers) Reads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, op := range r.ops {
		if !op.Input.(registerOp).write {
			n++
		}
	}
	return n
}

// Check judges the history: nil if it is that of registers that take each operation at one moment between its call and its return.
func (r *Registers) Check(limit time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch porcupine.CheckOperationsTimeout(registerModel, r.ops, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("no verdict on %d operations within %v", len(r.ops), limit)
	}
	return fmt.Errorf("the history of %d operations is not linearizable", len(r.ops))
}

// Conclude adds what a settled log says in the end of each register, as if somebody had read it: so writes are judged also where nobody reads. It fails
// where a write that was acknowledged before another began lies behind it.
func (r *Registers) Conclude(l *Log) error {
	end := RegisterClient{values: map[string]int64{}}
	for _, e := range l.Entries {
		end.apply(e.Body)
	}
	now := r.now()
	for key, v := range end.values {
		r.add(-1, now, registerOp{key: key}, v, now+1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	latest := int64(-1)
	for _, index := range slices.Sorted(maps.Keys(r.spans)) {
		s := r.spans[index]
		if latest > s.done {
			return fmt.Errorf("entry %d was acknowledged before one with a lower index was sent", index)
		}
		latest = max(latest, s.call)
	}
	return nil
}

func (r *Registers) now() int64 { return int64(time.Since(r.begun)) }

func (r *Registers) add(client int, call int64, op registerOp, output any, done int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: op, Call: call, Output: output, Return: done})
}

// RegisterClient is one client; it does one thing at a time.
type RegisterClient struct {
	r      *Registers
	id     int
	c      *Client
	next   int64            // index of the first entry that is not in values
	values map[string]int64 // what the log says up to there
}

// Client makes the client with this number.
func (r *Registers) Client(id int, c *Client) *RegisterClient {
	return &RegisterClient{r: r, id: id, c: c, values: map[string]int64{}}
}

// Write appends a new value of the register key through node leader. An error leaves the outcome unknown, which the history says too.
func (w *RegisterClient) Write(ctx context.Context, leader, key string) error {
	w.r.mu.Lock()
	w.r.seq++
	value := w.r.seq
	w.r.mu.Unlock()
	op := registerOp{key, true, value}
	body := fmt.Appendf(nil, "register %s %d", key, value)
	call := w.r.now()
	a, err := w.c.AppendTo(ctx, leader, body)
	if err != nil {
		w.r.add(w.id, call, op, nil, int64(1<<62))
		return err
	}
	done := w.r.now()
	w.r.add(w.id, call, op, nil, done)
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.spans[a.Index] = span{call, done}
	if old, twice := w.r.acked[a.Index]; twice {
		return fmt.Errorf("index %d was acknowledged for %q and for %q", a.Index, old, body)
	}
	w.r.acked[a.Index] = body
	return nil
}

const resultIndexOutOfRange = 410

// Read follows the log of node leader to the end it confirms and gives the value there. With an error there was no read.
func (w *RegisterClient) Read(ctx context.Context, leader, key string) (int64, error) {
	call := w.r.now()
	for {
		a, err := w.c.GetFrom(ctx, leader, w.next)
		var code *CodeError
		switch {
		case errors.As(err, &code) && code.Code == resultIndexOutOfRange:
			v := w.values[key]
			w.r.add(w.id, call, registerOp{key: key}, v, w.r.now())
			return v, nil
		case err != nil:
			return 0, err
		case len(a.Entries) != 1:
			return 0, fmt.Errorf("get %d: answer has %d entries", w.next, len(a.Entries))
		}
		w.apply(a.Entries[0].Body)
		w.next++
	}
}

// ReadUnconfirmed takes what node says is committed for all there is: what a register must not do.
func (w *RegisterClient) ReadUnconfirmed(ctx context.Context, node, key string) (int64, error) {
	call := w.r.now()
	for {
		entries, err := w.c.Unconfirmed(ctx, node, w.next)
		if err != nil {
			return 0, err
		}
		if len(entries) == 0 {
			v := w.values[key]
			w.r.add(w.id, call, registerOp{key: key}, v, w.r.now())
			return v, nil
		}
		for _, e := range entries {
			w.apply(e.Body)
		}
		w.next += int64(len(entries))
	}
}

func (w *RegisterClient) apply(body []byte) {
	f := strings.Fields(string(body))
	if len(f) != 3 || f[0] != "register" {
		return // of another client of the log
	}
	if v, err := strconv.ParseInt(f[2], 10, 64); err == nil {
		w.values[f[1]] = v
	}
}
