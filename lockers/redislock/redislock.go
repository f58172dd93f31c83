// Package redislock is a [driver.Locker] and a [driver.Watcher] on
// Redis 7.0 or later, by the client github.com/redis/go-redis.
//
// A lease is a string key that holds a random token. The protocol:
//
//  1. Acquire is one pipeline of two commands, SET key token NX GET PX length
//     and PTTL key: it takes the lease, or returns whose it is and how long it
//     lasts. No script is involved.
//  2. Renew is a script that compares the token and sets a new expiry, if that
//     is later than the key's: a renewal never shortens a lease. (Renewals have
//     no order: one that was given up may be carried out seconds after the next.)
//  3. Release is a script that compares the token, deletes the key, and
//     publishes its name on one channel, Prefix + "released:" and the number of
//     the database that the client's options name.
//  4. A Locker subscribes to that channel on a connection of its own, which
//     the first TryAcquire opens in the background. Every watch of every key
//     hangs on this one connection; a watch costs no command. (Only a lease
//     that was seen before the subscription stood is looked at once more.)
//
// Every token has the same length and is compared as a whole, so that no token
// is another's beginning.
//
// # No wake is missed
//
// The Locker counts the releases that it hears of. TryAcquire reads the count
// before it sends its SET, and Watch compares: a release that came after the
// SET is heard on a subscription that stood before the SET, so that either it
// has raised the count by then, or it finds the watch registered. When the
// connection is lost, all its watches wake, because what was published in
// between is gone for good. Until the subscription stands again Watch returns
// an error, and its caller polls. A connection that is dead without having been
// closed is found out within three seconds.
//
// An expiry publishes nothing, since Redis may notice it arbitrarily late;
// watchers keep a timer for HeldError.Until.
//
// # One pipeline for many
//
// With a [redis.Client], calls that come while another is under way are sent
// together, as one pipeline, when that has its reply, or 2 ms later. The client's
// hooks see such a pipeline with the context of its first call.
//
// # Limits
//
// A lease is as durable as the key. A failover to a replica that has not
// received it, or a restart without persistence, lets a second holder in; then
// it is the store's epochs that let only one of them write.
//
// With a cluster, keys spread over the slots and the one channel is carried by
// the cluster's bus; each Locker listens at a node drawn by lot. A Ring's shards
// know nothing of each other's channels: there Watch always returns an error,
// and a shard that is taken out leaves its leases to be taken again at another.
//
// The client repeats a command whose reply was lost. A repeated acquire finds
// its own token and succeeds. A repeated release finds nothing, and reports
// ErrLeaseLost for a lease that the first attempt has freed.
//
// A socket that hangs is left by the caller when its context ends, but kept by
// the client for its ReadTimeout, 5 s by default. What goes on behind the back
// of such a caller ends after 10 s, so it is sent again once at the most.
//
// An acquire whose caller's context ends is undone. One that fails before, with
// the client's time-outs, is not: if Redis carries it out after all, nobody holds
// the lease, which blocks its key for no longer than it was to last.
//
// # Access
//
// A user of Redis's access control lists needs the keys and the channel, which
// since Redis 7.0 a new user has none of, and some commands; docs/engines.md has
// the smallest list. Without the channel leases are released all the same, and waiting
// processes poll.
//
// # Tokens
//
// A lease has a fencing token ([driver.Tokener]) if [Locker.Tokens] is set.
// It is the server's clock, in microseconds, at the moment at which the lease
// was taken. It is no more than that: tokens rise while one server lives, and
// across its restarts, for as long as its clock is not set back; after a
// failover to another server for as long as that one's clock is not behind by
// more than has passed since the last lease. A counter would not do better: it
// is lost with the server too, and has to be begun anew from a clock.
//
// It is not free, because SET answers with no number, and what PTTL says to
// those who are refused says nothing to the winner: with Tokens, acquire is a
// script of SET and TIME, or SET and PTTL, which is one command more.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/bellwether-go/bellwether/internal/redissub"
)

// detachedTimeout bounds what goes on after a caller has left.
const detachedTimeout = 10 * time.Second

