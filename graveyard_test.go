package bellwether_test

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// This file says what random schedules must not see served any more.

// errOrigin is the failure of loads.
var errOrigin = errors.New("origin is broken")

// A graveyard knows of one key from when on each process must not serve a
// version any more.
type graveyard struct {
	mu sync.Mutex // guards what follows
	// dead has for each process the versions' ends, by version; the zero time is none. The
	// slices never change: a call keeps the one that it began with.
	dead map[int][]time.Time
}

// bury has the process not serve the versions up to last from then on.
func (g *graveyard) bury(process, last int, then time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	dead := slices.Clone(g.dead[process])
	dead = append(dead, make([]time.Time, max(0, last+1-len(dead)))...)
	for v := range dead[:last+1] {
		if dead[v].IsZero() || then.Before(dead[v]) {
			dead[v] = then
		}
	}
	if g.dead == nil {
		g.dead = map[int][]time.Time{}
	}
	g.dead[process] = dead
}

// gone is what the process must not serve to a call that begins at the time start.
func (g *graveyard) gone(process int, start time.Time) graves {
	g.mu.Lock()
	defer g.mu.Unlock()
	return graves{g.dead[process], start}
}

// graves are the versions that a call must not be served.
type graves struct {
	dead  []time.Time // see graveyard
	start time.Time   // of the call
}

// of returns when the version died, false if the call may be served it.
func (g graves) of(version int) (died time.Time, dead bool) {
	if version >= len(g.dead) || g.dead[version].IsZero() || g.dead[version].After(g.start) {
		return time.Time{}, false
	}
	return g.dead[version], true
}
