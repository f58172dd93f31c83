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
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
)

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

	leases *redislease.Leases
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
	return &Locker{Prefix: "bellwether:", leases: redislease.New("redislock", rdb, redispipe.New(rdb), redisdial.Of(rdb))}
}

// Close ends the Locker's subscription and every watch, and returns when its
// connection is closed. That takes as long as the client's own time-outs if
// Redis hangs just while the connection is made. The Locker can still acquire,
// renew and release, but Watch returns an error. The error is always nil; a
// second Close does nothing.
func (l *Locker) Close() error {
	l.leases.Close()
	return nil
}

// TryAcquire implements [driver.Locker]. It costs two commands, or three
// with Tokens. A key without an expiry, which no lease is without, gets one of
// ttl: else it would be held for ever, by nobody. A ttl that is not positive is an
// error, and so is a key that holds something other than a string.
//
// The lease costs three commands to renew and four to release, those inside scripts
// included. A renewal keeps the end of a lease that ends later already. Release also clears
// what may be left of a lease that has expired as its holder counts, but returns
// ErrLeaseLost then.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return l.leases.TryAcquire(ctx, l.Prefix, key, ttl, l.Tokens)
}

// Watch implements [driver.Watcher]. It costs no command, but for a lease
// that was seen before the subscription stood: then it waits for the
// subscription, not beyond a second or held.Until, and looks once. All watches
// end at Close.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return l.leases.Watch(ctx, held)
}
