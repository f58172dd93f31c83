package bellwether

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
	"golang.org/x/sync/semaphore"
)

// This file is a batch: the flights that a call of GetMany or a batch window begins together. The batch
// reads the store for all its flights before they start. They load together, see internal/gather.

type batch[V any] struct {
	engine *engine[V]
	single binder[V]    // the load of each flight, if user is nil
	user   batchLoad[V] // the common load
	places *semaphore.Weighted
	loads  *gather.Group[*member[V], loadResult[V]]

	// complete is closed when all flights have begun. Before then members belongs to the goroutine
	// that begins them, or to the holder of window.mu; afterwards it does not change.
	complete chan struct{}
	members  []*member[V]
	read     func(driver.BatchGetter) // reads the store for the members

	mu          sync.Mutex // guards the fields below, and the members' fields that say so
	unread      int        // members that wait for the batch's read, and 1 until complete
	stopReading func()     // ends the batch's read; nil without a member
}

type loadResult[V any] struct {
	product[V]
	err error
}

func (c *manyCall[V]) batch() *batch[V] {
	b := &batch[V]{engine: c.engine, single: c.single, user: c.load, places: c.places, complete: make(chan struct{})}
	o := gather.Options[*member[V], loadResult[V]]{
		Slots: c.slots, Running: &c.running, Longest: c.EngineTimeout,
		Closed: func() bool { return c.open.Err() != nil },
	}
	if b.user != nil {
		o.Load = b.load
	}
	b.loads = gather.New(o)
	return b
}

// A member is a flight's place in its batch. Methods that flights call do nothing on a nil member.
type member[V any] struct {
	*batch[V]
	key        string
	order      int           // among the keys of the batch
	runFlight  func()        // runs the flight; nil if the key had a flight already
	askers     *chain.Flight // the flight's
	prefetched *storeReply
	budget     *gate.Budget // the flight's

	gathered *gather.Member[*member[V], loadResult[V]] // the member's place in the common loads
	start    atomic.Pointer[items.Item[V]]             // the item from which the latest load starts

	// Guarded by batch.mu.
	waits   bool // for the batch's read: the flight has callers and has not started
	started bool
}

func (m *member[V]) bind() loader[V] {
	if m.user == nil {
		return m.single.bind()
	}
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		m.start.Store(a.present)
		return m.loadTogether(ctx)
	}
}

// join makes the new flight a member. shard.mu is held, and complete is not closed.
func (m *member[V]) join(ctx context.Context, f *flight[V]) {
	running := ctx
	m.runFlight, m.askers, m.budget = func() { f.runToEnd(running) }, &f.askers, f.budget
	m.gathered = m.loads.Join(m, m.order)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits = true
	m.unread++
	if m.members = append(m.members, m); len(m.members) == 1 {
		m.unread++ // all callers of all members may leave before the next member comes
		// Without its end: the first flight may end while the batch reads for the other flights.
		ctx, m.stopReading = context.WithCancel(context.WithoutCancel(ctx))
		m.read = func(store driver.BatchGetter) { m.readAll(ctx, store) }
	}
}

// first reports whether the new flight is alone or the first of its batch. A batch counts once among the
// flights that wait for the store: more keys than MaxQueued would otherwise turn all other callers away.
func (m *member[V]) first() bool { return m == nil || len(m.members) == 0 }

// callersLeft says that the flight's callers have left before its election. The batch's read ends when no
// unread member has callers: under overload such reads would make the batches behind them too late.
func (m *member[V]) callersLeft() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits {
		m.waits = false
		m.forgo()
	}
}

// forgo counts one reason for the read less, and ends the read after the last. b.mu is held.
func (b *batch[V]) forgo() {
	if b.unread--; b.unread == 0 {
		b.stopReading()
	}
}

func (b *batch[V]) readAndStart() {
	<-b.complete
	if len(b.members) == 0 {
		return
	}
	defer b.stopReading()
	b.mu.Lock()
	b.forgo()
	b.mu.Unlock()
	defer func() { // also after a panic or Goexit of the adapter
		for _, m := range b.members {
			m.startFlight(nil, 0)
		}
	}()
	if store, ok := b.engine.Store.(driver.BatchGetter); ok {
		b.read(store)
	}
}

