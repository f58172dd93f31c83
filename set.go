package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is Set: a value goes to the store and then replaces the key's item in this process. A Set is
// no flight. A flight under way meets it as an invalidation of all earlier epochs, with a value.

// set puts the value under the key, in the order of invalidate. With the store first, a flight's
// reads and claims from before the commit are void here, and any later read finds the value or a
// later one. A flight with a later epoch goes on, because its load has begun after set.
func (e *engine) set(ctx context.Context, key string, value any) error {
	if e.open.Err() != nil {
		return ErrClosed
	}
	w := e.beginWitness(key)
	void := true // also if user code or the store's adapter does not return
	defer func() {
		e.endWitness(key, w)
		if void {
			e.voidAll(key)
		}
	}()
	earlier, now := e.near.Get(key) // the value's age counts from here
	// A sweep from before the Set, in a log that is read later, would take the value away.
	budget := gate.NewBudget(e.EngineTimeout)
	e.sweeps.Follow(ctx, budget.Half(), e.NearTTL/2)
	it := &items.Item{Kind: driver.KindValue, Value: value, Position: e.sweeps.Log().Position(), TrustedUntil: e.trustedUntil(now)}
	it.Lifetime = e.lifetimeOf(now, e.windows, key, 0) // the epoch is not known yet
	// Weigh runs user code, so it comes before the lock, and before others can see the value.
	err := fault.Guard(func() error { it.Weigh(key, e.size); return nil })
	if err == nil {
		it.Epoch, err = e.setInStore(ctx, key, budget, it)
	}
	switch {
	case err == nil:
		void = false
		if e.replace(key, it, earlier, w) {
			e.unanswered.Drop(key)
		}
		return nil
	case errors.Is(err, ErrUnavailable):
		e.unanswered.Add(key) // now an Invalidate would meet the same silence
		return &keyError{"setting", key, err}
	}
	void = false // after its Invalidate the key may have a later value
	return errors.Join(&keyError{"setting", key, err}, e.invalidate(ctx, key))
}

func (e *engine) setInStore(ctx context.Context, key string, budget *gate.Budget, it *items.Item) (epoch uint64, err error) {
	if e.Store == nil {
		return e.nextEpoch(), nil
	}
	entry, err := (&storeKey{key, e, budget}).encode(it)
	if err != nil {
		return 0, err
	}
	inTurn := asking{e.Store, func(ctx context.Context, call func(context.Context) error) error {
		return e.writeAnyway(ctx, key, budget, call)
	}}
	return driver.Set(ctx, inTurn, e.engineKey(key), entry.asOf(e.clock.Now()))
}

// replace puts it, the item of a Set, in place of the key's item here, unless the present item has a later epoch.
// The exception is earlier, the item from before the Set: if earlier has a later epoch, the store has lost its data
// and counts from below. The result is false if own, the Set's witness, knows of a later Set, or of an invalidation
// that may be later.
//
// The callers of an earlier flight get it at once, because the flight may wait for a load that ignores its context.
// A later flight may have claimed between the Set's claim and the Set's commit. Its offer is then the value from
// before the Set.
func (e *engine) replace(key string, it, earlier *items.Item, own *witness) bool {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := own.voided < it.Epoch
	for w := s.witnesses[key]; w != nil; w = w.next {
		if f := w.flight; f != nil && f.current != nil && f.current.repeats {
			w.generation++
		}
	}
	void := it.Epoch
	if earlier != nil && e.HoldsNear(key, earlier) {
		void = max(void, earlier.Epoch)
	}
	e.voidKey(s, key, void)
	spared := e.afterSweeps(key, it)
	if !latest || spared == nil || e.open.Err() != nil {
		return latest
	}
	e.near.Advance(key, spared)
	if f := s.flights[key]; f != nil {
		if offered := f.state.Load().offered; offered == nil && f.witness.epoch() <= it.Epoch || offered != nil && offered.Epoch <= it.Epoch {
			f.setOffer(spared)
		}
	}
	return true
}
