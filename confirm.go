package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file confirms the stale item on offer during a rebuild. Otherwise a key that another process invalidates would
// be served stale for as long as its rebuild takes. With the near tier off an item answers only the calls from before
// the store was asked for it: the store is asked again for later calls, once for all that have come meanwhile, never
// without a call.

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
		f.engine.confirm(ctx, f.engine.clock.Now(), func() bool { return f.confirmOffer(ctx) })
	})
	return ended
}

// confirmOffer asks the store about the offer. It returns false without an offer, or after ctx's end.
func (f *flight[V]) confirmOffer(ctx context.Context) bool {
	e := f.engine
	offered := f.state.Load().offered
	if offered == nil {
		return false
	}
	budget := e.confirmation(ctx)
	there := f.read(ctx, budget)
	confirmed := *offered
	switch confirmed.TrustedUntil = e.trustedUntil(there.asked); {
	case ctx.Err() != nil:
		return false
	case there.silent():
		// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
		confirmed.TrustedUntil = max(confirmed.TrustedUntil, e.clock.Now()+1)
	case there.err != nil || there.entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return true
	}
	f.reoffer(offered, &confirmed)
	return true
}

// doubt makes the flight ask the store again, for a later call. It does nothing with the near tier on.
func (f *flight[V]) doubt() {
	select {
	case f.doubts <- struct{}{}:
	default: // the store will be asked anyway, for all calls
	}
}

// doubtValue is doubt for the value that the load still writes. Without a Fencer the store has no new
// answer. Any answer would wake all waiting calls, and each would doubt again.
func (f *flight[V]) doubtValue() {
	if f.engine.fencer != nil {
		f.doubt()
	}
}

// answerDoubts asks the store after each doubt, until ctx ends or the store can say nothing later.
func (f *flight[V]) answerDoubts(ctx context.Context) {
	for {
		select {
		case <-f.doubts:
		case <-ctx.Done():
			return
		}
		f.confirmOffer(ctx)
		f.shard.mu.Lock()
		published, epoch, l := f.state.Load().published, f.witness.epoch, f.current
		vouches := published != nil && l != nil && !l.storeDown
		f.shard.mu.Unlock()
		if f.engine.fencer != nil && vouches && !f.confirmPublished(ctx, published, epoch) {
			return
		}
	}
}

// askFenced asks a Fencer whether something later than epoch counts. It returns false without a Fencer,
// an epoch or an answer: a silent store cannot say so.
func (f *flight[V]) askFenced(ctx context.Context, budget *gate.Budget, epoch uint64) bool {
	e := f.engine
	if e.fencer == nil || epoch == 0 {
		return false
	}
	fenced, err := gate.Ask(ctx, e.store, f.key, budget, func(ctx context.Context) (bool, error) {
		return e.fencer.Fenced(ctx, e.engineKey(f.key), epoch)
	})
	return err == nil && fenced
}

// confirmPublished asks a Fencer about the value that the load still writes. Otherwise an invalidation elsewhere would
// show only at the commit, and callers that asked after it would join. It returns false after the Fencer's word
// against the value, after ctx's end, and once the flight shows no such value.
func (f *flight[V]) confirmPublished(ctx context.Context, it *items.Item[V], epoch uint64) bool {
	e, budget := f.engine, f.engine.confirmation(ctx)
	asked := e.clock.Now()
	fenced := f.askFenced(ctx, budget, epoch)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if state := f.state.Load(); ctx.Err() != nil || state.landed || state.published != it {
		return false
	}
	if fenced {
		f.witness.generation++
		f.unlist() // no more callers join
		return false
	}
	f.change(func(s *flightState[V]) { s.confirmedBefore = e.trustedUntil(asked) })
	return true
}

// confirmEvery is the time between two confirmations of an offered or published item.
func (e *engine[V]) confirmEvery() time.Duration { return max(e.unconfirmedTTL()/2, minPoll) }

// confirm calls ask each confirmEvery after the last answer, until ask returns false or ctx ends.
func (e *engine[V]) confirm(ctx context.Context, asked instant, ask func() bool) {
	for {
		select {
		case <-time.After(durations.Add(asked, e.confirmEvery()) - e.clock.Now()):
		case <-ctx.Done():
			return
		}
		asked = e.clock.Now()
		if !ask() {
			return
		}
	}
}

// confirmation returns the budget of a confirmation that has followed the log: the trust depends on the log's age
// too, and must last until the next confirmation.
func (e *engine[V]) confirmation(ctx context.Context) *gate.Budget {
	budget := gate.NewBudget(e.EngineTimeout)
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	return budget
}
