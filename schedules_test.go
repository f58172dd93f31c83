package bellwether_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// This file is what the random schedules share: their seeds, their rhythm, and who
// must not be served what any more.

// errOrigin is the failure of loads.
var errOrigin = errors.New("origin is broken")

// replay is the one seed that a simulation runs, if it is set.
var replay = flag.Int64("seed", -1, "run a simulation with this seed alone")

// forSeeds runs a simulation with each of the seeds, or with the one that is to
// be replayed.
func forSeeds(t *testing.T, seeds, short uint64, simulate func(t *testing.T, seed uint64)) {
	if testing.Short() {
		seeds = short
	}
	if *replay >= 0 {
		simulate(t, uint64(*replay))
		return
	}
	for seed := range seeds {
		if simulate(t, seed); t.Failed() {
			t.Fatalf("replay with: go test -race -run '^%s$' -args -seed=%d", t.Name(), seed)
		}
	}
}

// lull lets time pass between two steps of a simulation: long, short, until
// nothing moves, or not at all.
func lull(rng *rand.Rand) {
	switch rng.IntN(4) {
	case 0:
		time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
	case 1:
		time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
	case 2:
		synctest.Wait()
	}
}

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
