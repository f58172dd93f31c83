// Package redisscript runs the Lua scripts of the Redis adapters.
package redisscript

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/redispipe"
)

// A Script is sent whole until a server has accepted it, and called by its hash afterwards. A
// [redis.Script] begins with the hash: its first caller gets an error and sends a second command, in a
// cold fleet's herd. A server may lose the hash by a restart or failover: Run sends the script again.
type Script struct {
	src, hash string
	taken     atomic.Bool
}

// New returns the script with the source src.
func New(src string) *Script { return &Script{src: src, hash: redis.NewScript(src).Hash()} }

// Run runs the script through q.
func (s *Script) Run(ctx context.Context, q *redispipe.Queue, keys []string, args ...any) *redis.Cmd {
	if s.taken.Load() {
		reply := exec(ctx, q, "evalsha", s.hash, keys, args)
		if !redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
			return reply
		}
	}
	reply := exec(ctx, q, "eval", s.src, keys, args)
	if reply.Err() == nil {
		s.taken.Store(true)
	}
	return reply
}

func exec(ctx context.Context, q *redispipe.Queue, name, script string, keys []string, args []any) *redis.Cmd {
	words := append(make([]any, 0, 3+len(keys)+len(args)), name, script, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	reply := redis.NewCmd(ctx, append(words, args...)...)
	q.Exec(ctx, reply)
	return reply
}
