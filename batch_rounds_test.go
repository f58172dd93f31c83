package bellwether_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// slowElections is a locker whose elections for a key of keys take d.
func slowElections(d time.Duration, keys ...string) *wiredLocker {
	locker := wiredLocks(locallock.New())
	locker.only = func(key string) bool { return slices.Contains(keys, key) }
	locker.set(on(takes(d), "acquire"))
	return locker
}

// A key that is too late for the load of its slot queues for another slot. RebuildTimeout is for its load alone.
func TestGetMany_LateKeyHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: 700 * time.Millisecond}
		c := batchCache(t, origin.load, bellwether.Options{
			RebuildTimeout: time.Second, Limits: bellwether.Limits{MaxRebuilds: 1},
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: polling(slowElections(100*time.Millisecond, "late"))},
		})
		getAll(t, c, []string{"early", "late"})
		origin.wantLoads(t, "early", "late")
	})
}

// A key without a place in a round holds no lease: another process loads it meanwhile, and the queueing flight
// looks.
func TestGetMany_LateKeyIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: 3 * time.Second}
		store, locker := memstore.New(), slowElections(100*time.Millisecond, "late")
		o := bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, Fleet: bellwether.Fleet{Store: store, Locker: polling(locker)}}
		p := batchCache(t, origin.load, o)
		o.Fleet.Locker = polling(wiredLocks(locker.locker))
		q := batchCache(t, origin.load, o)
		var states []string
		p.OnState(func(key, state string) {
			if key == "late" {
				states = append(states, state)
			}
		})
		var other sync.WaitGroup
		other.Go(func() {
			time.Sleep(200 * time.Millisecond)
			origin.set(func(o *batchSource) { o.build = time.Second })
			start := time.Now()
			wantValue(t, q, "late", "late v2")
			wantTook(t, start, time.Second)
		})
		values, err := p.GetMany(t.Context(), []string{"early", "late"})
		if values["late"] != "late v2" || err != nil {
			t.Errorf("GetMany = %q, %v", values, err)
		}
		other.Wait()
		if want := []string{"looking", "queueing", "standing", "leading", "looking", "queueing"}; !slices.Equal(states, want) {
			t.Errorf("states %q, want %q", states, want)
		}
		origin.wantLoads(t, "early", "late")
	})
}

// The time of a common load begins for all its keys when the load begins.
func TestGetMany_TimeOfARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gap = 19 * time.Millisecond // less than the least lull
		origin := &batchSource{build: 900 * time.Millisecond}
		locker := wiredLocks(locallock.New())
		var n atomic.Int32
		locker.set(on(func(context.Context, string) error { time.Sleep(time.Duration(n.Add(1)) * gap); return nil }, "acquire"))
		var took []time.Duration
		c := batchCache(t, origin.load, bellwether.Options{
			RebuildTimeout: time.Second, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: polling(locker)},
			Observers: []observe.Observer{{Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
				return ctx, func(r observe.Rebuild) {
					origin.set(func(*batchSource) { took = append(took, r.Took) })
				}
			}}},
		})
		start := time.Now()
		getAll(t, c, manyKeys(10))
		wantTook(t, start, 10*gap+900*time.Millisecond)
		synctest.Wait()
		if slices.Max(took) != 900*time.Millisecond || len(took) != 10 {
			t.Errorf("the rebuilds took %v", took)
		}
	})
}

