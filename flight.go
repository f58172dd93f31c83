package bellwether

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
)

// This file is the collapse: the callers of one key in one process hang on one
// flight. Here is what they see of it; how they wait is in wait.go, what the
// flight does is in rebuild.go.
//
// x/sync/singleflight does not carry the promises: its callers wait without a
// context, its first caller's panic ends the process, and it has no place for
// an answer before the end (a stale value, a response that is still being
// written).

// A loader is a load as the engine runs it: it may publish its value on the
// flight before it returns.
type loader[V any] func(ctx context.Context, a attempt[V]) (product[V], error)

// An attempt is one load of a flight, with what it starts from. The flight goes
// on while a load runs that it has given up on, so none of this is read from the
// flight.
type attempt[V any] struct {
	*flight[V]
	present  *items.Item[V] // the flight's
	made     instant        // the item.made of what the load makes
	position uint64         // and its item.position
	running  *loadRun[V]
}

// A binder gives the loader of a flight that begins now. It is asked while the
// caller is still there, and only for the caller that begins the flight: what
// the loader needs of a request can be copied then, and is not copied for the
// callers that join.
type binder[V any] interface{ bind() loader[V] }

// A flight is one rebuild of one key with its callers in this process. It
// belongs to none of them.
type flight[V any] struct {
	key    string
	load   loader[V]
	engine *engine[V]
	shard  *shard[V]               // the key's
	cancel context.CancelCauseFunc // ends the flight when the cache is closed
	member *member[V]              // its place in the batch that has begun it, nil if none has

	// state is what callers see. They read it without a lock: when a flight
	// lands, ten thousand of them wake up at one time. It is written with
	// shard.mu held.
	state   atomic.Pointer[flightState[V]]
	callers callerCount
	herd    *herdCount  // nil if nobody wants to know
	due     instant     // when the flight's first caller has waited for MaxWait
	alarm   *time.Timer // tells the callers that it is due

	witness witness[V]   // its epoch is that of the load since the last look, 0 if there is none
	looked  uint64       // guarded by shard.mu: the witness's generation at the last look, see outdated
	current *currentLoad // guarded by shard.mu: the load under way, nil while there is none
	since   instant      // guarded by shard.mu: when the flight began, or the key was last invalidated
	notices chan heard   // the latest that was heard of the key; has room for one, and is sent to with shard.mu held; nil if the store tells nothing

	doubts chan struct{} // of calls that came after the store was asked, see doubt; has room for one; nil with the near tier on

	// present is the latest item known for the key: what is served if the load
	// fails, and what tells how often it has failed. It is the flight's goroutine's;
	// a load has its own, see attempt.
	present *items.Item[V]

	// What the call was that has begun the flight. None of it changes.
	want      items.Want[V]
	refreshes bool // it does not wait for the flight
	second    bool // it has waited for another load, whose audience it was not of
	queues    bool // the flight is among engine.unlooked until its first look

	elected bool // guarded by shard.mu: what the flight does is for all who will ask

	budget *gate.Budget // of the call that has begun the flight
	// enough is before when callers came for whom what the flight ends with is new,
	// although another process has made it. It is the flight's goroutine's.
	enough instant
	demand slots.Demand // see demanded
	askers askers       // guarded by callsOfLoads
}

// A currentLoad is a flight's load under way. shard.mu guards all fields.
type currentLoad struct {
	abort     context.CancelCauseFunc // cancels it
	last      bool                    // an invalidation does not cancel it, see maxRefused
	storeless bool                    // the flight goes on without the store
	asked     instant                 // as of when the store had nothing later than the load's epoch
	heldUntil instant                 // the end of the lease that it runs under, by this process's clock; forever without one
}

// A flightState is one state of a flight. It never changes; the next one takes
// its place.
type flightState[V any] struct {
	news chan struct{} // closed when the next state is there

	offered   *items.Item[V]    // stale, for callers whose patience ends
	published *items.Item[V]    // the value that is still being made
	audience  audience.Audience // of published
	until     instant           // no caller that began later may ever have published
	joinable  instant           // callers that began before that may have it now
	recalled  bool              // the key was invalidated: nothing stale may be served
	overdue   bool              // some callers may have waited for MaxWait

	landed bool
	result *items.Item[V]
	before instant // callers that began before that may have result
	enough instant // callers that began before that take it, whatever they want
	err    error   // see failure
}

// failure is the error that the flight's callers get: none if it has ended with
// errAgain, whose callers go on without it.
func (s *flightState[V]) failure() error {
	if s.err == errAgain {
		return nil
	}
	return s.err
}

// served reports whether the flight has landed with a value to serve, fresh or stale.
func (s *flightState[V]) served(now instant) bool {
	return s.result != nil && (judge(&s.result.Lifetime, now) == serve || s.result.Stale(now))
}

