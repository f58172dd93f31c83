package bellwether

import (
	"reflect"
	"time"
	"unsafe"

	"github.com/maypok86/otter/v2"
)

// This file is the in-process tier: decoded values, bounded in bytes. Eviction
// and the timer wheel are otter's; that entries only move forward by epoch is
// decided here.

// An item is one answer for a key as this process knows it. Items are
// immutable once they have been handed to the near tier or to a flight.
type item[V any] struct {
	lifetime
	kind    EntryKind
	value   V             // if kind is KindValue
	epoch   uint64        // of the rebuild that made it; 0 if it was made without the store
	build   time.Duration // how long that rebuild took
	err     error         // the last failure, if failures > 0
	trusted instant       // until when the store need not be asked whether it still holds
	weight  uint32        // what it takes in the near tier; 0 if not weighed yet
	// position is up to where the log of sweeps was known when its load began.
	position uint64
	made     instant // when the load that made it began in this process, and 1; 0 if none did
}

// answer is what a caller gets for the item.
func (it *item[V]) answer() (V, error) {
	switch it.kind {
	case KindValue:
		return it.value, nil
	case KindNotFound:
		var zero V
		return zero, ErrNotFound
	}
	var zero V
	return zero, it.err
}

// dueEarly reports by chance whether a fresh item is to be rebuilt already.
func (it *item[V]) dueEarly(now instant, beta float64) bool {
	return dueEarly(it.freshUntil-now, it.build, beta)
}

// clock gives a cache's instants. Reading the monotonic clock alone is half
// the price of time.Now.
type clock struct{ base time.Time }

func (c clock) now() instant { return time.Since(c.base) }

// NowNano and Tick make clock the otter.Clock, so that a hit reads one clock
// once: otter's snapshot time is our instant.
func (c clock) NowNano() int64                        { return int64(c.now()) }
func (c clock) Tick(d time.Duration) <-chan time.Time { return time.NewTicker(d).C }
func (c clock) instant(t time.Time) instant           { return t.Sub(c.base) }

// near is the in-process tier. It is safe for concurrent use.
type near[V any] struct {
	clock clock
	size  func(key string, value V) int
	cache *otter.Cache[string, *item[V]]
}

// itemOverhead is what an entry costs beside its key and value: the item, the
// node and its place in the table and in the policy's queues.
const itemOverhead = 256

// newNear returns an empty tier. evicted, if it is not nil, is called for each
// item that had to leave for others, on a goroutine of its own.
func newNear[V any](c clock, maxBytes int64, size func(key string, value V) int, evicted func(string, *item[V])) *near[V] {
	var deleted func(otter.DeletionEvent[string, *item[V]])
	if evicted != nil {
		deleted = func(e otter.DeletionEvent[string, *item[V]]) {
			if e.Cause == otter.CauseOverflow {
				evicted(e.Key, e.Value)
			}
		}
	}
	return &near[V]{clock: c, size: size, cache: otter.Must(&otter.Options[string, *item[V]]{
		MaximumWeight: uint64(maxBytes),
		Clock:         c,
		OnDeletion:    deleted,
		Weigher:       func(_ string, it *item[V]) uint32 { return it.weight },
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, *item[V]]) time.Duration {
			return max(1, e.Value.end()-instant(e.SnapshotAtNano))
		}),
	})}
}

// weigh sets an item's weight, if it has none yet. It is not left to the
// table's weigher, because the sizer is user code, and that runs under locks.
func (n *near[V]) weigh(key string, it *item[V]) {
	if it.weight != 0 {
		return
	}
	w := uint64(len(key) + itemOverhead)
	if it.kind == KindValue {
		w += uint64(max(0, n.size(key, it.value)))
	}
	it.weight = uint32(min(w, 1<<32-1))
}

// get returns the key's item, or nil, and the time at which it looked.
func (n *near[V]) get(key string) (*item[V], instant) {
	e, ok := n.cache.GetEntry(key)
	if !ok {
		return nil, n.clock.now()
	}
	return e.Value, instant(e.SnapshotAtNano)
}

