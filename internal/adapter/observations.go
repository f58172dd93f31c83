package adapter

import (
	"sync"
	"time"
)

// This file holds what a Locker remembers of other holders' leases: since when
// it has seen each of them unchanged. It is what ends a lease on time on an
// engine that does not end it by itself, or only seconds later.

// maxObserved is how many leases a generation of observations holds.
const maxObserved = 4096

// An observation is a lease as it was seen, and until when it lasts if its
// holder stays silent.
type observation[V comparable] struct {
	lease V
	until time.Time
}

// Observations remembers the leases of others by the names of their items. V is
// what identifies a lease between two changes: two values must be equal only if
// nothing has happened to it in between. The zero value is ready for use and
// safe for concurrent use.
//
// It is bounded by two generations: when the younger one is full, the older
// one is forgotten. A forgotten lease is only observed anew, from its start:
// its end is recognised later, never sooner.
type Observations[V comparable] struct {
	mu         sync.Mutex // guards young and old
	young, old map[string]observation[V]
}

// Until returns until when the lease on the item lasts, having been read just
// now and announced for length from its last change.
func (o *Observations[V]) Until(item string, lease V, length time.Duration) time.Time {
	// Before the wait for the mutex, and still not too early: the lease was read
	// before this.
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
	if len(o.young) >= maxObserved || o.young == nil {
		o.old, o.young = o.young, make(map[string]observation[V])
	}
	o.young[item] = seen
	return seen.until
}

// Last returns what Until last returned for the item: zero if it is not
// remembered.
func (o *Observations[V]) Last(item string) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.young[item]
	if !ok {
		seen = o.old[item]
	}
	return seen.until
}

// Forget drops what is known of an item.
func (o *Observations[V]) Forget(item string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.young, item)
	delete(o.old, item)
}
