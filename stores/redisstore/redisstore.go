// Package redisstore keeps entries in Redis 7.0 or newer, or a server with its protocol and its
// Lua, such as Valkey. It works with a single server, a cluster or a ring.
//
// A Get costs 1 command. Claim, Commit and Invalidate are one script each, so their reads hold at their
// writes. Get and Claim fetch an entry of 64 KiB or more by a second request. Entries age by the server's
// clock; no client's wall clock is read.
//
// With a [redis.Client], calls that arrive while another is under way go as one pipeline, after its
// reply or 2 ms. The client's hooks see the pipeline with the context of its first call.
//
// docs/engines.md has the permissions for Redis's access control lists. Since Redis 7.0 a new user has no
// channels. Without the channel, writes succeed and reach other processes within NearTTL, not at once.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/redis/go-redis/v9"
)

// A Store is a [driver.Store] in Redis. Create it with [New]. It is safe for concurrent use.
//
// Epochs rise across evictions and restarts, because a lost counter begins again at the server's clock.
// Epochs may repeat only if the clock is set back, or a server with a slower clock takes over, by more than
// the time since the key's last claim. After a failover, or after a cluster has moved an entry, its age is
// wrong by the difference between the two clocks. An entry from further in a server's future than the time for which
// it was fresh counts as stale.
type Store struct {
	// Prefix begins the names of all keys in Redis, and keeps programs on one server apart. It has no braces:
	// they would decide the cluster slot. Default: "bellwether:". Set Prefix before first use.
	Prefix string

	// MaxValue is the largest encoded entry, in bytes, that the store takes: the value, the validator, the
	// tags, the text of a failure, and less than 128 bytes more. The default is 4 MiB. Set MaxValue before
	// first use. Redis takes 512 MB, but answers no other request while a commit's script copies, about 5 to
	// 25 ms per MiB.
	MaxValue int

	// MaxNotice is the largest encoded entry, in bytes, that travels in the notice of its commit to
	// every listening process. Processes fetch a larger entry on demand. The default is 64 KiB; a
	// negative value turns notices off. Set MaxNotice before first use.
	MaxNotice int

	rdb     redis.UniversalClient
	servers *redisentry.Servers // behind rdb
	pieces  adapter.Pieces
}

// New returns a store over rdb. The caller closes rdb. New adds a hook to rdb that records failed
// dials. It panics without rdb.
func New(rdb redis.UniversalClient) *Store {
	if adapter.Missing(rdb) {
		panic(errors.New("redisstore: New needs a client, such as redis.NewClient makes"))
	}
	servers := redisentry.Of(rdb)
	return &Store{Prefix: "bellwether:", MaxValue: 4 << 20, MaxNotice: 64 << 10, rdb: servers.UniversalClient, servers: servers}
}

func (s *Store) name(key string) string { return redisentry.Name(s.Prefix, key) }

var (
	// claim: name; retention in ms, the largest reply's last index. Returns the value or nil without an entry,
	// the new epoch, the time. A value longer than the largest reply is cut to that length.
	claimScript = redisscript.New(redisentry.Lua + redisentry.ClaimLua + `
local kept, now = part(KEYS[1], '0', ARGV[2]), time()
local counter, floor = marks(kept)
local entry, epoch = claim(KEYS[1], kept, counter, floor, now, ARGV[1])
return {entry, epoch, digits(now)}
`)

	// fenced: name; epoch. Returns whether a commit of the epoch would be refused, unless carried out.
	fencedScript = redisscript.New(redisentry.Lua + `
local epoch = tonumber(ARGV[1])
local counter, floor = marks(part(KEYS[1], '0', '31'))
return {(not counter or epoch < floor or epoch > counter) and 1 or 0}
`)

	// invalidate: name; retention in ms, channel, key. Returns the time.
	invalidateScript = redisscript.New(redisentry.Lua + `
local now = time()
local kept = redis.pcall('GETRANGE', KEYS[1], '0', '69') -- not part: an invalidation needs no right to read
local counter = marks(kept)
local epoch, ends, holder = digits(math.max((counter or 0) + 1, now)), note(kept, counter)
local set = redis.pcall('SET', KEYS[1], epoch .. epoch .. ends .. holder, 'PX', ARGV[1])
if set.err then
	-- Redis deletes even without memory. The delete acts as an eviction: commits of
	-- earlier claims are refused, and the next claim begins at the clock.
	redis.call('DEL', KEYS[1])
end
now = digits(now)
tell(ARGV[2], change('i', now, epoch, ARGV[3], ''))
return {now}
`)
)

