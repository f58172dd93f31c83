package bellwether

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what a rebuild has to do with the store: it reads, claims and
// commits, and makes items of entries and entries of items.

// A storeReply is what the store said of a flight's key, as of when it was asked.
type storeReply struct {
	entry Entry
	asked instant
	err   error
}

// read asks the store for the key's entry.
func (r *run[V]) read(ctx context.Context, budget *gate.Budget) storeReply {
	e := r.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, r.key, budget, func(ctx context.Context) (Entry, error) {
		return e.Store.Get(ctx, e.engineKey(r.key))
	})
	return storeReply{entry, asked, err}
}

// A ballot is what an elector said of an election, where no entry was the answer; or that it
// said nothing, if neither lease nor held is there.
type ballot struct {
	lease Lease
	epoch uint64
	held  *HeldError
}

// readWithLog is read after a look at the log of sweeps, if the log is due, in one request where the
// store can. A batch may have read the key already.
func (r *run[V]) readWithLog(ctx context.Context) storeReply {
	r.followLogAhead(ctx, r.logAge())
	if there := r.ahead; there != nil {
		r.ahead = nil
		return *there
	}
	return r.read(ctx, &r.budget)
}

// logAge is the age at which the log of sweeps is read again for a look. A store that has lost the key
// under the flight's own load may have lost the log as well.
func (r *run[V]) logAge() time.Duration {
	if r.led {
		return 0
	}
	return r.engine.NearTTL / 2
}

// readAndStand is read by an elector. Unless the entry is fresh and later than the entries that the
// flight has refused, the flight stands for election in the same request. The log is read in a
// request of its own: a key that came along with it would be a look without an election.
//
// The election has half of the flight's budget. Without an answer the flight reads alone with the
// rest: an engine whose writes are silent may still have a fresh entry.
func (r *run[V]) readAndStand(ctx context.Context) storeReply {
	e := r.engine
	e.sweeps.Follow(ctx, &r.budget, r.logAge())
	e.enter(r.key, phaseStanding)
	asked := e.clock.Now()
	r.stood, r.length = asked, r.leaseLength()
	half := r.budget.Half()
	won, err := gate.AskInTurn(ctx, e.writes, r.key, half, func(ctx context.Context) (driver.Election, error) {
		return e.elector.Elect(ctx, e.engineKey(r.key), r.past, r.length)
	})
	r.budget.Left += half.Left
	if err != nil {
		if ctx.Err() != nil {
			return storeReply{asked: asked, err: err}
		}
		r.noAnswer(ctx, "standing for the election of", err)
		r.ballot = &ballot{}
		return r.read(ctx, &r.budget)
	}
	if answers := won.Entry.Fresh() && won.Entry.Epoch > r.past; !answers || won.Lease != nil {
		// With neither a lease nor a holder it counts as no answer: the flight would ask again
		// without end.
		r.ballot = &ballot{won.Lease, won.Epoch, won.Held}
	}
	if won.Entry.Kind == KindNone && won.Entry.Failures == 0 {
		err = ErrNotFound
	}
	return storeReply{won.Entry, asked, err}
}

// readMany asks the store for all the keys' entries at one time. It calls take,
// one call at a time, for each that the store answers for, as soon as it does so,
// and returns which those are, and why there are others. A store that goes on
// answering has all the time that it takes.
func (e *engine[V]) readMany(ctx context.Context, store BatchGetter, keys []string, budget *gate.Budget, take func(i int, reply *storeReply)) (answered []bool, err error) {
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
	each := func(i int, entry Entry, err error) {
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
		budget.Left -= e.clock.Now() - last
		err = fmt.Errorf("%w: %w", ErrUnavailable, silence)
	}
	return answered, err
}

