package bellwether

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
)

// This file is the batches: many keys asked for in one call. Each key has a
// flight of its own, with its own lease, epoch and failures, that other callers
// join and that waits for nobody; a batch is the flights that one call has begun
// together. It reads the store for all of them at once before they take off, and
// those that come to load do so together.

// A BatchError says which keys of a batch failed, and how. GetMany returns it,
// and a batch load may.
type BatchError struct {
	// Errors has the error of each key that failed.
	Errors map[string]error
}

// Error tells of one key; there may be thousands.
func (e *BatchError) Error() string {
	if len(e.Errors) == 0 {
		return "bellwether: no key failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e.Errors)))
	if len(e.Errors) == 1 {
		return fmt.Sprintf("bellwether: key %q: %v", first, e.Errors[first])
	}
	return fmt.Sprintf("bellwether: %d keys failed, the first is %q: %v", len(e.Errors), first, e.Errors[first])
}

// Unwrap returns the errors in the order of their keys.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errors))
	for _, key := range slices.Sorted(maps.Keys(e.Errors)) {
		errs = append(errs, e.Errors[key])
	}
	return errs
}

// NewBatch returns a Cache of what load returns for many keys at a time: what
// [Cache.GetMany] has to load, in one call as a rule, and what [Cache.Get] has,
// one key in a call. Being the only one, it is the same for all callers.
//
// The map has the values. What is not in it does not exist, and is remembered as
// [ErrNotFound] is, if the error is nil or a [*BatchError]; keys that a
// BatchError names have failed. With any other error all keys have failed that
// are not in the map. A key of the map that was not asked for is left aside.
//
// Its context is that of a load, see [New], and ends when nobody has any more use
// for any of its keys: RebuildTimeout counts for the whole, Invalidate of one key
// ends nothing for the others. [SetFreshnessOf] sets how long one value may be
// served. Of MaxRebuilds it is one.
//
// NewBatch panics as New does.
func NewBatch[V any](load func(ctx context.Context, keys []string) (map[string]V, error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewBatch needs a load, a func(ctx context.Context, keys []string) (map[string]V, error)"))
	}
	l := batchLoad[V](load)
	c := New(l.one, o)
	c.together = l
	return c
}

// GetMany returns the values of keys: what Get returns for each of them, asked
// for at one time. The error is nil or a [*BatchError]: the keys that it names
// have failed, by what Get would return; those that neither it nor the map has
// were not found. So GetMany is itself a load for [NewBatch].
//
// The store is asked for all keys at once if it is a [BatchGetter]. What has to
// be loaded is loaded in one call of the load that [NewBatch] was given; of [New]'s
// in one call for each key. A key that another call is loading is not loaded
// again, here or in any process; and a Get for a key of this call joins it.
//
// No key waits for another's trouble: what another process holds, and what is
// late, is loaded later, apart from the rest. But GetMany returns when it has an
// answer for each key, or ctx ends: then it has the values that are there, and
// ctx's error for the other keys.
//
// Keys may be empty, and may repeat. Of very many, 4,000 are under way at a time,
// and a load is given 1,000 at most.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	return c.engine.getMany(ctx, keys, c.bind, c.together)
}

const (
	// maxTogether is how many keys the store is asked for, and a load is given,
	// at most at a time.
	maxTogether = 1000
	// maxUnderWay is how many keys of one call are under way at most: a flight
	// has goroutines and timers. It is several times maxTogether, so that those
	// that wait long for others do not hold up the rest.
	maxUnderWay = 4 * maxTogether
	// gatherLull is how long those who are ready to load wait, while nobody
	// comes, for those who are not: one slow answer of an engine must not hold
	// up a batch, and a dead process's leases do not end all at one moment.
	gatherLull = 20 * time.Millisecond
)

// A batchLoad is a user's load of many keys.
type batchLoad[V any] func(ctx context.Context, keys []string) (map[string]V, error)

// one loads one key.
func (l batchLoad[V]) one(ctx context.Context, key string) (V, error) {
	values, err := l(ctx, []string{key})
	batch, _ := errors.AsType[*BatchError](err)
	v, err := valueOf(values, batch, err, key)
	if c := loadOf(ctx); c != nil {
		c.freshness.settle(key, err == nil)
	}
	return v, err
}

