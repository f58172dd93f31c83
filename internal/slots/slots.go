// Package slots bounds a cache's concurrent loads (MaxRebuilds) and rebuilds that wait for a slot
// (MaxQueued). Loads that wait for each other share slots.
package slots

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

// A Source is where a rebuild takes its slot: a cache's Slots, or a batch that shares one.
type Source interface {
	// Try returns the function that gives the slot back, to be called once; nil: there is no slot now.
	Try() (free func())
	// Request is Try that waits for a slot.
	Request(d *Demand) Request
	// Queue counts the rebuild as waiting until Unqueue, and reports whether MaxQueued allows it.
	Queue() bool
	Unqueue()
}

// A Request is a wait for a slot. End it once.
type Request interface {
	// Taken returns a channel that is closed when the slot is there.
	Taken() <-chan struct{}
	// End ends the wait. It returns the function that gives back a slot that has come, or nil.
	End() (free func())
}

// Slots are the slots of a cache. A load that waits for another key, of any cache of this process,
// holds its slot without using the origin. So MaxRebuilds has two bounds:
//
//   - A rebuild for which no load waits begins while fewer than size loads hold a slot, waiting or
//     not. Otherwise loads would begin without end while the first loads are half done.
//   - A rebuild for which a load waits begins while fewer than size loads work. Otherwise size
//     loads that each ask for another key would wait for each other until RebuildTimeout.
//
// When every load waits, the second bound lets the next rebuild begin. Two caches whose loads ask
// each other continue in the same way: each load that waits for the other cache makes room in its
// own. No cache uses the slots of another cache, which may have another origin.
//
// A load that stops waiting for its rebuild works beside that rebuild. Then more than size loads work,
// as many more as have waited for each other, until some of them end. No rebuild begins meanwhile.
//
// Slots are safe for concurrent use.
type Slots struct {
	size   int
	queued atomic.Int64 // rebuilds, and batches, that wait for a slot
	most   int64        // of queued

	mu      sync.Mutex // guards the fields below, and each Load's calls
	held    int        // loads with a slot
	waiting int        // loads with a slot that wait for another key: from 0 to held
	asked   list.List  // *requests for which loads wait, the newest last
	others  list.List  // all other *requests, the newest last
}

// New returns size free slots, for which maxQueued rebuilds may wait.
func New(size, maxQueued int) *Slots {
	return &Slots{size: size, most: int64(maxQueued)}
}

// A Demand reports whether a load waits for a rebuild or a batch. The zero Demand reports false.
type Demand struct{ load atomic.Bool }

// ByLoad reports whether a load waits.
func (d *Demand) ByLoad() bool { return d.load.Load() }

// A request is a Request of slots. slots.mu guards all fields except slots and taken.
type request struct {
	slots  *Slots
	demand *Demand
	in     *list.List // the list with the request, nil with a slot
	at     *list.Element
	free   func()
	taken  chan struct{} // closed when free is set
}

// Try implements [Source]. A rebuild waits only while size loads hold a slot, see dispatch.
func (s *Slots) Try() (free func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= s.size {
		return nil
	}
	return s.take()
}

// take takes a slot. s.mu is held.
func (s *Slots) take() (free func()) {
	s.held++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held--
		s.dispatch()
	}
}

// Request is Try that waits for a slot.
func (s *Slots) Request(d *Demand) Request {
	r := &request{slots: s, demand: d, taken: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ByLoad() {
		r.enter(&s.asked)
	} else {
		r.enter(&s.others)
	}
	s.dispatch()
	return r
}

func (r *request) Taken() <-chan struct{} { return r.taken }

func (r *request) End() (free func()) {
	r.slots.mu.Lock()
	defer r.slots.mu.Unlock()
	if r.in != nil {
		r.leave()
	}
	return r.free
}

func (r *request) enter(list *list.List) { r.in, r.at = list, list.PushBack(r) }

func (r *request) leave() {
	r.in.Remove(r.at)
	r.in = nil
}

// dispatch gives slots to the requests that may have one. s.mu is held.
func (s *Slots) dispatch() {
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

// next returns the request that gets a slot now, or nil. Of the requests for which loads wait, the newest is
// first: a tree of loads is built depth first, with at most size loads half done per level. s.mu is held.
func (s *Slots) next() *request {
	if newest := s.asked.Back(); newest != nil && s.held-s.waiting < s.size {
		return newest.Value.(*request)
	}
	if oldest := s.others.Front(); oldest != nil && s.held < s.size {
		return oldest.Value.(*request)
	}
	return nil
}

// AskedByLoad notes that a load waits for the demand's rebuild.
func (s *Slots) AskedByLoad(d *Demand) {
	if d.load.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.others.Front(); at != nil; {
		r := at.Value.(*request)
		if at = at.Next(); r.demand == d {
			r.leave()
			r.enter(&s.asked)
		}
	}
	s.dispatch()
}

// Queue counts a rebuild as waiting until Unqueue, and reports whether they are at most maxQueued.
func (s *Slots) Queue() bool { return s.queued.Add(1) <= s.most }

// Unqueue is the reverse of Queue.
func (s *Slots) Unqueue() { s.queued.Add(-1) }

const looksASecond = 1 << 14

// LookPause is the pause between two looks into the store by a rebuild that waits for a slot: least,
// or longer to keep all waiting rebuilds within 16,384 looks a second. Otherwise a rebuild could get
// a slot while its look waits behind all others' looks, and the slot would stay without a load.
func (s *Slots) LookPause(least time.Duration) time.Duration {
	return max(least, (time.Duration(s.queued.Load())*time.Second+looksASecond-1)/looksASecond)
}

// A Load is a load that holds a slot.
type Load struct {
	slots *Slots
	calls int         // guarded by slots.mu: the load's calls that wait for other keys
	ended atomic.Bool // set with slots.mu held
}

// Begin makes l a load with a slot of s.
func (l *Load) Begin(s *Slots) { l.slots = s }

// Wait notes that a call of the load waits for another key, until Resume. The load waits while one of its calls does.
func (l *Load) Wait() {
	l.slots.mu.Lock()
	defer l.slots.mu.Unlock()
	if l.calls++; l.calls == 1 && !l.ended.Load() {
		l.slots.waiting++
		l.slots.dispatch()
	}
}

// Resume is the reverse of Wait.
func (l *Load) Resume() {
	l.slots.mu.Lock()
	defer l.slots.mu.Unlock()
	if l.calls--; l.calls == 0 && !l.ended.Load() {
		l.slots.waiting--
	}
}

// End comes before the load gives its slot back. Goroutines of the load may go on, and no longer count.
func (l *Load) End() {
	l.slots.mu.Lock()
	defer l.slots.mu.Unlock()
	if !l.ended.Swap(true) && l.calls > 0 {
		l.slots.waiting--
	}
}

// Ended reports whether End was called.
func (l *Load) Ended() bool { return l.ended.Load() }
