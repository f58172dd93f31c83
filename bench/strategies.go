package main

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// A getter is a cache as its callers see it, and a loader its origin.
type (
	getter func(ctx context.Context, key string) (string, error)
	loader func(ctx context.Context, key string) (string, error)
)

// A strategy is one way to keep a herd from an origin.
type strategy struct {
	name string
	open func(rdb *redis.Client, load loader) getter
}

const ttl = time.Minute

var strategies = []strategy{
	{"no protection", func(rdb *redis.Client, load loader) getter { return aside(rdb, load) }},
	{"singleflight", func(rdb *redis.Client, load loader) getter {
		get := aside(rdb, load)
		var group singleflight.Group
		return func(ctx context.Context, key string) (string, error) {
			v, err, _ := group.Do(key, func() (any, error) { return get(ctx, key) })
			s, _ := v.(string)
			return s, err
		}
	}},
	{"bellwether", func(rdb *redis.Client, load loader) getter {
		return bellwether.New(load, bellwether.Options{
			TTL: ttl, Store: redisstore.New(rdb), Locker: redislock.New(rdb),
		}).Get
	}},
}

// aside is a cache beside its origin, as it is written without a library: get,
// and on a miss load and set.
func aside(rdb *redis.Client, load loader) getter {
	return func(ctx context.Context, key string) (string, error) {
		v, err := rdb.Get(ctx, key).Result()
		if !errors.Is(err, redis.Nil) {
			return v, err
		}
		if v, err = load(ctx, key); err != nil {
			return "", err
		}
		return v, rdb.Set(ctx, key, v, ttl).Err()
	}
}
