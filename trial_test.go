package bellwether_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A store that answers reads and takes no claims costs the fleet two time-outs,
// TestFleet_EngineFaults holds. What is no such store is not taken for one.

// One claim of the fleet is lost. Its process goes on without the store, and the
// next has the trial: two loads, and the other processes have the second's value.
func TestTrial_OneClaimLost(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 8, by, bellwether.Options{TTL: time.Minute})
		for round := range 3 {
			var claims atomic.Int32
			f.each(func(p *process) {
				p.store.set(on(func(ctx context.Context, op string) error {
					if claims.Add(1) == 1 {
						return blackHole(ctx, op)
					}
					return nil
				}, "claim"))
			})
			before, _ := f.origin.count()
			got := f.get(5, fmt.Sprint("k", round))
			if loads, _ := f.origin.count(); loads-before != 2 || len(got.failed) > 0 || len(got.values) != 2 {
				t.Errorf("%d loads, want 2: %v", loads-before, got.count)
			}
		}
	})
}

// Claims are slow, and within EngineTimeout: one load for each key.
func TestTrial_SlowClaims(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const keys = 20
		f := newFleet(t, 8, by, bellwether.Options{TTL: time.Minute, EngineTimeout: 500 * time.Millisecond})
		f.each(func(p *process) {
			p.store.set(on(func(ctx context.Context, op string) error {
				select {
				case <-time.After(400 * time.Millisecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}, "claim"))
		})
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if got := f.get(2, fmt.Sprint("k", i)); len(got.failed) > 0 || len(got.values) != 1 {
					t.Errorf("key %d: %v", i, got.count)
				}
			})
		}
		wg.Wait()
		f.wantLoads(t, keys)
	})
}

// The store takes claims again while the lease of the trial that has failed still
// runs: that is for those alone who have waited in vain.
func TestTrial_StoreBack(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 8, by, bellwether.Options{TTL: time.Minute, NearTTL: 10 * time.Millisecond})
		f.each(func(p *process) { p.store.set(on(refuse, "claim")) })
		f.get(5, "k")
		f.each(func(p *process) { p.store.set(nil) })
		if err := f.processes[0].Invalidate(context.Background(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // what the others hold unshared is asked for again
		before, _ := f.origin.count()
		got := f.get(5, "k")
		if loads, _ := f.origin.count(); loads-before != 1 || len(got.failed) > 0 || len(got.values) != 1 {
			t.Errorf("%d loads, want 1: %v", loads-before, got.count)
		}
	})
}
