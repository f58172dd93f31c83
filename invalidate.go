package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
	"golang.org/x/sync/errgroup"
)

// This file invalidates keys, in the fleet and then in this process. Invalidations that the store does not
// answer are repeated in rounds. Invalidation by tag or prefix is in sweep.go.

// invalidate drops the key from the store, and then from this process. In this order, any entry or
// epoch that a flight got before the store's floor rose is void here, and any later entry is new.
func (e *engine[V]) invalidate(ctx context.Context, key string) error {
	defer e.voidAll(key) // also after a panic or Goexit of the adapter
	if e.Store == nil {
		return nil
	}
	err := e.writeAnyway(ctx, key, gate.NewBudget(e.EngineTimeout), e.invalidation(key))
	switch {
	case err == nil:
		e.pending.drop(key)
		return nil
	case errors.Is(err, ErrUnavailable):
		e.invalidateLater(key)
	}
	return &keyError{"invalidating", key, err}
}

func (e *engine[V]) invalidation(key string) func(context.Context) error {
	return func(ctx context.Context) error { return e.Store.Invalidate(ctx, e.engineKey(key)) }
}

// writeAnyway makes a user's own write, also while the store's breaker is open: other calls can go on
// without the store, and this caller cannot.
func (e *engine[V]) writeAnyway(ctx context.Context, key string, budget *gate.Budget, write func(context.Context) error) error {
	err := gate.AskErr(ctx, e.writes, key, budget, write)
	if errors.Is(err, gate.ErrNotAsked) {
		err = gate.AskAnyway(ctx, e.writes, key, budget.Left(), write)
	}
	if errors.Is(err, ErrUnavailable) {
		e.count.engineErrors.Add(1)
	}
	return err
}

// maxInvalidations is the most keys that one call invalidates at a time.
const maxInvalidations = 16

// invalidateAll invalidates the keys. It asks the store for each: a silent server's keys say nothing about
// the keys of the other servers.
func (e *engine[V]) invalidateAll(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	var g errgroup.Group
	g.SetLimit(maxInvalidations)
	for i, key := range keys {
		errs[i] = ErrGoexit // stays if the store's adapter calls Goexit
		g.Go(func() error {
			errs[i] = e.invalidate(ctx, key)
			return nil
		})
	}
	g.Wait()
	return errs
}

const (
	// maxSilent calls without an answer end a round: a dead server's keys must not cost a call each.
	maxSilent = 16
	// longestRound is the longest pause before a round. A store that drops the key, and answers too
	// late, loses the key's responses once more in each round.
	longestRound = 16 * time.Second
)

// invalidateLater repeats the invalidation of a key until the store answers, or the cache closes.
func (e *engine[V]) invalidateLater(key string) {
	if e.pending.add(key) {
		e.behind(func() { e.repeatInvalidations(gate.Pause) })
	}
}

// repeatInvalidations makes one round after the pause, or when the store's breaker closes.
func (e *engine[V]) repeatInvalidations(pause time.Duration) {
	defer e.nextRound(min(2*pause, longestRound)) // also after a Goexit of the adapter
	select {
	case <-e.writes.Closing():
	case <-time.After(pause):
	case <-e.open.Done():
		return
	}
	silent := 0
	for _, key := range e.pending.all() {
		if silent == maxSilent || e.open.Err() != nil {
			return
		}
		e.pending.drop(key) // before the call: an unsafe request during the call needs a call after it
		// Past the gate: the keys of a dead server must not take the turns and the probes of other keys.
		if err := gate.AskAnyway(e.open, e.writes, key, e.EngineTimeout, e.invalidation(key)); errors.Is(err, ErrUnavailable) {
			silent++
			e.invalidateLater(key)
			continue
		}
		e.voidAll(key) // the near tier may have the store's entry again
	}
}

func (e *engine[V]) nextRound(pause time.Duration) {
	if e.open.Err() == nil && e.pending.again() {
		e.behind(func() { e.repeatInvalidations(pause) })
	}
}
