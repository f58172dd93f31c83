// Package redispipe sends the commands of many callers to Redis as one pipeline.
//
// A round trip with a hundred commands costs little more than a round trip with one, and a thousand keys that
// expire together make a thousand calls. Calls that arrive during a pipeline go together in the next one, as
// in a group commit. A call that arrives alone is sent at once. go-redis has an experimental queue of this
// kind (AutoPipeline), much larger for its order and its options; calls here have no order.
package redispipe

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/fault"
)

// Large is the size in bytes from which a call goes alone, so no short reply waits for its sending. A caller
// asks for a part of a possibly long reply here, and for the whole without the queue.
const Large = 64 << 10

// A Queue joins the calls to one server. It is safe for concurrent use.
type Queue struct {
	rdb   redis.UniversalClient
	calls *Group[*call]
}

// A call is the commands of a caller, sent together.
type call struct {
	ctx  context.Context
	cmds []redis.Cmder
	done chan struct{} // closed when cmds have their replies
}

// New returns a queue before rdb. Calls are joined as by [NewGroup].
func New(rdb redis.UniversalClient) *Queue {
	q := &Queue{rdb: rdb}
	q.calls = NewGroup(rdb, q.join)
	return q
}

// Exec executes commands as a pipeline, maybe a longer one, and returns when each command has a reply or an error.
// It may outlive ctx, as the client does. If ctx ends while the call waits, nothing is sent.
func (q *Queue) Exec(ctx context.Context, cmds ...redis.Cmder) {
	c := &call{ctx: ctx, cmds: cmds, done: make(chan struct{})}
	switch {
	case size(c.cmds) >= Large:
		q.send(c)
	case q.calls.Join(c):
		q.calls.Alone(func() { q.send(c) })
	default:
		<-c.done
	}
}

func (q *Queue) join(calls []*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool {
		err := c.ctx.Err()
		if err != nil {
			fail(c.cmds, err)
			close(c.done)
		}
		return err != nil
	})
	if len(calls) == 0 {
		return
	}
	var cmds []redis.Cmder
	for _, c := range calls {
		cmds = append(cmds, c.cmds...)
	}
	defer func() {
		tried := refused(cmds[0])
		for _, c := range calls {
			if refused(c.cmds[0]) && !tried {
				go func() {
					defer close(c.done)
					q.send(c)
				}()
				continue
			}
			close(c.done)
		}
	}()
	guard(cmds, func() {
		ctx, cancel := Together(calls, func(c *call) context.Context { return c.ctx }) // user code, on no caller's goroutine
		defer cancel()
		q.process(ctx, cmds)
	})
}

// Together is the context of several calls. It has the values of the first call's context and the
// latest deadline of all, so the client stops when no call waits.
func Together[C any](calls []C, of func(C) context.Context) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(of(calls[0]))
	var last time.Time
	for _, c := range calls {
		due, ok := of(c).Deadline()
		if !ok {
			return ctx, func() {}
		}
		if due.After(last) {
			last = due
		}
	}
	return context.WithDeadline(ctx, last)
}

// refused reports whether the server now carries out no such command. After such a reply to a pipeline's
// first command the client tries the pipeline again, maybe elsewhere. It ignores the other replies.
func refused(cmd redis.Cmder) bool {
	err := cmd.Err()
	return redis.IsReadOnlyError(err) || redis.IsLoadingError(err) || redis.IsMasterDownError(err)
}

func (q *Queue) send(c *call) { guard(c.cmds, func() { q.process(c.ctx, c.cmds) }) }

// guard runs f, which sends commands. Afterwards each command has a reply or an error, unless a hook of the client's has
// refused the pipeline with an error at some of the commands only.
func guard(cmds []redis.Cmder, f func()) {
	err := errors.New("redispipe: a hook of the client's or a context has ended the goroutine")
	defer func() {
		if err != nil {
			fail(cmds, err)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			// The value's methods may call Goexit.
			err = fmt.Errorf("redispipe: panic in the client or a context: %v\n%s", p, debug.Stack())
		}
	}()
	f()
	for _, cmd := range cmds {
		fault.Inquire(cmd.Err()) // a hook's error, and its methods may panic: here they have a guard
	}
	err = nil // or the commands have the error
}

func (q *Queue) process(ctx context.Context, cmds []redis.Cmder) {
	if len(cmds) == 1 {
		q.rdb.Process(ctx, cmds[0])
		return
	}
	pipe := q.rdb.Pipeline()
	pipe.BatchProcess(ctx, cmds...)
	Exec(ctx, pipe)
}

// Exec executes a pipeline. If a hook of the client's refuses the pipeline without an error at any command, each
// command gets the hook's error: go-redis sets the commands' errors only behind the hooks.
func Exec(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		fail(cmds, err)
	}
}

func fail(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// size is the number of bytes in long arguments.
func size(cmds []redis.Cmder) int {
	n := 0
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			switch arg := arg.(type) {
			case []byte:
				n += len(arg)
			case string:
				n += len(arg)
			}
		}
	}
	return n
}
