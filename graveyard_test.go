package bellwether_test

import (
	"errors"
	"sync"
	"time"
)

// This file says what random schedules must not see served any more.

// errOrigin is the failure of loads.
var errOrigin = errors.New("origin is broken")

// A graveyard knows of one key from when on each process must not serve a
// version any more.
type graveyard struct {
	mu   sync.Mutex // guards what follows
	dead map[int]map[int]time.Time
}

// bury has the process not serve the versions up to last from then on.
func (g *graveyard) bury(process, last int, then time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead == nil {
		g.dead = map[int]map[int]time.Time{}
	}
	if g.dead[process] == nil {
		g.dead[process] = map[int]time.Time{}
	}
	for v := range last + 1 {
		if was, ok := g.dead[process][v]; !ok || then.Before(was) {
			g.dead[process][v] = then
		}
	}
}

// gone is what the process must not serve to a call that begins now.
func (g *graveyard) gone(process int) map[int]time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	gone := map[int]time.Time{}
	for v, then := range g.dead[process] {
		if time.Since(then) >= 0 {
			gone[v] = then
		}
	}
	return gone
}
