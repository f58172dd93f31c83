// Package redisstore keeps entries in Redis 5 or newer, or in what speaks its
// protocol and its Lua: Valkey, a cluster, a ring of servers.
//
// A Get costs one command. Claim, Commit and Invalidate are one script each,
// so that what they read is still true when they write, whoever else is
// writing. The clock by which entries age is the server's; no client's wall
// clock is asked.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/redis/go-redis/v9"
)

// A Store is a [bellwether.Store] in Redis. Use [New] to make one. It is safe
// for concurrent use.
//
// Epochs rise over evictions and restarts because a counter that is lost
// begins again at the server's clock. They may repeat only if that clock is set
// back, or a server with a clock further behind takes over, in the same moment
// in which the counter and the entry are lost.
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
	// it copies. New sets it to 64 MiB. Set it before first use.
	MaxValue int

	// MaxNotice is the largest encoded entry, in bytes, that travels in the
	// notice of its commit, to every process that listens; a larger one is
	// fetched by those who want it. New sets it to 64 KiB; negative, no notices
	// are sent. Set it before first use.
	MaxNotice int

	rdb    redis.UniversalClient
	clocks sync.Map // of the servers: address (string) to *clock
}

// New returns a store over rdb, which stays the caller's to close.
func New(rdb redis.UniversalClient) *Store {
	return &Store{Prefix: "bellwether:", MaxValue: 64 << 20, MaxNotice: 64 << 10, rdb: rdb}
}

// retention is how long the counter and the floor of a key are kept after they
// were last written. It need only be longer than any rebuild: without them a
// commit is refused, and when a later claim makes them anew, the floor is above
// every epoch given out before, so that nobody's late commit can profit from
// their having gone. The entry does not need them: an invalidation has
// unlinked it in the same script in which it raised the floor.
const retention = time.Hour

// names returns the keys of key's entry, and of its counter and floor. What
// stands in braces decides the cluster slot, so it is the same for both.
func (s *Store) names(key string) []string {
	name := s.Prefix + "{" + adapter.Name(key) + "}"
	return []string{name + ":v", name + ":m"}
}

// What Redis keeps under ":v" is the server's time of the commit, in 16 decimal
// digits of microseconds since 1970 (enough until 2286), and the encoded entry.
// Under ":m" it keeps two decimal numbers, "counter floor", floor <= counter.
//
// All of these numbers are times in microseconds or a little above one, so they
// are below 2^53 until the year 2255, and exact in Lua, which has only doubles.
// What is above 2^52 (2112) was not written by us and counts as lost: one more
// than such a number might be the same number.
const prelude = `
local function marks(m)
	local counter, floor = string.match(m or '', '^(%d+) (%d+)$')
	counter, floor = tonumber(counter), tonumber(floor)
	if counter and counter <= 2^52 and floor <= counter then
		return counter, floor
	end
end

-- epoch_of returns the epoch in the header of a stored entry, 0 if there is none.
local function epoch_of(v)
	if not v or string.sub(v, 17, 19) ~= 'BW\2' or #v < 32 then
		return 0
	end
	local epoch = 0
	for i = 25, 32 do
		epoch = epoch * 256 + string.byte(v, i)
	end
	return epoch <= 2^52 and epoch or 0
end

local function time()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2]
end

-- text writes a number in digits; tostring would round it to 14 of them.
local function text(n)
	return string.format('%.0f', n)
end

-- tell publishes a change of key, on no channel if that has no name.
local function tell(channel, kind, now, epoch, key, entry)
	if channel ~= '' then
		redis.call('PUBLISH', channel, string.format('%s%016.0f%016.0f%08d', kind, now, epoch, #key) .. key .. entry)
	end
end
`

