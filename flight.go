package bellwether

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
)

// This file is the collapse: the callers of one key in one process share a flight. x/sync/singleflight cannot
// carry the promises. Its callers wait without a context, a panic ends the process, and no answer (a stale
// item, a response that is being written) comes before the end.

type loader[V any] func(ctx context.Context, a attempt[V]) (product[V], error)

// An attempt is one load of a flight, with copies of its data: the flight may give the load up, and change.
type attempt[V any] struct {
	*flight[V]
	present   *items.Item[V] // flight.present
	loadBegan instant        // items.Item.LoadBegan
	position  uint64         // items.Item.Position
	running   *loadRun[V]
}

// A binder returns the loader of a new flight. Only the call that begins the flight calls bind, while
// its request is still there: bind copies the request's data, and joining calls copy nothing.
type binder[V any] interface{ bind() loader[V] }

// A flight is one rebuild of one key with its callers in this process. No caller owns the flight.
type flight[V any] struct {
	key    string
	load   loader[V]
	engine *engine[V]
	shard  *shard[V]               // the key's shard
	cancel context.CancelCauseFunc // ends the flight: by Close, by desertion, and at its end
	member *member[V]              // the flight's place in its batch, nil without a batch

	// state is the part that callers see. Writers hold shard.mu. Readers need no lock: ten thousand
	// callers wake up together when a flight lands.
	state   atomic.Pointer[flightState[V]]
	callers callerCount
	herd    *herdCount  // nil without observers of herds
	due     instant     // when the first caller has waited for MaxWait
	alarm   *time.Timer // runs fallDue at due

	witness witness[V]       // its epoch is the epoch of the load since the last look, 0 if none
	looked  uint64           // guarded by shard.mu: witness.generation at the last look, see outdated
	current *currentLoad     // guarded by shard.mu: the load under way, nil if none
	since   instant          // guarded by shard.mu: when the flight began, or the key was last invalidated
	notices chan timedNotice // the latest notice of the key; has room for one, senders hold shard.mu; nil without a Notifier

	doubts chan struct{} // a request for confirmOffer, see doubt; has room for one; nil with the near tier on

	// present is the key's latest known item. It is served if the load fails, and counts the
	// failures. Only the flight's goroutine uses it; a load has attempt.present.
	present *items.Item[V]

	// The call that began the flight. These fields do not change.
	want      items.Want[V]
	refreshes bool // the call has an item, or waits for nothing: the flight goes on without callers
	second    bool // another load published to an audience without the call
	queues    bool // engine.unlooked counts the flight until its first look

	elected bool // guarded by shard.mu: the flight goes on without callers

	budget *gate.Budget // the budget of the call that began the flight
	// Callers that began before enough take the result, whatever they want. Another process's load
	// began after them. Only the flight's goroutine uses enough.
	enough instant
	demand slots.Demand // see demanded
	askers chain.Flight // the loads that wait for the flight
}

// A currentLoad is a flight's load under way. shard.mu guards all fields.
type currentLoad struct {
	abort     context.CancelCauseFunc // cancels the load
	last      bool                    // an invalidation does not cancel the load, see maxRefused
	storeless bool                    // the flight goes on without the store
	asked     instant                 // a time at which the store had nothing later than the load's epoch
	heldUntil instant                 // the end of the load's lease by this process's clock; forever without a lease
}

// A flightState is one state of a flight, as callers see it. It is immutable; change replaces it.
type flightState[V any] struct {
	news chan struct{} // closed when the next state is there

	offered     *items.Item[V]    // a stale item for callers whose patience ends
	published   *items.Item[V]    // the value that the load is still writing
	audience    audience.Audience // the audience of published
	until       instant           // callers that began at until or later never get published
	joinable    instant           // callers that began before joinable may have published now
	invalidated bool              // the key was invalidated: callers' own stale items are void
	overdue     bool              // due has passed

	landed bool
	result *items.Item[V]
	before instant // callers that began before may have result
	enough instant // callers that began before enough take result, whatever they want
	err    error   // see failure
}

func (s *flightState[V]) failure() error {
	if s.err == errAgain {
		return nil
	}
	return s.err
}

