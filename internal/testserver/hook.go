package testserver

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A Hook sees the commands of a Redis client, and answers them in the server's place or sends them.
type Hook func(ctx context.Context, cmds []redis.Cmder, send func() error) error

// DialHook leaves the dialing to the client.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls h with a single command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook calls h with a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// ErrBroken is an error of a hook whose methods panic: a nil pointer.
var ErrBroken error = (*broken)(nil)

type broken struct{ err error }

func (b *broken) Error() string { return b.err.Error() }
func (b *broken) Unwrap() error { return b.err }
