// Package redislock is a [driver.Locker] and a [driver.Watcher] on Redis 7.0 or later, over the
// client github.com/redis/go-redis.
//
// A lease is a string key with a random token. The protocol:
//
//  1. Acquire is one pipeline of SET key token NX GET PX length and PTTL key. It takes the lease, or returns
//     the holder and the remaining time.
//  2. Renew is a script that compares the token and sets a later expiry. It never shortens a lease: an
//     abandoned renewal may be carried out seconds after the next.
//  3. Release is a script that compares the token, deletes the key, and publishes its name on one channel,
//     Prefix + "released:" and the number of the database in the client's options.
//  4. A Locker subscribes to the channel on a connection of its own, opened in the background by the first
//     TryAcquire. All watches of all keys share the connection.
//
// Tokens have one length and are compared as a whole, so no token is another token's beginning.
//
// # No wake is missed
//
// The Locker counts the releases it receives. TryAcquire reads the count before its SET, and Watch compares.
// A subscription older than the SET receives every later release, which has raised the count by then or finds
// the watch registered. When the connection is lost, all its watches wake, because messages in between are
// lost. Until the subscription is confirmed again, Watch returns an error and its caller polls. A dead
// connection is detected within three seconds. An expiry publishes nothing, since Redis may notice it late.
//
// # One pipeline for many
//
// With a [redis.Client], calls that arrive while another is under way go as one pipeline, after its
// reply or 2 ms. The client's hooks see the pipeline with the context of its first call.
//
// # Limits
//
// A failover to a replica without the key, or a restart without the last writes, lets a second holder in. The
// store's epochs then let only one of them write. After a restart from an older snapshot (RDB), a lease released
// since then has no holder, and blocks its key until expiry.
//
// With a cluster, keys spread over the slots, and the cluster's bus carries the one channel; each
// Locker listens at a random node. The shards of a Ring do not share channels: Watch always returns
// an error, and the leases of a removed shard can be taken again at another shard.
//
// The client repeats a command after a lost reply. A repeated acquire finds its own token and succeeds. A
// repeated release finds nothing, and reports ErrLeaseLost for a lease freed by the first. A caller leaves a
// hanging socket when its context ends, but the client keeps the socket for its ReadTimeout, 5 s by default.
// A request left behind ends after 10 s, so it is sent at most twice.
//
// An acquire whose context ends is undone, for up to two minutes, beside at most 4,096 others. An acquire that
// fails before, with the client's time-outs, is not: if Redis still carries it out, the lease has no holder and
// blocks its key until expiry. So does the first of two attempts if the network delivers it after the release
// of the lease.
//
// # Access
//
// docs/engines.md has the permissions for Redis's access control lists. Since Redis 7.0 a new user has no
// channels. Without the channel, releases succeed and waiting processes poll.
//
// # Tokens
//
// With [Locker.Tokens] a lease has a fencing token ([driver.Tokener]): the server's clock, in microseconds,
// when the lease was taken. Tokens rise while one server lives, and across its restarts, unless its clock is
// set back. After a failover they rise unless the new server's clock is behind by more than the time since
// the last lease. A counter is lost with the server too, and has to begin again from a clock. SET returns no
// number, so with Tokens acquire is a script of SET and TIME, or SET and PTTL.
package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redissub"
)

// A Locker is a [driver.Locker] and a [driver.Watcher] on Redis. Lockers are safe for concurrent
// use. Create a Locker with [New], and close it.
type Locker struct {
	// Prefix begins the name of every key, and of the channel of releases. The default is
	// "bellwether:". Set Prefix before first use.
	Prefix string

	// Tokens gives the leases fencing tokens: they are [driver.Tokener]s. TryAcquire then costs
	// three commands, including the script's. The default is false. Set Tokens before first use.
	Tokens bool

	leases *redislease.Leases
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Watcher = (*Locker)(nil)
)

// New returns a Locker over rdb. The caller closes rdb. New adds a hook to rdb that records failed
// dials. It panics without rdb.
func New(rdb redis.UniversalClient) *Locker {
	if adapter.Missing(rdb) {
		panic(errors.New("redislock: New needs a client, such as redis.NewClient makes"))
	}
	return &Locker{Prefix: "bellwether:", leases: redislease.New("redislock", rdb, redispipe.New(rdb), redisdial.Of(rdb), redissub.Share(rdb))}
}

// Close ends the subscription and all watches; an attempt to connect ends within the client's time-outs.
// Afterwards only Watch returns an error. Close always returns nil, and may be called again.
func (l *Locker) Close() error {
	l.leases.Close()
	return nil
}

// TryAcquire implements [driver.Locker]. It costs two commands, or three with Tokens. A key with a type other
// than string is an error. A key without an expiry is foreign and would block for ever: it gets an expiry of
// ttl. A renewal costs three commands and a release four, including commands of scripts. Release of a lease
// that has expired for its holder clears the key and returns ErrLeaseLost.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return l.leases.TryAcquire(ctx, l.Prefix, key, ttl, l.Tokens)
}

// Watch implements [driver.Watcher]. It costs no command, except for a lease seen before the
// subscription was confirmed: Watch then waits for the subscription, for at most a second and until
// held.Until, and looks once. All watches end at Close.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return l.leases.Watch(ctx, held)
}
