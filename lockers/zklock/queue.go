package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the fair mutex: a queue of nodes, of which the first holds the
// lease and each other watches the one before it.

var errNoPlace = errors.New("the place in the queue was lost, with the session or to an operator")

// Lock waits for the lease on key in a queue with all others that call Lock for
// it, in any process, and returns it when its turn has come; first come, first
// served. It waits until ctx ends, then leaves the queue and returns ctx's
// error. The lease is for ttl from its turn on; ErrLeaseLost means that the turn
// came and passed, because this process was paused for longer than that.
//
// It is a mutex for what only one may do at a time, not for caching: of N
// processes that want a value, N take turns here only to find it there, each
// after at least three round trips of its own, and the last after all of them.
// TryAcquire with Watch wakes all N at one time, who then read the value.
//
// Lock and TryAcquire are two locks, also for the same key: neither waits for
// the other's holder.
//
// In an empty queue it costs three requests (a place, a look, the beginning of
// the lease), five if there was no queue. Who has to wait makes two more to do
// so, and two again each time that the one before it goes or the holder has been
// silent for the length of its lease. A release wakes exactly one waiter, a
// renewal none. A release with others behind it costs two requests, as it tries
// to remove the queue first.
//
// A holder that falls silent while its session lives is skipped when a waiter
// has seen it so for the whole length of its lease, which is after one to two
// lengths.
func (l *Locker) Lock(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("zklock: lock %.100q: ttl %v is not positive", key, ttl)
	}
	l.start()
	token := adapter.Token()
	mine := newLease(l, &ticket{dir: l.Prefix + "/" + adapter.Name(key) + ":queue", token: token}, token)
	return adapter.Await(ctx, func() (driver.Lease, error) {
		if err := l.queue(ctx, mine, ttl); err != nil {
			if mine.node.(*ticket).asked {
				l.orphans.add(l, mine) // the place must not block the others
			}
			return nil, mine.wrap("lock", err)
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		if err == nil {
			mine.abandon()
		}
	})
}

// queue returns when mine is the first in its queue and has begun.
func (l *Locker) queue(ctx context.Context, mine *lease, ttl time.Duration) error {
	t := mine.node.(*ticket)
	v := value{mine.token, ttl}
	if err := l.enqueue(ctx, t, v); err != nil {
		return err
	}
	var (
		unanswered error
		before     vigil
	)
	for times := 0; times < maxUnanswered; {
		conn, err := l.session.await(ctx)
		if err != nil {
			return errors.Join(unanswered, err)
		}
		line, err := t.line(conn)
		at := slices.IndexFunc(line, t.is)
		switch {
		case errors.Is(err, zk.ErrNoNode), err == nil && at < 0:
			return errNoPlace
		case err != nil:
			unanswered = err
			times++
			continue
		case at == 0:
			end := time.Now().Add(ttl)
			stat, err := conn.Set(t.path, v.encode(), -1)
			switch {
			case err == nil:
				return mine.begin(stat, end)
			case errors.Is(err, zk.ErrNoNode):
				return driver.ErrLeaseLost
			}
			unanswered = err
			times++
			continue
		}
		err = l.awaitTurn(ctx, conn, &before, t.dir+"/"+line[at-1], t.dir+"/"+line[0])
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			unanswered = err
			times++
		default:
			unanswered, times = nil, 0
		}
	}
	return unanswered
}

// enqueue takes a place at the end of the queue.
func (l *Locker) enqueue(ctx context.Context, t *ticket, v value) error {
	var unanswered error
	for times := 0; times < maxUnanswered; {
		conn, err := l.session.await(ctx)
		if err != nil {
			return errors.Join(unanswered, err)
		}
		if unanswered != nil {
			// The request may have been carried out. A second place would be
			// one that nobody leaves.
			switch err := t.find(conn); {
			case err == nil:
				return nil
			case !errors.Is(err, zk.ErrNoNode):
				unanswered = err
				times++
				continue
			}
		}
		t.asked = true
		path, err := conn.Create(t.dir+"/"+t.token+"-", v.encode(), zk.FlagEphemeralSequential, l.ACL)
		switch {
		case err == nil:
			t.path = path
			return nil
		case errors.Is(err, zk.ErrNoNode):
			if err := l.makeQueue(conn, t.dir); err != nil {
				return errors.Join(unanswered, err)
			}
		default:
			unanswered = err
			times++
		}
	}
	return unanswered
}

