package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidisaside"
)

// rueidisaside: the key has its holder's name as the lock, and client-side caching wakes the waiters.

var rueidisAside = strategy{
	name: "rueidisaside", engines: []string{redisEngine}, traits: locks,
	caveat: "a read of what may be cached on its side is five commands; a Get, with its load, lasts for a TTL at most; the lease is how long a holder's marker lives; without Redis it returns the error, for its user to load then",
	open: func(c *clients, p policy, load loader) (cache, error) {
		aside, err := rueidisaside.NewClient(rueidisaside.ClientOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{c.redis.Options().Addr}, DialCtxFn: c.wire.dialRueidis},
			ClientTTL:    p.Lease,
		})
		if err != nil {
			return nil, err
		}
		return closing{func(ctx context.Context, key string) (string, error) { return aside.Get(ctx, p.TTL, key, load) }, aside.Close}, nil
	},
}
