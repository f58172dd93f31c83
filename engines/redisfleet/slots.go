package redisfleet

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/redislease"
)

// This file is for a cluster that moves slots: an election by requests about one Redis key each.

// pause is how long the engine avoids requests about two keys after a slot was seen moving: the client
// repeats a refused request for some tens of milliseconds, in every call.
const pause = time.Second

func (e *Engine) settled() bool {
	moved := e.moved.Load()
	return moved == nil || time.Since(*moved) > pause
}

// moves reports whether err means a moving slot, and records the time. The client repeats a request at both servers by
// turns: one refuses it, and the other redirects. Either may be the last answer.
func (e *Engine) moves(err error) bool {
	_, asks := redis.IsAskError(err)
	_, moved := redis.IsMovedError(err)
	if !asks && !moved && !redis.IsTryAgainError(err) {
		return false
	}
	now := time.Now()
	e.moved.Store(&now)
	return true
}

func (e *Engine) electByParts(ctx context.Context, key string, past uint64, ttl time.Duration) (won driver.Election, err error) {
	won.Entry, err = e.Get(ctx, key)
	if err != nil && !errors.Is(err, driver.ErrNotFound) && !errors.Is(err, driver.ErrCorrupt) || suffices(won.Entry, past) {
		return won, err
	}
	lease, err := e.TryAcquire(ctx, key, ttl)
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		won.Held = held
		return won, nil
	}
	if err != nil {
		return driver.Election{}, err
	}
	won.Entry, won.Epoch, err = e.Claim(ctx, key)
	if err != nil || suffices(won.Entry, past) {
		// Another holder has committed and released between the look and the election.
		won.Epoch = 0
		undo(ctx, redislease.Of(lease))
		return won, err
	}
	won.Lease = lease
	return won, nil
}
