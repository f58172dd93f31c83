package fleettest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// TestRing_OneServerKilled: keys of the other servers are loaded as often as before, and can be invalidated.
func TestRing_OneServerKilled(t *testing.T) {
	t.Run("memcached", func(t *testing.T) {
		var servers []*testserver.Server
		var addrs []string
		for range 8 {
			s := testserver.Memcached(t).OwnOrSkip(t)
			servers, addrs = append(servers, s), append(addrs, s.Addr)
		}
		loseOneServer(t, servers[3], func() (driver.Store, driver.Locker) {
			mc := memcache.New(addrs...)
			mc.MaxIdleConns = 64
			return memcachestore.New(mc), memcachelock.New(mc)
		})
	})
	t.Run("Redis Cluster", func(t *testing.T) {
		c := testserver.RedisCluster(t, 0)
		for _, s := range c.Masters { // else no node answers for its own slots while others' are lost
			c.Do(s, "config", "set", "cluster-require-full-coverage", "no")
		}
		loseOneServer(t, c.Masters[1], func() (driver.Store, driver.Locker) {
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
			t.Cleanup(func() { client.Close() })
			return redisstore.New(client), redislock.New(client)
		})
	})
}

// loseOneServer kills the server under the load of two processes.
func loseOneServer(t *testing.T, server *testserver.Server, client func() (driver.Store, driver.Locker)) {
	const processes, keys, ttl, phase = 2, 100, 150 * time.Millisecond, 1200 * time.Millisecond
	var mu sync.Mutex
	loads := map[string]int{}
	var caches []*bellwether.Cache[string]
	var store driver.Store
	var locker driver.Locker
	for range processes {
		store, locker = client()
		c := bellwether.New(func(_ context.Context, key string) (string, error) {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			loads[key]++
			return "v", nil
		}, bellwether.Options{TTL: ttl, Fleet: bellwether.Fleet{Store: store, Locker: locker, Namespace: "ring"}})
		t.Cleanup(func() { c.Close() })
		caches = append(caches, c)
	}
	run := func() map[string]int {
		mu.Lock()
		clear(loads)
		mu.Unlock()
		var clients sync.WaitGroup
		start := time.Now()
		for _, c := range caches {
			for range 20 {
				clients.Go(func() {
					for time.Since(start) < phase {
						c.Get(context.Background(), fmt.Sprint("key ", rand.IntN(keys)))
						time.Sleep(4 * time.Millisecond) // 15 calls for each key in its life
					}
				})
			}
		}
		clients.Wait()
		mu.Lock()
		defer mu.Unlock()
		n := map[string]int{}
		for key, l := range loads {
			n[key] = l
		}
		return n
	}
	run() // until all is warm
	before := []map[string]int{run(), run(), run(), run(), run()}
	server.Kill()
	killed := time.Now()
	well := func(key string) bool { // the servers of its entry and its lease live
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := store.Get(ctx, "ring:"+key)
		_, held := locker.TryAcquire(ctx, "ring:"+key, time.Millisecond)
		return (err == nil || errors.Is(err, driver.ErrNotFound)) && (held == nil || errors.Is(held, driver.ErrHeld))
	}
	var healthy []string
	var asked sync.WaitGroup
	for i := range keys {
		asked.Go(func() {
			if key := fmt.Sprint("key ", i); well(key) {
				mu.Lock()
				defer mu.Unlock()
				healthy = append(healthy, key)
			}
		})
	}
	asked.Wait()
	var refused []error
	over := make(chan struct{})
	go func() {
		defer close(over)
		time.Sleep(time.Second - time.Since(killed))
		for range 60 {
			if err := caches[0].Invalidate(t.Context(), healthy[rand.IntN(len(healthy))]); err != nil {
				refused = append(refused, err)
			}
			time.Sleep(phase / 100)
		}
	}()
	during := run()
	<-over
	after := []map[string]int{run(), run(), run(), run(), run()} // without invalidations, which cause loads
	median := func(runs []map[string]int) int {
		var sums []int
		for _, loads := range runs {
			n := 0
			for _, key := range healthy {
				n += loads[key]
			}
			sums = append(sums, n)
		}
		slices.Sort(sums)
		return sums[len(sums)/2]
	}
	was, meanwhile, is := median(before), median([]map[string]int{during}), median(after)
	t.Logf("of %d healthy keys: %d loads before, %d with 60 invalidations, %d after", len(healthy), was, meanwhile, is)
	// One load for each TTL is right, however busy the machine was before.
	right := max(was, len(healthy)*int(phase/ttl))
	if len(healthy) < keys/2 || float64(is) > 1.1*float64(right) {
		t.Errorf("%d healthy keys were loaded %d times before, and %d after, want 1.1 times %d at most", len(healthy), was, is, right)
	}
	if len(refused) > 0 {
		t.Errorf("%d invalidations of healthy keys were refused: %v", len(refused), refused[0])
	}
}
