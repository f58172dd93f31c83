package redisfleet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
)

// This file is the election.

// longestNoted bounds the length of a noted lease, so foreign bytes in its place block a key no longer.
// Beyond it the script reads the lease itself.
const longestNoted = 10 * time.Minute

// Kinds of the elect script's answer for a key.
const (
	answered   = iota // the value
	elected           // the value, the epoch
	leaseHeld         // the value, the holder, the remaining time in ms
	leaseNoted        // the value, the holder, the end by the server's clock in microseconds
)

var answerParts = [...]int{answered: 2, elected: 3, leaseHeld: 4, leaseNoted: 4}

// elect: for each key, the names of the entry and the lease; retention in ms, the largest reply's last index, about (the
// time), the longest noted lease in ms, the channel of releases; then, for each key, past, void, the token, the lease
// in ms and the message of its release. The reply has an answer per key, then the server's time if the script has read
// it. The value is nil without an entry. A value longer than the largest reply is cut to that length.
//
// The script goes by the end of the entry's freshness, and cannot tell an entry from other bytes behind such
// a time: Lua has no checksum fast enough. It does not answer again with void, the part of the value behind
// the counter that the caller has found invalid.
//
// In a herd, all callers except the leader find the note of the leader's lease, by one command: GETRANGE.
// So a caller passes its estimate of the server's time as about, and the script reads the time only before it
// reads a lease. The estimate is never behind the server's time when sent, so an ended lease is never taken
// for held. If the lease ends on the way, the caller gets an end in the past. The estimate may be ahead by the
// duration of a reply, so the script judges an entry again by the server's time.
//
// After a lost reply the request is repeated. If the first request took the lease and an entry has come
// since, the caller gets only the entry, so the script ends the lease. The lease is the first write: Redis
// refuses a script's first write if it has no memory or is a replica, and then no lease is left.
var electScript = redisscript.New(redisentry.Lua + redisentry.ClaimLua + redislease.LeftLua + redislease.ReleaseLua + forgetLua + `
local retention, last, channel = ARGV[1], ARGV[2], ARGV[5]
local clock
local function read()
	clock = clock or time()
	return clock
end
local about = tonumber(ARGV[3]) or read()
local latest = about + ARGV[4] * 1000
local function elect(name, lease, past, void, token, ttl, message)
	local kept = part(name, '0', last)
	local counter, floor = marks(kept)
	local fresh = floor and #kept >= 118 and tonumber(string.sub(kept, 103, 118)) or 0
	local ends, whose = note(kept, counter)
	ends = tonumber(ends)
	local taken = ends > about and ends < latest and whose ~= token
	if fresh > 0 and floor > tonumber(past) and string.sub(kept, 17, 32) .. string.sub(kept, 71, 118) ~= void then
		local made = tonumber(string.sub(kept, 71, 86)) or 0
		local function answers(now)
			return fresh > now and made - now <= fresh - made
		end
		if answers(about) or not taken and answers(read()) then
			if whose == token then
				forget(name, whose)
				release(lease, whose, channel, message)
			end
			return {0, kept}
		end
	end
	if taken then
		return {3, present(kept, counter, about), whose, ends}
	end
	local now = read()
	local holder = redis.call('SET', lease, token, 'NX', 'GET', 'PX', ttl)
	if holder and holder ~= token then
		return {2, present(kept, counter, now), holder, left(lease, ttl)}
	end
	local entry, epoch = claim(name, kept, counter, floor, now, retention, digits(math.min(now + ttl * 1000, 2^53 - 1)) .. token)
	return {1, entry, epoch}
end
local answers = {}
for i = 1, #KEYS / 2 do
	local at = 5 * i
	answers[i] = elect(KEYS[2 * i - 1], KEYS[2 * i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5])
end
answers[#answers + 1] = clock and digits(clock) or false
return answers
`)

// A candidate is a call of Elect.
type candidate struct {
	call
	key  string
	name string // of the entry in Redis
	mine *redislease.Lease
	past uint64
	ttl  time.Duration
	void string // see electScript
}

// Elect implements [driver.Elector], with 1 request. A second request fetches an entry of 64 KiB or
// more, or stands again after an answer with invalid bytes or an entry no longer fresh.
func (e *Engine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	var won driver.Election
	if ttl <= 0 {
		return won, fmt.Errorf("redisfleet: elect %.100q: ttl %v is not positive", key, ttl)
	}
	if err := ctx.Err(); err != nil {
		return won, err
	}
	c := &candidate{call: newCall(ctx), key: key, name: redisentry.Name(e.Prefix, key), mine: e.leases.Stand(e.Prefix, key, ttl), past: past, ttl: ttl}
	c.mine.Holder = adapter.Token()
	// The note goes before the release, or woken waiters would find it.
	c.mine.Ending = func(ctx context.Context) error {
		_, _, err := e.servers.Run(ctx, forgetScript, []string{c.name}, c.mine.Holder)
		return err
	}
	if e.settled() {
		if err := e.elect(c, &won); !e.moves(err) {
			return won, c.mine.Wrap("elect", err)
		}
	}
	won, err := e.electByParts(ctx, key, past, ttl)
	return won, c.mine.Wrap("elect", err)
}

