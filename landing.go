package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the end of a flight: its result goes into the near tier and to its callers.

// settle puts the item into the near tier, and ends the flight with it for callers that began before
// it.TrustedUntil. False: the key was invalidated since the last look, and the flight looks again.
func (f *flight[V]) settle(it *items.Item[V]) bool { return f.settleFor(it, it.TrustedUntil) }

// settleFor is settle for the callers that began before then.
func (f *flight[V]) settleFor(it *items.Item[V], then instant) bool {
	e := f.engine
	e.weigh(f.key, it) // before the lock: Options.Size is user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	spared := e.afterSweeps(f.key, it)
	// A soft sweep during the load has closed all windows. No caller that asked since may have the item.
	swept := spared == nil || spared.FreshUntil < it.FreshUntil && judge(&spared.Lifetime, e.clock.Now()) == rebuild
	if swept {
		f.witness.generation++
	}
	if f.outdated() {
		// Clients that read a response while it is written keep it. No other call gets it.
		if f.streaming() {
			f.land(nil, 0, errAgain)
		}
		return f.streaming()
	}
	// One lock for both: join sees the flight in the map, or the item in the near tier.
	f.keepResult(spared)
	f.land(spared, then, nil)
	return true
}

// keepResult puts the result into the near tier. If the flight is unlisted, a successor may have put a
// later item there, which stays. shard.mu is held.
func (f *flight[V]) keepResult(it *items.Item[V]) {
	if !f.listed() {
		f.engine.advanceNear(f.key, it)
		return
	}
	f.engine.putNear(f.key, it, f.callers.ever())
}

// give ends the flight with an item past its windows for callers that began before then. An earlier near item
// goes. A later one is from a Set, or of a successor.
func (f *flight[V]) give(it *items.Item[V], then instant) {
	f.engine.weigh(f.key, it) // before the lock: Options.Size is user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.engine.advanceNear(f.key, it)
	f.land(it, then, nil)
}

// giveFailure is give for a failure. The key's item stays in the near tier.
func (f *flight[V]) giveFailure(err error, then instant) {
	it := &items.Item[V]{Err: err}
	it.Failures, it.RetryAt = 1, forever // the failure answers them, whatever else they want
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.land(it, then, nil)
}

// land ends the flight with err, or an item for callers that began before then. shard.mu is held.
func (f *flight[V]) land(it *items.Item[V], then instant, err error) {
	f.alarm.Stop()
	f.change(func(s *flightState[V]) {
		s.landed, s.result, s.resultBefore, s.suitsBefore, s.err = true, it, then, f.suitsBefore, err
	})
	f.unlist()
}

// end ends the flight with err, unless it has landed, and dismisses its witness.
func (f *flight[V]) end(err error) {
	f.cancel(nil)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.shard.removeWitness(f.key, &f.witness) {
		f.engine.count.flights.Add(-1)
	}
	if !f.state.Load().landed {
		f.land(nil, 0, err)
	}
}

// awaitLanding waits until the flight has landed or is unlisted, and returns its result or nil, for a caller whose
// response broke off. The wait is short: the break's cause has ended the load, or its time, or the listing.
func (f *flight[V]) awaitLanding(ctx context.Context) (*items.Item[V], error) {
	for {
		f.shard.mu.Lock() // land changes the state, and then unlists
		listed, state := f.listed(), f.state.Load()
		f.shard.mu.Unlock()
		if state.landed || !listed {
			return state.result, nil
		}
		select {
		case <-state.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
