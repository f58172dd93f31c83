package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/observe"
)

// This file is what observers hear of a flight. internal/observers calls them.

// leaveHerd takes a caller or the flight off the herd. Code for observers only is not inlined: a herd waits on the
// frames around the code.
//
//go:noinline
func (f *flight) leaveHerd() {
	if f.herd != nil {
		f.herd.Leave(f.failureAt)
	}
}

// failureAt returns the failure with which the flight has answered a caller at an instant, or nil.
func (f *flight) failureAt(at instant) error {
	state := f.state.Load()
	if state.result != nil && judge(&state.result.Lifetime, at) == fail {
		return state.result.Err
	}
	return state.err
}

// watchLoad reports the beginning of a load and returns its context. unwatchLoad reports the end, also if an
// observer's Goexit has kept the load from beginning.
func (r *run) watchLoad(ctx context.Context) context.Context {
	told := observe.Rebuild{Key: r.key}
	told.Takeover = r.leading.lease != nil && r.waiting.holder != nil && !r.waiting.freed && r.standing.asked >= r.waiting.leaseEnd
	if r.watched = r.engine.observers.Rebuild(told); r.watched == nil {
		return ctx
	}
	return r.watched.Begin(ctx, r.engine.clock.Now())
}

// unwatchLoad reports the end of the load. ended is true if the flight has ended with the load's result.
func (r *run) unwatchLoad(a *attempt, ended bool) {
	w := r.watched
	if r.watched = nil; w == nil {
		return
	}
	t := &w.Told
	r.shard.mu.Lock()
	t.LeaseLost = a.lost
	r.shard.mu.Unlock()
	if t.Outcome == observe.OutcomeValue && !(ended && r.loaded) {
		t.Outcome = observe.OutcomeAbandoned
	}
	w.End(r.engine.clock.Now(), r.herd)
}

// tellOutcome is for a load that makes no value for all waiting callers.
func (r *run) tellOutcome(is observe.Outcome, err error) {
	if w := r.watched; w != nil {
		w.Told.Outcome, w.Told.Err = is, err
	}
}
