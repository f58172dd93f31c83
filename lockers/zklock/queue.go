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

// This file is the fair mutex: a queue of nodes. The first has the lease, each other watches the node before.

var errNoPlace = errors.New("the place in the queue was lost, with the session or to an operator")

// Lock waits for the lease on key in a queue, first come, first served.
//
// The queue has all callers of Lock for the key, in all processes. If ctx ends, Lock leaves the
// queue and returns ctx's error. The lease is for ttl from its turn on. ErrLeaseLost means that the
// turn came and passed, because this process was paused for longer than ttl.
//
// Lock is a mutex for work that must not overlap. It is not for caching: of N processes that want a value, N
// take turns only to find the value present, each after at least three round trips of its own. TryAcquire
// with Watch wakes all N at one time, and they read the value. Lock and TryAcquire are two locks, also for
// the same key: neither waits for the other's holder.
//
// In an empty queue Lock costs three requests (a place, a look, the start of the lease), or five if the
// queue's node is missing. A waiter makes two more, and up to three again each time its predecessor goes or
// the holder has been silent for the length of its lease. A release wakes one waiter, a renewal none. A
// release before other waiters costs two requests, since it tries to remove the queue first. A silent holder
// with a living session is skipped when a waiter has seen it unchanged for the whole length of its lease,
// after one to two lengths.
func (l *Locker) Lock(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("zklock: lock %.100q: ttl %v is not positive", key, ttl)
	}
	l.start()
	token := adapter.Token()
	mine := newLease(l, &ticket{dir: l.parent() + "/" + adapter.Name(key) + ":queue", token: token}, token)
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

func (l *Locker) enqueue(ctx context.Context, t *ticket, v value) error {
	var unanswered error
	for times := 0; times < maxUnanswered; {
		conn, err := l.session.await(ctx)
		if err != nil {
			return errors.Join(unanswered, err)
		}
		if unanswered != nil {
			// The request may have been carried out. A second place would never be left.
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
		case err == nil && !t.is(strings.TrimPrefix(path, t.dir+"/")):
			return fmt.Errorf("%w: the server has named the place %.100q", driver.ErrCorrupt, path)
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

// makeQueue creates the node of a queue, a container: ZooKeeper removes it after its last waiter's death.
func (l *Locker) makeQueue(conn *zk.Conn, dir string) error {
	_, err := conn.CreateContainer(dir, nil, zk.FlagContainer, l.ACL)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return l.makePrefix(conn, l.parent()) // and the caller comes again
	case errors.Is(err, zk.ErrNodeExists):
		return nil
	}
	return err
}

// A vigil is the watch of a waiter.
type vigil struct {
	path  string // of the node before its own; empty without a watch
	ended <-chan struct{}
}

// awaitTurn returns when it is time to look at the line again: the node before ours is gone, or the
// first node, the holder, has been silent for its announced length. It then removes the holder's
// node. Every waiter does this, since the waiter next in line may be silent too.
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
	// Counted from the first sight of it as the first: all waiters are silent before their turn.
	left := time.Until(l.seen.Until(first, stat.Mzxid, holder.length))
	if left <= 0 {
		l.seen.Forget(first)
		// Its name has a token: a node under it cannot be another's by now.
		return ignoring(conn.Delete(first, stat.Version), zk.ErrNoNode, zk.ErrBadVersion)
	}
	select {
	case <-before.ended: // or at the session's end
		*before = vigil{}
	case <-time.After(left):
	case <-ctx.Done():
	}
	return nil
}

func ignoring(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// A ticket is a place in a queue. Only the call that enqueues it changes it.
type ticket struct {
	dir   string // the queue's path
	token string
	asked bool   // there may be a node
	path  string // of the node with its number; empty if the reply with it was lost
}

// numberLen is the length of the number in a sequential node's name.
const numberLen = 10

// is reports whether the name is the ticket's.
func (t *ticket) is(name string) bool {
	return len(name) == len(t.token)+1+numberLen && strings.HasPrefix(name, t.token)
}

// line returns the names in the queue, in order.
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

// find sets the ticket's path. The error is zk.ErrNoNode if it has no node. The request for the node may have
// gone to another server. Without the sync this server may not know of the node yet, which would leave a
// place without a waiter.
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

// remove implements [node]. It removes the queue too, if the ticket is the last there.
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