// await is [adapter.Await], with the operation in its error.
func await[T any](ctx context.Context, s *Store, doing string, f func() (T, error)) (T, error) {
	v, err := adapter.Await(ctx, f, nil)
	return v, s.wrap(doing, err)
}

// wrap adds the operation and a missing connection's reason to errors except ErrNotFound and ErrFenced.
func (s *Store) wrap(doing string, err error) error {
	if err == nil || err == driver.ErrNotFound || err == driver.ErrFenced {
		return err
	}
	return fmt.Errorf("redisstore: %s: %w", doing, s.servers.Dials.Explain(err))
}

// Get implements [driver.Store].
func (s *Store) Get(ctx context.Context, key string) (driver.Entry, error) {
	return await(ctx, s, "get", func() (driver.Entry, error) {
		return s.get(ctx, key)
	})
}

func (s *Store) get(ctx context.Context, key string) (driver.Entry, error) {
	name := s.name(key)
	node, clock, err := s.servers.ServerOf(ctx, name)
	if err != nil {
		return driver.Entry{}, err
	}
	seen, ok := clock.Recent()
	if !ok {
		got, err := s.getShare(ctx, &share{server: node, clock: clock, names: []string{name}, own: []string{key}})
		if err != nil {
			return driver.Entry{}, err
		}
		return got.each[0].entry, got.each[0].err
	}
	reply := redis.NewStringCmd(ctx, "getrange", name, 0, redispipe.Large-1)
	s.servers.Queue.Exec(ctx, reply)
	data, err := reply.Bytes()
	switch {
	case err == nil && len(data) == 0: // GETRANGE has no nil
		err = redis.Nil
	case err == nil && len(data) == redispipe.Large:
		data, err = s.rdb.Get(ctx, name).Bytes() // too long for the queue
	}
	rediscluster.Doubt(s.rdb, err)
	return entryOf(key, data, err, seen.Now())
}

// entryOf is the entry in the reply to a GET, with its Age at now.
func entryOf(key string, data []byte, err error, now time.Duration) (e driver.Entry, _ error) {
	switch {
	case err == nil:
		err = redisentry.Decode(key, data, now, &e)
	case errors.Is(err, redis.Nil):
		err = driver.ErrNotFound
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		err = fmt.Errorf("%w: %w", driver.ErrCorrupt, err)
	}
	return e, err
}

// Claim implements [driver.Store].
func (s *Store) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	type claim struct {
		entry driver.Entry
		epoch uint64
	}
	c, err := await(ctx, s, "claim", func() (c claim, err error) {
		name := s.name(key)
		reply, seen, err := s.servers.Run(ctx, claimScript, []string{name}, redisentry.Retention.Milliseconds(), redispipe.Large-1)
		if err != nil {
			return c, err
		}
		epoch, _ := reply[1].(string)
		if c.epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return c, fmt.Errorf("unexpected reply: %w", err)
		}
		// The commit replaces bytes that are no entry.
		err = s.servers.Present(ctx, key, name, reply[0], seen, &c.entry)
		return c, err
	})
	return c.entry, c.epoch, err
}

// Commit implements [driver.Store].
func (s *Store) Commit(ctx context.Context, key string, e driver.Entry) error {
	// Encoded before Await: its function may outlive the call and the caller's use of Value.
	commit, err := redisentry.NewCommit(key, e, s.MaxValue)
	if err != nil {
		return fmt.Errorf("redisstore: commit: %w", err)
	}
	to := redisentry.Where{Channel: s.channel(), MaxNotice: s.MaxNotice}
	return s.wrap("commit", adapter.Do(ctx, func() error { return commit.Send(ctx, s.servers, s.name(key), to) }))
}

// Fenced implements [driver.Fencer].
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	return await(ctx, s, "fenced", func() (bool, error) {
		reply, _, err := s.servers.Run(ctx, fencedScript, []string{s.name(key)}, epoch)
		if err != nil {
			return false, err
		}
		return reply[0] == int64(1), nil
	})
}

// Invalidate implements [driver.Store].
func (s *Store) Invalidate(ctx context.Context, key string) error {
	return s.wrap("invalidate", adapter.Do(ctx, func() error {
		_, _, err := s.servers.Run(ctx, invalidateScript, []string{s.name(key)}, redisentry.Retention.Milliseconds(), s.channel(), key)
		return err
	}))
}
