package redislock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

// This file tests the locker over several servers: a cluster, and a ring.

func TestConformance_Cluster(t *testing.T) {
	t.Parallel()
	c := testserver.RedisCluster(t, 0)
	newLocker := func(tb testing.TB) *redislock.Locker {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
		l := redislock.New(rdb)
		tb.Cleanup(func() {
			l.Close()
			rdb.Close()
		})
		return l
	}
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb) })

	// A lease goes through its life while its slot moves, before and after the lease itself has moved.
	for _, tokens := range []bool{false, true} {
		a, b, key := newLocker(t), newLocker(t), newKey()
		a.Tokens, b.Tokens = tokens, tokens
		slot, from := c.Owner(a.Key(key))
		to := c.Masters[0]
		if from == to {
			to = c.Masters[1]
		}
		lease := leasetest.Acquire(t, a, key, time.Minute)
		freed := watch(t, b, key)
		c.Migrate(slot, from, to)
		leasetest.MustBeHeld(t, b, key)
		leasetest.Renew(t, lease, time.Minute) // before the lease has moved
		if n := c.Move(slot, from, to); n != 1 {
			t.Errorf("%d keys have moved, want the lease", n)
		}
		leasetest.MustBeHeld(t, b, key)
		leasetest.Renew(t, lease, time.Minute) // after the lease has moved
		if isClosed(freed) {
			t.Error("the move of a lease looks like its end")
		}
		leasetest.Release(t, lease) // after the lease has moved
		select {
		case <-freed:
		case <-time.After(time.Second):
			t.Error("a release in a slot under way wakes nobody")
		}
		// A free lease of the slot is taken on its new server.
		lease = leasetest.Acquire(t, b, key, time.Minute)
		leasetest.MustBeHeld(t, a, key)
		c.Settle(slot, from, to)
		leasetest.MustBeHeld(t, a, key)
		leasetest.Release(t, lease) // after the slot has moved
		if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("a second Release: %v, want ErrLeaseLost", err)
		}
	}
}

// TestConformance_Ring skips the cases of watching: a ring has no push.
func TestConformance_Ring(t *testing.T) {
	t.Parallel()
	addrs := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		addrs[name] = testserver.Redis(t).OwnOrSkip(t).Addr
	}
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		rdb := redis.NewRing(&redis.RingOptions{Addrs: addrs})
		tb.Cleanup(func() { rdb.Close() })
		return struct{ driver.Locker }{redislock.New(rdb)}
	})
}
