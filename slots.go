package bellwether

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// This file is MaxRebuilds: the slots that rebuilds take, how loads that wait for
// each other share them, and how the flights of a batch share one.

// A slotSource is where a flight takes its slot.
type slotSource interface {
	// try returns the function that gives the slot back, to be called once; nil if
	// there is no slot now.
	try() (free func())
	// wait is try that waits for a slot until ctx ends.
	wait(ctx context.Context, d *demand) (free func())
	// queue counts the flight among those that wait, and reports whether these
	// are not too many. unqueue ends that, also after false.
	queue() bool
	unqueue()
}

// rebuildSlots are the slots of an engine. A load that waits for another key, of any
// cache of this process, holds its slot and needs none: the origin has nothing to do
// for it. So two bounds make one:
//
//   - A rebuild for which no load waits begins while fewer than MaxRebuilds loads hold
//     a slot, waiting or not. Else loads would begin without end while the first are
//     half done.
//   - A rebuild for which a load waits begins while fewer than MaxRebuilds of these
//     loads work. Else MaxRebuilds loads that each ask for another key would wait for
//     themselves until RebuildTimeout.
//
// When every load waits, the second bound lets the next rebuild begin. Two caches
// whose loads ask each other go on in the same way: each load that waits for the other
// cache makes room in its own. No cache uses the slots of another cache, whose origin
// may be another one.
//
// A load that does not wait any longer for the rebuild that it has asked for works
// beside it. Then more than MaxRebuilds loads work, until some of them have ended: as
// many as have waited for each other, and no rebuild begins meanwhile.
type rebuildSlots struct {
	size   int          // MaxRebuilds
	queued atomic.Int64 // flights, and batches, that wait for a slot
	most   int64        // MaxQueued

	mu      sync.Mutex // guards what follows, and a loadContext's waits
	held    int        // the loads that have a slot
	waiting int        // of these, the loads that wait for another key
	asked   list.List  // the *slotRequests for which loads wait, the newest last
	others  list.List  // all other *slotRequests, the newest last
}

// A demand tells who waits for a flight, or for one of a batch.
type demand struct {
	load atomic.Bool // a load does
}

// A slotRequest is one wait for a slot. rebuildSlots.mu guards all but taken.
type slotRequest struct {
	demand *demand
	in     *list.List // the list that has it, nil once it has its slot
	at     *list.Element
	free   func()
	taken  chan struct{} // closed when free is set
}

func (s *rebuildSlots) try() (free func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= s.size || s.asked.Len() > 0 || s.others.Len() > 0 {
		return nil
	}
	return s.take()
}

// take takes a slot. s.mu is held.
func (s *rebuildSlots) take() (free func()) {
	s.held++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held--
		s.dispatch()
	}
}

