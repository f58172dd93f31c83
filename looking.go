package bellwether

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the state looking: the flight reads the store, and what it finds there answers, is offered
// to callers for the time being, or is nothing.

// A lookingState is what the looks of a flight have brought.
type lookingState struct {
	over     bool        // the flight's first look has come to nothing
	ahead    *storeReply // read for the next look together with others: by a batch, or with the log; nil otherwise
	asked    instant     // when the store was last asked for an epoch, or found to have that of unshared
	before   instant     // when the store was asked before that, or told
	past     uint64      // the epoch of the latest fresh entry that was no answer for the flight
	unshared uint64      // the epoch of the KindUnshared entry that the last look or claim found, 0 if it found none
	refused  int         // leadingState.refused at the last look
}

// lookOnce is the state looking.
func (r *run[V]) lookOnce(ctx context.Context) rebuildOutcome {
	if r.leading.fenced || r.leading.refused > max(r.looking.refused, 1) {
		r.leading.fenced = false
		// Whatever fences commits off, or invalidates the key in each load, may go
		// on; and callers gather meanwhile, who are answered by a load that begins
		// after them. A load that invalidates its own key and takes no time would
		// answer nobody without that: no caller has come before it.
		select {
		case <-time.After(minPoll << r.leading.refused):
		case <-ctx.Done():
		}
	}
	r.looking.refused = r.leading.refused
	r.declineElection(ctx)
	if r.looking.ahead == nil { // a batch has read it since the flight began
		r.lookAgain()
	}
	if r.lookAndStand(ctx) {
		return outcomeAnswered
	}
	r.looked()
	return outcomeNothing
}

// looked takes the flight off the flights that have not looked yet.
func (r *run[V]) looked() {
	if r.queues && !r.looking.over {
		r.looking.over = true
		r.engine.unlooked.Add(-1)
	}
}

// lookAndStand is look, which stands for election at the same time if one request can do both
// and a slot is free: whoever is elected has to load.
func (r *run[V]) lookAndStand(ctx context.Context) bool {
	if r.looking.ahead == nil && r.electsAtOnce() && r.takeFreeSlot() {
		if r.present == nil {
			r.present, _ = r.engine.near.Get(r.key) // for the length of the lease
		}
		return r.lookBy(ctx, r.readAndStand)
	}
	return r.look(ctx)
}

// lookAnew is look for a flight that has looked before.
func (r *run[V]) lookAnew(ctx context.Context) bool {
	r.lookAgain()
	return r.look(ctx)
}

// look reads the store, and ends the flight if what is there answers.
func (r *run[V]) look(ctx context.Context) bool { return r.lookBy(ctx, r.readWithLog) }

func (r *run[V]) lookBy(ctx context.Context, read func(context.Context) storeReply) bool {
	e := r.engine
	e.enter(r.key, phaseLooking)
	r.looking.unshared = 0
	known, now := e.near.Get(r.key)
	if e.Store == nil {
		if r.present = known; known == nil || judge(&known.Lifetime, now) != serve {
			return false
		}
		return r.consider(known, false) // another way has brought it, such as Set
	}
	var held *items.Item[V]
	if known != nil && judge(&known.Lifetime, now) != rebuild {
		// If the store does not answer, nobody can say that it does not hold. It
		// answers for as long as it would have if the store had confirmed it.
		held = known.Found(durations.Add(now, e.NearTTL))
		// Who finds out whether the store is back does not wait for that. After a lull
		// the store is asked first: an invalidation may have come meanwhile.
		if held.Held && e.store.Fails(r.key) {
			r.offerStale(held)
		}
	}
	there := r.readPersistently(ctx, read)
	r.looking.before, r.looking.asked = r.looking.asked, there.asked
	if there.entry.Fresh() {
		r.looking.past = there.entry.Epoch
	}
	r.storeDown = errors.Is(there.err, ErrUnavailable) && ctx.Err() == nil
	switch {
	case there.err == nil:
		return r.consider(r.decode(there.entry, known, there.asked), true)
	case ctx.Err() != nil:
		return false // closed, or deserted: that is not the store's silence, and nobody says that what is at hand holds
	case errors.Is(there.err, ErrUnavailable):
		r.noAnswer(ctx, "reading", there.err)
		if held != nil {
			// It answers those, too, who came while the store was silent.
			return r.consider(held.Found(max(held.Trusted, e.clock.Now()+1)), false)
		}
		r.present = known
	default:
		if !errors.Is(there.err, ErrNotFound) {
			e.OnError(r.key, &keyError{"reading", r.key, there.err})
		}
		r.present = nil
		if r.state.Load().offered != nil {
			r.offerStale(nil) // it has been invalidated
		}
	}
	return false
}

