package bellwether

import (
	"context"
	"fmt"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file is the protocol: the states of a rebuild, and the table that leads from each state and its
// outcome to the next state. A flight looks into the store. If the store has nothing fresh, the flight
// takes one of the MaxRebuilds and stands for election. Elected, it leads: it claims an epoch, loads,
// commits and releases. Otherwise it waits for the value of the process that was elected.

// A rebuildState is one part of a rebuild. Its method does its work and returns an outcome.
type rebuildState uint8

const (
	stateLooking  rebuildState = iota + 1 // reads the store
	stateQueueing                         // takes one of the MaxRebuilds
	stateStanding                         // stands for election
	stateLeading                          // claims, loads, commits and releases
	stateAlone                            // loads a value that the store does not take
	stateWaiting                          // waits for another process
	stateLanded                           // the callers have their answer
	stateGivenUp                          // the callers begin anew, if they have time
	stateCount
)

// String returns the state's word.
func (s rebuildState) String() string {
	return [...]string{"", "looking", "queueing", "standing", "leading", "alone", "waiting", "landed", "given up"}[s]
}

// A rebuildOutcome is the result of a state.
type rebuildOutcome uint8

const (
	outcomeAnswered rebuildOutcome = iota + 1 // the flight has ended with an answer
	outcomeNothing                            // the store has no answer for the flight
	outcomePlace                              // the flight has one of the MaxRebuilds
	outcomeElected                            // it has the lease, or there is no election
	outcomeUnshared                           // the store has said that it does not take the key's value
	outcomeHeld                               // another process has the lease
	outcomeOutdated                           // the last look no longer counts, or the state came to nothing
	outcomeTimeIsUp                           // the flight has waited for MaxWait
	outcomeCount
)

// String returns the outcome's words.
func (o rebuildOutcome) String() string {
	return [...]string{"", "answered", "nothing", "a place", "elected", "unshared", "held", "outdated", "time is up"}[o]
}

// transitions lead from a state and its outcome to the next state. docs/design.md has the same table.
var transitions = [stateCount][outcomeCount]rebuildState{
	stateLooking:  {outcomeAnswered: stateLanded, outcomeNothing: stateQueueing},
	stateQueueing: {outcomeAnswered: stateLanded, outcomePlace: stateStanding, outcomeOutdated: stateLooking},
	stateStanding: {outcomeAnswered: stateLanded, outcomeElected: stateLeading, outcomeUnshared: stateAlone, outcomeHeld: stateWaiting, outcomeOutdated: stateLooking},
	stateLeading:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateAlone:    {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateWaiting:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking, outcomeTimeIsUp: stateGivenUp},
}

// rebuild goes from state to state until the flight has ended with an item, or returns the error that
// ends it. Close, and the end of all callers before the election, end it between any two states.
func (r *run[V]) rebuild(ctx context.Context) error {
	r.began = r.engine.clock.Now()
	defer r.looked()
	defer func() {
		r.declineElection(ctx)
		r.releaseBehind(ctx) // Close may come between the election and leading
	}()
	for s := stateLooking; ; {
		switch {
		case s == stateLanded:
			return nil
		case s == stateGivenUp:
			return errAgain
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		s = transitions[s][r.in(ctx, s)]
	}
}

// in does the work of a state.
func (r *run[V]) in(ctx context.Context, s rebuildState) rebuildOutcome {
	switch s {
	case stateLooking:
		return r.lookOnce(ctx)
	case stateQueueing:
		return r.queue(ctx)
	case stateStanding:
		return r.stand(ctx)
	case stateLeading:
		return r.lead(ctx)
	case stateAlone:
		return r.loadAlone(ctx)
	case stateWaiting:
		return r.awaitHolder(ctx)
	}
	panic(fmt.Sprintf("bellwether: a flight has come to the state %q", s)) // transitions lacks a row
}

// ending is the outcome of a state that has ended the flight, or else of one that came to nothing.
func ending(ended bool) rebuildOutcome {
	if ended {
		return outcomeAnswered
	}
	return outcomeOutdated
}

// A run is one flight's way through the protocol. It is used by the flight's
// goroutine alone.
type run[V any] struct {
	*flight[V]
	// storeDown tells that the store did not answer when it was last asked. The flight then
	// goes on without store and locker: a lease is of no use to those who cannot see the
	// value it protects.
	storeDown bool
	// slot gives one of the MaxRebuilds back; it is nil while the flight has
	// none. A load that begins takes it over. While waitForSlot waits for it, it
	// is not the flight's goroutine's.
	slot  func()
	began instant // when the rebuild began
	// planned is the next look of a flight that waits, nil if it plans none.
	planned *plannedLook

	// What the states know. A state writes its own; the others read it.
	looking  lookingState
	standing standingState
	waiting  waitingState
	leading  leadingState

	// For those who watch, see observe.go.
	watched   *rebuildWatch
	loaded    bool    // the flight's last word is a load's of its own
	failure   error   // of that
	committed instant // when what the flight ends with was committed, 0 if that was not while it waited
}

// maxRefused is after how many loads that came to nothing, their commits
// refused or their keys invalidated, a flight's value goes to those callers
// who asked before its load began, and to nobody else. A store that refuses
// everything is none; and a key that is invalidated again during each load
// would never answer.
const maxRefused = 5

// fly runs the flight to its end, whatever the engines' adapters do.
func (f *flight[V]) fly(ctx context.Context) {
	stack.Grow()
	r := &run[V]{flight: f}
	if f.doubts != nil {
		f.engine.running.Go(func() { f.answerDoubts(ctx) })
	}
	fault.Run(func() error {
		f.member.begin(r)
		return r.rebuild(ctx)
	}, func(err error) { r.endRun(ctx, err) })
}

// endRun ends the flight, unless it has landed, with err, and gives back what the run has.
func (r *run[V]) endRun(ctx context.Context, err error) {
	defer func() {
		r.freeSlot()
		defer r.freeHedge(ctx)
		defer r.member.end()
		r.end(err)
		if r.herd != nil {
			r.herd.loaded, r.herd.since = r.loaded, r.committed
			r.gone() // an observer's Goexit may end the goroutine here
		}
	}()
	if panicked, ok := err.(*PanicError); ok { // an adapter's: a load's ends the flight as its failure
		r.engine.OnError(r.key, panicked) // which may not return
	}
}

// noAnswer is the engine's, unless Close, or the end of all callers, has ended the call.
func (r *run[V]) noAnswer(ctx context.Context, doing string, err error) {
	if r.engine.open.Err() == nil && ctx.Err() == nil {
		r.engine.noAnswer(r.key, &keyError{doing, r.key, err})
	}
}

// A keyError says what was being done to which key.
type keyError struct {
	doing string
	key   string
	err   error
}

func (e *keyError) Error() string { return fmt.Sprintf("%s %q: %v", e.doing, e.key, e.err) }
func (e *keyError) Unwrap() error { return e.err }