// demanded is the flight's demand, or its batch's, whose flights share a slot.
func (f *flight[V]) demanded() *slots.Demand {
	if f.member != nil {
		return &f.member.loads.Demand
	}
	return &f.demand
}

// change gives the flight its next state. shard.mu is held.
func (f *flight[V]) change(to func(*flightState[V])) {
	was := f.state.Load()
	is := *was
	is.news = make(chan struct{})
	to(&is)
	f.state.Store(&is)
	close(was.news)
}

var (
	// errAgain ends a flight that has waited long enough for others. Its
	// callers begin a new one if they have time left.
	errAgain = errors.New("bellwether: flight ended without an answer")

	// errDeserted ends a flight whose callers have all left before it was elected.
	errDeserted = errors.New("bellwether: no caller waits for the flight")
)

// fallDue wakes the callers, so that those who have waited long enough go.
func (f *flight[V]) fallDue() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.state.Load().landed {
		f.change(func(s *flightState[V]) { s.overdue = true })
	}
}

// publish answers the flight's callers that are of the audience and come before until,
// with a value that the load whose context is ctx is still making. It returns false if
// the flight has given up on the load, which then may have a successor in the same
// flight.
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
	it := &items.Item[V]{Kind: driver.KindValue, Value: v, Made: a.made, Position: a.position}
	// By a tag, perhaps, that was not known until now, see sweepFlight.
	if gone, stale := e.against(e.sweeps.Log(), f.key, it); fenced || gone || stale != forever {
		f.witness.generation++
	}
	switch {
	case f.outdated() && !l.last:
		l.abort(fault.ErrInvalidated)
		return false
	case f.outdated():
		until = a.made - 1 // for those who asked before the load began
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

// catchUp hears what the fleet has had to say of the key while it was loaded, before
// a value of that load is shown. It reports whether that does not count any more.
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
	// The load may have taken longer than the log is trusted, and who joins the
	// flight last has asked just now.
	e.sweeps.Follow(ctx, budget, e.NearTTL/2)
	// Late: this process has been paused, or its locker has. Another may have the lease,
	// and its value, by now, and the renewal that would tell may be as late as this load.
	return late && f.fenced(ctx, budget, epoch)
}

// fenced asks the store whether something later than epoch counts. A store that does not
// answer cannot say so, nor can one that is no Fencer, nor any of an epoch of none.
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

// vouch asks the store, until ctx ends, whether the value that a load of that
// epoch is making still counts. Without it, an invalidation by another process
// would be seen at the commit only, and who joins until then has asked after it.
// asked is when the store last said that it does.
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

// vouchFor asks the store whether the value still counts. It returns false if there is
// nothing more to ask.
func (f *flight[V]) vouchFor(ctx context.Context, it *items.Item[V], epoch uint64) bool {
	e, budget := f.engine, gate.NewBudget(f.engine.EngineTimeout)
	e.sweeps.Follow(ctx, budget, e.NearTTL/4)
	asked := e.clock.Now()
	fenced := f.fenced(ctx, budget, epoch)
	return ctx.Err() == nil && f.vouched(it, fenced, e.trustedUntil(asked))
}

// vouched lets callers join that began before joinable, or nobody any more. It
// returns false if there is nothing more to ask.
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

// streaming reports whether callers have been answered with a value that is
// still being made.
func (f *flight[V]) streaming() bool { return f.state.Load().published != nil }

// giveUp cancels the load, unless callers are reading what it makes. Under the
// lock, so that the load cannot publish in between.
func (f *flight[V]) giveUp(cause error) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.streaming() {
		return false
	}
	f.current.abort(cause)
	return true
}

// beginLoading makes l, with that epoch, the flight's load under way, unless the key
// was invalidated since the flight last looked, or the cache is closed: the slot may be
// that of another flight which Close has ended just now. The last load begins all the same.
func (r *run[V]) beginLoading(epoch uint64, l currentLoad) bool {
	f := r.flight
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.outdated() && !l.last || f.shard.closed {
		return false
	}
	if f.outdated() {
		f.present = nil // what the load makes is of after that; this is not
	}
	r.leading.load = l
	f.current, f.elected = &r.leading.load, true
	f.witness.epoch, f.witness.position = epoch, f.engine.sweeps.Log().Position()
	return true
}

// settle ends the flight with it, and keeps it in the near tier. The item answers the callers
// that began before its trust ends. It returns false, and the flight has to look again, if
// the key was invalidated since the flight last looked: what it has then was computed, or
// read, before.
func (f *flight[V]) settle(it *items.Item[V]) bool { return f.settleFor(it, it.Trusted) }

