package bellwether

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// This file is the collapse: the callers of one key in one process hang on one
// flight. What the flight does is in rebuild.go; here it is joined, waited for
// and ended.
//
// x/sync/singleflight does not carry the promises: its callers wait without a
// context, its first caller's panic ends the process, and it has no place for
// an answer before the end (a stale value, a response that is still being
// written).

// A loader is a load as the engine runs it: it may publish its value on the
// flight before it returns.
type loader[V any] func(ctx context.Context, a attempt[V]) (V, error)

// An attempt is one load of a flight, with what it starts from. The flight goes
// on while a load runs that it has given up on, so none of this is read from the
// flight.
type attempt[V any] struct {
	*flight[V]
	present  *item[V] // the flight's
	made     instant  // the item.made of what the load makes
	position uint64   // and its item.position
}

// An engine is one cache: its near tier, its flights, and the way to its
// store and its locker.
type engine[V any] struct {
	settings
	clock     clock
	near      *near[V]
	marshal   func(V) ([]byte, error)
	unmarshal func([]byte) (V, error)
	store     *breaker // before Store
	locker    *breaker // before Locker
	push      *breaker // before Locker's Watch: a push that is down is not a locker that is
	commits   commitRecord
	slots     *semaphore.Weighted // MaxRebuilds
	queued    atomic.Int64        // flights that wait for one of them
	count     counters
	running   sync.WaitGroup // flights and what they leave behind, and listen
	notified  bool           // Store is a Notifier
	sweeper   sweeper[V]
	deafen    context.CancelFunc // ends listen, nil if there is none

	mu            sync.Mutex // guards what follows, and the fields of flights that say so
	flights       map[string]*flight[V]
	aloft         map[*flight[V]]struct{} // these, and those that nobody may join any more
	closed        bool
	epoch         uint64 // the last epoch given out, where there is no store to give them
	invalidations uint64 // of any key
	witnesses     map[string][]*witness
}

// A binder gives the loader of a flight that begins now. It is called while the
// caller is still there, and only for the caller that begins the flight: what
// the loader needs of a request can be copied then, and is not copied for the
// callers that join.
type binder[V any] func() loader[V]

// A flight is one rebuild of one key with its callers in this process. It
// belongs to none of them.
type flight[V any] struct {
	key    string
	load   loader[V]
	engine *engine[V]
	cancel context.CancelCauseFunc // ends the flight when the cache is closed

	// state is what callers see. They read it without a lock: when a flight
	// lands, ten thousand of them wake up at one time. It is written with
	// engine.mu held.
	state   atomic.Pointer[flightState[V]]
	callers callerCount
	due     instant     // when the flight's first caller has waited for MaxWait
	alarm   *time.Timer // tells the callers that it is due

	abort    context.CancelCauseFunc // guarded by engine.mu: cancels the load, nil while there is none
	last     bool                    // guarded by engine.mu: the load goes on when its key is invalidated
	disowned bool                    // guarded by engine.mu: the key was invalidated since the flight last looked
	claimed  uint64                  // guarded by engine.mu: the epoch of the load since then, 0 if there is none
	since    instant                 // guarded by engine.mu: when the flight began, or the key was last invalidated
	notices  chan heard              // the latest that was heard of the key; has room for one, and is sent to with engine.mu held

	// present is the latest item known for the key: what is served if the load
	// fails, and what tells how often it has failed. Written by the flight's
	// goroutine, and not while a load runs, which may read it.
	present *item[V]

	// accept is the first caller's, see want. It never changes.
	accept func(it *item[V], now instant) bool
	// Of the present load, guarded by engine.mu: the item.position of what it
	// makes, and whether the flight goes on without the store.
	position uint64
	alone    bool
}