// A Locker is a [driver.Locker] and a [driver.Watcher] on Redis. It is
// safe for concurrent use. Create one with [New], and close it.
type Locker struct {
	// Prefix begins the name of every key, and of the channel on which releases
	// are published. Set it before the first use; the default is "bellwether:".
	Prefix string

	// Tokens gives the leases a fencing token: they are [driver.Tokener]s
	// then. It makes TryAcquire cost three commands, those inside the script
	// included. Set it before the first use; the default is false.
	Tokens bool

	rdb   redis.UniversalClient
	queue *redispipe.Queue
	dials *redisdial.Failures
	sub   *subscription
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Watcher = (*Locker)(nil)
)

// New returns a Locker that uses rdb, which stays the caller's to close. It adds a hook to
// rdb, which notes why there is no connection. Without rdb it panics.
func New(rdb redis.UniversalClient) *Locker {
	if adapter.Missing(rdb) {
		panic(errors.New("redislock: New needs a client, such as redis.NewClient makes"))
	}
	return &Locker{Prefix: "bellwether:", rdb: rdb, queue: redispipe.New(rdb), dials: redisdial.Of(rdb), sub: newSubscription()}
}

// Close ends the Locker's subscription and every watch, and returns when its
// connection is closed. That takes as long as the client's own time-outs if
// Redis hangs just while the connection is made. The Locker can still acquire,
// renew and release, but Watch returns an error. The error is always nil; a
// second Close does nothing.
func (l *Locker) Close() error {
	l.sub.close()
	return nil
}

// TryAcquire implements [driver.Locker]. It costs two commands, or three
// with Tokens. A key without an expiry, which no lease is without, gets one of
// ttl: else it would be held for ever, by nobody. A ttl that is not positive is an
// error, and so is a key that holds something other than a string.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("redislock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	l.sub.start(l.rdb, l.channel())
	mine := &lease{
		locker: l,
		name:   adapter.Name(key),
		token:  adapter.Token(),
		end:    time.Now().Add(ttl),
	}
	won, err := adapter.Await(ctx, func() (driver.Lease, error) {
		ctx, cancel := detached(ctx)
		defer cancel()
		if l.Tokens {
			return l.acquireWithToken(ctx, key, mine, ttl)
		}
		return l.acquire(ctx, key, mine, ttl)
	}, func(_ driver.Lease, err error) {
		// Nobody waits for this lease any more. Without an answer it may have
		// been taken all the same; only ErrHeld says that it was not.
		if !errors.Is(err, driver.ErrHeld) {
			ctx, cancel := detached(ctx)
			defer cancel()
			mine.free(ctx)
		}
	})
	if err != nil && err == ctx.Err() {
		err = mine.wrap("acquire", err)
	}
	return won, err
}

// acquire makes mine the lease on its key, or returns why it is not.
func (l *Locker) acquire(ctx context.Context, key string, mine *lease, ttl time.Duration) (driver.Lease, error) {
	// Before the SET is sent: a release that follows it must find this outdated.
	heard := l.sub.heard(mine.name)

	pipe := l.queue.Pipeline()
	set := pipe.Do(ctx, "set", l.key(mine.name), mine.token, "nx", "get", "px", adapter.Millis(ttl))
	pttl := pipe.Do(ctx, "pttl", l.key(mine.name))
	l.queue.Exec(ctx, pipe)
	read := time.Now()

	holder, err := set.Text()
	if errors.Is(err, redis.Nil) {
		return mine, nil // there was no value to return, so ours was set
	}
	if err != nil {
		rediscluster.Doubt(l.rdb, err)
		return nil, mine.wrap("acquire", err)
	}
	if holder == mine.token {
		return mine, nil // the reply was lost, and the client repeated the request
	}
	left, err := pttl.Int64()
	if err == nil && left == -1 {
		left, err = endScript.Run(ctx, l.queue, []string{l.key(mine.name)}, adapter.Millis(ttl)).Int64()
		read = time.Now()
	}
	if err != nil {
		return nil, mine.wrap("acquire", err)
	}
	return nil, heldError(key, seen{locker: l, holder: holder, heard: heard}, left, read)
}

// leftFunc is Lua for how long the key lasts; it gives it an expiry of ttl if it
// has none.
const leftFunc = `
local function left(ttl)
	local ms = redis.call('PTTL', KEYS[1])
	if ms == -1 then
		ms = tonumber(ttl)
		redis.call('PEXPIRE', KEYS[1], ms)
	end
	return ms
end
`

var endScript = redisscript.New(leftFunc + `return left(ARGV[1])`)

