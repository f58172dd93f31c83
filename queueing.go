package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/polls"
)

// This file is the state queueing: the flight takes a slot of MaxRebuilds, or waits for a slot. A
// waiting flight hears notices and looks: another process may have a slot, and so the value, sooner.

func (r *run) queue(ctx context.Context) rebuildOutcome {
	switch {
	case r.takeFreeSlot():
		return outcomePlace
	case r.waitForSlot(ctx):
		return outcomeAnswered
	case r.slot == nil:
		return outcomeOutdated // closed or deserted; or the queue is full and the key was invalidated
	case r.storeDown && !r.engine.store.Open():
		// The store may be back by now, with the fleet's later value. Without another look this
		// flight's value would be for this process alone.
		return outcomeOutdated
	}
	return outcomePlace
}

// waitForSlot waits for a slot. It reports whether a notice or a look has ended the flight meanwhile.
func (r *run) waitForSlot(ctx context.Context) bool {
	e, source := r.engine, r.slots()
	defer source.Unqueue()
	demand := r.demanded()
	if !source.Queue() && !r.leading.again && !demand.ByLoad() {
		// More waiting flights would only time out. A flight that had a slot before, and a flight for
		// which a load waits, wait all the same.
		return r.finishOverloaded(ctx)
	}
	// The wait lasts across all looks. A new wait after each look would lose the place in the queue.
	request := source.Request(demand)
	// The slot may come at the moment of any return, also of a panic in a look.
	defer func() { r.slot = request.End() }()
	pause := e.lookEvery(polls.Longest)
	defer r.dropLook()
	for {
		look, ended := r.planLook(e.slots.LookPause(pause)), false
		select {
		case <-request.Taken():
			return false
		case <-ctx.Done():
			return false
		case n := <-r.notices:
			ended = r.answerByNotice(ctx, n)
		case there := <-look:
			ended = !(r.storeDown && e.store.Open()) && r.lookByReply(ctx, there)
		}
		if ended {
			return true
		}
	}
}

// finishOverloaded ends the flight with ErrOverloaded. The failure has the log's present position, so no
// earlier sweep counts against the failure. loadBegan is just after now, so that the failure answers every
// call: a call that refused the failure would begin flight after flight.
func (r *run) finishOverloaded(ctx context.Context) bool {
	now := r.engine.clock.Now()
	from := basis{loadBegan: now + 1, asked: now, position: r.engine.sweeps.Log().Position()}
	return r.finishFailed(ctx, loaded{basis: from, err: ErrOverloaded, ended: now})
}