// A want is what a call asks of its answer. The zero want takes any.
type want[V any] struct {
	// accept tells whether an item may answer that was made before the call.
	// Nil: any may. It is quick and does not wait; it is called under locks.
	accept func(it *item[V], now instant) bool
	// aside is work for the call's own goroutine while it waits. Nil: none.
	aside <-chan func()
	// first makes a call that cannot begin a flight of its own end at once, with
	// errTaken.
	first bool
	// solo is for a call whose own load might publish to it alone: when another
	// such call's does, this one is let go with that, and does not take turns.
	solo bool
}

// takes reports whether the item answers a call that began at asked: what was
// loaded since then answers it whatever else is wanted, or it would go on asking
// for ever; and so does a failure while no try is due, because what one client
// wants is no reason to try sooner.
func (w *want[V]) takes(it *item[V], now, asked instant) bool {
	return w.accept == nil || it.made > asked || it.backingOff(now) || w.accept(it, now)
}

// A flightState is one state of a flight. It never changes; the next one takes
// its place.
type flightState[V any] struct {
	news chan struct{} // closed when the next state is there

	offered   *item[V] // stale, for callers whose patience ends
	published *item[V] // the value that is still being made
	alone     bool     // published is for the call that began the flight, and says nothing to the others
	recalled  bool     // the key was invalidated: nothing stale may be served
	overdue   bool     // some callers may have waited for MaxWait

	landed bool
	result *item[V]
	err    error // errAgain never reaches a caller
}

// change gives the flight its next state. engine.mu is held.
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

	// errTaken is for a call that will not wait for another's flight.
	errTaken = errors.New("bellwether: another call's flight is under way")

	// errNothing is the failure of a load that has answered its own caller, by
	// publish, and has learnt nothing about the key. It is not remembered, and
	// what the key has stays.
	errNothing = errors.New("bellwether: load was for its caller alone")

	// errInvalidated is the cause that cancels a load when its key is
	// invalidated.
	errInvalidated = errors.New("bellwether: key invalidated during its rebuild")
)

func newEngine[V any](s settings, size func(string, V) int, marshal func(V) ([]byte, error), unmarshal func([]byte) (V, error)) *engine[V] {
	c := clock{time.Now()}
	e := &engine[V]{
		sweeper:   sweeper[V]{reading: make(chan struct{}, 1)},
		settings:  s,
		clock:     c,
		near:      newNear(c, s.NearBytes, size),
		marshal:   marshal,
		unmarshal: unmarshal,
		store:     newBreaker(),
		locker:    newBreaker(),
		push:      newBreaker(),
		slots:     semaphore.NewWeighted(int64(s.MaxRebuilds)),
		flights:   make(map[string]*flight[V]),
		aloft:     make(map[*flight[V]]struct{}),
	}
	return e
}

// A served answer is an item with the way it came.
type served[V any] struct {
	item      *item[V]
	collapsed bool // it came from a flight that another call had begun
	flown     bool // it came from a flight
	early     bool // it is fresh, and to be rebuilt before it expires
	// live is the flight if the item is still being made. The call counts among
	// its callers until it has its place among the readers, and says left.
	live *flight[V]
}

// hit answers from the near tier if that needs no flight: fresh, or stale
// while nobody is to try again yet. If it does not, the item is what may be
// served when a caller's patience ends, or nil. It does not allocate.
func (e *engine[V]) hit(key string) (served[V], bool) {
	it, now := e.near.get(key)
	if it == nil || now >= it.trusted {
		return served[V]{}, false
	}
	switch it.judge(now) {
	case serve:
		e.count.hits.add()
		return served[V]{item: it, early: e.EarlyRefresh > 0 && it.dueEarly(now, e.EarlyRefresh)}, true
	case serveOnly:
		e.count.stale.Add(1)
		return served[V]{item: it}, true
	case serveStale:
		return served[V]{item: it}, false
	}
	return served[V]{}, false
}

