package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is a call's way to its answer: a hit of the near tier, or a flight to join or begin.

type served[V any] struct {
	item  *items.Item[V]
	flown bool // the item came from a flight
	// live is the flight if its load is still writing the value, otherwise nil. The call counts among
	// the flight's callers until the call has its place among the readers, and calls left.
	live *flight[V]
}

// A waiter is one call on its way to its answer. Waiters are on the heap, and the work between two
// waits is in methods, whose frames are gone during a wait. The goroutines of a herd are new and have
// stacks of 2 KB; growing the stacks would be half of the herd's cost up to here.
type waiter[V any] struct {
	engine    *engine[V]
	ctx       context.Context
	key       string
	want      items.Want[V]
	began     instant
	stale     *items.Item[V] // may be served when the call's patience ends
	refreshes bool           // no call waits: the waiter begins the rebuild that replaces an item
	load      *chain.Load    // the running load that makes the call, nil if none
	inChain   bool           // flight.askers has load
	flight    *flight[V]     // the flight to wait for, nil before joining
	looked    bool           // the waiter has looked at flight
	joined    bool           // flight.callers counts the waiter
	counted   bool           // flight.herd, which only observers need, counts the waiter
	collapsed bool           // another call began flight
	tallied   bool           // a counter of hits, misses or collapsed calls has the call
	excluded  bool           // a load has published to an audience without this call
	own       gate.Budget    // the call's time for silent engines
	budget    *gate.Budget   // own, or the budget of the joined flight after the answer
	answer    served[V]
	err       error
}

// waiter begins a call without a near hit. Inlining would enlarge the caller's frame by a waiter.
//
//go:noinline
func (e *engine[V]) waiter(ctx context.Context, key string, stale *items.Item[V]) *waiter[V] {
	c := &waiter[V]{engine: e, ctx: ctx, key: key, began: e.clock.Now(), stale: stale}
	c.own.Begin(e.EngineTimeout)
	c.budget = &c.own
	return c
}

// get answers a call that takes any answer. With a window the flight begins in the window's batch.
func (e *engine[V]) get(ctx context.Context, key string, b binder[V], w *window[V]) (V, error) {
	it, early, ok := e.hit(key)
	if !ok {
		c := e.waiter(ctx, key, it)
		if w == nil || w.join(c) {
			c.wait(b)
		}
		return c.outcome(b)
	}
	if early {
		e.refresh(ctx, key, it, b, "")
	}
	// An item with failures may be stale, so tellHit decides which observers hear of it.
	if e.observers.hit != nil || it.Failures > 0 {
		e.tellHit(ctx, key, it.Way(e.clock.Now()))
	}
	return it.Answer()
}

func (c *waiter[V]) outcome(b binder[V]) (V, error) {
	if c.dueEarly() {
		c.engine.refresh(c.ctx, c.key, c.answer.item, b, "")
	}
	if c.engine.observers.serve != nil {
		c.tell()
	}
	if c.err != nil {
		var zero V
		return zero, c.err
	}
	return c.answer.item.Answer()
}

// hit answers, without allocating, from a near item that needs no flight: fresh, or stale while no try
// is due. If ok is false, the item is for the end of the caller's patience, or nil.
func (e *engine[V]) hit(key string) (it *items.Item[V], early, ok bool) {
	it, now := e.near.Get(key)
	if it == nil || now >= it.TrustedUntil {
		return nil, false, false
	}
	switch judge(&it.Lifetime, now) {
	case serve:
		if e.answers(it.Value) {
			e.count.hits.add()
		}
		return it, e.EarlyRefresh > 0 && itemDueEarly(it, now, e.EarlyRefresh), true
	case serveOnly:
		e.count.stale.Add(1)
		return it, false, true
	case serveStale:
		return it, false, false
	}
	return nil, false, false
}

// refresh begins a flight that replaces the item it, unless the key has a flight. It does not wait.
func (e *engine[V]) refresh(ctx context.Context, key string, it *items.Item[V], b binder[V], client string) {
	c := e.refresher(ctx, key, it)
	c.want.Client = client
	c.join(b)
	c.leave()
}

