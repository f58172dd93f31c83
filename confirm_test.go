package bellwether_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
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
		exits := true
		p.store.set(on(func(context.Context, string) error {
			if exits {
				exits = false
				runtime.Goexit()
			}
			return nil
		}, "get"))
		time.Sleep(4 * time.Second)
		if exits {
			t.Fatal("no confirmation: the test tests nothing")
		}
		start := time.Now()
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(start) > 0 {
			t.Errorf("Get = %q, %v after %v, want the stale value at once", v, err, time.Since(start))
		}
	})
}