// elect stands for the candidate's lease. It stands again if the script's answer is no valid entry. Its frame is
// small, and won is a pointer: a flight's stack has no more room (TestElect_FitsTheStack).
func (e *Engine) elect(c *candidate, won *driver.Election) error {
	for {
		heard := c.mine.Heard()
		r, left := e.stands.ask(c, true)
		if left {
			go e.abandon(c)
		}
		if r.err != nil {
			return r.err
		}
		answer := r.answer.([]any)
		if err := e.servers.Present(c.ctx, c.key, c.name, answer[1], r.seen, &won.Entry); err != nil {
			if answer[0] == int64(elected) {
				undo(c.ctx, c.mine) // its holder does not learn of it
			}
			return err
		}
		if decided, err := e.decide(c, won, &r, heard); decided {
			return err
		}
		// A second request may have found a later value, for which the script may answer.
		if data, _ := answer[1].(string); len(data) >= redisentry.HeadLen {
			c.void = data[redisentry.NumberLen:redisentry.MarksLen] + data[redisentry.BareLen:redisentry.HeadLen]
		}
	}
}

// decide completes won, which has the entry, by the script's answer. decided is false if the script took the entry for
// an answer although it is none.
func (e *Engine) decide(c *candidate, won *driver.Election, r *outcome, heard redislease.Heard) (decided bool, err error) {
	answer := r.answer.([]any)
	switch answer[0] {
	case int64(elected):
		epoch, _ := answer[2].(string)
		if won.Epoch, err = strconv.ParseUint(epoch, 10, 64); err != nil {
			undo(c.ctx, c.mine)
			won.Entry = driver.Entry{}
			return true, err
		}
		won.Lease = c.mine
	case int64(leaseHeld):
		holder, _ := answer[2].(string)
		left, _ := answer[3].(int64)
		won.Held = c.mine.Held(c.key, holder, heard, left, r.read)
	case int64(leaseNoted):
		holder, _ := answer[2].(string)
		ends, _ := answer[3].(int64)
		left := time.Duration(ends)*time.Microsecond - r.seen.AtLeast(r.read)
		// Redis drops a key in the millisecond after its last one.
		won.Held = c.mine.HeldUntil(c.key, holder, heard, r.read.Add(max(0, left)+time.Millisecond))
	default:
		return suffices(won.Entry, c.past), nil
	}
	return true, nil
}

func suffices(entry driver.Entry, past uint64) bool { return entry.Fresh() && entry.Epoch > past }

// abandon waits for the reply to a candidate that has left. Without an answer, the lease may have been taken.
func (e *Engine) abandon(c *candidate) {
	r := <-c.reply
	if r.err != nil && r.err != errLeft || r.err == nil && r.answer.([]any)[0] == int64(elected) {
		undo(c.ctx, c.mine)
	}
}

// undo frees a lease behind the caller, who has no use for it.
func undo(ctx context.Context, lease *redislease.Lease) {
	go fault.Guard(func() error {
		lease.Undo(ctx)
		return nil
	})
}

// runElect runs the script. It returns an answer per candidate.
func (e *Engine) runElect(all []*candidate) ([]any, redisentry.Sighting, error) {
	ctx, cancel := redislease.Detached(all[0].ctx)
	defer cancel()
	_, clock, err := e.servers.ServerOf(ctx, all[0].name)
	if err != nil {
		return nil, redisentry.Sighting{}, err
	}
	known, ok := clock.Lasting()
	about := ""
	if ok {
		about = strconv.FormatInt(known.Now().Microseconds(), 10)
	}
	keys := make([]string, 0, 2*len(all))
	args := make([]any, 0, 5+5*len(all))
	args = append(args, redisentry.Retention.Milliseconds(), redispipe.Large-1, about, longestNoted.Milliseconds(), all[0].mine.Channel)
	for _, c := range all {
		keys = append(keys, c.name, c.mine.Key)
		args = append(args, c.past, c.void, c.mine.Holder, adapter.Millis(c.ttl), c.mine.Name)
	}
	reply, seen, err := e.servers.Run(ctx, electScript, keys, args...)
	if err != nil {
		return nil, seen, err
	}
	answers := reply[:len(reply)-1]
	if slices.ContainsFunc(answers, isForeign) {
		return nil, seen, errNoAnswers
	}
	if seen.Sent.IsZero() { // the script used the estimate about
		seen = known
	}
	return answers, seen, nil
}

// isForeign reports whether a reply is no answer of the script.
func isForeign(reply any) bool {
	parts, _ := reply.([]any)
	if len(parts) == 0 {
		return true
	}
	kind, ok := parts[0].(int64)
	return !ok || kind < answered || kind > leaseNoted || len(parts) < answerParts[kind]
}