// claim reads the key again, now that nobody else may rebuild it, and takes an
// epoch for the rebuild, in one call. Who has won the lease just after another
// released it finds that one's value here, and the flight has ended.
func (r *run[V]) claim(ctx context.Context) (epoch uint64, ended bool) {
	if b := r.ballot; b != nil { // the election was a look, and a claim
		r.ballot = nil
		return b.epoch, false
	}
	asked := r.engine.clock.Now()
	r.before, r.epochAsked = r.epochAsked, asked
	// It is a look: an invalidation before it is nothing that it could miss, and
	// is no reason to stand for election again, nor to queue for another slot.
	outdated := r.lookAgain()
	entry, epoch := r.takeEpoch(ctx)
	if epoch == 0 || r.engine.Store == nil {
		if outdated {
			r.present = nil
		}
		return epoch, false
	}
	known, _ := r.engine.near.Get(r.key)
	it := r.decode(entry, known, asked)
	if it == nil && r.state.Load().offered != nil {
		r.offerStale(nil) // it was invalidated since the look
	}
	return epoch, r.consider(it, true)
}

// takeEpoch returns a new epoch for the key, and its present entry. The epoch
// is 0 if the store does not answer.
func (r *run[V]) takeEpoch(ctx context.Context) (entry Entry, epoch uint64) {
	e := r.engine
	if e.Store == nil {
		return Entry{}, e.nextEpoch()
	}
	if r.storeDown {
		return Entry{}, 0
	}
	e.enter(r.key, phaseClaiming)
	entry, err := gate.Ask(ctx, e.writes, r.key, &r.budget, func(ctx context.Context) (entry Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(r.key))
		return entry, err
	})
	if err != nil {
		r.noAnswer(ctx, "claiming", err)
		r.storeDown = true
		return Entry{}, 0
	}
	return entry, epoch
}

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
func (e *engine[V]) nextEpoch() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epoch++
	return e.epoch
}

