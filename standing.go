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
func (r *run[V]) stand(ctx context.Context) rebuildOutcome {
	r.leading.epoch = 0
	if r.looking.unshared != 0 {
		r.declineElection(ctx)
		return outcomeUnshared
	}
	if r.standing.waived = r.looking.unelected; r.standing.waived {
		r.declineElection(ctx)
		return outcomeElected // without a lease: no process waits for another's failure
	}
	if r.standing.ballot == nil && r.engine.Engine != nil && r.takesWrites(ctx) {
		return outcomeOutdated // the look held no election; the flight has a slot now, so the next look does
	}
	lease, held, overtaken := r.elect(ctx)
	switch {
	case overtaken:
		r.freeSlot()
		select {
		case n := <-r.notices:
			return ending(r.answerByNotice(ctx, n))
		default: // the goroutine of rival, left by an earlier load, has taken the notice
		}
		return outcomeOutdated
	case held != nil:
		r.waitFor(held)
		return outcomeHeld
	}
	r.leading.lease = lease
	return outcomeElected
}

func (r *run[V]) waitFor(held *driver.HeldError) {
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

// elect stands for election. It returns the lease or the present holder, and neither without a locker or a
// store that takes writes. Without an answer the holder is knownHolder's. overtaken: a notice came before the
// flight's turn. Of a thousand keys that expire together, most are rebuilt elsewhere by then.
func (r *run[V]) elect(ctx context.Context) (_ driver.Lease, _ *driver.HeldError, overtaken bool) {
	e := r.engine
	if b := r.standing.ballot; b != nil {
		r.standing.ballot = nil
		switch {
		case b.lease != nil:
			r.leading.epoch = b.epoch // claimed in the election
			return b.lease, nil, false
		case b.held != nil:
			return nil, b.held, false
		}
		return nil, r.knownHolder(), false
	}
	if e.Locker == nil || !r.takesWrites(ctx) {
		return nil, nil, false // otherwise the elected processes would take turns to find that the store takes nothing
	}
	r.standing.asked, r.standing.length = e.clock.Now(), r.leaseLength()
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, r.budget, func(ctx context.Context) (driver.Lease, error) {
		if overtaken = len(r.notices) > 0; overtaken {
			return nil, context.Canceled // not recorded as the locker's failure
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

// takesWrites reports whether the store takes writes. After an outage it asks the store: otherwise each process's first
// load would go on without a lease, beside the others'.
func (r *run[V]) takesWrites(ctx context.Context) bool {
	sound := func() bool { return r.engine.writes.Sound(r.key) }
	return !r.storeDown && (sound() || r.probe(ctx) && sound())
}

// knownHolder is the flight's holder after an election without an answer: otherwise each process of a polling
// fleet would begin a load. It is nil once the lease is free, or the locker counts as down.
func (r *run[V]) knownHolder() *driver.HeldError {
	e := r.engine
	if r.waiting.holder != nil && !r.waiting.freed && e.locker.Sound(r.key) && e.clock.Now() < r.waiting.leaseEnd {
		return r.waiting.holder
	}
	return nil
}
