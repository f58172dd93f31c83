package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

func TestConformance_Cluster(t *testing.T) {
	t.Parallel()
	c := testserver.RedisCluster(t, 0)
	newLocker := func(tb testing.TB) *redislock.Locker {
		return over(tb, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))
	}
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb) })

	// A lease goes through its life while its slot moves, before and after the lease itself has moved.
	for _, tokens := range []bool{false, true} {
		a, b, key := newLocker(t), newLocker(t), newKey()
		a.Tokens, b.Tokens = tokens, tokens
		slot, from, to := c.Way(a.Key(key))
		lease := leasetest.Acquire(t, a, key, time.Minute)
		freed := leasetest.Watch(t, b, key)
		c.Migrate(slot, from, to)
		leasetest.MustBeHeld(t, b, key)
		leasetest.Renew(t, lease, time.Minute) // before the lease has moved
		if n := c.Move(slot, from, to); n != 1 {
			t.Errorf("%d keys have moved, want the lease", n)
		}
		leasetest.MustBeHeld(t, b, key)
		leasetest.Renew(t, lease, time.Minute) // after the lease has moved
		if leasetest.IsClosed(freed) {
			t.Error("the move of a lease looks like its end")
		}
		leasetest.Release(t, lease) // after the lease has moved
		leasetest.MustClose(t, "a release in a slot under way", freed, time.Second)
		// A free lease of the slot is taken on its new server.
		lease = leasetest.Acquire(t, b, key, time.Minute)
		leasetest.MustBeHeld(t, a, key)
		c.Settle(slot, from, to)
		leasetest.MustBeHeld(t, a, key)
		leasetest.Release(t, lease) // after the slot has moved
		leasetest.MustBeLost(t, "a second Release", lease.Release(t.Context()))
	}
}

// TestConformance_Ring skips the cases of watching: a ring has no push.
func TestConformance_Ring(t *testing.T) {
	t.Parallel()
	addrs := testserver.RedisRing(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		return struct{ driver.Locker }{over(tb, redis.NewRing(&redis.RingOptions{Addrs: addrs}))}
	})
}
