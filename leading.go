package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/leases"
)

// This file is the state leading, and alone: the flight has the lease, or needs none. It claims an epoch,
// loads and ends with what the load came to.

// A leadingState is what a flight knows of its own loads.
type leadingState struct {
	lease   driver.Lease // the flight's own while it rebuilds with one
	made    instant      // the item.made of what the latest load makes
	load    currentLoad  // that load, while it is the flight's current one
	again   bool         // the flight has been elected before, and has to begin anew
	fenced  bool         // the last of its commits was refused
	losses  int          // how often its lease was lost
	refused int          // how often its loads came to nothing, see maxRefused
}

// lead is the state leading: it rebuilds the key as the holder of r.leading.lease, which is nil if there is no
// election. The flight has a place among MaxRebuilds, which goes to the load: the load may outlast
// the flight.
func (r *run[V]) lead(ctx context.Context) (o rebuildOutcome) {
	e, lease := r.engine, r.leading.lease
	r.flight.lead()
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

	epoch, ended := r.claim(ctx)
	if ended {
		return outcomeAnswered
	}
	if ctx.Err() != nil || r.looking.unshared != 0 {
		return outcomeOutdated
	}
	if epoch == 0 || e.commits.Fail(e.clock.Now()) && !r.probe(ctx) {
		// Nobody will find this load's value in the store. Who waited for it
		// would wait in vain, and the next after that one.
		r.releaseBehind(ctx)
	}
	if epoch == 0 || e.Locker != nil && lease == nil {
		e.count.degraded.Add(1)
	}
	var rival <-chan struct{}
	if e.Hedge > 0 && lease != nil && epoch != 0 {
		watching, end := context.WithCancel(ctx)
		defer end()
		rival = r.rival(watching, epoch, e.clock.Now())
	}
	e.hedges.Earn(e.HedgeShare)
	return ending(r.build(ctx, epoch, rival, r.finish))
}

// loadAlone is the state alone: the store has the mark of a holder whose value it has not taken.
func (r *run[V]) loadAlone(ctx context.Context) rebuildOutcome {
	defer r.freeSlot() // the load may not have begun
	return ending(r.build(ctx, r.looking.unshared, nil, r.finish))
}

// claim reads the key again, now that nobody else may rebuild it, and takes an
// epoch for the rebuild, in one call. Who has won the lease just after another
// released it finds that one's value here, and the flight has ended.
func (r *run[V]) claim(ctx context.Context) (epoch uint64, ended bool) {
	if b := r.standing.ballot; b != nil { // the election was a look, and a claim
		r.standing.ballot = nil
		return b.epoch, false
	}
	asked := r.engine.clock.Now()
	r.looking.before, r.looking.asked = r.looking.asked, asked
	// It is a look: an invalidation before it is nothing that it could miss, and
	// is no reason to stand for election again, nor to queue for another slot.
	outdated := r.lookAgain()
	entry, epoch := r.takeEpoch(ctx)
	if epoch == 0 || r.engine.Store == nil {
		if outdated {
			r.present = nil
		}
		return epoch, false
	}
	known, _ := r.engine.near.Get(r.key)
	it := r.decode(entry, known, asked)
	if it == nil && r.state.Load().offered != nil {
		r.offerStale(nil) // it was invalidated since the look
	}
	return epoch, r.consider(it, true)
}

// takeEpoch returns a new epoch for the key, and its present entry. The epoch
// is 0 if the store does not answer.
func (r *run[V]) takeEpoch(ctx context.Context) (entry driver.Entry, epoch uint64) {
	e := r.engine
	if e.Store == nil {
		return driver.Entry{}, e.nextEpoch()
	}
	if r.storeDown {
		return driver.Entry{}, 0
	}
	e.enter(r.key, phaseClaiming)
	entry, err := gate.Ask(ctx, e.writes, r.key, r.budget, func(ctx context.Context) (entry driver.Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(r.key))
		return entry, err
	})
	if err != nil {
		r.noAnswer(ctx, "claiming", err)
		r.storeDown = true
		return driver.Entry{}, 0
	}
	return entry, epoch
}

