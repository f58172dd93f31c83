package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file is the protocol: the states of a rebuild, and the transitions between them. A flight looks into
// the store, queues for a slot of MaxRebuilds and stands for election. The elected flight claims an epoch,
// loads, commits and releases. The other flights wait for its value.

type rebuildState uint8

const (
	stateLooking  rebuildState = iota + 1 // reads the store
	stateQueueing                         // takes a slot of MaxRebuilds
	stateStanding                         // stands for election
	stateLeading                          // claims, loads, commits and releases
	stateWaiting                          // waits for the lease's holder: another process, or a void stream of this process
	stateLanded                           // the flight has ended; callers that it does not answer begin a new flight
	stateCount
)

type transitions [outcomeCount]rebuildState

// states are the states with their work, and with the next state after each outcome. docs/design.md has this table.
var states = [stateCount]struct {
	name string
	work func(*run, context.Context) rebuildOutcome
	next transitions
}{
	stateLooking:  {"looking", (*run).look, transitions{outcomeAnswered: stateLanded, outcomeNothing: stateQueueing}},
	stateQueueing: {"queueing", (*run).queue, transitions{outcomeAnswered: stateLanded, outcomePlace: stateStanding, outcomeOutdated: stateLooking}},
	stateStanding: {"standing", (*run).stand, transitions{outcomeAnswered: stateLanded, outcomeElected: stateLeading, outcomeHeld: stateWaiting, outcomeOutdated: stateLooking}},
	stateLeading:  {"leading", (*run).lead, transitions{outcomeAnswered: stateLanded, outcomeOutdated: stateLooking}},
	stateWaiting:  {"waiting", (*run).awaitHolder, transitions{outcomeAnswered: stateLanded, outcomeOutdated: stateLooking}},
	stateLanded:   {name: "landed"},
}

// rebuild goes from state to state. It returns nil when the flight has landed, and otherwise the error that
// ends the flight. Close, and desertion before the election, end the flight between any two states.
func (r *run) rebuild(ctx context.Context) error {
	defer func() {
		r.declineElection(ctx)
		r.releaseBehind(ctx) // Close may come between the election and leading
	}()
	for s := stateLooking; ; {
		if r.engine.onState != nil {
			r.engine.onState(r.key, states[s].name)
		}
		s = states[s].next[states[s].work(r, ctx)]
		switch {
		case s == stateLanded:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

// runToEnd runs the flight to its end, also after a panic or Goexit of an adapter.
func (f *flight) runToEnd() {
	stack.Grow()
	r := &run{flight: f}
	fault.Run(func() error { return r.rebuild(f.ctx) }, func(err error) { r.endRun(f.ctx, err) })
}

// endRun ends the flight with err, unless it has landed. It frees the slot and the hedge's lease.
func (r *run) endRun(ctx context.Context, err error) {
	defer func() {
		r.freeSlot()
		defer r.freeHedge(ctx)
		defer r.member.end()
		r.end(err)
		if r.herd != nil {
			r.herd.Loaded, r.herd.Since = r.loaded, r.committed
			r.leaveHerd() // an observer's Goexit may end the goroutine here
		}
	}()
	if panicked, ok := err.(*PanicError); ok { // an adapter's panic: a load's panic is the load's failure
		r.engine.OnError(r.key, panicked) // may call Goexit
	}
}