func (s *flightState[V]) served(now instant) bool {
	return s.result != nil && (judge(&s.result.Lifetime, now) == serve || s.result.Stale(now))
}

// demanded returns the flight's demand for a slot. The flights of a batch share one.
func (f *flight[V]) demanded() *slots.Demand {
	if f.member != nil {
		return &f.member.loads.Demand
	}
	return &f.demand
}

// change replaces the flight's state, and wakes the callers. shard.mu is held.
func (f *flight[V]) change(to func(*flightState[V])) {
	was := f.state.Load()
	is := *was
	is.news = make(chan struct{})
	to(&is)
	f.state.Store(&is)
	close(was.news)
}

var (
	// errAgain ends a flight without an answer. Callers with time left begin a new flight.
	errAgain = errors.New("bellwether: flight ended without an answer")

	// errDeserted ends a flight whose callers have all left before its election.
	errDeserted = errors.New("bellwether: no caller waits for the flight")
)

func (f *flight[V]) fallDue() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.state.Load().landed {
		f.change(func(s *flightState[V]) { s.overdue = true })
	}
}

// publish shows a value that the load still writes to the callers of the audience that began before until.
// ctx is the load's. The result is false if the flight has given up on this load.
func (a attempt[V]) publish(ctx context.Context, v V, until instant, to audience.Audience) bool {
	if !a.show(ctx, v, until, to) {
		return false
	}
	a.engine.enter(a.key, phaseStreaming)
	return true
}

func (a attempt[V]) show(ctx context.Context, v V, until instant, to audience.Audience) bool {
	f := a.flight
	e := f.engine
	fenced := e.Store != nil && f.catchUp(ctx)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	l := f.current
	if l == nil || ctx.Err() != nil || f.streaming() {
		return false
	}
	it := &items.Item[V]{Kind: driver.KindValue, Value: v, LoadBegan: a.loadBegan, Position: a.position}
	// A sweep may name a tag that only the published value has, see sweepFlight.
	if gone, stale := e.against(e.sweeps.Log(), f.key, it); fenced || gone || stale != forever {
		f.witness.generation++
	}
	switch {
	case f.outdated() && !l.last:
		l.abort(fault.ErrInvalidated)
		return false
	case f.outdated():
		until = a.loadBegan - 1 // only callers that asked before the load began
		f.unlist()
	}
	joinable := forever
	if e.Store != nil && !l.storeless {
		joinable = e.trustedUntil(l.asked)
		if e.fencer != nil && !f.shard.closed {
			epoch, asked := f.witness.epoch, l.asked
			e.running.Go(func() { f.vouch(ctx, it, epoch, asked) })
		}
	}
	f.change(func(s *flightState[V]) {
		s.published, s.audience, s.until, s.joinable = it, to, until, joinable
	})
	return true
}

// catchUp asks for news of the key before a value is published. It reads the log of sweeps, and asks
// a Fencer if the lease is over. It reports whether the load's epoch is fenced.
func (f *flight[V]) catchUp(ctx context.Context) (fenced bool) {
	e := f.engine
	f.shard.mu.Lock()
	l, epoch := f.current, f.witness.epoch
	skip := l == nil || ctx.Err() != nil || l.storeless
	late := !skip && e.clock.Now() >= l.heldUntil
	f.shard.mu.Unlock()
	if skip {
		return false
	}
	budget := gate.NewBudget(e.EngineTimeout)
	// The load may have outlasted the trust in the log, and the latest caller has asked just now.
	e.sweeps.Follow(ctx, budget, e.NearTTL/2)
	// By this process's clock the lease is over: the process was paused, or the locker. Another process
	// may have the lease and a value, and the renewal that would tell may be as late as this load.
	return late && f.fenced(ctx, budget, epoch)
}