// readPersistently reads the store by read, and again if there is no answer: one lost packet is no outage. An
// engine that is gone fails again, and opens its breaker, or has used the time up.
func (r *run[V]) readPersistently(ctx context.Context, read func(context.Context) storeReply) storeReply {
	e := r.engine
	asking, end := e.store.WhileUp(ctx)
	defer end()
	there := read(asking)
	for try := 1; try < gate.Trips && errors.Is(there.err, ErrUnavailable) && ctx.Err() == nil && r.budget.Left() > 0 && e.store.Retries(); try++ {
		r.noAnswer(ctx, "reading", there.err)
		there = r.read(asking, r.budget)
	}
	if cause := context.Cause(asking); errors.Is(there.err, ErrUnavailable) && errors.Is(cause, gate.ErrSilent) {
		there.err = fmt.Errorf("%w: %w", ErrUnavailable, cause)
	}
	return there
}

// consider ends the flight with it if it answers, and offers it to callers if
// it does so for the time being. fromStore tells a hit of the store from what
// was at hand.
func (r *run[V]) consider(it *items.Item[V], fromStore bool) bool {
	r.present = it
	r.loaded, r.committed, r.enough = false, 0, 0
	if it == nil {
		return false
	}
	if fromStore && r.waiting.sees(it.Epoch) {
		r.committed = max(it.Born, r.waiting.since)
	}
	if r.want.Fits != nil && !r.want.Fits(it) {
		return false // it answers others, and is no answer to the call that wants one
	}
	switch verdict := r.verdictOn(it, r.engine.clock.Now()); {
	case (verdict == serve || verdict == serveStale) && r.refuses(it, fromStore), verdict == serveStale:
		// If the call that began this flight has refused it, or would, whoever else
		// comes may have it.
		r.offer(it)
	case verdict != rebuild:
		r.noteOthersBuild(it)
		if r.settle(it) {
			if fromStore {
				r.engine.count.storeHits.Add(1)
			}
			return true
		}
		r.present = nil // invalidated since it was read
	}
	return false
}

// verdictOn is judge for an item that the flight has found.
func (r *run[V]) verdictOn(it *items.Item[V], now instant) verdict {
	verdict := judge(&it.Lifetime, now)
	if verdict == rebuild && it.Failures > 0 && r.waiting.sees(it.Epoch) {
		// It failed while this flight waited for it. Nobody is to be told
		// later, but those who wait are: else they would fail one after another,
		// each after a rebuild of its own.
		return fail
	}
	return verdict
}

// refuses reports whether it is no answer to the call that began the flight, although it
// answers others. What one client wants is no reason to try sooner after a failure, see
// items.Want.
func (r *run[V]) refuses(it *items.Item[V], fromStore bool) bool {
	now := r.engine.clock.Now()
	return r.want.Accept != nil && !r.want.Accept(it, now) && !it.BackingOff(now) && !(fromStore && r.newEnough(it))
}

// offer is offerStale for what the flight has just read.
func (r *run[V]) offer(it *items.Item[V]) {
	if !r.offerStale(it) {
		r.present = nil // invalidated since it was read
	}
}

// noteOthersBuild notes how long a build took that the flight has waited for.
func (r *run[V]) noteOthersBuild(it *items.Item[V]) {
	switch {
	case it.Failures > 0 || it.Build <= 0 || !r.waiting.sees(it.Epoch):
	case r.waiting.hedge.tried:
		r.engine.builds.Note(it.Build) // that it was slow is noted
	default:
		r.built(it.Build)
	}
}

