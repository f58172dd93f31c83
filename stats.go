package bellwether

import (
	"sync/atomic"
	"unsafe"
)

// This file counts what a cache does.

// counters are the live side of observe.Stats.
type counters struct {
	hits                                       hitCounter
	stale, misses, collapsed, waitTimeouts     atomic.Uint64
	loads, loadFailures, storeHits, waits      atomic.Uint64
	fenced, leasesLost, degraded, engineErrors atomic.Uint64
	hedges                                     atomic.Uint64
	flights                                    atomic.Int64 // that have not ended
}

// A hitCounter counts what happens on every core at once: one shared word, or
// one chosen at random, would cost more than the hit that it counts.
type hitCounter struct {
	stripes [64]struct {
		// Two cache lines each: processors fetch them in pairs.
		n atomic.Uint64
		_ [120]byte
	}
}

// add counts in a stripe chosen by where the goroutine's stack is: the same
// one call after call, and seldom that of a goroutine on another core.
func (c *hitCounter) add() {
	var here byte
	at := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // stacks are no smaller
	c.stripes[at*0x9e3779b97f4a7c15>>58].n.Add(1)
}

func (c *hitCounter) sum() uint64 {
	var n uint64
	for i := range c.stripes {
		n += c.stripes[i].n.Load()
	}
	return n
}
