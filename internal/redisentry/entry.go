// Package redisentry has redisstore's and redisfleet's format of entries, and the scripts for it.
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

// Retention is how long a key's counter and floor are kept after a claim or an invalidation, to outlast any
// rebuild. Without them a commit is refused, and a later claim sets the floor above every earlier epoch.
const Retention = time.Hour

// Lingering is how long counter and floor outlive an entry without a later claim. It leaves time to
// repeat a commit after a lost reply. The next claim begins at the clock. Its epoch is still greater if
// the clock was set back, or a slower clock has taken over, by less than Lingering and the entry's life.
const Lingering = 10 * time.Second

// Name returns the Redis key of all data of a key. Its braces make the name alone decide the cluster
// slot, as with the lease. One Redis key holds all data: while a cluster moves a slot, it refuses
// requests about two of its keys if one is missing (TRYAGAIN). Both keys of a cold key would be missing.
func Name(prefix, key string) string { return prefix + "{" + adapter.Name(key) + "}:entry" }

// The value of a name in Redis is, with each number in 16 decimal digits,
//
//	counter | floor | end of the noted lease | its holder's token |
//	server's time when the commit was sent | end of the entry's life by that clock |
//	end of the time for which it is fresh | encoded entry
//
// with floor <= counter, and times in microseconds since 1970 (enough until 2286). The parts from
// the time of the commit on are present only with an entry, whose epoch is the floor. An entry may
// be kept beyond its life, for the sake of the parts before it.
//
// The noted lease is a copy of the key's lease, a Redis key of its own. Readers of the entry need no
// request for the lease. redisfleet notes the leases it gives, and removes the note before it ends such
// a lease. A note past its end means nothing: the lease may have been renewed. Zeros mean no note.
//
// All these numbers are times in microseconds or a little above one, so they stay below 2^53 until
// the year 2255 and are exact in Lua's doubles. A counter above 2^52 (2112) is foreign and counts
// as lost, with the entry: adding 1 to it could give the same number.
const (
	// NumberLen is the length of a number.
	NumberLen = 16
	// MarksLen is the length of the counter and the floor.
	MarksLen = 2 * NumberLen
	// BareLen is the length of a value without an entry.
	BareLen = MarksLen + NumberLen + tokenLen
	// HeadLen is the length of the parts before an encoded entry.
	HeadLen = BareLen + 3*NumberLen

	tokenLen = 22 // of adapter.Token
)

// Patterns of a number and of a token: Lua's patterns have no counts.
const (
	luaNumber = `(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)`
	luaToken  = `(......................)`
)

// Lua has the functions with which the scripts read and write a value. A key of another type counts
// as missing: part catches the error, and SET ignores the type. A command's arguments are texts: Redis 7.0 takes as
// long to print a number as for a GETRANGE.
const Lua = `
-- part returns a part of a value. All errors but that of the type end the script: to a user without the right to
-- read, each commit would seem to be fenced off.
local function part(name, first, last)
	local found = redis.pcall('GETRANGE', name, first, last)
	if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
		redis.call('GETRANGE', name, first, last) -- raises the error, in each version of Redis
	end
	return found
end

-- The formats of a whole number. %d takes half the time of %.0f, and is too small in a 32-bit server.
local whole, sixteen = '%d', '%016d'
if string.format(whole, 2^52) ~= '4503599627370496' then
	whole, sixteen = '%.0f', '%016.0f'
end

local function digits(n)
	return string.format(sixteen, n)
end

-- marks returns the counter and the floor of a value, or nil if the value is foreign.
local function marks(kept)
	if type(kept) ~= 'string' then
		return
	end
	local counter, floor = string.match(kept, '^` + luaNumber + luaNumber + `')
	counter, floor = tonumber(counter), tonumber(floor)
	if counter and counter <= 2^52 and floor <= counter then
		return counter, floor
	end
end

local function time()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2]
end

-- nobody is the note of no lease.
local nobody = '00000000000000000000000000000000000000'

-- note returns the end and the holder of the noted lease, as texts, in a value with that counter, nil if foreign.
local function note(kept, counter)
	local ends, holder = string.match(counter and kept or '', '^` + luaNumber + luaToken + `', 33)
	if not ends then
		return string.sub(nobody, 1, 16), string.sub(nobody, 17)
	end
	return ends, holder
end

-- present returns the value with that counter, nil if foreign, if it has an entry with a remaining life, else false.
local function present(kept, counter, now)
	local ends = counter and tonumber(string.sub(kept, 87, 102)) or 0
	return ends > now and kept
end

-- change returns the part of a message that tells a change of key. at and epoch are digits.
local function change(kind, at, epoch, key, entry)
	return digits(41 + #key + #entry) .. kind .. at .. epoch .. string.format('%08d', #key) .. key .. entry
end

-- tell publishes a message, unless channel or message is ''. What it tells is done by then, so a refusal to publish is
-- no failure.
local function tell(channel, message)
	if channel ~= '' and message ~= '' then
		redis.pcall('PUBLISH', channel, message)
	end
end
`