// refreshNow is refresh for the near tier's item. The flight takes no value of a load that returned
// before now, nor the near item: a store's reply may make that item look younger than it is.
func (e *engine[V]) refreshNow(ctx context.Context, key string, b binder[V]) error {
	it, now := e.near.Get(key)
	if it == nil {
		it = &items.Item[V]{}
	}
	c := e.refresher(context.WithoutCancel(ctx), key, it)
	other := c.want.Accept
	c.want.Accept = func(it *items.Item[V], at instant) bool { return it.Born > now && other(it, at) }
	if c.join(b); c.flight != nil && c.collapsed {
		e.behind(func() { c.refreshAfter(b) })
		return nil
	}
	c.leave()
	return c.err
}

// refreshAfter begins the rebuild when the key's flight has ended without one: its look may find the fresh
// item that is to be replaced, or all its callers leave.
func (c *waiter[V]) refreshAfter(b binder[V]) {
	for c.flight != nil && c.collapsed {
		if _, err := c.flight.landing(c.engine.open); err != nil {
			return // closed
		}
		c.flight = nil
		c.joinFlight(b)
	}
	c.leave()
	if c.err != nil && !errors.Is(c.err, ErrClosed) {
		c.engine.OnError(c.key, &keyError{"refreshing", c.key, c.err})
	}
}

// refresher returns a waiter for the rebuild of the item it. The waiter is not counted as a call.
func (e *engine[V]) refresher(ctx context.Context, key string, it *items.Item[V]) *waiter[V] {
	c := e.waiter(ctx, key, nil)
	// The store still has the item that is to be replaced, and the item is fresh.
	c.want.Accept = func(other *items.Item[V], _ instant) bool { return other.Epoch != it.Epoch }
	c.tallied, c.refreshes = true, true
	return c
}

// hitFor is hit for a call that may refuse items.
func (e *engine[V]) hitFor(key string, w items.Want[V]) (it *items.Item[V], early, ok bool) {
	if w.Accept == nil {
		return e.hit(key)
	}
	if it, now := e.near.Get(key); it == nil || w.Fits != nil && !w.Fits(it) || !it.BackingOff(now) && !w.Accept(it, now) {
		return nil, false, false
	}
	return e.hit(key)
}

// wait waits for the answer or the error of the key's flight, begun with b's loader if there is none. A call
// that refuses the flight's item goes on to the next flight, and all such calls share it.
func (c *waiter[V]) wait(b binder[V]) {
	for c.flight != nil || c.join(b) {
		is, news, expiry := c.advance()
		switch {
		case is == flightLanded:
			c.flight = nil
			continue
		case is != stillWaiting:
			return
		case expiry != nil || c.want.Aside != nil || c.load != nil:
			if !c.pause(news, expiry) {
				return
			}
			continue
		}
		select { // the shortest select: a herd waits here, see waiter
		case <-news:
		case <-c.ctx.Done():
			c.giveUp()
			return
		}
	}
}

// pause waits also for expiry and Want.Aside. It reports whether the call goes on.
func (c *waiter[V]) pause(news <-chan struct{}, expiry <-chan time.Time) bool {
	if c.load != nil {
		c.load.Slot.Wait()
		defer c.load.Slot.Resume()
	}
	select {
	case <-news:
	case <-expiry:
	case do := <-c.want.Aside:
		c.work(do)
	case <-c.ctx.Done():
		c.giveUp()
		return false
	}
	return true
}

// advance goes as far as possible without a wait. A waiting call waits for news, and expiry unless nil.
func (c *waiter[V]) advance() (is waitState, news <-chan struct{}, expiry <-chan time.Time) {
	if !c.looked {
		c.looked = true
		c.tally()
		if c.counted && c.collapsed {
			c.flight.introduce(c.ctx)
		}
	}
	state := c.flight.state.Load()
	c.excluded = c.excluded || state.published != nil && !c.admitted(state.audience)
	if is, expiry = c.look(state); is == stillWaiting {
		return is, state.news, expiry
	}
	if is != flightLanded {
		c.budget = c.flight.budget
	}
	if c.counted && is == gotAnswer {
		c.countAnswer()
	}
	c.leave()
	return is, nil, nil
}

