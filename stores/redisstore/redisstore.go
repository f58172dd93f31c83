// Package redisstore keeps entries in Redis 7.0 or newer, or in what speaks its
// protocol and its Lua: Valkey, a cluster, a ring of servers.
//
// A Get costs one command. Claim, Commit and Invalidate are one script each,
// so that what they read is still true when they write, whoever else is
// writing. The clock by which entries age is the server's; no client's wall
// clock is asked.
//
// With a [redis.Client], calls that come while another is under way are sent
// together, as one pipeline, when that has its reply, or 2 ms later. The client's
// hooks see such a pipeline with the context of its first call.
//
// A user of Redis's access control lists needs the keys and the channel of the
// notices, which since Redis 7.0 a new user has none of, and some commands;
// docs/engines.md has the smallest list. Without the channel all is written all the
// same, and the other processes see it within NearTTL, not at once.
package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/redis/go-redis/v9"
)

// A Store is a [driver.Store] in Redis. Use [New] to make one. It is safe
// for concurrent use.
//
// Epochs rise over evictions and restarts because a counter that is lost
// begins again at the server's clock. They may repeat only if that clock is set
// back, or a server takes over whose clock is behind, by more than has passed
// since the key's last claim.
//
// Ages are the server's too. In a cluster, where an entry has been moved to
// another server, or after a failover, its age is off by how far the two
// servers' clocks are apart.
type Store struct {
	// Prefix begins the names of all keys in Redis, and keeps two programs
	// that use one server apart. It has no braces, which would decide the
	// keys' cluster slot. New sets it to "bellwether:". Set it before first
	// use.
	Prefix string

	// MaxValue is the largest encoded entry, in bytes, that the store takes:
	// the value, the text of a failure and less than 128 bytes more. Redis
	// itself takes 512 MB (proto-max-bulk-len), but is deaf to all others while
	// a commit's script copies: for some 5 to 25 ms for each MiB. New sets it to
	// 4 MiB. Set it before first use.
	MaxValue int

	// MaxNotice is the largest encoded entry, in bytes, that travels in the
	// notice of its commit, to every process that listens; a larger one is
	// fetched by those who want it. New sets it to 64 KiB; negative, no notices
	// are sent. Set it before first use.
	MaxNotice int

	rdb    redis.UniversalClient
	queue  *redispipe.Queue
	dials  *redisdial.Failures
	clocks sync.Map // of the servers: address (string) to *clock
	pieces adapter.Pieces
}

// New returns a store over rdb, which stays the caller's to close. It adds a hook to rdb,
// which notes why there is no connection. Without rdb it panics.
func New(rdb redis.UniversalClient) *Store {
	if adapter.Missing(rdb) {
		panic(errors.New("redisstore: New needs a client, such as redis.NewClient makes"))
	}
	return &Store{Prefix: "bellwether:", MaxValue: 4 << 20, MaxNotice: 64 << 10, rdb: rdb, queue: redispipe.New(rdb), dials: redisdial.Of(rdb)}
}

// retention is how long a key's counter and floor are kept after a claim or an
// invalidation. It need only be longer than any rebuild: without them a commit
// is refused, and when a later claim makes them anew, the floor is above every
// epoch given out before, so that nobody's late commit can profit from their
// having gone.
const retention = time.Hour

// lingering is how long they are kept beyond the life of an entry that no later
// claim has followed. A commit whose reply was lost may be repeated in that time;
// and the next claim, which begins at the clock, gives a greater epoch although
// that was set back, or is that of another server which has taken over, by less
// than this and the entry's life.
const lingering = 10 * time.Second

// name returns the key in Redis under which all of a key is kept. Its braces
// make the name alone decide the cluster slot, as with the key's lease.
//
// It is one key, and not one for each part: while a cluster moves a slot, it
// carries out nothing that is about two keys of it of which one is not there
// (TRYAGAIN), until the whole slot has been moved. A cold key has neither.
func (s *Store) name(key string) string {
	return s.Prefix + "{" + adapter.Name(key) + "}:entry"
}

// What Redis keeps under a name is, each number in 16 decimal digits,
//
//	counter | floor | server's time when the commit was sent | end of the entry's life by that clock | encoded entry
//
// with floor <= counter, times in microseconds since 1970 (enough until 2286),
// and all from the third on only where there is an entry. That may be kept
// beyond its life, for the sake of the first two.
//
// All of these numbers are times in microseconds or a little above one, so they
// are below 2^53 until the year 2255, and exact in Lua, which has only doubles.
// A counter above 2^52 (2112) was not written by us and counts as lost, with the
// entry: one more than such a number might be the same number.
const (
	numberLen = 16
	marksLen  = 2 * numberLen
	headLen   = 4 * numberLen
)

