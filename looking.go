package bellwether

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the state looking: the flight reads the store. The entry there ends the flight, is
// offered to callers as a stale item, or is no answer.

type lookingState struct {
	discounted  bool        // engine.unlooked does not count the flight any more
	prefetched  *storeReply // a reply for the next look that a batch or a read of the log has brought; nil otherwise
	asked       instant     // when the store was asked in the last look or claim; for a notice, a time before its change
	askedBefore instant     // the value of asked for the look before; after a notice, as asked
	unfitEpoch  uint64      // the epoch of the latest fresh entry that did not answer the flight
	unshared    uint64      // the epoch of the KindUnshared entry that the last look or claim found, 0 if none
	unelected   bool        // the last look or claim has found a KindUnelected entry below its TTL
	refused     int         // leadingState.refused at the last look
}

func (r *run[V]) lookOnce(ctx context.Context) rebuildOutcome {
	if r.leading.fenced || r.leading.refused > max(r.looking.refused, 1) {
		r.leading.fenced = false
		// The cause that voided the load may go on. Callers gather in this pause for the next load. Without
		// it a quick load that invalidates its own key would answer no caller: all callers would have come
		// after the load began.
		select {
		case <-time.After(minPoll << r.leading.refused):
		case <-ctx.Done():
		}
	}
	r.looking.refused = r.leading.refused
	r.declineElection(ctx)
	if r.looking.prefetched == nil { // otherwise a batch has read the key after the flight began
		r.lookAgain()
	}
	if r.lookAndStand(ctx) {
		return outcomeAnswered
	}
	r.discount()
	return outcomeNothing
}

func (r *run[V]) discount() {
	if r.queues && !r.looking.discounted {
		r.looking.discounted = true
		r.engine.unlooked.Add(-1)
	}
}

// lookAndStand is look, with the election in the same request if the engine can. The flight takes a
// slot first, since the elected flight has to load.
func (r *run[V]) lookAndStand(ctx context.Context) bool {
	if r.looking.prefetched == nil && r.electsAtOnce() && r.takeFreeSlot() {
		if r.present == nil {
			r.present, _ = r.engine.near.Get(r.key) // the lease's length depends on the item
		}
		return r.lookBy(ctx, r.readAndStand)
	}
	return r.look(ctx)
}

func (r *run[V]) lookAnew(ctx context.Context) bool {
	r.lookAgain()
	return r.look(ctx)
}

func (r *run[V]) look(ctx context.Context) bool { return r.lookBy(ctx, r.readWithLog) }

func (r *run[V]) lookBy(ctx context.Context, read func(context.Context) storeReply) bool {
	e := r.engine
	e.enter(r.key, phaseLooking)
	r.looking.unshared, r.looking.unelected = 0, false
	known, now := e.near.Get(r.key)
	if e.Store == nil {
		r.present = known
		// Set, or another way without a flight, may have brought a fresh item.
		return known != nil && judge(&known.Lifetime, now) == serve && r.consider(known, false)
	}
	var held *items.Item[V]
	if known != nil && judge(&known.Lifetime, now) != rebuild {
		// A silent store cannot void the item, which answers as if the store had confirmed it now.
		held = known.Found(durations.Add(now, e.NearTTL))
		// During an outage no caller waits for the flight that probes the store. After two seconds
		// without a failure the store is asked first: another process may have invalidated the key.
		if held.Held && e.store.Fails(r.key) {
			r.offer(held, false)
		}
	}
	there := r.readPersistently(ctx, read)
	r.looking.askedBefore, r.looking.asked = r.looking.asked, there.asked
	if there.entry.Fresh() {
		r.looking.unfitEpoch = there.entry.Epoch
	}
	r.storeDown = errors.Is(there.err, ErrUnavailable) && ctx.Err() == nil
	switch {
	case there.err == nil:
		return r.consider(r.decode(there, known), true)
	case ctx.Err() != nil:
		return false // Close or desertion, not silence, ended the request: the item stays unconfirmed
	case errors.Is(there.err, ErrUnavailable):
		r.noAnswer(ctx, "reading", there.err)
		if held != nil {
			// The item answers also the callers that came while the store was silent.
			return r.consider(held.Found(max(held.TrustedUntil, e.clock.Now()+1)), false)
		}
		r.present = known
	default:
		r.noEntry(there.err)
	}
	return false
}

// noEntry takes the store's word that there is no entry, or no valid entry.
func (r *run[V]) noEntry(err error) {
	if !errors.Is(err, ErrNotFound) {
		r.engine.OnError(r.key, &keyError{"reading", r.key, err})
	}
	r.present = nil
	r.withhold() // the item was invalidated
}

// readPersistently reads the store, and repeats a read without an answer: one lost packet is not an
// outage. A dead engine fails again, and opens its breaker or uses up the budget.
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

// consider ends the flight with an item that answers, or offers a stale item. It reports whether the
// flight has ended. fromStore is false for an item that was at hand.
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
		return false // the item answers other calls, never the call that began this flight
	}
	switch is := r.verdictOn(it, r.engine.clock.Now()); {
	case (is == serve || is == serveStale) && r.refuses(it, fromStore), is == serveStale:
		// The call that began this flight refuses the item or has it replaced. Other callers may take it.
		if !r.offer(it, fromStore) {
			r.present = nil // invalidated since the read
		}
	case is != rebuild:
		r.noteOthersBuild(it)
		if r.settle(it) {
			if fromStore {
				r.engine.count.storeHits.Add(1)
			}
			return true
		}
		r.present = nil // invalidated since the read
	}
	return false
}