func (s *rebuildSlots) wait(ctx context.Context, d *demand) (free func()) {
	r := &slotRequest{demand: d, taken: make(chan struct{})}
	s.mu.Lock()
	if d.load.Load() {
		r.enter(&s.asked)
	} else {
		r.enter(&s.others)
	}
	s.dispatch()
	s.mu.Unlock()
	select {
	case <-r.taken:
		return r.free
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.in != nil {
		r.leave()
	}
	return r.free // both at one time
}

func (r *slotRequest) enter(list *list.List) { r.in, r.at = list, list.PushBack(r) }

func (r *slotRequest) leave() {
	r.in.Remove(r.at)
	r.in = nil
}

// dispatch gives slots to those who wait and may have one. s.mu is held.
func (s *rebuildSlots) dispatch() {
	for {
		r := s.next()
		if r == nil {
			return
		}
		r.leave()
		r.free = s.take()
		close(r.taken)
	}
}

// next is the request that gets a slot now, nil if none does. Of the requests that
// loads wait for it is the newest: so a tree of loads goes on in its depth, and each
// level of it has no more than MaxRebuilds of them half done. s.mu is held.
func (s *rebuildSlots) next() *slotRequest {
	if newest := s.asked.Back(); newest != nil && s.held-s.waiting < s.size {
		return newest.Value.(*slotRequest)
	}
	if oldest := s.others.Front(); oldest != nil && s.held < s.size {
		return oldest.Value.(*slotRequest)
	}
	return nil
}

// byLoad tells that a load waits for the demand's flight.
func (s *rebuildSlots) byLoad(d *demand) {
	if d.load.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.others.Front(); at != nil; {
		r := at.Value.(*slotRequest)
		if at = at.Next(); r.demand == d {
			r.leave()
			r.enter(&s.asked)
		}
	}
	s.dispatch()
}

// begin counts a load that waits for another key; resume ends that. A load that waits
// for several keys at one time is one.
func (s *rebuildSlots) begin(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if load.waits++; load.waits == 1 && !load.ended.Load() {
		s.waiting++
		s.dispatch()
	}
}

func (s *rebuildSlots) resume(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if load.waits--; load.waits == 0 && !load.ended.Load() {
		s.waiting--
	}
}

// end is called before a load gives its slot back. Its goroutines may go on behind that.
func (s *rebuildSlots) end(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !load.ended.Swap(true) && load.waits > 0 {
		s.waiting--
	}
}

// lookPause is the pause between the looks into the store of one flight that waits: a
// second for up to 16,383 of them. Beyond that it grows, so that all of them make at
// most 16,384 looks a second. Else a slot would come to a flight whose look waits
// behind those of all others, and stay without a load.
func (s *rebuildSlots) lookPause() time.Duration {
	return lookPause * time.Duration(1+s.queued.Load()>>14)
}

func (s *rebuildSlots) queue() bool { return s.queued.Add(1) <= s.most }
func (s *rebuildSlots) unqueue()    { s.queued.Add(-1) }

// A sharedSlot is one slot for many holders. It is taken when the first of them
// asks and given back when the last has freed it; then it may be taken again.
type sharedSlot struct {
	from    *rebuildSlots
	running *sync.WaitGroup // for the goroutine that waits for it

	mu sync.Mutex // guards hand
	// hand is the present taking of it, nil if there are no holders.
	hand *slotHand
}

// A slotHand is one taking of a shared slot.
type slotHand struct {
	of *sharedSlot
	// holders are those who have it, or wait for it; guarded by of.mu.
	holders int
	taken   chan struct{} // closed when it is there
	free    func()        // guarded by of.mu: gives it back; nil until it is there
	abandon func()        // ends the wait for it
	spent   bool          // guarded by batch.mu: a load has taken it
}

// ownSlot is the hand of one holder on a slot that free gives back; nil if free
// is.
func ownSlot(free func()) *slotHand {
	if free == nil {
		return nil
	}
	h := &slotHand{of: &sharedSlot{}, holders: 1, free: free, abandon: func() {}}
	h.of.hand = h
	return h
}

func (s *sharedSlot) try() *slotHand {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.hand == nil:
		free := s.from.try()
		if free == nil {
			return nil
		}
		s.hand = &slotHand{of: s, taken: make(chan struct{}), free: free, abandon: func() {}}
		close(s.hand.taken)
	case s.hand.free == nil:
		return nil
	}
	s.hand.holders++
	return s.hand
}

// wait is try that waits until ctx ends. However many wait, one does so at the
// engine: the others would only stand in its way.
func (s *sharedSlot) wait(ctx context.Context, d *demand) *slotHand {
	s.mu.Lock()
	h := s.hand
	if h == nil {
		waiting, abandon := context.WithCancel(context.Background())
		h = &slotHand{of: s, taken: make(chan struct{}), abandon: abandon}
		s.hand = h
		s.running.Go(func() { h.take(s.from.wait(waiting, d)) })
	}
	h.holders++
	s.mu.Unlock()
	select {
	case <-h.taken:
		return h
	case <-ctx.Done():
		h.release()
		return nil
	}
}

// take gives the slot to those who wait for it, or back if nobody is left.
func (h *slotHand) take(free func()) {
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

// hold adds a holder. The caller is one.
func (h *slotHand) hold() {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.holders++
}

func (h *slotHand) release() {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.holders--; h.holders > 0 {
		return
	}
	h.of.hand = nil
	h.abandon()
	if h.free != nil {
		h.free()
	}
}