func (c *waiter[V]) giveUp() {
	if c.err = c.ctx.Err(); c.err == nil {
		c.err = context.Canceled // a foreign context may close Done before it sets Err
	}
	c.leave()
}

// tally counts the call once, by its first flight. An answer found in begin counts as a hit there.
func (c *waiter[V]) tally() {
	switch {
	case c.tallied:
		return
	case c.collapsed:
		c.engine.count.collapsed.Add(1)
	default:
		c.engine.count.misses.Add(1)
	}
	c.tallied = true
}

// dueEarly decides by chance about an early rebuild after the store's answer. In a large fleet each process
// may read a popular key less than once per NearTTL, and so never as a near hit. A value that this process
// has just loaded is excluded: the herd that waited for it would load the key again.
func (c *waiter[V]) dueEarly() bool {
	e, it := c.engine, c.answer.item
	if e.EarlyRefresh <= 0 || it == nil || c.collapsed || !c.answer.flown || c.answer.live != nil || it.LoadBegan != 0 {
		return false
	}
	now := e.clock.Now()
	return judge(&it.Lifetime, now) == serve && itemDueEarly(it, now, e.EarlyRefresh)
}

// work runs a function from Want.Aside. After a panic or Goexit the caller has left its flight.
func (c *waiter[V]) work(do func()) {
	returned := false
	defer func() {
		if !returned {
			c.leave()
		}
	}()
	do()
	returned = true
}

func (c *waiter[V]) leave() {
	c.stopAsking()
	if c.joined {
		c.joined = false
		c.flight.leave()
	}
	if c.counted {
		c.counted = false
		c.flight.gone()
	}
}

func (c *waiter[V]) stopAsking() {
	if c.inChain {
		c.inChain = false
		c.flight.askers.Leave(c.load)
	}
}

type waitState uint8

const (
	stillWaiting waitState = iota
	gotAnswer              // the flight has given the answer or the error
	leftFlight             // the call ended without the flight's answer: by time, or with its own or the offered item
	flightLanded           // the flight has landed without an answer for the call
)

// look decides whether the flight's state answers the call. At expiry the call looks at it again.
func (c *waiter[V]) look(state *flightState[V]) (is waitState, expiry <-chan time.Time) {
	// Before landed: the call that began the flight may read the value while the load writes it, also
	// after the value has turned out to be for no other call.
	if state.published != nil && c.joins(state) {
		return gotAnswer, nil
	}
	if state.landed {
		return c.lookAtEnd(state), nil
	}
	return c.lookAhead(state)
}

// joins answers the call with the value that the load still writes, if permitted.
func (c *waiter[V]) joins(state *flightState[V]) bool {
	f := c.flight
	readable := c.began < state.until && c.admitted(state.audience) && c.takes(state.published)
	if readable && c.began < state.joinable {
		c.answer = served[V]{item: state.published, flown: true, live: f}
		if !c.joined {
			f.callers.joined() // the call had given up on this value before
		}
		c.joined = false // served.live counts the call from now on
		c.stopAsking()
		return true
	}
	// The call waits for the next flight, and must not count as a caller of this one. A body over its
	// limit waits until all callers have begun to read, and the call would wait for the end of the body.
	c.leave()
	if readable {
		f.doubtValue()
	}
	return false
}

func (c *waiter[V]) lookAtEnd(state *flightState[V]) waitState {
	if err := state.failure(); err != nil {
		if c.flight.want.Personal && errors.Is(err, ErrRebuildTimeout) && !c.admitted(audience.Alike) {
			return flightLanded
		}
		c.err = err
		return gotAnswer
	}
	// The store's reply may have been under way for longer than the near tier trusts an item, and be
	// older than this call. A value over for new callers during the load (until) stays over for them.
	over := state.published != nil && c.began >= state.until
	if state.err == nil && !over && c.began < state.before && (c.began < state.enough || c.takes(state.result)) {
		c.conclude(state.result)
		return gotAnswer
	}
	return flightLanded
}

