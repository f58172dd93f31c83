package bellwether

import (
	"context"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

// This file calls the observers outside all locks. A hit without observers costs one comparison.

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