// fenced asks a Fencer whether something later than epoch counts. It returns false without a Fencer,
// an epoch or an answer: a silent store cannot say so.
func (f *flight[V]) fenced(ctx context.Context, budget *gate.Budget, epoch uint64) bool {
	e := f.engine
	if e.fencer == nil || epoch == 0 {
		return false
	}
	fenced, err := gate.Ask(ctx, e.store, f.key, budget, func(ctx context.Context) (bool, error) {
		return e.fencer.Fenced(ctx, e.engineKey(f.key), epoch)
	})
	return err == nil && fenced
}

// vouch confirms the published value with a Fencer until ctx ends. Otherwise an invalidation elsewhere
// would show only at the commit, and callers that asked after it would join.
func (f *flight[V]) vouch(ctx context.Context, it *items.Item[V], epoch uint64, asked instant) {
	e := f.engine
	for {
		select {
		case <-time.After(durations.Add(asked, e.confirmEvery()) - e.clock.Now()):
		case <-ctx.Done():
			return
		}
		asked = e.clock.Now()
		if !f.vouchFor(ctx, it, epoch) {
			return
		}
	}
}

// vouchFor confirms the published value once. It returns false if no more confirmation is needed.
func (f *flight[V]) vouchFor(ctx context.Context, it *items.Item[V], epoch uint64) bool {
	e, budget := f.engine, gate.NewBudget(f.engine.EngineTimeout)
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	asked := e.clock.Now()
	fenced := f.fenced(ctx, budget, epoch)
	return ctx.Err() == nil && f.vouched(it, fenced, e.trustedUntil(asked))
}

// vouched lets callers join that began before joinable, or no more callers if fenced.
func (f *flight[V]) vouched(it *items.Item[V], fenced bool, joinable instant) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if state := f.state.Load(); state.landed || state.published != it {
		return false
	}
	if fenced {
		f.witness.generation++
		f.unlist()
		return false
	}
	f.change(func(s *flightState[V]) { s.joinable = joinable })
	return true
}

func (f *flight[V]) streaming() bool { return f.state.Load().published != nil }

// giveUp cancels a load that has not published. The lock keeps the load from publishing in between.
func (f *flight[V]) giveUp(cause error) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.streaming() {
		return false
	}
	f.current.abort(cause)
	return true
}

// beginLoading makes l the load under way, unless the key was invalidated since the last look or the
// cache is closed: Close may have ended the flight that had the slot before.
func (r *run[V]) beginLoading(epoch uint64, l currentLoad) bool {
	f := r.flight
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.outdated() && !l.last || f.shard.closed {
		return false
	}
	if f.outdated() {
		f.present = nil // the item is from before the invalidation, unlike the load's value
	}
	r.leading.load = l
	f.current, f.elected = &r.leading.load, true
	f.witness.epoch, f.witness.repeats, f.witness.position = epoch, false, f.engine.sweeps.Log().Position()
	return true
}

// settle puts the item into the near tier, and ends the flight with it for callers that began before
// it.TrustedUntil. False: the key was invalidated since the last look, and the flight looks again.
func (f *flight[V]) settle(it *items.Item[V]) bool { return f.settleFor(it, it.TrustedUntil) }

// settleFor is settle for the callers that began before then.
func (f *flight[V]) settleFor(it *items.Item[V], then instant) bool {
	e := f.engine
	e.weigh(f.key, it) // before the lock: Options.Size is user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	spared := e.afterSweeps(f.key, it)
	// A soft sweep during the load has closed all windows. No caller that asked since may have the item.
	swept := spared == nil || spared.FreshUntil < it.FreshUntil && judge(&spared.Lifetime, e.clock.Now()) == rebuild
	if swept {
		f.witness.generation++
	}
	if f.outdated() {
		// Clients that read a response while it is written keep it. No other call gets it.
		if f.streaming() {
			f.land(nil, 0, errAgain)
		}
		return f.streaming()
	}
	// One lock for both: join sees the flight in the map, or the item in the near tier.
	f.keepResult(spared)
	f.land(spared, then, nil)
	return true
}

// keepResult puts the result into the near tier. If the flight is unlisted, a successor may have put a
// later item there, which stays. shard.mu is held.
func (f *flight[V]) keepResult(it *items.Item[V]) {
	if !f.listed() {
		f.engine.advanceNear(f.key, it)
		return
	}
	f.engine.putNear(f.key, it, f.callers.ever())
}

