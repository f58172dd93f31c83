package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/polls"
)

// This file is the offer, the stale item at the end of a caller's patience, and its confirmation during a rebuild.
// Otherwise a key that another process invalidates would be served for as long as its rebuild takes. publish.go has
// the same for a stream. With the near tier off an item answers only the calls from before the store was asked for it:
// the store is asked again for later calls, once for all that have come meanwhile, never without a call.

// offer offers callers a stale item, unless the key was invalidated since the last look. An item from the
// store becomes the near item too, or an earlier one would answer after it when the store falls silent.
func (r *run) offer(it *items.Item, fromStore bool) {
	e := r.engine
	it.Weigh(r.key, e.size) // before the lock: Options.Size is user code
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if r.outdated() {
		return
	}
	if spared := e.afterSweeps(r.key, it); fromStore && spared != nil && !e.HoldsNear(r.key, spared) {
		r.keepResult(spared)
	}
	r.setOffer(it)
}

// setOffer offers an item, which is confirmed in each of the flight's states. shard.mu is held.
func (f *flight) setOffer(it *items.Item) {
	f.change(func(s *flightState) { s.offered = it })
	if f.engine.Store != nil && !f.confirms {
		f.confirms = true
		f.engine.start(f.confirmOffers)
	}
}

// endOffer ends the offer, if there is one, unless the key was invalidated since the last look.
func (f *flight) endOffer() {
	if f.state.Load().offered == nil {
		return
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.outdated() {
		f.change(func(s *flightState) { s.offered = nil })
	}
}

// reoffer replaces the offer after its confirmation, unless an invalidation or a sweep has withdrawn it, or a
// Set has replaced it meanwhile.
func (f *flight) reoffer(was, it *items.Item) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.state.Load().offered == was {
		f.change(func(s *flightState) { s.offered = it })
	}
}

// confirmOffers confirms the flight's offers until there is none. A waiting flight's looks confirm them earlier.
func (f *flight) confirmOffers() {
	returned := false
	defer func() {
		if !returned { // a panic or Goexit of the adapter
			f.engine.start(f.confirmOffers)
		}
	}()
	f.confirmWhileOffered()
	returned = true
}

func (f *flight) confirmWhileOffered() {
	e := f.engine
	var latest *items.Item
	var asked instant
	for {
		offered, news := f.offerToConfirm()
		switch now := e.clock.Now(); {
		case offered == nil:
			return
		case offered != latest:
			latest, asked = offered, now
		}
		select {
		case <-time.After(durations.Add(asked, e.confirmEvery()) - e.clock.Now()):
		case <-f.offerDoubts:
		case <-news: // there may be another offer, or none
			continue
		case <-f.ctx.Done():
			return
		}
		asked = e.clock.Now()
		latest = f.confirmOffer(offered)
	}
}

// offerToConfirm returns the offer, and a channel that is closed at the flight's next change. Without an offer the
// caller must return: the next offer begins a new goroutine.
func (f *flight) offerToConfirm() (*items.Item, <-chan struct{}) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	state := f.state.Load()
	if state.offered == nil {
		f.confirms = false
		return nil, nil
	}
	return state.offered, state.news
}

// confirmOffer asks the store about the offered item, and returns the offer in its place.
func (f *flight) confirmOffer(offered *items.Item) *items.Item {
	e := f.engine
	budget := e.confirmation(f.ctx)
	there := f.read(f.ctx, budget)
	confirmed := *offered
	switch confirmed.TrustedUntil = e.trustedUntil(there.Asked); {
	case f.ctx.Err() != nil:
		return offered
	case there.Silent():
		// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
		confirmed.TrustedUntil = max(confirmed.TrustedUntil, e.clock.Now()+1)
	case there.Err != nil || there.Entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return nil
	}
	f.reoffer(offered, &confirmed)
	return &confirmed
}

// doubt makes a confirmer ask the store again, for a later call. It does nothing with the near tier on.
func doubt(doubts chan<- struct{}) {
	select {
	case doubts <- struct{}{}:
	default: // the store will be asked anyway, for all calls
	}
}

// confirmEvery is the time between two confirmations of an offered or published item.
func (e *engine) confirmEvery() time.Duration { return max(e.unconfirmedTTL()/2, 2*polls.Shortest) }

// confirmation returns the budget of a confirmation that has followed the log: the trust depends on the log's age
// too, and must last until the next confirmation.
func (e *engine) confirmation(ctx context.Context) *gate.Budget {
	budget := gate.NewBudget(e.EngineTimeout)
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	return budget
}
