package bellwether

import (
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/observers"
)

// This file is the rebuild of a flight as its states see it: the run, the data of each state, and the
// outcomes that states return. The states and the way through them are in rebuild.go.

// A run is the state of one flight's rebuild. Only the flight's goroutine uses the fields of a run.
type run struct {
	*flight
	// present is the key's latest known item. It is served if the load fails, and counts the failures. A
	// load has attempt.present.
	present *items.Item
	// storeDown is true if the last look or claim had no answer. The flight then goes on without
	// store and locker: a lease is useless while other processes cannot read the leader's value.
	storeDown bool
	// slot gives the flight's slot of MaxRebuilds back; nil without a slot. A load takes the slot over.
	slot    func()
	planned *lookout.Look // nil: none

	// The data of the states. A state that does a part of another state's work writes the other's struct.
	looking  lookingState
	standing standingState
	waiting  waitingState
	leading  leadingState

	// For observers, see observe.go.
	watched   *observers.Rebuild // the load that observers hear of; nil: none
	loaded    bool               // the flight's own load has made the result
	committed instant            // when the result was committed; 0: never, or before the flight waited
}

type lookingState struct {
	lookedOnce  bool          // the first look has begun
	asked       instant       // when the store was asked in the last look or claim; for a notice, a time before its change
	askedBefore instant       // the value of asked for the look before; after a notice, as asked
	unfitEpoch  uint64        // the epoch of the latest fresh entry that did not answer the flight
	mark                      // found by the last look or claim
	pause       time.Duration // before the next look, see noteVoid; 0: none
}

type standingState struct {
	asked  instant       // when the flight stood for election
	length time.Duration // the length of the requested lease
	// ballot is the Elector's answer in the last look. It is nil after a look without an election,
	// after a fresh entry, and once the flight has acted on the ballot.
	ballot *ballot
}

// A ballot is an Elector's answer without an answering entry. It is silence if lease and held are nil.
type ballot struct {
	lease driver.Lease
	epoch uint64
	held  *driver.HeldError
}

type waitingState struct {
	holder   *driver.HeldError // the present or last holder; nil if the flight has never waited
	since    instant           // when the flight first found a holder
	known    uint64            // the epoch of the store's entry at since
	first    uint64            // the epoch of the first commit seen after since, 0 if none yet
	missing  instant           // the last time at which the first commit's entry was not in the store
	leaseEnd instant           // when the lease ends unless it is renewed
	freed    bool              // the lease was released before leaseEnd
	hedge    hedgeState
}

// sees reports whether the epoch is of a change since the flight began to wait.
func (w *waitingState) sees(epoch uint64) bool { return w.holder != nil && epoch > w.known }

type hedgeState struct {
	at    instant      // when the holder has taken too long; 0: never
	tried bool         // the flight has tried to hedge
	lease driver.Lease // the hedge's lease, nil without a hedge
}

type leadingState struct {
	lease driver.Lease // the flight's lease, nil without one
	epoch uint64       // claimed for the load, or mark.unshared; 0: not yet, or no answer
	again bool         // the flight has led before, in vain
	voids int          // loads that came to nothing, see maxVoid
}

type rebuildOutcome uint8

const (
	outcomeAnswered rebuildOutcome = iota + 1 // the flight has landed, perhaps without an answer
	outcomeNothing                            // no entry answers the flight, or the store is silent
	outcomePlace                              // the flight has a slot of MaxRebuilds
	outcomeElected                            // the flight has the lease, or there is no election
	outcomeHeld                               // another flight has the lease
	outcomeOutdated                           // the last look is void, or the state ended without a result
	outcomeCount
)

func ending(ended bool) rebuildOutcome {
	if ended {
		return outcomeAnswered
	}
	return outcomeOutdated
}

func (r *run) takeFreeSlot() bool {
	if r.slot == nil {
		r.slot = r.slots().Try()
	}
	return r.slot != nil
}

func (r *run) freeSlot() {
	if free := r.slot; free != nil {
		r.slot = nil
		free()
	}
}
