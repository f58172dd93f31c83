package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file reads the store for a flight: alone, or with other flights' looks.

func (k *storeKey[V]) read(ctx context.Context, budget *gate.Budget) lookout.Reply {
	e := k.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, k.key, budget, func(ctx context.Context) (driver.Entry, error) {
		return e.Store.Get(ctx, e.engineKey(k.key))
	})
	return lookout.Reply{Entry: entry, Asked: asked, Came: e.clock.Now(), Err: err}
}

// persist returns the reply, or repeats a read without an answer: one lost packet is not an outage. A dead engine
// fails again, and opens its breaker or uses up the budget.
func (r *run[V]) persist(ctx context.Context, there lookout.Reply) lookout.Reply {
	for try := 1; try < gate.Trips && there.Silent() && ctx.Err() == nil && r.budget.Left() > 0 && r.engine.store.Retries(); try++ {
		r.noAnswer(ctx, "reading", there.Err)
		there = r.read(ctx, r.budget)
	}
	return there
}

// readOrQueue reads the key, with a free turn at once. Without an Elector the look is a flight's only call of the store
// in turn. Under overload the turns then have to pass over the oldest looks, because their callers leave next.
func (r *run[V]) readOrQueue(ctx context.Context) lookout.Reply {
	if e := r.engine; e.Engine != nil && e.lookout.SharesWithin(r.budget) && e.store.Crowded() {
		if there := e.lookout.InQueue(ctx, r.key, r.budget); there != nil {
			return *there
		}
	}
	return r.persist(ctx, r.read(ctx, r.budget))
}

// replyAtHand returns a function in place of these reads, for a flight whose key has been read with others.
func replyAtHand(there *lookout.Reply) func(context.Context) lookout.Reply {
	return func(context.Context) lookout.Reply { return *there }
}

// logAge is the age at which a look reads the log of sweeps again. It is 0 after an earlier election:
// a store that has lost the key during the flight's load may have lost the log too.
func (r *run[V]) logAge() time.Duration {
	if r.leading.again {
		return 0
	}
	return r.engine.NearTTL / 2
}
