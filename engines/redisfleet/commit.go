package redisfleet

import (
	"context"
	"errors"
	"fmt"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
)

// This file is the commit with the release of its lease.

// commitAndRelease: for each key, the names of the entry and the lease; CommitLua's shared arguments, the channel of
// releases; then, for each key, CommitLua's own arguments, the token and the message of the release. The reply has 1
// per committed key and 0 per refused key, then the server's time if the script has read it. The commit counts even if
// a foreign type in the lease's place fails the release. A repeated commit writes nothing, so the script removes the
// note. All changes are one message, and all releases another.
var commitAndReleaseScript = redisscript.New(redisentry.Lua + redisentry.CommitLua + redislease.ReleaseLua + forgetLua + `
local clock
local function read()
	clock = clock or time()
	return clock
end
local answers, changes, released = {}, {}, {}
for i = 1, #KEYS / 2 do
	local name, at = KEYS[2 * i - 1], 8 * i - 3
	local committed, _, told = commit(name, ARGV, at, read)
	if committed == 1 then
		if told then
			changes[#changes + 1] = told
		else
			forget(name, ARGV[at + 7])
		end
		local fine, freed = pcall(free, KEYS[2 * i], ARGV[at + 7])
		if fine and freed then
			released[#released + 1] = ARGV[at + 8]
		end
	end
	answers[i] = committed
end
tell(ARGV[3], table.concat(changes))
tell(ARGV[5], table.concat(released, ' '))
answers[#answers + 1] = clock and digits(clock) or false
return answers
`)

// longestJoined bounds an entry, with its key, that goes with others: their commits would wait for its sending, and all
// clients for a long script.
const longestJoined = 1 << 10

// A committing is a call of CommitAndRelease with a lease of the key.
type committing struct {
	call
	name   string // of the entry in Redis
	commit *redisentry.Commit
	mine   *redislease.Lease
}

// CommitAndRelease implements [driver.Elector]. It costs 1 request with a lease of an engine or a
// redislock for the key. Without a lease it is Commit.
func (e *Engine) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	// Encoded here: the request may outlive the call and the caller's use of Value.
	commit, err := redisentry.NewCommit(key, entry, e.MaxValue)
	if err != nil {
		return fmt.Errorf("redisfleet: commit: %w", err)
	}
	name, mine := redisentry.Name(e.Prefix, key), redislease.Of(lease)
	if mine != nil && mine.Key == redislease.Key(e.Prefix, key) && e.settled() {
		r, _ := e.commits.ask(&committing{newCall(ctx), name, commit, mine}, commit.Size()+len(key) < longestJoined)
		if err = r.err; err == nil && r.answer != int64(1) {
			err = driver.ErrFenced
		}
		if !e.moves(err) {
			return e.wrapCommit(err)
		}
	}
	return e.wrapCommit(adapter.Do(ctx, func() error {
		if err := commit.Send(ctx, e.servers, name, e.where()); err != nil || lease == nil {
			return err
		}
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrLeaseLost) {
			return err
		}
		return nil
	}))
}

func (e *Engine) wrapCommit(err error) error {
	if err == nil || err == driver.ErrFenced {
		return err
	}
	return fmt.Errorf("redisfleet: commit: %w", e.servers.Dials.Explain(err))
}

func (e *Engine) where() redisentry.Where {
	return redisentry.Where{Channel: e.servers.Changes(e.Prefix, e.MaxNotice), MaxNotice: e.MaxNotice}
}

// runCommits runs the script. It returns an answer per call.
func (e *Engine) runCommits(all []*committing) ([]any, redisentry.Sighting, error) {
	ctx, cancel := redispipe.Together(all, func(c *committing) context.Context { return c.ctx })
	defer cancel()
	known, err := e.servers.Sight(ctx, all[0].name)
	if err != nil {
		return nil, known, err
	}
	keys := make([]string, 0, 2*len(all))
	args := append(make([]any, 0, 5+8*len(all)), e.where().Shared()...)
	args = append(args, all[0].mine.Channel)
	for _, c := range all {
		keys = append(keys, c.name, c.mine.Key)
		args = append(append(args, c.commit.Own(known)...), c.mine.Holder, c.mine.Name)
	}
	reply, seen, err := e.servers.Run(ctx, commitAndReleaseScript, keys, args...)
	if err != nil {
		return nil, seen, err
	}
	return reply[:len(reply)-1], seen, nil
}