// refresh begins a flight for a key of which it is fresh, unless there is one,
// and does not wait for it.
func (e *engine[V]) refresh(ctx context.Context, key string, it *item[V], bind binder[V]) {
	c := waiter[V]{engine: e, began: e.clock.now(), want: want[V]{
		// Not what is to be replaced: the store has it too, and it is fresh.
		accept: func(other *item[V], _ instant) bool { return other.epoch > it.epoch },
		first:  true,
	}}
	c.join(ctx, key, bind)
	c.leave()
}

// hitFor is hit for a call that does not take any answer.
func (e *engine[V]) hitFor(key string, w want[V]) (served[V], bool) {
	if w.accept == nil {
		return e.hit(key)
	}
	if it, now := e.near.get(key); it == nil || !it.backingOff(now) && !w.accept(it, now) {
		return served[V]{}, false
	}
	return e.hit(key)
}

// wait answers by way of the key's flight, which it begins with bind's loader if
// no other call has. stale is what hit has found to be served when the call's
// patience ends, or nil. The error is a failed rebuild's, or this call's own
// end.
//
// A flight that lands with an item that the call does not take makes it begin
// the next one, or join it: all who came while one load ran and want a later one
// share that.
func (e *engine[V]) wait(ctx context.Context, key string, stale *item[V], w want[V], bind binder[V]) (served[V], error) {
	if err := ctx.Err(); err != nil {
		return served[V]{}, err
	}
	c := waiter[V]{engine: e, want: w, began: e.clock.now(), stale: stale}
	defer c.leave()
	for again := false; ; again = true {
		f, err := c.join(ctx, key, bind)
		if f == nil {
			return c.answer, err
		}
		switch {
		case again: // one count per call, however many flights it needs
		case c.collapsed:
			e.count.collapsed.Add(1)
		default:
			e.count.misses.Add(1)
		}
		for {
			state := f.state.Load()
			expiry, end, err := c.look(f, state)
			switch end {
			case answered:
				return c.answer, err
			case landed:
				c.leave()
			case waiting:
				select {
				case <-state.news:
				case <-expiry:
				case do := <-w.aside:
					do()
				case <-ctx.Done():
					return served[V]{}, ctx.Err()
				}
				continue
			}
			break
		}
	}
}

// A waiter is one call on its way to its answer. What it does with a flight is
// in methods of its own, whose frames are gone while it waits: a herd's
// goroutines are new, and begin with a stack of 2 KB, whose growth would be a
// third of what it costs them to come here.
type waiter[V any] struct {
	engine    *engine[V]
	want      want[V]
	began     instant
	stale     *item[V]   // what may be served when its patience ends
	on        *flight[V] // while it counts among its callers
	collapsed bool       // that flight was begun by another call
	timer     deadlineTimer
	answer    served[V]
}

// leave takes the waiter off its flight.
func (c *waiter[V]) leave() {
	c.timer.stop()
	if c.on != nil {
		c.on.callers.left()
		c.on = nil
	}
}

// A waitState is how a waiter stands to its flight.
type waitState uint8

const (
	waiting  waitState = iota
	answered           // it has its answer or its error
	landed             // the flight has, and not with its answer
)

