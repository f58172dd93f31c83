package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/redis/go-redis/v9"
)

// This file reads many entries at once: of each server those that it has, in one
// round trip for each piece of them.

// A share is what one server has of the keys.
type share struct {
	server redis.Cmdable
	clock  *redisentry.Clock
	keys   []int    // by their places in the call
	names  []string // of the keys, as Redis knows them
	own    []string // the keys themselves
	err    error    // why there is no server, for a share of one key
}

// piece returns the first n keys of the share, and the share of the rest.
func (sh share) piece(n int) (first, rest share) {
	n = min(n, len(sh.keys))
	first, rest = sh, sh
	first.keys, rest.keys = sh.keys[:n], sh.keys[n:]
	first.names, rest.names = sh.names[:n], sh.names[n:]
	first.own, rest.own = sh.own[:n], sh.own[n:]
	return first, rest
}

// A reply is what there is to say of one key.
type reply struct {
	entry driver.Entry
	err   error
}

// replies are those to a piece of a share.
type replies struct {
	each    []reply
	bytes   int
	silence error // why there is no answer for any of them
}

// GetMany implements [driver.BatchGetter]. It asks each server for as many keys at a
// time as have a megabyte of values, by the size of those that came last, and for 256 at
// most; the first time for 16.
// Each time costs one round trip, with one command, or in a cluster one GET for each
// key; and with the time beside that, for a server that was not asked lately.
func (s *Store) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	shares, err := await(ctx, s, "get", func() ([]*share, error) { return s.shares(ctx, keys) })
	if err != nil {
		for i := range keys {
			each(i, driver.Entry{}, err)
		}
		return
	}
	var asking sync.WaitGroup
	for _, sh := range shares {
		asking.Go(func() {
			var piece share
			var got replies
			for rest := *sh; len(rest.keys) > 0; {
				piece, rest = rest.piece(s.pieces.Next())
				var err error
				got, err = await(ctx, s, "get", func() (replies, error) { return s.getShare(ctx, &piece) })
				for n, i := range piece.keys {
					if err != nil {
						each(i, driver.Entry{}, err)
					} else {
						each(i, got.each[n].entry, s.wrap("get", got.each[n].err))
					}
				}
				if err = cmp.Or(err, s.wrap("get", got.silence)); err == nil {
					s.pieces.Came(len(piece.keys), got.bytes)
					continue
				}
				s.pieces.Late(len(piece.keys))
				for _, i := range rest.keys { // its server is not asked again
					each(i, driver.Entry{}, err)
				}
				return
			}
		})
	}
	asking.Wait()
}

// shares finds the keys' servers.
func (s *Store) shares(ctx context.Context, keys []string) ([]*share, error) {
	var list []*share
	of := map[*redisentry.Clock]*share{}
	for i, key := range keys {
		name := s.name(key)
		server, clock, err := s.servers.ServerOf(ctx, name)
		if err != nil {
			list = append(list, &share{err: err, keys: []int{i}, names: []string{name}, own: []string{key}})
			continue
		}
		sh := of[clock]
		if sh == nil {
			sh = &share{server: server, clock: clock}
			of[clock] = sh
			list = append(list, sh)
		}
		sh.keys, sh.names, sh.own = append(sh.keys, i), append(sh.names, name), append(sh.own, key)
	}
	return list, nil
}

// getShare reads a share. A process that only reads asks for the time along with
// entries, twice a minute. The request goes to their server itself, because TIME has no
// key by which a cluster's client would find it; so a redirection to another server is
// ours to follow.
func (s *Store) getShare(ctx context.Context, sh *share) (got replies, _ error) {
	if sh.err != nil {
		return got, sh.err
	}
	seen, known := sh.clock.Recent()
	sent := time.Now()
	pipe := sh.server.Pipeline()
	data := s.pipeGets(ctx, pipe, sh.names)
	var now *redis.TimeCmd
	if !known {
		now = pipe.Time(ctx)
	}
	pipe.Exec(ctx) // its error is that of a command
	if now != nil {
		t, err := now.Result()
		if err != nil {
			return got, fmt.Errorf("with the time: %w", err)
		}
		seen = redisentry.Sighting{Server: time.Duration(t.UnixMicro()) * time.Microsecond, Sent: sent, Took: time.Since(sent)}
		sh.clock.See(seen)
	}
	// What has moved to another server the cluster's client finds.
	moved, follow := map[int]*redis.StringCmd{}, s.rdb.Pipeline()
	for n, name := range sh.names {
		_, err := data(n)
		rediscluster.Doubt(s.rdb, err)
		if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
			moved[n] = follow.Get(ctx, name)
		}
	}
	if len(moved) > 0 {
		follow.Exec(ctx)
	}
	got.each = make([]reply, len(sh.names))
	answered := false
	for n := range got.each {
		value, err := data(n)
		if cmd := moved[n]; cmd != nil {
			value, err = cmd.Bytes()
		}
		if _, replied := errors.AsType[redis.Error](err); err == nil || replied {
			answered = true
		}
		got.bytes += len(value)
		got.each[n].entry, got.each[n].err = entryOf(sh.own[n], value, err, seen.Now())
	}
	if !answered {
		got.silence = got.each[0].err
	}
	return got, nil
}

// pipeGets puts the reading of names on the pipe, and returns what then tells
// the replies.
func (s *Store) pipeGets(ctx context.Context, pipe redis.Pipeliner, names []string) (data func(n int) ([]byte, error)) {
	if _, ok := s.rdb.(rediscluster.Client); ok || len(names) == 1 {
		// Of keys in several slots a cluster's server refuses MGET.
		gets := make([]*redis.StringCmd, len(names))
		for i, name := range names {
			gets[i] = pipe.Get(ctx, name)
		}
		return func(n int) ([]byte, error) { return gets[n].Bytes() }
	}
	all := pipe.MGet(ctx, names...)
	return func(n int) ([]byte, error) {
		values, err := all.Result()
		if err != nil {
			return nil, err
		}
		// What has another type than a string, with which GET would fail, is
		// nothing here.
		value, ok := values[n].(string)
		if !ok {
			return nil, redis.Nil
		}
		return []byte(value), nil
	}
}
