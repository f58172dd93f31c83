package bellwether

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
	"golang.org/x/sync/semaphore"
)

// This file is a batch: the flights that one call of GetMany has begun. The batch reads
// the store for all of them at once before they take off, and the flights that come to
// load do so together, see internal/gather.

// A batch is the flights that one call has begun together.
type batch[V any] struct {
	engine *engine[V]
	single binder[V]    // the load of each flight, if there is no user
	user   batchLoad[V] // the load of all
	places *semaphore.Weighted
	loads  *gather.Group[*member[V], loadResult[V]]

	// complete is closed when all its flights have been begun. Before that the
	// members are the beginner's, after it they do not change.
	complete chan struct{}
	members  []*member[V]
	read     func(driver.BatchGetter) // reads the store for them

	mu          sync.Mutex // guards what follows, and the fields of members that say so
	unread      int        // members that wait for the store to be read, and have callers
	stopReading func()     // of those; nil until there is a member
}

// A loadResult is what a batch load has said of one key.
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

	gathered *gather.Member[*member[V], loadResult[V]] // among those that load together
	start    atomic.Pointer[items.Item[V]]             // what its latest load starts from

	off bool // guarded by batch.mu: it has taken off
}

// bind implements binder.
func (m *member[V]) bind() loader[V] {
	if m.user == nil {
		return m.single.bind()
	}
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		m.start.Store(a.present)
		return m.loadTogether(ctx)
	}
}

// board gives the flight that has just begun its place. shard.mu is held, and
// complete is not closed.
func (m *member[V]) board(ctx context.Context, f *flight[V]) {
	flying := ctx
	m.fly, m.askers, m.budget = func() { f.fly(flying) }, &f.askers, f.budget
	m.gathered = m.loads.Join(m, m.order)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread++
	if m.members = append(m.members, m); len(m.members) == 1 {
		// With its values and not its end: the flight may end while the others
		// are being read.
		ctx, m.stopReading = context.WithCancel(context.WithoutCancel(ctx))
		m.read = func(store driver.BatchGetter) { m.readAll(ctx, store) }
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
	if len(b.members) == 0 {
		return
	}
	defer b.stopReading()
	defer func() { // whatever the store's adapter does
		for _, m := range b.members {
			m.takeOff(nil, 0)
		}
	}()
	if store, ok := b.engine.Store.(driver.BatchGetter); ok {
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
func (b *batch[V]) readAll(ctx context.Context, store driver.BatchGetter) {
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
func (b *batch[V]) readOnce(ctx context.Context, store driver.BatchGetter, members []*member[V], budget *gate.Budget) (rest []*member[V], err error) {
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
		m.gathered.Held()
	}
}

// end says that the flight has ended.
func (m *member[V]) end() {
	if m != nil {
		m.gathered.End()
		m.places.Release(1)
	}
}

// slots is where the flight takes its slot.
func (f *flight[V]) slots() slots.Source {
	if f.member == nil {
		return f.engine.slots
	}
	return f.member.gathered
}

// loadTogether is the load of the member's flight.
func (m *member[V]) loadTogether(ctx context.Context) (product[V], error) {
	result, err := m.gathered.Load(ctx)
	if err != nil {
		return result.product, err
	}
	return result.product, result.err
}

// load runs the user's load for some members.
func (b *batch[V]) load(ctx context.Context, seats []*gather.Seat[*member[V], loadResult[V]]) {
	requests, makes, starts := make([]Request[V], len(seats)), make([]*askers, len(seats)), make([]*items.Item[V], len(seats))
	for i, s := range seats {
		// Once: when this load has been given up on, the member may begin another.
		starts[i], makes[i] = s.Key.start.Load(), s.Key.askers
		requests[i] = requestOf(s.Key.key, starts[i])
	}
	load := newLoadContext(ctx, b.engine.slots, makes)
	ctx, cancel := context.WithTimeoutCause(load, b.engine.RebuildTimeout, ErrRebuildTimeout)
	defer cancel()
	var results map[string]Result[V]
	var batch *BatchError
	fault.Run(func() (err error) {
		results, err = b.user(ctx, requests)
		// Here, where its panic is recovered. What else an error is asked, each key's
		// own load asks it.
		batch, _ = errors.AsType[*BatchError](err)
		if end := ctx.Err(); end != nil && err == end {
			return context.Cause(ctx) // what it says is the echo of that
		}
		return err
	}, func(err error) {
		for i, s := range seats {
			s.Result.product, s.Result.err = resultOf(results, batch, err, s.Key.key, starts[i])
		}
		load.slot.End()
	})
}