// look decides what a state of its flight means for the waiter. While it waits,
// expiry is when it is to look again although nothing has changed.
func (c *waiter[V]) look(f *flight[V], state *flightState[V]) (expiry <-chan time.Time, is waitState, err error) {
	// Before the end: a value that is being made is its first caller's also when
	// it has turned out to be for nobody else.
	e, now := c.engine, c.engine.clock.now()
	if state.published != nil && c.began < state.published.trusted && !(state.alone && c.collapsed && !c.want.solo) && c.want.takes(state.published, now, c.began) {
		c.answer = served[V]{item: state.published, collapsed: c.collapsed, flown: true, live: f}
		c.on = nil // it is the answer's now
		return nil, answered, nil
	}
	if state.published != nil {
		// It waits for the next flight. Counted on among those who are still to
		// take their place at the start of this one's body, it would hold up a
		// body that passes its limit, and so the end that it waits for.
		c.leave()
	}
	if state.landed {
		if state.err != nil && !errors.Is(state.err, errAgain) {
			return nil, answered, state.err
		}
		// A reply of the store that was long under way may be older than this
		// call, by more than the near tier is trusted for.
		if state.err == nil && c.began < state.result.trusted && c.want.takes(state.result, now, c.began) {
			c.answer, err = e.conclude(state.result, c.collapsed)
			return nil, answered, err
		}
		return nil, landed, nil
	}
	if c.stale == nil {
		c.stale = state.offered
	}
	if c.stale != nil && (state.recalled || now >= c.stale.trusted || !c.stale.stale(now)) {
		// Invalidated, here or perhaps elsewhere, or its window has closed while
		// the call was patient. What the flight offers may have been confirmed
		// since.
		c.stale = state.offered
		if c.stale != nil && (now >= c.stale.trusted || !c.stale.stale(now)) {
			c.stale = nil
		}
	}
	// Here, where it is taken, and not where a sweep is made: the caller has its
	// own since before the flight, and a flight cannot tell the tags of what it
	// offers from those of what it loads.
	c.stale = e.sweeper.spare(f.key, c.stale)
	if c.stale != nil && (!c.stale.stale(now) || !c.want.takes(c.stale, now, c.began)) {
		c.stale = nil
	}
	limit := e.MaxWait
	if c.stale != nil {
		if c.stale.judge(now) == serve {
			// Fresh: the rebuild is not for this call's sake.
			e.count.hits.add()
			c.answer = served[V]{item: c.stale, collapsed: c.collapsed}
			return nil, answered, nil
		}
		limit = e.Patience
	}
	end := addDurations(c.began, limit)
	if now >= end {
		if c.stale == nil {
			e.count.waitTimeouts.Add(1)
			return nil, answered, ErrWaitTimeout
		}
		e.count.stale.Add(1)
		c.answer = served[V]{item: c.stale, collapsed: c.collapsed}
		return nil, answered, nil
	}
	// A caller that has until the flight is due, or longer, is woken by the
	// flight's alarm: a timer each would be half of what the herd costs.
	if end < f.due || state.overdue {
		expiry = c.timer.at(end - now)
	}
	return expiry, waiting, nil
}

// A callerCount is how many calls have joined a flight and neither gone nor
// taken their place among the readers of what it has published.
type callerCount struct {
	n    atomic.Int64
	none atomic.Pointer[chan struct{}] // closed when n falls to 0; nil unless somebody waits for that
}

func (c *callerCount) joined() { c.n.Add(1) }

func (c *callerCount) left() {
	if c.n.Add(-1) > 0 {
		return
	}
	if none := c.none.Swap(nil); none != nil {
		close(*none)
	}
}

// awaitNone waits until the count is 0, or done is closed. One goroutine at a
// time may call it. Whoever joins and leaves meanwhile may end it or not.
func (c *callerCount) awaitNone(done <-chan struct{}) {
	none := make(chan struct{})
	c.none.Store(&none)
	// After the store: who leaves last after this look finds the channel.
	if c.n.Load() == 0 {
		return
	}
	select {
	case <-none:
	case <-done:
	}
}

