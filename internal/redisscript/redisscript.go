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
	script *redis.Script
	taken  atomic.Bool
}

// New returns the script with the source src.
func New(src string) *Script { return &Script{script: redis.NewScript(src)} }

// Run runs the script through q.
func (s *Script) Run(ctx context.Context, q *redispipe.Queue, keys []string, args ...any) *redis.Cmd {
	if s.taken.Load() {
		reply := exec(ctx, q, s.script.EvalSha, keys, args)
		if !redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
			return reply
		}
	}
	reply := exec(ctx, q, s.script.Eval, keys, args)
	if reply.Err() == nil {
		s.taken.Store(true)
	}
	return reply
}

func exec(ctx context.Context, q *redispipe.Queue, eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd, keys []string, args []any) *redis.Cmd {
	pipe := q.Pipeline()
	reply := eval(ctx, pipe, keys, args...)
	q.Exec(ctx, pipe)
	return reply
}
