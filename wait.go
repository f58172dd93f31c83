package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is a call's way to its answer: a hit of the near tier, else the
// key's flight, which it joins or begins and waits for.

// A served answer is an item with the way it came.
type served[V any] struct {
	item  *items.Item[V]
	flown bool // it came from a flight
	// live is the flight if the item is still being made. The call counts among
	// its callers until it has its place among the readers, and says left.
	live *flight[V]
}

// A waiter is one call on its way to its answer. It is not on the stack, nor are
// the call's arguments, and what it does between two waits is in methods of its
// own, whose frames are gone while it waits: a herd's goroutines are new, and begin
// with a stack of 2 KB, whose growth would be half of what it costs them to come
// here.
type waiter[V any] struct {
	engine    *engine[V]
	ctx       context.Context
	key       string
	want      items.Want[V]
	began     instant
	stale     *items.Item[V] // what may be served when its patience ends
	refreshes bool           // it is no call: a flight that it begins is for what is to be replaced
	load      *loadContext   // the load that waits with the call; nil: none
	asks      bool           // the flight knows that the load waits for it
	flight    *flight[V]     // that it waits for; nil: it has to join one
	met       bool           // it has looked at that one
	aboard    bool           // it counts among its callers
	counted   bool           // and in its herd, which nobody may want to know
	collapsed bool           // that flight was begun by another call
	tallied   bool           // it is counted by how it came to its answer
	excluded  bool           // a load that it waited for has published to an audience without it
	own       gate.Budget    // what the call may lose to engines
	budget    *gate.Budget   // its own or, at its end, that of the flight that it has joined
	answer    served[V]
	err       error // why there is no answer
}

// waiter begins a call that goes on without the near tier. stale is what hit has
// found to be served when the call's patience ends, or nil. Inlined, it would
// make its caller's frame larger by a waiter.
//
//go:noinline
func (e *engine[V]) waiter(ctx context.Context, key string, stale *items.Item[V]) *waiter[V] {
	c := &waiter[V]{engine: e, ctx: ctx, key: key, began: e.clock.Now(), stale: stale}
	c.own.Begin(e.EngineTimeout)
	c.budget = &c.own
	return c
}

// get answers a call that takes any answer. The flight that it begins goes with those of the window, if
// there is one.
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
	// One that has failures may be stale, which is told to others.
	if e.observers.hit != nil || it.Failures > 0 {
		e.tellHit(ctx, key, it.Way(e.clock.Now()))
	}
	return it.Answer()
}

// outcome ends the call that has waited.
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