// give ends the flight with an item past its windows for callers that began before then. An earlier near item
// goes. A later one is from a Set, or of a successor.
func (f *flight[V]) give(it *items.Item[V], then instant) {
	f.engine.weigh(f.key, it) // before the lock: Options.Size is user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.engine.advanceNear(f.key, it)
	f.land(it, then, nil)
}

// giveFailure is give for a failure. The key's item stays in the near tier.
func (f *flight[V]) giveFailure(err error, then instant) {
	it := &items.Item[V]{Err: err}
	it.Failures, it.RetryAt = 1, forever // the failure answers them, whatever else they want
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.land(it, then, nil)
}

// land ends the flight with err, or an item for callers that began before then. shard.mu is held.
func (f *flight[V]) land(it *items.Item[V], then instant, err error) {
	f.alarm.Stop()
	f.change(func(s *flightState[V]) {
		s.landed, s.result, s.before, s.enough, s.err = true, it, then, f.enough, err
	})
	f.unlist()
}

// unlist removes the flight from the map: no more callers join. shard.mu is held.
func (f *flight[V]) unlist() {
	if f.listed() {
		delete(f.shard.flights, f.key)
	}
}

// listed reports whether callers may join the flight. shard.mu is held.
func (f *flight[V]) listed() bool { return f.shard.flights[f.key] == f }

// end ends the flight with err, unless it has landed, and dismisses its witness.
func (f *flight[V]) end(err error) {
	f.cancel(nil)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.shard.removeWitness(f.key, &f.witness) {
		f.engine.count.flights.Add(-1)
	}
	if !f.state.Load().landed {
		f.land(nil, 0, err)
	}
}

// leave takes a caller off the flight. A flight without callers ends before its election, since its
// requests would be for no caller. A flight that refreshes a stale item goes on.
func (f *flight[V]) leave() {
	if !f.callers.left() || f.refreshes {
		return
	}
	if state := f.state.Load(); state.landed || state.offered != nil {
		return
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	// No caller can join under the lock.
	if state := f.state.Load(); f.callers.n.Load() == 0 && !f.elected && !state.landed && state.offered == nil {
		f.unlist()
		f.cancel(errDeserted)
		f.member.callersLeft()
	}
}

func (f *flight[V]) setElected() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.elected = true
}

// landing waits until the flight has landed or is unlisted, and returns its result or nil, for a caller whose
// response broke off. The wait is short: the break's cause has ended the load, or its time, or the listing.
func (f *flight[V]) landing(ctx context.Context) (*items.Item[V], error) {
	for {
		f.shard.mu.Lock() // land changes the state, and then unlists
		listed, state := f.listed(), f.state.Load()
		f.shard.mu.Unlock()
		if state.landed || !listed {
			return state.result, nil
		}
		select {
		case <-state.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// A callerCount counts the calls that wait for a flight, without the readers of its published value.
type callerCount struct {
	n    atomic.Int64
	all  atomic.Int64                  // calls that have ever joined
	none atomic.Pointer[chan struct{}] // closed when n falls to 0; nil without a waiter
}

func (c *callerCount) joined() {
	c.n.Add(1)
	c.all.Add(1)
}

func (c *callerCount) ever() int { return int(c.all.Load()) }

func (c *callerCount) left() (last bool) {
	if c.n.Add(-1) > 0 {
		return false
	}
	if none := c.none.Swap(nil); none != nil {
		close(*none)
	}
	return true
}

// awaitNone waits until the count is 0 or done is closed. Calls that join and leave meanwhile may or
// may not end the wait. All waiters share a channel: an abandoned load may wait beside its successor.
func (c *callerCount) awaitNone(done <-chan struct{}) {
	none := make(chan struct{})
	for !c.none.CompareAndSwap(nil, &none) {
		if other := c.none.Load(); other != nil {
			none = *other
			break
		}
	}
	// This read comes after the swap: a call that leaves after the read finds the channel.
	if c.n.Load() == 0 {
		return
	}
	select {
	case <-none:
	case <-done:
	}
}
