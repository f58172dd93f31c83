package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the election: how a lease is taken, and what other Lockers see of it.

// maxUnanswered is the number of unanswered requests after which a call gives up: it survives a lost
// connection, and reports an absent ensemble.
const maxUnanswered = 3

// A Locker is a [driver.Locker] and a [driver.Watcher] on ZooKeeper, with one session. Lockers are safe for
// concurrent use. Create a Locker with [New], set its fields before first use, and close it.
type Locker struct {
	// Prefix is the path of the parent of all nodes, with or without a slash at its end. The Locker creates a
	// missing Prefix and its missing parents, which needs permission at the lowest node that exists. The
	// default is "/bellwether".
	Prefix string

	// SessionTimeout is how long ZooKeeper keeps the leases of a silent process. The ensemble bounds it, by
	// default to 2 to 20 ticks. The default is 10 s.
	SessionTimeout time.Duration

	// Dial makes a connection, for TLS or a proxy. The default is a [net.Dialer]'s DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// AuthScheme and Auth are the Locker's credentials, such as "digest" and "user:password". Default: none.
	AuthScheme string
	Auth       []byte

	// ACL is the access control list of the Locker's nodes, including those of a missing Prefix. All Lockers
	// of a fleet need all permissions. Use zk.AuthACL(zk.PermAll) or zk.DigestACL with credentials. The
	// default permits all clients everything.
	ACL []zk.ACL

	session session
	watches watches
	orphans orphans
	seen    adapter.Observations[int64] // nodes by their latest change, the mzxid
}

var (
	_ driver.Locker       = (*Locker)(nil)
	_ driver.Watcher      = (*Locker)(nil)
	_ driver.Tokener      = (*lease)(nil)
	_ driver.LossNotifier = (*lease)(nil)
)

// New returns a Locker on the ensemble of the servers, each a host:port. It connects at its first
// use, and again after each loss. It resolves names each time.
func New(servers ...string) *Locker {
	l := &Locker{Prefix: "/bellwether", SessionTimeout: 10 * time.Second, Dial: new(net.Dialer).DialContext, ACL: zk.WorldACL(zk.PermAll)}
	l.session.init(servers)
	return l
}

// Close ends the session, with all its leases and watches, and returns when the connection is closed, after
// about a second if ZooKeeper is silent. It always returns nil, and may be called again.
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
	return l.wrap("ping", l.Prefix, err)
}

func (l *Locker) start() {
	l.session.start(l.SessionTimeout, l.Dial, credentials{l.AuthScheme, l.Auth}, func(ev zk.Event) {
		switch ev.Type {
		case zk.EventNodeDeleted, zk.EventNotWatching:
			l.watches.end(ev.Path)
		}
	}, l.watches.any, l.watches.endAll)
}

// TryAcquire implements [driver.Locker]. It costs 1 request for a free lease, 2 for a held lease, 3 for a
// takeover. A HeldError's Until counts from this Locker's first sight of the unchanged lease, so a long-dead
// holder costs at most its length.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("zklock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	end, token := time.Now().Add(ttl), adapter.Token()
	l.start()
	mine := newLease(l, l.pair(adapter.Name(key), token), token)
	b := bid{locker: l, key: key, mine: mine, want: value{token, ttl}, end: end}
	return adapter.Await(ctx, func() (driver.Lease, error) {
		if err := b.acquire(ctx); err != nil {
			return nil, err
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		if err == nil {
			mine.abandon() // its caller has left
		}
	})
}

// A bid is one call's attempt to take a lease, with all its requests.
type bid struct {
	locker *Locker
	key    string
	mine   *lease // its node is a pair
	want   value
	end    time.Time // of the lease, as its holder counts

	unanswered      error // of requests that may have been carried out
	unansweredCount int   // the number of these requests
	takenOverAt     int64 // the node's change at the last attempt of a takeover
}

