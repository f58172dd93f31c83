package redisfleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redispipe"
)

// This file joins calls. A thousand keys that expire together make a thousand calls, and one script stands for many
// keys: calls that come during a request go together in the next one.

// A call is one key's part of a request.
type call struct {
	ctx   context.Context
	reply chan outcome // has room for one
}

func newCall(ctx context.Context) call { return call{ctx, make(chan outcome, 1)} }

func (c *call) base() *call { return c }

// An outcome is the script's answer to a call.
type outcome struct {
	answer any
	seen   redisentry.Sighting // of the server that answered
	read   time.Time           // when the answer came
	err    error
}

// A joint runs a script for many calls.
type joint[C interface{ base() *call }] struct {
	*redispipe.Group[C]
	run func([]C) ([]any, redisentry.Sighting, error) // an answer per call
}

func newJoint[C interface{ base() *call }](rdb redis.UniversalClient, run func([]C) ([]any, redisentry.Sighting, error)) *joint[C] {
	j := &joint[C]{run: run}
	j.Group = redispipe.NewGroup(rdb, j.runPresent)
	return j
}

var (
	errLeft      = errors.New("redisfleet: the call ended before its request")
	errNoAnswers = errors.New("the reply has not an answer for each key")
)

// ask has the script run for c, with others if it joins. It returns when c's context ends. If left is true, the reply of
// a request under way is still to come.
func (j *joint[C]) ask(c C, joins bool) (r outcome, left bool) {
	b := c.base()
	switch {
	case !joins:
		go j.runPresent([]C{c})
	case j.Join(c):
		go j.Lead([]C{c})
	}
	select {
	case r = <-b.reply:
		if r.err == errLeft {
			r.err = b.ctx.Err()
		}
		return r, false
	case <-b.ctx.Done():
		return outcome{err: b.ctx.Err()}, true
	}
}

// runPresent runs the script for the calls that have not ended.
func (j *joint[C]) runPresent(all []C) {
	all = slices.DeleteFunc(all, func(c C) bool {
		left := c.base().ctx.Err() != nil
		if left {
			c.base().reply <- outcome{err: errLeft}
		}
		return left
	})
	if len(all) > 0 {
		j.runFor(all)
	}
}

// runFor runs the script for the calls, and replies to each.
func (j *joint[C]) runFor(all []C) {
	var answers []any
	var seen redisentry.Sighting
	fault.Run(func() (err error) {
		answers, seen, err = j.run(all)
		if err == nil && len(answers) != len(all) {
			err = errNoAnswers
		}
		return err
	}, func(err error) {
		if _, refused := errors.AsType[redis.Error](err); refused && len(all) > 1 {
			// The server may refuse the script for the sake of one key, after its work for other keys. So a repetition,
			// which finds this work, is sent also for a call that has ended.
			for _, c := range all {
				go j.runFor([]C{c})
			}
			return
		}
		read := time.Now()
		for i, c := range all {
			r := outcome{seen: seen, read: read, err: err}
			if err == nil {
				r.answer = answers[i]
			}
			c.base().reply <- r
		}
	})
}