// valueOf is what a batch load that has returned values and err says of key. batch
// is the BatchError in err, nil if there is none.
func valueOf[V any](values map[string]V, batch *BatchError, err error, key string) (V, error) {
	v, found := values[key]
	if batch != nil && batch.Errors[key] != nil {
		return v, batch.Errors[key]
	}
	switch {
	case found:
		return v, nil
	case err == nil || error(batch) == err:
		return v, ErrNotFound
	}
	// A BatchError within another error may not be all that it says.
	return v, err
}

// A pending is one key of a call that has no answer yet.
type pending[V any] struct {
	*waiter[V]
	early bool // nobody waits: its value is fresh, and to be rebuilt before it expires
}

// A manyCall is one call of getMany.
type manyCall[V any] struct {
	*engine[V]
	single binder[V] // for keys that do not go with a batch
	load   batchLoad[V]
	// places bounds what is under way: two for each key, one for its waiter and
	// one for the flight that it has begun.
	places  *semaphore.Weighted
	waiters sync.WaitGroup

	mu     sync.Mutex // guards what follows
	values map[string]V
	failed map[string]error
	early  []pending[V] // what the store has answered, and is to be rebuilt before it expires
}

func (e *engine[V]) getMany(ctx context.Context, keys []string, single binder[V], load batchLoad[V]) (map[string]V, error) {
	c := &manyCall[V]{
		engine: e, single: single, load: load, places: semaphore.NewWeighted(2 * maxUnderWay),
		values: make(map[string]V, len(keys)), failed: map[string]error{},
	}
	// First those that have nothing to be served meanwhile, then those of which
	// nobody need wait for the rebuild.
	missing, covered := c.hits(ctx, keys)
	c.all(ctx, append(missing, covered...))
	c.waiters.Wait()
	c.all(ctx, c.early)
	if len(c.failed) == 0 {
		return c.values, nil
	}
	return c.values, &BatchError{c.failed}
}

// all begins what there is to do, some at a time.
func (c *manyCall[V]) all(ctx context.Context, todo []pending[V]) {
	for len(todo) > 0 {
		together := todo[:min(len(todo), maxTogether)]
		todo = todo[len(together):]
		if !c.places.TryAcquire(int64(2 * len(together))) {
			together = c.waitForPlaces(ctx, together)
		}
		if len(together) > 0 {
			c.begin(together)
		}
	}
}

// hits answers what the near tier can, and returns the rest: what is missing, and
// what is covered by something that can be served.
func (c *manyCall[V]) hits(ctx context.Context, keys []string) (missing, covered []pending[V]) {
	seen := make(map[string]struct{}, len(keys))
	began := c.clock.Now()
	for _, key := range keys {
		if _, again := seen[key]; again {
			continue
		}
		seen[key] = struct{}{}
		it, early, ok := c.hit(key)
		if ok {
			c.answer(key, it, nil)
			if c.observers.hit != nil || it.Failures > 0 {
				c.tellHit(ctx, key, it.Way(c.clock.Now()))
			}
		}
		switch {
		case early:
			covered = append(covered, pending[V]{c.refresher(ctx, key, it), true})
		case ok:
		default:
			w := c.waiter(ctx, key, it)
			w.began = began // MaxWait is the call's
			if it == nil {
				missing = append(missing, pending[V]{w, false})
			} else {
				covered = append(covered, pending[V]{w, false})
			}
		}
	}
	return missing, covered
}

func (c *manyCall[V]) answer(key string, it *items.Item[V], err error) {
	var v V
	if err == nil {
		v, err = it.Answer()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.values[key] = v
	case err != ErrNotFound: // itself: to ask what it wraps would run user code, where nobody recovers
		c.failed[key] = err
	}
}

// take takes the answer of a waiter that has it.
func (c *manyCall[V]) take(a pending[V]) {
	defer c.places.Release(1)
	c.end(a)
}

