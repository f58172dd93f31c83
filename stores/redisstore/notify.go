package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redissub"
)

// This file receives the commits and invalidations of other processes.

// channel is the channel of changes, or "" without notices.
func (s *Store) channel() string { return s.servers.Changes(s.Prefix, s.MaxNotice) }

// Notify implements [driver.Notifier]. All calls for one store share a connection, subscribed to one channel. It is
// made again after a loss.
//
// The channel is Prefix + "changes:" and the number of the database in the client's options. A notice comes
// without its entry if its delay is unknown, because this process has sent its server no request in the last
// half minute. Notify trusts every publisher on the channel, as the store trusts every writer of its keys.
// With a cluster, the cluster's bus carries the channel, and Notify listens at a random node. The shards of a
// Ring do not share channels: f is never called.
func (s *Store) Notify(ctx context.Context, f func(driver.Notice)) {
	if redissub.IsRing(s.rdb) || s.MaxNotice < 0 {
		<-ctx.Done()
		return
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.servers.Pushes.Listen(ctx, s.channel(), redissub.Listener{Message: func(payload string) {
		// The client's functions are user code, and other listeners share the goroutine.
		err := fault.Guard(func() error {
			for len(payload) > 0 {
				var change string
				change, payload = firstChange(payload)
				if n, err := s.notice(ctx, []byte(change)); err == nil {
					f(n)
				}
			}
			return nil
		})
		if err != nil {
			fail(err)
		}
	}})
	if failed, ok := errors.AsType[*fault.PanicError](context.Cause(ctx)); ok {
		panic(failed)
	}
}

// A message is one or more changes, each of them with its length (16 digits) before it. A change is
//
//	"c" commit or "i" invalidation | server's time (16 digits) | epoch (16) | len(key) (8) | key | encoded entry or nothing
const lengthLen = 8 // digits of a key's length; a change may be longer than 8 digits say

// firstChange returns a message's first change, and the rest. It returns two empty strings if there is no such change.
func firstChange(message string) (change, rest string) {
	if len(message) < redisentry.NumberLen {
		return "", ""
	}
	length, err := strconv.ParseUint(message[:redisentry.NumberLen], 10, 31)
	if message = message[redisentry.NumberLen:]; err != nil || length > uint64(len(message)) {
		return "", ""
	}
	return message[:length], message[length:]
}

// notice decodes a published change. Invalid bytes are an error: every user of the server can publish.
func (s *Store) notice(ctx context.Context, data []byte) (n driver.Notice, err error) {
	if len(data) < 1+2*redisentry.NumberLen+lengthLen || data[0] != 'c' && data[0] != 'i' {
		return n, fmt.Errorf("%w: not a change", driver.ErrCorrupt)
	}
	n.Invalidated = data[0] == 'i'
	made, rest := data[1:], data[1+redisentry.NumberLen:]
	if n.Epoch, err = strconv.ParseUint(string(rest[:redisentry.NumberLen]), 10, 53); err != nil {
		return n, fmt.Errorf("%w: %w", driver.ErrCorrupt, err)
	}
	length, err := strconv.ParseUint(string(rest[redisentry.NumberLen:redisentry.NumberLen+lengthLen]), 10, 31)
	rest = rest[redisentry.NumberLen+lengthLen:]
	if err != nil || length > uint64(len(rest)) {
		return n, fmt.Errorf("%w: not a key", driver.ErrCorrupt)
	}
	n.Key, rest = string(rest[:length]), rest[length:]

	_, clock, err := s.servers.ServerOf(ctx, s.name(n.Key))
	if err != nil {
		return n, err
	}
	seen, known := clock.Recent()
	if !known {
		return n, nil
	}
	now := time.Now() // before the server's time is derived from it
	delay, err := redisentry.Since(made, seen.Now())
	if err != nil {
		return n, err
	}
	delay = max(0, delay)
	if n.Made = now.Add(-delay); len(rest) == 0 {
		return n, nil
	}
	var e driver.Entry
	if err := e.Decode(n.Key, rest); err != nil {
		return n, err
	}
	if e.Epoch != n.Epoch {
		return n, fmt.Errorf("%w: the entry of another epoch", driver.ErrCorrupt)
	}
	if delay < e.Life() {
		e.Age += delay
		n.Entry = e
	}
	return n, nil
}
