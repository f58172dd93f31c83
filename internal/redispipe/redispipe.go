// Package redispipe sends the commands of many callers to Redis as one pipeline.
//
// For the client, the server and the kernel between them a round trip with a
// hundred commands is little more than one with a single command. When a thousand
// keys expire at one time, a thousand calls are there at one time; here those that
// come while a pipeline is under way wait for it, and go together with the next
// one, as transactions wait for each other's disk in a group commit. A call that
// finds nothing under way is sent at once, and by itself.
//
// go-redis has such a queue too (AutoPipeline), which is experimental, and larger
// by far for the sake of its order and its options: calls here have no order.
package redispipe

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// patience is how long calls wait for a pipeline that others have sent: a
	// connection that hangs, or a long reply, holds up nobody else for longer.
	patience = 2 * time.Millisecond
	// most is how many calls go in one pipeline. The client's time-outs are for
	// the whole of it.
	most = 64
)

// Large is the number of bytes from which on a call goes by itself, so that nobody's
// short reply waits until it is sent. A caller whose reply may be so long asks for a
// part of it here, and for the whole without the queue: in a pipeline the replies
// come one after another.
const Large = 64 << 10

// A Queue joins the calls to one server. It is safe for concurrent use.
type Queue struct {
	rdb   redis.UniversalClient
	joins bool // else each call goes by itself

	mu      sync.Mutex // guards what follows
	busy    bool       // a pipeline is under way that calls wait for
	waiting []*call
}

// A call is a caller's commands, which go together.
type call struct {
	ctx  context.Context
	cmds []redis.Cmder
	done chan struct{} // closed when cmds have their replies
}

// New returns a queue before rdb. Only the calls of a [redis.Client] are joined:
// in a cluster, or a ring, those to a server that is down would hold up those to
// the others.
func New(rdb redis.UniversalClient) *Queue {
	_, joins := rdb.(*redis.Client)
	return &Queue{rdb: rdb, joins: joins}
}

// Pipeline returns a pipeline for Exec.
func (q *Queue) Pipeline() redis.Pipeliner { return q.rdb.Pipeline() }

// Exec executes pipe, maybe as a part of a longer one, and returns when all its
// commands have a reply or an error. It may outlive ctx, as the client does; with
// a ctx that has ended while the call waited, nothing is sent.
func (q *Queue) Exec(ctx context.Context, pipe redis.Pipeliner) {
	c := &call{ctx: ctx, cmds: pipe.Cmds()}
	if !q.joins || size(c.cmds) >= Large {
		q.send(c)
		return
	}
	q.mu.Lock()
	if q.busy {
		c.done = make(chan struct{})
		q.waiting = append(q.waiting, c)
		q.mu.Unlock()
		<-c.done
		return
	}
	q.busy = true
	q.mu.Unlock()
	// Who has waited since is not this caller's to lead.
	over := time.AfterFunc(patience, q.next)
	q.send(c)
	if over.Stop() {
		q.next()
	}
}

// next has those go on who wait. It is called once for each pipeline that they
// wait for: at its end or, by its timer, before. (The timer is also what goes on
// after a hook of the client's has ended the goroutine.)
func (q *Queue) next() {
	if calls := q.take(); calls != nil {
		go q.lead(calls)
	}
}

// lead sends the calls, and those who have waited for them, until nobody does.
func (q *Queue) lead(calls []*call) {
	for calls != nil {
		over := time.AfterFunc(patience, q.next)
		q.join(calls)
		if !over.Stop() {
			return // there is another who leads
		}
		calls = q.take()
	}
}

// take returns those who wait. If nobody does, the next call is sent at once.
func (q *Queue) take() []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), most)
	q.busy = n > 0
	if n == 0 {
		return nil
	}
	calls := q.waiting[:n:n]
	q.waiting = slices.Clone(q.waiting[n:])
	return calls
}

// join sends the calls as one, without those whose context has ended.
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
	ctx, cancel := together(calls)
	defer cancel()
	joint := &call{ctx: ctx}
	for _, c := range calls {
		joint.cmds = append(joint.cmds, c.cmds...)
	}
	defer func() {
		tried := refused(joint.cmds[0])
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
	q.send(joint)
}

// together is the context of several calls: it has the values of the first one's, and
// ends when the last of theirs is due, so that the client does not go on for nobody.
func together(calls []*call) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(calls[0].ctx)
	var last time.Time
	for _, c := range calls {
		due, ok := c.ctx.Deadline()
		if !ok {
			return ctx, func() {}
		}
		if due.After(last) {
			last = due
		}
	}
	return context.WithDeadline(ctx, last)
}

// refused reports whether the server is not one, at present, that carries such a
// command out. The client tries a pipeline again, at another server maybe, if
// that is the reply to its first command, and takes no notice of the others'.
func refused(cmd redis.Cmder) bool {
	err := cmd.Err()
	return redis.IsReadOnlyError(err) || redis.IsLoadingError(err) || redis.IsMasterDownError(err)
}

// send sends a call, and sees that each command has a reply or an error then,
// whatever the client's hooks do.
func (q *Queue) send(c *call) {
	err := errors.New("redispipe: a hook of the client's has ended the goroutine")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redispipe: panic in the client: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			fail(c.cmds, err)
		}
	}()
	if len(c.cmds) == 1 {
		q.rdb.Process(c.ctx, c.cmds[0])
		err = nil // or the command's
		return
	}
	pipe := q.rdb.Pipeline()
	pipe.BatchProcess(c.ctx, c.cmds...)
	if _, err = pipe.Exec(c.ctx); slices.ContainsFunc(c.cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil }) {
		err = nil // but that of a command
	}
}

// fail sets the commands' error.
func fail(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// size is the number of bytes of what is sent in long arguments.
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