// lookAhead is look before the landing: a stale item after Patience, or ErrWaitTimeout after MaxWait.
func (c *waiter[V]) lookAhead(state *flightState[V]) (is waitState, expiry <-chan time.Time) {
	e, f := c.engine, c.flight
	end := durations.Add(c.began, e.MaxWait)
	if c.stale == nil && state.offered == nil && end >= f.due && !state.overdue {
		if !c.mayWait() {
			return leftFlight, nil
		}
		return stillWaiting, nil // most of a herd: no clock is read
	}
	now := e.clock.Now()
	c.stale = c.staleNow(state, now)
	if c.stale != nil {
		if judge(&c.stale.Lifetime, now) == serve {
			// A fresh item answers at once: the rebuild is for other callers.
			c.answer = served[V]{item: c.stale}
			return leftFlight, nil
		}
		end = durations.Add(c.began, e.Patience)
	} else if (state.offered == nil || !state.offered.Stale(now)) && !c.mayWait() {
		return leftFlight, nil
	}
	if now >= end {
		if c.stale == nil {
			e.count.waitTimeouts.Add(1)
			c.err = ErrWaitTimeout
			return leftFlight, nil
		}
		e.count.stale.Add(1)
		c.answer = served[V]{item: c.stale}
		return leftFlight, nil
	}
	// The alarm wakes callers with an end from due on: timers for all would be half of the herd's cost.
	if end < f.due || state.overdue {
		expiry = time.After(end - now)
	}
	return stillWaiting, expiry
}

// staleNow returns the stale item that may answer now. The call's own item comes before the offer.
func (c *waiter[V]) staleNow(state *flightState[V], now instant) *items.Item[V] {
	it := c.stale
	if it == nil {
		it = state.offered
	}
	if it != nil && (state.invalidated || !c.trusts(it, now) || !it.Stale(now)) {
		// It is invalidated, perhaps elsewhere, or past its window. The offer may have been confirmed since.
		it = state.offered
		if it != nil && it.Stale(now) && !c.trusts(it, now) {
			c.flight.doubt()
			return nil
		}
	}
	// Sweeps are checked here and not when they come. The caller's item is older than the flight, and
	// a flight cannot tell the tags of its offer from the tags of its load.
	it = c.engine.afterSweeps(c.flight.key, it)
	if it == nil || !it.Stale(now) || !c.want.Takes(it, now, c.began) {
		return nil
	}
	return it
}

func (c *waiter[V]) admitted(to audience.Audience) bool {
	return to.Admits(!c.collapsed, c.want.Client == c.flight.want.Client)
}

// takes is want.Takes, but reads no clock for a call without an Accept, and so without Fits: a herd.
func (c *waiter[V]) takes(it *items.Item[V]) bool {
	return c.want.Accept == nil || c.want.Takes(it, c.engine.clock.Now(), c.began)
}

// conclude answers with the flight's result: a new value with any TTL, a failure if no stale item may.
func (c *waiter[V]) conclude(it *items.Item[V]) {
	if it.Failures > 0 {
		switch now := c.engine.clock.Now(); {
		case judge(&it.Lifetime, now) == serve:
		case it.Stale(now):
			if !c.refreshes { // otherwise no call is answered
				c.engine.count.stale.Add(1)
			}
		default:
			c.err = it.Err // the answer has the item too, and so the value before the failure
		}
	}
	c.answer = served[V]{item: it, flown: true}
}

// join puts the call on the key's flight, begun now if there is none. It returns false if the call
// has its answer or error instead, or only refreshes a key that has a flight.
func (c *waiter[V]) join(b binder[V]) bool { return c.ready() && c.joinFlight(b) }

// ready begins join. It runs the code of ctx, which is user code, without a lock. The result is false after an error.
func (c *waiter[V]) ready() bool {
	if c.err = c.ctx.Err(); c.err != nil {
		return false
	}
	c.load = chain.Running(c.ctx)
	if c.load != nil && c.stale == nil {
		if c.err = c.load.Full(); c.err != nil {
			return false
		}
	}
	return true
}

// joinFlight is join after ready.
func (c *waiter[V]) joinFlight(b binder[V]) bool {
	e := c.engine
	s := e.shards.of(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.err = ErrClosed
		return false
	}
	f := s.flights[c.key]
	if c.collapsed = f != nil; !c.collapsed {
		return c.begin(s, b)
	}
	if c.refreshes {
		if f.current == nil { // otherwise its load does the rebuild
			c.flight = f
		}
		return false
	}
	if c.err = c.ask(f); c.err != nil {
		return false
	}
	c.joinCallers(f)
	return true
}

