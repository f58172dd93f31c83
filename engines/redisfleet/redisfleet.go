// Package redisfleet makes Redis 7.0 or newer one engine: a store and a locker that look, elect and
// claim in one request, and commit, release and notify in another.
//
//	eng := redisfleet.New(rdb)
//	defer eng.Close()
//	users := bellwether.New(load, bellwether.Options{
//		Engine: eng, Namespace: "users",
//	})
//
// An uncontended miss costs two requests. With redisstore and redislock it costs five. A lease that is
// released without a commit costs two requests too.
//
// # Mixed fleets
//
// Entries, epochs, floors, leases, notices and releases are those of redisstore and redislock, under
// the same names. So processes with an [Engine] and processes with redisstore and redislock
// are one fleet if all have the same Prefix: they elect one holder per key, count one row of epochs,
// and hear each other's releases and changes.
//
// The engine notes the leases that it gives beside the entry. Other engines find the note with the
// entry, so a process that waits costs two commands, those inside the script included. redislock
// goes by the lease alone. If Redis has evicted a lease, engines take it for held until its holder renews
// it, or until its announced end.
//
// # One slot
//
// A key's entry and lease are two keys in Redis, Prefix{name}:entry and Prefix{name}:lease. The name
// in the braces decides the slot of both. A key of a cache that has braces itself, or is longer
// than 160 bytes, has its hash for a name. A Prefix has no braces.
//
// While a cluster moves a slot, it refuses a request about two keys of which only one has moved or
// exists (TRYAGAIN). The engine does by several requests then what it does by one otherwise, as redisstore
// and redislock would, and for a second after that with all keys.
//
// # Else
//
// The documentation of redisstore says what keeps the epochs rising, how entries age, and what a
// cluster and a ring do to notices. The documentation of redislock says how no wake is missed, and
// how durable a lease is. A user of Redis's access control lists needs what they need;
// docs/engines.md has the smallest list.
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

// An Engine is a [driver.Elector] in Redis: the Store and the Locker of a cache. It is safe for
// concurrent use. Create one with [New], and close it.
type Engine struct {
	// Store keeps the entries. Its fields are the engine's settings, and its Prefix begins the
	// names of the leases too. Set them before first use.
	*redisstore.Store

	servers *redisentry.Servers
	leases  *redislease.Leases

	// moved is when a slot was last seen on its way to another server, nil if never.
	moved atomic.Pointer[time.Time]
}

// New returns an engine over rdb, which stays the caller's to close. It adds a hook to rdb,
// which notes why there is no connection. Without rdb it panics.
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

// Close ends the engine's subscription to releases and every watch, and returns when its
// connection is closed. That takes as long as the client's own time-outs if Redis hangs just
// while the connection is made. The engine still does all else, but Watch returns an error. The
// error is always nil. A second Close does nothing.
func (e *Engine) Close() error {
	e.leases.Close()
	return nil
}

// TryAcquire implements [driver.Locker], as redislock does.
func (e *Engine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return e.leases.TryAcquire(ctx, e.Prefix, key, ttl, false)
}

// Watch implements [driver.Watcher], as redislock does. It takes what Elect and TryAcquire of
// this engine have seen.
func (e *Engine) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return e.leases.Watch(ctx, held)
}

// longestNoted is how long a noted lease lasts at most: what a stranger has written where the note
// stands holds a key up for no longer. Of a longer lease the lease itself tells.
const longestNoted = 10 * time.Minute

// What the elect script answers, and the time if it was asked.
const (
	answered = iota // what is kept
	elected         // what is kept, the epoch
	held            // what is kept, whose the lease is, how long it lasts in ms
	noted           // what is kept, whose the lease is, when it ends by the server's clock in microseconds
)

// forgetLua has the function that takes the note of a holder's lease away. Where Redis has no memory for
// that, the lease ends all the same, and its note lasts until the announced end.
const forgetLua = `
local function forget(name, holder)
	if redis.pcall('GETRANGE', name, 48, 69) == holder then
		redis.pcall('SETRANGE', name, 32, nobody)
	end
end
`

