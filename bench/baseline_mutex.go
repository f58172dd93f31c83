package main

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// The two usual locks of memcached. With both, each caller polls for the value every pollEvery.

const pollEvery = 50 * time.Millisecond

var racySemaphore = strategy{
	name: "get/set semaphore", engines: []string{memcachedEngine}, traits: locks,
	caveat: "get, then set: all who have seen no lock before the first set take it, which is why add is needed; its expiry counts in whole seconds",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return polling(c.memcached, p, load, func(lock *memcache.Item) (bool, error) {
			_, err := c.memcached.Get(lock.Key)
			if !errors.Is(err, memcache.ErrCacheMiss) {
				return false, err
			}
			return true, c.memcached.Set(lock)
		}), nil
	},
}

var addMutex = strategy{
	name: "add-mutex, blind delete", engines: []string{memcachedEngine}, traits: locks,
	caveat: "who looked before the value was set and locks after that loads again; who was slower than its lock deletes the next one's; its expiry counts in whole seconds",
	open: func(c *clients, p policy, load loader) (cache, error) {
		return polling(c.memcached, p, load, func(lock *memcache.Item) (bool, error) {
			err := c.memcached.Add(lock)
			if errors.Is(err, memcache.ErrNotStored) {
				return false, nil
			}
			return err == nil, err
		}), nil
	},
}

// polling is the recipe around such a lock: look for the value, else take the lock and load, else
// sleep and look again. Without memcached it loads.
func polling(mc *memcache.Client, p policy, load loader, take func(lock *memcache.Item) (bool, error)) got {
	return func(ctx context.Context, key string) (string, error) {
		for {
			item, err := mc.Get(key)
			if err == nil {
				if v, fresh := unwrapFresh(item.Value); fresh {
					return v, nil
				}
			} else if !errors.Is(err, memcache.ErrCacheMiss) {
				return load(ctx, key)
			}
			mine, err := take(&memcache.Item{Key: "lock:" + key, Value: []byte("1"), Expiration: seconds(p.Lease)})
			if err != nil {
				return load(ctx, key)
			}
			if mine {
				v, err := load(ctx, key)
				if err == nil {
					err = mc.Set(&memcache.Item{Key: key, Value: wrapFresh(v, p.TTL), Expiration: seconds(p.TTL) + 1})
				}
				mc.Delete("lock:" + key)
				return v, err
			}
			select {
			case <-time.After(pollEvery):
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
	}
}

// seconds is d in memcached's unit, rounded up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// wrapFresh puts the end of its freshness before a value: memcached's expiry is up to a second early.
func wrapFresh(v string, ttl time.Duration) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(ttl).UnixNano())), v...)
}

func unwrapFresh(b []byte) (v string, fresh bool) {
	if len(b) < 8 {
		return "", false
	}
	return string(b[8:]), time.Now().UnixNano() < int64(binary.BigEndian.Uint64(b))
}