// hit answers from the near tier if that needs no flight: fresh, or stale
// while nobody is to try again yet. If it does not, the item is what may be
// served when a caller's patience ends, or nil. It does not allocate. early is
// for what is fresh, and to be rebuilt before it expires.
func (e *engine[V]) hit(key string) (it *items.Item[V], early, ok bool) {
	it, now := e.near.Get(key)
	if it == nil || now >= it.Trusted {
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

// refresh begins a flight for a key of which it is fresh, unless there is one,
// and does not wait for it.
func (e *engine[V]) refresh(ctx context.Context, key string, it *items.Item[V], b binder[V], client string) {
	c := e.refresher(ctx, key, it)
	c.want.Client = client
	c.join(b)
	c.leave()
}

// refreshNow is refresh of whatever the key has: for its flight, what a load has made that returned
// before now is no answer. The epoch tells the near tier's item from that: the age that a store gives for
// it is as late as its reply.
func (e *engine[V]) refreshNow(ctx context.Context, key string, b binder[V]) error {
	it, now := e.near.Get(key)
	if it == nil {
		it = &items.Item[V]{}
	}
	c := e.refresher(context.WithoutCancel(ctx), key, it)
	other := c.want.Accept
	c.want.Accept = func(it *items.Item[V], at instant) bool { return it.Born > now && other(it, at) }
	c.join(b)
	c.leave()
	return c.err
}

// refresher is a waiter that is to begin the rebuild of it. It is no call, and is
// not counted as one.
func (e *engine[V]) refresher(ctx context.Context, key string, it *items.Item[V]) *waiter[V] {
	c := e.waiter(ctx, key, nil)
	// Not what is to be replaced: the store has it too, and it is fresh.
	c.want.Accept = func(other *items.Item[V], _ instant) bool { return other.Epoch != it.Epoch }
	c.tallied, c.refreshes = true, true
	return c
}

// hitFor is hit for a call that does not take any answer.
func (e *engine[V]) hitFor(key string, w items.Want[V]) (it *items.Item[V], early, ok bool) {
	if w.Accept == nil {
		return e.hit(key)
	}
	if it, now := e.near.Get(key); it == nil || w.Fits != nil && !w.Fits(it) || !it.BackingOff(now) && !w.Accept(it, now) {
		return nil, false, false
	}
	return e.hit(key)
}

// wait gets the answer, or the error, by way of the key's flight, which it
// begins with b's loader if no other call has. The error is a failed rebuild's,
// or this call's own end.
//
// A flight that lands with an item that the call does not take makes it begin
// the next one, or join it: all who came while one load ran and want a later one
// share that.
func (c *waiter[V]) wait(b binder[V]) {
	for c.flight != nil || c.join(b) {
		is, news, expiry := c.advance()
		switch {
		case is == landed:
			c.flight = nil
			continue
		case is != waiting:
			return
		case expiry != nil || c.want.Aside != nil || c.load != nil:
			if !c.pause(news, expiry) {
				return
			}
			continue
		}
		select { // what a herd waits in, see waiter: without all that pause has to look at
		case <-news:
		case <-c.ctx.Done():
			c.giveUp()
			return
		}
	}
}

// pause waits for more than the flight and the call's end. It reports whether the
// call goes on.
func (c *waiter[V]) pause(news <-chan struct{}, expiry <-chan time.Time) bool {
	if c.load != nil {
		c.load.slot.Wait()
		defer c.load.slot.Resume()
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

// advance brings the call as far as it comes on its flight without waiting. If it
// has to wait, it is for news or, unless that is nil, expiry.
func (c *waiter[V]) advance() (is waitState, news <-chan struct{}, expiry <-chan time.Time) {
	if !c.met {
		c.met = true
		c.tally()
		if c.counted && c.collapsed {
			c.flight.introduce(c.ctx)
		}
	}
	state := c.flight.state.Load()
	c.excluded = c.excluded || state.published != nil && !c.admitted(state.audience)
	if is, expiry = c.look(state); is == waiting {
		return is, state.news, expiry
	}
	if is != landed {
		c.budget = c.flight.budget
	}
	if c.counted && is == answered {
		c.countAnswer()
	}
	c.leave()
	return is, nil, nil
}

// giveUp ends the call with the end of its ctx.
func (c *waiter[V]) giveUp() {
	if c.err = c.ctx.Err(); c.err == nil {
		c.err = context.Canceled // one whose Done closes sooner than its Err tells
	}
	c.leave()
}

// tally counts the call by how it has come to its first flight, however many it
// needs. Who finds what it has missed where it would begin one is a hit, see begin.
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

// dueEarly rolls the dice whether what the call was answered with is to be rebuilt
// before it expires, for the call that began a flight which the store has
// answered: in a large fleet a popular key may be read less than once in NearTTL
// by each process, so that no read of it is a hit. What this process has just
// loaded is not to be loaded again by the herd that waited for it.
func (c *waiter[V]) dueEarly() bool {
	e, it := c.engine, c.answer.item
	if e.EarlyRefresh <= 0 || it == nil || c.collapsed || !c.answer.flown || c.answer.live != nil || it.Made != 0 {
		return false
	}
	now := e.clock.Now()
	return judge(&it.Lifetime, now) == serve && itemDueEarly(it, now, e.EarlyRefresh)
}

// work does what the waiter is given to do. If that does not return, the flight
// has a caller less.
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

// leave takes the waiter off its flight.
func (c *waiter[V]) leave() {
	c.stopAsking()
	if c.aboard {
		c.aboard = false
		c.flight.leave()
	}
	if c.counted {
		c.counted = false
		c.flight.gone()
	}
}

func (c *waiter[V]) stopAsking() {
	if c.asks {
		c.asks = false
		c.flight.stopAwaiting(c.load)
	}
}

// A waitState is how a waiter stands to its flight.
type waitState uint8

const (
	waiting  waitState = iota
	answered           // it has its answer or its error from the flight
	gone               // it has them otherwise: its own end, or what it had before
	landed             // the flight has, and not with its answer
)

// look decides what a state of its flight means for the waiter. While it waits,
// expiry is when it is to look again although nothing has changed.
func (c *waiter[V]) look(state *flightState[V]) (is waitState, expiry <-chan time.Time) {
	// Before the end: a value that is being made is its first caller's also when
	// it has turned out to be for nobody else.
	if state.published != nil && c.joins(state) {
		return answered, nil
	}
	if state.landed {
		return c.lookAtEnd(state), nil
	}
	return c.lookAhead(state)
}

// joins answers the call with the value that its flight's load is still making, if it
// may have that. If not, it waits for the next flight.
func (c *waiter[V]) joins(state *flightState[V]) bool {
	f := c.flight
	readable := c.began < state.until && c.admitted(state.audience) && c.takes(state.published)
	if readable && c.began < state.joinable {
		c.answer = served[V]{item: state.published, flown: true, live: f}
		if !c.aboard {
			f.callers.joined() // again: it had given up on this value before
		}
		c.aboard = false // the answer is now
		c.stopAsking()
		return true
	}
	// Counted on among those who are still to take their place at the start of this
	// flight's body, it would hold up a body that passes its limit, and so the end that
	// it waits for.
	c.leave()
	if readable {
		f.doubtValue()
	}
	return false
}

// lookAtEnd is look for a flight that has landed.
func (c *waiter[V]) lookAtEnd(state *flightState[V]) waitState {
	if err := state.failure(); err != nil {
		if c.flight.want.Personal && errors.Is(err, ErrRebuildTimeout) && !c.admitted(audience.Alike) {
			return landed
		}
		c.err = err
		return answered
	}
	// A reply of the store that was long under way may be older than this
	// call, by more than the near tier is trusted for.
	// And what was over for it while it was made is so still.
	over := state.published != nil && c.began >= state.until
	if state.err == nil && !over && c.began < state.before && (c.began < state.enough || c.takes(state.result)) {
		c.conclude(state.result)
		return answered
	}
	return landed
}

// lookAhead is look for a flight that goes on: the call takes something stale if there is
// any when its patience is over, and nothing when its time is.
func (c *waiter[V]) lookAhead(state *flightState[V]) (is waitState, expiry <-chan time.Time) {
	e, f := c.engine, c.flight
	end := durations.Add(c.began, e.MaxWait)
	if c.stale == nil && state.offered == nil && end >= f.due && !state.overdue {
		return waiting, nil // most of a herd, which needs no clock for that; see below
	}
	now := e.clock.Now()
	c.stale = c.staleNow(state, now)
	if c.stale != nil {
		if judge(&c.stale.Lifetime, now) == serve {
			// Fresh: the rebuild is not for this call's sake.
			c.answer = served[V]{item: c.stale}
			return gone, nil
		}
		end = durations.Add(c.began, e.Patience)
	}
	if now >= end {
		if c.stale == nil {
			e.count.waitTimeouts.Add(1)
			c.err = ErrWaitTimeout
			return gone, nil
		}
		e.count.stale.Add(1)
		c.answer = served[V]{item: c.stale}
		return gone, nil
	}
	// A caller that has until the flight is due, or longer, is woken by the
	// flight's alarm: a timer each would be half of what the herd costs.
	if end < f.due || state.overdue {
		expiry = time.After(end - now)
	}
	return waiting, expiry
}

// staleNow is what is stale and may answer the call at the time now, nil if nothing may:
// what it had before it joined the flight, or else what the flight offers.
func (c *waiter[V]) staleNow(state *flightState[V], now instant) *items.Item[V] {
	it := c.stale
	if it == nil {
		it = state.offered
	}
	if it != nil && (state.recalled || !c.trusts(it, now) || !it.Stale(now)) {
		// Invalidated, here or perhaps elsewhere, or its window has closed while
		// the call was patient. What the flight offers may have been confirmed
		// since.
		it = state.offered
		if it != nil && it.Stale(now) && !c.trusts(it, now) {
			c.flight.doubt()
			return nil
		}
	}
	// Here, where it is taken, and not where a sweep is made: the caller has its
	// own since before the flight, and a flight cannot tell the tags of what it
	// offers from those of what it loads.
	it = c.engine.spare(c.flight.key, it)
	if it == nil || !it.Stale(now) || !c.want.Takes(it, now, c.began) {
		return nil
	}
	return it
}

// admitted reports whether the call is of the audience to that its flight's load has
// published to.
func (c *waiter[V]) admitted(to audience.Audience) bool {
	return to.Admits(!c.collapsed, c.want.Client == c.flight.want.Client)
}

// takes is want.Takes. It reads the clock for those only who ask for it: a herd
// that wakes up does not.
func (c *waiter[V]) takes(it *items.Item[V]) bool {
	return c.want.Accept == nil || c.want.Takes(it, c.engine.clock.Now(), c.began)
}

// conclude gives the waiter the item at a flight's end. A value that has just
// been made answers those who waited for it however short its TTL; a failure
// answers unless something stale may.
func (c *waiter[V]) conclude(it *items.Item[V]) {
	if it.Failures > 0 {
		switch now := c.engine.clock.Now(); {
		case judge(&it.Lifetime, now) == serve:
		case it.Stale(now):
			c.engine.count.stale.Add(1)
		default:
			c.err = it.Err // and it tells what there was before
		}
	}
	c.answer = served[V]{item: it, flown: true}
}

// join puts the waiter on the key's flight, begun now if there is none, and
// reports whether it did: if not, the waiter has its answer or its error.
func (c *waiter[V]) join(b binder[V]) bool {
	if c.err = c.ctx.Err(); c.err != nil {
		return false
	}
	e := c.engine
	c.load = runningLoad(c.ctx) // asked before the lock: contexts may be anybody's code
	if c.load != nil && c.load.depth >= maxChain && c.stale == nil {
		c.err = errChain
		return false
	}
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
		return false // the flight that is there does so
	}
	// Something stale answers it when its patience ends, whoever makes what is not.
	if c.err = c.ask(f); c.err != nil {
		return false
	}
	c.board(f)
	return true
}

// board counts the waiter among the flight's callers. shard.mu is held.
func (c *waiter[V]) board(f *flight[V]) {
	f.callers.joined()
	c.flight, c.met, c.aboard = f, false, true
	if c.load != nil {
		c.engine.slots.AskedByLoad(f.demanded())
	}
	if f.herd != nil {
		f.herd.aboard.Add(1)
		c.counted = true
	}
}

// ask has the waiter's load wait for the flight, unless the load would wait for itself. A
// stale answer comes when the waiter's patience ends, whoever makes another one.
func (c *waiter[V]) ask(f *flight[V]) error {
	if c.load == nil || c.stale != nil || f.state.Load().offered != nil {
		return nil
	}
	err := f.await(c.load)
	c.asks = err == nil
	return err
}

// queuedLooks is how many times MaxQueued flights may wait for their first look. Looks
// are short beside rebuilds: thousands of keys that are asked for at one time are
// found in the store, or something stale is, in no time that anybody would notice.
const queuedLooks = 16

// hits answers the call with an item of the near tier, if the item needs no flight.
func (c *waiter[V]) hits(it *items.Item[V], now instant) bool {
	verdict := judge(&it.Lifetime, now)
	if verdict != serve && verdict != serveOnly && verdict != fail || !c.want.Takes(it, now, c.began) {
		return false
	}
	if verdict == serve && !c.tallied && c.engine.answers(it.Value) {
		c.tallied = true
		c.engine.count.hits.add()
	}
	c.conclude(it)
	c.answer.flown = false
	return true
}

// begin is join where there is no flight. shard.mu is held.
func (c *waiter[V]) begin(s *shard[V], b binder[V]) bool {
	// The near tier is read again under the lock. A caller that missed there
	// just before a flight landed, and came here just after, would begin a
	// second rebuild: a flight fills the near tier before it leaves the map,
	// both under this lock, so one of the two is seen.
	e := c.engine
	it, now := e.near.Get(c.key)
	if it != nil && now < it.Trusted && c.hits(it, now) {
		return false
	}
	m, _ := b.(*member[V])
	queues := e.Store != nil && m.first()
	if queues && e.unlooked.Load() >= queuedLooks*int64(e.MaxQueued) {
		// More would wait for the store in vain.
		if c.stale == nil {
			c.err = ErrOverloaded
		} else if c.answer.item = c.stale; !c.refreshes {
			e.count.stale.Add(1)
		}
		return false
	}
	// Detached: the values of the context stay (traces, tenants), its end does not.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	f := c.newFlight(s, m, now)
	f.load, f.cancel, f.queues = b.bind(), cancel, queues
	c.ask(f)
	c.board(f)
	f.alarm = time.AfterFunc(f.due-now, f.fallDue)
	s.flights[c.key] = f
	f.witness.flight = f
	s.attend(c.key, &f.witness)
	e.count.flights.Add(1)
	if queues {
		e.unlooked.Add(1)
	}
	if m != nil {
		m.board(ctx, f) // it takes off with its batch
		return true
	}
	e.running.Go(func() { f.fly(ctx) })
	return true
}

// newFlight is a flight for the call, and for others from then on.
func (c *waiter[V]) newFlight(s *shard[V], m *member[V], now instant) *flight[V] {
	e := c.engine
	f := &flight[V]{
		key: c.key, engine: e, shard: s, member: m, budget: c.budget,
		want: c.want, refreshes: c.refreshes || c.stale != nil, second: c.excluded,
		due: durations.Add(c.began, e.MaxWait), since: now,
	}
	if e.notified {
		f.notices = make(chan heard, 1)
	}
	if e.eachCall && e.Store != nil {
		f.doubts = make(chan struct{}, 1)
	}
	f.state.Store(&flightState[V]{news: make(chan struct{})})
	f.watch()
	return f
}
