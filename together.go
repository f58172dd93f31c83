package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"golang.org/x/sync/semaphore"
)

// This file begins the flights of a batch and loads for them. The batch reads the store for all its flights
// before they start. They load together, see internal/gather.

// batch returns a batch whose flights load together by load, or each by single if load is nil. Each flight
// returns a place of places.
func (e *engine[V]) batch(single binder[V], load batchLoad[V], places *semaphore.Weighted) *batch[V] {
	b := &batch[V]{engine: e, single: single, user: load, places: places, complete: make(chan struct{})}
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
func (m *member[V]) join(ctx context.Context, f *flight[V]) {
	running := ctx
	m.runFlight, m.askers, m.budget = func() { f.runToEnd(running) }, &f.askers, f.budget
	m.gathered = m.loads.Join(m, m.order)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits = true
	m.unread++
	if m.members = append(m.members, m); len(m.members) == 1 {
		m.unread++ // all callers of all members may leave before the next member comes
		// Without its end: the first flight may end while the batch reads for the other flights.
		ctx, m.stopReading = context.WithCancel(context.WithoutCancel(ctx))
		m.read = func(store driver.BatchGetter) { m.readAll(ctx, store) }
	}
}

func (b *batch[V]) readAndStart() {
	<-b.complete
	if len(b.members) == 0 {
		return
	}
	defer b.stopReading()
	b.mu.Lock()
	b.forgo()
	b.mu.Unlock()
	defer func() { // also after a panic or Goexit of the adapter
		for _, m := range b.members {
			m.startFlight(nil, 0)
		}
	}()
	if store, ok := b.engine.Store.(driver.BatchGetter); ok {
		b.read(store)
	}
}

// readAll reads the store for all members. As a flight would, it asks again without an answer.
func (b *batch[V]) readAll(ctx context.Context, store driver.BatchGetter) {
	e := b.engine
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	budget := gate.NewBudget(e.EngineTimeout)
	rest, err := b.readOnce(ctx, store, b.waiting(), budget)
	for try := 1; try < gate.Trips && len(rest) > 0 && budget.Left() > 0 && e.store.Retries() && ctx.Err() == nil; try++ {
		e.noAnswer(rest[0].key, &keyError{"reading, with others,", rest[0].key, err})
		rest, err = b.readOnce(ctx, store, rest, budget)
	}
	for _, m := range rest {
		m.startFlight(&storeReply{err: err}, e.EngineTimeout) // the flight has no time left for engines
	}
}

// waiting returns the members whose flights have callers. Of a key with several flights this is the last.
func (b *batch[V]) waiting() (waiting []*member[V]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.waits {
			waiting = append(waiting, m)
		}
	}
	return waiting
}

// readOnce starts the members for which the store answers. It returns the others, and the reason.
func (b *batch[V]) readOnce(ctx context.Context, store driver.BatchGetter, members []*member[V], budget *gate.Budget) (rest []*member[V], err error) {
	if len(members) == 0 {
		return nil, nil
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = b.engine.engineKey(m.key)
	}
	lost := b.engine.EngineTimeout - budget.Left()
	answered, err := b.engine.readMany(ctx, store, members[0].key, func() []string { return names }, budget, func(i int, reply *storeReply) {
		members[i].startFlight(reply, lost)
	})
	for i, m := range members {
		if !answered[i] {
			rest = append(rest, m)
		}
	}
	return rest, err
}

// startFlight starts the flight with the store's reply, unless it has started. The flight's budget
// loses lost, the batch's time for the store. startFlight is called while readAndStart runs.
func (m *member[V]) startFlight(prefetched *storeReply, lost time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started {
		m.started, m.prefetched = true, prefetched
		m.budget.Spend(lost)
		if m.waits { // otherwise callersLeft has counted the member
			m.waits = false
			m.unread--
		}
		m.engine.running.Go(m.runFlight)
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
