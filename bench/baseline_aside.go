package main

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// A cache beside its origin without a library: alone, behind singleflight, and the floor of all strategies.

var noProtection = strategy{
	name: "no protection", engines: []string{redisEngine},
	open: func(c *clients, p policy, load loader) (cache, error) { return aside(c.redis, p, load), nil },
}

var onlySingleflight = strategy{
	name: "singleflight", engines: []string{redisEngine},
	caveat: "one load for each process, which is all that it promises; who comes first decides with its ctx for all",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return flown(aside(c.redis, p, load)), nil
	},
}

// fanOut is the floor: a channel per process hands the value over. Its waits beyond the load are wake-ups.
var fanOut = strategy{
	name: "(fan-out in memory)", traits: yardstick,
	caveat: "the yardstick of the waits, no cache: one load for each process, handed over by a channel",
	open: func(_ *clients, _ policy, load loader) (cache, error) {
		type flight struct {
			done chan struct{}
			v    string
			err  error
		}
		var mu sync.Mutex // guards flights
		flights := map[string]*flight{}
		return got(func(ctx context.Context, key string) (string, error) {
			mu.Lock()
			f := flights[key]
			if f == nil {
				f = &flight{done: make(chan struct{})}
				flights[key] = f
				go func() {
					f.v, f.err = load(context.WithoutCancel(ctx), key)
					mu.Lock()
					delete(flights, key)
					mu.Unlock()
					close(f.done)
				}()
			}
			mu.Unlock()
			<-f.done
			return f.v, f.err
		}), nil
	},
}

func aside(rdb *redis.Client, p policy, load loader) got {
	return func(ctx context.Context, key string) (string, error) {
		v, err := rdb.Get(ctx, key).Result()
		if err == nil {
			return v, nil
		}
		if v, lerr := load(ctx, key); lerr != nil || !errors.Is(err, redis.Nil) {
			return v, lerr // without the engine the loaded value is returned uncached
		} else {
			return v, rdb.Set(ctx, key, v, p.TTL).Err()
		}
	}
}

func flown(get got) got {
	var group singleflight.Group
	return func(ctx context.Context, key string) (string, error) {
		v, err, _ := group.Do(key, func() (any, error) { return get(ctx, key) })
		s, _ := v.(string)
		return s, err
	}
}
