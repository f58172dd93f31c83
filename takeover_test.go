package bellwether_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A key's lease follows its last build. An unknown key's lease follows the median of recent builds.
func TestLease_FollowsTheBuilds(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	synctest.Test(t, func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		origin := &source{}
		c := cacheOf(t, origin.load, bellwether.Options{
			TTL: s, StaleWhileRevalidate: 2 * s, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker},
		})
		// get waits for a build of this duration, and returns its lease's length and renewals.
		get := func(key string, build time.Duration) (time.Duration, []time.Duration) {
			t.Helper()
			origin.set(func(o *source) { o.build = build })
			locker.lengths()
			if _, err := c.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(build + ms) // for a build in the background
			taken, renewed := locker.lengths()
			if len(taken) != 1 {
				t.Fatalf("%d leases for %s", len(taken), key)
			}
			return taken[0], renewed
		}
		for _, step := range []struct {
			build, taken time.Duration
			renewals     int
		}{
			{2 * s, 5 * s, 1},        // the first: the longest, without a known build time
			{100 * ms, 3500 * ms, 0}, // by the last build
			{100 * ms, 500 * ms, 0},  // the floor
			{800 * ms, 500 * ms, 3},  // slower than the last build
			{780 * ms, 1400 * ms, 1}, // 1.75 times the last build: one renewal
			{10 * s, 1365 * ms, 7},
			{1 * s, 5 * s, 0}, // the ceiling
			{980 * ms, 1750 * ms, 1},
		} {
			taken, renewed := get("k", step.build)
			if taken != step.taken || len(renewed) != step.renewals {
				t.Errorf("build of %v: a lease of %v, renewed %v; want %v and %d renewals", step.build, taken, renewed, step.taken, step.renewals)
			}
			if !slices.IsSorted(renewed) {
				t.Errorf("build of %v: renewed %v, shorter than before", step.build, renewed)
			}
			time.Sleep(2 * s) // stale, for a short time
		}
		// unknown keys: the median of the latest builds, 0.1 to 10 s
		if taken, _ := get("cold", s); taken != 1715*ms {
			t.Errorf("the first lease of another key is %v, want 1.715s", taken)
		}
		for i := range 16 {
			get(string(rune('a'+i)), 2*s)
		}
		if taken, _ := get("cold too", s); taken != 3500*ms {
			t.Errorf("after builds of 2 s it is %v, want 3.5s", taken)
		}
	})
}

// If a stale value outlives any takeover, the lease is the longest.
func TestLease_StaleValueOutlivesATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		origin := &source{build: 100 * time.Millisecond}
		c := cacheOf(t, origin.load, bellwether.Options{
			TTL: time.Second, StaleWhileRevalidate: 10 * time.Second, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker},
		})
		for _, sleep := range []time.Duration{2 * time.Second, 8 * time.Second} {
			c.Get(t.Context(), "k")
			time.Sleep(time.Second)
			locker.lengths()
			time.Sleep(sleep)
			c.Get(t.Context(), "k")
			time.Sleep(time.Second)
			want := 5 * time.Second
			if sleep > 5*time.Second {
				want = 500 * time.Millisecond // the window closes before a takeover
			}
			if taken, _ := locker.lengths(); !slices.Equal(taken, []time.Duration{want}) {
				t.Errorf("%v after the load: leases of %v, want %v", sleep, taken, want)
			}
		}
	})
}

// When a holder dies, one process takes over within 7/4 builds, or the shortest lease.
func TestTakeover_InAboutARebuild(t *testing.T) {
	for _, build := range []time.Duration{100 * time.Millisecond, time.Second, 3 * time.Second} {
		for _, cold := range []bool{true, false} {
			for _, done := range []float64{0, .5, .95} {
				everyWay(t, func(t *testing.T, by way) {
					f := newFleet(t, 6, by, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{LeaseTTL: 20 * time.Second}})
					f.origin.build = build
					f.get(1, "before") // in all processes but one as waiters
					key := "before"
					if cold {
						key = "cold"
					} else {
						// The near tiers and the store have no entry any more.
						time.Sleep(time.Minute + time.Second)
					}
					a, others := f.processes[0], f.processes[1:]
					f.origin.set(func(o *source) { o.build = time.Hour })
					dying, die := context.WithCancel(t.Context())
					defer die()
					go a.Get(dying, key)
					synctest.Wait()
					gone := make(chan *outcome)
					f.origin.set(func(o *source) { o.build = build })
					go func() { gone <- callAll(others, 50, key) }()
					time.Sleep(time.Duration(done * float64(build)))
					a.locker.set(blackHole) // dead
					a.store.set(blackHole)
					killed := time.Now()
					got := <-gone
					took := time.Since(killed)
					if got.values["v3"] != 250 {
						t.Fatalf("answers %v, want the takeover's", got.count)
					}
					f.wantLoads(t, 3) // one before, the dead holder's, the takeover's
					lease := max(build*7/4, 500*time.Millisecond)
					if most := lease + lease/64 + build + pollLag(lease+build); took > most {
						t.Errorf("build %v, %v done, cold %v: the value came %v after the crash, want at most %v", build, done, cold, took, most)
					}
				})
			}
		}
	}
}
