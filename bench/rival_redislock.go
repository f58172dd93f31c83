package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// bsm/redislock around a cache beside its origin. Singleflight leaves each process one caller at the lock,
// with a linear back-off of 100 ms, as documented. Renewal is left to its user, and so absent.

var redislockAside = strategy{
	name: "bsm/redislock", engines: []string{redisEngine}, traits: locks,
	caveat: "a mutex: its waiters take it one after another, only to read; the lease is not renewed",
	open: func(c *clients, p policy, load loader) (cache, error) {
		locker := redislock.New(c.redis)
		return flown(func(ctx context.Context, key string) (string, error) {
			v, err := c.redis.Get(ctx, key).Result()
			if err == nil {
				return v, nil
			}
			if !errors.Is(err, redis.Nil) {
				return load(ctx, key)
			}
			lock, err := locker.Obtain(ctx, "lock:"+key, p.Lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
			if err != nil {
				// Obtain gives up after a lease's length. The strategy then loads without the lock.
				return load(ctx, key)
			}
			defer lock.Release(context.WithoutCancel(ctx))
			if v, err := c.redis.Get(ctx, key).Result(); err == nil {
				return v, nil
			}
			if v, err = load(ctx, key); err != nil {
				return "", err
			}
			return v, c.redis.Set(ctx, key, v, p.TTL).Err()
		}), nil
	},
}
