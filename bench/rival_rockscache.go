package main

import (
	"context"
	"time"

	"github.com/dtm-labs/rockscache"
)

// rockscache: a lock in the hash that holds the value.

var rockscacheRedis = strategy{
	name: "rockscache", engines: []string{redisEngine}, traits: locks | wholeSeconds,
	caveat: "TTL and lock count in whole seconds; waiters poll at its default of 100 ms; a stale value it serves only after an invalidation; its lock lives for the lease, as all do, where its documentation wants the longest load (slow origin and long load are longer); without Redis it returns the error, for its user to load then",
	open: func(c *clients, p policy, load loader) (cache, error) {
		o := rockscache.NewDefaultOptions()
		o.LockExpire = time.Duration(seconds(p.Lease)) * time.Second
		o.RandomExpireAdjustment = 0 // here the values of all strategies live equally long
		rc := rockscache.NewClient(c.redis, o)
		return got(func(ctx context.Context, key string) (string, error) {
			// It subtracts Delay from the expiry.
			return rc.Fetch2(ctx, key, p.TTL+o.Delay, func() (string, error) { return load(ctx, key) })
		}), nil
	},
}
