package main

import (
	"context"

	gocache "github.com/eko/gocache/lib/v4/cache"
	"github.com/eko/gocache/lib/v4/store"
	redisstore "github.com/eko/gocache/store/redis/v4"
)

// eko/gocache: its loadable cache over its Redis store.

var gocacheRedis = strategy{
	name: "eko/gocache", engines: []string{redisEngine},
	caveat: "singleflight in each process; sets behind its callers",
	open: func(c *clients, p policy, load loader) (cache, error) {
		loadable := gocache.NewLoadable(func(ctx context.Context, key any) (string, []store.Option, error) {
			v, err := load(ctx, key.(string))
			return v, []store.Option{store.WithExpiration(p.TTL)}, err
		}, gocache.New[string](redisstore.NewRedis(c.redis)))
		return closing{
			func(ctx context.Context, key string) (string, error) { return loadable.Get(ctx, key) },
			func() { loadable.Close() },
		}, nil
	},
}
