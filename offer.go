package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the stale item that callers are offered while the key is rebuilt.

// confirmEvery is how often the store is asked whether what it said before still
// holds, while that is served.
func (e *engine[V]) confirmEvery() time.Duration { return max(e.alone()/2, minPoll) }

// confirm asks the store, until ctx ends, whether the stale item that callers
// are offered during the load still holds. Without it, a key that another
// process invalidates would be served stale for as long as its rebuild takes.
func (f *flight[V]) confirm(ctx context.Context) {
	tick := time.NewTicker(f.engine.confirmEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !f.confirmOffer(ctx) {
			return
		}
	}
}

// offerStale shows callers a value that they may take when their patience
// ends, or nil for none. It reports whether it did: not if the key was
// invalidated since the flight last looked.
func (f *flight[V]) offerStale(it *items.Item[V]) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.outdated() {
		return false
	}
	f.change(func(s *flightState[V]) { s.offered = it })
	return true
}

// reoffer is offerStale in the place of an offer that was confirmed, or was not:
// a sweep that has withdrawn it meanwhile is not undone.
func (f *flight[V]) reoffer(was, it *items.Item[V]) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.outdated() && f.state.Load().offered == was {
		f.change(func(s *flightState[V]) { s.offered = it })
	}
}

// confirmOffer asks the store whether the stale item that callers are offered still holds.
// It returns false if nothing is offered, or ctx has ended.
func (f *flight[V]) confirmOffer(ctx context.Context) bool {
	e := f.engine
	offered := f.state.Load().offered
	if offered == nil {
		return false
	}
	budget := gate.NewBudget(e.EngineTimeout)
	// What is confirmed is trusted by the log's age too, and must be so until
	// the next time.
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	there := e.apart(f.key, budget).read(ctx, budget)
	confirmed := *offered
	switch confirmed.Trusted = e.trustedUntil(there.asked); {
	case ctx.Err() != nil:
		return false
	case errors.Is(there.err, ErrUnavailable):
		// It cannot say that the item does not hold, to those either who came while it
		// was silent.
		confirmed.Trusted = max(confirmed.Trusted, e.clock.Now()+1)
	case there.err != nil || there.entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return true
	}
	f.reoffer(offered, &confirmed)
	return true
}