// acquireScript takes the lease and returns 1 and the time in microseconds, or
// returns 0, whose it is and how long it lasts. The time is read in the same
// step: read later, it could be later than the time of the next holder.
var acquireScript = redisscript.New(leftFunc + `
local holder = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if holder and holder ~= ARGV[1] then
	return {0, holder, left(ARGV[2])}
end
local now = redis.call('TIME')
return {1, now[1] .. string.format('%06d', now[2])}`)

// acquireWithToken is acquire for leases that are Tokeners.
func (l *Locker) acquireWithToken(ctx context.Context, key string, mine *lease, ttl time.Duration) (driver.Lease, error) {
	heard := l.sub.heard(mine.name)
	reply, err := acquireScript.Run(ctx, l.queue, []string{l.key(mine.name)}, mine.token, adapter.Millis(ttl)).Slice()
	read := time.Now()
	if err != nil {
		rediscluster.Doubt(l.rdb, err)
		return nil, mine.wrap("acquire", err)
	}
	if reply[0] == int64(1) {
		token, err := strconv.ParseUint(reply[1].(string), 10, 64)
		if err != nil {
			return nil, mine.wrap("acquire", err)
		}
		return &tokenLease{mine, token}, nil
	}
	return nil, heldError(key, seen{locker: l, holder: reply[1].(string), heard: heard}, reply[2].(int64), read)
}

// heldError tells of a lease that was left so many milliseconds when it was
// read, by what PTTL says.
func heldError(key string, seen seen, left int64, read time.Time) *driver.HeldError {
	held := &driver.HeldError{Key: key, Seen: seen}
	if left == -2 { // released or expired between the two commands
		held.Until = read
	} else {
		// Redis drops a key in the millisecond after its last one.
		held.Until = read.Add(time.Duration(left+1) * time.Millisecond)
	}
	return held
}

// seen is the Seen of this package's HeldErrors.
type seen struct {
	locker *Locker // which has counted what it heard
	holder string  // the token of the lease that was seen
	heard  heard
}

// Watch implements [driver.Watcher]. It costs no command, but for a lease
// that was seen before the subscription stood: then it waits for the
// subscription, not beyond a second or held.Until, and looks once. All watches
// end at Close.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen, ok := held.Seen.(seen)
	if !ok || seen.locker != l {
		return nil, fmt.Errorf("redislock: watch %.100q: the lease was not seen by this Locker", held.Key)
	}
	name := adapter.Name(held.Key)
	if seen.heard.connection != 0 {
		w, err := l.sub.watch(ctx, name, seen.heard)
		if err != nil {
			return nil, fmt.Errorf("redislock: watch %s: %w", l.key(name), err)
		}
		return w.freed, nil
	}

	limit := time.Now().Add(time.Second)
	if !held.Until.IsZero() && held.Until.Before(limit) {
		limit = held.Until
	}
	bounded, cancel := context.WithDeadlineCause(ctx, limit, errors.New("no subscription in time"))
	defer cancel()
	freed, err := l.watchAndLook(ctx, bounded, name, seen.holder)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if bounded.Err() != nil {
			// The caller's context has not ended, so its error must not look so.
			err = context.Cause(bounded)
		}
		return nil, fmt.Errorf("redislock: watch %s: %w", l.key(name), err)
	}
	return freed, nil
}

// watchAndLook subscribes first and looks then: if the lease is not holder's
// any more, the returned channel is closed. The watch ends with ctx, waiting
// and looking with bounded.
func (l *Locker) watchAndLook(ctx, bounded context.Context, name, holder string) (<-chan struct{}, error) {
	if err := l.sub.await(bounded); err != nil {
		return nil, err
	}
	w, err := l.sub.watch(ctx, name, l.sub.heard(name))
	if err != nil {
		return nil, err
	}
	now, err := adapter.Await(bounded, func() (string, error) {
		ctx, cancel := detached(bounded)
		defer cancel()
		return holderScript.Run(ctx, l.queue, []string{l.key(name)}).Text()
	}, nil)
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		l.sub.leave(name, w)
		return nil, err
	case now != holder:
		l.sub.leave(name, w)
		return freedAlready.freed, nil
	}
	return w.freed, nil
}

// key is the Redis key of a lease. The braces make the name alone decide the
// cluster slot, so that keys of different kinds can meet in one.
func (l *Locker) key(name string) string { return l.Prefix + "{" + name + "}:lease" }

