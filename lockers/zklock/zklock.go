package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the election: who takes a lease, and what the others see of it.

// maxUnanswered is after how many requests without an answer an acquire, a
// renewal or a release gives up: one lost connection is gone through, an
// ensemble that is away is told to the caller.
const maxUnanswered = 3

// A Locker is a [driver.Locker] and a [driver.Watcher] on ZooKeeper,
// with one session. It is safe for concurrent use. Create one with [New], and
// close it.
type Locker struct {
	// Prefix is the path of the node below which everything is. Set it before
	// the first use; the default is "/bellwether". Missing nodes of it are made.
	Prefix string

	// SessionTimeout is how long ZooKeeper keeps the leases of a process that it
	// does not hear of. The ensemble bounds it, by default to 2 to 20 of its
	// ticks. Set it before the first use; the default is 10 s.
	SessionTimeout time.Duration

	// Dial makes a connection, for TLS or a proxy. Set it before the first use;
	// the default is a [net.Dialer]'s DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// AuthScheme and Auth are the credentials that the Locker gives to ZooKeeper, such
	// as "digest" and "user:password". Set them before the first use; by default there
	// are none.
	AuthScheme string
	Auth       []byte

	// ACL says who may do what with the nodes that the Locker makes. All Lockers of a
	// fleet need all permissions. Set it before the first use, to zk.AuthACL(zk.PermAll)
	// or zk.DigestACL where there are credentials; the default is everybody.
	ACL []zk.ACL

	session session
	watches watches
	orphans orphans
	seen    adapter.Observations[int64] // of nodes, by their latest change, the mzxid
}

var (
	_ driver.Locker       = (*Locker)(nil)
	_ driver.Watcher      = (*Locker)(nil)
	_ driver.Tokener      = (*lease)(nil)
	_ driver.LossNotifier = (*lease)(nil)
)

// New returns a Locker on the ensemble of these servers, each of them host:port.
// It connects when it is first used, and again whenever it has to; names are
// looked up each time.
func New(servers ...string) *Locker {
	l := &Locker{Prefix: "/bellwether", SessionTimeout: 10 * time.Second, Dial: new(net.Dialer).DialContext, ACL: zk.WorldACL(zk.PermAll)}
	l.session.init(servers)
	return l
}

// Close ends the session, and with it every lease and watch that it has. It
// returns when the connection is closed, after about a second where ZooKeeper
// does not answer. The error is always nil; a second Close does nothing.
func (l *Locker) Close() error {
	l.session.close()
	l.watches.endAll()
	l.orphans.close()
	return nil
}

// Ping returns nil if ZooKeeper answers in the Locker's session.
func (l *Locker) Ping(ctx context.Context) error {
	l.start()
	err := adapter.Do(ctx, func() error {
		conn, err := l.session.await(ctx)
		if err == nil {
			_, _, err = conn.Exists("/")
		}
		return err
	})
	return wrap("ping", l.Prefix, err)
}

// start opens the session at the Locker's first use.
func (l *Locker) start() {
	l.session.start(l.SessionTimeout, l.Dial, credentials{l.AuthScheme, l.Auth}, func(ev zk.Event) {
		switch ev.Type {
		case zk.EventNodeDeleted, zk.EventNotWatching:
			l.watches.end(ev.Path)
		}
	}, l.watches.any, l.watches.endAll)
}

// TryAcquire implements [driver.Locker]. It costs one request if the lease
// is free, two if it is held and three if it is taken over. The error's Until is
// counted from when this Locker first saw the lease as it is, so a holder that
// died long ago is waited for at most as long as it had announced; the end of
// its session ends the wait sooner. A ttl that is not positive is an error.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("zklock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	start, token := time.Now(), adapter.Token()
	l.start()
	mine := newLease(l, l.pair(adapter.Name(key), token), token)
	return adapter.Await(ctx, func() (driver.Lease, error) {
		if err := l.acquire(ctx, key, mine, start, ttl); err != nil {
			return nil, err
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		if err == nil {
			mine.abandon() // nobody waits for it any more
		}
	})
}

