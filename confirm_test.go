package bellwether_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Callers get the stale value after Patience also while the flight waits for a silent locker for longer than NearTTL.
func TestStand_StaleBesideASilentLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near := bellwether.Fleet{NearTTL: 200 * time.Millisecond, EngineTimeout: 2 * time.Second}
		f := newFleet(t, 1, push, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: near})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		p.locker.set(func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		for range 40 {
			start := time.Now()
			if v, err := p.Get(t.Context(), "k"); err != nil || time.Since(start) > 0 {
				t.Errorf("Get = %q, %v after %v", v, err, time.Since(start))
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// An adapter that ends the goroutine of a confirmation does not end the confirmations: callers get the stale value.
func TestOffer_ConfirmationThatExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second}})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
		p.Get(t.Context(), "k") // begins the rebuild
		var exited atomic.Bool
		p.store.set(on(func(context.Context, string) error {
			if exited.CompareAndSwap(false, true) {
				runtime.Goexit()
			}
			return nil
		}, "get"))
		time.Sleep(4 * time.Second)
		if !exited.Load() {
			t.Fatal("no confirmation: the test tests nothing")
		}
		start := time.Now()
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(start) > 0 {
			t.Errorf("Get = %q, %v after %v, want the stale value at once", v, err, time.Since(start))
		}
	})
}

// An offer whose trust ends early, because the log of sweeps was read before the item, is confirmed in time.
func TestOffer_ConfirmedBeforeItsTrustEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const near = 2 * time.Second
		var slow atomic.Bool
		c := cacheOf(t, func(_ context.Context, key string) (string, error) {
			if slow.Load() && key == "k" {
				time.Sleep(20 * time.Second)
			}
			return "v", nil
		}, bellwether.Options{
			TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour, Sweeps: true,
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), NearTTL: near},
		})
		c.Get(t.Context(), "k")
		time.Sleep(15 * time.Second)
		slow.Store(true)
		c.Get(t.Context(), "other") // the log is read now
		time.Sleep(near * 45 / 100)
		c.Get(t.Context(), "k") // begins the rebuild
		for i := range 150 {
			go func() {
				start := time.Now()
				if v, err := c.Get(t.Context(), "k"); v != "v" || time.Since(start) > 0 {
					t.Errorf("after %d ms Get = %q, %v in %v", i*20, v, err, time.Since(start))
				}
			}()
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Minute)
	})
}
