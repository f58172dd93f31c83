package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the state standing: the flight stands for election. With an engine that is store and locker
// at once, the last look has held the election (election.go).

// stand is the state standing. The outcome is elected, without a lease, also if there is no election.
func (r *run) stand(ctx context.Context) rebuildOutcome {
	r.leading.epoch = 0
	b := r.standing.ballot
	switch {
	case r.looking.waives():
		r.declineElection(ctx)
		r.leading.epoch = r.looking.unshared // no claim: a new epoch would make all others load again
		return outcomeElected
	case b != nil:
		r.standing.ballot = nil
		if b.lease != nil {
			r.leading.epoch = b.epoch // claimed in the election
		}
		return r.decide(b.lease, b.held)
	case r.engine.Locker == nil, !r.takesWrites(ctx):
		return outcomeElected // otherwise the elected processes would take turns to find that the store takes nothing
	case r.engine.Engine != nil:
		return outcomeOutdated // the look held no election; the flight has a slot now, so the next look does
	}
	return r.elect(ctx)
}

// elect asks the locker for the lease. If a notice comes before the flight's turn, the flight does not stand: of a
// thousand keys that expire together, most are rebuilt elsewhere by then.
func (r *run) elect(ctx context.Context) rebuildOutcome {
	e, overtaken := r.engine, false
	r.standing.asked, r.standing.length = e.clock.Now(), r.leaseLength()
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, r.budget, func(ctx context.Context) (driver.Lease, error) {
		if overtaken = len(r.notices) > 0; overtaken {
			return nil, context.Canceled // not recorded as the locker's failure
		}
		return e.Locker.TryAcquire(ctx, e.engineKey(r.key), r.standing.length)
	})
	if overtaken {
		r.freeSlot()
		select {
		case n := <-r.notices:
			return ending(r.answerByNotice(ctx, n))
		default: // the watch for a rival, left by an earlier load, has taken the notice
		}
		return outcomeOutdated
	}
	if err == nil {
		return r.decide(lease, nil)
	}
	// A lease beside an error does not count: it may be a nil pointer.
	held, known := errors.AsType[*driver.HeldError](err)
	switch {
	case known:
	case errors.Is(err, driver.ErrHeld):
		held = &driver.HeldError{Key: r.key}
	default:
		r.noAnswer(ctx, "acquiring the lease of", err)
	}
	return r.decide(nil, held)
}

// decide is the outcome of an election with its lease, with the present holder, or with neither for no answer.
func (r *run) decide(lease driver.Lease, held *driver.HeldError) rebuildOutcome {
	if lease == nil && held == nil {
		held = r.knownHolder()
	}
	if lease == nil && held != nil {
		r.waitFor(held)
		return outcomeHeld
	}
	r.leading.lease = lease
	return outcomeElected
}

func (r *run) waitFor(held *driver.HeldError) {
	e, w := r.engine, &r.waiting
	if w.holder == nil {
		e.count.waits.Add(1)
		w.since = e.clock.Now()
		if r.present != nil {
			w.known = r.present.Epoch
		}
		if after := r.hedgeAfter(); after > 0 {
			w.hedge.at = durations.Add(w.since, after)
		}
	}
	w.holder = held
}

// takesWrites reports whether the store takes writes. After an outage it asks the store: otherwise each process's first
// load would go on without a lease, beside the others'.
func (r *run) takesWrites(ctx context.Context) bool {
	sound := func() bool { return r.engine.writes.Sound(r.key) }
	return !r.storeDown && (sound() || r.probe(ctx) && sound())
}

// knownHolder is the flight's holder after an election without an answer: otherwise each process of a polling
// fleet would begin a load. It is nil once the lease is free, or the locker counts as down.
func (r *run) knownHolder() *driver.HeldError {
	e := r.engine
	if !r.waiting.freed && e.locker.Sound(r.key) && e.clock.Now() < r.waiting.leaseEnd {
		return r.waiting.holder
	}
	return nil
}
