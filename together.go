package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"golang.org/x/sync/semaphore"
)

// This file joins the flights of a batch: they make their first look together, and load together (internal/gather).

// batch returns a batch whose flights load together if the load is a batchLoad, or each by itself. Each flight
// returns a place of places unless nil.
func (e *engine[V]) batch(load binder[V], places *semaphore.Weighted) *batch[V] {
	user, _ := load.(batchLoad[V])
	b := &batch[V]{engine: e, single: load, user: user, places: places, complete: make(chan struct{})}
	o := gather.Options[*member[V], loadResult[V]]{
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
	m.askers, m.look = &f.askers, e.lookout.New(f.key, f.budget)
	m.gathered = m.loads.Join(m)
	if m.looks = append(m.looks, m.look); len(m.looks) == 1 && e.lookout.Shares() {
		e.count.awaitingFirstLook.Add(1) // the request counts for all flights of the batch
		e.running.Go(func() {
			defer e.count.awaitingFirstLook.Add(-1)
			<-m.complete
			e.lookout.Ask(f.ctx, m.looks)
		})
	}
}

func (b *batch[V]) load(ctx context.Context, seats []*gather.Seat[*member[V], loadResult[V]]) {
	requests, makes, starts := make([]Request[V], len(seats)), make([]*chain.Flight, len(seats)), make([]*items.Item[V], len(seats))
	for i, s := range seats {
		// Read once: after this load is given up on, the member may begin another load.
		starts[i], makes[i] = s.Key.start.Load(), s.Key.askers
		requests[i] = requestOf(s.Key.key, starts[i])
	}
	load := chain.NewCommonLoad(ctx, b.engine.slots, makes...)
	ctx, cancel := context.WithTimeoutCause(load, b.engine.RebuildTimeout, ErrRebuildTimeout)
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
		for i, s := range seats {
			s.Result.product, s.Result.err = resultOf(results, batchErr, err, s.Key.key, starts[i])
		}
		load.Slot.End()
	})
}
