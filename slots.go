package bellwether

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// This file is MaxRebuilds: the slots that rebuilds take, and how the flights of
// a batch share one.

// A slotSource is where a flight takes its slot.
type slotSource interface {
	// try returns what gives the slot back, to be called once; nil if there is
	// no slot now.
	try() (free func())
	// wait is try that waits for one until ctx ends, of the loads that wait for
	// theirs too from when nested has ended.
	wait(ctx, nested context.Context) (free func())
	// queue counts the flight among those that wait, and reports whether these
	// are not too many. unqueue ends that, also after false.
	queue() bool
	unqueue()
}

// rebuildSlots are the slots of an engine.
type rebuildSlots struct {
	free   *semaphore.Weighted // MaxRebuilds
	queued atomic.Int64        // flights, and batches, that wait for one
	most   int64               // MaxQueued

	mu      sync.Mutex    // guards what follows, and a loadContext's waits and ended
	offered int           // the loads that have a slot and wait for another key of their cache
	lent    int           // the flights that have borrowed one of these slots
	settled int           // those whose loan was to end, and which have got a slot of their own
	changed chan struct{} // closed when there may be one more to borrow; nil unless somebody waits for that
}

func (s *rebuildSlots) try() (free func()) {
	if !s.free.TryAcquire(1) {
		return nil
	}
	return s.release
}

func (s *rebuildSlots) wait(ctx, nested context.Context) (free func()) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var loan func()
	asked := make(chan struct{})
	unheard := context.AfterFunc(nested, func() {
		defer close(asked)
		if loan = s.borrow(ctx); loan != nil {
			stop()
		}
	})
	own := s.free.Acquire(ctx, 1) == nil
	if !unheard() {
		stop()
		<-asked
	}
	switch {
	case !own:
		return loan
	case loan != nil: // both at one time
		loan()
	}
	return s.release
}

// borrow waits for the slot of a load that waits itself, until ctx ends. Without it,
// MaxRebuilds loads that each ask their own cache for another key would wait for
// themselves until RebuildTimeout, and all other keys with them. There are no more
// loans than loads that wait, so that those that do not are no more than MaxRebuilds.
// Where a load goes on before a loan has ended, because another has made what it
// waited for, there is one too many, until that ends or a slot is free: none begins
// before. As a load on a loan offers that in its turn, it never comes to it that
// all wait.
func (s *rebuildSlots) borrow(ctx context.Context) (giveBack func()) {
	for {
		s.mu.Lock()
		if s.lent < s.offered {
			s.lent++
			s.mu.Unlock()
			return s.giveBack
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// offer lets others borrow the slot of a load that waits; withdraw ends that. A load
// that waits for several keys at one time has one slot to offer.
func (s *rebuildSlots) offer(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if load.waits++; load.waits == 1 && !load.ended {
		s.offered++
		s.tell()
	}
}

func (s *rebuildSlots) withdraw(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if load.waits--; load.waits == 0 && !load.ended {
		s.offered--
		// With a slot that is free already, which the next load would take beside it.
		if s.lent > s.offered && s.free.TryAcquire(1) {
			s.lent--
			s.settled++
		}
	}
}

// end is called before a load gives its slot back. It may go on behind that.
func (s *rebuildSlots) end(load *loadContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if load.ended = true; load.waits > 0 {
		s.offered--
	}
}

// tell wakes those who wait for something to borrow. s.mu is held.
func (s *rebuildSlots) tell() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// giveBack ends a loan, or frees the slot of its own that it has got meanwhile.
func (s *rebuildSlots) giveBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settled > 0 && s.lent <= s.offered {
		s.settled--
		s.free.Release(1)
		return
	}
	s.lent--
	s.tell()
}

// release frees a slot, or settles a loan with it that was to end.
func (s *rebuildSlots) release() {
	s.mu.Lock()
	settles := s.lent > s.offered
	if settles {
		s.lent--
		s.settled++
	}
	s.mu.Unlock()
	if !settles {
		s.free.Release(1)
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

// A nesting tells whether a load of the same cache waits for a flight, or for one of a
// batch. engine.mu guards it.
type nesting struct {
	is   bool
	ctx  context.Context // ends when it is; nil if nobody has asked for it
	tell context.CancelFunc
}

func (n *nesting) set() {
	n.is = true
	if n.tell != nil {
		n.tell()
	}
}

func (n *nesting) context() context.Context {
	if n.ctx == nil {
		n.ctx, n.tell = context.WithCancel(context.Background())
		if n.is {
			n.tell()
		}
	}
	return n.ctx
}

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
func (s *sharedSlot) wait(ctx, nested context.Context) *slotHand {
	s.mu.Lock()
	h := s.hand
	if h == nil {
		waiting, abandon := context.WithCancel(context.Background())
		h = &slotHand{of: s, taken: make(chan struct{}), abandon: abandon}
		s.hand = h
		s.running.Go(func() { h.take(s.from.wait(waiting, nested)) })
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
