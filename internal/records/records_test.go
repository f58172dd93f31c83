package records

import (
	"testing"
	"time"
)

func TestTimes(t *testing.T) {
	var b Times
	if b.Quicker() != 0 || b.Usual() != 0 || b.Slower() != 0 {
		t.Errorf("of nothing: %v, %v and %v", b.Quicker(), b.Usual(), b.Slower())
	}
	b.Note(0) // too quick for the clock, but known
	if b.Usual() != 1 {
		t.Errorf("of one: %v", b.Usual())
	}
	for n := range time.Duration(many) {
		b.Note((n*7%many + 1) * time.Second) // each of 1 to 16 once
	}
	if b.Quicker() != 5*time.Second || b.Usual() != 9*time.Second || b.Slower() != 12*time.Second {
		t.Errorf("of 1 s to 16 s: %v, %v and %v", b.Quicker(), b.Usual(), b.Slower())
	}
	for range many {
		b.Note(time.Second)
	}
	if b.Slower() != time.Second || b.Usual() != time.Second {
		t.Errorf("%v: what is long ago is not forgotten", b.Slower())
	}
}