// end is take for a waiter without a place.
func (c *manyCall[V]) end(a pending[V]) {
	c.answer(a.key, a.answer.item, a.err)
	if c.observers.serve != nil {
		a.tell()
	}
	if a.dueEarly() {
		// Together with the others, and so later: one at a time they would be a
		// load each.
		early := pending[V]{c.refresher(a.ctx, a.key, a.answer.item), true}
		c.mu.Lock()
		c.early = append(c.early, early)
		c.mu.Unlock()
	}
}

// waitForPlaces returns those for which there are places now. Who is covered is
// served with that and does not wait: of a call for very many stale keys, a later
// call begins the rest of the rebuilds.
func (c *manyCall[V]) waitForPlaces(ctx context.Context, together []pending[V]) []pending[V] {
	var rest []pending[V]
	for _, a := range together {
		now := c.clock.Now()
		switch {
		case a.early:
		case a.stale != nil && now < a.stale.Trusted && a.stale.Stale(now):
			c.count.stale.Add(1)
			a.answer.item = a.stale
			c.end(a)
		default: // it has nothing, or not any more
			rest = append(rest, a)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	// Not for longer than MaxWait: what has the places may be flights that hang,
	// and that nobody waits for any more.
	limited, cancel := context.WithTimeout(ctx, durations.Add(rest[0].began, c.MaxWait)-c.clock.Now())
	defer cancel()
	if c.places.Acquire(limited, int64(2*len(rest))) == nil {
		return rest
	}
	err := ctx.Err()
	if err == nil {
		err = ErrWaitTimeout
		c.count.waitTimeouts.Add(uint64(len(rest)))
	}
	for _, a := range rest {
		a.err = err
		c.end(a)
	}
	return nil
}

// begin begins a batch of flights, for those of the keys that have none, and
// waits for the answers behind.
func (c *manyCall[V]) begin(together []pending[V]) {
	b := &batch[V]{
		engine: c.engine, single: c.single, user: c.load, places: c.places,
		complete: make(chan struct{}),
		shared:   c.slots.Share(&c.running),
	}
	func() {
		defer close(b.complete)
		// Before it has flights: closing the engine waits for it, and so for them.
		c.behind(b.depart)
		for i, a := range together {
			m := &member[V]{batch: b, key: a.key, order: i}
			a.join(m)
			if m.fly == nil {
				c.places.Release(1) // that of the flight that it has not begun
			}
		}
	}()
	for _, a := range together {
		if a.early {
			a.leave()
			c.places.Release(1)
			continue
		}
		if a.flight == nil {
			c.take(a)
			continue
		}
		if is, _, _ := a.advance(); is == answered || is == gone {
			c.take(a)
			continue
		}
		c.waiters.Go(func() {
			a.wait(c.single)
			c.take(a)
		})
	}
}

// A batch is the flights that one call has begun together.
type batch[V any] struct {
	engine *engine[V]
	single binder[V]    // the load of each flight, if there is no user
	user   batchLoad[V] // the load of all
	places *semaphore.Weighted
	shared *slots.Shared // for the first load
	demand slots.Demand

	// complete is closed when all its flights have been begun. Before that the
	// members are the beginner's, after it they do not change.
	complete chan struct{}
	members  []*member[V]
	read     func(BatchGetter) // reads the store for them

	mu            sync.Mutex // guards what follows, and the fields of members that say so
	unread        int        // members that wait for the store to be read, and have callers
	stopReading   func()     // of those; nil until there is a member
	looking, kept int        // members in these states
	gone          bool       // the first load has begun
	queued        int        // of the members, those that wait for a slot
	admitted      bool       // these may
	open          *round[V]  // those who are ready to load; nil if nobody is
}

// A member is a flight's place in its batch. Its methods that flights call do
// nothing if it is nil.
type member[V any] struct {
	*batch[V]
	key    string
	order  int     // among the keys of the batch
	fly    func()  // the flight's; nil if the key had one already
	askers *askers // the flight's
	ahead  *storeReply
	budget *gate.Budget // the flight's

	off   bool        // guarded by batch.mu: it has taken off
	state memberState // guarded by batch.mu
	seat  *seat[V]    // guarded by batch.mu: of the state loading
	hand  *slots.Hand // guarded by batch.mu: its slot, if there is a user
	free  func()      // guarded by batch.mu: gives that back, the first time
}

// A memberState is what a batch need know of a flight.
type memberState uint8

const (
	looking memberState = iota // on its way to its load or its end
	kept                       // from it: it waits for another holder
	loading                    // in a round
	ended
)

// bind implements binder.
func (m *member[V]) bind() loader[V] {
	if m.user == nil {
		return m.single.bind()
	}
	return func(ctx context.Context, _ attempt[V]) (V, error) { return m.load(ctx) }
}

// board gives the flight that has just begun its place. shard.mu is held, and
// complete is not closed.
func (m *member[V]) board(ctx context.Context, f *flight[V]) {
	flying := ctx
	m.fly, m.askers, m.budget = func() { f.fly(flying) }, &f.askers, f.budget
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread++
	if m.members = append(m.members, m); len(m.members) == 1 {
		// With its values and not its end: the flight may end while the others
		// are being read.
		ctx, m.stopReading = context.WithCancel(context.WithoutCancel(ctx))
		m.read = func(store BatchGetter) { m.readAll(ctx, store) }
	}
}

// first reports whether the flight that is to begin is its batch's first, or of no batch.
// As with slots, a batch is one among those that wait for the store: a call for more
// keys than MaxQueued allows would else have all other callers turned away.
func (m *member[V]) first() bool { return m == nil || len(m.members) == 0 }

// desert says that the flight's callers have left before it was elected. When nobody
// waits for any member that is not read yet, the store is not read for them: under more
// load than it carries, such batches would be most of what it is asked for, and those
// behind them would come too late in their turn.
func (m *member[V]) desert() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.off {
		return
	}
	if m.unread--; m.unread == 0 {
		m.stopReading()
	}
}

// depart reads the store and lets the flights take off.
func (b *batch[V]) depart() {
	<-b.complete
	b.mu.Lock()
	b.looking = len(b.members)
	b.mu.Unlock()
	if len(b.members) == 0 {
		return
	}
	defer b.stopReading()
	defer func() { // whatever the store's adapter does
		for _, m := range b.members {
			m.takeOff(nil, 0)
		}
	}()
	if store, ok := b.engine.Store.(BatchGetter); ok {
		b.read(store)
	}
}

// takeOff starts the flight, if it has not taken off yet, after the batch has lost that time
// to the store. It is called while depart runs.
func (m *member[V]) takeOff(ahead *storeReply, lost time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.off {
		m.off, m.ahead = true, ahead
		m.budget.Spend(lost)
		m.unread--
		m.engine.running.Go(m.fly)
	}
}

// readAll reads the store for all members. As a flight would, it asks again
// where there was no answer.
func (b *batch[V]) readAll(ctx context.Context, store BatchGetter) {
	e := b.engine
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	budget := gate.NewBudget(e.EngineTimeout)
	rest, err := b.readOnce(ctx, store, b.members, budget)
	for try := 1; try < gate.Trips && len(rest) > 0 && budget.Left() > 0 && e.store.Retries() && ctx.Err() == nil; try++ {
		e.noAnswer(rest[0].key, &keyError{"reading, with others,", rest[0].key, err})
		rest, err = b.readOnce(ctx, store, rest, budget)
	}
	for _, m := range rest {
		m.takeOff(&storeReply{err: err}, e.EngineTimeout) // it goes on without engines
	}
}

// readOnce lets those members take off that the store answers for, and returns
// the others and why there are any.
func (b *batch[V]) readOnce(ctx context.Context, store BatchGetter, members []*member[V], budget *gate.Budget) (rest []*member[V], err error) {
	keys := make([]string, len(members))
	for i, m := range members {
		keys[i] = m.key
	}
	lost := b.engine.EngineTimeout - budget.Left()
	answered, err := b.engine.readMany(ctx, store, keys, budget, func(i int, reply *storeReply) {
		members[i].takeOff(reply, lost)
	})
	for i, m := range members {
		if !answered[i] {
			rest = append(rest, m)
		}
	}
	return rest, err
}

// begin gives the flight's run what its batch has for it.
func (m *member[V]) begin(r *run[V]) {
	if m != nil {
		r.looking.ahead = m.ahead
	}
}

// held says that the flight has found another holder: nobody waits for it.
func (m *member[V]) held() {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.turnTo(kept)
	}
}

