package fleettest

import (
	"fmt"
	"testing"
	"time"
)

// TestNearOff has no near tiers: after an invalidation no process serves the old value to a later call.
func TestNearOff(t *testing.T) {
	Each(t, fleets, func(t *testing.T, kind Kind) {
		rounds := 100
		if testing.Short() {
			rounds = 40
		}
		f := newFleet(t, kind, 3, fleetOptions{TTL: time.Hour, NearTTL: -1, EngineTimeout: patient})
		f.origin.delay.Store(int64(time.Millisecond))
		for round := range rounds {
			want := fmt.Sprint("k#", round+1)
			for _, r := range []report{f.herd("k", 20), f.all(order{Do: "get", Key: "k"})} {
				if noneFailed(t, r); len(r.Values) != 1 || r.Values[want] == 0 {
					t.Fatalf("round %d: got %v, want %s", round, r.Values, want)
				}
			}
			if r := f.workers[round%3].do(order{Do: "invalidate", Key: "k"}); r.Err != "" {
				t.Fatal(r.Err)
			}
		}
		if n := f.origin.count("k"); n != rounds {
			t.Errorf("%d loads in %d rounds", n, rounds)
		}
	})
}