func (r *run[V]) verdictOn(it *items.Item[V], now instant) verdict {
	is := judge(&it.Lifetime, now)
	if is == rebuild && it.Failures > 0 && r.waiting.sees(it.Epoch) {
		// Another process's load failed while this flight waited. Without a pause left, the failure still
		// answers the flights that waited: otherwise they would load and fail one after another.
		return fail
	}
	return is
}

// refuses reports whether the call that began the flight does not take the item. During a failure's
// pause the call takes any item: a client's wish is no reason for an earlier try, see items.Want.
func (r *run[V]) refuses(it *items.Item[V], fromStore bool) bool {
	now := r.engine.clock.Now()
	return r.want.Accept != nil && !r.want.Accept(it, now) && !it.BackingOff(now) && !(fromStore && r.newEnough(it))
}

// noteOthersBuild records the build time of a value for which the flight has waited.
func (r *run[V]) noteOthersBuild(it *items.Item[V]) {
	switch {
	case it.Failures > 0 || it.Build <= 0 || !r.waiting.sees(it.Epoch):
	case r.waiting.hedge.tried:
		r.engine.builds.Note(it.Build) // hedge has recorded it as slow
	default:
		r.built(it.Build)
	}
}

// newEnough reports whether another process's load began after this flight began to wait. If so, it sets
// r.enough. The value then answers the waiting callers whatever they want, as the flight's own load
// would. Otherwise each process with a client that wants a new value would load after the other.
//
// The order of events: this flight finds a holder at waiting.since. The holder's load began before,
// and commits first. The next committer claimed after this first commit, so the next load is new
// enough if every lease held. After a lost lease two loads may have overlapped. So the entry's age
// must agree: the load must not have begun before waiting.since. Both times are taken as early as
// possible. A Build of 0 is a value without a flight, and its age says nothing about a load.
func (r *run[V]) newEnough(it *items.Item[V]) bool {
	if !r.waiting.sees(it.Epoch) {
		return false
	}
	if r.waiting.first == 0 {
		r.waiting.first, r.waiting.missing = it.Epoch, r.looking.askedBefore
	}
	underWay := r.engine.clock.Now() - r.looking.asked // the longest that the reply can have taken
	began := it.Born - it.Build - underWay
	if it.Epoch == r.waiting.first || it.Build == 0 || began < r.waiting.since {
		return false
	}
	r.enough = min(began, r.waiting.missing) + 1 // + 1 as in items.Item.LoadBegan
	return true
}

// A storeReply is the store's answer for a key. Its entry may wait: only came tells when it had its Age.
type storeReply struct {
	entry driver.Entry
	asked instant // before the store read the entry; for a notice, before the entry's commit
	came  instant
	err   error
}

func (r *run[V]) read(ctx context.Context, budget *gate.Budget) storeReply {
	e := r.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, r.key, budget, func(ctx context.Context) (driver.Entry, error) {
		return e.Store.Get(ctx, e.engineKey(r.key))
	})
	return storeReply{entry, asked, e.clock.Now(), err}
}

// readWithLog reads the key, and the log of sweeps if due. The two are one request where the store can.
func (r *run[V]) readWithLog(ctx context.Context) storeReply {
	r.followLogAhead(ctx, r.logAge())
	if there := r.looking.prefetched; there != nil {
		r.looking.prefetched = nil
		return *there
	}
	if r.looksTogether() {
		return r.readTogether(ctx)
	}
	return r.read(ctx, r.budget)
}

// logAge is the age at which a look reads the log of sweeps again. It is 0 after an earlier election:
// a store that has lost the key during the flight's load may have lost the log too.
func (r *run[V]) logAge() time.Duration {
	if r.leading.again {
		return 0
	}
	return r.engine.NearTTL / 2
}

// readMany reads many keys in one request, which the gate judges as a request for key. It calls named for
// their names in the store when the request's turn has come, and take for each answer at once, one call at a
// time. The result has the indexes of the answered keys, and the error is the reason for the others. Each
// answer begins the time limit anew: a store that goes on answering has all the time.
func (e *engine[V]) readMany(ctx context.Context, store driver.BatchGetter, key string, named func() []string, budget *gate.Budget, take func(i int, reply *storeReply)) (map[int]bool, error) {
	var (
		mu       sync.Mutex // guards the fields below, until over
		silence  = errors.New("no answer for the key")
		names    []string
		answered = map[int]bool{}
		over     bool
		began    instant
		last     instant // the last answer
		heard    func()
	)
	each := func(i int, entry driver.Entry, err error) {
		if failure := fault.Guard(func() error { fault.Inquire(err); return nil }); failure != nil {
			err = failure // each may run on a goroutine of the adapter
		}
		came := e.clock.Now()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over || answered[i]:
		case err != nil && !fault.IsAnswer(err):
			silence = err
		default:
			answered[i], last = true, max(last, came)
			heard()
			take(i, &storeReply{entry, began, came, err})
		}
	}
	err := gate.AskInPieces(ctx, e.store, key, budget, func(ctx context.Context, piece func()) error {
		defer func() { // also after a panic: later answers of the adapter are ignored
			mu.Lock()
			defer mu.Unlock()
			over = true
		}()
		mu.Lock()
		names = named()
		heard, began = piece, e.clock.Now()
		last = began
		mu.Unlock()
		if len(names) == 0 {
			return nil // the flights have left
		}
		store.GetMany(ctx, names, each)
		mu.Lock()
		defer mu.Unlock()
		if len(answered) == 0 {
			return silence
		}
		return nil // a server of the store may be silent, but the store is up
	})
	if err == nil && len(answered) < len(names) {
		budget.Spend(e.clock.Now() - last)
		err = fmt.Errorf("%w: %w", ErrUnavailable, silence)
	}
	return answered, err
}
