package bellwether

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file is the effect of sweeps: on the flights that a sweep meets, and on the items of earlier
// loads whenever an item is read. The log of sweeps is internal/sweeplog.

// keepLog gives the engine a log of sweeps. traits returns the tags of an item with a value, and whether
// the value is only a signpost to other values. keepLog is called before the engine's first use.
func (e *engine[V]) keepLog(traits func(*items.Item[V]) (tags []string, signpost bool)) {
	e.traits = traits
	e.sweeps = sweeplog.New(sweeplog.Config{
		Store: e.Store, Locker: e.Locker,
		Reads: e.store, Writes: e.writes, Locks: e.locker,
		Name:     e.engineKey(sweeplog.Key),
		LeaseTTL: e.LeaseTTL, MaxWait: e.MaxWait,
		Now: e.clock.Now, Pause: pollInterval,
		Release: func(ctx context.Context, budget *gate.Budget, lease driver.Lease) error {
			return e.giveBack(ctx, sweeplog.Key, budget, lease)
		},
		Silent: func(err error) { e.noAnswer(sweeplog.Key, err) },
		Take:   e.takeLog,
	})
}

// meetLog reads the log before the first call: the first calls of a process do not wait for the log
// then, and the processes of a fleet do not all begin it.
func (e *engine[V]) meetLog() {
	if e.Store == nil {
		return
	}
	e.behind(func() {
		if e.sweeps.Follow(e.open, gate.NewBudget(e.EngineTimeout), e.NearTTL/2); e.sweeps.Log() == nil {
			e.sweeps.Doubt() // the first call that needs the store reads the log itself
		}
	})
}

// followLogAhead follows the log for a flight that is about to read its key. A store that answers for
// many keys is asked for both in one call, and the key's answer is left in r.looking.ahead.
func (r *run[V]) followLogAhead(ctx context.Context, age time.Duration) {
	e := r.engine
	store, ok := e.Store.(driver.BatchGetter)
	if !ok {
		e.sweeps.Follow(ctx, r.budget, age)
		return
	}
	turn := e.sweeps.Turn(ctx, r.budget, age)
	if turn == nil {
		return
	}
	defer turn.End()
	var log, key *storeReply
	_, err := e.readMany(ctx, store, []string{sweeplog.Key, r.key}, r.budget, func(i int, reply *storeReply) {
		switch {
		case i == 1:
			key = reply
		case reply.err == nil:
			// At once: no other key waits for the server of this one.
			turn.Took(ctx, r.budget, reply.entry, nil)
		default:
			log = reply
		}
	})
	if !turn.Over() {
		if log == nil {
			// The answer of the key's server is not believed without the log's.
			log, key = &storeReply{err: err}, nil
		}
		turn.Took(ctx, r.budget, log.entry, log.err)
	}
	r.looking.ahead = key
}

// takeLog makes next the log of this process, and holds the log against flights and near tier.
func (e *engine[V]) takeLog(known, next *sweeplog.Log, publish func()) {
	e.shards.whole(publish, func(s *shard[V]) {
		for key, f := range s.flights {
			e.sweepFlight(next, key, f)
		}
	})
	if known != nil && next.Since <= known.Position() && len(next.Sweeps) == 0 {
		return
	}
	// An item that is put after publish has been held against the new log under the lock. The
	// items from before are met here.
	e.near.Revise(e.spare)
}

// against returns what a log has against an item: see [sweeplog.Log.Against].
func (e *engine[V]) against(l *sweeplog.Log, key string, it *items.Item[V]) (gone bool, stale instant) {
	return l.Against(key, it.Position, func() (tags []string, signpost bool) {
		if it.Kind == driver.KindValue {
			tags, signpost = e.traits(it)
		}
		return tags, signpost
	})
}

// spare returns an item as the sweeps since its load have left it, nil if it is gone.
func (e *engine[V]) spare(key string, it *items.Item[V]) *items.Item[V] {
	return e.spareFrom(e.sweeps.Log(), key, it)
}

// spareFrom is spare with another log. The result bears the position of the log, so that no sweep is
// held against it twice.
func (e *engine[V]) spareFrom(l *sweeplog.Log, key string, it *items.Item[V]) *items.Item[V] {
	if it == nil || it.Position >= l.Position() {
		return it
	}
	gone, stale := e.against(l, key, it)
	if gone {
		return nil
	}
	spared := *it
	spared.Position, spared.Lifetime = l.Position(), it.StaleFrom(stale)
	return &spared
}

// sweepFlight holds a log against the load of a flight. shard.mu is held.
func (e *engine[V]) sweepFlight(l *sweeplog.Log, key string, f *flight[V]) {
	published := f.state.Load().published
	if f.current == nil && published == nil {
		return // it loads nothing, and what it has read is held against the log in the end
	}
	it := published
	if it == nil {
		it = &items.Item[V]{Position: f.witness.position} // its tags are not known yet: see publish
	}
	gone, stale := e.against(l, key, it)
	if !gone && stale == forever {
		return
	}
	// What nobody has yet is void, be it swept softly or not: who has asked since the
	// sweep waits here too.
	if gone || published == nil {
		f.witness.generation++
	}
	f.interrupt()
}

// sweep invalidates in the store, and so in the fleet, and in this process.
func (e *engine[V]) sweep(ctx context.Context, sweeps []sweeplog.Sweep) error {
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

// sweepHere invalidates in this process alone, where the store has not taken the sweeps. The log's
// epochs are the store's, so the sweeps are held against everything that is here and then forgotten.
// A load whose tags are not known yet goes on.
func (e *engine[V]) sweepHere(sweeps []sweeplog.Sweep) {
	only := sweeplog.Only(sweeps, e.clock.Now())
	// Under the locks: a look that begins anew must not find what is to go.
	revise := func() {
		e.near.Revise(func(key string, it *items.Item[V]) *items.Item[V] {
			spared := e.spareFrom(only, key, it)
			if spared != nil && spared != it {
				spared.Position = it.Position // that of only is above all logs to come
			}
			return spared
		})
	}
	e.shards.whole(revise, func(s *shard[V]) {
		for key, f := range s.flights {
			e.sweepFlight(only, key, f)
			if offered := f.state.Load().offered; offered != nil && e.spareFrom(only, key, offered) == nil {
				f.withdraw()
			}
		}
		// No log has the sweeps, so nothing else meets them: what a flight is reading, or has read and not
		// taken yet, flights that have left the map, and values that no flight makes.
		for key, w := range s.witnesses {
			for listed := s.flights[key]; w != nil; w = w.next {
				if w.flight == nil || w.flight != listed || listed.current == nil {
					w.generation++
				}
			}
		}
	})
}
