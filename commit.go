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

// This file sends the store claims and commits, with the outcomes of a commit.

// claimEpoch claims an epoch, and returns the present entry. The epoch is 0 without an answer.
func (k *storeKey) claimEpoch(ctx context.Context) (entry driver.Entry, epoch uint64) {
	e := k.engine
	if e.Store == nil {
		return driver.Entry{}, e.nextEpoch()
	}
	entry, err := gate.Ask(ctx, e.writes, k.key, k.budget, func(ctx context.Context) (entry driver.Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(k.key))
		return entry, err
	})
	if err != nil {
		k.noAnswer(ctx, "claiming", err)
		return driver.Entry{}, 0
	}
	return entry, epoch
}

// asking is a store for driver.Set, whose requests pass the gate one by one: a store that answers each of them is not
// silent, however long they take together.
type asking struct {
	driver.Store
	ask func(ctx context.Context, call func(context.Context) error) error
}

// Claim implements [driver.Store].
func (s asking) Claim(ctx context.Context, name string) (entry driver.Entry, epoch uint64, err error) {
	err = s.ask(ctx, func(ctx context.Context) (err error) {
		entry, epoch, err = s.Store.Claim(ctx, name)
		return err
	})
	return entry, epoch, err
}

// Commit implements [driver.Store].
func (s asking) Commit(ctx context.Context, name string, entry driver.Entry) error {
	return s.ask(ctx, func(ctx context.Context) error { return s.Store.Commit(ctx, name, entry) })
}

type commitOutcome uint8

const (
	// The store has the item, or has confirmed that nothing later counts.
	commitTaken commitOutcome = iota
	// The store has refused the item as too late.
	commitFenced
	// The store was not asked, did not answer, or refused the item for another reason. The item may be there.
	commitNotTaken

	// Only touch returns the following: no Touch was sent, or the store refused it for another reason.
	commitUntouched
	// The value's entry may no longer be in the store.
	commitDisplaced
)

func (r *run) commit(ctx context.Context, it *items.Item) commitOutcome {
	switch {
	case r.engine.Store == nil:
		return commitTaken
	case r.storeDown:
		return commitNotTaken
	case r.looking.unshared != 0:
		return r.stillUnshared(ctx, r.looking.unshared)
	}
	return r.commitBy(ctx, it, &r.leading.lease)
}

// commitBy commits the item, see write. If the store does not take a value, the store gets a mark in its place, and
// this process keeps the item.
func (k *storeKey) commitBy(ctx context.Context, it *items.Item, lease *driver.Lease) commitOutcome {
	e := k.engine
	entry, err := k.encode(it)
	lives := entry.asOf(e.clock.Now()).Life() > 0
	silent := false
	switch {
	case err == fault.ErrLocal:
	case err != nil: // of the codec: its Is method may claim any error
		e.OnError(k.key, &keyError{"encoding", k.key, err})
	case lives:
		err = k.write(ctx, entry, lease)
		if silent = errors.Is(err, ErrUnavailable); silent && k.budget.Left() > 0 {
			k.noAnswer(ctx, "committing", err)
			err = k.write(ctx, entry, lease) // one lost packet is not an outage
		}
		switch {
		case err == nil:
			return commitTaken
		case errors.Is(err, driver.ErrFenced):
			return k.refused(ctx, err, it.Epoch, silent)
		case errors.Is(err, ErrUnavailable):
			k.noAnswer(ctx, "committing", err)
		default:
			e.OnError(k.key, &keyError{"committing", k.key, err})
		}
	}
	if it.Failures > 0 {
		return commitNotTaken // the next entry has no failure, and would take the stale value away from the fleet
	}
	// This entry tells the waiting processes that no value will come: otherwise they would take
	// turns, each to find the same. A store out of memory may have room for so small an entry.
	if entry.Kind, entry.Value = driver.KindUnshared, nil; !lives {
		entry = markFor(driver.KindUnshared, entry.Epoch, entry.BuildTime)
	}
	switch err := k.write(ctx, entry, lease); {
	case err == nil:
		return commitTaken
	case errors.Is(err, driver.ErrFenced):
		return k.refused(ctx, err, it.Epoch, silent)
	}
	return commitNotTaken
}

// refused is the outcome of a commit that the store has refused. If an earlier write of the entry had no answer, it may
// have arrived, and have refused its own repetition.
func (k *storeKey) refused(ctx context.Context, err error, epoch uint64, silent bool) commitOutcome {
	if silent {
		if there := k.confirmThere(ctx, epoch); there != commitFenced {
			return there
		}
	}
	e := k.engine
	e.count.fenced.Add(1)
	e.OnError(k.key, &keyError{"committing", k.key, err})
	return commitFenced
}

