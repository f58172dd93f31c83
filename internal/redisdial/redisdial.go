// Package redisdial notes why a client of Redis has no connection.
//
// go-redis dials five times by default, 100 ms apart, before a command fails, and makes
// the command four times before its caller hears of that: a cache has left long before.
// So its call ends with the context's error, which says neither the address nor that
// nobody listens there. A hook of the client's hears of each dial.
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

// memory is for how long a failure explains others. The client dials again sooner, for
// whoever waits for a connection.
const memory = 2 * time.Second

// Failures are the latest of a client's failures to connect. They are safe for concurrent
// use.
type Failures struct {
	mu     sync.Mutex // guards latest
	latest map[string]failure
}

// A failure is the latest dial of an address, if that failed.
type failure struct {
	err error
	at  time.Time
}

// Of has the failures of rdb noted from now on, by a hook. Of a cluster's client these are
// those of nodes that it does not know yet.
func Of(rdb redis.UniversalClient) *Failures {
	f := &Failures{latest: map[string]failure{}}
	nodes, ok := rdb.(interface{ OnNewNode(func(*redis.Client)) })
	if !ok {
		rdb.AddHook(f)
		return f
	}
	nodes.OnNewNode(func(node *redis.Client) { node.AddHook(f) })
	if ring, ok := rdb.(*redis.Ring); ok { // which has its nodes from the start
		ring.ForEachShard(context.Background(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(f)
			return nil
		})
	}
	return f
}

// Explain returns err, the error of a call, with the client's latest failure to connect
// where that was of late. A server's own word, and the end of a call whose caller has
// left, need no explanation.
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
	return fmt.Errorf("%w: %v", err, why) // not wrapped: a time-out of its own is not the call's
}

// last returns the latest failure of late, nil if there is none.
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

// DialHook implements [redis.Hook].
func (f *Failures) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
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
