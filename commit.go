package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file claims an epoch for a load and commits the load's result, with the outcomes of a commit.

// takeEpoch claims an epoch, and returns the present entry. The epoch is 0 without an answer.
func (r *run[V]) takeEpoch(ctx context.Context) (entry driver.Entry, epoch uint64) {
	e := r.engine
	if e.Store == nil {
		return driver.Entry{}, e.nextEpoch()
	}
	if r.storeDown {
		return driver.Entry{}, 0
	}
	entry, err := gate.Ask(ctx, e.writes, r.key, r.budget, func(ctx context.Context) (entry driver.Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(r.key))
		return entry, err
	})
	if err != nil {
		r.noAnswer(ctx, "claiming", err)
		r.storeDown = true
		return driver.Entry{}, 0
	}
	return entry, epoch
}

type commitOutcome uint8

const (
	// The store has the item, or has confirmed that nothing later counts.
	commitTaken commitOutcome = iota
	// The store has refused the item as too late.
	commitFenced
	// The store was not asked, or did not answer. The item may be there.
	commitNotTaken
	// Of touch: no Touch was sent, or its reply is unknown.
	commitUntouched
	// Of touch: the value's entry may no longer be in the store.
	commitDisplaced
)

// commit offers the item to the store. This process keeps an item that an answering store does not take.
func (r *run[V]) commit(ctx context.Context, it *items.Item[V]) commitOutcome {
	e := r.engine
	switch {
	case e.Store == nil:
		return commitTaken
	case r.storeDown:
		return commitNotTaken
	case r.looking.unshared != 0:
		return r.stillUnshared(ctx)
	}
	entry, err := r.encode(it)
	lives := entry.asOf(e.clock.Now()).Life() > 0
	if err == nil && lives {
		if err = r.write(ctx, entry); err == nil {
			return commitTaken
		}
	}
	switch {
	case err == nil, errors.Is(err, fault.ErrLocal):
	case errors.Is(err, driver.ErrFenced):
		return r.fencedOff(err)
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
	default:
		e.OnError(r.key, &keyError{"committing", r.key, err})
	}
	// This entry tells the waiting processes that no value will come: otherwise they would take
	// turns, each to find the same. A store out of memory may have room for so small an entry.
	if entry.Kind, entry.Value = driver.KindUnshared, nil; !lives {
		entry = markFor(driver.KindUnshared, entry.Epoch, entry.BuildTime)
	}
	marked := r.write(ctx, entry)
	switch {
	case marked == nil:
		return commitTaken
	case !errors.Is(marked, driver.ErrFenced):
		return commitNotTaken
	case errors.Is(err, ErrUnavailable):
		// Perhaps by the value, which was written although its reply was lost.
		if there := r.confirmCommit(ctx, it.Epoch); there != commitFenced {
			return there
		}
	}
	e.count.fenced.Add(1)
	return commitFenced
}

func (r *run[V]) fencedOff(err error) commitOutcome {
	e := r.engine
	e.count.fenced.Add(1)
	e.OnError(r.key, &keyError{"committing", r.key, err})
	return commitFenced
}

// keepBeside lets the item stand beside the entry from its load's beginning: a later commit or an
// invalidation takes both away. A value is trusted from then, for NearTTL, or nearOffTTL with the near tier
// off: the store has confirmed nothing since. A failure without a value is trusted from now.
func (r *run[V]) keepBeside(it *items.Item[V]) {
	since := r.engine.clock.Now()
	if it.Held {
		since = r.leading.loadBegan - 1
	}
	it.Beside, it.TrustedUntil = true, durations.Add(since, r.engine.unconfirmedTTL())
	switch {
	case r.looking.unshared != 0: // the item has this entry's epoch already
	case r.present != nil:
		it.Epoch = r.present.Epoch
	default:
		it.Epoch = 0
	}
}

// markTTL is the least life of a mark. Two loads' time is added, in which the waiting processes make their own
// values.
const markTTL = time.Second

// markFor returns an entry for no value. Its life counts from when it is sent.
func markFor(kind driver.EntryKind, epoch uint64, took time.Duration) outgoing {
	return outgoing{driver.Entry{Kind: kind, Epoch: epoch, BuildTime: took, TTL: durations.Add(markTTL, 2*took)}, forever}
}