const prelude = `
local function digits(n)
	return string.format('%016.0f', n)
end

-- marks returns the counter and the floor at the beginning of what is kept, or
-- nil if that is not ours.
local function marks(kept)
	if type(kept) ~= 'string' or #kept < 32 or string.find(string.sub(kept, 1, 32), '%D') then
		return
	end
	local counter, floor = tonumber(string.sub(kept, 1, 16)), tonumber(string.sub(kept, 17, 32))
	if counter <= 2^52 and floor <= counter then
		return counter, floor
	end
end

local function time()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2]
end

-- tell publishes a change of key, on no channel if that has no name. The change
-- is made by then, so it has not failed because one may not publish it.
local function tell(channel, kind, now, epoch, key, entry)
	if channel ~= '' then
		redis.pcall('PUBLISH', channel, kind .. digits(now) .. digits(epoch) .. string.format('%08d', #key) .. key .. entry)
	end
end
`

// A key of another type is as good as none: GETRANGE answers with an error, which is
// caught, and SET does not mind the type.
var (
	// claim: name; retention in ms, the largest reply. Returns what is kept, nil if
	// there is no entry, the new epoch, the time. Of what is longer than the largest
	// reply it returns the beginning, of just that length.
	//
	// The new epoch is not below the clock even if the counter is known: after a
	// failover to a replica that is behind, the next number may have been given
	// out by the server that is gone. When the counter is lost, the floor takes a
	// number for itself: it must be above all that were given out, and be
	// nobody's, or the commit of a forgotten claim would look repeated.
	claimScript = redisscript.New(prelude + `
local kept = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2] - 1)
local now = time()
local counter, floor = marks(kept)
local ends = counter and tonumber(string.sub(kept, 49, 64)) or 0
if not counter then
	counter, floor = now, now
end
local epoch = math.max(counter + 1, now)
if ends <= now then
	redis.call('SET', KEYS[1], digits(epoch) .. digits(floor), 'PX', ARGV[1])
	return {false, digits(epoch), digits(now)}
end
redis.call('SETRANGE', KEYS[1], 0, digits(epoch))
if ends < now + ARGV[1] * 1000 then
	redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return {kept, digits(epoch), digits(now)}
`)

	// commit: name; retention in ms, epoch, life in ms (0 to keep nothing),
	// lingering in ms, encoded entry, channel, key, the largest entry to be
	// published, when Commit was called. Returns whether it is committed, the time if
	// it was asked.
	//
	// Its age counts from the call: a server that has stood still carries
	// out then what was sent to it before, and nobody waits for that any more.
	//
	// An epoch at the floor was committed before, by the same claim: what is kept
	// is that entry, or none if there was nothing to keep or its life is over.
	commitScript = redisscript.New(prelude + `
local epoch = tonumber(ARGV[2])
local counter, floor = marks(redis.pcall('GETRANGE', KEYS[1], 0, 31))
if not counter or epoch < floor or epoch > counter then
	return {0}
end
if epoch == floor then
	local entry = redis.call('GETRANGE', KEYS[1], 64, -1)
	return {(entry == '' or entry == ARGV[5]) and 1 or 0}
end
local now = time()
local made = math.min(tonumber(ARGV[9]), now)
local life = tonumber(ARGV[3])
local kept, keep = digits(counter) .. digits(epoch), tonumber(ARGV[1])
if life > 0 then
	kept = kept .. digits(made) .. digits(math.min(made + life * 1000, 2^53 - 1)) .. ARGV[5]
	-- Who has claimed since needs the numbers as long as after the claim.
	keep = math.max(life + ARGV[4], counter > epoch and keep or 0)
end
redis.call('SET', KEYS[1], kept, 'PX', string.format('%.0f', keep))
tell(ARGV[6], 'c', made, epoch, ARGV[7], #ARGV[5] <= tonumber(ARGV[8]) and ARGV[5] or '')
return {1, digits(now)}
`)

	// fenced: name; epoch. Returns whether a commit of that epoch would be refused
	// that has not been carried out yet.
	fencedScript = redisscript.New(prelude + `
local epoch = tonumber(ARGV[1])
local counter, floor = marks(redis.pcall('GETRANGE', KEYS[1], 0, 31))
return {(not counter or epoch < floor or epoch > counter) and 1 or 0}
`)

	// invalidate: name; retention in ms, channel, key. Returns the time.
	invalidateScript = redisscript.New(prelude + `
local now = time()
local counter = marks(redis.pcall('GETRANGE', KEYS[1], 0, 31)) or 0
local epoch = math.max(counter + 1, now)
local set = redis.pcall('SET', KEYS[1], digits(epoch) .. digits(epoch), 'PX', ARGV[1])
if set.err then
	-- Out of memory, Redis still deletes. That is an eviction: commits of earlier
	-- claims are refused, and the next claim begins at the clock.
	redis.call('DEL', KEYS[1])
end
tell(ARGV[2], 'i', now, epoch, ARGV[3], '')
return {digits(now)}
`)
)

