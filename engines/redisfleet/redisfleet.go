// Package redisfleet is a store and a locker on Redis 7.0 or newer in one engine.
//
// It looks, elects and claims in one request, and commits, releases and notifies in another.
//
//	eng := redisfleet.New(rdb)
//	defer eng.Close()
//	users := bellwether.New(load, bellwether.Options{
//		TTL:   time.Minute,
//		Fleet: bellwether.Fleet{Engine: eng, Namespace: "users"},
//	})
//
// An uncontended miss costs two requests, compared with five for redisstore and redislock. A lease
// released without a commit costs two requests too. Notices and releases come on one connection per engine.
//
// # Mixed fleets
//
// Processes with an [Engine] and processes with redisstore and redislock are one fleet if all have the same
// Prefix: entries, leases, notices and releases have the same format and names.
//
// The engine notes its leases beside the entry. Other engines find the note with the entry, so a
// waiting process costs two commands, including the script's. redislock reads the lease alone. If
// Redis has evicted a lease, engines take it for held until its holder renews it, or until its
// announced end. A list or another type in a lease's place is an error at each election, and each
// process loads for itself: delete the key.
//
// # One slot
//
// The entry and the lease of a key are two keys in Redis, Prefix{name}:entry and Prefix{name}:lease, in the
// slot of the name. For a cache key with braces, or longer than 160 bytes, the name is a hash. A Prefix has
// no braces. While a cluster moves a slot, it refuses a request about two keys if only one has moved or
// exists (TRYAGAIN). The engine then uses several requests, and for a second after that with all keys.
//
// redisstore describes epochs, the age of entries, and notices in a cluster and a ring, redislock wakes and
// the durability of leases. docs/engines.md has the permissions for Redis's access control lists.
package redisfleet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// An Engine is a [driver.Elector] in Redis, both Store and Locker of a cache. Engines are safe for
// concurrent use. Create an Engine with [New], and close it.
type Engine struct {
	// Store keeps the entries. Its fields are the settings of the engine; its Prefix begins the
	// names of the leases too. Set the fields before first use.
	*redisstore.Store

	servers *redisentry.Servers
	leases  *redislease.Leases
	stands  *joint[*candidate]
	commits *joint[*committing]

	// moved is the last time a slot was seen moving to another server, nil if never.
	moved atomic.Pointer[time.Time]
}

// New returns an engine over rdb. The caller closes rdb. New adds a hook to rdb that records failed
// dials. It panics without rdb.
func New(rdb redis.UniversalClient) *Engine {
	if adapter.Missing(rdb) {
		panic(errors.New("redisfleet: New needs a client, such as redis.NewClient makes"))
	}
	servers := redisentry.Of(rdb)
	e := &Engine{
		Store:   redisstore.New(servers),
		servers: servers,
		leases:  redislease.New("redisfleet", servers.UniversalClient, servers.Queue, servers.Dials, servers.Pushes),
	}
	servers.Pushes.Channels = e.channels
	e.stands = newJoint(servers.UniversalClient, e.runElect)
	e.commits = newJoint(servers.UniversalClient, e.runCommits)
	return e
}

// channels are the channels of the engine's one connection. Of a commit with its release, the notice comes first.
func (e *Engine) channels() []string {
	channels := []string{redislease.Released(e.servers.UniversalClient, e.Prefix)}
	if changes := e.where().Channel; changes != "" {
		channels = append(channels, changes)
	}
	return channels
}

// Close ends the subscription to releases and all watches; an attempt to connect ends within the client's
// time-outs. Afterwards only Watch returns an error. Close always returns nil, and may be called again.
func (e *Engine) Close() error {
	e.leases.Close()
	return nil
}

// TryAcquire implements [driver.Locker], as redislock does.
func (e *Engine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return e.leases.TryAcquire(ctx, e.Prefix, key, ttl, false)
}

// Watch implements [driver.Watcher], as redislock does, for HeldErrors of this engine's methods.
func (e *Engine) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return e.leases.Watch(ctx, held)
}

// forgetLua has the function forget, which removes the note of a holder's lease, also if Redis has no memory: otherwise
// all processes would wait for the announced end of a lease that has ended. Redis without memory refuses only a script's
// first write, and only if the command may take memory. So a PEXPIRE goes first, which with GT changes no later expiry.
// An error leaves the note, and the lease still ends.
const forgetLua = `
local function forget(name, holder)
	if redis.pcall('GETRANGE', name, '48', '69') == holder then
		redis.pcall('PEXPIRE', name, '1', 'GT')
		redis.pcall('SETRANGE', name, '32', nobody)
	end
end
`

// forget: the name of the entry; the token.
var forgetScript = redisscript.New(redisentry.Lua + forgetLua + `
forget(KEYS[1], ARGV[1])
return {1}
`)
