package bellwether

import (
	"math"

	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file is the effect of an invalidation on the values that this process is making meanwhile.

// A witness counts the events that make work on a key void: an invalidation, here or by a notice, a Set
// in this process, a sweep, or a Fencer's word. The worker takes the generation when it begins, and
// its result counts while the generation is the same. shard.mu guards all fields.
type witness struct {
	flight     *flight  // the flight that makes the value, nil if none; never changes
	next       *witness // another witness of the same key
	generation uint64
	voided     uint64 // the latest epoch of the key's invalidations and Sets since the work began
}

// epoch is the epoch of the work. Earlier invalidations and Sets do not count. 0, without a load: all count. shard.mu
// is held.
func (w *witness) epoch() uint64 {
	if w.flight == nil || w.flight.current == nil {
		return 0
	}
	return w.flight.current.epoch
}

// addWitness adds a witness for a key. s is locked.
func (s *shard) addWitness(key string, w *witness) {
	w.next = s.witnesses[key]
	s.witnesses[key] = w
}

// removeWitness removes a witness, and reports whether it was there. s is locked.
func (s *shard) removeWitness(key string, w *witness) bool {
	before, at := (*witness)(nil), s.witnesses[key]
	for at != nil && at != w {
		before, at = at, at.next
	}
	switch {
	case at == nil:
		return false
	case before != nil:
		before.next = w.next
	case w.next != nil:
		s.witnesses[key] = w.next
	default:
		delete(s.witnesses, key)
	}
	return true
}

// beginWitness returns a witness for a value without a flight. End it with endWitness.
func (e *engine) beginWitness(key string) *witness {
	w, s := &witness{}, e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addWitness(key, w)
	return w
}

func (e *engine) endWitness(key string, w *witness) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeWitness(key, w)
}

func (e *engine) voidAll(key string) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.voidKey(s, key, math.MaxUint64)
}

// voidKey drops the key's item, and makes work on the key void. Later epochs stay. s is locked.
func (e *engine) voidKey(s *shard, key string, epoch uint64) {
	if it, _ := e.near.Get(key); it != nil && it.Epoch <= epoch {
		e.near.Delete(key)
	}
	for w := s.witnesses[key]; w != nil; w = w.next {
		w.voided = max(w.voided, epoch)
		if w.epoch() <= epoch {
			w.generation++
		}
	}
	f := s.flights[key]
	if f == nil {
		return
	}
	f.validSince = e.clock.Now()
	if f.witness.epoch() <= epoch {
		f.withdrawStale(epoch)
		f.interrupt()
	}
}

// outdated reports whether the flight's work since its last look is void. shard.mu is held.
func (f *flight) outdated() bool { return f.witness.generation != f.lookGeneration }

// renewLook begins the flight's next look, which no earlier invalidation makes void. It reports
// whether there was one since the last look.
func (f *flight) renewLook() (outdated bool) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	return f.renewLookLocked()
}

func (f *flight) renewLookLocked() (outdated bool) {
	outdated = f.outdated()
	f.lookGeneration, f.current = f.witness.generation, nil
	return outdated
}

// repeat comes before the looks after a failed load. The failure will repeat the value that a look
// finds. So a Set during the look or later makes the failure void, although the Set may have claimed
// before the flight. Invalidations still count from the flight's epoch: the look comes after the claim,
// and finds nothing from before an earlier invalidation.
func (f *flight) repeat() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.current.repeats = true
}

// void is outdated for the flight's goroutine, which holds no lock.
func (f *flight) void() bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	return f.outdated()
}

// withdrawStale takes back an offer up to the epoch, and voids the callers' own stale items. shard.mu is held.
func (f *flight) withdrawStale(epoch uint64) {
	f.change(func(s *flightState) {
		if s.invalidated = true; s.offered != nil && s.offered.Epoch <= epoch {
			s.offered = nil
		}
	})
}

// interrupt ends the flight's load, which has become void. shard.mu is held.
func (f *flight) interrupt() {
	switch {
	case f.streaming():
		// Clients that are already reading a response keep it. No more callers join them.
		f.unlist()
	case f.current != nil && !f.current.last:
		f.current.abort(fault.ErrInvalidated)
	}
}