// startFlight starts the flight with the store's reply, unless it has started. The flight's budget
// loses lost, the batch's time for the store. startFlight is called while readAndStart runs.
func (m *member[V]) startFlight(prefetched *storeReply, lost time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started {
		m.started, m.prefetched = true, prefetched
		m.budget.Spend(lost)
		if m.waits { // otherwise callersLeft has counted the member
			m.waits = false
			m.unread--
		}
		m.engine.running.Go(m.runFlight)
	}
}

// readAll reads the store for all members. As a flight would, it asks again without an answer.
func (b *batch[V]) readAll(ctx context.Context, store driver.BatchGetter) {
	e := b.engine
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	budget := gate.NewBudget(e.EngineTimeout)
	rest, err := b.readOnce(ctx, store, b.waiting(), budget)
	for try := 1; try < gate.Trips && len(rest) > 0 && budget.Left() > 0 && e.store.Retries() && ctx.Err() == nil; try++ {
		e.noAnswer(rest[0].key, &keyError{"reading, with others,", rest[0].key, err})
		rest, err = b.readOnce(ctx, store, rest, budget)
	}
	for _, m := range rest {
		m.startFlight(&storeReply{err: err}, e.EngineTimeout) // the flight has no time left for engines
	}
}

// waiting returns the members whose flights have callers. Of a key with several flights this is the last.
func (b *batch[V]) waiting() (waiting []*member[V]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		if m.waits {
			waiting = append(waiting, m)
		}
	}
	return waiting
}

// readOnce starts the members for which the store answers. It returns the others, and the reason.
func (b *batch[V]) readOnce(ctx context.Context, store driver.BatchGetter, members []*member[V], budget *gate.Budget) (rest []*member[V], err error) {
	if len(members) == 0 {
		return nil, nil
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = b.engine.engineKey(m.key)
	}
	lost := b.engine.EngineTimeout - budget.Left()
	answered, err := b.engine.readMany(ctx, store, members[0].key, func() []string { return names }, budget, func(i int, reply *storeReply) {
		members[i].startFlight(reply, lost)
	})
	for i, m := range members {
		if !answered[i] {
			rest = append(rest, m)
		}
	}
	return rest, err
}

func (m *member[V]) begin(r *run[V]) {
	if m != nil {
		r.looking.prefetched = m.prefetched
	}
}

// held says that another process holds the key: the common load does not wait for this member.
func (m *member[V]) held() {
	if m != nil {
		m.gathered.Held()
	}
}

func (m *member[V]) end() {
	if m != nil {
		m.gathered.End()
		m.places.Release(1)
	}
}

func (f *flight[V]) slots() slots.Source {
	if f.member == nil {
		return f.engine.slots
	}
	return f.member.gathered
}

func (m *member[V]) loadTogether(ctx context.Context) (product[V], error) {
	result, err := m.gathered.Load(ctx)
	if err != nil {
		return result.product, err
	}
	return result.product, result.err
}

func (b *batch[V]) load(ctx context.Context, seats []*gather.Seat[*member[V], loadResult[V]]) {
	requests, makes, starts := make([]Request[V], len(seats)), make([]*chain.Flight, len(seats)), make([]*items.Item[V], len(seats))
	for i, s := range seats {
		// Read once: after this load is given up on, the member may begin another load.
		starts[i], makes[i] = s.Key.start.Load(), s.Key.askers
		requests[i] = requestOf(s.Key.key, starts[i])
	}
	load := chain.NewCommonLoad(ctx, b.engine.slots, makes...)
	ctx, cancel := context.WithTimeoutCause(load, b.engine.RebuildTimeout, ErrRebuildTimeout)
	defer cancel()
	var results map[string]Result[V]
	var batchErr *BatchError
	fault.Run(func() (err error) {
		results, err = b.user(ctx, requests)
		// errors.AsType runs the error's code, so it runs within the guard of fault.Run.
		batchErr, _ = errors.AsType[*BatchError](err)
		if end := ctx.Err(); end != nil && err == end {
			return context.Cause(ctx) // the load's error only repeats the end of its context
		}
		return err
	}, func(err error) {
		for i, s := range seats {
			s.Result.product, s.Result.err = resultOf(results, batchErr, err, s.Key.key, starts[i])
		}
		load.Slot.End()
	})
}