// landing waits for the end of the flight that has published it. A caller that
// could have nothing of it any more, because it broke off, then finds what the
// flight came to. No such flight stays up for long: what broke the value off
// has ended its load, or its load's time, or has taken it from the map.
func (e *engine[V]) landing(ctx context.Context, key string, it *item[V]) error {
	e.mu.Lock()
	f := e.flights[key]
	e.mu.Unlock()
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

// A deadlineTimer is a timer that is made when it is first needed.
type deadlineTimer struct{ timer *time.Timer }

func (t *deadlineTimer) at(d time.Duration) <-chan time.Time {
	if t.timer == nil {
		t.timer = time.NewTimer(d)
	} else {
		t.timer.Reset(d)
	}
	return t.timer.C
}

func (t *deadlineTimer) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// conclude is what a caller gets from the item at a flight's end. A value that
// has just been made answers those who waited for it however short its TTL; a
// failure answers unless something stale may.
func (e *engine[V]) conclude(it *item[V], collapsed bool) (served[V], error) {
	if now := e.clock.now(); it.failures > 0 && it.judge(now) != serve {
		if !it.stale(now) {
			return served[V]{}, it.err
		}
		e.count.stale.Add(1)
	}
	return served[V]{item: it, collapsed: collapsed, flown: true}, nil
}

// join returns the key's flight, begun now if there is none; or no flight, and
// the waiter has its answer, or the error.
func (c *waiter[V]) join(ctx context.Context, key string, bind binder[V]) (*flight[V], error) {
	e := c.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	f := e.flights[key]
	if c.collapsed = f != nil; !c.collapsed {
		return c.begin(ctx, key, bind)
	}
	if c.want.first {
		return nil, errTaken
	}
	c.board(f)
	return f, nil
}

// board counts the waiter among the flight's callers. engine.mu is held.
func (c *waiter[V]) board(f *flight[V]) {
	f.callers.joined()
	c.on = f
}

// begin is join where there is no flight. engine.mu is held.
func (c *waiter[V]) begin(ctx context.Context, key string, bind binder[V]) (*flight[V], error) {
	// The near tier is read again under the lock. A caller that missed there
	// just before a flight landed, and came here just after, would begin a
	// second rebuild: a flight fills the near tier before it leaves the map,
	// both under this lock, so one of the two is seen.
	e := c.engine
	it, now := e.near.get(key)
	if it != nil && now < it.trusted {
		switch it.judge(now) {
		case serve, serveOnly, fail:
			if c.want.takes(it, now, c.began) {
				var err error
				c.answer, err = e.conclude(it, false)
				c.answer.flown = false
				return nil, err
			}
		}
	}
	// Detached: the values of the context stay (traces, tenants), its end does not.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight[V]{
		key: key, load: bind(), engine: e, accept: c.want.accept, cancel: cancel,
		due: addDurations(now, e.MaxWait), since: now, notices: make(chan heard, 1),
	}
	f.state.Store(&flightState[V]{news: make(chan struct{})})
	c.board(f)
	f.alarm = time.AfterFunc(e.MaxWait, f.fallDue)
	e.flights[key] = f
	e.aloft[f] = struct{}{}
	e.running.Go(func() { f.fly(ctx) })
	return f, nil
}

// fallDue wakes the callers, so that those who have waited long enough go.
func (f *flight[V]) fallDue() {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if !f.state.Load().landed {
		f.change(func(s *flightState[V]) { s.overdue = true })
	}
}

// offerStale shows callers a value that they may take when their patience
// ends, or nil for none. It reports whether it did: not if the key was
// invalidated since the flight last looked.
func (f *flight[V]) offerStale(it *item[V]) bool {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.disowned {
		return false
	}
	f.change(func(s *flightState[V]) { s.offered = it })
	return true
}

// publish answers the flight's callers with a value that the load whose context
// is ctx is still making. It reports whether it did: not if the load has been
// given up on, which by then may have a successor in the same flight.
func (a attempt[V]) publish(ctx context.Context, v V) bool {
	return a.show(ctx, v, false)
}

// publishAlone is publish to the call that began the flight, and to no others
// but solo ones.
func (a attempt[V]) publishAlone(ctx context.Context, v V) bool {
	return a.show(ctx, v, true)
}

