package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the commit of what a load came to, and what becomes of it.

// A commitOutcome is what became of an item that was offered to the store.
type commitOutcome uint8

const (
	// committed: the store has it, or has said that nothing later counts.
	committed commitOutcome = iota
	// fenced: the store has refused it as too late.
	fenced
	// notTaken: the store was not asked, or did not answer. It may be there.
	notTaken
)

// nextEpoch is an epoch where there is no store to give one.
func (e *engine[V]) nextEpoch() uint64 { return e.epoch.Add(1) }

// commit offers it to the store. A value that the store answers for and does not
// take stays with this process.
func (r *run[V]) commit(ctx context.Context, it *items.Item[V]) commitOutcome {
	e := r.engine
	switch {
	case e.Store == nil:
		return committed
	case r.storeDown:
		return notTaken
	case r.looking.unshared != 0:
		return r.stillUnshared(ctx)
	}
	entry, err := r.encode(it)
	lives := entry.Life() > 0
	if err == nil && lives {
		if err = r.write(ctx, entry); err == nil {
			return committed
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrFenced):
		return r.fencedOff(err)
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
	default:
		e.OnError(r.key, &keyError{"committing", r.key, err})
	}
	// The processes that wait for this value are told that there is none to
	// come. Without that they would take turns, each only to find the same out.
	// An engine out of memory may have room for so little.
	entry.Kind, entry.Value = driver.KindUnshared, nil
	if !lives {
		entry.TTL = durations.Add(entry.Age, durations.Add(unsharedTTL, 2*entry.BuildTime))
	}
	marked := r.write(ctx, entry)
	switch {
	case marked == nil:
		return committed
	case !errors.Is(marked, driver.ErrFenced):
		return notTaken
	case errors.Is(err, ErrUnavailable):
		// Perhaps by the value, which was written after all.
		if there := r.confirmCommit(ctx, it.Epoch); there != fenced {
			return there
		}
	}
	e.count.fenced.Add(1)
	return fenced
}

// fencedOff tells of a commit that the store has refused as too late.
func (r *run[V]) fencedOff(err error) commitOutcome {
	e := r.engine
	e.count.fenced.Add(1)
	e.OnError(r.key, &keyError{"committing", r.key, err})
	return fenced
}

// keepBeside makes it an item that the store has not taken. It stands beside the
// entry that the flight knew when its load began, for as long as that entry is
// there: a later commit or an invalidation takes the entry away, and the item with
// it. Only what was invalidated after the load began is against a value, and nobody
// has said since then that nothing was; so the store is asked NearTTL after that, or, with
// the near tier off, aloneTTL. A failure by itself is of now.
func (r *run[V]) keepBeside(it *items.Item[V]) {
	since := r.engine.clock.Now()
	if it.Held {
		since = r.leading.made - 1
	}
	it.Beside, it.Trusted = true, durations.Add(since, r.engine.alone())
	switch {
	case r.looking.unshared != 0: // that entry's epoch is its own
	case r.present != nil:
		it.Epoch = r.present.Epoch
	default:
		it.Epoch = 0
	}
}

// unsharedTTL is for how long it is remembered of a value without a life that
// it was for those only who waited for it; and for two loads' time more, since
// the others make their own meanwhile.
const unsharedTTL = time.Second

// probeKey is where a store is asked whether it takes commits again. No two
// processes mind each other there: what is found under it is of no use.
const probeKey = "\x00probe"

// probeEntry is what is committed there.
var probeEntry = driver.Entry{Kind: driver.KindUnshared, TTL: time.Second}

// probe reports whether the store takes commits again, by one that nobody needs:
// without it, the first loads after an outage would go on without a lease.
func (r *run[V]) probe(ctx context.Context) bool {
	e := r.engine
	key := e.engineKey(probeKey)
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

// write commits the entry. An elector takes the flight's lease back in the same request.
func (r *run[V]) write(ctx context.Context, entry driver.Entry) error {
	e, lease := r.engine, r.leading.lease
	if e.Engine == nil || lease == nil {
		return r.writeBy(ctx, func(ctx context.Context) error {
			return e.Store.Commit(ctx, e.engineKey(r.key), entry)
		})
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return e.Engine.CommitAndRelease(ctx, e.engineKey(r.key), entry, lease)
	})
	if err == nil {
		r.leading.lease = nil
	}
	return err
}

func (r *run[V]) writeBy(ctx context.Context, call func(context.Context) error) error {
	e := r.engine
	e.enter(r.key, phaseCommitting)
	err := gate.AskErr(ctx, e.writes, r.key, r.budget, call)
	if ctx.Err() == nil {
		e.commits.Note(err, e.clock.Now())
	}
	return err
}

// commitOver is commit of an item with the value of another, if there is one: the value is not sent
// again to a store that has it and can keep it.
func (r *run[V]) commitOver(ctx context.Context, it, value *items.Item[V]) commitOutcome {
	outcome, is := r.touch(ctx, it, value)
	if is == touched {
		return outcome
	}
	return r.commit(ctx, it) // with the value
}

// A touching is what has become of an item that a store was to keep with the value that it has.
type touching uint8

const (
	untouched touching = iota // the store was not asked, or has not answered
	touched                   // the store has answered
	displaced                 // the value is no longer there
)

// touch has the store keep the value, with all else of it.
func (r *run[V]) touch(ctx context.Context, it, value *items.Item[V]) (commitOutcome, touching) {
	e := r.engine
	toucher, ok := e.Store.(driver.Toucher)
	if !ok || value == nil || r.storeDown || r.looking.unshared != 0 || it.Kind != driver.KindValue || value.Beside {
		return notTaken, untouched
	}
	entry := r.entryOf(it)
	if entry.Life() <= 0 {
		return notTaken, untouched
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return toucher.Touch(ctx, e.engineKey(r.key), value.Epoch, entry)
	})
	switch {
	case err == nil:
		return committed, touched
	case errors.Is(err, driver.ErrFenced):
		return r.fencedOff(err), touched
	case errors.Is(err, ErrNotFound):
		return fenced, displaced
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
		if there := r.confirmCommit(ctx, it.Epoch); there != fenced {
			return there, touched
		}
	}
	return notTaken, untouched
}

// confirmCommit is the outcome of a commit whose reply was lost.
func (r *run[V]) confirmCommit(ctx context.Context, epoch uint64) commitOutcome {
	return r.confirmThere(ctx, func(e driver.Entry) bool { return e.Epoch == epoch })
}

// confirmThere reads the store: committed if its entry is the wanted one, notTaken if the store does
// not answer, and fenced if something else, or nothing, is there.
func (r *run[V]) confirmThere(ctx context.Context, wanted func(driver.Entry) bool) commitOutcome {
	there := r.read(ctx, r.budget)
	switch {
	case errors.Is(there.err, ErrUnavailable):
		return notTaken
	case there.err == nil && wanted(there.entry):
		return committed
	}
	return fenced
}

// stillUnshared is the commit of a value that only this process has: the entry
// that let it be made must be there still, or it was invalidated meanwhile. A
// store that does not answer cannot say so.
func (r *run[V]) stillUnshared(ctx context.Context) commitOutcome {
	return r.confirmThere(ctx, func(e driver.Entry) bool { return e.Kind == driver.KindUnshared && e.Epoch == r.looking.unshared })
}
