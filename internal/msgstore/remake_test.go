package msgstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"dledger/internal/mq"
	"dledger/internal/vfs"
)

// indexed fills a store with messages that have keys, in several index files, and gives the bodies by key, in log order. Slots are few, so that chains are long, and no
// power of two, so that no flipped bit of a hash leaves an item in its slot.
func indexed(t *testing.T, n int) (*rig, map[string][]string) {
	t.Helper()
	r := newRig(t, func(c *Config) { c.IndexSlots = 11 })
	r.lead()
	want := map[string][]string{}
	for i := range n {
		k, u := fmt.Sprint("k", i%10), fmt.Sprint("u", i)
		r.put(message("T", int32(i%3), fmt.Sprint(i), mq.PropKeys, k, mq.PropUniqKey, u))
		want[k], want[u] = append(want[k], fmt.Sprint(i)), []string{fmt.Sprint(i)}
		if i%13 == 12 {
			r.save()
		}
	}
	r.save()
	return r, want
}

// save dispatches what is committed and makes a checkpoint.
func (r *rig) save() {
	r.t.Helper()
	r.settle()
	if err := r.s.Checkpoint(); err != nil {
		r.t.Fatal(err)
	}
}

// query gives the bodies of the messages with a key, in log order.
func (r *rig) query(key string) ([]string, error) {
	r.t.Helper()
	q, err := r.s.Query("T", key, 64, 0, math.MaxInt64)
	var got []string
	for _, b := range q.Messages {
		m, _, err := mq.ParseStored(b)
		if err != nil {
			r.t.Fatal(err)
		}
		got = append(got, string(m.Body))
	}
	slices.Reverse(got)
	return got, err
}

// keys asks for every key until each is answered in full. What is answered before holds nothing wrong.
func (r *rig) keys(what string, want map[string][]string) {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for key, w := range want {
		for {
			got, err := r.query(key)
			if err == nil && slices.Equal(got, w) {
				break
			}
			if err == nil || !errors.Is(err, ErrIndexDamaged) || slices.ContainsFunc(got, func(b string) bool { return !slices.Contains(w, b) }) {
				r.t.Fatalf("%s: %s leads to %v, %v; want %v", what, key, got, err, w)
			}
			if time.Now().After(deadline) {
				r.t.Fatalf("%s: not made anew: %s leads to %v, %v", what, key, got, err)
			}
			runtime.Gosched()
		}
	}
}

// whole asks for every key after something was damaged: as it is, after more messages and a checkpoint, and after a crash and a clean stop.
func (r *rig) whole(what string, want map[string][]string) {
	r.t.Helper()
	r.keys(what, want)
	r.lead()
	r.put(message("T", 0, "one more", mq.PropKeys, "more"))
	r.save()
	want["more"] = append(want["more"], "one more")
	r.keys(what+", more messages", want)
	r.halt()
	r.start()
	r.settle()
	r.keys(what+", crash", want)
	r.shut()
	r.start()
	r.settle()
	if r.s.rebuilt || r.s.Stats().IndexDamaged {
		r.t.Errorf("%s: the index of a clean stop was not whole", what)
	}
	r.keys(what+", clean stop", want)
	r.check()
}

// change changes the file.
func (r *rig) change(name string, f func(b []byte) []byte) {
	r.t.Helper()
	b, err := vfs.ReadFile(r.disk, name)
	if err != nil {
		r.t.Fatal(err)
	}
	size := len(b)
	b = f(b)
	d, err := r.disk.OpenFile(name, os.O_RDWR)
	if err == nil && len(b) < size {
		err = d.Truncate(int64(len(b)))
	}
	if err == nil && len(b) > 0 {
		_, err = d.WriteAt(b, 0)
	}
	if err := errors.Join(err, d.Close()); err != nil {
		r.t.Fatal(err)
	}
}

// hidden tells whether the number of an item at byte at, in a slot or as an older one, cannot be told from a right one: it names none, or an older item of the same slot.
func hidden(b []byte, at, slots int) bool {
	items := indexHead + slots*slotSize
	number := func(at int) int { return int(int32(binary.BigEndian.Uint32(b[at:]))) }
	slot, v := 0, 0
	switch n := (at - items) / itemSize; {
	case at < indexHead:
		return false
	case at < items:
		slot = (at - indexHead) / slotSize
		v = number(indexHead + slot*slotSize)
	case (at-items)%itemSize < 16:
		return false
	default:
		slot = number(items+n*itemSize) % slots
		v = number(items + n*itemSize + 16)
	}
	return v == 0 || v > 0 && items+(v+1)*itemSize <= len(b) && number(items+v*itemSize)%slots == slot
}

