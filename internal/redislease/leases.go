// Package redislease has the leases of redislock and redisfleet. redislock documents their protocol.
package redislease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

const (
	// detachedTimeout bounds a request that goes on after its caller has left.
	detachedTimeout = 10 * time.Second

	// undoTimeout bounds the repetitions of an undo without an answer, and undoPause is the pause between two.
	undoTimeout = 2 * time.Minute
	undoPause   = time.Second
	// maxUndos bounds the undos under way: beside a hanging Redis each caller that leaves begins one.
	maxUndos = 4096
)

// Leases are elections, leases and watches on Redis, for concurrent use. Make them by [New], and close them.
type Leases struct {
	adapter string // prefix of errors
	rdb     redis.UniversalClient
	queue   *redispipe.Queue
	dials   *redisdial.Failures
	sub     *subscription
	undos   atomic.Int64 // under way
}

// New returns the leases of the named adapter over rdb, with rdb's queue, failed dials and subscriptions.
func New(adapter string, rdb redis.UniversalClient, queue *redispipe.Queue, dials *redisdial.Failures, pushes *redissub.Shared) *Leases {
	return &Leases{adapter: adapter, rdb: rdb, queue: queue, dials: dials, sub: newSubscription(pushes)}
}

// Close ends the subscription and every watch.
func (l *Leases) Close() { l.sub.close() }

// Released is the channel of the releases of a prefix's leases.
func Released(rdb redis.UniversalClient, prefix string) string {
	return redissub.Channel(rdb, prefix+"released")
}

// Stand returns the lease on key that a request may take, for ttl from now on. prefix begins its
// names in Redis. Stand opens the subscription in the background, before the request for the lease.
// The caller gives the lease its Holder.
func (l *Leases) Stand(prefix, key string, ttl time.Duration) *Lease {
	channel := Released(l.rdb, prefix)
	l.sub.start(l.rdb, channel)
	name := adapter.Name(key)
	return &Lease{
		Key:     Key(prefix, key),
		Name:    name,
		Channel: channel,
		leases:  l,
		end:     time.Now().Add(ttl),
	}
}

// TryAcquire implements [driver.Locker]. With tokens, the lease is a [driver.Tokener].
func (l *Leases) TryAcquire(ctx context.Context, prefix, key string, ttl time.Duration, tokens bool) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("%s: acquire %.100q: ttl %v is not positive", l.adapter, key, ttl)
	}
	mine := l.Stand(prefix, key, ttl)
	won, err := adapter.Await(ctx, func() (driver.Lease, error) {
		mine.Holder = adapter.Token()
		ctx, cancel := Detached(ctx)
		defer cancel()
		if tokens {
			return l.acquireWithToken(ctx, key, mine, ttl)
		}
		return l.acquire(ctx, key, mine, ttl)
	}, func(_ driver.Lease, err error) {
		// The caller has left. Every error except ErrHeld leaves open whether the lease was taken.
		if !errors.Is(err, driver.ErrHeld) {
			mine.Undo(ctx)
		}
	})
	if err != nil && err == ctx.Err() {
		err = mine.Wrap("acquire", err)
	}
	return won, err
}

func (l *Leases) acquire(ctx context.Context, key string, mine *Lease, ttl time.Duration) (driver.Lease, error) {
	heard := mine.Heard()

	set := redis.NewCmd(ctx, "set", mine.Key, mine.Holder, "nx", "get", "px", adapter.Millis(ttl))
	pttl := redis.NewCmd(ctx, "pttl", mine.Key)
	l.queue.Exec(ctx, set, pttl)
	read := time.Now()

	holder, err := set.Text()
	if errors.Is(err, redis.Nil) {
		return mine, nil // no previous value: ours was set
	}
	if err != nil {
		rediscluster.Doubt(l.rdb, err)
		return nil, mine.Wrap("acquire", err)
	}
	if holder == mine.Holder {
		return mine, nil // the client repeated the request after a lost reply
	}
	left, err := pttl.Int64()
	if err == nil && left == -1 {
		left, err = endScript.Run(ctx, l.queue, []string{mine.Key}, adapter.Millis(ttl)).Int64()
		read = time.Now()
	}
	if err != nil {
		return nil, mine.Wrap("acquire", err)
	}
	return nil, mine.Held(key, holder, heard, left, read)
}