// build loads the value, under the lease if the flight has one, and ends the
// flight with it by finish. It gives up when rival is closed: another process has
// committed its value. It reports whether the flight has ended.
func (r *run[V]) build(ctx context.Context, epoch uint64, rival <-chan struct{}, finish func(context.Context, loaded[V], uint64) bool) (ended bool) {
	limited, cancel := context.WithTimeoutCause(ctx, r.engine.RebuildTimeout, ErrRebuildTimeout)
	defer cancel()
	loading, abort := context.WithCancelCause(limited)
	defer abort(nil)
	defer func() { r.unwatchLoad(ended) }() // also if an observer does not return
	result, lost := r.startLoad(loading, abort, epoch)
	if result == nil {
		r.leading.refused++
		return false
	}
	for {
		select {
		case l := <-result:
			if errors.Is(context.Cause(loading), fault.ErrInvalidated) {
				r.leading.refused++
				return false
			}
			if l.err != nil && limited.Err() != nil {
				l.err = context.Cause(limited) // what else it says is the echo of that
			}
			abort(nil) // ends the keeper: it must not renew what is being released
			return finish(ctx, l, epoch)
		case <-rival:
			rival = nil
			if r.giveUp(errRival) {
				r.releaseBehind(ctx)
				return false
			}
		case <-lost:
			// Another holds the lease by now, and its value is the one to wait
			// for, whether or not our load heeds its context. A response that
			// clients are reading goes on; the fenced commit decides. So it
			// does when a lease is lost once more: a locker that loses each is
			// no reason not to finish any load.
			lost = nil
			if r.leading.losses++; r.leading.losses == 1 && r.giveUp(driver.ErrLeaseLost) {
				return false
			}
		case <-limited.Done():
			if len(result) > 0 {
				continue // both at once: the load was in time
			}
			return finish(ctx, loaded[V]{err: context.Cause(limited)}, epoch)
		}
	}
}

// startLoad starts the load, and what stands beside it: the keeper of the lease, if the flight has one,
// and the confirmation of what is offered. lost is closed when the lease is another's. result is nil if
// the key was invalidated since the epoch was claimed, or the cache is closed.
func (r *run[V]) startLoad(loading context.Context, abort context.CancelCauseFunc, epoch uint64) (result <-chan loaded[V], lost chan struct{}) {
	e := r.engine
	// An election in the same request as the look, and a claim that has found another entry, may
	// have asked for a longer lease than the key's builds need: its first renewal shortens it.
	term := leases.Term{Began: r.standing.asked, Asked: r.standing.asked, Length: min(r.standing.length, r.leaseLength())}
	l := currentLoad{abort: abort, last: r.leading.refused+1 >= maxRefused, storeless: r.storeDown, asked: r.looking.asked, heldUntil: forever}
	if r.leading.lease != nil {
		l.heldUntil = term.End()
	}
	if !r.beginLoading(epoch, l) {
		return nil, nil
	}
	if lease := r.leading.lease; lease != nil {
		lost = make(chan struct{})
		e.running.Go(func() { r.keep(loading, lease, term, lost) })
	}

	if e.Store != nil && r.state.Load().offered != nil {
		e.running.Go(func() { r.confirm(loading) })
	}

	r.leading.made = e.clock.Now() + 1
	if r.leading.lease != nil {
		e.trips.Note(r.leading.made - r.standing.asked)
	}
	a := attempt[V]{flight: r.flight, present: r.present, made: r.leading.made, position: r.witness.position}
	r.loaded = false
	watched := r.watchLoad(loading) // it may not return
	e.count.loads.Add(1)
	free := r.slot
	r.slot = nil
	result = a.start(watched, free)
	e.enter(r.key, phaseLoading)
	return result, lost
}

