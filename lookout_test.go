package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
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
