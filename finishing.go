package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/polls"
	"github.com/bellwether-go/bellwether/observe"
)

// This file ends a flight with its load's result: the result is committed, and goes to the callers unless
// something later counts.

// finish commits the load's result and ends the flight with the result. It returns false if the store has
// something later, or the key was invalidated here. No caller gets the result then, and the flight looks again.
func (r *run) finish(ctx context.Context, l loaded) bool {
	e := r.engine
	if !r.storeDown {
		e.sweeps.Follow(ctx, r.budget, e.NearTTL/2) // the load may have outlasted the trust in the log
	}
	r.loaded, r.committed = true, 0
	if nothing, ok := l.err.(*fault.NoResult); ok {
		r.noteFailure(nothing.Err)
		return r.finishNothing(ctx, nothing, l)
	}
	switch {
	case l.err == nil || fault.NotFound(l.err):
		r.noteFailure(l.Failure)
		return r.finishFound(ctx, l)
	case ctx.Err() != nil:
		r.loaded = false // Close ended the load: not a failure of the load
		r.end(context.Cause(ctx))
		return true
	}
	r.noteFailure(l.err)
	e.noteLoad(false)
	if r.goesToOthers(l.err) && !r.hasSpare() {
		r.endForOthers(ctx, l.err)
		return true
	}
	heard := r.callers.Load() > 0 || r.streaming()
	if !r.finishFailed(ctx, l) {
		return false
	}
	if !heard || r.state.Load().masksFailure(e.clock.Now()) {
		e.OnLoadError(r.key, &keyError{"refreshing", r.key, l.err})
	}
	return true
}

// hasSpare reports whether the flight's callers may get the present item, which is stale, in place of a failure.
func (r *run) hasSpare() bool {
	it, now := r.present, r.engine.clock.Now()
	if it == nil || !r.engine.isAnswer(it.Value) || r.want.Fits != nil && !r.want.Fits(it) {
		return false
	}
	after := it.Lifetime
	after.CountFailure()
	return !after.Fresh(now) && after.Stale(now)
}

// noteFailure counts the failure of the load, nil for none, and tells the observers.
func (r *run) noteFailure(err error) {
	if err != nil {
		r.engine.count.loadFailures.Add(1)
		r.tellOutcome(observe.OutcomeFailed, err)
	}
}

// finishNothing is finish without a result to keep. The present item stays, unless invalidated.
func (r *run) finishNothing(ctx context.Context, nothing *fault.NoResult, l loaded) bool {
	e := r.engine
	if r.present != nil && r.lookAnew(ctx) {
		return true
	}
	if it := r.present; it != nil {
		e.keepNear(r.key, it, func() bool { return !r.outdated() })
	}
	if nothing.Failed && (r.present == nil || !r.present.Held) {
		r.waiveElections(ctx, l.epoch, l.took)
	}
	r.endForOthers(ctx, nil) // callers without the published value begin a new flight
	return true
}

// endForOthers ends the flight, whose callers begin a new flight. Its election must not find this flight's lease.
// Otherwise another process would be elected, and would learn only by its own load that the load is for one client.
func (r *run) endForOthers(ctx context.Context, err error) {
	defer r.end(err) // also after an observer's Goexit
	r.releaseFirst(ctx)
}

func (r *run) finishFound(ctx context.Context, l loaded) bool {
	e, now := r.engine, l.ended // a hedge has asked the store since
	// The position is the load's, so that the sweeps during the load count.
	it := &items.Item{
		Kind: driver.KindNotFound, Epoch: l.epoch, Build: l.took, LoadBegan: l.loadBegan, Position: l.position,
		Lifetime: e.lifetimeOf(now, l.windows(), r.key, l.epoch), TrustedUntil: e.trustedUntil(now), Marks: l.Marks,
	}
	if l.err == nil {
		it.Kind, it.Value = driver.KindValue, l.Value
	}
	r.built(l.took)
	e.noteLoad(l.Failure == nil)
	written := r.touch(ctx, it, l.Kept)
	if written == commitUntouched || written == commitDisplaced {
		written = r.commit(ctx, it) // with the value
	}
	if written != commitFenced {
		r.releaseBehind(ctx) // the other processes ask the store while the callers here wake up
	}
	if r.settleUnlessFenced(it, written) {
		return true
	}
	given := *it
	given.Lifetime = items.NewLifetime(now, items.Windows{})
	return r.finishVoid(&given, l)
}

// finishVoid ends the flight after a void load that has readers, or is the flight's last. Its result, the item, is only
// for callers that asked before the load: each cause of a refusal came after them.
func (r *run) finishVoid(it *items.Item, l loaded) bool {
	switch {
	case r.streaming():
		r.end(nil) // the readers have the value, or saw the response break off, and cannot see another load's
	case r.noteVoid():
		r.give(it, l.loadBegan-1)
	default:
		return false
	}
	return true
}

// finishFailed is finish for a failed load. The failure is committed beside the present item, and
// answers in every process until the next try is due.
func (r *run) finishFailed(ctx context.Context, l loaded) bool {
	// The end of a context says nothing about the origin: remembered, one caller's impatience would
	// be every caller's failure. An overrun deadline, of the rebuild or of a client's call in the
	// load, is told to the waiting processes. Otherwise they would take turns, each to wait as long.
	remembered := !fault.Says(l.err, context.Canceled, context.DeadlineExceeded, ErrClosed, ErrOverloaded)
	told := remembered || errors.Is(l.err, context.DeadlineExceeded)
	ended := false
	if told {
		it, written := r.commitFailure(ctx, l, remembered)
		if r.goesToOthers(l.err) {
			r.releaseFirst(ctx) // as in endForOthers
		}
		ended = it == nil || r.settleUnlessFenced(it, written)
	} else {
		ended = r.finishUntold(ctx, l)
	}
	if ended {
		return true
	}
	given := &items.Item{Err: l.err}
	given.Failures, given.RetryAt = 1, forever // the failure answers them, whatever else they want
	return r.finishVoid(given, l)
}

