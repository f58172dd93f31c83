package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/polls"
)

// This file claims the key for a load, which is the last look, and loads the value under the lease.

// maxVoid is the number of void loads (fenced at the commit, or invalidated since the last look or claim) with
// which a flight ends. The last value then answers the callers that asked before its load: otherwise endless
// refusals or invalidations would leave all callers without an answer.
const maxVoid = 5

// errRival cancels a load after another process's commit.
var errRival = errors.New("bellwether: another process's value was committed first")

// claim takes an epoch and reads the key again, in one request. A holder may have committed and released just
// before this flight's election: its value then ends the flight, without a second load. It reports whether the
// flight has ended.
func (r *run) claim(ctx context.Context) bool {
	if r.leading.epoch != 0 {
		return false // of the election, in which an Elector has looked and claimed, or of a mark
	}
	asked := r.engine.clock.Now()
	r.looking.askedBefore, r.looking.asked = r.looking.asked, asked
	// The claim is a look: an earlier invalidation is no reason to stand for election or queue again.
	outdated := r.renewLook()
	var entry driver.Entry
	if !r.storeDown {
		entry, r.leading.epoch = r.claimEpoch(ctx)
		r.storeDown = r.leading.epoch == 0
	}
	if r.storeDown || r.engine.Store == nil {
		if outdated {
			r.present = nil
		}
		return false
	}
	known, _ := r.engine.near.Get(r.key)
	ended := r.considerReply(lookout.Reply{Entry: entry, Asked: asked, Came: r.engine.clock.Now()}, known)
	if r.present == nil {
		r.endOffer() // invalidated since the look
	}
	return ended
}

// build loads the value, under the lease if any, and calls finish with the result. It gives up when the attempt yields.
// watch, if not nil, has it yield to a rival. build reports whether the flight has ended. Each context ends with the
// one before: ctx with the flight, contested when the attempt yields, limited after RebuildTimeout, loading by an
// invalidation.
func (r *run) build(ctx context.Context, watch func(context.Context, *attempt), finish func(context.Context, loaded) bool) (ended bool) {
	a := &attempt{
		flight: r.flight, basis: basis{epoch: r.leading.epoch, storeDown: r.storeDown, asked: r.looking.asked},
		last: r.leading.voids+1 >= maxVoid,
	}
	a.heldUntil.Store(int64(forever))
	contested := ctx
	if watch != nil || r.leading.lease != nil { // otherwise nothing yields, and a miss costs a context less
		contested, a.cede = context.WithCancelCause(ctx)
		defer a.cede(nil)
	}
	if watch != nil {
		r.engine.start(func() { watch(contested, a) })
	}
	defer func() { r.unwatchLoad(a, ended) }() // also after an observer's Goexit
	noteEnd, stopKeeping := r.keepLease(ctx, a)
	defer func() {
		if stopKeeping(); context.Cause(contested) == errRival {
			r.releaseBehind(ctx) // before the observers, which may take long; the next look finds the value
		}
	}()
	began, ok := r.awaitRound(contested, a)
	if !ok {
		return false
	}
	limited, cancel := context.WithDeadlineCause(contested, began.Add(r.engine.RebuildTimeout), ErrRebuildTimeout)
	defer cancel()
	loading, abort := context.WithCancelCause(limited)
	defer abort(nil)
	a.abort = func(cause error) {
		stopKeeping()
		abort(cause)
	}
	if !r.beginLoading(a) {
		r.noteVoid()
		return false
	}
	r.startLoad(loading, a)
	l, ok := r.awaitLoad(limited, loading, a)
	if !ok {
		return false
	}
	r.noteReturn()
	noteEnd()                     // the keeper goes on through the commit
	abort(context.Cause(limited)) // as limited's end does, which may be on its way
	return finish(ctx, l)
}

// awaitLoad waits for the load's result until the end of limited: by RebuildTimeout, by yield or with the flight. ok is
// false if the load is given up. loading is the load's context.
func (r *run) awaitLoad(limited, loading context.Context, a *attempt) (l loaded, ok bool) {
	returned := true
	select {
	case l = <-a.result:
	case <-limited.Done():
		if returned = len(a.result) > 0; returned {
			l = <-a.result // the load ended in time
		}
	}
	switch cause := context.Cause(limited); {
	case cause == errRival, cause == driver.ErrLeaseLost:
		return l, false // the flight waits for the other's value, whether or not the load heeds its context
	case !returned:
		return loaded{basis: a.basis, err: cause, ended: r.engine.clock.Now()}, true
	case errors.Is(context.Cause(loading), fault.ErrInvalidated):
		r.noteVoid()
		return l, false
	case l.err != nil && cause != nil:
		l.err = cause // the load's error only repeats the end of its context
	}
	return l, true
}

// noteVoid notes a void load, and reports whether it is the flight's last. The cause may go on, so the next look
// comes after a pause. No pause follows the first void load unless its commit was fenced (settleUnlessFenced).
func (r *run) noteVoid() (last bool) {
	if r.leading.voids++; r.leading.voids > 1 {
		r.looking.pause = polls.Shortest << r.leading.voids
	}
	return r.leading.voids >= maxVoid
}

// awaitRound waits, in a batch, for the round of the flight's slot: the load begins with the round. It returns when
// the round began. ok is false if the flight is to look again, as after a load that is given up, or because a
// round has taken the slot without the flight.
func (r *run) awaitRound(ctx context.Context, a *attempt) (began time.Time, ok bool) {
	if r.member == nil || r.member.user == nil {
		return time.Now(), true
	}
	if a.seat = r.member.gathered.Ready(); a.seat == nil {
		return began, false
	}
	select {
	case <-a.seat.Begins():
		return a.seat.Began(), true
	case <-ctx.Done():
		return began, false
	}
}

// startLoad starts the load, which has begun.
func (r *run) startLoad(loading context.Context, a *attempt) {
	if a.seat != nil {
		a.seat.Enter(a) // before user code, for which the other members do not wait
	}
	watched := r.watchLoad(loading) // an observer may call Goexit
	r.engine.count.loads.Add(1)
	a.start(watched, r.slot)
	r.slot = nil // only now: the caller's context may panic or exit in start
}

// beginLoading makes a the load under way, unless the key was invalidated since the last look or the
// cache is closed: Close may have ended the flight that had the slot before.
func (r *run) beginLoading(a *attempt) bool {
	f, e := r.flight, r.engine
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.outdated() && !a.last || e.open.Err() != nil {
		return false
	}
	if f.outdated() {
		r.present = nil // the item is from before the invalidation, unlike the load's value
	}
	r.present = e.afterSweeps(f.key, r.present) // sweeps while the flight queued
	a.present, a.loadBegan, a.position = r.present, e.clock.Now()+1, e.sweeps.Log().Position()
	f.current, f.goesOn = a, true
	return true
}