// acquire makes mine the lease on its key, or returns why it is not. What it
// has asked for without an answer it gives back behind its error.
func (l *Locker) acquire(ctx context.Context, key string, mine *lease, start time.Time, ttl time.Duration) (err error) {
	p := mine.node.(pair)
	want := value{mine.token, ttl}
	var (
		unanswered error // of requests that may have been carried out
		times      int
		last       int64 // the change at which a lease was to be taken over
	)
	defer func() {
		if err != nil && unanswered != nil {
			l.orphans.add(l, mine)
		}
	}()
	for {
		conn, err := l.session.await(ctx)
		if err != nil {
			return mine.wrap("acquire", errors.Join(unanswered, err))
		}
		stat, err := p.create(conn, want)
		switch {
		case err == nil:
			return mine.begin(stat, start.Add(ttl))
		case errors.Is(err, zk.ErrNodeExists):
		case errors.Is(err, zk.ErrNoNode):
			if err := l.makePrefix(conn); err != nil {
				return mine.wrap("acquire", errors.Join(unanswered, err))
			}
			continue
		case refused(err):
			return mine.wrap("acquire", errors.Join(unanswered, err))
		default:
			unanswered = err
			if times++; times == maxUnanswered {
				return mine.wrap("acquire", err)
			}
			// The same again: if it was carried out, it finds its own token.
			continue
		}

		held, stat, err := look(conn, p.lease)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			if unanswered != nil {
				continue
			}
			// Another had it when the create was refused, and has released it.
			return &driver.HeldError{Key: key, Until: time.Now(), Seen: seen{locker: l}}
		case err != nil:
			return mine.wrap("acquire", errors.Join(unanswered, err))
		case held.token == mine.token:
			// The request was carried out, and its reply was lost.
			return mine.begin(stat, start.Add(ttl))
		}
		until := l.seen.Until(p.lease, stat.Mzxid, held.length)
		if time.Now().Before(until) {
			return &driver.HeldError{Key: key, Until: until, Seen: seen{l, l.holderPath(held.token)}}
		}
		if stat.Mzxid == last {
			return mine.wrap("acquire", fmt.Errorf("%w: the node has no holder's node beside it", driver.ErrCorrupt))
		}
		last = stat.Mzxid
		stat, err = p.takeOver(conn, l.holderPath(held.token), stat.Version, want)
		switch {
		case err == nil:
			l.seen.Forget(p.lease)
			return mine.begin(stat, start.Add(ttl))
		case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNodeExists):
			// Renewed, released, or another was quicker: the next look shows it.
		case refused(err):
			return mine.wrap("acquire", errors.Join(unanswered, err))
		default:
			unanswered, last = err, 0
			if times++; times == maxUnanswered {
				return mine.wrap("acquire", err)
			}
		}
	}
}

// A pair is the two nodes of a lease: one by which it excludes others, and one
// by which it is told from them. They come and go together.
type pair struct {
	lease  string // path, the same for all holders of the key
	holder string // path, with the holder's token
	acl    []zk.ACL
}

func (l *Locker) pair(name, token string) pair {
	return pair{l.Prefix + "/" + name + ":lease", l.holderPath(token), l.ACL}
}

func (l *Locker) holderPath(token string) string { return l.Prefix + "/" + token + ":holder" }

// create takes the lease if it is free. The error is zk.ErrNodeExists if it is
// held, and zk.ErrNoNode if there is no parent.
func (p pair) create(conn *zk.Conn, v value) (*zk.Stat, error) {
	return statOf(conn.Multi(p.creation(v)...))
}

// creation is the operations that make the pair. The last one is there because
// a create returns no Stat, which has the fencing token and the owner.
func (p pair) creation(v value) []any {
	return []any{
		&zk.CreateRequest{Path: p.lease, Acl: p.acl, Flags: zk.FlagEphemeral},
		&zk.CreateRequest{Path: p.holder, Acl: p.acl, Flags: zk.FlagEphemeral},
		&zk.SetDataRequest{Path: p.lease, Data: v.encode(), Version: 0},
	}
}

// takeOver replaces a lease that was seen as it is for its whole length: the one
// of that holder, not renewed since version.
//
// The version alone would not do. It is a count that begins anew with each node,
// so of two observers that take a dead holder's lease over at one time, the
// second would delete the lease of the first, which has the same version by
// then. The holder's node has a name that no other lease ever has.
func (p pair) takeOver(conn *zk.Conn, holder string, version int32, v value) (*zk.Stat, error) {
	return statOf(conn.Multi(append([]any{
		&zk.DeleteRequest{Path: holder, Version: -1},
		&zk.DeleteRequest{Path: p.lease, Version: version},
	}, p.creation(v)...)...))
}

