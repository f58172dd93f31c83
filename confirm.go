package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file confirms what callers see during a rebuild: a stale item on offer, and a value that the load still
// writes. Otherwise a key that another process invalidates would be served for as long as its rebuild takes. With the
// near tier off an item answers only the calls from before the store was asked for it: the store is asked again for
// later calls, once for all that have come meanwhile, never without a call.

// confirmBeside confirms what callers see now, if anything, until end is called or ctx ends.
func (f *flight[V]) confirmBeside(ctx context.Context) (end func()) {
	if f.confirmedUntil(f.state.Load()) == forever {
		return func() {}
	}
	ctx, end = context.WithCancel(ctx)
	f.confirmSeen(ctx)
	return end
}

// confirmSeen begins to confirm what callers see until ctx ends, and returns nil. If there is nothing to confirm, it
// returns a channel that is closed at the flight's next change.
func (f *flight[V]) confirmSeen(ctx context.Context) (next <-chan struct{}) {
	state := f.state.Load()
	if f.confirmedUntil(state) == forever {
		return state.news
	}
	f.engine.running.Go(func() { f.confirm(ctx, true) })
	return nil
}

// confirmedUntil is the instant until which callers may take what the state shows without asking the store. It is
// forever if the store cannot confirm it: a value that the load still writes is confirmed by a Fencer.
func (f *flight[V]) confirmedUntil(state *flightState[V]) instant {
	until := forever
	if state.offered != nil {
		until = state.offered.TrustedUntil
	}
	if state.published != nil && f.engine.fencer != nil {
		until = min(until, state.joinable)
	}
	return until
}

// confirm confirms what callers see until ctx ends: after each doubt and, if it polls, before its trust ends.
func (f *flight[V]) confirm(ctx context.Context, polls bool) {
	e := f.engine
	every := e.confirmEvery()
	for pause := min(every, f.confirmedUntil(f.state.Load())-e.NearTTL+every-e.clock.Now()); ; pause = every {
		var due <-chan time.Time
		if polls {
			due = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-f.doubts:
		}
		if f.confirmedUntil(f.state.Load()) == forever {
			continue
		}
		budget := gate.NewBudget(e.EngineTimeout)
		// The trust depends on the log's age too, and must last until the next confirmation.
		e.sweeps.Follow(ctx, budget, e.NearTTL/4)
		f.confirmOffer(ctx, budget)
		f.confirmPublished(ctx, budget)
	}
}

// confirmOffer asks the store about the stale item on offer, if there is one.
func (f *flight[V]) confirmOffer(ctx context.Context, budget *gate.Budget) {
	e := f.engine
	offered := f.state.Load().offered
	if offered == nil {
		return
	}
	there := f.read(ctx, budget)
	confirmed := *offered
	switch confirmed.TrustedUntil = e.trustedUntil(there.asked); {
	case ctx.Err() != nil:
		return
	case there.silent():
		// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
		confirmed.TrustedUntil = max(confirmed.TrustedUntil, e.clock.Now()+1)
	case there.err != nil || there.entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return
	}
	f.reoffer(offered, &confirmed)
}

// confirmPublished asks a Fencer about the value that the load still writes, if there are both. Otherwise an
// invalidation elsewhere would show only at the commit, and callers that asked after it would join.
func (f *flight[V]) confirmPublished(ctx context.Context, budget *gate.Budget) {
	e, asked := f.engine, f.engine.clock.Now()
	f.shard.mu.Lock()
	state, epoch := f.state.Load(), f.witness.epoch
	f.shard.mu.Unlock()
	if e.fencer == nil || state.landed || state.published == nil || state.joinable == forever {
		return
	}
	fenced := f.askFenced(ctx, budget, epoch)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if ctx.Err() != nil || f.state.Load().landed {
		return
	}
	f.change(func(s *flightState[V]) {
		if fenced {
			s.until, s.joinable = min(s.until, s.joinable), forever // for no caller after the last confirmation
		} else {
			s.joinable = e.trustedUntil(asked)
		}
	})
	if fenced {
		f.witness.generation++
		f.unlist()
	}
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
