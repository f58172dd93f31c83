package adapter

import (
	"sync"
	"time"
)

// This file is a Locker's memory of other holders' leases: the time since when each is unchanged.
// It ends a lease on time if the engine ends leases seconds late, or never.

const (
	// fewObserved is the number of leases that a generation of observations always has room for.
	fewObserved = 4096
	// maxObserved is the largest number of leases in a generation.
	maxObserved = 16 * fewObserved
)

type observation[V comparable] struct {
	lease V
	until time.Time
}

// Observations remembers the leases of others by item name. V identifies a lease between two changes:
// equal values mean an unchanged lease. The zero value is ready for use and safe for concurrent use.
//
// Two generations bound the memory. When the younger one is full, the older one is forgotten. The
// younger one is full with fewObserved leases after the end of the last of them, and with maxObserved
// leases in any case. A forgotten lease is observed again from its start, so its end is recognised
// later. With more than maxObserved dead leases, seen in turn, an end may never be recognised.
type Observations[V comparable] struct {
	mu         sync.Mutex // guards the fields below
	young, old map[string]observation[V]
	end        time.Time // the latest end in young
}

// Until returns the end of a lease that was just read, and announced for length from its last change.
func (o *Observations[V]) Until(item string, lease V, length time.Duration) time.Time {
	// Read before the wait for the mutex. It is not too early: the lease was read before it.
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.young[item]
	if !ok {
		seen, ok = o.old[item]
	}
	if !ok || seen.lease != lease {
		seen = observation[V]{lease, now.Add(length)}
	}
	n := len(o.young)
	if n >= maxObserved || n >= fewObserved && now.After(o.end) || o.young == nil {
		o.old, o.young, o.end = o.young, make(map[string]observation[V]), time.Time{}
	}
	o.young[item] = seen
	if seen.until.After(o.end) {
		o.end = seen.until
	}
	return seen.until
}

// Last returns the latest result of Until for the item, or zero if it is forgotten.
func (o *Observations[V]) Last(item string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.young[item]
	if !ok {
		seen = o.old[item]
	}
	return seen.until
}

// Forget drops the observation of an item.
func (o *Observations[V]) Forget(item string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.young, item)
	delete(o.old, item)
}
