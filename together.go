package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gather"
	"golang.org/x/sync/semaphore"
)

// This file joins the flights of a batch: they make their first look together, and load together (internal/gather).

// batch returns a batch whose flights load together if the load is a batchLoad, or each by itself. Each flight
// returns a place of places unless nil.
func (e *engine[V]) batch(load binder[V], places *semaphore.Weighted) *batch[V] {
	user, _ := load.(batchLoad[V])
	b := &batch[V]{engine: e, single: load, user: user, places: places, complete: make(chan struct{})}
	o := gather.Options[*attempt[V], loadResult[V]]{
		Slots: e.slots, Running: &e.running, Longest: e.EngineTimeout,
		Closed: func() bool { return e.open.Err() != nil },
	}
	if b.user != nil {
		o.Load = b.load
	}
	b.loads = gather.New(o)
	return b
}

// join makes the new flight a member. shard.mu is held, and complete is not closed.
func (m *member[V]) join(f *flight[V]) {
	e := m.engine
	m.look, m.gathered = e.lookout.New(f.key, f.budget), m.loads.Join()
	if m.looks = append(m.looks, m.look); len(m.looks) == 1 && e.lookout.Shares() {
		e.count.awaitingFirstLook.Add(1) // the request counts for all flights of the batch
		e.start(func() {
			defer e.count.awaitingFirstLook.Add(-1)
			<-m.complete
			e.lookout.Ask(f.ctx, m.looks)
		})
	}
}

func (b *batch[V]) load(ctx context.Context, began time.Time, seats []*seat[V]) {
	requests, makes := make([]Request[V], len(seats)), make([]*chain.Flight, len(seats))
	for i, s := range seats {
		requests[i], makes[i] = requestOf(s.Key.key, s.Key.present), &s.Key.askers
	}
	load := chain.NewCommonLoad(ctx, b.engine.slots, makes...)
	ctx, cancel := context.WithDeadlineCause(load, began.Add(b.engine.RebuildTimeout), ErrRebuildTimeout)
	defer cancel()
	var results map[string]Result[V]
	var batchErr *BatchError
	fault.Run(func() (err error) {
		results, err = b.user(ctx, requests)
		// errors.AsType runs the error's code, so it runs within the guard of fault.Run.
		batchErr, _ = errors.AsType[*BatchError](err)
		if end := ctx.Err(); end != nil && err == end {
			return context.Cause(ctx) // the load's error only repeats the end of its context
		}
		return err
	}, func(err error) {
		for _, s := range seats {
			s.Result.product, s.Result.err = resultOf(results, batchErr, err, s.Key.key, s.Key.present)
		}
		load.Slot.End()
	})
}
