package slots

import (
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
