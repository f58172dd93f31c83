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
	f.offerCheck.asked.Store(int64(f.engine.clock.Now()))
	if f.engine.Store != nil && !f.confirms {
		f.confirms = true
		f.engine.start(func() { f.confirm(&f.offerCheck, f.confirmOffer) })
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

// confirm asks the store with ask when half of the trust in the item is over, and at each doubt, until ask returns
// false or the flight ends.
func (f *flight) confirm(c *check, ask func() (goesOn bool)) {
	e, returned := f.engine, true
	defer func() {
		if !returned { // a panic or Goexit of the adapter
			e.start(func() { f.confirm(c, ask) })
		}
	}()
	due := func() time.Duration { return durations.Add(instant(c.asked.Load()), e.confirmEvery()) - e.clock.Now() }
	for goesOn := true; goesOn; returned = true {
		select {
		case <-time.After(due()):
			if due() > 0 {
				continue // there is a later item, of a look
			}
		case <-c.doubts:
		case <-f.ctx.Done():
			return
		}
		c.asked.Store(int64(e.clock.Now()))
		returned = false
		goesOn = ask()
	}
}

// confirmOffer asks the store about the offer, and reports whether there is still one. An invalidation, a sweep, a Set
// or a look may replace the offer meanwhile.
func (f *flight) confirmOffer() bool {
	e, offered := f.engine, f.state.Load().offered
	confirmed := offered
	if offered != nil {
		there := f.read(f.ctx, e.confirmation(f.ctx))
		it := *offered
		confirmed, it.TrustedUntil = &it, e.trustedUntil(there.Asked)
		switch {
		case f.ctx.Err() != nil:
			confirmed = offered
		case there.Silent():
			// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
			it.TrustedUntil = max(it.TrustedUntil, e.clock.Now()+1)
		case there.Err != nil || there.Entry.Epoch != offered.Epoch:
			confirmed = nil
		}
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.state.Load().offered == offered && confirmed != offered {
		f.change(func(s *flightState) { s.offered = confirmed })
	}
	f.confirms = f.state.Load().offered != nil // otherwise the next offer begins a new goroutine
	return f.confirms
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