// A Set or an invalidation after a key's claim, and before the common load, sends the key to look again.
func TestGetMany_ChangeBeforeTheRound(t *testing.T) {
	for name, change := range map[string]struct {
		do   func(t *testing.T, c *bellwether.Cache[string]) error
		want string // Request.Previous
	}{
		// The Set claims before the key's flight, and commits after the flight's claim.
		"Set":        {func(t *testing.T, c *bellwether.Cache[string]) error { return c.Set(t.Context(), "k", "set") }, "set"},
		"Invalidate": {func(t *testing.T, c *bellwether.Cache[string]) error { return c.Invalidate(t.Context(), "k") }, ""},
		"a soft sweep": {func(t *testing.T, c *bellwether.Cache[string]) error {
			return c.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"k"}, Soft: true})
		}, "first"},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			var changed atomic.Bool
			load := func(_ context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
				results := map[string]bellwether.Result[string]{}
				for _, r := range requests {
					if changed.Load() && r.Key == "k" && r.Previous != change.want {
						t.Errorf("a load from after the change has the previous value %q, want %q", r.Previous, change.want)
					}
					results[r.Key] = bellwether.Result[string]{Value: "first", Validator: "1"}
				}
				return results, nil
			}
			c := bellwether.NewBatchLoader(load, named(bellwether.Options{
				TTL: time.Second, Sweeps: true, Fleet: bellwether.Fleet{Store: store, Locker: polling(slowElections(15*time.Millisecond, "slow"))},
			}))
			defer c.Close()
			c.Get(t.Context(), "k")
			time.Sleep(2 * time.Second)
			store.set(on(takes(20*time.Millisecond), "commit", "invalidate"))
			go func() {
				if err := change.do(t, c); err != nil {
					t.Error(err)
				}
				changed.Store(true)
			}()
			time.Sleep(10 * time.Millisecond)
			getMany, err := c.GetMany(t.Context(), []string{"k", "slow"})
			if err != nil || len(getMany) != 2 || !changed.Load() {
				t.Errorf("GetMany = %q, %v; the change has returned: %t", getMany, err, changed.Load())
			}
		})
	}
}

// A common load does not wait for the observers of its keys.
func TestGetMany_SlowObserverOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		c := batchCache(t, origin.load, bellwether.Options{Observers: []observe.Observer{{
			Rebuild: func(ctx context.Context, key string) (context.Context, func(observe.Rebuild)) {
				if key == "a" {
					time.Sleep(5 * time.Second)
				}
				return ctx, func(observe.Rebuild) {}
			},
		}}})
		start := time.Now()
		go c.GetMany(t.Context(), []string{"a", "b"})
		synctest.Wait()
		wantValue(t, c, "b", "b v1")
		wantTook(t, start, time.Second)
		time.Sleep(time.Minute)
		origin.wantLoads(t, "a b")
	})
}

// A key keeps its lease while it waits for the other keys of its load. If the lease is lost, the load begins without
// the key.
func TestGetMany_LeaseLostBeforeTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const first, second = 1200 * time.Millisecond, 1500 * time.Millisecond
		origin := &batchSource{build: time.Second}
		inner := slowElections(first, "k")
		var renewals atomic.Int32
		inner.set(func(ctx context.Context, op string) error {
			switch {
			case op == "acquire":
				return takes(first)(ctx, op)
			case op == "renew" && renewals.Add(1) == 1: // due at once: the election took long
				return driver.ErrLeaseLost
			}
			return nil
		})
		outer := slowElections(second, "slow")
		outer.locker = inner
		c := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{
			EngineTimeout: 2 * time.Second, LeaseTTL: 3 * time.Second, Store: memstore.New(), Locker: polling(outer),
		}})
		getAll(t, c, []string{"k", "slow"})
		origin.wantLoads(t, "slow", "k")
	})
}

// A hedge that is late for the round of its slot is given back: the key queues, and is hedged with another slot.
func TestGetMany_LateHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		store, inner := memstore.New(), slowElections(100*time.Millisecond, "\x00hedge\x00late")
		locker := slowElections(10*time.Millisecond, "\x00hedge\x00early") // both keys have their shares of the slot by then
		locker.locker = inner
		o := bellwether.Options{
			Limits: bellwether.Limits{MaxRebuilds: 1}, Hedge: 3, HedgeShare: 1,
			Fleet: bellwether.Fleet{Store: store, Locker: inner.locker},
		}
		holder := batchCache(t, origin.load, o)
		o.Fleet.Locker = locker
		c := batchCache(t, origin.load, o)
		for i := range 3 {
			c.Get(t.Context(), fmt.Sprint("own", i))
		}
		origin.set(func(o *batchSource) { o.build, o.batches = 20*time.Second, nil })
		go holder.GetMany(t.Context(), []string{"early", "late"})
		synctest.Wait()
		origin.set(func(o *batchSource) { o.build = time.Second })
		start := time.Now()
		getAll(t, c, []string{"early", "late"})
		if took := time.Since(start); took > 6*time.Second || c.Stats().Hedges != 3 { // the late key has tried twice
			t.Errorf("took %v, %d hedges", took, c.Stats().Hedges)
		}
		origin.wantLoads(t, "early late", "early", "late")
		time.Sleep(time.Minute)
	})
}