// makeQueue makes the node of a queue. It is a container, so that ZooKeeper
// removes it when the last who waited there has died; who leaves alive removes
// it himself.
func (l *Locker) makeQueue(conn *zk.Conn, dir string) error {
	_, err := conn.CreateContainer(dir, nil, zk.FlagContainer, l.ACL)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return l.makePrefix(conn) // and the caller comes again
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	}
	return err
}

// A vigil is the watch of a waiter.
type vigil struct {
	path  string // of the node before its own; empty: there is no watch
	ended <-chan struct{}
}

// awaitTurn returns when it is time to look at the line again: the node before
// ours is gone, or the first one, which holds the lease, is silent. If that has
// been silent for as long as it has announced, it is removed; by whoever finds it
// so, for the one behind it may be as silent.
func (l *Locker) awaitTurn(ctx context.Context, conn *zk.Conn, before *vigil, path, first string) error {
	if before.path != path {
		ended, err := l.watches.await(ctx, conn, path)
		if err != nil {
			return err
		}
		*before = vigil{path, ended}
	}
	holder, stat, err := look(conn, first)
	if err != nil {
		return ignoring(err, zk.ErrNoNode)
	}
	// Counted from when it was first seen as the first. Before its turn it was
	// silent too, as all are who wait.
	left := time.Until(l.seen.Until(first, stat.Mzxid, holder.length))
	if left <= 0 {
		l.seen.Forget(first)
		// Its name has a token: it is nobody else's by now, if it is there.
		return ignoring(conn.Delete(first, stat.Version), zk.ErrNoNode, zk.ErrBadVersion)
	}
	select {
	case <-before.ended: // the session's end too
		*before = vigil{}
	case <-time.After(left):
	case <-ctx.Done():
	}
	return nil
}

// ignoring returns err unless it is one of these.
func ignoring(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// A ticket is a place in a queue. It is changed only by the call that enqueues
// it.
type ticket struct {
	dir   string // the queue's path
	token string
	asked bool   // there may be a node
	path  string // of the node with its number; empty if the reply that had it was lost
}

// numberLen is the length of what ZooKeeper adds to the name of a sequential
// node.
const numberLen = 10

// is reports whether the name is the ticket's.
func (t *ticket) is(name string) bool {
	return len(name) == len(t.token)+1+numberLen && strings.HasPrefix(name, t.token)
}

// line returns the names in the queue, the first first.
func (t *ticket) line(conn *zk.Conn) ([]string, error) {
	names, _, err := conn.Children(t.dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) != len(t.token)+1+numberLen })
	slices.SortFunc(names, func(a, b string) int {
		return strings.Compare(a[len(a)-numberLen:], b[len(b)-numberLen:])
	})
	return names, nil
}

// find sets the ticket's path. The error is zk.ErrNoNode if it has no node.
//
// The node was asked for over another connection, maybe of another server, and this
// one answers reads from what it knows: without the sync it may not know of the node
// yet, which would be a place that nobody has.
func (t *ticket) find(conn *zk.Conn) error {
	if _, err := conn.Sync(t.dir); err != nil {
		return err
	}
	line, err := t.line(conn)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(line, t.is)
	if at < 0 {
		return zk.ErrNoNode
	}
	t.path = t.dir + "/" + line[at]
	return nil
}

// renew implements [node].
func (t *ticket) renew(conn *zk.Conn, v value) (*zk.Stat, error) {
	return conn.Set(t.path, v.encode(), -1)
}

// remove implements [node]. It removes the queue too, if it is the last there.
func (t *ticket) remove(conn *zk.Conn) error {
	if t.path == "" { // then there is one call, behind all others
		if err := t.find(conn); err != nil {
			return err
		}
	}
	_, err := conn.Multi(
		&zk.DeleteRequest{Path: t.path, Version: -1},
		&zk.DeleteRequest{Path: t.dir, Version: -1},
	)
	if errors.Is(err, zk.ErrNotEmpty) {
		err = conn.Delete(t.path, -1)
	}
	return err
}

func (t *ticket) name() string { return t.dir + "/" + t.token }
