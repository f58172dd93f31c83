package bellwether

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
	"weak"

	"github.com/maypok86/otter/v2"
)

// This file is the in-process tier: decoded values, bounded in bytes. Eviction
// and the timer wheel are otter's; which of two items of a key stays is decided here.

// An item is one answer for a key as this process knows it. Items are
// immutable once they have been handed to the near tier or to a flight.
type item[V any] struct {
	lifetime
	kind    EntryKind
	weight  uint32        // what it takes in the near tier; 0 if not weighed yet
	value   V             // if kind is KindValue
	epoch   uint64        // of the rebuild that made it, or of the entry beside which it stands; 0: of none
	build   time.Duration // how long that rebuild took
	err     error         // the last failure, if failures > 0
	trusted instant       // until when the store need not be asked whether it still holds
	beside  bool          // the store has not taken it: it stands beside the store's entry of that epoch
	early   earlyTry
	// position is up to where the log of sweeps was known when its load began.
	position uint64
	made     instant // the instant after the load that made it began in this process; 0 if none did
}

// found is a copy for a flight that finds the item, and has not made it.
func (it *item[V]) found(trusted instant) *item[V] {
	c := *it
	c.trusted, c.made = trusted, 0
	return &c
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

func (c clock) instant(t time.Time) instant { return t.Sub(c.base) }

// A tableClock is the otter.Clock of the near tier: the time as the tier last
// told it. The tier reads the time once for a hit and judges by that; a table
// that read it too would make a hit half as dear again.
type tableClock struct {
	clock
	told    atomic.Int64
	stopped atomic.Bool
}

// tableLag is by how much a hit lets the table's time fall behind: to tell it
// each time would have all cores write to one word.
const tableLag = time.Millisecond

// tell moves the table's time on to now. It never goes back.
func (c *tableClock) tell(now instant, lag time.Duration) {
	if told := c.told.Load(); int64(now)-told > int64(lag) {
		c.told.CompareAndSwap(told, int64(now)) // who was quicker was as good
	}
}

// NowNano is the time that the table goes by.
func (c *tableClock) NowNano() int64 { return c.told.Load() }

// Tick has the table let go of what has expired also while nobody calls. It
// ends with the clock, and with the near tier of a cache that nobody has closed.
func (c *tableClock) Tick(d time.Duration) <-chan time.Time {
	ticks := make(chan time.Time, 1)
	var tick func()
	alive := weak.Make(c)
	tick = func() {
		c := alive.Value()
		if c == nil || c.stopped.Load() {
			return
		}
		c.tell(c.now(), 0)
		select {
		case ticks <- time.Time{}:
		default:
		}
		time.AfterFunc(d, tick)
	}
	time.AfterFunc(d, tick)
	return ticks
}

// near is the in-process tier. It is safe for concurrent use.
type near[V any] struct {
	clock *tableClock
	max   int64 // bytes
	size  func(key string, value V) int
	cache *otter.Cache[string, *item[V]]
}

// itemOverhead is what an entry costs beside its key and value: the item, the
// node and its place in the table and in the policy's queues, as `bench near`
// measures them.
const itemOverhead = 272

// newNear returns an empty tier. evicted, if it is not nil, is called for each item that
// has to leave for others. It is called under locks: it must not wait, nor use the tier.
func newNear[V any](c clock, maxBytes int64, size func(key string, value V) int, evicted func(string, *item[V])) *near[V] {
	var deleted func(otter.DeletionEvent[string, *item[V]])
	if evicted != nil {
		deleted = func(e otter.DeletionEvent[string, *item[V]]) {
			if e.Cause == otter.CauseOverflow {
				evicted(e.Key, e.Value)
			}
		}
	}
	tc := &tableClock{clock: c}
	tc.tell(c.now(), 0)
	return &near[V]{clock: tc, max: maxBytes, size: size, cache: otter.Must(&otter.Options[string, *item[V]]{
		MaximumWeight: uint64(maxBytes),
		Clock:         tc,
		// Not OnDeletion, which has a goroutine for each item.
		OnAtomicDeletion: deleted,
		Weigher:          func(_ string, it *item[V]) uint32 { return it.weight },
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
	it.weight = uint32(min(w+uint64(errorWeight(it.err)), 1<<32-1))
}

// errorWeight is the part of an item's weight that is its failure's.
func errorWeight(err error) (w int) {
	if err != nil {
		w = len(err.Error())
	}
	if p, ok := err.(*PanicError); ok {
		w += len(p.Stack)
	}
	return w
}

// errForgotten stands in the near tier for a failure that answers nobody any more.
var errForgotten = errors.New("bellwether: rebuild failed")

// forgetting is the item without a failure that answers nobody at the time now.
func (it *item[V]) forgetting(now instant) *item[V] {
	if it.failures == 0 || it.backingOff(now) || it.err == errForgotten {
		return it
	}
	c := *it
	c.setError(errForgotten)
	return &c
}

// setError gives the item, which is weighed and not shared yet, another failure.
func (it *item[V]) setError(err error) {
	it.weight += uint32(errorWeight(err)) - uint32(errorWeight(it.err))
	it.err = err
}

// get returns the key's item, or nil, and the time at which it looked.
func (n *near[V]) get(key string) (*item[V], instant) {
	now := n.clock.now()
	n.clock.tell(now, tableLag)
	it, _ := n.cache.GetIfPresent(key)
	if it != nil && now >= it.freshUntil && now >= it.end() {
		return nil, now // the table does not know yet
	}
	return it, now
}

// holds reports whether the tier has the item, as far as its epoch tells: nothing, of an
// item that is over.
func (n *near[V]) holds(key string, it *item[V]) bool {
	there, now := n.get(key)
	if there == nil {
		return it.end() <= now
	}
	return there.epoch == it.epoch
}

// put keeps it in the place of what is there. It is what a flight ends with, which
// the store has answered for, or could not: the epoch of what was there is no
// reason against it, since a store that has lost its data may count anew. An item
// whose life is over is not kept, but ends what came before it all the same.
//
// callers is how many have asked for it; with more than one, nobody may
// invalidate the key meanwhile. A full table takes in what is wanted more than what
// would have to leave (TinyLFU), and counts what it is asked for and has: the first
// value of a key that a herd wants would be as good as one that nobody has asked
// for twice, and be loaded again for the next herd. So it is put once for each.
func (n *near[V]) put(key string, it *item[V], callers int) {
	n.write(key, it, callers, func(*item[V]) bool { return true })
}

// advance is put for an item that others may have replaced by now, of which no
// flight says so: it leaves what is of a later epoch.
func (n *near[V]) advance(key string, it *item[V]) {
	n.write(key, it, 1, func(old *item[V]) bool { return old.epoch <= it.epoch })
}

// write keeps it unless there is an item that does not yield.
func (n *near[V]) write(key string, it *item[V], callers int, yields func(old *item[V]) bool) {
	n.weigh(key, it)
	it = it.forgetting(n.clock.now())
	n.clock.tell(n.clock.now(), 0) // what is over has no say
	known := false
	replace := func(old *item[V], found bool) (*item[V], otter.ComputeOp) {
		known = found
		switch {
		case found && !yields(old):
			return old, otter.CancelOp
		case it.end() <= n.clock.now():
			return nil, otter.InvalidateOp
		}
		return it, otter.WriteOp
	}
	n.cache.Compute(key, replace)
	if !known && int64(it.weight) <= n.max {
		for range min(callers, mostCounted) - 1 {
			n.cache.Compute(key, replace)
		}
	}
}

// mostCounted is as far as the table counts.
const mostCounted = 15

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
	n.clock.stopped.Store(true)
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
// What guards itself may be changed by others while it is looked at, and what it
// refers to with it (a map that is written to meanwhile ends the process), so that
// is not looked at.
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
			if guarded(v.Type()) {
				continue
			}
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

// guardedTypes has what guarded has found, by reflect.Type.
var guardedTypes sync.Map

// guarded reports whether a struct is, or has a field, of package sync or
// sync/atomic, as a client or a pool of connections has: one for many values, and
// in use elsewhere. (A message of protobuf's leads to the description of its type, and
// has a [0]sync.Mutex.) A time's zone is shared as well.
func guarded(t reflect.Type) bool {
	if is, ok := guardedTypes.Load(t); ok {
		return is.(bool)
	}
	is := t == reflect.TypeFor[time.Location]() || guards(t)
	for i := range t.NumField() {
		f := t.Field(i).Type
		for f.Kind() == reflect.Array {
			f = f.Elem()
		}
		is = is || guards(f)
	}
	guardedTypes.Store(t, is)
	return is
}

func guards(t reflect.Type) bool { return t.PkgPath() == "sync" || t.PkgPath() == "sync/atomic" }

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