// The scripts read with MGET even where they read one key: it answers nil for a
// key of another type, with which GET would end the script, and SET and UNLINK
// do not mind the type.
var (
	// claim: entry, marks; retention in ms. Returns the stored entry, the new
	// epoch, the time.
	//
	// The new epoch is not below the clock even if the counter is known: after a
	// failover to a replica that is behind, the next number may have been given
	// out by the server that is gone. And it is above the epoch of the entry,
	// which may have outlived the counter. When the counter is lost, the floor
	// takes a number for itself: it must be above all that were given out, and
	// be nobody's, or the commit of a forgotten claim would look repeated.
	claimScript = redis.NewScript(prelude + `
local kept = redis.call('MGET', KEYS[1], KEYS[2])
local now = time()
local counter, floor = marks(kept[2])
if not counter then
	floor = math.max(epoch_of(kept[1]) + 1, now)
	counter = floor
end
local epoch = math.max(counter + 1, epoch_of(kept[1]) + 1, now)
redis.call('SET', KEYS[2], text(epoch) .. ' ' .. text(floor), 'PX', ARGV[1])
return {kept[1], text(epoch), text(now)}
`)

	// commit: entry, marks; retention in ms, epoch, life in ms (0 to keep
	// nothing), encoded entry, channel, key, the largest entry to be published.
	// Returns whether it is committed, the time if it was asked.
	//
	// An epoch at the floor was committed before, by the same claim: what is kept
	// is that entry, or nothing if there was nothing to keep or it has gone.
	commitScript = redis.NewScript(prelude + `
local epoch = tonumber(ARGV[2])
local counter, floor = marks(redis.call('MGET', KEYS[2])[1])
if not counter or epoch < floor or epoch > counter then
	return {0}
end
if epoch == floor then
	local v = redis.call('MGET', KEYS[1])[1]
	return {(not v or string.sub(v, 17) == ARGV[4]) and 1 or 0}
end
local now = time()
if ARGV[3] == '0' then
	redis.call('UNLINK', KEYS[1])
else
	redis.call('SET', KEYS[1], string.format('%016.0f', now) .. ARGV[4], 'PX', ARGV[3])
end
redis.call('SET', KEYS[2], text(counter) .. ' ' .. text(epoch), 'PX', ARGV[1])
tell(ARGV[5], 'c', now, epoch, ARGV[6], #ARGV[4] <= tonumber(ARGV[7]) and ARGV[4] or '')
return {1, text(now)}
`)

	// fenced: entry, marks; retention in ms (not used), epoch. Returns whether a
	// commit of that epoch would be refused that has not been carried out yet.
	fencedScript = redis.NewScript(prelude + `
local epoch = tonumber(ARGV[2])
local counter, floor = marks(redis.call('MGET', KEYS[2])[1])
return {(not counter or epoch < floor or epoch > counter) and 1 or 0}
`)

	// invalidate: entry, marks; retention in ms, channel, key. Returns the time.
	invalidateScript = redis.NewScript(prelude + `
local now = time()
local counter = marks(redis.call('MGET', KEYS[2])[1])
if not counter then
	counter = epoch_of(redis.call('MGET', KEYS[1])[1])
end
local epoch = math.max(counter + 1, now)
redis.call('SET', KEYS[2], text(epoch) .. ' ' .. text(epoch), 'PX', ARGV[1])
redis.call('UNLINK', KEYS[1])
tell(ARGV[2], 'i', now, epoch, ARGV[3], '')
return {text(now)}
`)
)

// Get implements [bellwether.Store].
func (s *Store) Get(ctx context.Context, key string) (bellwether.Entry, error) {
	return adapter.Await(ctx, func() (bellwether.Entry, error) {
		return s.get(ctx, s.names(key)[0])
	}, nil)
}

func (s *Store) get(ctx context.Context, name string) (bellwether.Entry, error) {
	node, clock, err := s.serverOf(ctx, name)
	if err != nil {
		return bellwether.Entry{}, fmt.Errorf("redisstore: get: %w", err)
	}
	seen, ok := clock.recent()
	var reply *redis.StringCmd
	if ok {
		reply = s.rdb.Get(ctx, name)
	} else {
		// A process that only reads asks for the time along with an entry, twice
		// a minute. The request goes to the entry's server itself, because TIME
		// has no key by which a cluster's client would find it; so a redirection
		// to another server is ours to follow.
		sent := time.Now()
		pipe := node.Pipeline()
		reply = pipe.Get(ctx, name)
		now := pipe.Time(ctx)
		pipe.Exec(ctx) // its error is that of a command
		if redis.HasErrorPrefix(reply.Err(), "MOVED") || redis.HasErrorPrefix(reply.Err(), "ASK") {
			reply = s.rdb.Get(ctx, name)
		}
		if t, err := now.Result(); err == nil {
			seen = sighting{time.Duration(t.UnixMicro()) * time.Microsecond, sent}
			clock.see(seen)
		} else if reply.Err() == nil {
			return bellwether.Entry{}, fmt.Errorf("redisstore: time: %w", err)
		}
	}
	data, err := reply.Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return bellwether.Entry{}, bellwether.ErrNotFound
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return bellwether.Entry{}, fmt.Errorf("redisstore: get: %w: %w", bellwether.ErrCorrupt, err)
	case err != nil:
		return bellwether.Entry{}, fmt.Errorf("redisstore: get: %w", err)
	}
	return decode(data, seen.now())
}