// channel is where releases are published, for all keys.
func (l *Locker) channel() string { return redissub.Channel(l.rdb, l.Prefix+"released") }

// detached returns a context with the values of ctx that does not end with it.
// A request that was sent goes on to its reply: given up halfway, nobody would
// know whether it took a lease.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedTimeout)
}

// holderScript is a GET that goes to the master: a client which sends reads to replicas
// would see a lease there that the master has no more. (GETEX without an option does so
// too, but Dragonfly writes it to its journal as if it had an expiry in the past.)
var holderScript = redisscript.New(`return redis.call('GET', KEYS[1])`)

var (
	// GT, because a renewal can be late: the client sends it again when a
	// connection has hung for its ReadTimeout, or holds it back for want of one.
	// Without it this would be possible: a renewal to 5 s hangs until its caller
	// gives it up; the next one, to 60 s, succeeds; now the first is carried out,
	// and the key ends while the holder believes in 60. (To GT no expiry is the
	// latest of all. Who gives a key without one its end is TryAcquire.)
	renewScript = redisscript.New(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
	return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return 1`)

	// A lease that is gone, since Redis has evicted it or lost its data, is published
	// too: those who have seen it wait for its end. One who may not publish has
	// released all the same: the key goes first, and the error is caught.
	releaseScript = redisscript.New(`
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
	return 0
end
local freed = holder and redis.call('DEL', KEYS[1]) or 0
redis.pcall('PUBLISH', ARGV[2], ARGV[3])
return freed`)
)

// A lease is the holder's side of a key.
type lease struct {
	locker *Locker
	name   string
	token  string

	mu  sync.Mutex // guards end
	end time.Time  // of the lease as its holder counts
}

// A tokenLease is a lease that was taken with Tokens.
type tokenLease struct {
	*lease
	fence uint64
}

var _ driver.Tokener = (*tokenLease)(nil)

// Token implements [driver.Tokener].
func (l *tokenLease) Token() uint64 { return l.fence }

// Renew implements [driver.Lease]. It costs three commands, those inside
// the script included. A lease that ends later already keeps its end.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("redislock: renew %s: ttl %v is not positive", l.locker.key(l.name), ttl)
	}
	end := time.Now().Add(ttl)
	if l.over() {
		// A renewal whose reply never came may have prolonged the key. The
		// holder did not know, so it is not held: it is cleared.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error {
		ctx, cancel := detached(ctx)
		defer cancel()
		return l.run(ctx, renewScript, l.token, adapter.Millis(ttl))
	})
	if err != nil {
		return l.wrap("renew", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Of two renewals at one time the later end counts, with Redis too.
	if end.After(l.end) {
		l.end = end
	}
	return nil
}

// Release implements [driver.Lease]. It costs four commands, those inside
// the script included. It also clears what may be left of a lease that has
// expired as its holder counts, but returns ErrLeaseLost then.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, func() error {
		ctx, cancel := detached(ctx)
		defer cancel()
		return l.free(ctx)
	})
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.wrap("release", err)
}

// over reports whether the lease has ended as its holder counts.
func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// free deletes the key if it is this lease's, and tells the watchers.
func (l *lease) free(ctx context.Context) error {
	return l.run(ctx, releaseScript, l.token, l.locker.channel(), l.name)
}

// run runs a script that returns 1, or 0 if the key is not this lease's.
func (l *lease) run(ctx context.Context, script *redisscript.Script, args ...any) error {
	n, err := script.Run(ctx, l.locker.queue, []string{l.locker.key(l.name)}, args...).Int()
	rediscluster.Doubt(l.locker.rdb, err)
	if err == nil && n == 0 {
		return driver.ErrLeaseLost
	}
	return err
}

// wrap says what was being done when the engine failed, and why there is no connection.
// What the contract names, and a caller's leaving, go through as they are.
func (l *lease) wrap(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled):
		return err
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // another program's, not a string
		err = fmt.Errorf("%w: %w", driver.ErrCorrupt, err)
	case strings.Contains(err.Error(), "ERR syntax error"):
		err = fmt.Errorf("the server has no SET with NX and GET; Redis 7.0 or newer is needed: %w", err)
	}
	return fmt.Errorf("redislock: %s %s: %w", doing, l.locker.key(l.name), l.locker.dials.Explain(err))
}
