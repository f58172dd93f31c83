package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the end of a flight: its result goes into the near tier and to its callers.

// settle puts the item into the near tier, and ends the flight with it for the callers that began before resultBefore.
// Callers that began before suitsBefore take the item whatever they want. False: the key was invalidated since the last
// look, and the flight looks again.
func (r *run) settle(it *items.Item, resultBefore, suitsBefore instant) bool {
	e := r.engine
	it.Weigh(r.key, e.size) // before the lock: Options.Size is user code
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	spared := e.afterSweeps(r.key, it)
	// A soft sweep during the load has closed all windows. No caller that asked since may have the item.
	swept := spared == nil || spared.FreshUntil < it.FreshUntil && judge(&spared.Lifetime, e.clock.Now()) == rebuild
	if swept {
		r.witness.generation++
	}
	if r.outdated() {
		// Clients that read a response while it is written keep it. No other call gets it.
		if r.streaming() {
			r.land(func(*flightState) {})
		}
		return r.streaming()
	}
	// One lock for both: join sees the flight in the map, or the item in the near tier.
	r.keepResult(spared)
	r.land(func(s *flightState) { s.result, s.resultBefore, s.suitsBefore = spared, resultBefore, suitsBefore })
	return true
}

// keepResult puts the result into the near tier. If the flight is unlisted, a successor may have put a
// later item there, which stays. shard.mu is held.
func (r *run) keepResult(it *items.Item) {
	if !r.listed() {
		r.engine.near.Advance(r.key, it)
		return
	}
	r.engine.near.Put(r.key, it, int(r.joins.Load()))
}

// give ends the flight with an item past its windows, or a failure, for callers that began before resultBefore. An
// earlier near item goes unless it is a failure. A later one is from a Set, or of a successor.
func (r *run) give(it *items.Item, resultBefore instant) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if it.Held {
		r.engine.near.Advance(r.key, it)
	}
	r.land(func(s *flightState) { s.result, s.resultBefore = it, resultBefore })
}

// land ends the flight with a result or an error. shard.mu is held.
func (r *run) land(with func(*flightState)) {
	r.alarm.Stop()
	r.change(func(s *flightState) {
		s.landed = true
		with(s)
	})
	r.unlist()
}

// end ends the flight with err, unless it has landed, and dismisses its witness. Without an error, callers with time left
// begin a new flight.
func (r *run) end(err error) {
	r.cancel(nil)
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if r.shard.removeWitness(r.key, &r.witness) {
		r.engine.count.flights.Add(-1)
	}
	if !r.state.Load().landed {
		r.land(func(s *flightState) { s.err = err })
	}
}

// Landing waits until the flight has landed or is unlisted, and returns its result or nil. A caller whose response
// broke off waits shortly: the break's cause has ended the load, or its time, or the listing.
func (f *flight) Landing(ctx context.Context) (*items.Item, error) {
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