// acquire takes the lease, or returns the reason why it cannot. After an error it gives back, in
// the background, every lease that an unanswered request may have taken.
func (b *bid) acquire(ctx context.Context) (err error) {
	l, p := b.locker, b.mine.node.(pair)
	defer func() {
		if err != nil && b.unanswered != nil {
			l.orphans.add(l, b.mine)
		}
	}()
	for {
		conn, err := l.session.await(ctx)
		if err != nil {
			return b.failed(err)
		}
		stat, err := p.create(conn, b.want)
		switch {
		case err == nil:
			return b.mine.begin(stat, b.end)
		case errors.Is(err, zk.ErrNodeExists):
			if done, err := b.lookAndTakeOver(conn); done || err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNoNode):
			if err := l.makePrefix(conn, l.parent()); err != nil {
				return b.failed(err)
			}
		default:
			// The same again: if it was carried out, it finds its own token.
			if err := b.noAnswer(err); err != nil {
				return err
			}
		}
	}
}

// lookAndTakeOver looks at a lease that was held, and takes it over from a silent holder. Without an error, mine
// has the lease if done is true. Otherwise the caller creates again, which shows the lease's present state.
func (b *bid) lookAndTakeOver(conn *zk.Conn) (done bool, err error) {
	l, p := b.locker, b.mine.node.(pair)
	held, stat, err := look(conn, p.lease)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		if b.unanswered != nil {
			return false, nil
		}
		// Another holder had it when the create was refused, and has released it.
		return false, &driver.HeldError{Key: b.key, Until: time.Now(), Seen: seenLease{locker: l}}
	case err != nil:
		return false, b.failed(err)
	case held.token == b.want.token:
		// The request was carried out, and its reply was lost.
		return true, b.mine.begin(stat, b.end)
	}
	until := l.seen.Until(p.lease, stat.Mzxid, held.length)
	if time.Now().Before(until) {
		return false, &driver.HeldError{Key: b.key, Until: until, Seen: seenLease{l, l.holderPath(held.token)}}
	}
	if stat.Mzxid == b.takenOverAt {
		return false, b.failed(fmt.Errorf("%w: the node has no holder's node beside it", driver.ErrCorrupt))
	}
	b.takenOverAt = stat.Mzxid
	stat, err = p.takeOver(conn, l.holderPath(held.token), stat.Version, b.want)
	switch {
	case err == nil:
		l.seen.Forget(p.lease)
		return true, b.mine.begin(stat, b.end)
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNodeExists):
		// Renewed, released, or another was quicker: the next look shows it.
		return false, nil
	}
	b.takenOverAt = 0
	return false, b.noAnswer(err)
}

// noAnswer records a request without an answer. It returns an error after a refusal or too many requests.
func (b *bid) noAnswer(err error) error {
	if refused(err) {
		return b.failed(err)
	}
	b.unanswered = err
	if b.unansweredCount++; b.unansweredCount == maxUnanswered {
		return b.mine.wrap("acquire", err)
	}
	return nil
}

// failed is the error of the call, with the last request without an answer.
func (b *bid) failed(err error) error {
	return b.mine.wrap("acquire", errors.Join(b.unanswered, err))
}

// A pair is the two nodes of a lease, created and deleted together.
type pair struct {
	lease  string // path, the same for all holders of the key
	holder string // path, with the holder's token
	acl    []zk.ACL
}

func (l *Locker) pair(name, token string) pair {
	return pair{l.parent() + "/" + name + ":lease", l.holderPath(token), l.ACL}
}

func (l *Locker) holderPath(token string) string { return l.parent() + "/" + token + ":holder" }

// parent is Prefix without slashes at its end, "" for the root.
func (l *Locker) parent() string { return strings.TrimRight(l.Prefix, "/") }

// create takes a free lease. zk.ErrNodeExists means that it is held, zk.ErrNoNode a missing parent.
func (p pair) create(conn *zk.Conn, v value) (*zk.Stat, error) {
	return statOf(conn.Multi(p.creation(v)...))
}

// creation creates the pair. The write comes last: a create returns no Stat (fencing token, owner).
func (p pair) creation(v value) []any {
	return []any{
		&zk.CreateRequest{Path: p.lease, Acl: p.acl, Flags: zk.FlagEphemeral},
		&zk.CreateRequest{Path: p.holder, Acl: p.acl, Flags: zk.FlagEphemeral},
		&zk.SetDataRequest{Path: p.lease, Data: v.encode(), Version: 0},
	}
}

// takeOver replaces the lease of holder, not renewed since version. The version alone is not enough. If two
// observers take over a dead holder's lease at one time, the second would delete the lease of the first,
// which has the same version. The name of the holder's node is used only once.
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

