package slots

import (
	"slices"
	"testing"
	"time"
)

func TestSlots_LookPause(t *testing.T) {
	const most = 16_384
	for _, least := range []time.Duration{250 * time.Millisecond, time.Second} {
		for _, waiting := range []int64{0, 1, 4096, 4097, most - 1, most, 2*most - 1, 2 * most, 100_000, 1_000_000} {
			s := New(1, 1)
			s.queued.Store(waiting)
			pause := s.LookPause(least)
			looks := float64(waiting) / pause.Seconds()
			if looks > most {
				t.Errorf("%d flights look %.0f times a second, want %d at most", waiting, looks, most)
			}
			if pause < least || pause > least && looks < most-1 {
				t.Errorf("%d flights pause for %v, with %.0f looks a second", waiting, pause, looks)
			}
		}
	}
}

func taken(r Request) bool {
	select {
	case <-r.Taken():
		return true
	default:
		return false
	}
}

// A load that waits for another key's rebuild lends it the slot, in whatever order the wait and the demand come.
func TestLoad_LendsItsSlot(t *testing.T) {
	for _, waitFirst := range []bool{true, false} {
		s, d, other := New(1, 10), new(Demand), new(Demand)
		free := s.Try()
		var l Load
		l.Begin(s)
		before, r := s.Request(other), s.Request(d)
		steps := []func(){l.Wait, func() { s.AskedByLoad(d) }}
		if !waitFirst {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			if taken(r) {
				t.Error("the rebuild has a slot that nothing has lent")
			}
			step()
		}
		l.Wait() // a second call of the load
		if !taken(r) || taken(before) {
			t.Errorf("the rebuild has a slot: %v, and a rebuild for which no load waits: %v", taken(r), taken(before))
		}
		r.End()()
		l.Resume()
		l.Resume()
		l.End()
		free()
		if !taken(before) {
			t.Error("a free slot stays without a load")
		}
		before.End()()
		if s.held != 0 || s.waiting != 0 {
			t.Errorf("%d loads have slots and %d of them wait, want none", s.held, s.waiting)
		}
	}
}

// Goroutines that a load leaves behind lend no slot, and take none away.
func TestLoad_CallsAfterTheEnd(t *testing.T) {
	s := New(1, 10)
	free := s.Try()
	var during, after Load
	for _, l := range []*Load{&during, &after} {
		l.Begin(s)
	}
	during.Wait()
	during.End()
	during.Resume()
	after.End()
	after.Wait()
	if s.waiting != 0 {
		t.Errorf("%d loads wait, want none", s.waiting)
	}
	after.Resume()
	if s.waiting != 0 || s.held != 1 {
		t.Errorf("%d loads have slots and %d of them wait, want 1 and 0", s.held, s.waiting)
	}
	free()
}
