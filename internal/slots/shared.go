package slots

import (
	"context"
	"sync"
)

// A Shared is a slot for many holders: the first takes it, and the last gives it back. A load that takes
// the slot for itself leaves the next holder another slot.
type Shared struct {
	from    *Slots
	running *sync.WaitGroup

	mu   sync.Mutex // guards hand
	hand *Hand      // the taking that further holders join, nil if there is none
}

// A Hand is a taking of a shared slot.
type Hand struct {
	of      *Shared
	holders int           // guarded by of.mu: the rebuilds with the slot, or waiting for it, and the load
	taken   chan struct{} // closed when the slot is there
	free    func()        // guarded by of.mu: gives the slot back; nil until it is there
	abandon func()        // ends the wait for the slot
}

// Share returns a slot of s to be shared. running counts the goroutine that waits for the slot.
func (s *Slots) Share(running *sync.WaitGroup) *Shared { return &Shared{from: s, running: running} }

// Try adds a holder if the slot is taken, or can be taken now. Otherwise it returns nil.
func (s *Shared) Try() *Hand {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.hand == nil:
		free := s.from.Try()
		if free == nil {
			return nil
		}
		s.hand = &Hand{of: s, taken: make(chan struct{}), free: free, abandon: func() {}}
		close(s.hand.taken)
	case s.hand.free == nil:
		return nil
	}
	s.hand.holders++
	return s.hand
}

// Request adds a holder that waits for the slot. All holders share one request: several would compete.
func (s *Shared) Request(d *Demand) *Hand {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hand
	if h == nil {
		waiting, abandon := context.WithCancel(context.Background())
		h = &Hand{of: s, taken: make(chan struct{}), abandon: abandon}
		s.hand = h
		s.running.Go(func() { h.take(Await(waiting, s.from.Request(d))) })
	}
	h.holders++
	return h
}

// Taken returns a channel that is closed when the slot is there.
func (h *Hand) Taken() <-chan struct{} { return h.taken }

// End ends a holder's wait. It returns nil, and removes the holder, without a slot.
func (h *Hand) End() *Hand {
	select {
	case <-h.taken:
		return h
	default:
		h.Release()
		return nil
	}
}

// take gives the slot to the holders, or back if no holder is left.
func (h *Hand) take(free func()) {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.holders == 0 {
		if free != nil {
			free()
		}
		return
	}
	h.free = free
	close(h.taken)
}

// Spend takes the slot for a load, which is a further holder: the next rebuild takes another slot. The caller
// is a holder, and no load has taken the slot.
func (h *Hand) Spend() {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.holders++
	h.of.hand = nil
}

// Spent reports whether a load has taken the slot. The caller is a holder.
func (h *Hand) Spent() bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	return h.of.hand != h
}

// Release removes a holder. The last holder gives the slot back.
func (h *Hand) Release() {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.holders--; h.holders > 0 {
		return
	}
	if h.of.hand == h { // otherwise a load has taken the slot
		h.of.hand = nil
	}
	h.abandon()
	if h.free != nil {
		h.free()
	}
}