// commit offers it to the store. A value that the store answers for and does not
// take stays with this process.
func (r *run[V]) commit(ctx context.Context, it *items.Item[V]) commitOutcome {
	e := r.engine
	switch {
	case e.Store == nil:
		return committed
	case r.storeDown:
		return notTaken
	case r.unshared != 0:
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
	case errors.Is(err, ErrFenced):
		return r.fencedOff(err)
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
	default:
		e.OnError(r.key, &keyError{"committing", r.key, err})
	}
	// The processes that wait for this value are told that there is none to
	// come. Without that they would take turns, each only to find the same out.
	// An engine out of memory may have room for so little.
	entry.Kind, entry.Value = KindUnshared, nil
	if !lives {
		entry.TTL = durations.Add(entry.Age, durations.Add(unsharedTTL, 2*entry.BuildTime))
	}
	marked := r.write(ctx, entry)
	switch {
	case marked == nil:
		return committed
	case !errors.Is(marked, ErrFenced):
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
		since = r.made - 1
	}
	it.Beside, it.Trusted = true, durations.Add(since, r.engine.alone())
	switch {
	case r.unshared != 0: // that entry's epoch is its own
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

// A commitRecord tells whether a store takes what it is given. One that is full
// may answer all else. It is no breaker: to try again costs nobody anything, and
// is how the end of it is found out.
type commitRecord struct {
	failures atomic.Int32 // in a row
	last     atomic.Int64 // the instant of the last of them
}

// commitMemory is for how long failed commits count.
const commitMemory = 10 * time.Second

func (c *commitRecord) note(err error, now instant) {
	if err == nil || fault.IsAnswer(err) {
		c.failures.Store(0)
		return
	}
	c.last.Store(int64(now))
	c.failures.Add(1)
}

// fails reports whether the next commit will probably fail too.
func (c *commitRecord) fails(now instant) bool {
	return c.failures.Load() >= gate.Trips && now < durations.Add(instant(c.last.Load()), commitMemory)
}

// probeKey is where a store is asked whether it takes commits again. No two
// processes mind each other there: what is found under it is of no use.
const probeKey = "\x00probe"

// probe reports whether the store takes commits again, by one that nobody needs:
// without it, the first loads after an outage would go on without a lease.
func (r *run[V]) probe(ctx context.Context) bool {
	e := r.engine
	key := e.engineKey(probeKey)
	err := gate.AskErr(ctx, e.writes, probeKey, &r.budget, func(ctx context.Context) error {
		_, epoch, err := e.Store.Claim(ctx, key)
		if err == nil {
			err = e.Store.Commit(ctx, key, Entry{Kind: KindUnshared, Epoch: epoch, TTL: time.Second})
		}
		return err
	})
	e.commits.note(err, e.clock.Now())
	return !e.commits.fails(e.clock.Now())
}

// write commits the entry. An elector takes the flight's lease back in the same request.
func (r *run[V]) write(ctx context.Context, entry Entry) error {
	e, lease := r.engine, r.lease
	if e.elector == nil || lease == nil {
		return r.writeBy(ctx, func(ctx context.Context) error {
			return e.Store.Commit(ctx, e.engineKey(r.key), entry)
		})
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return e.elector.CommitAndRelease(ctx, e.engineKey(r.key), entry, lease)
	})
	if err == nil {
		r.lease = nil
	}
	return err
}

func (r *run[V]) writeBy(ctx context.Context, call func(context.Context) error) error {
	e := r.engine
	e.enter(r.key, phaseCommitting)
	err := gate.AskErr(ctx, e.writes, r.key, &r.budget, call)
	if ctx.Err() == nil {
		e.commits.note(err, e.clock.Now())
	}
	return err
}

// commitFailure is commit of a failure beside what was there. The value of that is not sent
// again to a store that can keep it.
func (r *run[V]) commitFailure(ctx context.Context, it *items.Item[V]) commitOutcome {
	e := r.engine
	toucher, ok := e.Store.(Toucher)
	if !ok || r.storeDown || r.unshared != 0 || it.Kind != KindValue || r.present.Beside {
		return r.commit(ctx, it)
	}
	entry := r.entryOf(it)
	if entry.Life() <= 0 {
		return r.commit(ctx, it)
	}
	err := r.writeBy(ctx, func(ctx context.Context) error {
		return toucher.Touch(ctx, e.engineKey(r.key), r.present.Epoch, entry)
	})
	switch {
	case err == nil:
		return committed
	case errors.Is(err, ErrFenced):
		return r.fencedOff(err)
	case errors.Is(err, ErrUnavailable):
		r.noAnswer(ctx, "committing", err)
		if there := r.confirmCommit(ctx, it.Epoch); there != fenced {
			return there
		}
	}
	return r.commit(ctx, it) // with the value, which is no longer there
}

// confirmCommit is the outcome of a commit whose reply was lost.
func (r *run[V]) confirmCommit(ctx context.Context, epoch uint64) commitOutcome {
	return r.confirmThere(ctx, func(e Entry) bool { return e.Epoch == epoch })
}

// confirmThere reads the store: committed if its entry is the wanted one, notTaken if the store does
// not answer, and fenced if something else, or nothing, is there.
func (r *run[V]) confirmThere(ctx context.Context, wanted func(Entry) bool) commitOutcome {
	there := r.read(ctx, &r.budget)
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
	return r.confirmThere(ctx, func(e Entry) bool { return e.Kind == KindUnshared && e.Epoch == r.unshared })
}

// encode makes the store's entry of an item.
func (r *run[V]) encode(it *items.Item[V]) (Entry, error) {
	e := r.entryOf(it)
	if it.Kind != KindValue {
		return e, nil
	}
	err := fault.Guard(func() (err error) {
		e.Value, err = r.engine.marshal(it.Value)
		return err
	})
	return e, err
}

// entryOf makes the store's entry of an item, but for the value.
func (r *run[V]) entryOf(it *items.Item[V]) Entry {
	e := Entry{
		Kind:                 it.Kind,
		Epoch:                it.Epoch,
		Age:                  durations.Between(it.Born, r.engine.clock.Now()),
		TTL:                  it.FreshUntil - it.Born,
		StaleWhileRevalidate: it.StaleUntil - it.FreshUntil,
		StaleIfError:         it.ErrorUntil - it.FreshUntil,
		Keep:                 it.KeepUntil - it.FreshUntil,
		BuildTime:            it.Build,
		Sweep:                it.Position,
		Failures:             it.Failures,
	}
	if it.Failures > 0 {
		e.RetryAge, e.Failure = durations.Between(it.Born, it.RetryAt), failureText(it.Err)
	}
	return e
}

// maxFailure is the most bytes of a failure's text that travel. What the store does
// not take is told to nobody, and the processes would fail one after another.
const maxFailure = 4 << 10

func failureText(err error) string {
	text := err.Error()
	if len(text) > maxFailure {
		text = strings.ToValidUTF8(text[:maxFailure], "") + "..."
	}
	return text
}

// decode makes an item of the store's entry as it was when the store was asked,
// nil if there is nothing in it. If known, the near tier's, is of the same
// rebuild, its value serves; if it stands beside the entry, that is the item.
func (r *run[V]) decode(e Entry, known *items.Item[V], asked instant) *items.Item[V] {
	var none V
	if e.Kind > KindUnshared || e.Kind == KindNotFound && !r.engine.answers(none) {
		r.engine.OnError(r.key, &keyError{"decoding", r.key, fmt.Errorf("%w: unknown kind %d", ErrCorrupt, e.Kind)})
		return nil
	}
	if e.Kind == KindNone && e.Failures == 0 {
		return nil
	}
	now := r.engine.clock.Now()
	if known != nil && known.Beside && known.Epoch == e.Epoch && e.Kind != KindUnshared {
		return r.engine.spare(r.key, known.Found(r.engine.trustedUntil(asked)))
	}
	same := known != nil && known.Epoch == e.Epoch && known.Failures == e.Failures
	if e.Kind == KindUnshared {
		// Its value is here or nowhere, and so are this process's failures to make one.
		failed := known != nil && known.Epoch == e.Epoch && known.Failures > e.Failures
		if same && known.Kind == KindValue || failed {
			// And so is its lifetime: the entry has that of whoever wrote it.
			own := known.Found(r.engine.trustedUntil(asked))
			if now >= own.FreshUntil && (own.Failures == 0 || failed) && e.Age < e.TTL {
				r.unshared = e.Epoch // a new epoch would make all others load again
			}
			return r.engine.spare(r.key, own)
		}
		if e.Kind = KindNone; e.Failures == 0 {
			if e.Age < e.TTL {
				r.unshared = e.Epoch
			}
			return nil
		}
	}
	it := &items.Item[V]{Kind: e.Kind, Epoch: e.Epoch, Build: e.BuildTime, Position: e.Sweep, Trusted: r.engine.trustedUntil(asked)}
	it.Lifetime = items.NewLifetime(now, items.Windows{
		Age: e.Age, TTL: e.TTL, StaleWhileRevalidate: e.StaleWhileRevalidate, StaleIfError: e.StaleIfError, Keep: e.Keep,
	})
	it.Held = e.Kind != KindNone
	if e.Failures > 0 {
		it.Failures, it.RetryAt = e.Failures, durations.Add(it.Born, e.RetryAge)
		it.Err = &RemoteError{Message: e.Failure}
	}
	if same && known.Kind == e.Kind {
		it.Adopt(known)
		return r.engine.spare(r.key, it)
	}
	if e.Kind == KindValue {
		err := fault.Guard(func() (err error) {
			it.Value, err = r.engine.unmarshal(e.Value)
			return err
		})
		if err != nil {
			r.engine.OnError(r.key, &keyError{"decoding", r.key, fmt.Errorf("%w: %w", ErrCorrupt, err)})
			return nil
		}
	}
	return r.engine.spare(r.key, it)
}

// lifetimeOf is the lifetime of what a rebuild has made.
func (e *engine[V]) lifetimeOf(now instant, f items.Windows, key string, epoch uint64) items.Lifetime {
	f.TTL = jittered(f.TTL, e.TTLJitter, key, epoch)
	return items.NewLifetime(now, f)
}

// trustedUntil is how long the near tier may go, with what was true at the time
// now, without asking the store.
func (e *engine[V]) trustedUntil(now instant) instant {
	if e.Store == nil {
		return forever
	}
	return durations.Add(e.sweeps.Asked(now), e.NearTTL)
}

// confirmEvery is how often the store is asked whether what it said before still
// holds, while that is served.
func (e *engine[V]) confirmEvery() time.Duration { return max(e.alone()/2, minPoll) }
