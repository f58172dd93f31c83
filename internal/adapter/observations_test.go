package adapter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestObservations_CountFromTheFirstSight(t *testing.T) {
	type lease struct {
		token    string
		length   time.Duration
		renewals int
	}
	synctest.Test(t, func(t *testing.T) {
		var o Observations[lease]
		start := time.Now()
		v := lease{token: "a", length: time.Second}
		look := func(what string, v lease, want time.Duration) {
			t.Helper()
			if got := o.Until("item", v, v.length).Sub(start); got != want {
				t.Errorf("%s: until %v, want %v", what, got, want)
			}
			if got := o.Last("item").Sub(start); got != want {
				t.Errorf("%s: the last until was %v, want %v", what, got, want)
			}
		}
		if got := o.Last("item"); !got.IsZero() {
			t.Errorf("the last until of what was never seen was %v", got)
		}
		look("first sight", v, time.Second)
		time.Sleep(600 * time.Millisecond)
		look("unchanged", v, time.Second)
		v.renewals++
		look("renewed", v, 1600*time.Millisecond)
		v.length = 2 * time.Second
		look("another length", v, 2600*time.Millisecond)
		v.token = "b"
		time.Sleep(time.Second)
		look("another holder", v, 3600*time.Millisecond)
		time.Sleep(time.Minute)
		look("expired", v, 3600*time.Millisecond)
		o.Forget("item")
		if got := o.Last("item"); !got.IsZero() {
			t.Errorf("the last until of what was forgotten was %v", got)
		}
		look("seen anew", v, 63600*time.Millisecond)
	})
}

func TestObservations_AreBounded(t *testing.T) {
	var o Observations[string]
	first := o.Until("0", "a", time.Minute)
	for i := range 5 * maxObserved {
		if got := o.Until("0", "a", time.Minute); !got.Equal(first) {
			t.Fatalf("the lease in use was forgotten after %d others", i)
		}
		if got := o.Last("0"); !got.Equal(first) {
			t.Fatalf("the last look at the lease in use was forgotten after %d others", i)
		}
		o.Until(fmt.Sprint(i), "a", time.Minute)
		if got := len(o.young) + len(o.old); got > 2*maxObserved {
			t.Fatalf("%d leases are remembered, want no more than %d", got, 2*maxObserved)
		}
	}
}

// TestObservations_ManyDeadLeases polls the leases of a dead fleet in turn: each end is recognised.
func TestObservations_ManyDeadLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Observations[string]
		const dead = 5 * fewObserved
		recognised := 0
		for range 4 {
			for i := range dead {
				if until := o.Until(fmt.Sprint(i), "a", 2*time.Second); !time.Now().Before(until) {
					recognised++
					o.Forget(fmt.Sprint(i))
				}
			}
			time.Sleep(time.Second)
		}
		if recognised < dead {
			t.Errorf("the ends of %d of %d dead leases were recognised", recognised, dead)
		}
	})
}

// TestObservations_EndedLeasesAreForgotten sees bursts of leases, each after the last one's end.
func TestObservations_EndedLeasesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Observations[string]
		const burst = fewObserved / 4
		for i := range 40 * burst {
			o.Until(fmt.Sprint(i), "a", time.Second)
			if got := len(o.young) + len(o.old); got > 2*(fewObserved+burst) {
				t.Fatalf("%d leases are remembered, want no more than %d", got, 2*(fewObserved+burst))
			}
			if i%burst == 0 {
				time.Sleep(2 * time.Second)
			}
		}
	})
}
