package lockertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file has the cases in which a holder's last call meets a takeover of its lease. An adapter that
// compares in one request and writes in another passes all other cases.

var raceCases = []testCase{
	{"RenewAtTheEnd", renewAtTheEnd},
	{"ReleaseAtTheEnd", releaseAtTheEnd},
}

const (
	// racedTTL is the length of a lease that ends during a race, with a quick engine.
	racedTTL = 40 * time.Millisecond
	// raceEdge is the longest time from a holder's call to the lease's end, a little more than two requests.
	raceEdge = 3 * time.Millisecond
	// racedKeys is the number of concurrent races, whose requests wait for each other: the gaps widen.
	racedKeys = 16
	races     = 12
)

// A race is one lease near its end, and its takers.
type race struct {
	t      *testing.T
	key    string
	holder claim
	takers [2]driver.Locker
}

// runRaces runs many races. Each run of one returns when it has judged the race.
func runRaces(t *testing.T, newLocker func(testing.TB) driver.Locker, run func(race)) {
	holders := []driver.Locker{newLocker(t), newLocker(t)}
	takers := [2]driver.Locker{newLocker(t), newLocker(t)}
	var wg sync.WaitGroup
	for i := range racedKeys {
		wg.Go(func() {
			ttl := racedTTL
			for n := 0; n < races; n++ {
				key := newKey()
				end := time.Now().Add(ttl)
				lease, err := holders[i%len(holders)].TryAcquire(t.Context(), key, ttl)
				if err != nil && !time.Now().Before(end) && ttl < long {
					ttl *= 2 // it was over before its token could be drawn
					n--
					continue
				}
				if err != nil {
					t.Errorf("TryAcquire of a free key: %v", err)
					return
				}
				run(race{t, key, claim{lease, end}, takers})
				if t.Failed() {
					return
				}
			}
		})
	}
	wg.Wait()
}

// take has the takers try for the lease until one has it, or both have tried once more after stop.
func (r race) take(stop <-chan struct{}) driver.Lease {
	taken := make(chan driver.Lease, len(r.takers))
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, taker := range r.takers {
		wg.Go(func() {
			for last := false; ; {
				lease, err := taker.TryAcquire(r.t.Context(), r.key, long)
				if err == nil {
					taken <- lease
					cancel()
					return
				}
				if !errors.Is(err, driver.ErrHeld) {
					r.t.Errorf("TryAcquire: %v", err)
					return
				}
				if last || ctx.Err() != nil {
					return
				}
				select {
				case <-stop:
					last = true
				case <-time.After(100 * time.Microsecond):
				}
			}
		})
	}
	wg.Wait()
	close(taken)
	lease := <-taken
	for other := range taken {
		r.t.Error("two have taken over the lease of one")
		other.Release(r.t.Context())
	}
	return lease
}

func (r race) atTheEdge() {
	time.Sleep(time.Until(r.holder.end) - rand.N(raceEdge)) // a real engine's lease is about to end
}

// renewAtTheEnd renews a lease just as it ends: either it is renewed, or a taker has it.
func renewAtTheEnd(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	runRaces(t, newLocker, func(r race) {
		renewed := make(chan struct{})
		var err error
		go func() {
			defer close(renewed)
			r.atTheEdge()
			err = r.holder.Renew(t.Context(), long)
		}()
		taken := r.take(renewed)
		<-renewed
		switch {
		case err == nil && taken != nil:
			t.Error("a lease was renewed that another has taken over")
		case err != nil && !errors.Is(err, driver.ErrLeaseLost):
			t.Errorf("Renew at the lease's end: %v", err)
		case err == nil:
			if err := r.holder.Release(t.Context()); err != nil {
				t.Errorf("Release of a lease that was renewed at its end: %v", err)
			}
		case taken != nil:
			// Nor did the renewal shorten or prolong the taker's lease.
			if err := taken.Release(t.Context()); err != nil {
				t.Errorf("Release of a lease whose former holder tried to renew it: %v", err)
			}
		}
	})
}

// releaseAtTheEnd releases a lease just as it ends. A taker then keeps it.
func releaseAtTheEnd(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	runRaces(t, newLocker, func(r race) {
		released := make(chan struct{})
		go func() {
			defer close(released)
			r.atTheEdge()
			if err := r.holder.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("Release at the lease's end: %v", err)
			}
		}()
		taken := r.take(t.Context().Done())
		<-released
		if taken == nil {
			return // the engine has failed
		}
		if err := taken.Renew(t.Context(), long); err != nil {
			t.Errorf("Renew of a lease whose former holder has released his: %v", err)
		}
		taken.Release(t.Context())
	})
}