func (a attempt[V]) show(ctx context.Context, v V, alone bool) bool {
	f := a.flight
	e := f.engine
	if e.sweeper.on() && e.Store != nil {
		e.mu.Lock()
		skip := ctx.Err() != nil || f.alone
		e.mu.Unlock()
		if !skip {
			// The load may have taken longer than the log is trusted, and who
			// joins the flight last has asked just now.
			e.followLog(ctx, &outage{e.EngineTimeout}, e.NearTTL/2)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != nil || f.streaming() {
		return false
	}
	it := &item[V]{kind: KindValue, value: v, made: a.made, position: a.position, trusted: forever}
	w := &f.engine.sweeper
	// By a tag, perhaps, that was not known until now, see sweepFlight.
	if gone, stale := w.against(w.log.Load(), f.key, it); gone || stale != forever {
		f.disowned = true
	}
	switch {
	case f.disowned && !f.last:
		f.abort(errInvalidated)
		return false
	case f.disowned:
		it.trusted = a.made - 1 // for those who asked before the load began
		if f.engine.flights[f.key] == f {
			delete(f.engine.flights, f.key)
		}
	}
	f.change(func(s *flightState[V]) { s.published, s.alone = it, alone })
	return true
}

// streaming reports whether callers have been answered with a value that is
// still being made.
func (f *flight[V]) streaming() bool { return f.state.Load().published != nil }

// giveUp cancels the load, unless callers are reading what it makes. Under the
// lock, so that the load cannot publish in between.
func (f *flight[V]) giveUp(cause error) bool {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.streaming() {
		return false
	}
	f.abort(cause)
	return true
}

// abortable makes abort the way to cancel the flight's load of that epoch,
// unless the key was invalidated since the flight last looked. An invalidation
// does not cancel the last one, see maxRefused.
func (f *flight[V]) abortable(abort context.CancelCauseFunc, epoch uint64, last, alone bool) bool {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	if f.disowned {
		return false
	}
	f.abort, f.last, f.alone = abort, last, alone
	f.claimed, f.position = epoch, f.engine.sweeper.position()
	return true
}

// settle ends the flight with it, and keeps it in the near tier. It returns
// false, and the flight has to look again, if the key was invalidated since
// the flight last looked: what it has then was computed, or read, before.
func (f *flight[V]) settle(it *item[V]) bool {
	e := f.engine
	e.near.weigh(f.key, it) // before the lock: it runs user code
	e.mu.Lock()
	defer e.mu.Unlock()
	spared := e.sweeper.spare(f.key, it)
	// What was swept softly while it was made, and has no window that is open,
	// is for nobody who has asked since.
	swept := spared == nil || spared.freshUntil < it.freshUntil && spared.judge(e.clock.now()) == rebuild
	if f.disowned = f.disowned || swept; f.disowned {
		// Clients that read a response while it is made have it already. It
		// is theirs, and nobody else's.
		if f.streaming() {
			f.land(nil, errAgain)
		}
		return f.streaming()
	}
	// Between this and the flight's leaving the map, join sees neither or both.
	f.land(e.near.put(f.key, spared), nil)
	return true
}

// give ends the flight with it, and keeps it nowhere; but what it has replaced
// is no longer kept either.
func (f *flight[V]) give(it *item[V]) {
	f.engine.near.weigh(f.key, it) // before the lock: it runs user code
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	f.engine.near.put(f.key, it)
	f.land(it, nil)
}

// land ends the flight. engine.mu is held.
func (f *flight[V]) land(it *item[V], err error) {
	f.alarm.Stop()
	f.change(func(s *flightState[V]) { s.landed, s.result, s.err = true, it, err })
	if f.engine.flights[f.key] == f {
		delete(f.engine.flights, f.key)
	}
}

// end ends a flight without an item, if it has not ended yet.
func (f *flight[V]) end(err error) {
	f.cancel(nil)
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	delete(f.engine.aloft, f)
	if !f.state.Load().landed {
		f.land(nil, err)
	}
}

// lookAgain begins the flight's next look at the store: an invalidation before
// it is nothing that this look could miss.
func (f *flight[V]) lookAgain() {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	f.disowned, f.claimed = false, 0
}

// A witness counts the invalidations of a key while somebody works on a value
// for it that no flight makes.
type witness struct {
	seen     int    // guarded by engine.mu
	position uint64 // the log's when the work began, see item; never changes
}

func (e *engine[V]) watchInvalidations(key string) *witness {
	w := &witness{position: e.sweeper.position()}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.witnesses == nil {
		e.witnesses = make(map[string][]*witness)
	}
	e.witnesses[key] = append(e.witnesses[key], w)
	return w
}

func (e *engine[V]) dismiss(key string, w *witness) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rest := slices.DeleteFunc(e.witnesses[key], func(other *witness) bool { return other == w })
	if e.witnesses[key] = rest; len(rest) == 0 {
		delete(e.witnesses, key)
	}
}

// behind runs f on a goroutine of the engine's, unless that is closed.
func (e *engine[V]) behind(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.running.Go(f)
	}
}

