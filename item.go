package bellwether

import (
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/near"
)

// This file is an answer for a key as this process knows it, and the answers' way into the near tier.

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

// weigh sets an item's weight, unless it has one. Options.Size is user code, so this is done before
// the locks under which the near tier asks for weights.
func (e *engine[V]) weigh(key string, it *item[V]) {
	if it.weight != 0 {
		return
	}
	w := uint64(len(key) + near.Overhead)
	if it.kind == KindValue {
		w += uint64(max(0, e.size(key, it.value)))
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

// Weight implements [near.Item].
func (it *item[V]) Weight() uint32 { return it.weight }

// Over implements [near.Item].
func (it *item[V]) Over(now instant) bool { return now >= it.freshUntil && now >= it.End() }

// putNear puts a flight's last item into the near tier, whatever is there. The store has answered for
// the item, or could not: the epoch of the item before is no reason against it, since a store that
// has lost its data may count anew.
func (e *engine[V]) putNear(key string, it *item[V], callers int) {
	e.near.Put(key, it.forgetting(e.clock.now()), callers)
}

// advanceNear is putNear for an item that no flight answers for: an item of a later epoch stays.
func (e *engine[V]) advanceNear(key string, it *item[V]) {
	e.near.Replace(key, it.forgetting(e.clock.now()), func(old *item[V]) bool { return old.epoch <= it.epoch })
}

// holdsNear reports whether the near tier has the item, as far as its epoch tells. Of an item that is
// over the tier has nothing.
func (e *engine[V]) holdsNear(key string, it *item[V]) bool {
	there, now := e.near.Get(key)
	if there == nil {
		return it.End() <= now
	}
	return there.epoch == it.epoch
}
