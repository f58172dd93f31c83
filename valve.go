package bellwether

import (
	"math/rand/v2"
	"time"
)

// This file is the valve of MaxRebuilds, for handlers that fetch a part of their own
// site over HTTP. No context leads from the handler to the request for the part. Where
// such handlers hold all slots, the requests wait for a slot, and the handlers for the
// requests.

const (
	// stall is how long all slots are held, and no load ends, before the valve opens.
	stall = 25 * time.Millisecond
	// probes is the part of MaxRebuilds that a stall lets in.
	probes = 8
	// mostOpen bounds the loads at one time, as a multiple of MaxRebuilds.
	mostOpen = 32
)

// A valve lets loads begin beyond MaxRebuilds in a stall: all slots are held, and none of
// the loads ends. Nobody knows then whether the loads wait for each other, or for a slow
// origin. So a few more loads are let in. If a greater part of these end than of the first
// ones, the first have waited for them, and the valve opens wide. Behind a slow
// origin the first loads are the first to end, and no more than those few are let in.
//
// rebuildSlots.mu guards it.
type valve struct {
	works bool          // false: MaxRebuilds is exact
	timer *time.Timer   // looks for a stall; nil while nobody waits for a slot
	pause time.Duration // between the looks in a stall
	moved time.Time     // when a load ended last
	extra int           // the loads beyond MaxRebuilds that may run; 0: the valve is shut
	first *valveLoads   // those that ran when the valve was opened
	since *valveLoads   // those that began since then
}

// valveLoads are some loads. Those that have ended are among those that have begun.
type valveLoads struct{ begun, ended int }

// watch has an eye on the slots while somebody waits for one. s.mu is held.
func (s *rebuildSlots) watch() {
	if v := &s.valve; v.works && v.timer == nil && s.others.Len() > 0 {
		v.pause = stall
		v.timer = time.AfterFunc(stall, s.check)
	}
}

// check opens the valve in a stall, or opens it further. Its pauses double, so that a slow
// origin gets few more loads.
func (s *rebuildSlots) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.valve
	if s.others.Len() == 0 {
		v.timer = nil
		return
	}
	if left := stall - time.Since(v.moved); left > 0 {
		v.pause = stall
		v.timer.Reset(left)
		return
	}
	if v.extra == 0 || v.first.ended == v.first.begun {
		v.first, v.since = &valveLoads{begun: s.held}, &valveLoads{}
	}
	v.extra = max(v.extra, s.held-s.size+s.probes())
	v.timer.Reset(v.pause)
	v.pause *= 2
	s.dispatch()
}

func (s *rebuildSlots) probes() int { return max(1, s.size/probes) }

// ended notes the end of a load. s.mu is held.
func (s *rebuildSlots) ended(of *valveLoads) {
	v := &s.valve
	v.moved = time.Now()
	if v.extra == 0 {
		return
	}
	if of != v.since {
		of = v.first
	}
	of.ended++
	if v.since.ended*v.first.begun > v.first.ended*v.since.begun {
		v.extra = (mostOpen - 1) * s.size
	} else {
		v.extra = min(v.extra, s.probes())
	}
}

// likely is a request for a slot that loads may wait for: in half of the cases that with
// the most callers, of equals the newest, and else any. A part that many pages share has
// many callers, and the part of one page is what was asked for last, unless more pages
// were asked for since; then chance finds it. s.mu is held.
func (s *rebuildSlots) likely() *slotRequest {
	var found *slotRequest
	most, skip := int64(-1), -1
	if s.others.Len() > 0 && rand.IntN(2) == 0 {
		skip = rand.IntN(s.others.Len())
	}
	for at := s.others.Back(); at != nil; at = at.Prev() {
		r := at.Value.(*slotRequest)
		if skip--; skip == -1 {
			return r
		}
		if n := r.demand.calls.Load(); n > most {
			most, found = n, r
		}
	}
	return found
}
