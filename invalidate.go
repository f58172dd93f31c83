package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/later"
	"golang.org/x/sync/errgroup"
)

// This file invalidates keys, in the fleet and then in this process. Invalidations that the store does not
// answer are repeated in rounds. Invalidation by tag or prefix is in sweep.go.

// invalidate drops the key from the store, and then from this process. In this order, any entry or
// epoch that a flight got before the store's floor rose is void here, and any later entry is new.
func (e *engine) invalidate(ctx context.Context, key string) error {
	defer e.voidAll(key) // also after a panic or Goexit of the adapter
	if e.Store == nil {
		return nil
	}
	err := e.writeAnyway(ctx, key, gate.NewBudget(e.EngineTimeout), e.invalidation(key))
	switch {
	case err == nil:
		e.unanswered.Drop(key)
		return nil
	case errors.Is(err, ErrUnavailable):
		e.unanswered.Add(key)
	}
	return &keyError{"invalidating", key, err}
}

func (e *engine) invalidation(key string) func(context.Context) error {
	return func(ctx context.Context) error { return e.Store.Invalidate(ctx, e.engineKey(key)) }
}

// writeAnyway makes a user's own write, also while the store's breaker is open: other calls can go on
// without the store, and this caller cannot.
func (e *engine) writeAnyway(ctx context.Context, key string, budget *gate.Budget, write func(context.Context) error) error {
	err := gate.AskErr(ctx, e.writes, key, budget, write)
	if errors.Is(err, gate.ErrNotAsked) {
		err = gate.AskAnyway(ctx, e.writes, key, budget.Left(), write)
	}
	if errors.Is(err, ErrUnavailable) && !gate.Ended(ctx) {
		e.count.engineErrors.Add(1)
	}
	return err
}

// maxInvalidations is the most keys that one call invalidates at a time.
const maxInvalidations = 16

// InvalidateAll invalidates the keys. It asks the store for each: a silent server's keys say nothing about
// the keys of the other servers.
func (e *engine) InvalidateAll(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	var g errgroup.Group
	g.SetLimit(maxInvalidations)
	for i, key := range keys {
		errs[i] = ErrGoexit // stays if the store's adapter calls Goexit
		g.Go(func() error {
			if err := fault.Guard(func() error { errs[i] = e.invalidate(ctx, key); return nil }); err != nil {
				errs[i] = &keyError{"invalidating", key, err}
			}
			return nil
		})
	}
	g.Wait()
	return errs
}

// repeated is the way of invalidations that the store did not answer. They go past the gate: the keys of a dead server
// must not take the turns and the probes of other keys.
func (e *engine) repeated() later.Config {
	return later.Config{
		Try: func(key string) (silent bool) {
			err := gate.AskAnyway(e.open, e.writes, key, e.EngineTimeout, e.invalidation(key))
			if errors.Is(err, ErrUnavailable) {
				return true
			}
			e.voidAll(key) // the near tier may have the store's entry again
			return false
		},
		Answers: e.writes.Closing, Pause: gate.Pause, Open: e.open, Behind: e.behind,
	}
}
