package bellwether

import (
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the way of items into the near tier, how long they are trusted there, and what the tier has of them.

// weigh sets an item's weight, unless it has one. Options.Size is user code, so this is done before
// the locks under which the near tier asks for weights.
func (e *engine[V]) weigh(key string, it *items.Item[V]) { it.Weigh(key, e.size) }

// itemDueEarly reports by chance whether a fresh item is to be rebuilt already.
func itemDueEarly[V any](it *items.Item[V], now instant, beta float64) bool {
	return dueEarly(it.FreshUntil-now, it.Build, beta)
}

// putNear puts a flight's last item into the near tier, whatever is there. The store has answered for
// the item, or could not: the epoch of the item before is no reason against it, since a store that
// has lost its data may count anew.
func (e *engine[V]) putNear(key string, it *items.Item[V], callers int) {
	e.near.Put(key, it.Forgetting(e.clock.Now()), callers)
}

// advanceNear is putNear for an item that no flight answers for: an item of a later epoch stays.
func (e *engine[V]) advanceNear(key string, it *items.Item[V]) {
	e.near.Replace(key, it.Forgetting(e.clock.Now()), func(old *items.Item[V]) bool { return old.Epoch <= it.Epoch })
}

// holdsNear reports whether the near tier has the item, as far as its epoch tells. Of an item that is
// over the tier has nothing.
func (e *engine[V]) holdsNear(key string, it *items.Item[V]) bool {
	there, now := e.near.Get(key)
	if there == nil {
		return it.End() <= now
	}
	return there.Epoch == it.Epoch
}

// trustedUntil is how long the near tier may go, with what was true at the time
// now, without asking the store.
func (e *engine[V]) trustedUntil(now instant) instant {
	if e.Store == nil {
		return forever
	}
	return durations.Add(e.sweeps.Asked(now), e.NearTTL)
}

// peek is what the near tier has of a key that is a value within one of its windows, with its age.
func (e *engine[V]) peek(key string) (value V, age time.Duration, ok bool) {
	it, now := e.near.Peek(key)
	if it == nil || it.Kind != driver.KindValue || now >= max(it.FreshUntil, it.StaleUntil, it.ErrorUntil) {
		return value, 0, false
	}
	return it.Value, durations.Between(it.Born, now), true
}
