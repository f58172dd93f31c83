package bellwether

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

// This file calls the observers outside all locks. A hit without observers costs one comparison.

// observers are the cache's observers, sorted by the functions that they have.
type observers struct {
	all     []observe.Observer
	hit     []func(context.Context, string)
	serve   []func(context.Context, observe.Serve)
	herd    []func(observe.Herd)
	breaker []func(observe.Engine, observe.BreakerState, observe.BreakerState)
	evict   []func(string, int)
	rebuild bool // an observer has Rebuild
	callers bool // an observer has Rebuild and Caller

	detach []func() // written before the cache's first use, and called at its end
}

func newObservers(all []observe.Observer) observers {
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

// attach calls the observers' Attach. After a failure it closes the engine, not yet in use, and panics.
func (e *engine[V]) attach() {
	attached := false
	defer func() {
		if !attached { // an error, or a Goexit
			e.close()
		}
	}()
	for i, by := range e.observers.all {
		if by.Attach == nil {
			continue
		}
		err := fault.Guard(func() error {
			detach, err := by.Attach(e.snapshot)
			if err == nil && detach != nil {
				e.observers.detach = append(e.observers.detach, detach)
			}
			return err
		})
		if err != nil {
			panic(fmt.Errorf("bellwether: Observers[%d] cannot be attached: %w", i, err))
		}
	}
	attached = true
}

// detach calls the results of Attach, the last first.
func (e *engine[V]) detach() {
	for _, detach := range e.observers.detach {
		defer func() { // a Goexit in one must not keep the others from running
			if err := fault.Guard(func() error { detach(); return nil }); err != nil {
				e.OnError("", fmt.Errorf("detaching an observer: %w", err))
			}
		}()
	}
}

func (e *engine[V]) tell(key string, f func()) {
	if err := fault.Guard(func() error { f(); return nil }); err != nil {
		e.OnError(key, &keyError{"telling an observer of", key, err})
	}
}

//go:noinline
func (e *engine[V]) tellHit(ctx context.Context, key string, way observe.Way) {
	e.tellServe(ctx, observe.Serve{Key: key, Way: way})
}

func (e *engine[V]) tellServe(ctx context.Context, s observe.Serve) {
	if s.Way == observe.WayHit && s.Waited == 0 {
		for _, f := range e.observers.hit {
			e.tell(s.Key, func() { f(ctx, s.Key) })
		}
		return
	}
	for _, f := range e.observers.serve {
		e.tell(s.Key, func() { f(ctx, s) })
	}
}

// tell is not inlined, like all code for observers only: a herd waits on the frames around the code.
//
//go:noinline
func (c *waiter[V]) tell() { c.engine.tellServe(c.ctx, c.served()) }

func (c *waiter[V]) served() observe.Serve {
	now := c.engine.clock.Now()
	s := observe.Serve{Key: c.key, Way: observe.WayMiss, Waited: now - c.began, Err: c.err}
	it := c.answer.item
	switch {
	case c.err == nil && !c.answer.flown, c.err == nil && it.Failures > 0 && now >= it.FreshUntil:
		s.Way = it.Way(now)
	case c.collapsed:
		s.Way = observe.WayCollapsed
	}
	if c.err == nil && it.Kind == driver.KindNotFound {
		s.Err = ErrNotFound
	}
	return s
}

// A herdCount counts the callers of an observed flight. Each caller leaves once. The last to leave,
// a caller or the flight itself, reports the herd.
type herdCount struct {
	aboard   atomic.Int64 // callers that have not left, and one for the flight
	answered atomic.Int64
	waited   atomic.Int64 // nanoseconds, of the answered callers
	last     atomic.Int64 // the instant of the last answer

	// Written by the flight's goroutine before the flight leaves.
	loaded bool
	since  instant // the commit, 0: none

	mu    sync.Mutex // guards marks
	marks [][]any    // results of each observer's Caller
}

// countHerd gives a new flight its count, if there are observers for it. The flight is not shared yet.
func (f *flight[V]) countHerd() {
	if o := &f.engine.observers; len(o.herd) > 0 || o.callers {
		f.herd = &herdCount{}
		f.herd.aboard.Store(1)
	}
}

// introduce calls the observers' Caller for a collapsed call.
//
//go:noinline
func (f *flight[V]) introduce(ctx context.Context) {
	e, h := f.engine, f.herd
	if !e.observers.callers {
		return
	}
	h.mu.Lock()
	full := len(h.marks) > 0 && slices.ContainsFunc(h.marks, func(m []any) bool { return len(m) >= observe.MaxCallers })
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
			if len(h.marks[i]) < observe.MaxCallers {
				h.marks[i] = append(h.marks[i], mark)
			}
		})
	}
}

