package bellwether

// This file names the phases of a flight, so that a test can wait for a phase instead of a time.

type phase uint8

const (
	phaseGathering phase = iota // waits for the end of the batch window
	phaseLooking
	phaseQueueing
	phaseStanding
	phaseWatching  // subscribes to the end of another process's lease
	phaseWaiting   // waits for another process's value
	phaseClaiming  // claims an epoch
	phaseLoading   // runs the user's load
	phaseStreaming // callers read the value that the load is still writing
	phaseRenewing  // renews its lease beside the load
	phaseCommitting
	phaseReleasing // releases its lease
	phaseHedging   // begins a second load beside a holder
)

func (p phase) String() string {
	return [...]string{"gathering", "looking", "queueing", "standing", "watching", "waiting", "claiming", "loading", "streaming", "renewing", "committing", "releasing", "hedging"}[p]
}
