package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what a process keeps and finds without a flight: a variant, what a
// request past the cache has shown, an answer for one that wants no rebuild. There
// is no flight that an invalidation could end then, so whoever keeps a value has a
// witness that none has come in between.

// apart is a run without a flight that others could join, to read, write and decode
// with.
func (e *engine[V]) apart(key string, budget *gate.Budget) *run[V] {
	return &run[V]{flight: &flight[V]{key: key, engine: e, shard: e.shards.of(key), budget: budget}}
}

// put keeps a value that no flight of its key has made: a variant's, or what a
// request that went past the cache has shown. If over is not nil, it does so only in the
// place of that: an invalidation, or whatever else has come in between, knows better.
func (e *engine[V]) put(ctx context.Context, key string, v V, f items.Windows, position uint64, over *items.Item[V]) {
	d, there := e.apart(key, gate.NewBudget(e.EngineTimeout)).draft(ctx)
	defer d.end()
	switch {
	case over == nil:
	case e.Store == nil || d.run.storeDown:
		if !e.holdsNear(key, over) {
			return
		}
	case there.Epoch != over.Epoch || there.Epoch == 0: // 0 is nobody's in a store
		return
	}
	d.position = position
	d.keep(ctx, v, f)
}

// A draft is a value that is made without a flight. Its epoch was claimed before, so an
// invalidation meanwhile fences it off.
type draft[V any] struct {
	run      *run[V]
	epoch    uint64
	position uint64 // the log's, see item
	witness  *witness[V]
}

// draft begins the draft of a value for the run's key. The entry is what the store has there.
func (r *run[V]) draft(ctx context.Context) (_ *draft[V], there driver.Entry) {
	e := r.engine
	d := &draft[V]{run: r, witness: e.attendApart(r.key)}
	d.position = d.witness.position
	r.present, r.leading.made = e.near.Get(r.key)
	there, d.epoch = r.takeEpoch(ctx)
	return d, there
}

// end ends the draft, kept or not.
func (d *draft[V]) end() { d.run.engine.dismissApart(d.run.key, d.witness) }

// keep keeps the draft's value, unless something later is known of the key.
func (d *draft[V]) keep(ctx context.Context, v V, f items.Windows) {
	r, e := d.run, d.run.engine
	now := e.clock.Now()
	it := &items.Item[V]{Kind: driver.KindValue, Value: v, Epoch: d.epoch, Position: d.position, Trusted: e.trustedUntil(now)}
	it.Lifetime = e.lifetimeOf(now, f, r.key, d.epoch)
	switch {
	case r.storeDown || it.End() > now:
		switch r.commit(ctx, it) {
		case fenced:
			return
		case notTaken:
			r.keepBeside(it)
		}
	case e.Store != nil:
		// It ends what is there. Nobody waits for it, and is to be told that
		// there is no value to come.
		if errors.Is(r.write(ctx, driver.Entry{Epoch: d.epoch}), driver.ErrFenced) {
			return
		}
	}
	// There is no flight here that an invalidation could end. After one the store
	// alone has the value, if it has.
	e.keep(r.key, it, func() bool { return d.witness.generation == 0 })
}

// keep puts an item that ends no flight into the near tier, unless it was swept or the
// engine is closed. still tells, under the lock, whether nothing else has come in
// between.
func (e *engine[V]) keep(key string, it *items.Item[V], still func() bool) {
	e.weigh(key, it) // before the lock: it runs user code
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if it = e.spare(key, it); it != nil && !s.closed && still() {
		e.advanceNear(key, it)
	}
}

// putUnless keeps, where there is no store, a value that was made by a request
// which has invalidated the key itself, so many times: if w has seen more than that,
// the value may be older than what another such request has done.
func (e *engine[V]) putUnless(key string, v V, f items.Windows, w *witness[V], times int) {
	now := e.clock.Now()
	it := &items.Item[V]{Kind: driver.KindValue, Value: v, Epoch: e.nextEpoch(), Position: w.position, Trusted: e.trustedUntil(now)}
	it.Lifetime = items.NewLifetime(now, f)
	// A flight that has begun since the invalidation has something newer.
	e.keep(key, it, func() bool { return w.generation == uint64(times) && e.shards.of(key).flights[key] == nil })
}

// find returns what the near tier or the store knows of the run's key, nil if that is
// nothing.
func (r *run[V]) find(ctx context.Context) *items.Item[V] {
	e := r.engine
	it, now := e.near.Get(r.key)
	if it != nil && now < it.Trusted || e.Store == nil || e.open.Err() != nil {
		return it
	}
	e.sweeps.Follow(ctx, r.budget, e.NearTTL/2) // no flight has of late, perhaps
	there := r.read(ctx, r.budget)
	if there.err != nil {
		r.storeDown = errors.Is(there.err, ErrUnavailable)
		return nil
	}
	return r.decode(there.entry, it, there.asked)
}