// keepBeside lets the item stand beside the entry from its load's beginning: a later commit or an invalidation takes
// both away. A value is trusted from then: the store has confirmed nothing since. A failure without a value is trusted
// from now.
func (r *run) keepBeside(it *items.Item) {
	since := r.engine.clock.Now()
	if it.Held {
		since = it.LoadBegan - 1
	}
	r.engine.setBeside(it, r.present, since, r.looking.unshared)
}

// setBeside lets the item stand beside the entry of the item present, or of the epoch unshared unless 0.
func (e *engine) setBeside(it, present *items.Item, since instant, unshared uint64) {
	it.Beside, it.TrustedUntil = true, durations.Add(since, e.unconfirmedTTL())
	if it.Epoch = unshared; unshared == 0 && present != nil {
		it.Epoch = present.Epoch
	}
}

// markFor returns an entry for no value. Its life counts from when it is sent.
func markFor(kind driver.EntryKind, epoch uint64, took time.Duration) outgoing {
	return outgoing{driver.Entry{Kind: kind, Epoch: epoch, BuildTime: took, TTL: waitersLife(took)}, forever}
}

// waiveElections commits a KindUnelected entry after a load that has failed for its caller's client alone.
// Otherwise the waiting processes would be elected one after another, each to fail for its own callers.
func (r *run) waiveElections(ctx context.Context, epoch uint64, took time.Duration) {
	e := r.engine
	if e.Locker == nil || epoch == 0 || r.storeDown || r.looking.waives() {
		return
	}
	switch err := r.write(ctx, markFor(driver.KindUnelected, epoch, took), &r.leading.lease); {
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
func (r *run) probe(ctx context.Context) bool {
	e := r.engine
	inTurn := asking{e.Store, func(ctx context.Context, call func(context.Context) error) error {
		return gate.AskErr(ctx, e.writes, probeKey, r.budget, call)
	}}
	_, err := driver.Set(ctx, inTurn, e.ownName(probeKey), probeEntry)
	e.noteCommit(ctx, err)
	return !e.commits.Fail(e.clock.Now())
}

// write commits the entry. An Elector releases *lease, unless nil, in the same request.
func (k *storeKey) write(ctx context.Context, entry outgoing, lease *driver.Lease) error {
	e := k.engine
	releases := e.Engine != nil && lease != nil && *lease != nil
	err := k.writeBy(ctx, func(ctx context.Context) error {
		sent := entry.asOf(e.clock.Now())
		if releases {
			return e.Engine.CommitAndRelease(ctx, e.engineKey(k.key), sent, *lease)
		}
		return e.Store.Commit(ctx, e.engineKey(k.key), sent)
	})
	if releases && err == nil {
		*lease = nil
	}
	return err
}

func (k *storeKey) writeBy(ctx context.Context, call func(context.Context) error) error {
	e := k.engine
	err := gate.AskErr(ctx, e.writes, k.key, k.budget, call)
	e.noteCommit(ctx, err)
	return err
}

// noteCommit records the outcome of a commit. A commit that ends with its caller has none.
func (e *engine) noteCommit(ctx context.Context, err error) {
	if !gate.Ended(ctx) {
		e.commits.Note(err, e.clock.Now())
	}
}

// touch is commit for an item with the value of another item, unless that is nil. A Toucher keeps the store's value
// under the new entry, so the value is not sent again.
func (r *run) touch(ctx context.Context, it, value *items.Item) commitOutcome {
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
		return r.refused(ctx, err, it.Epoch, false)
	case errors.Is(err, ErrNotFound):
		return commitDisplaced
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
		if there := r.confirmThere(ctx, it.Epoch); there != commitFenced {
			return there
		}
		return commitDisplaced // perhaps by a Set
	}
	return commitUntouched
}

// stillUnshared is commit for a value of this process alone. The KindUnshared entry that led to the load must
// still be there: otherwise the key was invalidated.
func (k *storeKey) stillUnshared(ctx context.Context, epoch uint64) commitOutcome {
	outcome := k.confirmThere(ctx, epoch)
	if outcome == commitFenced {
		// A claim, unlike a read, reaches no lagging copy of the store.
		if entry, _ := k.claimEpoch(ctx); entry.Epoch == epoch {
			return commitTaken
		}
	}
	return outcome
}

// confirmThere is the outcome of a commit of the epoch, by a look: only one claim has the epoch.
func (k *storeKey) confirmThere(ctx context.Context, epoch uint64) commitOutcome {
	there := k.read(ctx, k.budget)
	switch {
	case there.Silent():
		return commitNotTaken
	case there.Err == nil && there.Entry.Epoch == epoch:
		return commitTaken
	}
	return commitFenced
}
