package bellwether

import "context"

// This file is the states leading and alone: the flight has the lease, or needs none.

// lead is the state leading, with r.leading.lease or without an election. The load takes over the
// flight's slot, because the load may outlast the flight.
func (r *run[V]) lead(ctx context.Context) (o rebuildOutcome) {
	e := r.engine
	r.setElected()
	defer func() {
		if r.leading.lease != nil {
			r.release(ctx, r.leading.lease)
			r.leading.lease = nil
		}
		if o == outcomeOutdated {
			r.leading.again = true
			r.freeSlot()
		}
	}()

	if r.claim(ctx) {
		return outcomeAnswered
	}
	if ctx.Err() != nil || r.looking.unshared != 0 {
		return outcomeOutdated
	}
	if r.leading.epoch == 0 || e.commits.Fail(e.clock.Now()) && !r.probe(ctx) {
		// The store will not take this value: waiting processes would wait in vain, holder after holder.
		r.releaseBehind(ctx)
	}
	if r.degraded() {
		e.count.degraded.Add(1)
	}
	var rival <-chan struct{}
	if e.Hedge > 0 && r.leading.lease != nil {
		watching, end := context.WithCancel(ctx)
		defer end()
		rival = r.rival(watching, r.leading.epoch, e.clock.Now())
	}
	e.hedges.Earn(e.HedgeShare)
	return ending(r.build(ctx, rival, r.finish))
}

// degraded reports whether the load begins without an engine's answer.
func (r *run[V]) degraded() bool {
	return r.leading.epoch == 0 || r.engine.Locker != nil && r.leading.lease == nil && !r.standing.waived
}

// loadAlone is the state alone: the store has the KindUnshared entry of a holder's load.
func (r *run[V]) loadAlone(ctx context.Context) rebuildOutcome {
	defer r.freeSlot() // build may return before the load takes the slot
	r.leading.epoch = r.looking.unshared
	return ending(r.build(ctx, nil, r.finish))
}