// waiveElections commits a KindUnelected entry after a load that has failed for its caller's client alone.
// Otherwise the waiting processes would be elected one after another, each to fail for its own callers.
func (r *run[V]) waiveElections(ctx context.Context, epoch uint64, took time.Duration) {
	e := r.engine
	if e.Locker == nil || epoch == 0 || r.storeDown || r.looking.unshared != 0 || r.looking.unelected {
		return
	}
	switch err := r.write(ctx, markFor(driver.KindUnelected, epoch, took)); {
	case err == nil, errors.Is(err, driver.ErrFenced): // fenced: a later value counts
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
	default:
		e.OnError(r.key, &keyError{"committing", r.key, err})
	}
}

// probeKey is the key of probe and Ping. Processes may overwrite each other's entry there.
const probeKey = "\x00probe"

var probeEntry = driver.Entry{Kind: driver.KindUnshared, TTL: time.Second}

// probe commits to probeKey, and reports whether the store takes commits again. Otherwise the first
// loads after an outage would go on without a lease.
func (r *run[V]) probe(ctx context.Context) bool {
	e := r.engine
	key := e.ownName(probeKey)
	err := gate.AskErr(ctx, e.writes, probeKey, r.budget, func(ctx context.Context) error {
		_, epoch, err := e.Store.Claim(ctx, key)
		if err == nil {
			entry := probeEntry
			entry.Epoch = epoch
			err = e.Store.Commit(ctx, key, entry)
		}
		return err
	})
	e.commits.Note(err, e.clock.Now())
	return !e.commits.Fail(e.clock.Now())
}

// write commits the entry. An Elector releases the flight's lease in the same request.
func (r *run[V]) write(ctx context.Context, entry outgoing) error {
	e, lease := r.engine, r.leading.lease
	if e.Engine == nil || lease == nil {
		return r.writeBy(ctx, func(ctx context.Context) error {
			return e.Store.Commit(ctx, e.engineKey(r.key), entry.asOf(e.clock.Now()))
		})
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return e.Engine.CommitAndRelease(ctx, e.engineKey(r.key), entry.asOf(e.clock.Now()), lease)
	})
	if err == nil {
		r.leading.lease = nil
	}
	return err
}

func (r *run[V]) writeBy(ctx context.Context, call func(context.Context) error) error {
	e := r.engine
	err := gate.AskErr(ctx, e.writes, r.key, r.budget, call)
	if ctx.Err() == nil {
		e.commits.Note(err, e.clock.Now())
	}
	return err
}

// commitOver is commit for an item with another item's value, or with nil. A Toucher keeps the
// store's value under the new entry, so the value is not sent again.
func (r *run[V]) commitOver(ctx context.Context, it, value *items.Item[V]) commitOutcome {
	switch written := r.touch(ctx, it, value); written {
	case commitUntouched, commitDisplaced:
		return r.commit(ctx, it) // with the value
	default:
		return written
	}
}

// touch sends an item's entry to a Toucher that has the value.
func (r *run[V]) touch(ctx context.Context, it, value *items.Item[V]) commitOutcome {
	e := r.engine
	toucher, ok := e.Store.(driver.Toucher)
	if !ok || value == nil || r.storeDown || r.looking.unshared != 0 || it.Kind != driver.KindValue || value.Beside {
		return commitUntouched
	}
	entry := r.entryOf(it)
	if entry.asOf(e.clock.Now()).Life() <= 0 {
		return commitUntouched
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return toucher.Touch(ctx, e.engineKey(r.key), value.Epoch, entry.asOf(e.clock.Now()))
	})
	switch {
	case err == nil:
		return commitTaken
	case errors.Is(err, driver.ErrFenced):
		return r.fencedOff(err)
	case errors.Is(err, ErrNotFound):
		return commitDisplaced
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
		if there := r.confirmCommit(ctx, it.Epoch); there != commitFenced {
			return there
		}
		return commitDisplaced // perhaps by a Set
	}
	return commitUntouched
}

func (r *run[V]) confirmCommit(ctx context.Context, epoch uint64) commitOutcome {
	return r.confirmThere(ctx, func(e driver.Entry) bool { return e.Epoch == epoch })
}

func (r *run[V]) confirmThere(ctx context.Context, wanted func(driver.Entry) bool) commitOutcome {
	there := r.read(ctx, r.budget)
	switch {
	case errors.Is(there.err, ErrUnavailable):
		return commitNotTaken
	case there.err == nil && wanted(there.entry):
		return commitTaken
	}
	return commitFenced
}

// stillUnshared is commit for a value of this process alone. The KindUnshared entry that led to the
// load must still be there: otherwise the key was invalidated.
func (r *run[V]) stillUnshared(ctx context.Context) commitOutcome {
	return r.confirmThere(ctx, func(e driver.Entry) bool { return e.Kind == driver.KindUnshared && e.Epoch == r.looking.unshared })
}