// newEnough reports whether it is of a load that began, in another process, after the
// flight had begun to wait: then it answers who waits whatever they want, as the
// flight's own load would. Without that, as many processes as have a client that
// wants what is new would load one after another.
//
// The load that the flight found under way began before. It commits first, so the
// next to commit has claimed its epoch after that: where leases hold. Where one was
// lost two loads may have run at a time; so the age that the store knows has to say
// the same. Both are taken as early as they can have been. What no flight has made
// says nothing of its load.
func (r *run[V]) newEnough(it *items.Item[V]) bool {
	if !r.waiting.sees(it.Epoch) {
		return false
	}
	if r.waiting.first == 0 {
		r.waiting.first, r.waiting.missing = it.Epoch, r.looking.before
	}
	underWay := r.engine.clock.Now() - r.looking.asked // the reply, at most
	began := it.Born - it.Build - underWay
	if it.Epoch == r.waiting.first || it.Build == 0 || began < r.waiting.since {
		return false
	}
	r.enough = min(began, r.waiting.missing) + 1 // as item.made
	return true
}

// A storeReply is what the store said of a flight's key, as of when it was asked.
type storeReply struct {
	entry driver.Entry
	asked instant
	err   error
}

// read asks the store for the key's entry.
func (r *run[V]) read(ctx context.Context, budget *gate.Budget) storeReply {
	e := r.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, r.key, budget, func(ctx context.Context) (driver.Entry, error) {
		return e.Store.Get(ctx, e.engineKey(r.key))
	})
	return storeReply{entry, asked, err}
}

// readWithLog is read after a look at the log of sweeps, if the log is due, in one request where the
// store can. A batch may have read the key already.
func (r *run[V]) readWithLog(ctx context.Context) storeReply {
	r.followLogAhead(ctx, r.logAge())
	if there := r.looking.ahead; there != nil {
		r.looking.ahead = nil
		return *there
	}
	return r.read(ctx, r.budget)
}

// logAge is the age at which the log of sweeps is read again for a look. A store that has lost the key
// under the flight's own load may have lost the log as well.
func (r *run[V]) logAge() time.Duration {
	if r.leading.again {
		return 0
	}
	return r.engine.NearTTL / 2
}

// readMany asks the store for all the keys' entries at one time. It calls take,
// one call at a time, for each that the store answers for, as soon as it does so,
// and returns which those are, and why there are others. A store that goes on
// answering has all the time that it takes.
func (e *engine[V]) readMany(ctx context.Context, store driver.BatchGetter, keys []string, budget *gate.Budget, take func(i int, reply *storeReply)) (answered []bool, err error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = e.engineKey(key)
	}
	var (
		mu      sync.Mutex // guards what follows, and answered, until over
		silence = errors.New("no answer for the key")
		some    bool
		over    bool
		began   = e.clock.Now()
		last    = began // answer
		heard   func()
	)
	answered = make([]bool, len(keys))
	each := func(i int, entry driver.Entry, err error) {
		if failure := fault.Guard(func() error { fault.Inquire(err); return nil }); failure != nil {
			err = failure // on a goroutine of the adapter's, perhaps
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over || answered[i]:
		case err != nil && !fault.IsAnswer(err):
			silence = err
		default:
			some, answered[i], last = true, true, e.clock.Now()
			heard()
			take(i, &storeReply{entry, began, err})
		}
	}
	err = gate.AskInPieces(ctx, e.store, keys[0], budget, func(ctx context.Context, piece func()) error {
		defer func() { // however it ends: what it says after that is not heard
			mu.Lock()
			defer mu.Unlock()
			over = true
		}()
		mu.Lock()
		heard = piece
		mu.Unlock()
		store.GetMany(ctx, names, each)
		mu.Lock()
		defer mu.Unlock()
		if !some {
			return silence
		}
		return nil // of one of its servers, perhaps; it is up
	})
	if err == nil && slices.Contains(answered, false) {
		budget.Spend(e.clock.Now() - last)
		err = fmt.Errorf("%w: %w", ErrUnavailable, silence)
	}
	return answered, err
}
