package redisentry

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisscript"
)

// This file commits an entry by a script. Other packages add to the script.

// CommitLua has, after [Lua], the function commit, which commits under name. commit returns 1 if
// committed, else 0, and the time if the function read it.
//
// Its arguments are those of [Commit.Send]: retention in ms, epoch, life in ms (0: no entry), lingering
// in ms, encoded entry, channel, key, largest entry to publish, time of the Commit call and freshness
// from then, both in microseconds, and the token of a lease whose note ends with the commit, or nil.
//
// The age counts from the call at the latest: a stalled server carries out old requests later, after
// their callers have left. An epoch at the floor was committed before, by the same claim. Redis then
// holds that entry, or no entry if its life is over or it had none.
const CommitLua = `
local function commit(name, args)
	local epoch = tonumber(args[2])
	local head = redis.pcall('GETRANGE', name, 0, 69)
	local counter, floor = marks(head)
	if not counter or epoch < floor or epoch > counter then
		return 0
	end
	if epoch == floor then
		local entry = redis.call('GETRANGE', name, 118, -1)
		return (entry == '' or entry == args[5]) and 1 or 0
	end
	local now = time()
	local made = math.min(tonumber(args[9]), now)
	local life = tonumber(args[3])
	local lease, _, holder = note(head)
	if holder == args[11] then
		lease = nobody
	end
	local kept, keep = digits(counter) .. digits(epoch) .. lease, tonumber(args[1])
	if life > 0 then
		kept = kept .. digits(made) .. digits(math.min(made + life * 1000, 2^53 - 1)) ..
			digits(math.min(made + args[10], 2^53 - 1)) .. args[5]
		-- A later claim needs the numbers for the retention of a claim.
		keep = math.max(life + args[4], counter > epoch and keep or 0)
	end
	redis.call('SET', name, kept, 'PX', string.format('%.0f', keep))
	tell(args[6], 'c', made, epoch, args[7], #args[5] <= tonumber(args[8]) and args[5] or '')
	return 1, digits(now)
end
`

// CommitScript commits an entry.
var CommitScript = redisscript.New(Lua + CommitLua + `return {commit(KEYS[1], ARGV)}`)

// A Commit is an entry on its way to Redis.
type Commit struct {
	called      time.Time
	key         string
	epoch       uint64
	data        []byte // the encoded entry, nil if it has no life
	life, fresh time.Duration
}

// NewCommit encodes an entry for a commit under the key, with its age from now on. Over most bytes the
// error is ErrTooLarge. The caller may change the entry's Value afterwards.
func NewCommit(key string, e driver.Entry, most int) (*Commit, error) {
	c := &Commit{called: time.Now(), key: key, epoch: e.Epoch, life: e.Life(), fresh: freshFor(e)}
	if c.life > 0 {
		c.data = e.Append(make([]byte, 0, len(e.Value)+len(e.Failure)+128), key)
		if len(c.data) > most {
			return nil, fmt.Errorf("%d bytes of at most %d: %w", len(c.data), most, driver.ErrTooLarge)
		}
	}
	return c, nil
}

// freshFor returns the time, from its Age on, for which the entry is Fresh.
func freshFor(e driver.Entry) time.Duration {
	age := max(0, e.Age)
	switch {
	case e.Failures > 0:
		return max(0, e.RetryAge-age)
	case e.Kind != driver.KindNone:
		return max(0, e.TTL-age)
	}
	return 0
}

// Where is the target of a commit.
type Where struct {
	// Keys are the name of the entry, and further keys of the script.
	Keys []string
	// Channel receives a notice of the commit. "" sends no notice.
	Channel string
	// MaxNotice is the size of the largest encoded entry in a notice.
	MaxNotice int
}

// Send commits by the script, with more arguments behind CommitLua's. A refusal's error is ErrFenced.
func (c *Commit) Send(ctx context.Context, s *Servers, script *redisscript.Script, to Where, more ...any) error {
	seen, err := s.Sight(ctx, to.Keys[0])
	if err != nil {
		return err
	}
	args := append([]any{Retention.Milliseconds(), c.epoch, adapter.Millis(c.life), Lingering.Milliseconds(), c.data,
		to.Channel, c.key, to.MaxNotice, seen.AtLeast(c.called).Microseconds(), micros(c.fresh)}, more...)
	reply, _, err := s.Run(ctx, script, to.Keys, args...)
	if err != nil {
		return err
	}
	if reply[0] != int64(1) {
		return driver.ErrFenced
	}
	return nil
}

// micros returns d in microseconds, rounded up, so the entry is still fresh in the last one.
func micros(d time.Duration) int64 {
	us := d.Microseconds()
	if time.Duration(us)*time.Microsecond < d {
		us++
	}
	return us
}
