package bellwether

import (
	"sync"
	"time"
)

// This file is the batch window: flights that begin in this process within BatchWindow load in one batch.

type window struct {
	engine *engine
	load   commonLoader
	length time.Duration

	mu   sync.Mutex  // guards the fields below, and the members of the open batch
	open *batch      // takes further flights; nil: the next flight opens a batch
	end  *time.Timer // closes the open batch
}

// join adds the waiter to its key's flight, or begins the flight in the open batch. It reports
// whether the waiter has a flight now.
func (w *window) join(c *waiter) bool {
	if !c.ready() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.begin()
	}
	b := w.open
	c.joinFlight(&member{batch: b})
	if len(b.looks) == maxTogether {
		w.closeBatch(b)
	}
	return c.flight != nil
}

// begin opens a batch. mu is held.
func (w *window) begin() {
	b := w.engine.batch(w.load, nil)
	w.open = b
	w.end = time.AfterFunc(w.length, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closeBatch(b)
	})
}

// closeBatch closes the batch to further flights, unless it is closed. mu is held.
func (w *window) closeBatch(b *batch) {
	if w.open == b {
		w.open = nil
		w.end.Stop()
		close(b.complete)
	}
}