// finish ends the flight with what the load came to, after the store has taken
// it. It returns false if the store, or an invalidation here, has something
// later to say: then nobody gets it, and the flight looks again.
func (r *run[V]) finish(ctx context.Context, l loaded[V], epoch uint64) bool {
	e := r.engine
	now := e.clock.Now() // its age counts from here
	if !r.storeDown {
		e.sweeps.Follow(ctx, r.budget, e.NearTTL/2) // the load may have taken longer than the log is trusted
	}
	r.loaded, r.failure, r.committed = true, nil, 0
	switch {
	case errors.Is(l.err, fault.ErrNothing):
		return r.finishNothing(ctx, l.err)
	case l.err == nil || fault.NotFound(l.err):
		return r.finishFound(ctx, now, l, epoch)
	case ctx.Err() != nil:
		r.loaded = false // closed: that is no failure of the load's
		r.end(context.Cause(ctx))
		return true
	}
	e.count.loadFailures.Add(1)
	e.noteLoad(false)
	r.failure = l.err
	if r.want.Personal && errors.Is(l.err, ErrRebuildTimeout) {
		r.end(l.err) // those of other clients ask again
		return true
	}
	heard := r.callers.n.Load() > 0 || r.streaming()
	if !r.finishFailed(ctx, now, l.err, epoch) {
		return false
	}
	if !heard || r.state.Load().served(e.clock.Now()) {
		e.OnLoadError(r.key, &keyError{"refreshing", r.key, l.err})
	}
	return true
}

// finishNothing is finish for a load that has nothing to keep: what was there stays,
// unless it was invalidated meanwhile.
func (r *run[V]) finishNothing(ctx context.Context, err error) bool {
	e := r.engine
	if failure, ok := errors.AsType[*fault.Own](err); ok {
		e.count.loadFailures.Add(1)
		r.failure = failure.Err
	}
	if r.present != nil && r.lookAnew(ctx) {
		return true
	}
	if it := r.present; it != nil {
		e.keep(r.key, it, func() bool { return !r.outdated() })
	}
	r.end(errAgain) // who has not seen what was published asks again
	return true
}

// finishFound is finish for a value, or for the word that there is none.
func (r *run[V]) finishFound(ctx context.Context, now instant, l loaded[V], epoch uint64) bool {
	e := r.engine
	it := &items.Item[V]{
		Kind: driver.KindNotFound, Epoch: epoch, Build: l.took, Made: r.leading.made, Position: r.witness.position,
		Lifetime: e.lifetimeOf(now, l.lifetime(), r.key, epoch), Trusted: e.trustedUntil(now), Marks: l.marks,
	}
	succeeded := true
	if l.err == nil {
		it.Kind, it.Value, succeeded = driver.KindValue, l.value, !e.fails(l.value)
	}
	r.built(l.took)
	e.noteLoad(succeeded)
	switch written := r.commitOver(ctx, it, l.kept); {
	case written != fenced:
		if written == notTaken {
			r.keepBeside(it)
		}
		r.committed = e.clock.Now()
		// The other processes are woken first, and on their way to the store
		// while the callers here wake up.
		r.releaseBehind(ctx)
		if r.settle(it) {
			return true
		}
	case r.streaming():
		r.end(errAgain) // its readers have it already
		return true
	default:
		r.leading.fenced = true
	}
	if r.leading.refused++; r.leading.refused < maxRefused {
		return false
	}
	// It is for those who asked before its load began: whatever has fenced it
	// off came after them.
	given := *it
	given.Lifetime = items.NewLifetime(now, items.Windows{})
	r.give(&given, e.clock.Instant(l.began))
	return true
}

