package slots

import (
	"testing"
	"time"
)

// However many flights wait for a slot, they look into the store 16,384 times a second at
// most, and each of them once a second as long as that allows it.
func TestSlots_LookPause(t *testing.T) {
	const most = 16_384
	for _, waiting := range []int64{0, 1, 4096, most - 1, most, 2*most - 1, 2 * most, 100_000, 1_000_000} {
		s := New(1, 1)
		s.queued.Store(waiting)
		pause := s.LookPause()
		if looks := float64(waiting) / pause.Seconds(); looks > most {
			t.Errorf("%d flights look %.0f times a second, want %d at most", waiting, looks, most)
		}
		if waiting < most && pause != time.Second || pause > time.Duration(waiting/most+1)*time.Second {
			t.Errorf("%d flights pause for %v", waiting, pause)
		}
	}
}