func statOf(replies []zk.MultiResponse, err error) (*zk.Stat, error) {
	if err != nil {
		return nil, err
	}
	if len(replies) == 0 || replies[len(replies)-1].Stat == nil {
		return nil, fmt.Errorf("%w: a transaction without the result of its write", driver.ErrCorrupt)
	}
	return replies[len(replies)-1].Stat, nil
}

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

// makePrefix creates path, which is parent or a node above it, and its missing parents. It begins at
// the far end: nodes further up may forbid new children. The nodes stay.
func (l *Locker) makePrefix(conn *zk.Conn, path string) error {
	_, err := conn.Create(path, nil, zk.FlagPersistent, l.ACL)
	if errors.Is(err, zk.ErrNoNode) {
		if err := l.makePrefix(conn, path[:strings.LastIndexByte(path, '/')]); err != nil {
			return err
		}
		_, err = conn.Create(path, nil, zk.FlagPersistent, l.ACL)
	}
	if err = ignoring(err, zk.ErrNodeExists); err != nil {
		return fmt.Errorf("making %s: %w", path, err)
	}
	return nil
}

// orphans are possible nodes without a holder: unanswered requests, leases whose caller has left, expired
// leases. They are removed in the background as soon as ZooKeeper answers, or at the session's end.
type orphans struct {
	mu       sync.Mutex // guards leases and busy
	leases   map[*lease]struct{}
	busy     bool
	sweeping sync.WaitGroup
}

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

// close waits for the sweep, after the session has ended.
func (o *orphans) close() {
	// Every later holder of the mutex sees that the session has ended, so no sweep begins now.
	o.mu.Lock()
	o.mu.Unlock() //lint:ignore SA2001 see above
	o.sweeping.Wait()
}

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
			// A lost connection is awaited again. After other errors, the pause keeps the loop from spinning.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-l.session.ctx.Done():
			}
			continue
		}
		next.lose() // no effect if it has ended before
		o.mu.Lock()
		delete(o.leases, next)
		o.mu.Unlock()
	}
}

// The answers of ZooKeeper for which the client has no error.
const (
	localSession    = "unknown error: -120" // it has no ephemeral nodes
	unauthenticated = "unknown error: -124"
	overQuota       = "unknown error: -125"
)

func says(err error, answer string) bool { return err != nil && strings.Contains(err.Error(), answer) }

// refused reports whether permission was denied, a quota is used up, or the session or the path cannot have the node:
// the request was not carried out, and a repeated one will not be. A node that may be created but not removed goes
// with its session.
func refused(err error) bool {
	return errors.Is(err, zk.ErrInvalidPath) || errors.Is(err, zk.ErrBadArguments) || errors.Is(err, zk.ErrNoAuth) || errors.Is(err, zk.ErrInvalidACL) || errors.Is(err, zk.ErrNoChildrenForEphemerals) ||
		says(err, localSession) || says(err, unauthenticated) || says(err, overQuota)
}

// wrap adds the operation and a remedy to an engine's error. Errors of the contract and of a context pass unchanged.
func (l *Locker) wrap(doing, what string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if todo := remedy(err); todo != "" {
		err = fmt.Errorf("%s: %w", todo, err)
	}
	return fmt.Errorf("zklock: %s %s: %w", doing, what, l.session.explain(err))
}

// remedy returns how to end a refusal, or "".
func remedy(err error) string {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return "the node's access control list refuses this Locker: set AuthScheme and Auth to credentials with all permissions"
	case says(err, unauthenticated):
		return "ZooKeeper asks for credentials (enforce.auth.enabled): set AuthScheme and Auth"
	case says(err, overQuota):
		return "a quota is used up, which ZooKeeper enforces (enforceQuota): raise it with setquota, since each lease takes two nodes"
	case says(err, localSession):
		return "the session is a local one, which has no leases: set localSessionsUpgradingEnabled beside localSessionsEnabled on all servers"
	case errors.Is(err, zk.ErrSessionExpired): // a follower's answer in a local session
		return "if this goes on, sessions are local ones, which have no leases: set localSessionsUpgradingEnabled beside localSessionsEnabled on all servers"
	}
	return ""
}