// LeftLua has the function left: the remaining time of a lease's key. A key without an expiry gets ttl.
const LeftLua = `
local function left(key, ttl)
	local ms = redis.call('PTTL', key)
	if ms == -1 then
		ms = tonumber(ttl)
		redis.call('PEXPIRE', key, ms)
	end
	return ms
end
`

var endScript = redisscript.New(LeftLua + `return left(KEYS[1], ARGV[1])`)

// acquireScript takes the lease and returns 1 and the time in microseconds, or 0, the holder and the
// remaining time. It reads the time in the same step: later it could be past the next holder's.
var acquireScript = redisscript.New(LeftLua + `
local holder = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if holder and holder ~= ARGV[1] then
	return {0, holder, left(KEYS[1], ARGV[2])}
end
local now = redis.call('TIME')
return {1, now[1] .. string.format('%06d', now[2])}`)

func (l *Leases) acquireWithToken(ctx context.Context, key string, mine *Lease, ttl time.Duration) (driver.Lease, error) {
	heard := mine.Heard()
	reply, err := acquireScript.Run(ctx, l.queue, []string{mine.Key}, mine.Holder, adapter.Millis(ttl)).Slice()
	read := time.Now()
	if err != nil {
		rediscluster.Doubt(l.rdb, err)
		return nil, mine.Wrap("acquire", err)
	}
	if reply[0] == int64(1) {
		token, err := strconv.ParseUint(reply[1].(string), 10, 64)
		if err != nil {
			return nil, mine.Wrap("acquire", err)
		}
		return &tokenLease{mine, token}, nil
	}
	return nil, mine.Held(key, reply[1].(string), heard, reply[2].(int64), read)
}

// Held describes the holder's lease on key. left is its remaining time in milliseconds at the time
// read, as PTTL counts. since is the result of [Lease.Heard] before the request.
func (l *Lease) Held(key, holder string, since Heard, left int64, read time.Time) *driver.HeldError {
	if left == -2 { // released or expired between the two commands
		return l.HeldUntil(key, holder, since, read)
	}
	// Redis drops a key in the millisecond after its last one.
	left = min(left, math.MaxInt64/int64(time.Millisecond)-1)
	return l.HeldUntil(key, holder, since, read.Add(time.Duration(left+1)*time.Millisecond))
}

// HeldUntil is Held for a lease with a known end.
func (l *Lease) HeldUntil(key, holder string, since Heard, until time.Time) *driver.HeldError {
	return &driver.HeldError{Key: key, Until: until, Seen: seenLease{leases: l.leases, key: l.Key, name: l.Name, holder: holder, heard: since}}
}

// seenLease is the Seen of this package's HeldErrors.
type seenLease struct {
	leases *Leases // the counter of heard
	key    string  // in Redis
	name   string
	holder string // the token of the lease
	heard  Heard
}

// Watch implements [driver.Watcher].
func (l *Leases) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen, ok := held.Seen.(seenLease)
	if !ok || seen.leases != l {
		return nil, fmt.Errorf("%s: watch %.100q: the lease was not seen by this locker", l.adapter, held.Key)
	}
	if seen.heard.connection != 0 {
		w, err := l.sub.watch(ctx, seen.name, seen.heard)
		if err != nil {
			return nil, fmt.Errorf("%s: watch %s: %w", l.adapter, seen.key, err)
		}
		return w.freed, nil
	}
	if redissub.IsRing(l.rdb) {
		return nil, fmt.Errorf("%s: watch %s: %w", l.adapter, seen.key, errRing)
	}

	limit := time.Now().Add(time.Second)
	if !held.Until.IsZero() && held.Until.Before(limit) {
		limit = held.Until
	}
	bounded, cancel := context.WithDeadlineCause(ctx, limit, errors.New("no subscription in time"))
	defer cancel()
	freed, err := l.watchAndLook(ctx, bounded, seen)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if bounded.Err() != nil {
			// The caller's context has not ended, so the error must not look like its end.
			err = context.Cause(bounded)
		}
		return nil, fmt.Errorf("%s: watch %s: %w", l.adapter, seen.key, err)
	}
	return freed, nil
}