// elect: the names of the entry and the lease; retention in ms, the largest reply, past, void, the
// token, the lease in ms, about the time, the longest lease that is noted in ms. What is kept is nil
// if there is no entry. Of what is longer than the largest reply it is the beginning, of just that
// length.
//
// The script goes by the time until which an entry is fresh. It cannot tell an entry from other
// bytes behind such a time: Lua has no checksum that would be fast enough. void is what stood
// behind the counter of bytes that the caller has found to be no answer: they are none.
//
// In a herd all but one caller find the note of the leader's lease, and cost two commands: the
// script and GETRANGE. So the caller says what time it is about if it knows that, and the script
// asks for the time only before it asks for the lease. The caller's time is never behind the
// server's when it is sent, so a lease that has ended then is never taken for held. A lease that ends
// while the request is on its way may be: the caller is told of an end that has passed. The lease
// itself decides where there is no note, or its time is over. The caller's time may be ahead by as
// long as a reply took, so an entry is judged by the server's before it is replaced.
//
// A request whose reply was lost is repeated. If the first has taken the lease, and an entry has come
// since, the caller is told of the entry alone, so the lease ends.
//
// The lease comes first among the writes. Redis refuses the first write of a script if it has no
// memory or is a replica, and then no lease is left behind.
var electScript = redisscript.New(redisentry.Lua + redisentry.ClaimLua + redislease.LeftLua + forgetLua + `
local about, asked = tonumber(ARGV[7]), false
if not about then
	about = time()
	asked = digits(about)
end
local kept = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2] - 1)
local _, floor = marks(kept)
local fresh = floor and tonumber(string.sub(kept, 103, 118)) or 0
local function answers(now)
	return fresh > now and floor > tonumber(ARGV[3]) and string.sub(kept, 17, 32) .. string.sub(kept, 71, 118) ~= ARGV[4]
end
local _, ends, whose = note(kept)
local function answer(asked)
	if whose == ARGV[5] then
		forget(KEYS[1], whose)
		if redis.call('GET', KEYS[2]) == whose then
			redis.call('DEL', KEYS[2])
		end
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
local entry, epoch = claim(KEYS[1], kept, now, ARGV[1], digits(now + ARGV[6] * 1000) .. ARGV[5])
return {1, entry, epoch, digits(now)}
`)

// commitAndRelease: the names of the entry and the lease; as of redisentry.CommitLua, then the
// token, the channel of releases, and what is published there. A commit counts although the
// lease cannot be read, because something else stands in its place. A commit that is repeated has
// written nothing, the note of the lease neither.
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

// Elect implements [driver.Elector]. It is one request. A second request fetches an entry of 64 KiB
// or more. A second request stands again where the script has taken bytes for an answer that are no
// entry, or an entry that was fresh when it was sent and is not when it has come.
func (e *Engine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	if ttl <= 0 {
		return driver.Election{}, fmt.Errorf("redisfleet: elect %.100q: ttl %v is not positive", key, ttl)
	}
	mine := e.leases.Stand(e.Prefix, key, ttl)
	// Before the release, or those whom it wakes would find the note.
	mine.Ending = func(ctx context.Context) error {
		_, _, err := e.servers.Run(ctx, forgetScript, []string{redisentry.Name(e.Prefix, key)}, mine.Holder)
		return err
	}
	won, err := adapter.Await(ctx, func() (won driver.Election, err error) {
		// A request that was sent goes on to its reply, or nobody would know of the lease.
		ctx, cancel := redislease.Detached(ctx)
		defer cancel()
		if e.settled() {
			if won, err = e.elect(ctx, key, past, mine, ttl); !e.moves(err) {
				return won, err
			}
		}
		return e.electByParts(ctx, key, past, ttl)
	}, func(won driver.Election, err error) {
		// The caller has left. Without an answer the lease may have been taken all the same.
		if lease := redislease.Of(won.Lease); lease != nil {
			lease.Undo(ctx)
		} else if err != nil {
			mine.Undo(ctx)
		}
	})
	return won, mine.Wrap("elect", err)
}

// elect stands for mine, again if what the script has taken for an answer is none.
func (e *Engine) elect(ctx context.Context, key string, past uint64, mine *redislease.Lease, ttl time.Duration) (won driver.Election, err error) {
	name := redisentry.Name(e.Prefix, key)
	void := ""
	for {
		heard := mine.Heard()
		_, clock, err := e.servers.ServerOf(ctx, name)
		if err != nil {
			return won, err
		}
		known, ok := clock.Lasting()
		about := ""
		if ok {
			about = strconv.FormatInt(known.Now().Microseconds(), 10)
		}
		reply, seen, err := e.servers.Run(ctx, electScript, []string{name, mine.Key}, redisentry.Retention.Milliseconds(),
			redispipe.Large, past, void, mine.Holder, adapter.Millis(ttl), about, longestNoted.Milliseconds())
		read := time.Now()
		if err != nil {
			return won, err
		}
		if seen.Sent.IsZero() {
			seen = known
		}
		present, data, err := e.servers.Present(ctx, key, name, reply[1], seen)
		won.Entry = present
		if reply[0] == int64(elected) {
			epoch, _ := reply[2].(string)
			if err == nil {
				won.Epoch, err = strconv.ParseUint(epoch, 10, 64)
			}
			if err != nil {
				mine.Undo(ctx) // whose holder is not told of it
				return driver.Election{}, err
			}
			won.Lease = mine
			return won, nil
		}
		switch {
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
		case answers(present, past):
			return won, nil
		}
		if void = ""; len(data) >= redisentry.HeadLen {
			void = string(data[redisentry.NumberLen:redisentry.MarksLen]) + string(data[redisentry.BareLen:redisentry.HeadLen])
		}
	}
}

// answers reports whether the entry is the answer by itself.
func answers(entry driver.Entry, past uint64) bool { return entry.Fresh() && entry.Epoch > past }

// CommitAndRelease implements [driver.Elector]. It is one request with a lease that an engine or a
// redislock has given for the key. Without a lease it is Commit.
func (e *Engine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	// Encoded before Await, whose function may outlive the call and the caller's use of Value.
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
