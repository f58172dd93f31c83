package bellwether

// This file names what a flight is doing. A test that listens waits for a phase, and not for
// a time.

// A phase is one part of a flight's way.
type phase uint8

const (
	phaseLooking    phase = iota // it reads the store
	phaseQueueing                // it waits for one of the MaxRebuilds
	phaseStanding                // it stands for election
	phaseWatching                // it subscribes to the end of another's lease
	phaseWaiting                 // it waits for another holder's value
	phaseClaiming                // it takes an epoch
	phaseLoading                 // the user's load runs
	phaseStreaming               // callers read what the load is still making
	phaseRenewing                // its lease is renewed beside the load
	phaseCommitting              // it writes the value
	phaseReleasing               // it gives its lease back
	phaseHedging                 // it begins a second load beside a holder
)

// String returns the phase's word.
func (p phase) String() string {
	return [...]string{"looking", "queueing", "standing", "watching", "waiting", "claiming", "loading", "streaming", "renewing", "committing", "releasing", "hedging"}[p]
}

// enter tells a test that the flight of the key is in that phase from now on.
func (e *engine[V]) enter(key string, p phase) {
	if e.entered != nil {
		e.entered(key, p)
	}
}
