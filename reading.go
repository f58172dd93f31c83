package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file reads the store for a flight: alone, with the log of sweeps, or with other flights' looks.

func (k *storeKey) read(ctx context.Context, budget *gate.Budget) lookout.Reply {
	e := k.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, k.key, budget, func(ctx context.Context) (driver.Entry, error) {
		return e.Store.Get(ctx, e.engineKey(k.key))
	})
	return lookout.Reply{Entry: entry, Asked: asked, Came: e.clock.Now(), Err: err}
}

// persist returns the reply, or repeats a read without an answer: one lost packet is not an outage. A dead engine
// fails again, and opens its breaker or uses up the budget.
func (r *run) persist(ctx context.Context, there lookout.Reply) lookout.Reply {
	for try := 1; try < gate.Trips && there.Silent() && ctx.Err() == nil && r.budget.Left() > 0 && r.engine.store.Retries(); try++ {
		r.noAnswer(ctx, "reading", there.Err)
		there = r.read(ctx, r.budget)
	}
	return there
}

// askFenced asks a Fencer whether something later than epoch counts. It returns false without a Fencer,
// an epoch or an answer: a silent store cannot say so.
func (f *flight) askFenced(ctx context.Context, budget *gate.Budget, epoch uint64) bool {
	e := f.engine
	if e.fencer == nil || epoch == 0 {
		return false
	}
	fenced, err := gate.Ask(ctx, e.store, f.key, budget, func(ctx context.Context) (bool, error) {
		return e.fencer.Fenced(ctx, e.engineKey(f.key), epoch)
	})
	return err == nil && fenced
}

// readWithLog reads the key, and the log of sweeps if due. The two are one request where the store can.
func (r *run) readWithLog(ctx context.Context) lookout.Reply {
	if there := r.followLogAhead(ctx); there != nil {
		return r.persist(ctx, *there)
	}
	// With a free turn the look is made at once. Without an Elector the look is a flight's only call of the store in
	// turn. Under overload the turns then have to pass over the oldest looks, because their callers leave next.
	if e := r.engine; e.Engine != nil && e.lookout.SharesWithin(r.budget) && e.store.Crowded() {
		if there := e.lookout.InQueue(ctx, r.key, r.budget); there != nil {
			return *there
		}
	}
	return r.persist(ctx, r.read(ctx, r.budget))
}

// replyAtHand returns a function in place of these reads, for a flight whose key has been read with others.
func (r *run) replyAtHand(there *lookout.Reply) func(context.Context) lookout.Reply {
	return func(ctx context.Context) lookout.Reply {
		r.engine.sweeps.Follow(ctx, r.budget, r.logAge())
		return *there
	}
}

// logAge is the age at which a look reads the log of sweeps again. It is 0 after an earlier election:
// a store that has lost the key during the flight's load may have lost the log too.
func (r *run) logAge() time.Duration {
	if r.leading.again {
		return 0
	}
	return r.engine.NearTTL / 2
}

// followLogAhead follows the log for a flight before it reads its key. A store that answers for many keys gets
// both keys in one call, and the result is the answer for the flight's key. Otherwise the result is nil.
func (r *run) followLogAhead(ctx context.Context) (key *lookout.Reply) {
	e := r.engine
	if !e.lookout.Shares() {
		e.sweeps.Follow(ctx, r.budget, r.logAge())
		return nil
	}
	turn := e.sweeps.Turn(ctx, r.budget, r.logAge())
	if turn == nil {
		return nil
	}
	defer turn.End()
	var log *lookout.Reply
	took := false
	names := []string{e.ownName(sweeplog.Key), e.engineKey(r.key)}
	err := e.lookout.ReadMany(ctx, sweeplog.Key, func() []string { return names }, r.budget, func(i int, reply *lookout.Reply) {
		switch {
		case i == 1:
			key = reply
		case reply.Err == nil:
			// At once: other keys must not wait for the server of this key.
			took = true
			turn.Took(ctx, r.budget, reply.Entry, nil)
		default:
			log = reply
		}
	})
	if !took {
		if log == nil {
			// The key's answer does not count without the log's.
			log, key = &lookout.Reply{Err: err}, nil
		}
		turn.Took(ctx, r.budget, log.Entry, log.Err)
	}
	return key
}