// watchAndLook subscribes first, then looks. If the seen holder no longer has the lease, the
// returned channel is closed. The watch ends with ctx, the wait and the look with bounded.
func (l *Leases) watchAndLook(ctx, bounded context.Context, seen seenLease) (<-chan struct{}, error) {
	if err := l.sub.await(bounded); err != nil {
		return nil, err
	}
	w, err := l.sub.watch(ctx, seen.name, l.sub.heard(seen.name))
	if err != nil {
		return nil, err
	}
	now, err := adapter.Await(bounded, func() (string, error) {
		ctx, cancel := Detached(bounded)
		defer cancel()
		return holderScript.Run(ctx, l.queue, []string{seen.key}).Text()
	}, nil)
	switch {
	case err != nil && !errors.Is(err, redis.Nil):
		l.sub.leave(seen.name, w)
		return nil, err
	case now != seen.holder:
		l.sub.leave(seen.name, w)
		return freedAlready.freed, nil
	}
	return w.freed, nil
}

// Watches is the number of waiting watches, over all keys.
func (l *Leases) Watches() int {
	l.sub.mu.Lock()
	defer l.sub.mu.Unlock()
	n := 0
	for _, ws := range l.sub.watches {
		n += len(ws)
	}
	return n
}

// Key is the Redis key of the lease on key. By its braces it shares the cluster slot of the key's entry.
func Key(prefix, key string) string { return prefix + "{" + adapter.Name(key) + "}:lease" }

// Detached returns a context with the values of ctx that does not end with ctx. A request under way
// goes on to its reply: given up halfway, it may have taken a lease without a holder.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), detachedTimeout)
}

// holderScript is a GET at the master: a replica may have a lease that the master no longer has. GETEX goes
// there too, but without an option Dragonfly writes it to its journal with an expiry in the past.
var holderScript = redisscript.New(`return redis.call('GET', KEYS[1])`)

