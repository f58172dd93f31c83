package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/redis/go-redis/v9"
)

// This file reads many entries at once: of each server, those that it has in one
// round trip.

// A share is what one server has of the keys.
type share struct {
	server redis.Cmdable
	clock  *clock
	keys   []int
	names  []string
	err    error // why there is no server, for a share of one key
}

// A reply is what there is to say of one key.
type reply struct {
	entry bellwether.Entry
	err   error
}

// GetMany implements [bellwether.BatchGetter]. It costs one command, or in a
// cluster one GET for each key, in one round trip to each server; and the time
// beside that, for a server that was not asked lately.
func (s *Store) GetMany(ctx context.Context, keys []string, each func(i int, e bellwether.Entry, err error)) {
	shares, err := adapter.Await(ctx, func() ([]*share, error) { return s.shares(ctx, keys) }, nil)
	if err != nil {
		for i := range keys {
			each(i, bellwether.Entry{}, fmt.Errorf("redisstore: get: %w", err))
		}
		return
	}
	var asking sync.WaitGroup
	for _, sh := range shares {
		asking.Go(func() {
			replies, err := adapter.Await(ctx, func() ([]reply, error) { return s.getShare(ctx, sh) }, nil)
			for n, i := range sh.keys {
				if err != nil {
					each(i, bellwether.Entry{}, err)
				} else {
					each(i, replies[n].entry, replies[n].err)
				}
			}
		})
	}
	asking.Wait()
}

// shares finds the keys' servers.
func (s *Store) shares(ctx context.Context, keys []string) ([]*share, error) {
	var list []*share
	of := map[*clock]*share{}
	for i, key := range keys {
		name := s.name(key)
		server, clock, err := s.serverOf(ctx, name)
		if err != nil {
			list = append(list, &share{err: err, keys: []int{i}})
			continue
		}
		sh := of[clock]
		if sh == nil {
			sh = &share{server: server, clock: clock}
			of[clock] = sh
			list = append(list, sh)
		}
		sh.keys, sh.names = append(sh.keys, i), append(sh.names, name)
	}
	return list, nil
}

// getShare reads a share. A process that only reads asks for the time along with
// entries, twice a minute. The request goes to their server itself, because TIME has no
// key by which a cluster's client would find it; so a redirection to another server is
// ours to follow.
func (s *Store) getShare(ctx context.Context, sh *share) ([]reply, error) {
	if sh.err != nil {
		return nil, fmt.Errorf("redisstore: get: %w", sh.err)
	}
	seen, known := sh.clock.recent()
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
			return nil, fmt.Errorf("redisstore: time: %w", err)
		}
		seen = sighting{time.Duration(t.UnixMicro()) * time.Microsecond, sent}
		sh.clock.see(seen)
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
	replies := make([]reply, len(sh.names))
	for n := range replies {
		value, err := data(n)
		if cmd := moved[n]; cmd != nil {
			value, err = cmd.Bytes()
		}
		replies[n].entry, replies[n].err = entryOf(value, err, seen.now())
	}
	return replies, nil
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
