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

const (
	// memory is how long a failed dial explains failures. While calls wait, the client dials more often.
	memory = 2 * time.Second

	// slow is the time under way after which a dial explains failures. A silent address fails a dial only after
	// the client's DialTimeout, 5 s by default, and its callers leave earlier.
	slow = 100 * time.Millisecond
)

// Failures are the latest failed dials of a client, and its dials under way. They are safe for concurrent use.
type Failures struct {
	mu       sync.Mutex // guards the fields below
	latest   map[string]failure
	underWay map[*dial]struct{}
}

// A dial is a dial under way.
type dial struct {
	addr  string
	began time.Time
}

func newFailures() *Failures {
	return &Failures{latest: map[string]failure{}, underWay: map[*dial]struct{}{}}
}

// A failure is the latest dial of an address, if it failed.
type failure struct {
	err error
	at  time.Time
}

// Of records rdb's failed dials by a hook: of a cluster's client, the dials of nodes unknown so far.
func Of(rdb redis.UniversalClient) *Failures {
	f := newFailures()
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

// Explain adds the client's latest failed dial, if recent, or else a slow dial under way, to the error of a call.
// Replies of a server and cancelled calls need no explanation and stay as they are.
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

// last returns the latest failure, or an error with the address of the oldest slow dial under way, or nil.
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
	if last.err != nil {
		return last.err
	}
	var oldest *dial
	for d := range f.underWay {
		if time.Since(d.began) >= slow && (oldest == nil || d.began.Before(oldest.began)) {
			oldest = d
		}
	}
	if oldest == nil {
		return nil
	}
	return fmt.Errorf("still dialing %s", oldest.addr)
}

// DialHook implements [redis.Hook]. It refuses a dial with an ended context, which the client's dialer for TLS
// would carry out.
func (f *Failures) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d := &dial{addr, time.Now()}
		f.mu.Lock()
		f.underWay[d] = struct{}{}
		f.mu.Unlock()
		err := context.Canceled // if the dialer panics
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.underWay, d)
			switch {
			case err == nil:
				delete(f.latest, addr)
			case !errors.Is(err, context.Canceled):
				f.latest[addr] = failure{err, time.Now()}
			}
		}()
		var conn net.Conn
		conn, err = next(ctx, network, addr)
		return conn, err
	}
}

// ProcessHook implements [redis.Hook].
func (f *Failures) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (f *Failures) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