// settleUnlessFenced is settle after the commit of the load's result. It returns false for a void load.
func (r *run) settleUnlessFenced(it *items.Item, written commitOutcome) bool {
	switch written {
	case commitFenced:
		r.looking.pause = polls.Shortest << 1
		r.tellOutcome(observe.OutcomeFenced, nil)
		return false
	case commitNotTaken:
		r.keepBeside(it)
	}
	r.committed = r.engine.clock.Now()
	return r.settle(it, it.TrustedUntil, 0)
}

// commitFailure commits the failure beside the store's present item: a Set that claimed before this flight,
// or a holder without its lease, may have committed. The item is nil if their value has ended the flight.
func (r *run) commitFailure(ctx context.Context, l loaded, remembered bool) (*items.Item, commitOutcome) {
	r.repeat()
	for again := false; ; again = true {
		// The commit of a flight for an unshared entry finds out by itself whether that entry is still
		// there. A look would replace the entry by a later one, from after an invalidation perhaps.
		if r.looking.unshared == 0 && r.lookBeside(ctx, l.epoch != 0) {
			return nil, commitTaken
		}
		it := r.failureOf(l, remembered)
		it.Epoch, it.Beside = l.epoch, false
		switch {
		case r.void(), // settle refuses the item
			it.Epoch == 0: // the store did not answer the claim, and answers now
			return it, commitNotTaken
		case again: // a store that has only forgotten the value gets the value
			return it, r.commit(ctx, it)
		}
		switch written := r.touch(ctx, it, r.present); written {
		case commitUntouched:
			return it, r.commit(ctx, it)
		case commitDisplaced: // the next round finds the present entry
		default:
			return it, written
		}
	}
}

// lookBeside looks for the present item, beside which a failure is committed, and reports whether an answer has ended the
// flight. The look may read a lagging copy of the store. A claim has not, and after a later invalidation the commit
// is fenced.
func (r *run) lookBeside(ctx context.Context, claimed bool) (answered bool) {
	known, missing := r.present, false
	if r.lookBy(ctx, func(ctx context.Context) lookout.Reply {
		there := r.readWithLog(ctx)
		missing = errors.Is(there.Err, ErrNotFound)
		return there
	}) {
		return true
	}
	r.looking.unshared = 0 // a mark that this look has found is for later loads, and yields to the failure
	keeps := false
	if it := r.present; it == nil {
		keeps = r.storeDown || missing && claimed // silence or a copy cannot take the stale value away
	} else if known == nil || it.Epoch != known.Epoch {
		keeps = r.askFenced(ctx, r.budget, it.Epoch) // otherwise the commit would bring a value back
	}
	if keeps {
		r.present = r.engine.afterSweeps(r.key, known)
	}
	return false
}

// finishUntold is finishFailed for a failure told to no other process. It returns false for a void load.
func (r *run) finishUntold(ctx context.Context, l loaded) bool {
	// The answering stale item may have been invalidated during the load, and no commit checks that.
	if r.present != nil && r.lookAnew(ctx) {
		return true
	}
	it := r.failureOf(l, false)
	if r.storeDown {
		r.keepBeside(it)
		return r.settle(it, it.TrustedUntil, 0)
	}
	it.TrustedUntil = r.trustedUntold(ctx, l.asked, l.epoch)
	return r.settle(it, max(it.TrustedUntil, l.loadBegan), 0) // callers that asked before the load get the failure
}

// trustedUntold is the TrustedUntil of a failure that is not committed. No commit checks whether the key was
// invalidated elsewhere after the claim. So the trust counts from the claim, or from now if a Fencer knows of nothing
// later, or is silent: its silence cannot void the failure.
func (r *run) trustedUntold(ctx context.Context, asked instant, epoch uint64) instant {
	e := r.engine
	if e.fencer != nil && epoch != 0 {
		if now := e.clock.Now(); !r.askFenced(ctx, r.budget, epoch) {
			asked = now
		}
	}
	return e.trustedUntil(asked)
}

// failureOf returns the item of a failure. Beside a present item the failure keeps the item's position,
// so that later sweeps count against the item.
func (r *run) failureOf(l loaded, remembered bool) *items.Item {
	e, now := r.engine, l.ended
	it := &items.Item{Position: l.position}
	it.Born = now
	if r.present != nil {
		it = r.present.Unweighed()
	}
	pause := e.ErrorTTL
	advice, advised := errors.AsType[fault.RetryAdvice](l.err)
	if advised {
		pause = advice.RetryAfter()
	}
	if !remembered {
		pause = 0
	}
	if advised && pause > 0 {
		it.Lifetime = failedUntil(it.Lifetime, now, pause)
	} else {
		it.Lifetime = failed(it.Lifetime, now, pause, e.MaxErrorTTL)
	}
	if it.Early != items.EarlyTryHad {
		it.Early = items.NoEarlyTry
		if !advised && pause > 0 { // the pause is ours to choose
			it.Early = items.EarlyTryDue
		}
	}
	it.Err, it.TrustedUntil, it.LoadBegan = l.err, e.trustedUntil(now), l.loadBegan
	if !it.Stale(now) && now >= it.KeepUntil {
		it.Held, it.Kind, it.Value = false, driver.KindNone, nil
	}
	return it
}
