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
	stateAlone                            // loads a value that stays in this process
	stateWaiting                          // waits for the lease's holder: another process, or a void stream of this process
	stateLanded                           // the flight has ended; callers that it does not answer begin a new flight
	stateGivenUp                          // callers with time left begin a new flight
	stateCount
)

func (s rebuildState) String() string {
	return [...]string{"", "looking", "queueing", "standing", "leading", "alone", "waiting", "landed", "given up"}[s]
}

type rebuildOutcome uint8

const (
	outcomeAnswered rebuildOutcome = iota + 1 // the flight has ended with an answer
	outcomeNothing                            // no entry answers the flight, or the store is silent
	outcomePlace                              // the flight has a slot of MaxRebuilds
	outcomeElected                            // the flight has the lease, or there is no election
	outcomeUnshared                           // the store has a KindUnshared entry for the key
	outcomeHeld                               // another flight has the lease
	outcomeOutdated                           // the last look is void, or the state ended without a result
	outcomeTimeIsUp                           // as outcomeHeld, but the flight has lasted for MaxWait before this wait
	outcomeCount
)

func (o rebuildOutcome) String() string {
	return [...]string{"", "answered", "nothing", "a place", "elected", "unshared", "held", "outdated", "time is up"}[o]
}

// transitions lead from a state and its outcome to the next state. docs/design.md has this table.
var transitions = [stateCount][outcomeCount]rebuildState{
	stateLooking:  {outcomeAnswered: stateLanded, outcomeNothing: stateQueueing},
	stateQueueing: {outcomeAnswered: stateLanded, outcomePlace: stateStanding, outcomeOutdated: stateLooking},
	stateStanding: {outcomeAnswered: stateLanded, outcomeElected: stateLeading, outcomeUnshared: stateAlone, outcomeHeld: stateWaiting, outcomeOutdated: stateLooking},
	stateLeading:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateAlone:    {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateWaiting:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking, outcomeTimeIsUp: stateGivenUp},
}

// rebuild goes from state to state. It returns nil when the flight has landed, and otherwise the error that
// ends the flight. Close, and desertion before the election, end the flight between any two states.
func (r *run[V]) rebuild(ctx context.Context) error {
	r.began = r.engine.clock.Now()
	defer r.discount()
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

func ending(ended bool) rebuildOutcome {
	if ended {
		return outcomeAnswered
	}
	return outcomeOutdated
}

// A run is the state of one flight's rebuild. Only the flight's goroutine uses the fields of a run,
// except leading.load, which shard.mu guards as flight.current.
type run[V any] struct {
	*flight[V]
	// storeDown is true if the last look or claim had no answer. The flight then goes on without
	// store and locker: a lease is useless while other processes cannot read the leader's value.
	storeDown bool
	// slot gives the flight's slot of MaxRebuilds back; nil without a slot. A load takes the slot over.
	slot    func()
	began   instant
	planned *plannedLook

	// The data of the states. A state that does a part of another state's work writes the other's struct.
	looking  lookingState
	standing standingState
	waiting  waitingState
	leading  leadingState

	// For observers, see observe.go.
	watched   *rebuildWatch
	loaded    bool    // the flight's own load has made the result
	failure   error   // the failure of this load, nil if it succeeded
	committed instant // when the result was committed; 0 if not while the flight waited
}

// maxRefused is the number of void loads (fenced at the commit, or invalidated since the last look or claim) with
// which a flight ends. The last value then answers the callers that asked before its load: otherwise endless
// refusals or invalidations would leave all callers without an answer.
const maxRefused = 5

// runToEnd runs the flight to its end, also after a panic or Goexit of an adapter.
func (f *flight[V]) runToEnd(ctx context.Context) {
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

// endRun ends the flight with err, unless it has landed. It frees the slot and the hedge's lease.
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
	if panicked, ok := err.(*PanicError); ok { // an adapter's panic: a load's panic is the load's failure
		r.engine.OnError(r.key, panicked) // may call Goexit
	}
}

// noAnswer reports an engine's silence. The end of the call by Close or desertion is not silence.
func (r *run[V]) noAnswer(ctx context.Context, doing string, err error) {
	if r.engine.open.Err() == nil && ctx.Err() == nil {
		r.engine.noAnswer(r.key, &keyError{doing, r.key, err})
	}
}

type keyError struct {
	doing string
	key   string
	err   error
}

func (e *keyError) Error() string { return fmt.Sprintf("%s %q: %v", e.doing, e.key, e.err) }
func (e *keyError) Unwrap() error { return e.err }