// await is [adapter.Await], with an error that says what was being done.
func await[T any](ctx context.Context, s *Store, doing string, f func() (T, error)) (T, error) {
	v, err := adapter.Await(ctx, f, nil)
	return v, s.wrap(doing, err)
}

// wrap says what was being done when there was an error, and why there is no connection.
// What the contract names beside an answer goes through as it is.
func (s *Store) wrap(doing string, err error) error {
	if err == nil || err == driver.ErrNotFound || err == driver.ErrFenced {
		return err
	}
	return fmt.Errorf("redisstore: %s: %w", doing, s.dials.Explain(err))
}

// Get implements [driver.Store].
func (s *Store) Get(ctx context.Context, key string) (driver.Entry, error) {
	return await(ctx, s, "get", func() (driver.Entry, error) {
		return s.get(ctx, key)
	})
}

func (s *Store) get(ctx context.Context, key string) (driver.Entry, error) {
	name := s.name(key)
	node, clock, err := s.serverOf(ctx, name)
	if err != nil {
		return driver.Entry{}, err
	}
	seen, ok := clock.recent()
	if !ok {
		got, err := s.getShare(ctx, &share{server: node, clock: clock, names: []string{name}, own: []string{key}})
		if err != nil {
			return driver.Entry{}, err
		}
		return got.each[0].entry, got.each[0].err
	}
	pipe := s.queue.Pipeline()
	reply := pipe.GetRange(ctx, name, 0, redispipe.Large-1)
	s.queue.Exec(ctx, pipe)
	data, err := reply.Bytes()
	switch {
	case err == nil && len(data) == 0: // GETRANGE knows no nil
		err = redis.Nil
	case err == nil && len(data) == redispipe.Large:
		data, err = s.getLong(ctx, name)
	}
	rediscluster.Doubt(s.rdb, err)
	return entryOf(key, data, err, seen.now())
}

// getLong reads what is too long for the queue.
func (s *Store) getLong(ctx context.Context, name string) ([]byte, error) {
	return s.rdb.Get(ctx, name).Bytes()
}

// entryOf is the entry in the reply to a GET, with its Age at now.
func entryOf(key string, data []byte, err error, now time.Duration) (driver.Entry, error) {
	switch {
	case errors.Is(err, redis.Nil):
		return driver.Entry{}, driver.ErrNotFound
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return driver.Entry{}, fmt.Errorf("%w: %w", driver.ErrCorrupt, err)
	case err != nil:
		return driver.Entry{}, err
	}
	return decode(key, data, now)
}

// Claim implements [driver.Store].
func (s *Store) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	type claim struct {
		entry driver.Entry
		epoch uint64
	}
	c, err := await(ctx, s, "claim", func() (c claim, err error) {
		name := s.name(key)
		reply, seen, err := s.run(ctx, claimScript, name, retention.Milliseconds(), redispipe.Large)
		if err != nil {
			return c, err
		}
		epoch, _ := reply[1].(string)
		if c.epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return c, fmt.Errorf("unexpected reply: %w", err)
		}
		if text, ok := reply[0].(string); ok {
			data := []byte(text)
			if len(data) == redispipe.Large {
				// What is there by now is the present entry as well: that of the claim,
				// or of a commit since.
				if data, err = s.getLong(ctx, name); err != nil && !errors.Is(err, redis.Nil) {
					return c, err
				}
			}
			// What is not an entry, or not one any more, is for the commit to
			// replace. On an error the entry is the zero one.
			c.entry, _ = decode(key, data, seen.now())
		}
		return c, nil
	})
	return c.entry, c.epoch, err
}

// Commit implements [driver.Store].
func (s *Store) Commit(ctx context.Context, key string, e driver.Entry) error {
	called := time.Now()
	// Encoded before Await, whose function may outlive the call and the
	// caller's use of Value.
	var data []byte
	life := e.Life()
	if life > 0 {
		data = e.Append(make([]byte, 0, len(e.Value)+len(e.Failure)+128), key)
		if len(data) > s.MaxValue {
			return fmt.Errorf("redisstore: commit: %d bytes of at most %d: %w", len(data), s.MaxValue, driver.ErrTooLarge)
		}
	}
	return s.wrap("commit", adapter.Do(ctx, func() error {
		name := s.name(key)
		seen, err := s.sight(ctx, name)
		if err != nil {
			return err
		}
		reply, _, err := s.run(ctx, commitScript, name, retention.Milliseconds(), e.Epoch, adapter.Millis(life),
			lingering.Milliseconds(), data, s.channel(), key, s.MaxNotice, seen.at(called).Microseconds())
		if err != nil {
			return err
		}
		if reply[0] != int64(1) {
			return driver.ErrFenced
		}
		return nil
	}))
}

