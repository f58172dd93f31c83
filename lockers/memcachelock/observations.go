package memcachelock

import (
	"sync"
	"time"
)

// This file holds what a Locker remembers of other holders' leases: since when
// it has seen each of them unchanged. It is what lets a lease that memcached
// would keep for seconds more end on time.

// maxObserved is how many leases a generation of observations holds.
const maxObserved = 4096

// An observation is a lease as it was seen, and until when it lasts if its
// holder stays silent.
type observation struct {
	value value
	until time.Time
}

// observations remembers the leases of others by the names of their items. The
// zero value is ready for use and safe for concurrent use.
//
// It is bounded by two generations: when the younger one is full, the older
// one is forgotten. A forgotten lease is only observed anew, from its start:
// its end is recognised later, never sooner.
type observations struct {
	mu         sync.Mutex // guards young and old
	young, old map[string]observation
}

// until returns until when the lease v on the item lasts, v having been read
// just now.
func (o *observations) until(item string, v value) time.Time {
	// Read before the mutex it could only be too early: v was read before.
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.young[item]
	if !ok {
		seen, ok = o.old[item]
	}
	if !ok || seen.value != v {
		seen = observation{value: v, until: now.Add(v.length)}
	}
	if len(o.young) >= maxObserved || o.young == nil {
		o.old, o.young = o.young, make(map[string]observation)
	}
	o.young[item] = seen
	return seen.until
}

// forget drops what is known of an item.
func (o *observations) forget(item string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.young, item)
	delete(o.old, item)
}