// TestDamagedIndexIsMadeAnew: each byte of an index file's header and slots, and bytes of its items, are changed, chains made to loop; the file is cut, gone, or full of
// zeros; while the store runs, before a crash, and before a start after a clean stop. No query gives a wrong message or goes on for ever, one that misses a message says so,
// and soon all are found, without the store having ended.
func TestDamagedIndexIsMadeAnew(t *testing.T) {
	const slots, items = 11, 64
	const itemsAt, size = indexHead + slots*slotSize, indexHead + slots*slotSize + items*itemSize
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	type damage struct {
		name string
		do   func(b []byte) []byte
	}
	flip := func(at int) damage {
		mask := byte(1) << rnd.IntN(8)
		return damage{fmt.Sprintf("byte %d ^ %#x", at, mask), func(b []byte) []byte {
			b[at] ^= mask
			if hidden(b, at, slots) {
				b[at] ^= mask
			}
			return b
		}}
	}
	var all []damage
	for at := range itemsAt {
		all = append(all, flip(at))
	}
	for range 60 {
		all = append(all, flip(itemsAt+itemSize+rnd.IntN((items-1)*itemSize)))
	}
	for range 20 { // as a page that holds something else
		lo := rnd.IntN(size - 50)
		n := 20 + rnd.IntN(30)
		all = append(all, damage{fmt.Sprintf("%d random bytes at %d", n, lo), func(b []byte) []byte {
			for i := lo; i < lo+n; i++ {
				b[i] = byte(rnd.Uint32())
			}
			return b
		}})
	}
	for _, loop := range []string{"itself", "a newer one", "each other"} {
		all = append(all, damage{"items that name " + loop + " as older", func(b []byte) []byte {
			older := func(n int) []byte { return b[itemsAt+n*itemSize+16:] }
			for n := 1; n < items-1; n++ {
				switch {
				case loop == "itself":
					binary.BigEndian.PutUint32(older(n), uint32(n))
				case loop == "a newer one" || n%2 == 1:
					binary.BigEndian.PutUint32(older(n), uint32(n+1))
				default:
					binary.BigEndian.PutUint32(older(n), uint32(n-1))
				}
			}
			return b
		}})
	}
	for _, n := range []int{0, 1, indexHead - 1, indexHead, indexHead + 5, itemsAt, itemsAt + itemSize*20 + 7, size - 1} {
		all = append(all, damage{fmt.Sprintf("cut to %d bytes", n), func(b []byte) []byte { return b[:n] }})
	}
	all = append(all, damage{"zeros", func(b []byte) []byte { clear(b); return b }}, damage{"gone", nil})
	for i, k := range all {
		both := []bool{false, true}
		if strings.HasPrefix(k.name, "byte") {
			both = both[i%2 : i%2+1]
		}
		for _, newest := range both {
			r, want := indexed(t, 70)
			list := r.s.index.list
			if len(list) < 3 {
				t.Fatalf("%d index files", len(list))
			}
			file := r.s.index.name(list[1].stamp)
			if newest {
				file = r.s.index.name(list[len(list)-1].stamp)
			}
			what := fmt.Sprintf("%s of %s", k.name, map[bool]string{false: "a full file", true: "the newest file"}[newest])
			when := rnd.IntN(3)
			if when == 2 {
				r.shut()
			}
			if k.do == nil {
				if err := r.s.files.remove(file); err != nil {
					t.Fatal(err)
				}
			} else {
				r.change(file, k.do)
			}
			switch when {
			case 0:
				what += ", running"
			case 1:
				what += ", before a crash"
				r.halt()
				r.start()
			case 2:
				what += ", while stopped"
				r.start()
			}
			r.settle()
			r.whole(what, want)
			r.halt()
			if t.Failed() {
				return
			}
		}
	}
}

// TestBlockOfZerosInTheIndexIsFound: slots that are zeros look like keys that nobody has. They are counted at the start, and once a day.
func TestBlockOfZerosInTheIndexIsFound(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for _, newest := range []bool{false, true} {
			r, want := indexed(t, 70)
			file := r.s.index.list[1].stamp
			if newest {
				file = r.s.index.mark().stamp
			}
			if crash {
				r.halt()
			} else {
				r.shut()
			}
			r.change(r.s.index.name(file), func(b []byte) []byte {
				clear(b[indexHead : indexHead+11*slotSize])
				return b
			})
			r.start()
			for deadline := time.Now().Add(10 * time.Second); r.s.Stats().IndexRemade == 0; runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatalf("crash %v, newest file %v: not found", crash, newest)
				}
			}
			r.settle()
			r.whole(fmt.Sprintf("zeros, crash %v, newest file %v", crash, newest), want)
			r.halt()
		}
	}
}