// settleFor is settle for the callers that began before then.
func (f *flight[V]) settleFor(it *items.Item[V], then instant) bool {
	e := f.engine
	e.weigh(f.key, it) // before the lock: it runs user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	spared := e.spare(f.key, it)
	// What was swept softly while it was made, and has no window that is open,
	// is for nobody who has asked since.
	swept := spared == nil || spared.FreshUntil < it.FreshUntil && judge(&spared.Lifetime, e.clock.Now()) == rebuild
	if swept {
		f.witness.generation++
	}
	if f.outdated() {
		// Clients that read a response while it is made have it already. It
		// is theirs, and nobody else's.
		if f.streaming() {
			f.land(nil, 0, errAgain)
		}
		return f.streaming()
	}
	// Between this and the flight's leaving the map, join sees neither or both.
	f.keep(spared)
	f.land(spared, then, nil)
	return true
}

// keep puts what the flight ends with into the near tier. One that has left the map
// may have a successor, which has put something later there. shard.mu is held.
func (f *flight[V]) keep(it *items.Item[V]) {
	if f.shard.flights[f.key] != f {
		f.engine.advanceNear(f.key, it)
		return
	}
	f.engine.putNear(f.key, it, f.callers.ever())
}

// give ends the flight with it, which is over, for the callers that began before then. What
// the near tier has of the key goes.
func (f *flight[V]) give(it *items.Item[V], then instant) {
	f.engine.weigh(f.key, it) // before the lock: it runs user code
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.keep(it)
	f.land(it, then, nil)
}

// giveFailure is give for a failure, which replaces nothing.
func (f *flight[V]) giveFailure(err error, then instant) {
	it := &items.Item[V]{Err: err}
	it.Failures, it.RetryAt = 1, forever // whatever else they want, it answers them
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.land(it, then, nil)
}

// land ends the flight with err, or with an item for the callers that began before then.
// shard.mu is held.
func (f *flight[V]) land(it *items.Item[V], then instant, err error) {
	f.alarm.Stop()
	f.change(func(s *flightState[V]) {
		s.landed, s.result, s.before, s.enough, s.err = true, it, then, f.enough, err
	})
	f.unlist()
}

// unlist lets nobody join the flight any more. shard.mu is held.
func (f *flight[V]) unlist() {
	if f.shard.flights[f.key] == f {
		delete(f.shard.flights, f.key)
	}
}

// end ends a flight without an item, if it has not ended yet.
func (f *flight[V]) end(err error) {
	f.cancel(nil)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.shard.dismiss(f.key, &f.witness) {
		f.engine.count.flights.Add(-1)
	}
	if !f.state.Load().landed {
		f.land(nil, 0, err)
	}
}

// leave takes a caller off the flight. A flight that nobody waits for, and that has
// not come to its load, would have the engines asked for nobody: it ends. What
// refreshes something stale goes on.
func (f *flight[V]) leave() {
	if !f.callers.left() || f.refreshes {
		return
	}
	if state := f.state.Load(); state.landed || state.offered != nil {
		return
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	// Under the lock nobody joins.
	if state := f.state.Load(); f.callers.n.Load() == 0 && !f.elected && !state.landed && state.offered == nil {
		f.unlist()
		f.cancel(errDeserted)
		f.member.desert()
	}
}

// lead has the flight go on whether or not anybody waits for it.
func (f *flight[V]) lead() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.elected = true
}

// landing waits for the end of the flight that has published it. A caller that
// could have nothing of it any more, because it broke off, then finds what the
// flight came to. No such flight stays up for long: what broke the value off
// has ended its load, or its load's time, or has taken it from the map.
func (e *engine[V]) landing(ctx context.Context, key string, it *items.Item[V]) error {
	s := e.shards.of(key)
	s.mu.Lock()
	f := s.flights[key]
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	for {
		state := f.state.Load()
		if state.published != it || state.landed {
			return nil
		}
		select {
		case <-state.news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A callerCount is how many calls have joined a flight and neither gone nor
// taken their place among the readers of what it has published.
type callerCount struct {
	n    atomic.Int64
	all  atomic.Int64                  // how many have ever joined
	none atomic.Pointer[chan struct{}] // closed when n falls to 0; nil unless somebody waits for that
}

func (c *callerCount) joined() {
	c.n.Add(1)
	c.all.Add(1)
}

func (c *callerCount) ever() int { return int(c.all.Load()) }

// left reports whether it was the last.
func (c *callerCount) left() (last bool) {
	if c.n.Add(-1) > 0 {
		return false
	}
	if none := c.none.Swap(nil); none != nil {
		close(*none)
	}
	return true
}

// awaitNone waits until the count is 0, or done is closed. Whoever joins and leaves
// meanwhile may end it or not. All who wait have one channel: a load that was given up
// on may wait beside its successor.
func (c *callerCount) awaitNone(done <-chan struct{}) {
	none := make(chan struct{})
	for !c.none.CompareAndSwap(nil, &none) {
		if other := c.none.Load(); other != nil {
			none = *other
			break
		}
	}
	// After that: who leaves last after this look finds the channel.
	if c.n.Load() == 0 {
		return
	}
	select {
	case <-none:
	case <-done:
	}
}
