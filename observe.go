package bellwether

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file is what a cache tells those who watch it: who was served and how,
// what a rebuild came to, how a herd fared, how the engines do. It is told
// where it happens, outside of all locks; with nobody to tell, a hit pays for
// one comparison.

// An Observer is told what a cache does, by those of its functions that are not
// nil. They are called on the goroutines that do it, without a lock held, so
// they have to be quick, and safe for concurrent use. Breaker and Evict are called one
// after another on one goroutine of the cache's, which Close waits for. They may call the cache, but
// not Close, nor, where a rebuild of a key waits for them, Get for that key: they
// would wait for themselves. A panic of theirs ends nothing but their own call;
// Options.OnError hears of it, unless it was Error's. A runtime.Goexit of theirs,
// as of a test's FailNow, ends the goroutine that it is called on: a caller's own,
// or a flight, whose callers get [ErrGoexit].
// Durations are by this process's monotonic clock.
type Observer struct {
	// Hit is told of each call that a fresh value of the near tier has answered
	// at once. It is on the path of all of them. For counting them alone there is
	// [Stats], which costs nothing.
	Hit func(ctx context.Context, key string)
	// Serve is told of each other call when it has its answer, or ends without.
	// With a [Middleware] that is the end of the request, and the requests that
	// never come to the cache (other methods, upgrades, no-store) are not among
	// them.
	Serve func(ctx context.Context, s Serve)

	// Rebuild is told that a load begins, and returns the context that it gets
	// in the place of ctx, derived from that, and who is to be told of its end.
	// Either may be nil. A Middleware's handler sees that context's values.
	Rebuild func(ctx context.Context, key string) (context.Context, func(Rebuild))
	// Caller returns what a rebuild is to know of a call that has come to wait
	// for it, such as its span: [Rebuild.Callers]. It is called on that call's
	// goroutine, while its context is still its own.
	Caller func(ctx context.Context) any
	// Herd is told of each flight that has answered anybody, once: when the last
	// of its callers goes, on that one's goroutine or the flight's.
	Herd func(h Herd)

	// Breaker is told when the breaker before an engine changes its state.
	Breaker func(engine Engine, from, to BreakerState)
	// Evict is told of each value that had to leave the near tier for others,
	// and of its size there. Those that expire are none. While 65,536 evictions wait
	// for it, it is not told of more.
	Evict func(key string, bytes int)
	// Error is told what Options.OnError is told, but for loads that fail: Rebuild is
	// told of these.
	Error func(key string, err error)
}

// A Serve is one call's end.
type Serve struct {
	// Key is the call's; with a Middleware that of its URL.
	Key string
	// Way is how the call was served.
	Way Way
	// Waited is how long it took, without the time to write a response.
	Waited time.Duration
	// Err is why there was no value, or nil.
	Err error
}

// A Way is how a call was served, in the words of RFC 9211.
type Way uint8

const (
	// WayHit is by a fresh value that this process had.
	WayHit Way = iota
	// WayStale is by a stale value.
	WayStale
	// WayCollapsed is by a flight that another call had begun.
	WayCollapsed
	// WayMiss is by a flight of the call's own; or not at all, if it found
	// neither a value nor a flight.
	WayMiss
	// WayBypass is by the handler, for its request alone, because the response
	// was not for sharing.
	WayBypass
)

// String returns the word for it: hit, stale, collapsed, miss or bypass.
func (w Way) String() string {
	return word(w, "hit", "stale", "collapsed", "miss", "bypass")
}

// A Rebuild is one load with what came of it.
type Rebuild struct {
	Key string
	// Outcome is what came of it.
	Outcome Outcome
	// Took is the time from the load's beginning until its value was in the
	// store.
	Took time.Duration
	// Err is the load's failure, or nil. That there is no such thing
	// ([ErrNotFound]) is none.
	Err error
	// Takeover tells that it was begun in the place of another holder whose
	// lease has run out.
	Takeover bool
	// LeaseLost tells that another took its own lease meanwhile.
	LeaseLost bool
	// Callers are what this observer's Caller has returned for the calls that
	// have collapsed on the flight so far, for the first [MaxCallers] of them.
	Callers []any
}

