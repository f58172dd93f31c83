package redislock

import "github.com/bellwether-go/bellwether/internal/redislease"

// Watches is the number of waiting watches, over all keys.
func (l *Locker) Watches() int { return l.leases.Watches() }

// Key is the Redis key of the lease on name.
func (l *Locker) Key(name string) string { return redislease.Key(l.Prefix, name) }
