package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"golang.org/x/sync/semaphore"
)

// This file joins the flights of a batch: they make their first look together, and load together (internal/gather).

// batch returns a batch whose flights load together if the load is a commonLoader, or each by itself. Each flight
// returns a place of places unless nil.
func (e *engine) batch(load binder, places *semaphore.Weighted) *batch {
	user, _ := load.(commonLoader)
	b := &batch{engine: e, single: load, user: user, places: places, complete: make(chan struct{})}
	o := gather.Options{
		Slots: e.slots, Longest: e.EngineTimeout,
		Closed: func() bool { return e.open.Err() != nil },
	}
	if b.user != nil {
		o.Load = b.load
	}
	b.loads = gather.New(o)
	return b
}

// join makes the new flight a member. shard.mu is held, and complete is not closed.
func (m *member) join(f *flight) {
	e := m.engine
	m.look, m.gathered = e.lookout.New(f.key, f.budget), m.loads.Join()
	if m.looks = append(m.looks, m.look); len(m.looks) == 1 && e.lookout.Shares() {
		e.count.awaitingFirstLook.Add(1) // the request counts for all flights of the batch
		e.start(func() {
			defer e.count.awaitingFirstLook.Add(-1)
			select {
			case <-m.complete:
				e.lookout.Ask(f.ctx, m.looks)
			case <-e.open.Done(): // before the end of a batch window
			}
		})
	}
}

func (b *batch) load(ctx context.Context, began time.Time, seats []*gather.Seat) {
	attempts, makes := make([]*attempt, len(seats)), make([]*chain.Flight, len(seats))
	for i, s := range seats {
		attempts[i] = s.Key.(*attempt)
		makes[i] = &attempts[i].askers
	}
	load := chain.NewCommonLoad(ctx, b.engine.slots, makes...)
	ctx, cancel := context.WithDeadlineCause(load, began.Add(b.engine.RebuildTimeout), ErrRebuildTimeout)
	defer cancel()
	result := commonResult(func(_ *attempt, _ *BatchError, err error) (items.Product, error) { return items.Product{}, err })
	var batchErr *BatchError
	fault.Run(func() (err error) {
		result, err = b.user.load(ctx, attempts)
		// errors.AsType runs the error's code, so it runs within the guard of fault.Run.
		batchErr, _ = errors.AsType[*BatchError](err)
		return err
	}, func(err error) {
		end := context.Cause(ctx)
		for i, s := range seats {
			if s.Product, s.Err = result(attempts[i], batchErr, err); s.Err != nil && end != nil {
				s.Err = end // as in awaitLoad: the end of the member's own context may be on its way
			}
		}
		load.Slot.End()
	})
}
