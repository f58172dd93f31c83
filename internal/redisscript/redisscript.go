// Package redisscript runs the Lua scripts of the adapters on Redis.
package redisscript

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/redispipe"
)

// A Script is sent whole until a server has taken it from this process, and
// called by its hash from then on. A [redis.Script] begins with the hash, which
// costs the first caller of every script an error and a second command, in the
// herd on a cold fleet as ever. A server that does not know the hash, another one
// or one that was restarted, is sent the script again.
type Script struct {
	script *redis.Script
	taken  atomic.Bool
}

// New returns the script with the source src.
func New(src string) *Script { return &Script{script: redis.NewScript(src)} }

// Run runs the script by way of q.
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

// exec sends what eval makes of the script.
func exec(ctx context.Context, q *redispipe.Queue, eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd, keys []string, args []any) *redis.Cmd {
	pipe := q.Pipeline()
	reply := eval(ctx, pipe, keys, args...)
	q.Exec(ctx, pipe)
	return reply
}
