package main

import (
	"context"
	"time"

	rediscache "github.com/go-redis/cache/v9"
)

// go-redis/cache: Once, with its TinyLFU in the process.

var goRedisCache = strategy{
	name: "go-redis/cache", engines: []string{redisEngine}, traits: wholeSeconds,
	caveat: "singleflight in each process; a TTL of less than a second becomes an hour",
	open: func(c *clients, p policy, load loader) (cache, error) {
		size := p.Near
		if size == 0 {
			size = 100_000
		}
		// Its documentation has a minute. Here it is the freshness, at most the second of our own near tier.
		rc := rediscache.New(&rediscache.Options{Redis: c.redis, LocalCache: rediscache.NewTinyLFU(size, min(p.TTL, time.Second))})
		return got(func(ctx context.Context, key string) (string, error) {
			var v string
			err := rc.Once(&rediscache.Item{Ctx: ctx, Key: key, Value: &v, TTL: p.TTL, Do: func(item *rediscache.Item) (any, error) {
				return load(item.Context(), key)
			}})
			return v, err
		}), nil
	},
}
