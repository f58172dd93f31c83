package bellwether

import (
	"context"
	"fmt"

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

func (s rebuildState) String() string {
	return [...]string{"", "looking", "queueing", "standing", "leading", "waiting", "landed"}[s]
}

// transitions lead from a state and its outcome to the next state. docs/design.md has this table.
var transitions = [stateCount][outcomeCount]rebuildState{
	stateLooking:  {outcomeAnswered: stateLanded, outcomeNothing: stateQueueing},
	stateQueueing: {outcomeAnswered: stateLanded, outcomePlace: stateStanding, outcomeOutdated: stateLooking},
	stateStanding: {outcomeAnswered: stateLanded, outcomeElected: stateLeading, outcomeHeld: stateWaiting, outcomeOutdated: stateLooking},
	stateLeading:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateWaiting:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
}

// rebuild goes from state to state. It returns nil when the flight has landed, and otherwise the error that
// ends the flight. Close, and desertion before the election, end the flight between any two states.
func (r *run) rebuild(ctx context.Context) error {
	defer func() {
		r.declineElection(ctx)
		r.releaseBehind(ctx) // Close may come between the election and leading
	}()
	for s := stateLooking; ; {
		s = transitions[s][r.in(ctx, s)]
		switch {
		case s == stateLanded:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

func (r *run) in(ctx context.Context, s rebuildState) rebuildOutcome {
	if r.engine.onState != nil {
		r.engine.onState(r.key, s.String())
	}
	switch s {
	case stateLooking:
		return r.look(ctx)
	case stateQueueing:
		return r.queue(ctx)
	case stateStanding:
		return r.stand(ctx)
	case stateLeading:
		return r.lead(ctx)
	case stateWaiting:
		return r.awaitHolder(ctx)
	}
	panic(fmt.Sprintf("bellwether: a flight has come to the state %q", s)) // transitions lacks a row
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
