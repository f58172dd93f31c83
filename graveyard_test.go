package bellwether_test

import (
	"errors"
	"slices"
	"sync"
	"time"
)

var errOrigin = errors.New("origin is broken")

// A graveyard records from when on each process must not serve a version of one key.
type graveyard struct {
	mu sync.Mutex // guards the fields below
	// dead has each version's end by process, or zero. Calls keep their slices, so no slice is modified.
	dead map[int][]time.Time
}

// bury records that the process must not serve the versions up to last from then on.
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

// gravesAt returns the versions that the process must not serve to a call that begins at start.
func (g *graveyard) gravesAt(process int, start time.Time) graves {
	g.mu.Lock()
	defer g.mu.Unlock()
	return graves{g.dead[process], start}
}

type graves struct {
	dead  []time.Time // see graveyard
	start time.Time   // of the call
}

// of returns when the version died, or false if the call may be served the version.
func (g graves) of(version int) (died time.Time, dead bool) {
	if version >= len(g.dead) || g.dead[version].IsZero() || g.dead[version].After(g.start) {
		return time.Time{}, false
	}
	return g.dead[version], true
}
