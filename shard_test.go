package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests a store of several servers, one of them down.

const shards = 8

func shardOf(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32()>>8) % shards
}

// If a server dies, keys on the others are loaded as often as before, and their invalidations succeed.
func TestShard_OneServerDies(t *testing.T) {
	poisoned := "key 7"
	for how, fault := range map[string]fault{"refuses": refuse, "is silent": blackHole} {
		for what, dead := range map[string]func(key string) bool{
			"a server": func(key string) bool { return shardOf(key) == shardOf(poisoned) },
			"a key":    func(key string) bool { return key == poisoned },
		} {
			for _, gap := range []time.Duration{5 * time.Millisecond, 100 * time.Millisecond} {
				if testing.Short() && (how == "refuses") != ((what == "a key") == (gap < 10*time.Millisecond)) {
					continue // two of the three still meet
				}
				inBubbleBeside(t, fmt.Sprint(what, " ", how, ", asked each ", gap), func(t *testing.T) {
					const processes, keys, calls = 3, 100, 2000
					phase := calls * gap // the same number of calls during a key's life
					ttl := phase / 6
					store, locker := memstore.New(), locallock.New()
					var mu sync.Mutex
					loads := 0 // of keys on working servers
					var ways []*wiredStore
					var caches []*bellwether.Cache[string]
					for range processes {
						way := farStore(store)
						way.only, way.busy = dead, true
						ways = append(ways, way)
						caches = append(caches, cacheOf(t, func(_ context.Context, key string) (string, error) {
							time.Sleep(10 * time.Millisecond)
							if !dead(key) {
								mu.Lock()
								defer mu.Unlock()
								loads++
							}
							return "v", nil
						}, bellwether.Options{TTL: ttl, Fleet: bellwether.Fleet{Store: way, Locker: locker}}))
					}
					rng := rand.New(rand.NewPCG(1, 1))
					var wg sync.WaitGroup
					down, refused, invalidations := 0, 0, 0
					run := func() (n int) {
						mu.Lock()
						loads = 0
						mu.Unlock()
						start := time.Now()
						for i := 0; time.Since(start) < phase; i++ {
							c, key := caches[rng.IntN(processes)], fmt.Sprint("key ", rng.IntN(keys))
							wg.Go(func() { c.Get(context.Background(), key) })
							if !c.Stats().StoreUp {
								down++
							}
							if victim := fmt.Sprint("key ", rng.IntN(keys)); i%50 == 0 && !dead(victim) {
								invalidations++
								wg.Go(func() {
									if err := c.Invalidate(context.Background(), victim); errors.Is(err, bellwether.ErrUnavailable) {
										mu.Lock()
										defer mu.Unlock()
										refused++
									}
								})
							}
							time.Sleep(gap)
						}
						wg.Wait()
						mu.Lock()
						defer mu.Unlock()
						return loads
					}
					run() // warms up
					before := run()
					down, refused, invalidations = 0, 0, 0
					for _, way := range ways {
						way.set(fault)
					}
					after := run()
					t.Logf("loads %d, then %d; the store was down for %d calls; %d of %d invalidations refused", before, after, down, refused, invalidations)
					if float64(after) > 1.1*float64(before) || refused > 0 || down > 0 {
						t.Errorf("loads %d, then %d, want 1.1 times as many at most; the store was down for %d calls; %d of %d invalidations were refused, want none",
							before, after, down, refused, invalidations)
					}
				})
			}
		}
	}
}

// At most one call a second waits for a key of a dead server. The others load at once.
func TestShard_DeadKeysAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const during, timeout = 20 * time.Second, 500 * time.Millisecond
		way := farStore(memstore.New())
		way.only = func(key string) bool { return key == "dead" }
		way.set(blackHole)
		loads := 0
		c := cacheOf(t, func(_ context.Context, key string) (string, error) {
			if key == "dead" {
				loads++
			}
			return "v", nil
		}, bellwether.Options{TTL: 50 * time.Millisecond, Fleet: bellwether.Fleet{EngineTimeout: timeout, Store: way, Locker: locallock.New()}})
		slow := 0
		for start := time.Now(); time.Since(start) < during; time.Sleep(10 * time.Millisecond) {
			began := time.Now()
			wantValue(t, c, "dead", "v")
			if time.Since(began) >= timeout {
				slow++
			}
			c.Get(t.Context(), "well")
		}
		if most := int(during/time.Second) + 1; slow > most || loads < 5*slow {
			t.Errorf("%d of %d loads waited for the dead server, want %d at most", slow, loads, most)
		}
	})
}
