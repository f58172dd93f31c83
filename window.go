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

	mu   sync.Mutex // guards open, and the members of the open batch
	open *batch     // takes further flights; nil: the next flight opens a batch
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
	w.engine.behind(func() {
		end := time.NewTimer(w.length)
		defer end.Stop()
		select {
		case <-end.C:
		case <-b.complete:
		case <-w.engine.open.Done():
		}
		w.mu.Lock()
		w.closeBatch(b)
		w.mu.Unlock()
	})
}

// closeBatch closes the batch to further flights, unless it is closed. mu is held.
func (w *window) closeBatch(b *batch) {
	if w.open == b {
		w.open = nil
		close(b.complete)
	}
}
