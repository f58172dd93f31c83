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

// This file is the holder's side of a lease: it ends by release, by its length,
// or with the session, whichever comes first.

var errSessionEnded = errors.New("the session has ended")

// A node is what a lease is in ZooKeeper. It has a name of its own, so whatever
// is done to it is never done to another's.
type node interface {
	// renew writes the new length. The error is zk.ErrNoNode if it is gone.
	renew(*zk.Conn, value) (*zk.Stat, error)
	// remove removes it. The error is zk.ErrNoNode if it is gone.
	remove(*zk.Conn) error
	// name is its path, for people.
	name() string
}

// A lease is the holder's side of a node.
type lease struct {
	locker *Locker
	node   node
	token  string
	lost   chan struct{} // closed when it is known to be lost

	czxid   int64 // of its node
	session int64 // that it ends with

	mu       sync.Mutex // guards what follows
	end      time.Time  // of the lease as its holder counts
	version  int32      // of the node, when it was given this end
	expiry   *time.Timer
	renewing int  // renewals that ZooKeeper has not answered yet
	done     bool // released, lost or abandoned
}

func newLease(l *Locker, n node, token string) *lease {
	return &lease{locker: l, node: n, token: token, lost: make(chan struct{})}
}

// begin makes the lease one that is held until end, its node being as stat says.
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

// Token implements [driver.Tokener]: the zxid of the transaction that made
// the lease. It rises as long as the ensemble keeps its data.
func (l *lease) Token() uint64 { return uint64(l.czxid) }

// Lost implements [driver.LossNotifier].
func (l *lease) Lost() <-chan struct{} { return l.lost }

// Renew implements [driver.Lease]. It costs one request.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("zklock: renew %s: ttl %v is not positive", l.node.name(), ttl)
	}
	end := time.Now().Add(ttl)
	if l.over() {
		// An observer may be about to take it over: whoever holds it after its
		// end holds a promise that nobody has to keep. So it is given up.
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

// renewal begins a renewal to end, and reports with false that there is nothing
// to renew. Until it is answered nobody knows whether it was carried out, so the
// lease ends at the earlier of the two times; and it does not expire here, for
// else a renewal that ZooKeeper confirms could lose its node the moment after.
// For the same reason none begins that could meet the removal by expire.
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

// renewed ends a renewal; stat is nil if it was not carried out, as far as is
// known. Of several at one time the last one counts that ZooKeeper has carried
// out, which is not always the last to be answered.
func (l *lease) renewed(stat *zk.Stat, end time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewing--
	if stat != nil && stat.Version > l.version {
		l.end, l.version = end, stat.Version
	}
	if !l.done && l.renewing == 0 {
		l.expiry.Reset(time.Until(l.end))
	}
}

// Release implements [driver.Lease]. It costs one request. It also removes
// what is left of a lease that has expired, but returns ErrLeaseLost then. If
// ZooKeeper does not answer, the lease is removed as soon as it does.
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
			// Nobody but its holder removes a lease before its end, or else
			// this session has ended: it was the request whose reply was lost.
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

// ask makes a request, again if its reply was lost with the connection. The
// error is zk.ErrNoNode if there is no node, or none any more.
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

// over reports whether the lease has ended as its holder counts.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// expire removes the node of a lease whose holder is silent. Else it would stay
// until another has observed it for its whole length, or the session ends; and
// so its watchers are woken.
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

// finish ends the lease on its holder's wish. It reports whether it was not
// ended before.
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

// lose ends the lease against its holder's wish.
func (l *lease) lose() {
	if l.finish() {
		close(l.lost)
	}
}

// abandon ends a lease that nobody holds.
func (l *lease) abandon() {
	l.finish()
	l.locker.orphans.add(l.locker, l)
}

func (l *lease) wrap(doing string, err error) error { return wrap(doing, l.node.name(), err) }