// renew implements [node].
func (p pair) renew(conn *zk.Conn, v value) (*zk.Stat, error) {
	return statOf(conn.Multi(
		&zk.CheckVersionRequest{Path: p.holder, Version: -1}, // it exists
		&zk.SetDataRequest{Path: p.lease, Data: v.encode(), Version: -1},
	))
}

// remove implements [node].
func (p pair) remove(conn *zk.Conn) error {
	_, err := conn.Multi(
		&zk.DeleteRequest{Path: p.holder, Version: -1},
		&zk.DeleteRequest{Path: p.lease, Version: -1},
	)
	return err
}

func (p pair) name() string { return p.lease }

// statOf returns what the last operation of a transaction returns.
func statOf(replies []zk.MultiResponse, err error) (*zk.Stat, error) {
	if err != nil {
		return nil, err
	}
	return replies[len(replies)-1].Stat, nil
}

// look returns the lease that a node stands for.
func look(conn *zk.Conn, path string) (value, *zk.Stat, error) {
	data, stat, err := conn.Get(path)
	if err != nil {
		return value{}, nil, err
	}
	v, ok := decode(data)
	if !ok {
		return value{}, nil, fmt.Errorf("%w: the node is not a lease", driver.ErrCorrupt)
	}
	return v, stat, nil
}

// makePrefix makes the nodes of the Prefix that are missing. They stay.
func (l *Locker) makePrefix(conn *zk.Conn) error {
	for i := 1; i <= len(l.Prefix); i++ {
		if i < len(l.Prefix) && l.Prefix[i] != '/' {
			continue
		}
		_, err := conn.Create(l.Prefix[:i], nil, zk.FlagPersistent, l.ACL)
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("making %s: %w", l.Prefix[:i], err)
		}
	}
	return nil
}

// orphans are nodes that nobody holds, or may be none: requests that were not
// answered, leases whose caller has left, leases that have expired. They are
// removed behind the back of all callers, as soon as ZooKeeper answers. The end
// of the session removes them too.
type orphans struct {
	mu       sync.Mutex // guards leases and busy
	leases   map[*lease]struct{}
	busy     bool
	sweeping sync.WaitGroup
}

// add has a lease's nodes removed.
func (o *orphans) add(l *Locker, le *lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leases == nil {
		o.leases = make(map[*lease]struct{})
	}
	o.leases[le] = struct{}{}
	if o.busy || l.session.ctx.Err() != nil {
		return
	}
	o.busy = true
	o.sweeping.Go(func() { o.sweep(l) })
}

// close waits for what removes them, after the session has ended.
func (o *orphans) close() {
	// Whoever has the mutex after this sees that the session has ended, so
	// nothing begins beside the wait.
	o.mu.Lock()
	o.mu.Unlock() //lint:ignore SA2001 see above
	o.sweeping.Wait()
}

// sweep removes what there is and ends. There is one at a time.
func (o *orphans) sweep(l *Locker) {
	for {
		o.mu.Lock()
		var next *lease
		for next = range o.leases {
			break
		}
		if next == nil {
			o.busy = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		err := adapter.Do(l.session.ctx, func() error {
			conn, err := l.session.awaitUp(l.session.ctx)
			if err == nil {
				err = next.node.remove(conn)
			}
			return err
		})
		if l.session.ctx.Err() != nil {
			return // the session's end removes the rest
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) && !refused(err) {
			// A connection that was lost on the way is awaited again; what else
			// there is must not make this a loop without a pause.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-l.session.ctx.Done():
			}
			continue
		}
		next.lose() // if that is news to it
		o.mu.Lock()
		delete(o.leases, next)
		o.mu.Unlock()
	}
}

// refused reports whether ZooKeeper has answered that this may not be done: it
// was not, and asked again it will not be. What may be created and not removed
// goes with its session.
func refused(err error) bool {
	return errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrInvalidACL) || errors.Is(err, zk.ErrNoChildrenForEphemerals)
}

// wrap says what was being done when the engine failed. What the contract
// names, and the caller's own context error, go through as they are.
func wrap(doing, what string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("zklock: %s %s: %w", doing, what, err)
}