var (
	// GT, because a renewal can be late: the client repeats it when a connection hung for its
	// ReadTimeout, or holds it until a connection is free. Without GT: a renewal to 5 s hangs until its
	// caller gives up; the next one, to 60 s, succeeds; now the first runs, and the key ends while the
	// holder believes in 60 s. (For GT, no expiry is the latest. TryAcquire gives such a key an expiry.)
	renewScript = redisscript.New(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
	return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return 1`)

	releaseScript = redisscript.New(ReleaseLua + `return release(KEYS[1], ARGV[1], ARGV[2], ARGV[3])`)
)

// ReleaseLua has the function free: it deletes a lease's key if holder has it, and returns 1 if deleted, 0 without a
// lease, and nothing if another has it. The function release frees, publishes name, and returns 1 if deleted, else 0.
// A missing lease (evicted, or lost with Redis's data) is published too: its watchers wait. A user without permission
// to publish still releases: the key goes first, and the error is caught. A message may have several names, with a
// space between two.
const ReleaseLua = `
local function free(key, holder)
	local now = redis.call('GET', key)
	if not now or now == holder then
		return now and redis.call('DEL', key) or 0
	end
end
local function release(key, holder, channel, name)
	local freed = free(key, holder)
	if freed then
		redis.pcall('PUBLISH', channel, name)
	end
	return freed or 0
end
`

// A Lease is the holder's side of a lease.
type Lease struct {
	Key     string // in Redis
	Holder  string // the token in the key
	Name    string // the message of its release
	Channel string // the channel of the message
	// Ending, if not nil, is called before the lease is freed and when it is lost.
	Ending func(context.Context) error

	leases *Leases

	mu  sync.Mutex // guards end
	end time.Time  // of the lease, as its holder counts
}

// Of returns the Lease behind lease, or nil if another package made it.
func Of(lease driver.Lease) *Lease {
	switch l := lease.(type) {
	case *Lease:
		return l
	case *tokenLease:
		return l.Lease
	}
	return nil
}

// A tokenLease is a lease taken with Tokens.
type tokenLease struct {
	*Lease
	fence uint64
}

var _ driver.Tokener = (*tokenLease)(nil)

// Token implements [driver.Tokener].
func (l *tokenLease) Token() uint64 { return l.fence }

// Renew implements [driver.Lease], in 3 commands with the script's. A lease with a later end keeps it.
func (l *Lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("%s: renew %s: ttl %v is not positive", l.leases.adapter, l.Key, ttl)
	}
	end := time.Now().Add(ttl)
	if l.over() {
		// A renewal with a lost reply may have prolonged the key beyond its holder's end: clear it.
		return l.Release(ctx)
	}
	err := adapter.Do(ctx, func() error {
		ctx, cancel := Detached(ctx)
		defer cancel()
		err := l.run(ctx, renewScript, l.Holder, adapter.Millis(ttl))
		if err == driver.ErrLeaseLost && l.Ending != nil {
			l.Ending(ctx)
		}
		return err
	})
	if err != nil {
		return l.Wrap("renew", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Of two concurrent renewals the later end counts, as in Redis.
	if end.After(l.end) {
		l.end = end
	}
	return nil
}

// Release implements [driver.Lease], with 4 commands, including the script's. For a lease that has
// expired for its holder, Release clears the key and returns ErrLeaseLost.
func (l *Lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, func() error { return l.free(ctx) })
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return l.Wrap("release", err)
}

func (l *Lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

// Heard returns the count of releases so far. Read before a request, it is outdated by a later release.
func (l *Lease) Heard() Heard { return l.leases.sub.heard(l.Name) }

// Undo frees the lease, if taken, for a caller that has left. It goes on after the end of ctx. A paused Redis may
// carry the acquire out later, also just after the undo, which comes over another connection. So an undo without
// an answer is repeated, and an undo that finds no lease once more. Beside maxUndos others it does nothing: if the
// lease was taken, it blocks its key until its end.
func (l *Lease) Undo(ctx context.Context) {
	defer l.leases.undos.Add(-1)
	if l.leases.undos.Add(1) > maxUndos {
		return
	}
	missing := 0
	for end := time.Now().Add(undoTimeout); time.Now().Before(end); time.Sleep(undoPause) {
		switch err := l.free(ctx); {
		case err == nil, errors.Is(err, redis.ErrClosed):
			return
		case errors.Is(err, driver.ErrLeaseLost):
			if missing++; missing == 2 {
				return
			}
		}
	}
}

// free deletes the key if this lease has it, and tells the watchers. It goes on after the end of ctx.
func (l *Lease) free(ctx context.Context) error {
	ctx, cancel := Detached(ctx)
	defer cancel()
	if l.Ending != nil {
		if err := l.Ending(ctx); err != nil {
			return err
		}
	}
	return l.run(ctx, releaseScript, l.Holder, l.Channel, l.Name)
}

// run runs a script that returns 1, or 0 if this lease does not have the key.
func (l *Lease) run(ctx context.Context, script *redisscript.Script, args ...any) error {
	n, err := script.Run(ctx, l.leases.queue, []string{l.Key}, args...).Int()
	rediscluster.Doubt(l.leases.rdb, err)
	if err == nil && n == 0 {
		return driver.ErrLeaseLost
	}
	return err
}

// Wrap adds the operation and a missing connection's reason to an error, except ErrLeaseLost and Canceled.
func (l *Lease) Wrap(doing string, err error) error {
	switch {
	case err == nil, errors.Is(err, driver.ErrLeaseLost), errors.Is(err, context.Canceled):
		return err
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // another program's key, not a string
		err = fmt.Errorf("%w: %w", driver.ErrCorrupt, err)
	case strings.Contains(err.Error(), "ERR syntax error"):
		err = fmt.Errorf("the server has no SET with NX and GET; Redis 7.0 or newer is needed: %w", err)
	}
	return fmt.Errorf("%s: %s %s: %w", l.leases.adapter, doing, l.Key, l.leases.dials.Explain(err))
}