// put keeps it, unless the tier has a later one, and returns the one that the
// tier has then. An item made without the store has no epoch of its own: it is
// the latest that this process can know, and takes the place and the epoch of
// whatever is there, so that the store's next one follows it. An item whose life
// is over is not kept, but ends what came before it all the same.
func (n *near[V]) put(key string, it *item[V]) *item[V] {
	n.weigh(key, it)
	kept := it
	n.cache.Compute(key, func(old *item[V], found bool) (*item[V], otter.ComputeOp) {
		switch {
		case found && it.epoch == 0 && old.epoch != 0:
			moved := *it
			moved.epoch = old.epoch
			kept = &moved
		case found && it.epoch < old.epoch:
			kept = old
			return old, otter.CancelOp
		}
		if it.end() <= n.clock.now() {
			return nil, otter.InvalidateOp
		}
		return kept, otter.WriteOp
	})
	return kept
}

// revise puts in the place of every item what f makes of it; nil: nothing. f is
// called under the table's locks.
func (n *near[V]) revise(f func(key string, it *item[V]) *item[V]) {
	for key := range n.cache.Keys() {
		n.cache.ComputeIfPresent(key, func(old *item[V]) (*item[V], otter.ComputeOp) {
			switch it := f(key, old); it {
			case old:
				return old, otter.CancelOp
			case nil:
				return nil, otter.InvalidateOp
			default:
				return it, otter.WriteOp
			}
		})
	}
}

func (n *near[V]) delete(key string) { n.cache.Invalidate(key) }

// close empties the tier and ends its goroutines.
func (n *near[V]) close() {
	n.cache.InvalidateAll()
	n.cache.StopAllGoroutines()
}

// sizeOf is the default sizer: the bytes that a value reaches, each once.
func sizeOf[V any](_ string, v V) int {
	switch b := any(v).(type) {
	case []byte:
		return cap(b)
	case string:
		return len(b)
	}
	return int(reflect.TypeFor[V]().Size()) + reach(reflect.ValueOf(&v).Elem())
}

// reach is the memory behind v, without v itself. What several pointers,
// slices or maps share counts once. It walks with a list of its own and not by
// recursion: a long linked list must not end the process with a stack overflow.
func reach(v reflect.Value) int {
	n := 0
	// A struct and its first field, or two slices of one array, have one
	// address and reach different things.
	type place struct {
		p    unsafe.Pointer
		t    reflect.Type
		size int
	}
	seen := map[place]bool{}
	first := func(v reflect.Value, size int) bool {
		at := place{v.UnsafePointer(), v.Type(), size}
		if at.p == nil || seen[at] {
			return false
		}
		seen[at] = true
		return true
	}
	for todo := []reflect.Value{v}; len(todo) > 0; {
		v, todo = todo[len(todo)-1], todo[:len(todo)-1]
		switch v.Kind() {
		case reflect.String:
			n += v.Len()
		case reflect.Pointer:
			if first(v, 0) {
				n += int(v.Type().Elem().Size())
				todo = append(todo, v.Elem())
			}
		case reflect.Interface:
			if !v.IsNil() {
				n += int(v.Elem().Type().Size())
				todo = append(todo, v.Elem())
			}
		case reflect.Slice:
			if first(v, v.Cap()) {
				n += v.Cap() * int(v.Type().Elem().Size())
				todo = appendElements(todo, v)
			}
		case reflect.Array:
			todo = appendElements(todo, v)
		case reflect.Struct:
			for i := range v.NumField() {
				todo = append(todo, v.Field(i))
			}
		case reflect.Map:
			if first(v, 0) {
				n += v.Len() * int(v.Type().Key().Size()+v.Type().Elem().Size())
				for it := v.MapRange(); it.Next(); {
					todo = append(todo, it.Key(), it.Value())
				}
			}
		}
	}
	return n
}

// appendElements appends the elements of a slice or array, unless they reach
// nothing: a megabyte of bytes is not walked byte by byte.
func appendElements(todo []reflect.Value, v reflect.Value) []reflect.Value {
	if v.Type().Elem().Kind() < reflect.Array {
		return todo
	}
	for i := range v.Len() {
		todo = append(todo, v.Index(i))
	}
	return todo
}

// A RemoteError is the failure of a rebuild that ran in another process, or in
// this one before the value left the near tier. Only its text has travelled.
type RemoteError struct{ Message string }

// Error returns the failed load's text.
func (e *RemoteError) Error() string {
	return "bellwether: rebuild failed: " + e.Message
}
