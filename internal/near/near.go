// Package near is the in-process tier of a cache: decoded items, bounded in bytes, each with the end
// of its life. otter evicts and expires them. This package decides which of a key's items stays.
package near

import (
	"sync/atomic"
	"time"
	"weak"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/maypok86/otter/v2"
)

// A Tier holds items by key. All methods are safe for concurrent use.
type Tier struct {
	clock   *clock
	max     int64                              // in bytes
	evicted func(key string, item *items.Item) // see New
	table   *otter.Cache[string, *items.Item]
}

// New returns an empty tier for items of maxBytes in all. of is the cache's clock. The tier calls
// evicted, unless it is nil, for each item that leaves to make room for others, or is heavier than all the room.
// That call is under locks: evicted must not wait and must not use the tier.
func New(of items.Clock, maxBytes int64, evicted func(key string, it *items.Item)) *Tier {
	var deleted func(otter.DeletionEvent[string, *items.Item])
	if evicted != nil {
		deleted = func(e otter.DeletionEvent[string, *items.Item]) {
			if e.Cause == otter.CauseOverflow {
				evicted(e.Key, e.Value)
			}
		}
	}
	c := &clock{Clock: of}
	return &Tier{clock: c, max: maxBytes, evicted: evicted, table: otter.Must(&otter.Options[string, *items.Item]{
		MaximumWeight: uint64(maxBytes),
		Clock:         c,
		// OnDeletion would start a goroutine for each item.
		OnAtomicDeletion: deleted,
		Weigher:          func(_ string, it *items.Item) uint32 { return it.Weight() },
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, *items.Item]) time.Duration {
			return max(1, e.Value.End()-durations.Instant(e.SnapshotAtNano))
		}),
	})}
}

// Get returns the key's item, or nil, and the instant of the look.
func (n *Tier) Get(key string) (*items.Item, durations.Instant) {
	now := n.clock.Now()
	it, found := n.table.GetIfPresent(key)
	if found && it.Over(now) {
		return nil, now // the table's clock is behind
	}
	return it, now
}

// Peek is Get without a trace: the item does not count as used.
func (n *Tier) Peek(key string) (*items.Item, durations.Instant) {
	now := n.clock.Now()
	e, found := n.table.GetEntryQuietly(key)
	if !found || e.Value.Over(now) {
		return nil, now
	}
	return e.Value, now
}

// Hottest returns at most most keys, in the order in which the policy would keep them.
func (n *Tier) Hottest(most int) []string {
	n.clock.tell(n.clock.Now()) // an item whose life is over is not hot
	var keys []string
	for e := range n.table.Hottest() {
		if len(keys) >= most {
			break
		}
		keys = append(keys, e.Key)
	}
	return keys
}

// Put replaces the key's item by it, whatever their epochs: the store has confirmed it or is silent, and a store
// that has lost its data may count anew. An item whose life is over only removes the item before it.
//
// callers have asked for the item. A full table admits an item only if it has seen its key more often
// than its victim's (TinyLFU). A herd's first value would count as seen once and be loaded again, so Put
// stores it once for each caller. Nothing else may remove the key's item meanwhile.
func (n *Tier) Put(key string, it *items.Item, callers int) { n.write(key, it, callers, false) }

// Advance is Put for an item without a flight: an item of a later epoch stays.
func (n *Tier) Advance(key string, it *items.Item) { n.write(key, it, 1, true) }

// mostCounted is the highest count of the table's sketch.
const mostCounted = 15

func (n *Tier) write(key string, it *items.Item, callers int, advances bool) {
	now := n.clock.Now()
	n.clock.tell(now) // an expired item must not count as present
	it = it.Forgetting(now)
	first := false
	replace := func(old *items.Item, found bool) (*items.Item, otter.ComputeOp) {
		switch {
		case found && advances && old.Epoch > it.Epoch:
			return old, otter.CancelOp
		case it.End() <= n.clock.Now():
			return nil, otter.InvalidateOp
		case int64(it.Weight()) > n.max: // the table would have it until its next eviction
			if n.evicted != nil {
				n.evicted(key, it)
			}
			return nil, otter.InvalidateOp
		}
		first = !found
		return it, otter.WriteOp
	}
	n.table.Compute(key, replace)
	if first {
		for range min(callers, mostCounted) - 1 {
			n.table.Compute(key, replace)
		}
	}
}

// Revise replaces every item by the result of f, nil to delete it. f runs under the table's locks.
func (n *Tier) Revise(f func(key string, it *items.Item) *items.Item) {
	for key := range n.table.Keys() {
		n.table.ComputeIfPresent(key, func(old *items.Item) (*items.Item, otter.ComputeOp) {
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

// Delete removes the key's item.
func (n *Tier) Delete(key string) { n.table.Invalidate(key) }

// Bytes returns the weight of all items.
func (n *Tier) Bytes() uint64 { return n.table.WeightedSize() }

// Close empties the tier and ends its goroutines.
func (n *Tier) Close() {
	n.table.InvalidateAll()
	n.table.StopAllGoroutines()
	n.clock.stopped.Store(true)
}

// A clock is the table's otter.Clock: the time as the tier last told it. The tier reads the time once
// for a hit. A table that read the time as well would make a hit half as expensive again.
type clock struct {
	items.Clock
	told    atomic.Int64
	stopped atomic.Bool
}

// tell moves the table's time on to now, and never back.
func (c *clock) tell(now durations.Instant) {
	if told := c.told.Load(); int64(now) > told {
		c.told.CompareAndSwap(told, int64(now)) // on failure another goroutine has told the time
	}
}

// NowNano is the table's time.
func (c *clock) NowNano() int64 { return c.told.Load() }

// Tick lets the table remove expired items without a caller, until Close or the tier's collection.
func (c *clock) Tick(d time.Duration) <-chan time.Time {
	ticks := make(chan time.Time, 1)
	var tick func()
	alive := weak.Make(c)
	tick = func() {
		c := alive.Value()
		if c == nil || c.stopped.Load() {
			return
		}
		c.tell(c.Now())
		select {
		case ticks <- time.Time{}:
		default:
		}
		time.AfterFunc(d, tick)
	}
	time.AfterFunc(d, tick)
	return ticks
}
