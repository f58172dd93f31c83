package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// manyHeld has one process load n keys while another polls for them, with the fault f. It returns
// the second process's store, the answers, and the most loads of one key.
func manyHeld(t *testing.T, n int, build time.Duration, f fault) (*wiredStore, map[string]int, int) {
	t.Helper()
	store, locker := memstore.New(), locallock.New()
	var mu sync.Mutex
	loads, most := map[string]int{}, 0
	load := func(_ context.Context, key string) (string, error) {
		mu.Lock()
		loads[key]++
		most = max(most, loads[key])
		mu.Unlock()
		time.Sleep(build)
		return "v of " + key, nil
	}
	var caches []*bellwether.Cache[string]
	var stores []*wiredStore
	for range 2 {
		s := wiredTo(store)
		s.busy = true
		stores = append(stores, s)
		caches = append(caches, cacheOf(t, load, bellwether.Options{
			Fleet: bellwether.Fleet{Store: s.batching(), Locker: polling(wiredLocks(locker)), LeaseTTL: 10 * time.Second}, TTL: time.Minute,
		}))
	}
	values := map[string]int{}
	var callers sync.WaitGroup
	for _, c := range caches {
		for i := range n {
			key := fmt.Sprint("k", i)
			callers.Go(func() {
				time.Sleep(time.Duration(i) * 200 * time.Microsecond)
				v, err := c.Get(t.Context(), key)
				if err != nil || v != "v of "+key {
					t.Errorf("%s: %q, %v", key, v, err)
				}
				mu.Lock()
				defer mu.Unlock()
				values[v]++
			})
		}
		synctest.Wait()
		time.Sleep(time.Millisecond) // the first process asks for each key first
		stores[1].reset()
		stores[1].set(f)
	}
	callers.Wait()
	return stores[1], values, most
}

func TestLookout_ManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, build = 100, 400 * time.Millisecond
		store, values, most := manyHeld(t, n, build, nil)
		if len(values) != n || most != 1 {
			t.Errorf("%d values, %d loads of a key; want %d and 1", len(values), most, n)
		}
		// One key takes about 45 looks, so all keys by themselves would take 4,500.
		single, many := store.count("get"), store.count("getmany")
		t.Logf("%d gets and %d gets of many", single, many)
		if single+many > 8*n {
			t.Errorf("%d gets and %d gets of many for %d keys, want %d at most", single, many, n, 8*n)
		}
	})
}

// If the store's GetMany fails, each flight looks by itself.
func TestLookout_NoAnswer(t *testing.T) {
	for name, f := range map[string]fault{
		"refuses": answer(errors.New("refused")),
		"panics":  func(context.Context, string) error { panic("broken") },
	} {
		inBubble(t, name, func(t *testing.T) {
			store, values, most := manyHeld(t, 20, 300*time.Millisecond, on(f, "getmany"))
			if len(values) != 20 || most != 1 {
				t.Errorf("%d values, %d loads of a key; want 20 and 1", len(values), most)
			}
			if store.count("getmany") == 0 {
				t.Error("no get of many has failed")
			}
		})
	}
}

// A strictEngine records repeated keys of a GetMany, which driver.BatchGetter's contract forbids.
type strictEngine struct {
	batchingEngine
	mu      sync.Mutex
	doubled []string
	most    int
}

func (e *strictEngine) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	e.mu.Lock()
	for i, k := range keys {
		if slices.Contains(keys[:i], k) {
			e.doubled = append(e.doubled, k)
		}
	}
	e.most = max(e.most, len(keys))
	e.mu.Unlock()
	e.batchingEngine.GetMany(ctx, keys, each)
}

// The flight of a caller that has left takes its look out of the shared request.
func TestLookout_SharedKeysAreDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(takes(200 * time.Millisecond))
		engine := &strictEngine{batchingEngine: batchingEngine{wiredEngine{store, wiredLocks(store.store.(*memstore.Store))}}}
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 1}, Fleet: bellwether.Fleet{Engine: engine},
		})
		var callers sync.WaitGroup
		for i := range 20 { // more than the first 16 turns
			callers.Go(func() { c.Get(context.Background(), fmt.Sprint(i)) })
			time.Sleep(time.Microsecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		callers.Go(func() { c.Get(ctx, "x") })
		synctest.Wait()
		cancel() // the flight ends, its look stays in the queue
		synctest.Wait()
		callers.Go(func() { c.Get(context.Background(), "x") })
		callers.Wait()
		if engine.most < 2 {
			t.Error("no shared look")
		}
		if len(engine.doubled) > 0 {
			t.Errorf("GetMany got keys twice: %q", engine.doubled)
		}
	})
}
