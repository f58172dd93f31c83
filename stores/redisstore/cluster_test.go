package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
)

func connect(tb testing.TB, c *testserver.Cluster) *redis.ClusterClient {
	tb.Helper()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// TestStore_Cluster runs as a user with only the documented permissions.
func TestStore_Cluster(t *testing.T) {
	t.Parallel()
	c := testserver.RedisCluster(t, 0)
	testserver.Restrict(t, testserver.RedisRules+" "+testserver.ClusterRules, c.Servers()...)
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		return instance(connect(tb, c), "bellwether:"+adapter.Token()+":", func(tb testing.TB) *Store {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: testserver.RedisUser, Password: testserver.RedisPassword})
			tb.Cleanup(func() { rdb.Close() })
			return New(rdb)
		})
	})
	t.Run("reads from replicas", func(t *testing.T) {
		testserver.Restrict(t, testserver.RedisRules+" "+testserver.ClusterRules+" "+testserver.ReplicaRules, c.Servers()...)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: testserver.RedisUser, Password: testserver.RedisPassword, ReadOnly: true})
		t.Cleanup(func() { rdb.Close() })
		s := New(rdb)
		want := put(t, s, "key", time.Hour)
		if e, err := s.Get(t.Context(), "key"); err != nil || e.Epoch != want.Epoch {
			t.Errorf("Get: epoch %d, %v; want epoch %d", e.Epoch, err, want.Epoch)
		}
	})
	t.Run("slots that move", func(t *testing.T) { slotsThatMove(t, c) })
}

// slotsThatMove makes every call while the key's slot moves: empty, and with its keys on either server.
func slotsThatMove(t *testing.T, c *testserver.Cluster) {
	const key = "moving"
	for _, master := range c.Masters {
		c.Do(master, "flushall") // other keys of the slot
	}
	ctx := t.Context()
	s := New(connect(t, c))
	reads := func(what string, want driver.Entry) {
		t.Helper()
		// A client without knowledge of the move asks for time and entry at first, then for the entry.
		reader := New(connect(t, c))
		for _, s := range []*Store{s, reader, reader} {
			e, err := s.Get(ctx, key)
			if want.Epoch == 0 && !errors.Is(err, driver.ErrNotFound) || want.Epoch != 0 && (err != nil || e.Epoch != want.Epoch) {
				t.Errorf("Get %s: epoch %d, %v; want epoch %d", what, e.Epoch, err, want.Epoch)
			}
		}
	}
	each := func(what string, known driver.Entry) (last driver.Entry) {
		t.Helper()
		reads(what+", before", known)
		late, epoch, err := s.Claim(ctx, key)
		if err != nil || late.Epoch != known.Epoch || epoch <= known.Epoch {
			t.Fatalf("Claim %s: %+v, epoch %d after %d, %v", what, late, epoch, known.Epoch, err)
		}
		if err := s.Invalidate(ctx, key); err != nil {
			t.Fatalf("Invalidate %s: %v", what, err)
		}
		reads(what+", invalidated", driver.Entry{})
		e := driver.Entry{Kind: driver.KindValue, Value: []byte("late"), Epoch: epoch, TTL: time.Hour}
		if err := s.Commit(ctx, key, e); !errors.Is(err, driver.ErrFenced) {
			t.Errorf("Commit %s of before an invalidation: %v, want ErrFenced", what, err)
		}
		last = put(t, s, key, time.Hour)
		if last.Epoch <= epoch {
			t.Errorf("%s: epoch %d after %d", what, last.Epoch, epoch)
		}
		reads(what, last)
		return last
	}

	slot, from, to := c.Way(s.name(key))
	known := put(t, s, key, time.Hour)
	claimed := claim(t, s, key)

	c.Migrate(slot, from, to)
	each("of a key that has not moved yet", known)
	if _, err := s.rdb.Del(ctx, s.name(key)).Result(); err != nil {
		t.Fatal(err)
	}
	// A cold key begins on the new server.
	known = each("of a cold key in a slot under way", driver.Entry{})
	if known.Epoch <= claimed {
		t.Errorf("epoch %d after %d", known.Epoch, claimed)
	}
	if n := c.Move(slot, from, to); n != 0 {
		t.Errorf("%d keys were begun on the old server", n)
	}
	known = each("of a key that has moved", known)
	c.Settle(slot, from, to)
	each("of a slot that has moved", known)

	// And back, with the key in the middle of a rebuild.
	late, epoch, err := s.Claim(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	c.Migrate(slot, to, from)
	if n := c.Move(slot, to, from); n != 1 {
		t.Errorf("%d keys have moved, want 1", n)
	}
	late.Epoch, late.Age = epoch, 0
	commit(t, s, key, late) // of a claim whose key has moved
	c.Settle(slot, to, from)
	reads("after the way back", late)
}

// TestStore_Ring runs the kit over single servers that do not know each other: they have no notices.
func TestStore_Ring(t *testing.T) {
	t.Parallel()
	servers := map[string]*testserver.Server{"a": testserver.Redis(t).OwnOrSkip(t), "b": testserver.Redis(t).OwnOrSkip(t), "c": testserver.Redis(t).OwnOrSkip(t)}
	addrs := map[string]string{}
	for name, srv := range servers {
		addrs[name] = srv.Addr
	}
	connect := func(tb testing.TB) *redis.Ring {
		rdb := redis.NewRing(&redis.RingOptions{Addrs: addrs, ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
		tb.Cleanup(func() { rdb.Close() })
		return rdb
	}
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		i := instance(connect(tb), adapter.Token()+":", func(tb testing.TB) *Store { return New(connect(tb)) })
		i.Notifies = false
		open := i.Open
		i.Open = func(tb testing.TB) driver.Store {
			s := open(tb).(*Store)
			return struct { // without Notify
				driver.Store
				driver.BatchGetter
				driver.Fencer
			}{s, s, s}
		}
		return i
	})

	s := New(connect(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Notify(ctx, func(n driver.Notice) { t.Errorf("a ring tells %+v", n) })
	}()
	for i := range 50 {
		put(t, s, fmt.Sprint(i), time.Hour)
	}
	for name, srv := range servers {
		_, rdb := open(t, srv.Addr, "")
		if n := rdb.DBSize(ctx).Val(); n == 0 {
			t.Errorf("server %s has no key", name)
		}
		if n := rdb.PubSubNumSub(ctx, s.channel()).Val()[s.channel()]; n != 0 {
			t.Errorf("server %s has %d subscribers", name, n)
		}
	}
	cancel()
	<-ended
}
