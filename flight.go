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
type loader[V any] func(ctx context.Context, f *flight[V]) (V, error)

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
	state atomic.Pointer[flightState[V]]
	due   instant     // when the flight's first caller has waited for MaxWait
	alarm *time.Timer // tells the callers that it is due

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
	// made is the item.made of what the present load makes. Written by the
	// flight's goroutine before a load starts, which may read it. So are
	// position, the item.position, and alone, whether the flight goes on without
	// the store, with engine.mu held.
	made     instant
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
		return served[V]{item: it}, true
	case serveOnly:
		e.count.stale.Add(1)
		return served[V]{item: it}, true
	case serveStale:
		return served[V]{item: it}, false
	}
	return served[V]{}, false
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
	var (
		began = e.clock.now()
		timer deadlineTimer // of this call's own
	)
	defer timer.stop()
	for again := false; ; again = true {
		f, known, collapsed, err := e.join(ctx, key, w, began, bind)
		if err != nil {
			return served[V]{}, err
		}
		if f == nil {
			s, err := e.conclude(known, false)
			s.flown = false
			return s, err
		}
		switch {
		case again: // one count per call, however many flights it needs
		case collapsed:
			e.count.collapsed.Add(1)
		default:
			e.count.misses.Add(1)
		}
		for {
			state := f.state.Load()
			// Before the end: a value that is being made is its first caller's
			// also when it has turned out to be for nobody else.
			now := e.clock.now()
			if state.published != nil && began < state.published.trusted && w.takes(state.published, now, began) {
				return served[V]{item: state.published, collapsed: collapsed, flown: true}, nil
			}
			if state.landed {
				if state.err != nil && !errors.Is(state.err, errAgain) {
					return served[V]{}, state.err
				}
				// A reply of the store that was long under way may be older than
				// this call, by more than the near tier is trusted for.
				if state.err == nil && began < state.result.trusted && w.takes(state.result, now, began) {
					return e.conclude(state.result, collapsed)
				}
				break
			}
			if stale == nil {
				stale = state.offered
			}
			if stale != nil && (state.recalled || now >= stale.trusted || !stale.stale(now)) {
				// Invalidated, here or perhaps elsewhere, or its window has
				// closed while the call was patient. What the flight offers may
				// have been confirmed since.
				stale = state.offered
				if stale != nil && (now >= stale.trusted || !stale.stale(now)) {
					stale = nil
				}
			}
			// Here, where it is taken, and not where a sweep is made: the caller has
			// its own since before the flight, and a flight cannot tell the tags of
			// what it offers from those of what it loads.
			if stale = e.sweeper.spare(key, stale); stale != nil && (!stale.stale(now) || !w.takes(stale, now, began)) {
				stale = nil
			}
			limit := e.MaxWait
			if stale != nil {
				limit = e.Patience
			}
			end := addDurations(began, limit)
			if now >= end {
				if stale == nil {
					e.count.waitTimeouts.Add(1)
					return served[V]{}, ErrWaitTimeout
				}
				e.count.stale.Add(1)
				return served[V]{item: stale, collapsed: collapsed}, nil
			}
			// A caller that has until the flight is due, or longer, is woken
			// by the flight's alarm: a timer each would be half of what the
			// herd costs.
			var expiry <-chan time.Time
			if end < f.due || state.overdue {
				expiry = timer.at(end - now)
			}
			select {
			case <-state.news:
			case <-expiry:
			case do := <-w.aside:
				do()
			case <-ctx.Done():
				return served[V]{}, ctx.Err()
			}
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
// the item that answers at once.
func (e *engine[V]) join(ctx context.Context, key string, w want[V], asked instant, bind binder[V]) (f *flight[V], known *item[V], collapsed bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, false, ErrClosed
	}
	if f := e.flights[key]; f != nil {
		if w.first {
			return nil, nil, false, errTaken
		}
		return f, nil, true, nil
	}
	// The near tier is read again under the lock. A caller that missed there
	// just before a flight landed, and came here just after, would begin a
	// second rebuild: a flight fills the near tier before it leaves the map,
	// both under this lock, so one of the two is seen.
	it, now := e.near.get(key)
	if it != nil && now < it.trusted {
		switch it.judge(now) {
		case serve, serveOnly, fail:
			if w.takes(it, now, asked) {
				return nil, it, false, nil
			}
		}
	}
	// Detached: the values of the context stay (traces, tenants), its end does not.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f = &flight[V]{key: key, load: bind(), engine: e, accept: w.accept, cancel: cancel, due: addDurations(now, e.MaxWait), since: now, notices: make(chan heard, 1)}
	f.state.Store(&flightState[V]{news: make(chan struct{})})
	f.alarm = time.AfterFunc(e.MaxWait, f.fallDue)
	e.flights[key] = f
	e.aloft[f] = struct{}{}
	e.running.Go(func() { f.fly(ctx) })
	return f, nil, false, nil
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
func (f *flight[V]) publish(ctx context.Context, v V) bool {
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
	it := &item[V]{kind: KindValue, value: v, made: f.made, position: f.position, trusted: forever}
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
		it.trusted = f.made - 1 // for those who asked before the load began
		if f.engine.flights[f.key] == f {
			delete(f.engine.flights, f.key)
		}
	}
	f.change(func(s *flightState[V]) { s.published = it })
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
	position uint64 // the log's when it began, see item
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
