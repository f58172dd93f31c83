package bellwether

import "github.com/bellwether-go/bellwether/internal/items"

// This file is the offer: the stale item at the end of a caller's patience.

// offer offers callers a stale item, unless the key was invalidated since the last look. An item from the
// store becomes the near item too, or an earlier one would answer after it when the store falls silent.
func (r *run[V]) offer(it *items.Item[V], fromStore bool) {
	e := r.engine
	e.weigh(r.key, it) // before the lock: Options.Size is user code
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if r.outdated() {
		return
	}
	if spared := e.afterSweeps(r.key, it); fromStore && spared != nil && !e.holdsNear(r.key, spared) {
		r.keepResult(spared)
	}
	r.change(func(s *flightState[V]) { s.offered = it })
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
