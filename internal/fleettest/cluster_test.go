package fleettest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
)

// TestCluster moves slots and changes masters of a Redis Cluster under herds, which lose only time.
func TestCluster(t *testing.T) {
	t.Parallel()
	var c *testserver.Cluster
	kind := RedisCluster
	kind.Start = func(tb testing.TB) []*testserver.Server {
		c = testserver.RedisCluster(tb, 1)
		testserver.Restrict(tb, testserver.RedisRules+" "+testserver.ClusterRules, c.Servers()...)
		return c.Servers()
	}
	f := newFleet(t, kind, 3, fleetOptions{LeaseTTL: 2 * time.Second, EngineTimeout: patient})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { rdb.Close() })
	store := redisstore.New(rdb)

	// keyAt returns a new key in a slot of the nth master at the start.
	keys := 0
	keyAt := func(n int) (key string, slot int) {
		for {
			keys++
			key = fmt.Sprint("key", keys)
			if slot, at := c.Owner(engineKey(key)); at == c.Masters[n] {
				return key, slot
			}
		}
	}
	// herd has the fleet ask for a key, and calls act once its load runs.
	herd := func(t *testing.T, key string, build time.Duration, act func()) report {
		t.Helper()
		f.origin.delay.Store(int64(build))
		began := make(chan struct{})
		note := sync.OnceFunc(func() { close(began) })
		onLoad := func(int, int) { note() }
		f.origin.onLoad.Store(&onLoad)
		done := make(chan report)
		go func() { done <- f.herd(key, 200) }()
		<-began
		act()
		r := <-done
		noneFailed(t, r)
		answers := 0
		for _, n := range r.Values {
			answers += n
		}
		if answers != 600 {
			t.Errorf("%d callers were answered, want 600", answers)
		}
		t.Logf("%d loads of %v; p50 %v, slowest %v", f.origin.count(key), build, percentile(r.Took, .5), percentile(r.Took, 1))
		return r
	}
	once := func(t *testing.T, key string, r report) {
		t.Helper()
		if f.origin.count(key) != 1 || r.Values[key+"#1"] != 600 {
			t.Errorf("%d loads, answers %v; want 1 load for 600 callers", f.origin.count(key), r.Values)
		}
	}

	t.Run("cold", func(t *testing.T) {
		for n := range c.Masters {
			key, _ := keyAt(n)
			once(t, key, herd(t, key, 200*time.Millisecond, func() {}))
		}
	})
	t.Run("slot moved during a load", func(t *testing.T) {
		key, slot := keyAt(0)
		r := herd(t, key, 500*time.Millisecond, func() {
			c.Migrate(slot, c.Masters[0], c.Masters[1])
			time.Sleep(100 * time.Millisecond) // the herd meets a moving slot
			if n := c.Move(slot, c.Masters[0], c.Masters[1]); n != 2 {
				t.Errorf("%d keys have moved, want the entry's and the lease", n)
			}
			c.Settle(slot, c.Masters[0], c.Masters[1])
		})
		once(t, key, r)
	})
	t.Run("cold key of a slot under way", func(t *testing.T) {
		key, slot := keyAt(1)
		c.Migrate(slot, c.Masters[1], c.Masters[2])
		r := herd(t, key, 300*time.Millisecond, func() { c.Move(slot, c.Masters[1], c.Masters[2]) })
		once(t, key, r)
		// The slot keeps moving, and other keys of it work too.
		if r := f.workers[0].do(order{Do: "invalidate", Key: key}); r.Err != "" {
			t.Errorf("invalidating: %s", r.Err)
		}
		if r := f.herd(key, 200); r.Values[key+"#2"] != 600 || f.origin.count(key) != 2 {
			t.Errorf("%d loads, answers %v; want 1 load more, for 600 callers", f.origin.count(key), r.Values)
		}
		c.Settle(slot, c.Masters[1], c.Masters[2])
	})
	t.Run("master hands over during a load", func(t *testing.T) {
		key, _ := keyAt(0)
		once(t, key, herd(t, key, 500*time.Millisecond, func() { c.Failover(c.Replicas[0]) }))
	})
	if r := f.all(order{Do: "stats"}); r.Stats.Degraded+r.Stats.LeasesLost+r.Stats.Fenced != 0 {
		t.Errorf("%d loads without the engine, %d leases lost, %d commits fenced; want none while all masters answer", r.Stats.Degraded, r.Stats.LeasesLost, r.Stats.Fenced)
	}

	t.Run("master killed during a load", func(t *testing.T) {
		key, _ := keyAt(2)
		var epoch atomic.Uint64
		herd(t, key, 300*time.Millisecond, func() {
			_, last, err := store.Claim(t.Context(), engineKey(key))
			if err != nil {
				t.Errorf("Claim: %v", err)
			}
			epoch.Store(last)
			c.Masters[2].Kill()
		})
		// The processes are cut off from each other: each loads for itself.
		if n := f.origin.count(key); n > 3 {
			t.Errorf("%d loads, want at most one in each process", n)
		}
		c.AwaitMaster(c.Replicas[2])

		back := time.Now()
		for ok := false; !ok; {
			if time.Since(back) > 8*time.Second {
				t.Fatal("8 s after the replica took over there is still more than one load per fleet")
			}
			next, _ := keyAt(2)
			ok = f.herd(next, 50).Values[next+"#1"] == 150 && f.origin.count(next) == 1
		}
		t.Logf("one load per fleet %v after the replica took over", time.Since(back))
		var next uint64
		var err error
		if !waitFor(5*time.Second, func() bool { _, next, err = store.Claim(t.Context(), engineKey(key)); return err == nil }) || next <= epoch.Load() {
			t.Errorf("epoch %d after %d was given out by the master that died, %v", next, epoch.Load(), err)
		}
	})
}
