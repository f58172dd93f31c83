package adapter

import (
	"sync"
	"time"
)

// This file holds what a Locker remembers of other holders' leases: since when
// it has seen each of them unchanged. It is what lets a lease that the engine
// would keep for seconds more end on time.

// maxObserved is how many leases a generation of observations holds.
const maxObserved = 4096

// An observation is a lease as it was seen, and until when it lasts if its
// holder stays silent.
type observation struct {
	announced Announcement
	until     time.Time
}

// Observations remembers the leases of others by the names of their items. The
// zero value is ready for use and safe for concurrent use.
//
// It is bounded by two generations: when the younger one is full, the older
// one is forgotten. A forgotten lease is only observed anew, from its start:
// its end is recognised later, never sooner.
type Observations struct {
	mu         sync.Mutex // guards young and old
	young, old map[string]observation
}

// Until returns until when the lease on the item lasts, which a announces and
// which was read just now.
func (o *Observations) Until(item string, a Announcement) time.Time {
	// Read before the mutex it could only be too early: a was read before.
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.young[item]
	if !ok {
		seen, ok = o.old[item]
	}
	if !ok || seen.announced != a {
		seen = observation{announced: a, until: now.Add(a.Length)}
	}
	if len(o.young) >= maxObserved || o.young == nil {
		o.old, o.young = o.young, make(map[string]observation)
	}
	o.young[item] = seen
	return seen.until
}

// Forget drops what is known of an item.
func (o *Observations) Forget(item string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.young, item)
	delete(o.old, item)
}