// invalidate drops the key from the store and then from this process. The
// order matters: with the store first, whatever the present flight has read or
// claimed before the store's floor rose is disowned here, and what any flight
// reads after that is new.
func (e *engine[V]) invalidate(ctx context.Context, key string) error {
	var err error
	if e.Store != nil {
		_, err = ask(ctx, e.store, &outage{e.EngineTimeout}, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, e.Store.Invalidate(ctx, e.engineKey(key))
		})
		if err != nil {
			e.count.engineErrors.Add(1)
			err = &keyError{"invalidating", key, err}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recall(key, 1<<64-1)
	return err
}

// recall drops what this process has of a key that was invalidated, and what
// its flight has read or begun to load, if that is of an epoch below the
// invalidation's. e.mu is held.
func (e *engine[V]) recall(key string, epoch uint64) {
	if it, _ := e.near.get(key); it != nil && it.epoch <= epoch {
		e.near.delete(key)
	}
	e.invalidations++
	for _, w := range e.witnesses[key] {
		w.seen++
	}
	f := e.flights[key]
	if f == nil {
		return
	}
	f.since = e.clock.now()
	if f.claimed > epoch {
		return
	}
	f.disowned = true
	f.change(func(s *flightState[V]) { s.offered, s.recalled = nil, true })
	switch {
	case f.streaming():
		// A response that clients are already reading is theirs, but from now
		// on nobody joins them.
		delete(e.flights, key)
	case f.abort != nil && !f.last:
		f.abort(errInvalidated)
	}
}

// engineKey is key as Store and Locker know it.
func (e *engine[V]) engineKey(key string) string {
	if e.Namespace == "" {
		return key
	}
	return e.Namespace + ":" + key
}

// ownKey is the reverse of engineKey, false for a key of another namespace.
func (e *engine[V]) ownKey(engineKey string) (key string, ok bool) {
	if e.Namespace == "" {
		return engineKey, true
	}
	return strings.CutPrefix(engineKey, e.Namespace+":")
}

func (e *engine[V]) snapshot() Stats {
	c := &e.count
	e.mu.Lock()
	flights := len(e.aloft)
	e.mu.Unlock()
	return Stats{
		Hits: c.hits.sum(), Stale: c.stale.Load(), Misses: c.misses.Load(),
		Collapsed: c.collapsed.Load(), WaitTimeouts: c.waitTimeouts.Load(),
		Loads: c.loads.Load(), LoadFailures: c.loadFailures.Load(), StoreHits: c.storeHits.Load(),
		Waits: c.waits.Load(), Fenced: c.fenced.Load(), LeasesLost: c.leasesLost.Load(),
		Degraded: c.degraded.Load(), EngineErrors: c.engineErrors.Load(),
		Flights: flights, NearBytes: e.near.cache.WeightedSize(),
		StoreUp: e.store.up(), LockerUp: e.locker.up(),
	}
}

func (e *engine[V]) close() {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	for f := range e.aloft {
		f.cancel(ErrClosed)
	}
	e.mu.Unlock()
	if e.deafen != nil {
		e.deafen()
	}
	e.running.Wait()
	if first {
		e.near.close()
	}
}
