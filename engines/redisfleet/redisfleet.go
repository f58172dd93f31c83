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
// released without a commit costs two requests too.
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
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
)

// An Engine is a [driver.Elector] in Redis, both Store and Locker of a cache. Engines are safe for
// concurrent use. Create an Engine with [New], and close it.
type Engine struct {
	// Store keeps the entries. Its fields are the settings of the engine; its Prefix begins the
	// names of the leases too. Set the fields before first use.
	*redisstore.Store

	servers *redisentry.Servers
	leases  *redislease.Leases

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
	return &Engine{
		Store:   redisstore.New(servers),
		servers: servers,
		leases:  redislease.New("redisfleet", servers.UniversalClient, servers.Queue, servers.Dials),
	}
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

// longestNoted bounds the length of a noted lease, so foreign bytes in its place block a key no longer.
// Beyond it the script reads the lease itself.
const longestNoted = 10 * time.Minute

// Answers of the elect script. The server's time follows if the script read it.
const (
	answered = iota // the value
	elected         // the value, the epoch
	held            // the value, the holder, the remaining time in ms
	noted           // the value, the holder, the end by the server's clock in microseconds
)

// forgetLua has the function forget, which removes the note of a holder's lease. If Redis has no
// memory for that, the lease still ends, and its note lasts until the announced end.
const forgetLua = `
local function forget(name, holder)
	if redis.pcall('GETRANGE', name, 48, 69) == holder then
		redis.pcall('SETRANGE', name, 32, nobody)
	end
end
`

// elect: the names of the entry and the lease; retention in ms, the largest reply, past, void, the
// token, the lease in ms, about (the time), the longest noted lease in ms, the channel of releases and
// its message. The value is nil without an entry. A value longer than the largest reply is cut to that
// length.
//
// The script goes by the end of the entry's freshness, and cannot tell an entry from other bytes behind such
// a time: Lua has no checksum fast enough. It does not answer again with void, the part of the value behind
// the counter that the caller has found invalid.
//
// In a herd, all callers except the leader find the note of the leader's lease, with two commands: the script
// and GETRANGE. So a caller passes its estimate of the server's time as about, and the script reads the time
// only before it reads the lease. The estimate is never behind the server's time when sent, so an ended lease
// is never taken for held. If the lease ends on the way, the caller gets an end in the past. The estimate may
// be ahead by the duration of a reply, so the script judges an entry again by the server's time.
//
// After a lost reply the request is repeated. If the first request took the lease and an entry has come
// since, the caller gets only the entry, so the script ends the lease. The lease is the first write: Redis
// refuses a script's first write if it has no memory or is a replica, and then no lease is left.
var electScript = redisscript.New(redisentry.Lua + redisentry.ClaimLua + redislease.LeftLua + redislease.ReleaseLua + forgetLua + `
local about, asked = tonumber(ARGV[7]), false
if not about then
	about = time()
	asked = digits(about)
end
local kept = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2] - 1)
local _, floor = marks(kept)
local fresh = floor and #kept >= 118 and tonumber(string.sub(kept, 103, 118)) or 0
local function answers(now)
	return fresh > now and floor > tonumber(ARGV[3]) and string.sub(kept, 17, 32) .. string.sub(kept, 71, 118) ~= ARGV[4]
end
local _, ends, whose = note(kept)
local function answer(asked)
	if whose == ARGV[5] then
		forget(KEYS[1], whose)
		release(KEYS[2], whose, ARGV[9], ARGV[10])
	end
	return {0, kept, asked}
end
if answers(about) then
	return answer(asked)
end
if ends > about and ends < about + ARGV[8] * 1000 and whose ~= ARGV[5] then
	return {3, present(kept, about), whose, ends, asked}
end
local now = asked and about or time()
if answers(now) then
	return answer(digits(now))
end
local holder = redis.call('SET', KEYS[2], ARGV[5], 'NX', 'GET', 'PX', ARGV[6])
if holder and holder ~= ARGV[5] then
	return {2, present(kept, now), holder, left(KEYS[2], ARGV[6]), digits(now)}
end
local entry, epoch = claim(KEYS[1], kept, now, ARGV[1], digits(math.min(now + ARGV[6] * 1000, 2^53 - 1)) .. ARGV[5])
return {1, entry, epoch, digits(now)}
`)

// commitAndRelease: the names of the entry and the lease; CommitLua's arguments with the token as the last,
// the channel of releases and its message. The commit counts even if a foreign type in the lease's place
// fails the release. A repeated commit writes nothing, so the script removes the note.
var commitAndReleaseScript = redisscript.New(redisentry.Lua + redisentry.CommitLua + redislease.ReleaseLua + forgetLua + `
local committed, now = commit(KEYS[1], ARGV)
if committed == 1 then
	if not now then
		forget(KEYS[1], ARGV[11])
	end
	pcall(release, KEYS[2], ARGV[11], ARGV[12], ARGV[13])
end
return {committed, now}
`)

// forget: the name of the entry; the token.
var forgetScript = redisscript.New(redisentry.Lua + forgetLua + `
forget(KEYS[1], ARGV[1])
return {1}
`)

// Elect implements [driver.Elector], with 1 request. A second request fetches an entry of 64 KiB or
// more, or stands again after an answer with invalid bytes or an entry no longer fresh.
func (e *Engine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	if ttl <= 0 {
		return driver.Election{}, fmt.Errorf("redisfleet: elect %.100q: ttl %v is not positive", key, ttl)
	}
	mine := e.leases.Stand(e.Prefix, key, ttl)
	// The note goes before the release, or woken waiters would find it.
	mine.Ending = func(ctx context.Context) error {
		_, _, err := e.servers.Run(ctx, forgetScript, []string{redisentry.Name(e.Prefix, key)}, mine.Holder)
		return err
	}
	won, err := adapter.Await(ctx, func() (won driver.Election, err error) {
		mine.Holder = adapter.Token() // here the stack has room: its growth would cost ten times the token
		// A request under way goes on to its reply, or it may have taken a lease without a holder.
		ctx, cancel := redislease.Detached(ctx)
		defer cancel()
		if e.settled() {
			if won, err = e.elect(ctx, key, past, mine, ttl); !e.moves(err) {
				return won, err
			}
		}
		return e.electByParts(ctx, key, past, ttl)
	}, func(won driver.Election, err error) {
		// The caller has left. Without an answer, the lease may have been taken.
		if lease := redislease.Of(won.Lease); lease != nil {
			lease.Undo(ctx)
		} else if err != nil {
			mine.Undo(ctx)
		}
	})
	return won, mine.Wrap("elect", err)
}

// elect stands for mine. It stands again if the script's answer is no valid entry.
func (e *Engine) elect(ctx context.Context, key string, past uint64, mine *redislease.Lease, ttl time.Duration) (won driver.Election, err error) {
	name := redisentry.Name(e.Prefix, key)
	for void := ""; ; {
		heard := mine.Heard()
		reply, seen, err := e.stand(ctx, name, past, void, mine, ttl)
		read := time.Now()
		if err != nil {
			return won, err
		}
		won.Entry, err = e.servers.Present(ctx, key, name, reply[1], seen)
		switch {
		case reply[0] == int64(elected):
			epoch, _ := reply[2].(string)
			if err == nil {
				won.Epoch, err = strconv.ParseUint(epoch, 10, 64)
			}
			if err != nil {
				mine.Undo(ctx) // its holder does not learn of it
				return driver.Election{}, err
			}
			won.Lease = mine
			return won, nil
		case err != nil:
			return won, err
		case reply[0] == int64(held):
			holder, _ := reply[2].(string)
			left, _ := reply[3].(int64)
			won.Held = mine.Held(key, holder, heard, left, read)
			return won, nil
		case reply[0] == int64(noted):
			holder, _ := reply[2].(string)
			ends, _ := reply[3].(int64)
			left := time.Duration(ends)*time.Microsecond - seen.AtLeast(read)
			// Redis drops a key in the millisecond after its last one.
			won.Held = mine.HeldUntil(key, holder, heard, read.Add(max(0, left)+time.Millisecond))
			return won, nil
		case answers(won.Entry, past):
			return won, nil
		}
		// A second request may have found a later value, for which the script may answer.
		if data, _ := reply[1].(string); len(data) >= redisentry.HeadLen {
			void = data[redisentry.NumberLen:redisentry.MarksLen] + data[redisentry.BareLen:redisentry.HeadLen]
		}
	}
}

// stand runs the elect script. seen is a sighting of the server that the reply came from.
func (e *Engine) stand(ctx context.Context, name string, past uint64, void string, mine *redislease.Lease, ttl time.Duration) (reply []any, seen redisentry.Sighting, err error) {
	_, clock, err := e.servers.ServerOf(ctx, name)
	if err != nil {
		return nil, seen, err
	}
	known, ok := clock.Lasting()
	about := ""
	if ok {
		about = strconv.FormatInt(known.Now().Microseconds(), 10)
	}
	reply, seen, err = e.servers.Run(ctx, electScript, []string{name, mine.Key}, redisentry.Retention.Milliseconds(),
		redispipe.Large, past, void, mine.Holder, adapter.Millis(ttl), about, longestNoted.Milliseconds(),
		mine.Channel, mine.Name)
	if seen.Sent.IsZero() { // the script used the estimate about
		seen = known
	}
	return reply, seen, err
}

func answers(entry driver.Entry, past uint64) bool { return entry.Fresh() && entry.Epoch > past }

// CommitAndRelease implements [driver.Elector]. It costs 1 request with a lease of an engine or a
// redislock for the key. Without a lease it is Commit.
func (e *Engine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	// Encoded before Await: its function may outlive the call and the caller's use of Value.
	commit, err := redisentry.NewCommit(key, entry, e.MaxValue)
	if err != nil {
		return fmt.Errorf("redisfleet: commit: %w", err)
	}
	name := redisentry.Name(e.Prefix, key)
	to := redisentry.Where{Keys: []string{name}, Channel: e.servers.Changes(e.Prefix, e.MaxNotice), MaxNotice: e.MaxNotice}
	err = adapter.Do(ctx, func() error {
		mine := redislease.Of(lease)
		if mine != nil && mine.Key == redislease.Key(e.Prefix, key) && e.settled() {
			both := to
			both.Keys = []string{name, mine.Key}
			err := commit.Send(ctx, e.servers, commitAndReleaseScript, both, mine.Holder, mine.Channel, mine.Name)
			if !e.moves(err) {
				return err
			}
		}
		if err := commit.Send(ctx, e.servers, redisentry.CommitScript, to); err != nil || lease == nil {
			return err
		}
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrLeaseLost) {
			return err
		}
		return nil
	})
	if err == nil || err == driver.ErrFenced {
		return err
	}
	return fmt.Errorf("redisfleet: commit: %w", e.servers.Dials.Explain(err))
}