// MaxCallers is how many calls of a flight are remembered by what
// [Observer.Caller] returns. The others are counted only.
const MaxCallers = 32

// An Outcome is what came of a rebuild.
type Outcome uint8

const (
	// OutcomeValue is a value, or that there is none, for all who waited.
	OutcomeValue Outcome = iota
	// OutcomeFailed is a failure of the load.
	OutcomeFailed
	// OutcomeFenced is a commit that the store refused: something later is
	// there, or the key was invalidated.
	OutcomeFenced
	// OutcomeAbandoned is a load that was given up on: its key was invalidated,
	// or its lease lost, or another process's value came first (Options.Hedge), or
	// the cache was closed.
	OutcomeAbandoned
)

// String returns the word for it: value, failed, fenced or abandoned.
func (o Outcome) String() string { return word(o, "value", "failed", "fenced", "abandoned") }

// A Herd is the calls that one flight has answered in this process.
type Herd struct {
	Key string
	// Callers is how many they are, at least 1.
	Callers int
	// Waited is their waiting time, all added up.
	Waited time.Duration
	// WakeLag is the time from the commit until the last of them had its answer;
	// 0 if there was no commit while they waited. Of this process's own commit
	// it counts from the store's reply. Of another's it counts from the moment
	// that the store's notice names (Notice.Made), or, if the value was found by
	// looking, from its age as the store tells it, which begins with the load's
	// end. Both are before the commit, so that it is rather too long than too
	// short; and it is as exact as the adapter's knowledge of its engine's
	// clock. A lag that would have begun before the flight waited counts from
	// there.
	WakeLag time.Duration
	// Loaded tells that the flight's own load made the answer. Else it came from
	// the store.
	Loaded bool
	// Err is the failure that they were answered with, or nil.
	Err error
}

// An Engine names what is behind a breaker.
type Engine uint8

const (
	// EngineStore is Options.Store.
	EngineStore Engine = iota
	// EngineLocker is Options.Locker.
	EngineLocker
	// EngineWatch is Options.Locker's Watch. While it is down, waiters poll.
	EngineWatch
	// EngineWrites is what Options.Store is given to write: claims, commits and
	// invalidations. While it alone is down, each process loads for itself.
	EngineWrites
)

// String returns the word for it: store, locker, watch or writes.
func (e Engine) String() string { return word(e, "store", "locker", "watch", "writes") }

// A BreakerState is how the breaker before an engine stands.
type BreakerState uint8

const (
	// BreakerClosed lets all calls through.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen lets one through, to see whether the engine is back.
	BreakerHalfOpen
	// BreakerOpen lets none through.
	BreakerOpen
)

// String returns the word for it: closed, half-open or open.
func (s BreakerState) String() string { return word(s, "closed", "half-open", "open") }

// word is a small number's word.
func word[N ~uint8](n N, words ...string) string {
	if int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprint(uint8(n))
}

// observers are the functions that there are, by what they are told.
type observers struct {
	all     []Observer
	hit     []func(context.Context, string)
	serve   []func(context.Context, Serve)
	herd    []func(Herd)
	breaker []func(Engine, BreakerState, BreakerState)
	evict   []func(string, int)
	rebuild bool // somebody is told of rebuilds
	callers bool // somebody is asked about callers
}

func newObservers(all []Observer) observers {
	o := observers{all: slices.Clone(all)}
	for _, by := range o.all {
		if by.Hit != nil {
			o.hit = append(o.hit, by.Hit)
		}
		if by.Serve != nil {
			o.serve = append(o.serve, by.Serve)
		}
		if by.Herd != nil {
			o.herd = append(o.herd, by.Herd)
		}
		if by.Breaker != nil {
			o.breaker = append(o.breaker, by.Breaker)
		}
		if by.Evict != nil {
			o.evict = append(o.evict, by.Evict)
		}
		o.rebuild = o.rebuild || by.Rebuild != nil
		o.callers = o.callers || by.Rebuild != nil && by.Caller != nil
	}
	return o
}

// tell runs an observer's function.
func (e *engine[V]) tell(key string, f func()) {
	if err := fault.Guard(func() error { f(); return nil }); err != nil {
		e.OnError(key, &keyError{"telling an observer of", key, err})
	}
}

