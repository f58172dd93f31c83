package bellwether

import (
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file says which item the near tier has, how long items live and are trusted, and when failures there end early.

// HoldsNear reports whether the near tier has the item, by its epoch, or without an epoch, as while the store is down,
// by its birth. An item whose life has ended counts as held if the tier has none.
func (e *engine) HoldsNear(key string, it *items.Item) bool {
	there, now := e.near.Get(key)
	if there == nil {
		return it.End() <= now
	}
	return there.Epoch == it.Epoch && (it.Epoch != 0 || there.Born == it.Born)
}

func (e *engine) lifetimeOf(now instant, w items.Windows, key string, epoch uint64) items.Lifetime {
	w.TTL = jittered(w.TTL, e.TTLJitter, key, epoch)
	return items.NewLifetime(now, w)
}

// trustedUntil is the instant until which the near tier trusts the store's answer from the time now.
func (e *engine) trustedUntil(now instant) instant {
	if e.Store == nil {
		return forever
	}
	return durations.Add(e.sweeps.Asked(now), e.NearTTL)
}

// noteLoad records the end of a load. A recovered origin ends the pauses of near failures, which grew in the outage. A
// process that finds a later failure in the store waits for that pause, so the fleet tries each key once.
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

// nearOffTTL is unconfirmedTTL with the near tier off. Otherwise each call in an outage would load its key again.
const nearOffTTL = time.Second

// unconfirmedTTL is how long the process serves an item that no store has confirmed.
func (s *settings) unconfirmedTTL() time.Duration {
	if s.eachCall {
		return nearOffTTL
	}
	return s.NearTTL
}
