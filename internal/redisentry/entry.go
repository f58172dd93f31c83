// Package redisentry is the form in which Redis keeps entries, and the scripts that read and write it:
// what redisstore, and the engine that is store and locker at once, have in common.
package redisentry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/redis/go-redis/v9"
)

// Retention is how long a key's counter and floor are kept after a claim or an
// invalidation. It need only be longer than any rebuild: without them a commit
// is refused, and when a later claim makes them anew, the floor is above every
// epoch given out before, so that nobody's late commit can profit from their
// having gone.
const Retention = time.Hour

// Lingering is how long they are kept beyond the life of an entry that no later
// claim has followed. A commit whose reply was lost may be repeated in that time;
// and the next claim, which begins at the clock, gives a greater epoch although
// that was set back, or is that of another server which has taken over, by less
// than this and the entry's life.
const Lingering = 10 * time.Second

// Name returns the key in Redis under which all of a key is kept. Its braces
// make the name alone decide the cluster slot, as with the key's lease.
//
// It is one key, and not one for each part: while a cluster moves a slot, it
// carries out nothing that is about two keys of it of which one is not there
// (TRYAGAIN), until the whole slot has been moved. A cold key has neither.
func Name(prefix, key string) string { return prefix + "{" + adapter.Name(key) + "}:entry" }

// What Redis keeps under a name is, each number in 16 decimal digits,
//
//	counter | floor | end of the noted lease | its holder's token |
//	server's time when the commit was sent | end of the entry's life by that clock |
//	end of the time for which it is fresh | encoded entry
//
// with floor <= counter, times in microseconds since 1970 (enough until 2286),
// and all from the time of the commit on only where there is an entry, whose epoch is the floor. That may be kept
// beyond its life, for the sake of what stands before it.
//
// The noted lease is a copy of the key's lease, which is a key of its own. Whoever reads the
// entry need not ask for the lease then. An engine that is store and locker at once notes the leases that it
// gives, and takes the note away before it ends such a lease. A note whose time is over says
// nothing: the lease may have been renewed. Zeros are no note.
//
// All of these numbers are times in microseconds or a little above one, so they
// are below 2^53 until the year 2255, and exact in Lua, which has only doubles.
// A counter above 2^52 (2112) was not written by us and counts as lost, with the
// entry: one more than such a number might be the same number.
const (
	// NumberLen is the length of a number.
	NumberLen = 16
	// MarksLen is the length of the counter and the floor.
	MarksLen = 2 * NumberLen
	// BareLen is the length of all that is kept without an entry.
	BareLen = MarksLen + NumberLen + tokenLen
	// HeadLen is the length of all that stands before an encoded entry.
	HeadLen = BareLen + 3*NumberLen

	tokenLen = 22 // of adapter.Token
)

// Lua has the functions with which the scripts read and write what is kept. A key of another
// type is as good as none: GETRANGE answers with an error, which is caught, and SET does not
// mind the type.
const Lua = `
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

local nobody = string.rep('0', 38)

-- note returns the note of a lease in what is kept, and the parts of it: the end, and whose it is.
local function note(kept)
	local text = marks(kept) and string.sub(kept, 33, 70) or ''
	if #text < 38 or string.find(string.sub(text, 1, 16), '%D') then
		text = nobody
	end
	return text, tonumber(string.sub(text, 1, 16)), string.sub(text, 17)
end

-- present returns what is kept if there is an entry whose life is not over, else false.
local function present(kept, now)
	local ends = marks(kept) and tonumber(string.sub(kept, 87, 102)) or 0
	return ends > now and kept
end

-- tell publishes a change of key, on no channel if that has no name. The change
-- is made by then, so it has not failed because one may not publish it.
local function tell(channel, kind, now, epoch, key, entry)
	if channel ~= '' then
		redis.pcall('PUBLISH', channel, kind .. digits(now) .. digits(epoch) .. string.format('%08d', #key) .. key .. entry)
	end
end
`

// ClaimLua has, after [Lua], the function that gives out an epoch under name, where kept was
// read. It returns what is kept, false if there is no entry, and the new epoch. retention is in
// milliseconds.
//
// The new epoch is not below the clock even if the counter is known: after a
// failover to a replica that is behind, the next number may have been given
// out by the server that is gone. When the counter is lost, the floor takes a
// number for itself: it must be above all that were given out, and be
// nobody's, or the commit of a forgotten claim would look repeated.
//
// lease is the note of a lease that was given along with the epoch, nil if none was.
const ClaimLua = `
local function claim(name, kept, now, retention, lease)
	local counter, floor = marks(kept)
	if not counter then
		counter, floor = now, now
	end
	local epoch = math.max(counter + 1, now)
	local entry = present(kept, now)
	if not entry then
		redis.call('SET', name, digits(epoch) .. digits(floor) .. (lease or note(kept)), 'PX', retention)
		return false, digits(epoch)
	end
	redis.call('SETRANGE', name, 0, lease and digits(epoch) .. digits(floor) .. lease or digits(epoch))
	if tonumber(string.sub(kept, 87, 102)) < now + retention * 1000 then
		redis.call('PEXPIRE', name, retention)
	end
	return entry, digits(epoch)
end
`

// Present returns the entry in what a script has read of the key under its name: the beginning
// alone, if that has the length [redispipe.Large]. What is there by the time of the second request
// is the present entry as well: that of the script's time, or of a commit since. What is
// not an entry, or not one any more, is the zero Entry. data is what is kept.
func (s *Servers) Present(ctx context.Context, key, name string, read any, seen Sighting) (e driver.Entry, data []byte, err error) {
	text, ok := read.(string)
	if !ok {
		return e, nil, nil
	}
	if data = []byte(text); len(data) == redispipe.Large {
		if data, err = s.Long(ctx, name); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return e, nil, err
		}
	}
	e, _ = Decode(key, data, seen.Now()) // on an error the entry is the zero one
	return e, data, nil
}

// Decode returns the entry in what is kept for the key, with its Age at now, the server's
// time. It returns ErrNotFound if there is none, or its life is over.
func Decode(key string, data []byte, now time.Duration) (driver.Entry, error) {
	var e driver.Entry
	if len(data) < MarksLen || bytes.ContainsFunc(data[:MarksLen], func(r rune) bool { return r < '0' || r > '9' }) {
		return e, fmt.Errorf("%w: no counter", driver.ErrCorrupt)
	}
	if len(data) == BareLen {
		return e, driver.ErrNotFound
	}
	if len(data) < HeadLen {
		return e, fmt.Errorf("%w: no end of its life", driver.ErrCorrupt)
	}
	passed, err := Since(data[BareLen:], now)
	if err != nil {
		return e, err
	}
	if err := e.Decode(key, data[HeadLen:]); err != nil {
		return e, err
	}
	if passed >= e.Life() {
		return driver.Entry{}, driver.ErrNotFound
	}
	e.Age += passed
	return e, nil
}

// Since returns how long before now the time was that data begins with, which
// has room for one.
func Since(data []byte, now time.Duration) (time.Duration, error) {
	us, err := strconv.ParseUint(string(data[:NumberLen]), 10, 53)
	if err != nil {
		return 0, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	// Negative if the server's clock was set back since.
	return max(0, now-time.Duration(us)*time.Microsecond), nil
}