// end says that the flight has ended.
func (m *member[V]) end() {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.turnTo(ended)
		m.places.Release(1)
	}
}

// slots is where the flight takes its slot.
func (f *flight[V]) slots() slots.Source {
	if f.member == nil {
		return f.engine.slots
	}
	return f.member
}

// shares reports whether the slot that the member is to take is the first
// load's, which all share, and not one of its own.
func (m *member[V]) shares() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.gone
}

func (m *member[V]) handed(h *slots.Hand) (free func()) {
	if h == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hand, m.free = h, sync.OnceFunc(h.Release)
	return m.free
}

// Try implements slots.Source.
func (m *member[V]) Try() (free func()) {
	switch {
	case m.user == nil:
		return m.engine.slots.Try()
	case m.shares():
		return m.handed(m.shared.Try())
	}
	return m.handed(slots.Own(m.engine.slots.Try()))
}

// Wait implements slots.Source.
func (m *member[V]) Wait(ctx context.Context, d *slots.Demand) (free func()) {
	switch {
	case m.user == nil:
		return m.engine.slots.Wait(ctx, d)
	case m.shares():
		return m.handed(m.shared.Wait(ctx, d))
	}
	return m.handed(slots.Own(m.engine.slots.Wait(ctx, d)))
}

// Queue implements slots.Source. The members count as one among the MaxQueued: a
// call for more keys than that would else stand in its own way.
func (m *member[V]) Queue() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queued++; m.queued == 1 {
		m.admitted = m.engine.slots.Queue()
	}
	return m.admitted
}

