package bellwether

import (
	"context"
	"fmt"
	"math"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file applies internal/sweeplog's sweeps to the flights under way and to the near tier.

// keepLog gives the engine a log of sweeps, before the engine's first use.
func (e *engine) keepLog() {
	e.sweeps = sweeplog.New(sweeplog.Config{
		Store: e.Store, Locker: e.Locker,
		Reads: e.store, Writes: e.writes, Locks: e.locker,
		Name:          e.ownName(sweeplog.Key),
		EngineTimeout: e.EngineTimeout, LeaseTTL: e.LeaseTTL, MaxWait: e.MaxWait,
		Now: e.clock.Now,
		Release: func(ctx context.Context, budget *gate.Budget, lease driver.Lease) error {
			return e.giveBack(ctx, sweeplog.Key, budget, lease)
		},
		Silent: func(err error) { e.countNoAnswer(sweeplog.Key, err) },
		Behind: func(f func(context.Context)) { e.behind(func() { f(e.open) }) },
		Take:   e.takeLog,
	})
}

// meetLog reads the log before the first call: so a process's first calls do not wait for the log,
// and the processes of a fleet do not all begin one.
func (e *engine) meetLog() {
	if e.Store == nil || e.sweeps == nil {
		return
	}
	e.behind(func() {
		if e.sweeps.Follow(e.open, gate.NewBudget(e.EngineTimeout), e.NearTTL/2); e.sweeps.Log() == nil {
			e.sweeps.Doubt() // the first call for the store reads the log itself
		}
	})
}

// takeLog makes next the log of this process, and applies it to the flights and the near tier.
func (e *engine) takeLog(next *sweeplog.Log, publish func()) {
	e.shards.lockAll(publish, func(s *shard) {
		for _, f := range s.flights {
			e.sweepFlight(next, f)
		}
	})
	// The near tier comes last: an item put after publish has met the new log; earlier items meet it here.
	e.near.Revise(e.afterSweeps)
}

// sweepFlight applies a log to the load of a flight. shard.mu is held.
func (e *engine) sweepFlight(l *sweeplog.Log, f *flight) {
	published := f.state.Load().published
	if f.current == nil && published == nil {
		return // without a load: what the flight finds meets the log in settle
	}
	it := published
	if it == nil {
		// Only a prefix counts now. The tags come with the value: publish and settle check them.
		it = &items.Item{Position: f.current.position}
	}
	gone, stale := e.against(l, f.key, it)
	if !gone && stale == forever {
		return
	}
	// An unpublished load is void after a soft sweep too: callers from after the sweep wait for it.
	if gone || published == nil {
		f.witness.generation++
	}
	f.interrupt()
}

// Sweep invalidates in the store, and so in the fleet, and in this process.
func (e *engine) Sweep(ctx context.Context, sweeps []sweeplog.Sweep) error {
	switch {
	case len(sweeps) == 0:
		return nil
	case e.Store == nil:
		e.sweeps.Append(e.nextEpoch, sweeps)
		return nil
	}
	err := e.sweeps.Write(ctx, gate.NewBudget(e.EngineTimeout), sweeps)
	if err == nil {
		return nil
	}
	e.count.engineErrors.Add(1)
	e.sweepHere(sweeps)
	return fmt.Errorf("writing the log of invalidations: %w", err)
}

// sweepHere invalidates in this process alone, if the store has not taken the sweeps. Without the log's
// epochs they apply to all present items, and are forgotten. A load with tags yet unknown goes on.
func (e *engine) sweepHere(sweeps []sweeplog.Sweep) {
	only := sweeplog.Only(sweeps, e.clock.Now())
	// Under the locks: a new look must not find an item that is about to go.
	revise := func() {
		e.near.Revise(func(key string, it *items.Item) *items.Item {
			spared := e.afterSweepsIn(only, key, it)
			if spared != nil && spared != it { // it is shared with readers
				spared.Position = it.Position // only's position is above all logs to come
			}
			return spared
		})
	}
	e.shards.lockAll(revise, func(s *shard) {
		for _, f := range s.flights {
			e.sweepFlight(only, f)
			if offered := f.state.Load().offered; offered != nil && e.afterSweepsIn(only, f.key, offered) == nil {
				f.withdrawStale(math.MaxUint64)
			}
		}
		// No log has these sweeps. So they void each value that a flight has read or is reading
		// without having taken it, flights that have left the map, and values without a flight.
		for key, w := range s.witnesses {
			for listed := s.flights[key]; w != nil; w = w.next {
				if w.flight == nil || w.flight != listed || listed.current == nil {
					w.generation++
				}
			}
		}
	})
}
