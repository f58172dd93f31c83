package records

import (
	"errors"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
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

// A store that answers, also by a refusal, accepts commits. Failures count for a while.
func TestCommits(t *testing.T) {
	const last = time.Hour
	for _, err := range []error{nil, driver.ErrFenced, driver.ErrTooLarge} {
		var c Commits
		for n := range gate.Trips {
			if c.Fail(last) {
				t.Errorf("%d failures: the next commit is given up", n)
			}
			c.Note(errors.New("down"), last)
		}
		if !c.Fail(last) || c.Fail(last+commitMemory) {
			t.Errorf("after %d failures: Fail is %t, and %v later %t", gate.Trips, c.Fail(last), commitMemory, c.Fail(last+commitMemory))
		}
		if c.Note(err, last); c.Fail(last) {
			t.Errorf("after a commit with %v: the next commit is given up", err)
		}
	}
}

// An origin has recovered with the first success after all loads had failed for long, as of the first failure.
func TestOrigin(t *testing.T) {
	const long = 2 * time.Second
	for _, test := range []struct {
		last time.Duration // of the failures from 1 s on, one each second
		want bool
	}{{0, false}, {time.Second, false}, {2 * time.Second, true}, {5 * time.Second, true}} {
		var o Origin
		for now := time.Second; now <= test.last; now += time.Second {
			if o.Note(false, now, long) {
				t.Errorf("a failure at %v is a recovery", now)
			}
		}
		if got := o.Note(true, test.last+time.Second, long); got != test.want {
			t.Errorf("a success after failures until %v: recovered is %t, want %t", test.last, got, test.want)
		}
		if o.Note(true, time.Hour, long) {
			t.Error("a second success is a recovery too")
		}
	}
}
