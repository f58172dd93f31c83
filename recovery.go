package bellwether

import (
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what an origin's recovery does for the keys whose loads failed: a pause
// that has grown in an outage is of no more use when the outage is over.

// earlyTryAfter is a failure's, of a key of which that was known. pauses tells whether
// the pause after the failure is ours to choose.
func earlyTryAfter[V any](known *items.Item[V], pauses bool) items.EarlyTry {
	switch {
	case known != nil && known.Failures > 0 && known.Early == items.EarlyTryHad:
		return items.EarlyTryHad
	case pauses:
		return items.EarlyTryDue
	}
	return items.NoEarlyTry
}

// noteLoad takes in how a load has ended. When the origin has recovered, the pauses of
// the failures that the near tier has are over. A process that finds a later failure
// in the store waits as that says, so the fleet tries each key once.
func (e *engine[V]) noteLoad(succeeded bool) {
	now := e.clock.Now()
	if e.ErrorTTL <= 0 || !e.origin.Note(succeeded, now, e.ErrorTTL) {
		return
	}
	e.running.Go(func() {
		e.near.Revise(func(_ string, it *items.Item[V]) *items.Item[V] {
			if it.Early != items.EarlyTryDue || !it.BackingOff(now) {
				return it
			}
			due := *it
			due.RetryAt, due.Early = now, items.EarlyTryHad
			return &due
		})
	})
}