// Claim implements [bellwether.Store].
func (s *Store) Claim(ctx context.Context, key string) (bellwether.Entry, uint64, error) {
	type claim struct {
		entry bellwether.Entry
		epoch uint64
	}
	c, err := adapter.Await(ctx, func() (c claim, err error) {
		reply, seen, err := s.run(ctx, claimScript, s.names(key))
		if err != nil {
			return c, fmt.Errorf("redisstore: claim: %w", err)
		}
		epoch, _ := reply[1].(string)
		if c.epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			return c, fmt.Errorf("redisstore: claim: unexpected reply: %w", err)
		}
		if data, ok := reply[0].(string); ok {
			// What is not an entry, or not one any more, is for the commit to
			// replace. On an error the entry is the zero one.
			c.entry, _ = decode([]byte(data), seen.now())
		}
		return c, nil
	}, nil)
	return c.entry, c.epoch, err
}

// Commit implements [bellwether.Store].
func (s *Store) Commit(ctx context.Context, key string, e bellwether.Entry) error {
	// Encoded before Await, whose function may outlive the call and the
	// caller's use of Value.
	var data []byte
	life := e.Life()
	if life > 0 {
		data, _ = e.AppendBinary(make([]byte, 0, len(e.Value)+len(e.Failure)+128))
		if len(data) > s.MaxValue {
			return fmt.Errorf("redisstore: %d bytes of at most %d: %w", len(data), s.MaxValue, bellwether.ErrTooLarge)
		}
	}
	_, err := adapter.Await(ctx, func() (struct{}, error) {
		reply, _, err := s.run(ctx, commitScript, s.names(key),
			e.Epoch, milliseconds(life), data, s.channel(), key, s.MaxNotice)
		if err != nil {
			return struct{}{}, fmt.Errorf("redisstore: commit: %w", err)
		}
		if reply[0] != int64(1) {
			return struct{}{}, bellwether.ErrFenced
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// Fenced implements [bellwether.Fencer].
func (s *Store) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	return adapter.Await(ctx, func() (bool, error) {
		reply, _, err := s.run(ctx, fencedScript, s.names(key), epoch)
		if err != nil {
			return false, fmt.Errorf("redisstore: fenced: %w", err)
		}
		return reply[0] == int64(1), nil
	}, nil)
}

// Invalidate implements [bellwether.Store].
func (s *Store) Invalidate(ctx context.Context, key string) error {
	_, err := adapter.Await(ctx, func() (struct{}, error) {
		_, _, err := s.run(ctx, invalidateScript, s.names(key), s.channel(), key)
		if err != nil {
			return struct{}{}, fmt.Errorf("redisstore: invalidate: %w", err)
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// milliseconds rounds up: a life of less than one is still one, and 0 means
// none.
func milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// run runs one of the scripts. If its reply ends with the server's time, run
// notes it and returns it as a sighting.
func (s *Store) run(ctx context.Context, script *redis.Script, names []string, args ...any) ([]any, sighting, error) {
	_, clock, err := s.serverOf(ctx, names[0])
	if err != nil {
		return nil, sighting{}, err
	}
	sent := time.Now()
	reply, err := script.Run(ctx, s.rdb, names, append([]any{retention.Milliseconds()}, args...)...).Slice()
	if err != nil {
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
	case interface {
		MasterForKey(context.Context, string) (*redis.Client, error)
	}: // a cluster
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

// stampLen is the length of the time in front of a stored entry.
const stampLen = 16

// decode returns the entry in data with its Age at now, the server's time. It
// returns ErrNotFound if the entry's life is over.
func decode(data []byte, now time.Duration) (bellwether.Entry, error) {
	var e bellwether.Entry
	passed, data, err := stamped(data, now)
	if err != nil {
		return e, err
	}
	if err := e.UnmarshalBinary(data); err != nil {
		return e, fmt.Errorf("redisstore: %w", err)
	}
	if passed >= e.Life() {
		return bellwether.Entry{}, bellwether.ErrNotFound
	}
	e.Age += passed
	return e, nil
}

// stamped returns how long before now the data was stamped, and the rest of it.
func stamped(data []byte, now time.Duration) (passed time.Duration, rest []byte, err error) {
	if len(data) >= stampLen {
		var us uint64
		if us, err = strconv.ParseUint(string(data[:stampLen]), 10, 53); err == nil {
			// Negative if the server's clock was set back since.
			return max(0, now-time.Duration(us)*time.Microsecond), data[stampLen:], nil
		}
	}
	return 0, nil, fmt.Errorf("redisstore: %w: no time of commit", bellwether.ErrCorrupt)
}