// Fenced implements [driver.Fencer].
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	return await(ctx, s, "fenced", func() (bool, error) {
		reply, _, err := s.run(ctx, fencedScript, s.name(key), epoch)
		if err != nil {
			return false, err
		}
		return reply[0] == int64(1), nil
	})
}

// Invalidate implements [driver.Store].
func (s *Store) Invalidate(ctx context.Context, key string) error {
	return s.wrap("invalidate", adapter.Do(ctx, func() error {
		_, _, err := s.run(ctx, invalidateScript, s.name(key), retention.Milliseconds(), s.channel(), key)
		return err
	}))
}

// sight returns a recent sighting of the clock of name's server. As a rule a claim has
// made it; after a load that took longer than that lasts the server is asked.
func (s *Store) sight(ctx context.Context, name string) (sighting, error) {
	node, clock, err := s.serverOf(ctx, name)
	if err != nil {
		return sighting{}, err
	}
	seen, ok := clock.recent()
	if ok {
		return seen, nil
	}
	sent := time.Now()
	now, err := node.Time(ctx).Result()
	if err != nil {
		rediscluster.Doubt(s.rdb, err)
		return sighting{}, err
	}
	seen = sighting{time.Duration(now.UnixMicro()) * time.Microsecond, sent}
	clock.see(seen)
	return seen, nil
}

// run runs one of the scripts. If its reply ends with the server's time, run notes it
// and returns it as a sighting.
func (s *Store) run(ctx context.Context, script *redisscript.Script, name string, args ...any) ([]any, sighting, error) {
	sent := time.Now()
	_, clock, err := s.serverOf(ctx, name)
	if err != nil {
		return nil, sighting{}, err
	}
	reply, err := script.Run(ctx, s.queue, []string{name}, args...).Slice()
	if err != nil {
		rediscluster.Doubt(s.rdb, err)
		return nil, sighting{}, err
	}
	if len(reply) == 0 {
		return nil, sighting{}, errors.New("empty reply")
	}
	var seen sighting
	if text, ok := reply[len(reply)-1].(string); ok {
		us, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, sighting{}, fmt.Errorf("unexpected reply: %w", err)
		}
		seen = sighting{time.Duration(us) * time.Microsecond, sent}
		clock.see(seen)
	}
	return reply, seen, nil
}

// serverOf returns a client of the server that keeps name, and that server's
// clock.
func (s *Store) serverOf(ctx context.Context, name string) (redis.Cmdable, *clock, error) {
	var node *redis.Client
	var err error
	switch rdb := s.rdb.(type) {
	case rediscluster.Client:
		node, err = rdb.MasterForKey(ctx, name)
	case interface {
		GetShardClientForKey(string) (*redis.Client, error)
	}: // a ring
		node, err = rdb.GetShardClientForKey(name)
	default:
		return s.rdb, s.clockOf(""), nil
	}
	if err != nil {
		return nil, nil, err
	}
	return node, s.clockOf(node.Options().Addr), nil
}

func (s *Store) clockOf(addr string) *clock {
	if c, ok := s.clocks.Load(addr); ok {
		return c.(*clock)
	}
	c, _ := s.clocks.LoadOrStore(addr, new(clock))
	return c.(*clock)
}

// decode returns the entry in what is kept for the key, with its Age at now, the server's
// time. It returns ErrNotFound if there is none, or its life is over.
func decode(key string, data []byte, now time.Duration) (driver.Entry, error) {
	var e driver.Entry
	if len(data) < marksLen || bytes.ContainsFunc(data[:marksLen], func(r rune) bool { return r < '0' || r > '9' }) {
		return e, fmt.Errorf("%w: no counter", driver.ErrCorrupt)
	}
	if len(data) == marksLen {
		return e, driver.ErrNotFound
	}
	if len(data) < headLen {
		return e, fmt.Errorf("%w: no end of its life", driver.ErrCorrupt)
	}
	passed, err := since(data[marksLen:], now)
	if err != nil {
		return e, err
	}
	if err := e.Decode(key, data[headLen:]); err != nil {
		return e, err
	}
	if passed >= e.Life() {
		return driver.Entry{}, driver.ErrNotFound
	}
	e.Age += passed
	return e, nil
}

// since returns how long before now the time was that data begins with, which
// has room for one.
func since(data []byte, now time.Duration) (time.Duration, error) {
	us, err := strconv.ParseUint(string(data[:numberLen]), 10, 53)
	if err != nil {
		return 0, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	// Negative if the server's clock was set back since.
	return max(0, now-time.Duration(us)*time.Microsecond), nil
}