// joinCallers counts the call among the flight's callers. shard.mu is held.
func (c *waiter[V]) joinCallers(f *flight[V]) {
	f.callers.joined()
	c.flight, c.looked, c.joined = f, false, true
	if c.load != nil {
		c.engine.slots.AskedByLoad(f.demanded())
	}
	if f.herd != nil {
		f.herd.aboard.Add(1)
		c.counted = true
	}
}

// ask records that the call's load waits for the flight. It returns an error if the load would wait for
// itself. A call with a stale item is not recorded: the item answers when its patience ends.
func (c *waiter[V]) ask(f *flight[V]) error {
	if c.load == nil || c.stale != nil || f.state.Load().offered != nil {
		return nil
	}
	return c.record(f)
}

func (c *waiter[V]) record(f *flight[V]) error {
	err := f.askers.Await(c.load)
	c.inChain = err == nil
	return err
}

// mayWait is ask for a call that has lost its stale item. It returns false after an error.
func (c *waiter[V]) mayWait() bool {
	if c.load != nil && !c.inChain {
		c.err = c.record(c.flight)
	}
	return c.err == nil
}

// queuedLooks times MaxQueued flights may wait for their first look, which is short beside a rebuild.
const queuedLooks = 16

// hits answers the call with a near item, if the item needs no flight.
func (c *waiter[V]) hits(it *items.Item[V], now instant) bool {
	is := judge(&it.Lifetime, now)
	if is != serve && is != serveOnly && is != fail || !c.want.Takes(it, now, c.began) {
		return false
	}
	if is == serve && !c.tallied && c.engine.answers(it.Value) {
		c.tallied = true
		c.engine.count.hits.add()
	}
	c.conclude(it)
	c.answer.flown = false
	return true
}

// begin is join for a key without a flight. shard.mu is held.
func (c *waiter[V]) begin(s *shard[V], b binder[V]) bool {
	// The near tier is read again under this lock, under which a flight fills it and leaves the map.
	// Otherwise a caller could miss just before a landing, come here just after, and begin a second rebuild.
	e := c.engine
	it, now := e.near.Get(c.key)
	if it != nil && now < it.TrustedUntil && c.hits(it, now) {
		return false
	}
	m, _ := b.(*member[V])
	queues := e.Store != nil && m.first()
	if queues && e.unlooked.Load()/queuedLooks >= int64(e.MaxQueued) {
		// More flights would wait for the store in vain.
		if c.stale == nil {
			c.err = ErrOverloaded
		} else {
			c.answer.item = c.stale
			e.count.stale.Add(1)
		}
		return false
	}
	// The values of the context stay (traces, tenants); its end does not end the flight.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	f := c.newFlight(s, m, now)
	f.load, f.cancel, f.queues = b.bind(), cancel, queues
	c.ask(f)
	c.joinCallers(f)
	f.alarm = time.AfterFunc(f.due-now, f.fallDue)
	s.flights[c.key] = f
	f.witness.flight = f
	s.addWitness(c.key, &f.witness)
	e.count.flights.Add(1)
	if queues {
		e.unlooked.Add(1)
	}
	if m != nil {
		m.join(ctx, f) // the flight starts with its batch
		return true
	}
	e.running.Go(func() { f.runToEnd(ctx) })
	return true
}

func (c *waiter[V]) newFlight(s *shard[V], m *member[V], now instant) *flight[V] {
	e := c.engine
	f := &flight[V]{
		key: c.key, engine: e, shard: s, member: m, budget: c.budget,
		want: c.want, refreshes: c.refreshes || c.stale != nil, second: c.excluded,
		due: durations.Add(c.began, e.MaxWait), since: now,
	}
	if e.notified {
		f.notices = make(chan timedNotice, 1)
	}
	if e.eachCall && e.Store != nil {
		f.doubts = make(chan struct{}, 1)
	}
	f.state.Store(&flightState[V]{news: make(chan struct{})})
	f.countHerd()
	return f
}
