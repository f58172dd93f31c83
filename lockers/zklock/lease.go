package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the holder's side of a lease, which ends by release, by its length, or with the session.

var errSessionEnded = errors.New("the session has ended")

// A node is a lease in ZooKeeper. Its name is its own, so no operation on it reaches another lease.
type node interface {
	// renew writes the new length. The error is zk.ErrNoNode if the node is gone.
	renew(*zk.Conn, value) (*zk.Stat, error)
	// remove removes the node. The error is zk.ErrNoNode if it is gone.
	remove(*zk.Conn) error
	// name is the path, for error texts.
	name() string
}

// A lease is the holder's side of a node.
type lease struct {
	locker *Locker
	node   node
	token  string
	lost   chan struct{} // closed when the lease is known to be lost

	czxid   int64 // of its node
	session int64 // the session of its node

	mu       sync.Mutex // guards the fields below
	end      time.Time  // of the lease, as its holder counts
	version  int32      // of the node, at the write of this end
	expiry   *time.Timer
	renewing int  // renewals without an answer yet
	done     bool // released, lost or abandoned
}

func newLease(l *Locker, n node, token string) *lease {
	return &lease{locker: l, node: n, token: token, lost: make(chan struct{})}
}

// begin starts the holding of the lease until end, with its node as in stat.
func (l *lease) begin(stat *zk.Stat, end time.Time) error {
	l.czxid, l.session = stat.Czxid, stat.EphemeralOwner
	l.mu.Lock()
	l.end, l.version = end, stat.Version
	l.expiry = time.AfterFunc(time.Until(end), l.expire)
	l.mu.Unlock()
	if !l.locker.session.hold(l) {
		l.lose()
		return l.wrap("acquire", errSessionEnded)
	}
	return nil
}

// Token implements [driver.Tokener], with the zxid of the transaction that created the lease.
func (l *lease) Token() uint64 { return uint64(l.czxid) }

// Lost implements [driver.LossNotifier].
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Renew implements [driver.Lease], with 1 request.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("zklock: renew %s: ttl %v is not positive", l.node.name(), ttl)
	}
	end := time.Now().Add(ttl)
	if l.over() {
		// An observer may be about to take the lease over: after its end, no process has to respect it.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error {
		if !l.renewal(end) {
			return driver.ErrLeaseLost
		}
		stat, err := l.ask(ctx, func(conn *zk.Conn) (*zk.Stat, error) {
			return l.node.renew(conn, value{l.token, ttl})
		})
		l.renewed(stat, end)
		if errors.Is(err, zk.ErrNoNode) {
			l.lose()
			err = driver.ErrLeaseLost
		}
		return err
	})
	return l.wrap("renew", err)
}

// renewal begins a renewal to end, and returns false if there is nothing to renew. Until the answer the lease
// ends at the earlier of the two times. It does not expire here meanwhile, or a confirmed renewal could lose
// its node the moment after. For the same reason no renewal begins that could meet the removal by expire.
func (l *lease) renewal(end time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done || !time.Now().Before(l.end) {
		return false
	}
	l.renewing++
	if end.Before(l.end) {
		l.end = end
	}
	return true
}

// renewed ends a renewal. Of concurrent renewals, the last one carried out counts; its answer is not always
// the last. A renewal without an answer, with a nil stat, may be that one.
func (l *lease) renewed(stat *zk.Stat, end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewing--
	switch {
	case stat == nil && end.Before(l.end):
		l.end = end
	case stat != nil && stat.Version > l.version:
		l.end, l.version = end, stat.Version
	}
	if !l.done && l.renewing == 0 {
		l.expiry.Reset(time.Until(l.end))
	}
}

// Release implements [driver.Lease], with 1 request. For an expired lease it removes the nodes and returns
// ErrLeaseLost. Without an answer, the nodes are removed later.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, func() error {
		l.mu.Lock()
		done := l.done
		l.mu.Unlock()
		if done {
			return driver.ErrLeaseLost
		}
		times := 0
		_, err := l.ask(ctx, func(conn *zk.Conn) (*zk.Stat, error) {
			times++
			return nil, l.node.remove(conn)
		})
		switch {
		case err == nil:
			l.finish()
		case !errors.Is(err, zk.ErrNoNode):
			l.locker.orphans.add(l.locker, l)
		case times > 1 && !l.over() && l.finish():
			// Before a lease's end, only its holder or the session's end removes it: a reply was lost.
			err = nil
		default:
			l.lose()
			err = driver.ErrLeaseLost
		}
		return err
	})
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.wrap("release", err)
}

// ask makes a request, and repeats it after a lost reply. zk.ErrNoNode means that the node is missing.
func (l *lease) ask(ctx context.Context, request func(*zk.Conn) (*zk.Stat, error)) (*zk.Stat, error) {
	var unanswered error
	for range maxUnanswered {
		conn, err := l.locker.session.await(ctx)
		if err != nil {
			return nil, errors.Join(unanswered, err)
		}
		stat, err := request(conn)
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			return stat, err
		}
		unanswered = err
	}
	return nil, unanswered
}

func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// expire removes the node of a silent holder's lease and so wakes its watchers: observers would wait longer.
func (l *lease) expire() {
	l.mu.Lock()
	over := !l.done && l.renewing == 0
	if left := time.Until(l.end); over && left > 0 { // renewed while the timer fired
		l.expiry.Reset(left)
		over = false
	}
	l.mu.Unlock()
	if over {
		l.locker.orphans.add(l.locker, l)
	}
}

// finish ends the lease, and reports whether the lease had not ended before.
func (l *lease) finish() bool {
	l.mu.Lock()
	first := !l.done
	l.done = true
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.mu.Unlock()
	if first {
		l.locker.session.leave(l)
	}
	return first
}

// lose ends the lease without its holder's request.
func (l *lease) lose() {
	if l.finish() {
		close(l.lost)
	}
}

// abandon ends a lease without a holder.
func (l *lease) abandon() {
	l.finish()
	l.locker.orphans.add(l.locker, l)
}

func (l *lease) wrap(doing string, err error) error {
	return l.locker.wrap(doing, l.node.name(), err)
}
