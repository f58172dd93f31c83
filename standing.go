package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the state standing: the flight stands for election. An engine that is store and locker at
// once elects in the same request in which it is looked into.

// A standingState is what a flight knows of its last election.
type standingState struct {
	asked  instant       // when it last stood
	length time.Duration // of the lease that it asked for then
	// ballot is what the last look has brought of an election, with an elector. It is nil if
	// that was a look alone or has found a fresh entry, and once the flight has acted on it.
	ballot *ballot
}

// A ballot is what an elector said of an election, where no entry was the answer; or that it
// said nothing, if neither lease nor held is there.
type ballot struct {
	lease driver.Lease
	epoch uint64
	held  *driver.HeldError
}

// stand is the state standing. With an elector the look has been the election already.
func (r *run[V]) stand(ctx context.Context) rebuildOutcome {
	if r.looking.unshared != 0 {
		r.declineElection(ctx)
		return outcomeUnshared
	}
	if r.standing.ballot == nil && r.electsAtOnce() {
		return outcomeOutdated // the look was without an election; the next one has a place
	}
	lease, held, overtaken := r.elect(ctx)
	switch {
	case ctx.Err() != nil:
		if lease != nil {
			r.release(ctx, lease)
		}
		return outcomeOutdated
	case overtaken:
		r.freeSlot()
		select {
		case n := <-r.notices:
			return ending(r.told(ctx, n))
		default: // the watch for a rival, that of an earlier load, has taken it
		}
		return outcomeOutdated
	case held != nil:
		r.waitFor(held)
		return outcomeHeld
	}
	r.leading.lease = lease
	return outcomeElected
}

// elect stands for election. With neither a lease nor another holder there is
// nobody to elect: no locker, or none that answers. overtaken is that a notice
// has come before it was the flight's turn to ask: where a thousand keys expire at
// one time, most of the leases would be of keys that others have rebuilt by then.
func (r *run[V]) elect(ctx context.Context) (_ driver.Lease, _ *driver.HeldError, overtaken bool) {
	e := r.engine
	if b := r.standing.ballot; b != nil {
		if lease := b.lease; lease != nil {
			b.lease = nil // the epoch is for claim
			return lease, nil, false
		}
		if r.standing.ballot = nil; b.held != nil {
			return nil, b.held, false
		}
		return nil, r.knownHolder(), false
	}
	if e.Locker == nil || r.storeDown || !e.writes.Sound(r.key) {
		return nil, nil, false // or those elected would take turns to find out that the store takes nothing
	}
	e.enter(r.key, phaseStanding)
	r.standing.asked, r.standing.length = e.clock.Now(), r.leaseLength()
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, r.budget, func(ctx context.Context) (driver.Lease, error) {
		if overtaken = len(r.notices) > 0; overtaken {
			return nil, context.Canceled // which says nothing about the engine
		}
		return e.Locker.TryAcquire(ctx, e.engineKey(r.key), r.standing.length)
	})
	if err == nil {
		return lease, nil, false
	}
	if overtaken {
		return nil, nil, true
	}
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		return nil, held, false
	}
	if errors.Is(err, driver.ErrHeld) {
		return nil, &driver.HeldError{Key: r.key}, false
	}
	if ctx.Err() != nil {
		return nil, nil, false
	}
	r.noAnswer(ctx, "acquiring the lease of", err)
	return nil, r.knownHolder(), false
}

// knownHolder is the holder that the flight waits for, when an election has had no answer: one
// lost answer says nothing about that holder, and a fleet that polls would begin a load in
// each process. It is nil once the lease has ended, or the engine is taken for down.
func (r *run[V]) knownHolder() *driver.HeldError {
	e := r.engine
	if r.waiting.holder != nil && !r.waiting.freed && e.locker.Sound(r.key) && e.clock.Now() < r.waiting.leaseEnd {
		return r.waiting.holder
	}
	return nil
}

// electsAtOnce reports whether one request can look, elect and claim. That is a write.
func (r *run[V]) electsAtOnce() bool {
	e := r.engine
	return e.Engine != nil && !r.storeDown && e.writes.Sound(r.key)
}

// readAndStand is read by an elector. Unless the entry is fresh and later than the entries that the
// flight has refused, the flight stands for election in the same request. The log is read in a
// request of its own: a key that came along with it would be a look without an election.
//
// The election has half of the flight's budget. Without an answer the flight reads alone with the
// rest: an engine whose writes are silent may still have a fresh entry.
func (r *run[V]) readAndStand(ctx context.Context) storeReply {
	e := r.engine
	e.sweeps.Follow(ctx, r.budget, r.logAge())
	e.enter(r.key, phaseStanding)
	asked := e.clock.Now()
	r.standing.asked, r.standing.length = asked, r.leaseLength()
	won, err := gate.AskInTurn(ctx, e.writes, r.key, r.budget.Half(), func(ctx context.Context) (driver.Election, error) {
		return e.Engine.Elect(ctx, e.engineKey(r.key), r.looking.past, r.standing.length)
	})
	if err != nil {
		if ctx.Err() != nil {
			return storeReply{asked: asked, err: err}
		}
		r.noAnswer(ctx, "standing for the election of", err)
		r.standing.ballot = &ballot{}
		return r.read(ctx, r.budget)
	}
	if answers := won.Entry.Fresh() && won.Entry.Epoch > r.looking.past; !answers || won.Lease != nil {
		// With neither a lease nor a holder it counts as no answer: the flight would ask again
		// without end.
		r.standing.ballot = &ballot{won.Lease, won.Epoch, won.Held}
	}
	if won.Entry.Kind == driver.KindNone && won.Entry.Failures == 0 {
		err = ErrNotFound
	}
	return storeReply{won.Entry, asked, err}
}

// declineElection gives a lease back that a look has brought and the flight has no use for: it has
// ended, or has to look again.
func (r *run[V]) declineElection(ctx context.Context) {
	b := r.standing.ballot
	r.standing.ballot = nil
	if b != nil && b.lease != nil {
		r.leading.lease = b.lease
		r.releaseBehind(ctx)
	}
}
