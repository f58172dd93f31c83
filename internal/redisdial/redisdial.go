// Package redisdial records why a client of Redis has no connection.
//
// By default go-redis dials five times, 100 ms apart, before a command fails, and tries the command
// four times before it returns. The caller's context ends long before that, and its error has
// neither the address nor the reason. A hook of the client sees each dial.
package redisdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// memory is how long a failed dial explains failures. While calls wait, the client dials more often.
const memory = 2 * time.Second

// Failures are the latest failed dials of a client. They are safe for concurrent use.
type Failures struct {
	mu     sync.Mutex // guards latest
	latest map[string]failure
}

// A failure is the latest dial of an address, if it failed.
type failure struct {
	err error
	at  time.Time
}

// Of records rdb's failed dials by a hook: of a cluster's client, the dials of nodes unknown so far.
func Of(rdb redis.UniversalClient) *Failures {
	f := &Failures{latest: map[string]failure{}}
	nodes, ok := rdb.(interface{ OnNewNode(func(*redis.Client)) })
	if !ok {
		rdb.AddHook(f)
		return f
	}
	nodes.OnNewNode(func(node *redis.Client) { node.AddHook(f) })
	if ring, ok := rdb.(interface {
		Options() *redis.RingOptions
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}); ok { // the nodes of a ring exist from the start
		ring.ForEachShard(context.Background(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(f)
			return nil
		})
	}
	return f
}

// Explain adds the client's latest failed dial, if recent, to the error of a call. Replies of a
// server and cancelled calls need no explanation and stay as they are.
func (f *Failures) Explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if _, replied := errors.AsType[redis.Error](err); replied {
		return err
	}
	why := f.last()
	if why == nil || strings.Contains(err.Error(), why.Error()) {
		return err
	}
	return fmt.Errorf("%w: %v", err, why) // not wrapped: a time-out of the dial is not a time-out of the call
}

func (f *Failures) last() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last failure
	for addr, one := range f.latest {
		switch {
		case time.Since(one.at) > memory:
			delete(f.latest, addr)
		case one.at.After(last.at):
			last = one
		}
	}
	return last.err
}

// DialHook implements [redis.Hook]. It refuses a dial with an ended context, which the client's dialer for TLS
// would carry out.
func (f *Failures) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		conn, err := next(ctx, network, addr)
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case err == nil:
			delete(f.latest, addr)
		case !errors.Is(err, context.Canceled):
			f.latest[addr] = failure{err, time.Now()}
		}
		return conn, err
	}
}

// ProcessHook implements [redis.Hook].
func (f *Failures) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (f *Failures) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