// tellHit tells of a call that hit has answered.
//
//go:noinline
func (e *engine[V]) tellHit(ctx context.Context, key string, way Way) {
	e.tellServe(ctx, Serve{Key: key, Way: way})
}

// way is how a call is served that it answers from the near tier.
func (it *item[V]) way(now instant) Way {
	if now < it.freshUntil {
		return WayHit
	}
	return WayStale
}

func (e *engine[V]) tellServe(ctx context.Context, s Serve) {
	if s.Way == WayHit && s.Waited == 0 {
		for _, f := range e.observers.hit {
			e.tell(s.Key, func() { f(ctx, s.Key) })
		}
		return
	}
	for _, f := range e.observers.serve {
		e.tell(s.Key, func() { f(ctx, s) })
	}
}

// tell tells of the waiter's call. Like all that only those need who watch, it
// is not inlined: the frames around it are those that a herd waits on.
//
//go:noinline
func (c *waiter[V]) tell() { c.engine.tellServe(c.ctx, c.served()) }

// served is the end of the waiter's call.
func (c *waiter[V]) served() Serve {
	now := c.engine.clock.now()
	s := Serve{Key: c.key, Way: WayMiss, Waited: now - c.began, Err: c.err}
	it := c.answer.item
	switch {
	case c.err == nil && !c.answer.flown, c.err == nil && it.failures > 0 && now >= it.freshUntil:
		s.Way = it.way(now)
	case c.collapsed:
		s.Way = WayCollapsed
	}
	if c.err == nil && it.kind == KindNotFound {
		s.Err = ErrNotFound
	}
	return s
}

// A request may go through several calls: for what it varies by, and for the
// variant. It is told of once. Of the ways, the one that took most is the
// request's.

// add adds one of its calls to the request's.
func (q *query) add(s Serve) {
	if q.told != nil {
		q.told.Way, q.told.Err = max(q.told.Way, s.Way), s.Err
		q.told.Waited += s.Waited
	}
}

// bypassed is add for a request that is answered by the handler, for itself.
func (q *query) bypassed() { q.add(Serve{Way: WayBypass}) }

// tell tells of the request's end.
func (q *query) tell() { q.m.engine.tellServe(q.r.Context(), *q.told) }

// A herdCount counts the callers of a flight that somebody watches. Each of them
// goes once; the last, or the flight, if that is up for longer, tells.
type herdCount struct {
	aboard   atomic.Int64 // callers that have not gone, and one for the flight
	answered atomic.Int64
	waited   atomic.Int64 // nanoseconds, of these
	last     atomic.Int64 // the instant of the last answer

	// Written by the flight's goroutine before the flight goes.
	loaded bool
	since  instant // the commit, 0 if there was none

	mu    sync.Mutex // guards marks
	marks [][]any    // what each observer's Caller has returned
}

// watch gives a new flight its count, if somebody wants to know. The flight is
// not shared yet.
func (f *flight[V]) watch() {
	if o := &f.engine.observers; len(o.herd) > 0 || o.callers {
		f.herd = &herdCount{}
		f.herd.aboard.Store(1)
	}
}