// finishFailed is finish for a load that failed: what was there stays there,
// and the failure is written beside it, so that it answers in every process
// until the next try is due.
func (r *run[V]) finishFailed(ctx context.Context, now instant, err error, epoch uint64) bool {
	e := r.engine
	if ctx.Err() != nil {
		r.end(context.Cause(ctx)) // closed: that is no failure of the load's
		return true
	}
	l := r.current // a look ends that
	// A context's end says nothing about the origin: remembered, one caller's
	// impatience would be everybody's failure. But what has taken too long, the
	// rebuild or a client's call in it, is told to those who wait for it elsewhere:
	// they would take turns to wait as long.
	remembered := !fault.Says(err, context.Canceled, context.DeadlineExceeded, ErrClosed, ErrOverloaded)
	told := remembered || errors.Is(err, context.DeadlineExceeded)
	switch {
	case told:
		// Since the flight looked, a Set may have committed that had claimed before the flight, or a
		// holder whose lease was lost: the failure stands beside their value, or is not told at all.
		if r.look(ctx) {
			return true
		}
		r.loaded, r.failure = true, err
	case r.present != nil && r.lookAnew(ctx):
		// What is served in the place of an untold failure may have been
		// invalidated while the load ran, and no commit checks that.
		return true
	}
	it := r.failureOf(now, err, remembered)
	if !told {
		switch {
		case r.storeDown:
			r.keepBeside(it)
		case l != nil: // a load has failed, and not the wait for a slot
			it.Trusted = r.trustedUntold(ctx, l.asked, epoch)
			return r.settleFor(it, max(it.Trusted, r.leading.made)) // who asked before the load began has it in any case
		}
		return r.settle(it)
	}
	it.Epoch, it.Beside = epoch, false
	written, is := r.touch(ctx, it, r.present)
	if is == displaced { // since the look
		if r.look(ctx) {
			return true
		}
		r.loaded, r.failure = true, err
		it = r.failureOf(now, err, remembered)
		it.Epoch, it.Beside = epoch, false
	}
	if is != touched {
		written = r.commit(ctx, it)
	}
	if written == notTaken {
		r.keepBeside(it)
	}
	r.leading.fenced = written == fenced
	r.committed = e.clock.Now()
	if !r.leading.fenced && r.settle(it) {
		return true
	}
	if r.streaming() {
		r.end(errAgain) // its readers have seen it break off; no other load could be shown here
		return true
	}
	if r.leading.refused++; r.leading.refused < maxRefused {
		return false
	}
	r.giveFailure(err, r.leading.made-1) // as in finishFound
	return true
}

// trustedUntold is the item.trusted of a failure that is not written into the store: no
// commit finds out whether its key was invalidated elsewhere since the load's epoch was
// asked for. It answers those whom the answer of then may answer; or of now, if the store says
// that it still holds.
func (r *run[V]) trustedUntold(ctx context.Context, asked instant, epoch uint64) instant {
	e := r.engine
	if e.fencer != nil && epoch != 0 {
		if now := e.clock.Now(); !r.flight.fenced(ctx, r.budget, epoch) {
			asked = now
		}
	}
	return e.trustedUntil(asked)
}

// failureOf is the item of a failure. A failure by itself is of now. Beside what was there
// it bears that one's position: what has been swept since that was made is not served for
// it. remembered tells whether it has a pause before the next try.
func (r *run[V]) failureOf(now instant, err error, remembered bool) *items.Item[V] {
	e := r.engine
	it := &items.Item[V]{Position: r.witness.position}
	it.Born = now
	if r.present != nil {
		it = r.present.Unweighed()
	}
	pause := e.ErrorTTL
	advice, advised := errors.AsType[fault.RetryAdvice](err)
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
	it.Early = earlyTryAfter(r.present, !advised && pause > 0)
	it.Err, it.Trusted, it.Made = err, e.trustedUntil(now), r.leading.made
	if !it.Stale(now) && now >= it.KeepUntil {
		var zero V
		it.Held, it.Kind, it.Value = false, driver.KindNone, zero
	}
	return it
}
