package bellwether

import (
	"sync/atomic"
	"unsafe"
)

// This file has the counters of a cache. observe.Stats is their snapshot.

type counters struct {
	hits                                       hitCounter
	stale, misses, collapsed, waitTimeouts     atomic.Uint64
	loads, loadFailures, storeHits, waits      atomic.Uint64
	fenced, leasesLost, degraded, engineErrors atomic.Uint64
	hedges                                     atomic.Uint64
	flights                                    atomic.Int64 // not ended yet
	awaitingFirstLook                          atomic.Int64 // flights and batches before their first look
}

// A hitCounter counts on all cores at once: a shared word, or a random one, would cost more than the hit.
type hitCounter struct {
	stripes [64]struct {
		// Two cache lines each, because processors fetch them in pairs.
		n atomic.Uint64
		_ [120]byte
	}
}

// add counts in a stripe chosen by the address of the goroutine's stack. The address stays the same
// from call to call, and seldom has the stripe of a goroutine on another core.
func (c *hitCounter) add() {
	var here byte
	at := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // no stack is smaller than 2 KiB
	c.stripes[at*0x9e3779b97f4a7c15>>58].n.Add(1)
}

func (c *hitCounter) sum() uint64 {
	var n uint64
	for i := range c.stripes {
		n += c.stripes[i].n.Load()
	}
	return n
}