//go:noinline
func (c *waiter[V]) countAnswer() {
	h, now := c.flight.herd, c.engine.clock.Now()
	h.answered.Add(1)
	h.waited.Add(int64(now - c.began))
	for last := h.last.Load(); last < int64(now) && !h.last.CompareAndSwap(last, int64(now)); last = h.last.Load() {
	}
}

// gone takes a caller or the flight off the count, which reaches 0 once: callers join only a counted flight.
//
//go:noinline
func (f *flight[V]) gone() {
	h, e := f.herd, f.engine
	if h == nil || h.aboard.Add(-1) > 0 || h.answered.Load() == 0 {
		return
	}
	told := observe.Herd{
		Key: f.key, Callers: int(h.answered.Load()), Waited: time.Duration(h.waited.Load()), Loaded: h.loaded,
	}
	if last := instant(h.last.Load()); h.since > 0 {
		told.WakeLag = max(0, last-h.since)
	}
	state := f.state.Load()
	switch err := state.failure(); {
	case err != nil:
		told.Err = err
	case state.result != nil && judge(&state.result.Lifetime, instant(h.last.Load())) == fail:
		told.Err = state.result.Err
	}
	for _, by := range e.observers.herd {
		e.tell(f.key, func() { by(told) })
	}
}

// A rebuildWatch is the report of a load, for its end.
type rebuildWatch struct {
	began  instant
	losses int
	told   observe.Rebuild
	ends   []func(observe.Rebuild) // by observer; nil: not called
}

// watchLoad reports the begin of a load and returns its context. unwatchLoad reports the end to the
// same observers, also if an observer's Goexit has kept the load from beginning.
func (r *run[V]) watchLoad(ctx context.Context) context.Context {
	e := r.engine
	if !e.observers.rebuild {
		return ctx
	}
	w := &rebuildWatch{began: e.clock.Now(), losses: r.leading.losses, told: observe.Rebuild{Key: r.key}}
	w.told.Takeover = r.leading.lease != nil && r.waiting.holder != nil && !r.waiting.freed && r.standing.asked >= r.waiting.leaseEnd
	w.ends = make([]func(observe.Rebuild), len(e.observers.all))
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

// unwatchLoad reports the end of the load. ended is true if the flight has ended with the load's result.
func (r *run[V]) unwatchLoad(ended bool) {
	w, e := r.watched, r.engine
	if r.watched = nil; w == nil {
		return
	}
	t := &w.told
	t.Took, t.LeaseLost = e.clock.Now()-w.began, r.leading.losses > w.losses
	switch {
	case t.Outcome == observe.OutcomeFailed: // a hedge, see hedgeFailed
	case r.leading.fenced:
		t.Outcome = observe.OutcomeFenced
	case !ended || !r.loaded:
		t.Outcome = observe.OutcomeAbandoned
	case r.failure != nil:
		t.Outcome, t.Err = observe.OutcomeFailed, r.failure
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

// hedgeFailed notes the failure of a hedge's load: the flight goes on without the hedge.
func (r *run[V]) hedgeFailed(err error) {
	if w := r.watched; w != nil {
		w.told.Outcome, w.told.Err = observe.OutcomeFailed, err
	}
}

// watchedKey is the context key of the context returned by a rebuild's observers.
type watchedKey struct{}

// A watchedContext has the end of one context and the values of another, except for the key own.
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

// watchedFrom returns ctx with the values of the rebuild's observed context, except for the key own.
func watchedFrom(ctx, ofRebuild context.Context, own any) context.Context {
	if watched, ok := ofRebuild.Value(watchedKey{}).(context.Context); ok {
		return watchedContext{ctx, watched, own}
	}
	return ctx
}
