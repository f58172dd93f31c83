package bellwether

import "context"

// This file is the state leading: the flight has the lease, or needs none.

// lead is the state leading, with r.leading.lease or without an election. The load takes over the
// flight's slot, because the load may outlast the flight.
func (r *run) lead(ctx context.Context) (o rebuildOutcome) {
	e, waived := r.engine, r.looking.waives() // the claim is another look, which may find no mark
	r.setElected()
	defer func() {
		if o == outcomeOutdated {
			r.leading.again = true
			r.freeSlot() // first: a round may wait for the flight
		}
		r.releaseFirst(ctx)
	}()

	if r.claim(ctx) {
		return outcomeAnswered
	}
	if ctx.Err() != nil {
		return outcomeOutdated
	}
	if r.looking.unshared != 0 && r.looking.unshared != r.leading.epoch {
		// The claim found a mark, under which the flight loads without an election. It does not look first: its look may
		// read a copy of the store that lags, and find no mark. The flight would be elected again and again.
		r.releaseBehind(ctx)
		r.leading.epoch, waived = r.looking.unshared, true
	}
	if r.leading.lease != nil && (r.leading.epoch == 0 || e.commits.Fail(e.clock.Now()) && !r.probe(ctx)) {
		// The store will not take this value: waiting processes would wait in vain, holder after holder.
		r.releaseBehind(ctx)
	}
	if r.degraded(waived) {
		e.count.degraded.Add(1)
	}
	var watch func(context.Context, *attempt)
	if e.Hedge > 0 && r.leading.lease != nil {
		watch = r.watchOf(r.leading.epoch, e.clock.Now())
	}
	e.hedges.Earn(e.HedgeShare)
	return ending(r.build(ctx, watch, r.finish))
}

// degraded reports whether the load begins without an engine's answer.
func (r *run) degraded(waived bool) bool {
	return r.leading.epoch == 0 || r.engine.Locker != nil && r.leading.lease == nil && !waived
}
