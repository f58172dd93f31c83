package bellwether

import (
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file is the effect of sweeps on an item: dropped, stale from then on, or none.

// against returns the effect of a log on an item, see [sweeplog.Log.Against].
func (e *engine) against(l *sweeplog.Log, key string, it *items.Item) (gone bool, stale instant) {
	return l.Against(key, it.Position, func() (tags []string, signpost bool) {
		if it.Kind == driver.KindValue {
			tags, signpost = e.traits(it)
		}
		return tags, signpost
	})
}

// afterSweeps returns an item after the sweeps since its load, nil if a sweep has dropped it.
func (e *engine) afterSweeps(key string, it *items.Item) *items.Item {
	return e.afterSweepsIn(e.sweeps.Log(), key, it)
}

// afterSweepsIn is afterSweeps with the log l. The result has its position, so no sweep applies twice.
func (e *engine) afterSweepsIn(l *sweeplog.Log, key string, it *items.Item) *items.Item {
	if it == nil || it.Position >= l.Position() {
		return it
	}
	gone, stale := e.against(l, key, it)
	if stale != forever && it.Kind == driver.KindNotFound && max(it.StaleUntil, it.ErrorUntil) <= it.FreshUntil {
		gone = true // it is never served stale, so a soft sweep leaves nothing of it
	}
	if gone {
		return nil
	}
	spared := *it
	spared.Position, spared.Lifetime = l.Position(), it.StaleFrom(stale)
	return &spared
}
