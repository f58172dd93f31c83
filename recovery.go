package bellwether

import (
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the recovery of an origin. The pauses of its failed keys, which grew in the outage, end.

// earlyTryAfter is the EarlyTry of a failure beside the item known. pauses: the pause is ours to choose.
func earlyTryAfter(known *items.Item, pauses bool) items.EarlyTry {
	switch {
	case known != nil && known.Failures > 0 && known.Early == items.EarlyTryHad:
		return items.EarlyTryHad
	case pauses:
		return items.EarlyTryDue
	}
	return items.NoEarlyTry
}

// noteLoad records the end of a load. A recovered origin ends the pauses of near failures. A process that
// finds a later failure in the store waits for that pause, so the fleet tries each key once.
func (e *engine) noteLoad(succeeded bool) {
	now := e.clock.Now()
	if e.ErrorTTL <= 0 || !e.origin.Note(succeeded, now, e.ErrorTTL) {
		return
	}
	e.start(func() {
		e.near.Revise(func(_ string, it *items.Item) *items.Item {
			if it.Early != items.EarlyTryDue || !it.BackingOff(now) {
				return it
			}
			due := *it
			due.RetryAt, due.Early = now, items.EarlyTryHad
			return &due
		})
	})
}
