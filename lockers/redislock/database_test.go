package redislock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

// TestWatch_Databases has two databases and one Prefix: a release in one wakes no watch in the other.
func TestWatch_Databases(t *testing.T) {
	server := testserver.Redis(t)
	lockers := [2]*redislock.Locker{}
	for db := range lockers {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DB: db})
		lockers[db] = redislock.New(rdb)
		t.Cleanup(func() {
			lockers[db].Close()
			rdb.Close()
		})
	}
	key := newKey()
	first, second := leasetest.Acquire(t, lockers[0], key, time.Minute), leasetest.Acquire(t, lockers[1], key, time.Minute)
	watched, other := watch(t, lockers[0], key), watch(t, lockers[1], key)
	leasetest.Release(t, second)
	select {
	case <-other:
	case <-time.After(5 * time.Second):
		t.Fatal("a watch was not woken by the release in its database")
	}
	time.Sleep(50 * time.Millisecond) // a wrong message would be on its way
	if isClosed(watched) {
		t.Error("a watch was woken by the release in another database")
	}
	leasetest.Release(t, first)
	select {
	case <-watched:
	case <-time.After(5 * time.Second):
		t.Error("a watch was not woken by the release in its database")
	}
}
