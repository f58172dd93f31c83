package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

// sturdyc, alone and over Redis. A stale window makes it refresh in the background, as documented.

var sturdycInProcess = strategy{
	name: "sturdyc", traits: staleServes,
	caveat: "in-process: one load for each process",
	open: func(_ *clients, p policy, load loader) (cache, error) {
		return sturdycCache(p, load), nil
	},
}

var sturdycRedis = strategy{
	name: "sturdyc + redis", engines: []string{redisEngine},
	caveat: "its distributed storage is shared, its loads are not, and the early refreshes of the storage are not used; a value that comes from the storage lives a whole TTL more in the process",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return sturdycCache(p, load, sturdyc.WithDistributedStorage(redisStorage{c.redis, p.TTL})), nil
	},
}

func sturdycCache(p policy, load loader, options ...sturdyc.Option) cache {
	options = append(options, sturdyc.WithLog(slog.New(slog.NewTextHandler(io.Discard, nil))))
	ttl := p.TTL
	if p.Stale > 0 {
		ttl += p.Stale
		// The last argument is when a running refresh begins again: no load here is as long.
		options = append(options, sturdyc.WithEarlyRefreshes(p.TTL, p.TTL+time.Millisecond, p.TTL+p.Stale, p.TTL))
	}
	capacity := p.Near
	if capacity == 0 {
		capacity = 100_000
	}
	shards := min(64, max(1, capacity/100)) // each has an equal part of the capacity
	c := sturdyc.New[string](capacity, shards, ttl, 10, options...)
	return got(func(ctx context.Context, key string) (string, error) {
		return c.GetOrFetch(ctx, key, func(ctx context.Context) (string, error) { return load(ctx, key) })
	})
}

// redisStorage is Redis as sturdyc's DistributedStorage. Its user must set the TTL.
type redisStorage struct {
	rdb *redis.Client
	ttl time.Duration
}

func (s redisStorage) Get(ctx context.Context, key string) ([]byte, bool) {
	b, err := s.rdb.Get(ctx, key).Bytes()
	return b, err == nil
}

func (s redisStorage) Set(ctx context.Context, key string, value []byte) {
	s.rdb.Set(ctx, key, value, s.ttl)
}

func (s redisStorage) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	found := map[string][]byte{}
	for _, key := range keys {
		if b, ok := s.Get(ctx, key); ok {
			found[key] = b
		}
	}
	return found
}

func (s redisStorage) SetBatch(ctx context.Context, records map[string][]byte) {
	for key, value := range records {
		s.Set(ctx, key, value)
	}
}
