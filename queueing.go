package bellwether

import "context"

// This file is the state queueing: the flight takes one of the MaxRebuilds, or waits for one.

// queue is the state queueing.
func (r *run[V]) queue(ctx context.Context) rebuildOutcome {
	switch {
	case r.takeFreeSlot():
		return outcomePlace
	case r.waitForSlot(ctx):
		return outcomeAnswered
	case r.slot == nil:
		return outcomeOutdated // closed; or too many wait, and the stale value was invalidated
	case r.storeDown && !r.engine.store.Open():
		// The store may be back by now. Without another look the load's value would be this
		// process's alone, while the fleet's has gone on.
		return outcomeOutdated
	}
	return outcomePlace
}

// waitForSlot waits for one of the MaxRebuilds. Meanwhile it hears of the
// store, and looks into it: another process may have a slot, and so the value,
// sooner. It reports whether the flight has ended.
func (r *run[V]) waitForSlot(ctx context.Context) bool {
	e, source := r.engine, r.slots()
	defer source.Unqueue()
	e.enter(r.key, phaseQueueing)
	demand := r.demanded()
	if !source.Queue() && !r.leading.again && !demand.ByLoad() {
		// More waiting would end in nothing but time-outs. Who has had a slot
		// already, and lost its lease since, was let in, and so was a load that waits
		// for this one. The failure is of now: no sweep that was before is against it.
		r.shard.mu.Lock()
		r.witness.position = e.sweeps.Log().Position()
		r.shard.mu.Unlock()
		// Made now, it answers whatever a call wants: one that did not take it would
		// begin flight after flight.
		now := e.clock.Now()
		r.leading.made = now + 1
		return r.finishFailed(ctx, now, ErrOverloaded, 0)
	}
	// One request for as long as it takes: asked anew after each look, the
	// flight would lose its place in the queue.
	waiting, leave := context.WithCancel(ctx)
	taken := make(chan struct{})
	e.running.Go(func() {
		defer close(taken)
		r.slot = source.Wait(waiting, demand)
	})
	// However this ends, also by a panic of user code in a look, the slot may
	// have come at the same time.
	defer func() {
		leave()
		<-taken
	}()
	if r.engine.Store != nil && r.state.Load().offered != nil {
		r.engine.running.Go(func() { r.confirm(waiting) })
	}
	pause := e.lookEvery(maxPoll)
	defer r.dropLook()
	for {
		look := r.planLook(e.slots.LookPause(pause))
		select {
		case <-taken:
			return false
		case n := <-r.notices:
			if r.told(ctx, n) {
				return true
			}
		case <-look.due:
			if !(r.storeDown && e.store.Open()) && r.lookTogether(ctx, look) {
				return true
			}
		case there := <-look.reply:
			if r.lookAt(ctx, there) {
				return true
			}
		}
	}
}

// takeFreeSlot takes one of the MaxRebuilds if one is free, and reports whether the flight has
// one.
func (r *run[V]) takeFreeSlot() bool {
	if r.slot == nil {
		r.slot = r.slots().Try()
	}
	return r.slot != nil
}

func (r *run[V]) freeSlot() {
	if free := r.slot; free != nil {
		r.slot = nil
		free()
	}
}
