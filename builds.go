package bellwether

import (
	"time"

	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/records"
)

// This file is what a flight knows of the time of builds: when to expect a value, and when a build is slow.

// buildTime is the expected time of the key's rebuild: as its last took, else by the rank among this process's
// rebuilds. 0: unknown.
func (r *run) buildTime(rank records.Rank) time.Duration {
	if it := r.present; it != nil && it.Build > 0 {
		return it.Build
	}
	return r.engine.builds.At(rank)
}

// minHedge is a holder's least time before a hedge, however quick the key's builds: its value
// also needs time to reach the other processes.
const minHedge = 50 * time.Millisecond

// hedgeAfter is the build time at which the key is hedged, 0 for never. An unknown key counts as slow.
func (r *run) hedgeAfter() time.Duration {
	e := r.engine
	if e.Hedge == 0 {
		return 0
	}
	usual := r.buildTime(records.Slower)
	if usual == 0 {
		return 0
	}
	after := e.Hedge * float64(usual)
	if after >= float64(e.RebuildTimeout) { // a load ends then in any case, and a greater float is no duration
		return max(minHedge, e.RebuildTimeout)
	}
	return max(minHedge, time.Duration(after))
}

func (r *run) built(took time.Duration) {
	e := r.engine
	if after := r.hedgeAfter(); after > 0 {
		e.hedges.Note(took > after)
	}
	e.builds.Note(took)
}

// noteOthersBuild records the build time of a value for which the flight has waited.
func (r *run) noteOthersBuild(it *items.Item) {
	switch {
	case it.Failures > 0 || it.Build <= 0 || !r.waiting.sees(it.Epoch):
	case r.waiting.hedge.tried:
		r.engine.builds.Note(it.Build) // hedge has recorded it as slow
	default:
		r.built(it.Build)
	}
}
