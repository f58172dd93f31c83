package main

import (
	"context"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/engines/redisfleet"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// Bellwether, over each engine and without. By NearTTL's default a process asks the store once a second.

var bellwetherInProcess = strategy{
	name: "bellwether in process", traits: staleServes,
	caveat: "without a store: one load for each process",
	open: func(_ *clients, p policy, load loader) (cache, error) {
		return bellwetherCache(p, load, bellwether.Fleet{}), nil
	},
}

var bellwetherRedis = strategy{
	name: "bellwether redis", engines: []string{redisEngine}, traits: staleServes | locks,
	open: func(c *clients, p policy, load loader) (cache, error) {
		eng := redisfleet.New(c.redis)
		cache := bellwetherCache(p, load, bellwether.Fleet{Engine: eng})
		return closing{cache.Get, func() { cache.Close(); eng.Close() }}, nil
	},
}

var bellwetherRedisPair = strategy{
	name: "bellwether redis pair", engines: []string{redisEngine}, traits: staleServes | locks,
	caveat: "redisstore and redislock, as with another store or another locker",
	open: func(c *clients, p policy, load loader) (cache, error) {
		locker := redislock.New(c.redis)
		cache := bellwetherCache(p, load, bellwether.Fleet{Store: redisstore.New(c.redis), Locker: locker})
		return closing{cache.Get, func() { cache.Close(); locker.Close() }}, nil
	},
}

var bellwetherMemcached = strategy{
	name: "bellwether memcached", engines: []string{memcachedEngine}, traits: staleServes | locks,
	caveat: "memcached cannot push: waiting processes poll",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return bellwetherCache(p, load, bellwether.Fleet{Store: memcachestore.New(c.memcached), Locker: memcachelock.New(c.memcached)}), nil
	},
}

var bellwetherEtcd = strategy{
	name: "bellwether etcd", engines: []string{redisEngine, etcdEngine}, traits: staleServes | locks,
	caveat: "etcd elects, Redis stores; commands are of both",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return bellwetherCache(p, load, bellwether.Fleet{Store: redisstore.New(c.redis), Locker: etcdlock.New(c.etcd)}), nil
	},
}

func bellwetherCache(p policy, load loader, fleet bellwether.Fleet) cache {
	fleet.LeaseTTL, fleet.Namespace = p.Lease, "bench"
	o := bellwether.Options{
		TTL: p.TTL, StaleWhileRevalidate: p.Stale, Fleet: fleet, Limits: bellwether.Limits{MaxRebuilds: p.Rebuilds},
	}
	if p.Near > 0 {
		// The bound is in bytes, 272 per entry beside its key: as many places as the rivals' tiers.
		o.Limits.NearBytes, o.Size = int64(p.Near)*(272+32), func(key string, _ any) int { return 32 - len(key) }
	}
	c := bellwether.New(load, o)
	return closing{func(ctx context.Context, key string) (string, error) { return c.Get(ctx, key) }, func() { c.Close() }}
}
