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

// CommitLua has, after [Lua], the function commit, which commits under name. commit returns 1 if committed, else 0.
// A commit that is no repeated one also returns the time and the change to tell.
//
// Its arguments are those of [Where.Shared]: retention and lingering in ms, channel, largest entry to publish. Behind
// the index at are those of [Commit.Own]: epoch, life in ms (0: no entry), encoded entry, key, time of the Commit call
// and freshness from then, both in microseconds. Then comes the token of a lease whose note ends with the commit, or
// nothing. read returns the server's time.
//
// The age counts from the call at the latest: a stalled server carries out old requests later, after
// their callers have left. An epoch at the floor was committed before, by the same claim. Redis then
// holds that entry, or no entry if its life is over or it had none.
const CommitLua = `
local function commit(name, args, at, read)
	local epoch, data = tonumber(args[at + 1]), args[at + 3]
	local head = part(name, '0', '69')
	local counter, floor = marks(head)
	if not counter or epoch < floor or epoch > counter then
		return 0
	end
	if epoch == floor then
		local entry = redis.call('GETRANGE', name, '118', '-1')
		return (entry == '' or entry == data) and 1 or 0
	end
	local now = read()
	local made = math.min(tonumber(args[at + 5]), now)
	local life, ends, holder = tonumber(args[at + 2]), note(head, counter)
	local lease = holder == args[at + 7] and nobody or ends .. holder
	local madeDigits, epochDigits = digits(made), digits(epoch)
	local kept, keep = digits(counter) .. epochDigits .. lease, tonumber(args[1])
	if life > 0 then
		kept = kept .. madeDigits .. digits(math.min(made + life * 1000, 2^53 - 1)) ..
			digits(math.min(made + args[at + 6], 2^53 - 1)) .. data
		-- A later claim needs the numbers for the retention of a claim.
		keep = math.max(life + args[2], counter > epoch and keep or 0)
	end
	redis.call('SET', name, kept, 'PX', string.format(whole, keep))
	return 1, now, change('c', madeDigits, epochDigits, args[at + 4], #data <= tonumber(args[4]) and data or '')
end
`

// CommitScript commits an entry.
var CommitScript = redisscript.New(Lua + CommitLua + `
local committed, now, told = commit(KEYS[1], ARGV, 4, time)
tell(ARGV[3], told or '')
return {committed, now and digits(now)}
`)

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

// Where is the target of commits.
type Where struct {
	// Channel receives a notice of each commit. "" sends no notice.
	Channel string
	// MaxNotice is the size of the largest encoded entry in a notice.
	MaxNotice int
}

// Shared returns the first arguments of a script that commits.
func (w Where) Shared() []any {
	return []any{Retention.Milliseconds(), Lingering.Milliseconds(), w.Channel, w.MaxNotice}
}

// Own returns the arguments of this commit. seen is a recent sighting of the server.
func (c *Commit) Own(seen Sighting) []any {
	return []any{c.epoch, adapter.Millis(c.life), c.data, c.key, seen.AtLeast(c.called).Microseconds(), micros(c.fresh)}
}

// Size is the size of the encoded entry.
func (c *Commit) Size() int { return len(c.data) }

// Send commits under name. A refusal's error is ErrFenced.
func (c *Commit) Send(ctx context.Context, s *Servers, name string, to Where) error {
	seen, err := s.Sight(ctx, name)
	if err != nil {
		return err
	}
	reply, _, err := s.Run(ctx, CommitScript, []string{name}, append(to.Shared(), c.Own(seen)...)...)
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
