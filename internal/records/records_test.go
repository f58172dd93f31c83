package records

import (
	"testing"
	"time"
)

func TestTimes(t *testing.T) {
	var b Times
	if b.At(Quicker) != 0 || b.At(Usual) != 0 || b.At(Slower) != 0 {
		t.Errorf("of nothing: %v, %v and %v", b.At(Quicker), b.At(Usual), b.At(Slower))
	}
	b.Note(0) // too quick for the clock, but known
	if b.At(Usual) != 1 {
		t.Errorf("of one: %v", b.At(Usual))
	}
	for n := range time.Duration(many) {
		b.Note((n*7%many + 1) * time.Second) // each of 1 to 16 once
	}
	if b.At(Quicker) != 5*time.Second || b.At(Usual) != 9*time.Second || b.At(Slower) != 12*time.Second {
		t.Errorf("of 1 s to 16 s: %v, %v and %v", b.At(Quicker), b.At(Usual), b.At(Slower))
	}
	for range many {
		b.Note(time.Second)
	}
	if b.At(Slower) != time.Second || b.At(Usual) != time.Second {
		t.Errorf("%v: what is long ago is not forgotten", b.At(Slower))
	}
}

// A share of a hedge for each load makes a hedge, unless half of the latest builds were slow.
func TestHedges(t *testing.T) {
	var h Hedges
	take := func(want bool, when string) {
		t.Helper()
		if got := h.Take(); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	take(false, "at first")
	h.Earn(0.5)
	take(false, "after half a share")
	h.Earn(0.5)
	take(true, "after a whole share")
	take(false, "after the only hedge")
	h.Earn(2 * maxHedges)
	for range slowBuilds {
		take(true, "with few slow builds")
		h.Note(true)
	}
	take(false, "with a slow origin")
	for range 9 {
		h.Note(false)
	}
	take(true, "with a quicker origin")
	take(true, "with the last saved hedge")
	take(false, "with no hedge left")
}
