package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

// TestWatch_PlannedFailover has sentinels promote a replica while the old master still answers:
// watchers receive releases at the new master within a second.
func TestWatch_PlannedFailover(t *testing.T) {
	t.Parallel()
	s := testserver.RedisSentinel(t)
	open := func() *redislock.Locker {
		return over(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: testserver.SentinelName, SentinelAddrs: s.Addrs()}))
	}
	a, b := open(), open()
	before := newKey()
	lease := leasetest.Acquire(t, a, before, time.Minute)
	freed := leasetest.Watch(t, b, before)
	leasetest.Release(t, lease)
	leasetest.MustClose(t, "a release before the failover", freed, time.Second)

	s.Failover()
	over := time.Now()
	for heard := false; !heard; {
		took := time.Since(over)
		if took > 20*time.Second {
			t.Fatal("no release is heard 20 s after the failover")
		}
		key := newKey()
		lease, err := a.TryAcquire(t.Context(), key, time.Minute)
		if err != nil {
			time.Sleep(10 * time.Millisecond) // the client looks for the new master
			continue
		}
		// Again if the lease is at the new master, and the other client is not there yet.
		held := leasetest.MustBeHeld(t, b, key)
		freed, err := b.Watch(t.Context(), held)
		if err := lease.Release(t.Context()); err != nil {
			continue
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case <-freed:
			heard = true
			t.Logf("a release is heard %v after the failover", took)
			if took > time.Second {
				t.Errorf("releases are heard again %v after the failover, want a second", took)
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
}