// ClaimLua has, after [Lua], the function claim, which issues an epoch under name. kept is the value read before, with
// its marks. claim returns the value, or false without an entry, and the new epoch. retention is in ms. lease is the
// note of a lease given with the epoch, or nil. The new epoch is not below the clock even if the counter is known:
// after a failover to a replica that lags, the lost server may have issued the next number. If the counter is lost, the
// floor takes a number for itself. It must be above all issued epochs and belong to no claim, or the commit of a
// forgotten claim would look repeated.
const ClaimLua = `
local function claim(name, kept, counter, floor, now, retention, lease)
	local epoch = digits(math.max((counter or now) + 1, now))
	local entry = present(kept, counter, now)
	if not entry then
		if not lease then
			local ends, holder = note(kept, counter)
			lease = ends .. holder
		end
		redis.call('SET', name, epoch .. digits(floor or now) .. lease, 'PX', retention)
		return false, epoch
	end
	redis.call('SETRANGE', name, '0', lease and epoch .. digits(floor) .. lease or epoch)
	if tonumber(string.sub(kept, 87, 102)) < now + retention * 1000 then
		redis.call('PEXPIRE', name, retention)
	end
	return entry, epoch
end
`

// Present sets e to the entry in a value read by a script. A value of length [redispipe.Large] is only a
// beginning: a second script reads the whole, because a GET could reach a replica with the entry from before
// the first. Invalid bytes and entries past their life give the zero Entry.
func (s *Servers) Present(ctx context.Context, key, name string, read any, seen Sighting, e *driver.Entry) error {
	*e = driver.Entry{}
	text, ok := read.(string)
	if !ok {
		return nil
	}
	if len(text) == redispipe.Large {
		var err error
		text, err = adapter.Await(ctx, func() (string, error) {
			return s.Eval(ctx, `return redis.call('GET', KEYS[1])`, []string{name}).Text()
		}, nil)
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
	}
	Decode(key, []byte(text), seen.Now(), e) // on an error the entry is the zero Entry
	return nil
}

// Decode sets e to the entry in a value of the key, with its Age at now, the server's time. The error is ErrNotFound if
// the value has no entry or its life is over. With an error, e is the zero Entry.
//
// An entry committed after now has an unknown age: the server's clock was set back, or a slower one has taken over. It
// is no longer fresh if the clock is behind by more than the time for which it was fresh, or it would be fresh for
// hours. By a smaller difference it is fresh longer, so a difference of milliseconds costs no rebuild.
func Decode(key string, data []byte, now time.Duration, e *driver.Entry) error {
	*e = driver.Entry{}
	if len(data) < MarksLen || bytes.ContainsFunc(data[:MarksLen], func(r rune) bool { return r < '0' || r > '9' }) {
		return fmt.Errorf("%w: no counter", driver.ErrCorrupt)
	}
	if len(data) == BareLen {
		return driver.ErrNotFound
	}
	if len(data) < HeadLen {
		return fmt.Errorf("%w: no end of its life", driver.ErrCorrupt)
	}
	passed, err := Since(data[BareLen:], now)
	if err != nil {
		return err
	}
	if err := e.Decode(key, data[HeadLen:]); err != nil {
		return err
	}
	if fresh := freshFor(*e); passed < -fresh {
		passed = fresh
	}
	passed = max(0, passed)
	if passed >= e.Life() {
		*e = driver.Entry{}
		return driver.ErrNotFound
	}
	e.Age += passed
	return nil
}

// Since returns the time until now from the number at the start of data, which is at least as long. It is negative if
// the server's clock was set back since, or a server with a clock further behind has taken over.
func Since(data []byte, now time.Duration) (time.Duration, error) {
	us, err := strconv.ParseUint(string(data[:NumberLen]), 10, 53)
	if err != nil {
		return 0, fmt.Errorf("%w: no time of commit", driver.ErrCorrupt)
	}
	return now - time.Duration(us)*time.Microsecond, nil
}
