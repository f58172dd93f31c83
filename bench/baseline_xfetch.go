package main

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"time"
)

// XFetch alone (Vattani, Chierichetti, Lowenstein, VLDB 2015): each reader may rebuild before the expiry
// at random, the likelier the nearer the expiry is, with beta 1. There is no lock: each miss loads.

var onlyXFetch = strategy{
	name: "XFetch alone", engines: []string{redisEngine},
	caveat: "helps keys that are read often; a cold key it does not protect",
	open: func(c *clients, p policy, load loader) (cache, error) {
		type kept struct {
			V      string
			Took   time.Duration
			Expiry time.Time
		}
		return got(func(ctx context.Context, key string) (string, error) {
			var k kept
			b, err := c.redis.Get(ctx, key).Bytes()
			if err == nil && json.Unmarshal(b, &k) == nil {
				early := time.Duration(float64(k.Took) * -math.Log(1-rand.Float64()))
				if time.Now().Add(early).Before(k.Expiry) {
					return k.V, nil
				}
			}
			start := time.Now()
			v, err := load(ctx, key)
			if err != nil {
				return "", err
			}
			if b, err = json.Marshal(kept{v, time.Since(start), time.Now().Add(p.TTL)}); err == nil {
				c.redis.Set(ctx, key, b, p.TTL) // a failed set is a miss later
			}
			return v, err
		}), nil
	},
}