// Unqueue implements slots.Source.
func (m *member[V]) Unqueue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queued--; m.queued == 0 {
		m.engine.slots.Unqueue()
	}
}

// A round is one call of a batch's load.
type round[V any] struct {
	seats  []*seat[V]
	opened instant
	timer  *time.Timer // begins it after a lull; nil until there is one
	run    func(*slots.Hand)
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when its seats have their results

	present int  // guarded by batch.mu: the seats whose flights wait
	begun   bool // guarded by batch.mu
}

// A seat is one key in a round.
type seat[V any] struct {
	*member[V]
	hand *slots.Hand

	// The result, to be read when the round is done.
	value  V
	err    error
	fresh  items.Windows
	chosen bool // fresh is the load's
}

// load is the load of the member's flight: its part of a round.
func (m *member[V]) load(ctx context.Context) (V, error) {
	var zero V
	s := &seat[V]{member: m}
	r := m.arrive(ctx, s)
	if r == nil && ctx.Err() == nil {
		// The load that its slot was for has gone without it.
		if s.hand = slots.Own(m.engine.slots.Wait(ctx, &m.demand)); s.hand != nil {
			defer s.hand.Release()
			r = m.arrive(ctx, s)
		}
	}
	if r == nil {
		return zero, context.Cause(ctx)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.leave(s, context.Cause(ctx))
		return zero, context.Cause(ctx)
	}
	if s.chosen {
		setWindows(ctx, s.fresh)
	}
	return s.value, s.err
}

// arrive takes a seat in the open round, or opens one, with the seat's slot or
// else the member's. It returns nil if a load has that slot already, or the
// flight has given this load up: by now it may have a successor.
func (m *member[V]) arrive(ctx context.Context, s *seat[V]) *round[V] {
	b := m.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.hand == nil {
		s.hand = m.hand
	}
	if ctx.Err() != nil {
		s.hand = nil
		return nil
	}
	if s.hand.Spent {
		// It waits for a slot of its own now. With its share of this one it would
		// wait for itself: the last share to be given back frees the slot. As its
		// flight has not given this load up, there is no successor whose share
		// it could be.
		m.free()
		s.hand = nil
		return nil
	}
	r := b.open
	if r == nil {
		// The values of the context stay; its end is one member's only.
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		r = &round[V]{opened: b.engine.clock.Now(), cancel: cancel, done: make(chan struct{})}
		r.run = func(h *slots.Hand) { b.run(ctx, r, h) }
		b.open = r
	}
	r.seats = append(r.seats, s)
	r.present++
	m.seat = s
	m.turnTo(loading)
	return r
}