// introduce asks the observers what they want to remember of a call that has
// collapsed on the flight.
//
//go:noinline
func (f *flight[V]) introduce(ctx context.Context) {
	e, h := f.engine, f.herd
	if !e.observers.callers {
		return
	}
	h.mu.Lock()
	full := len(h.marks) > 0 && slices.ContainsFunc(h.marks, func(m []any) bool { return len(m) >= MaxCallers })
	h.mu.Unlock()
	if full {
		return
	}
	for i, by := range e.observers.all {
		if by.Caller == nil || by.Rebuild == nil {
			continue
		}
		e.tell(f.key, func() {
			mark := by.Caller(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.marks == nil {
				h.marks = make([][]any, len(e.observers.all))
			}
			if len(h.marks[i]) < MaxCallers {
				h.marks[i] = append(h.marks[i], mark)
			}
		})
	}
}

// countAnswer counts a call that its flight has answered.
//
//go:noinline
func (c *waiter[V]) countAnswer() {
	h, now := c.flight.herd, c.engine.clock.now()
	h.answered.Add(1)
	h.waited.Add(int64(now - c.began))
	for last := h.last.Load(); last < int64(now) && !h.last.CompareAndSwap(last, int64(now)); last = h.last.Load() {
	}
}

// gone takes a caller, or the flight itself, off the count. Who joins does so
// while the flight is counted, so it falls to 0 once.
//
//go:noinline
func (f *flight[V]) gone() {
	h, e := f.herd, f.engine
	if h == nil || h.aboard.Add(-1) > 0 || h.answered.Load() == 0 {
		return
	}
	told := Herd{
		Key: f.key, Callers: int(h.answered.Load()), Waited: time.Duration(h.waited.Load()), Loaded: h.loaded,
	}
	if last := instant(h.last.Load()); h.since > 0 {
		told.WakeLag = max(0, last-h.since)
	}
	state := f.state.Load()
	switch err := state.failure(); {
	case err != nil:
		told.Err = err
	case state.result != nil && state.result.judge(instant(h.last.Load())) == fail:
		told.Err = state.result.err
	}
	for _, by := range e.observers.herd {
		e.tell(f.key, func() { by(told) })
	}
}

// A rebuildWatch is what is to be told at the end of a load.
type rebuildWatch struct {
	began  instant
	losses int
	told   Rebuild
	ends   []func(Rebuild) // by observer, nil for those that do not want to know
}

// watchLoad tells of a load that begins now, and returns its context. Whom it has
// told, unwatchLoad tells of the end, also if an observer's Goexit has kept the
// load from beginning.
func (r *run[V]) watchLoad(ctx context.Context) context.Context {
	e := r.engine
	if !e.observers.rebuild {
		return ctx
	}
	w := &rebuildWatch{began: e.clock.now(), losses: r.losses, told: Rebuild{Key: r.key}}
	w.told.Takeover = r.lease != nil && r.waits && !r.freed && r.stood >= r.leaseEnd
	w.ends = make([]func(Rebuild), len(e.observers.all))
	r.watched = w
	watched := ctx
	for i, by := range e.observers.all {
		if by.Rebuild == nil {
			continue
		}
		e.tell(r.key, func() {
			next, end := by.Rebuild(watched, r.key)
			if next != nil {
				watched = next
			}
			w.ends[i] = end
		})
	}
	return context.WithValue(watched, watchedKey{}, watched)
}

// unwatchLoad tells of the end of the load. ended tells whether the flight has
// ended with what it came to.
func (r *run[V]) unwatchLoad(ended bool) {
	w, e := r.watched, r.engine
	if r.watched = nil; w == nil {
		return
	}
	t := &w.told
	t.Took, t.LeaseLost = e.clock.now()-w.began, r.losses > w.losses
	switch {
	case t.Outcome == OutcomeFailed: // a hedge, see hedgeFailed
	case r.fenced:
		t.Outcome = OutcomeFenced
	case !ended || !r.loaded:
		t.Outcome = OutcomeAbandoned
	case r.failure != nil:
		t.Outcome, t.Err = OutcomeFailed, r.failure
	}
	for i, end := range w.ends {
		if end == nil {
			continue
		}
		told := *t
		if h := r.herd; h != nil {
			h.mu.Lock()
			if h.marks != nil {
				told.Callers = slices.Clone(h.marks[i])
			}
			h.mu.Unlock()
		}
		e.tell(r.key, func() { end(told) })
	}
}

// hedgeFailed notes that a hedge's load has failed: its flight goes on without it.
func (r *run[V]) hedgeFailed(err error) {
	if w := r.watched; w != nil {
		w.told.Outcome, w.told.Err = OutcomeFailed, err
	}
}

// watchedKey is the context key of the context that the observers of a rebuild
// have returned.
type watchedKey struct{}

// A watchedContext has the end of one context and the values of another, but
// for one key.
type watchedContext struct {
	context.Context
	values context.Context
	own    any
}

func (c watchedContext) Value(key any) any {
	if key == c.own {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}

// watchedFrom is ctx with the values of the rebuild's context as its observers
// have made it, but for the key own; ctx itself if there are none.
func watchedFrom(ctx, rebuild context.Context, own any) context.Context {
	if watched, ok := rebuild.Value(watchedKey{}).(context.Context); ok {
		return watchedContext{ctx, watched, own}
	}
	return ctx
}
