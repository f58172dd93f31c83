package redisfleet

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
)

func connect(tb testing.TB, c *testserver.Cluster, o redis.ClusterOptions) *redis.ClusterClient {
	tb.Helper()
	o.Addrs, o.ReadTimeout, o.PoolTimeout = c.Addrs(), 20*time.Second, 20*time.Second
	rdb := redis.NewClusterClient(&o)
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// TestEngine_Cluster runs as a user with only the documented permissions.
func TestEngine_Cluster(t *testing.T) {
	t.Parallel()
	c := testserver.RedisCluster(t, 0)
	testserver.Restrict(t, testserver.RedisRules+" "+testserver.ClusterRules, c.Servers()...)
	app := redis.ClusterOptions{Username: testserver.RedisUser, Password: testserver.RedisPassword}
	t.Run("store", func(t *testing.T) {
		storetest.Run(t, func(tb testing.TB) storetest.Instance {
			prefix := "bellwether:" + adapter.Token() + ":"
			return instance(connect(tb, c, redis.ClusterOptions{}), prefix, func(tb testing.TB) driver.Elector {
				return set(over(tb, connect(tb, c, app)), prefix)
			})
		})
	})
	t.Run("locker", func(t *testing.T) {
		lockertest.Run(t, func(tb testing.TB) driver.Locker { return over(tb, connect(tb, c, app)) })
	})
	t.Run("one slot", func(t *testing.T) {
		for _, key := range []string{"plain", "", "{", "}", "{}", "{a}", "a{b}c", "{a}{b}", "}{", "with space"} {
			entry, _ := c.Owner(redisentry.Name("bellwether:", key))
			if lease, _ := c.Owner(redislease.Key("bellwether:", key)); lease != entry {
				t.Errorf("%q: the entry is in slot %d, the lease in slot %d", key, entry, lease)
			}
		}
	})
	t.Run("slots that move", func(t *testing.T) { slotsThatMove(t, c) })
}

// slotsThatMove goes through a key's life while its slot moves, with no, one or both keys on a server.
func slotsThatMove(t *testing.T, c *testserver.Cluster) {
	const key = "moving"
	rdb := connect(t, c, redis.ClusterOptions{})
	eng := over(t, rdb)
	life := func(when string, past uint64) (last uint64) {
		t.Helper()
		// One engine has seen the slot move, and the others have not. By 3 redirections the last answer to a cold key
		// is a refusal, and by 2 it is a redirection.
		for _, eng := range []*Engine{eng, over(t, connect(t, c, redis.ClusterOptions{})), over(t, connect(t, c, redis.ClusterOptions{MaxRedirects: 2}))} {
			won := elect(t, eng, key, past)
			if won.Lease == nil || won.Epoch <= past {
				t.Fatalf("%s: Elect past %d: %+v, want a lease and a later epoch", when, past, won)
			}
			leasetest.MustBeHeld(t, eng, key)
			if got := elect(t, eng, key, won.Epoch); got.Held == nil {
				t.Errorf("%s: Elect of a held key: %+v", when, got)
			}
			freed := leasetest.Watch(t, eng, key)
			commit(t, eng, key, value(won.Epoch), won)
			leasetest.MustClose(t, when+": the release", freed, 5*time.Second)
			leasetest.MustBeLost(t, when+": Renew after CommitAndRelease", won.Lease.Renew(t.Context(), time.Minute))
			if got := elect(t, eng, key, past); got.Entry.Epoch != won.Epoch || got.Lease != nil || got.Held != nil {
				t.Errorf("%s: Elect of a fresh key: %+v", when, got)
			}
			past = won.Epoch
		}
		return past
	}
	slot, from, to := c.Way(redisentry.Name(eng.Prefix, key))
	last := life("before", 0)
	held := elect(t, eng, key, last)

	c.Migrate(slot, from, to)
	if got := elect(t, eng, key, last); got.Held == nil {
		t.Errorf("Elect of a held key that has not moved: %+v", got)
	}
	commit(t, eng, key, value(held.Epoch), held)
	// The entry exists, and the lease does not: its next one begins on the new server.
	last = life("with the entry on the old server", held.Epoch)
	must(t, rdb.Del(t.Context(), redisentry.Name(eng.Prefix, key)).Err())
	last = max(last, life("of a cold key", 0))
	if eng.moved.Load() == nil {
		t.Error("no request about two keys was refused: the test tests nothing")
	}
	c.Move(slot, from, to)
	last = life("with the entry on the new server", last)
	c.Settle(slot, from, to)
	last = life("after the move", last)
	for eng.moved.Load() != nil && !eng.settled() {
		time.Sleep(10 * time.Millisecond) // of the engine's clock
	}
	life("by one request again", last)
}

// TestEngine_Ring runs the kits over separate servers, which have no notices and no watches.
func TestEngine_Ring(t *testing.T) {
	t.Parallel()
	addrs := testserver.RedisRing(t)
	connect := func(tb testing.TB) *redis.Ring {
		rdb := redis.NewRing(&redis.RingOptions{Addrs: addrs, ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
		tb.Cleanup(func() { rdb.Close() })
		return rdb
	}
	type elects struct{ driver.Elector } // without Watch
	t.Run("store", func(t *testing.T) {
		storetest.Run(t, func(tb testing.TB) storetest.Instance {
			prefix := adapter.Token() + ":"
			i := instance(connect(tb), prefix, func(tb testing.TB) driver.Elector {
				return elects{set(over(tb, connect(tb)), prefix)}
			})
			i.Notifies, i.Batches = false, false
			return i
		})
	})
	t.Run("locker", func(t *testing.T) {
		lockertest.Run(t, func(tb testing.TB) driver.Locker { return struct{ driver.Locker }{over(tb, connect(tb))} })
	})
}

// TestEngine_ClusterDown has a master lose its cluster, which elects another: the master's replies are refusals
// without a redirection.
func TestEngine_ClusterDown(t *testing.T) {
	t.Parallel()
	alone := testserver.Redis(t, "--cluster-enabled", "yes").OwnOrSkip(t).Addr
	elected := testserver.Redis(t).OwnOrSkip(t).Addr
	var master atomic.Pointer[string]
	master.Store(&alone)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: testserver.Slots - 1, Nodes: []redis.ClusterNode{{Addr: *master.Load()}}}}, nil
	}})
	t.Cleanup(func() { rdb.Close() })
	eng := over(t, rdb)
	if _, err := eng.Elect(t.Context(), "key", 0, time.Minute); !redis.IsClusterDownError(err) {
		t.Fatalf("Elect at the lone master: %v, want CLUSTERDOWN", err)
	}
	master.Store(&elected)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the client looks for the new master
		won, err := eng.Elect(t.Context(), "key", 0, time.Minute)
		if err == nil && won.Lease != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("5 s later: %+v, %v", won, err)
		}
	}
}
