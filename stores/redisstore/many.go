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
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/redis/go-redis/v9"
)

// This file reads many entries at once: a round trip per server and piece.

// A share is the keys on one server.
type share struct {
	server redis.Cmdable
	clock  *redisentry.Clock
	keys   []int    // indexes in the call
	names  []string // of the keys in Redis
	own    []string // the keys themselves
	err    error    // the reason for no server; the share then has one key
}

func (sh share) piece(n int) (first, rest share) {
	n = min(n, len(sh.keys))
	first, rest = sh, sh
	first.keys, rest.keys = sh.keys[:n], sh.keys[n:]
	first.names, rest.names = sh.names[:n], sh.names[n:]
	first.own, rest.own = sh.own[:n], sh.own[n:]
	return first, rest
}

type result struct {
	entry driver.Entry
	err   error
}

type results struct {
	each    []result
	bytes   int
	silence error // the reason if no key has an answer
}

// GetMany implements [driver.BatchGetter]. It asks each server for about a megabyte at a time, judged
// by the last values: 16 keys the first time, 256 at most. Each request costs 1 round trip with 1
// command, or in a cluster 1 GET per key, and a TIME for a server without a recent request.
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
			var got results
			for rest := *sh; len(rest.keys) > 0; {
				piece, rest = rest.piece(s.pieces.Next())
				var err error
				got, err = await(ctx, s, "get", func() (results, error) { return s.getShare(ctx, &piece) })
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

// getShare reads a share. A process that only reads asks for the time along with entries, twice a minute. A
// cluster's client cannot route TIME: the request goes to the server, and follow goes after redirections.
func (s *Store) getShare(ctx context.Context, sh *share) (got results, _ error) {
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
	redispipe.Exec(ctx, pipe)
	if now != nil {
		at, err := redisentry.SightingBy(now, sent)
		if err != nil {
			return got, fmt.Errorf("reading the server's time: %w", err)
		}
		seen = sh.clock.See(at)
	}
	moved := s.follow(ctx, sh, data)
	got.each = make([]result, len(sh.names))
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

// follow reads the keys of a share that have moved to another server, by the cluster's client, which finds it. moved has
// the replies, by the keys' indexes in the share.
func (s *Store) follow(ctx context.Context, sh *share, data func(n int) ([]byte, error)) (moved map[int]*redis.StringCmd) {
	moved = map[int]*redis.StringCmd{}
	pipe := s.rdb.Pipeline()
	for n, name := range sh.names {
		_, err := data(n)
		if err == nil || errors.Is(err, redis.Nil) {
			continue
		}
		rediscluster.Doubt(s.rdb, err)
		if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
			moved[n] = pipe.Get(ctx, name)
		}
	}
	if len(moved) > 0 {
		redispipe.Exec(ctx, pipe)
	}
	return moved
}

// pipeGets adds reads of names to the pipe. data returns the replies after its Exec.
func (s *Store) pipeGets(ctx context.Context, pipe redis.Pipeliner, names []string) (data func(n int) ([]byte, error)) {
	if _, ok := s.rdb.(rediscluster.Client); ok || len(names) == 1 {
		// A cluster's server refuses MGET for keys in several slots.
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
		// MGET returns nil for types other than string, where GET would fail.
		value, ok := values[n].(string)
		if !ok {
			return nil, redis.Nil
		}
		return []byte(value), nil
	}
}
