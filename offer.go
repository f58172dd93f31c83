package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the offer: the stale item at the end of a caller's patience, confirmed during a rebuild.

// confirmBeside confirms the flight's present offer, if there is one, until end is called or ctx ends.
func (f *flight[V]) confirmBeside(ctx context.Context) (end func()) {
	if f.state.Load().offered == nil {
		return func() {}
	}
	ctx, end = context.WithCancel(ctx)
	f.confirmOffers(ctx)
	return end
}

// confirmOffers begins to confirm the flight's offer until ctx ends. next is closed when there may be another
// offer to confirm: at the end of this one, or at the flight's next change if it has none.
func (f *flight[V]) confirmOffers(ctx context.Context) (next <-chan struct{}) {
	if f.engine.Store == nil {
		return nil
	}
	if state := f.state.Load(); state.offered == nil {
		return state.news
	}
	ended := make(chan struct{})
	f.engine.running.Go(func() {
		defer close(ended)
		f.confirm(ctx)
	})
	return ended
}

// confirm confirms the offer until ctx ends. Otherwise a key that another process invalidates would
// be served stale for as long as its rebuild takes.
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

// offer offers callers a stale item. False: the key was invalidated since the last look. An item from the
// store becomes the near item too, or an earlier one would answer after it when the store falls silent.
func (f *flight[V]) offer(it *items.Item[V], fromStore bool) bool {
	e := f.engine
	e.weigh(f.key, it) // before the lock: Options.Size is user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.outdated() {
		return false
	}
	if spared := e.afterSweeps(f.key, it); fromStore && spared != nil && !e.holdsNear(f.key, spared) {
		f.keepResult(spared)
	}
	f.change(func(s *flightState[V]) { s.offered = it })
	return true
}

// endOffer ends the offer, if there is one, unless the key was invalidated since the last look.
func (f *flight[V]) endOffer() {
	if f.state.Load().offered == nil {
		return
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.outdated() {
		f.change(func(s *flightState[V]) { s.offered = nil })
	}
}

// reoffer replaces the offer after its confirmation, unless an invalidation or a sweep has withdrawn it, or a
// Set has replaced it meanwhile.
func (f *flight[V]) reoffer(was, it *items.Item[V]) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.state.Load().offered == was {
		f.change(func(s *flightState[V]) { s.offered = it })
	}
}

// confirmOffer asks the store about the offer. It returns false without an offer, or after ctx's end.
func (f *flight[V]) confirmOffer(ctx context.Context) bool {
	e := f.engine
	offered := f.state.Load().offered
	if offered == nil {
		return false
	}
	budget := gate.NewBudget(e.EngineTimeout)
	// The trust depends on the log's age too, and must last until the next confirmation.
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	there := f.read(ctx, budget)
	confirmed := *offered
	switch confirmed.TrustedUntil = e.trustedUntil(there.asked); {
	case ctx.Err() != nil:
		return false
	case errors.Is(there.err, ErrUnavailable):
		// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
		confirmed.TrustedUntil = max(confirmed.TrustedUntil, e.clock.Now()+1)
	case there.err != nil || there.entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return true
	}
	f.reoffer(offered, &confirmed)
	return true
}