// leave gives up the seat of a flight that does not wait for the load any more.
func (r *round[V]) leave(s *seat[V], cause error) {
	b := s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	r.present--
	if !r.begun {
		r.seats = slices.DeleteFunc(r.seats, func(other *seat[V]) bool { return other == s })
	}
	if r.present == 0 {
		r.cancel(cause)
		if b.open == r {
			b.open = nil
			r.stop()
		}
	}
	if s.member.seat == s && s.state == loading {
		s.turnTo(looking)
	}
}

func (r *round[V]) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// turnTo notes where the flight is, and begins the open round if it is time:
//
//   - when nobody is on the way, those apart who wait for another holder;
//   - when these have ended too, for a round that is not the first: its members
//     have waited for others themselves, and what has come to one of them may
//     come to the rest;
//   - when nobody has moved for a while, or after EngineTimeout.
//
// So there is an end to it whatever the others do. batch.mu is held.
func (m *member[V]) turnTo(state memberState) {
	b := m.batch
	b.count(m.state, -1)
	m.state = state
	b.count(state, 1)
	r := b.open
	if r == nil {
		return
	}
	pause := min(gatherLull, durations.Add(r.opened, b.engine.EngineTimeout)-b.engine.clock.Now())
	switch {
	case b.looking == 0 && (!b.gone || b.kept == 0) || pause <= 0:
		b.start(r)
	case r.timer == nil:
		r.timer = time.AfterFunc(pause, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.open == r {
				b.start(r)
			}
		})
	default:
		r.timer.Reset(pause)
	}
}

// count adds n to the number of members in the state. batch.mu is held.
func (b *batch[V]) count(state memberState, n int) {
	switch state {
	case looking:
		b.looking += n
	case kept:
		b.kept += n
	}
}

// start begins the open round. batch.mu is held.
func (b *batch[V]) start(r *round[V]) {
	r.stop()
	if b.engine.open.Err() != nil {
		return // closed: its flights are leaving it
	}
	b.open, b.gone, r.begun = nil, true, true
	slices.SortFunc(r.seats, func(x, y *seat[V]) int { return cmp.Compare(x.order, y.order) })
	// Each seat had a slot that no load had. The load takes one, and keeps it
	// when its flights have given up on it and it has not returned.
	hand := r.seats[slices.IndexFunc(r.seats, func(s *seat[V]) bool { return !s.hand.Spent })].hand
	hand.Spent = true
	hand.Hold()
	go r.run(hand)
}

// run runs the user's load for a round.
func (b *batch[V]) run(ctx context.Context, r *round[V], hand *slots.Hand) {
	keys, makes := make([]string, len(r.seats)), make([]*askers, len(r.seats))
	for i, s := range r.seats {
		keys[i], makes[i] = s.key, s.askers
	}
	load := newLoadContext(ctx, b.engine.slots, makes)
	ctx, cancel := context.WithTimeoutCause(load, b.engine.RebuildTimeout, ErrRebuildTimeout)
	var values map[string]V
	var batch *BatchError
	fault.Run(func() (err error) {
		values, err = b.user(ctx, keys)
		// Here, where its panic is recovered. What else an error is asked, each key's
		// own load asks it.
		batch, _ = errors.AsType[*BatchError](err)
		if end := ctx.Err(); end != nil && err == end {
			return context.Cause(ctx) // what it says is the echo of that
		}
		return err
	}, func(err error) {
		for _, s := range r.seats {
			s.value, s.err = valueOf(values, batch, err, s.key)
			s.fresh, s.chosen = load.freshness.chosen(s.key, s.err == nil)
		}
		load.slot.End()
		hand.Release()
		close(r.done)
		cancel()
		r.cancel(nil)
	})
}
